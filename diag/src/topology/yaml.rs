//! `topology.yaml`, of Slurm 25.05 and later: a list of topologies, each a tree, a list of blocks, or of a kind that says
//! nothing of leaves (flat, or one that is newer than this). Keys that are not needed are passed over.
//!
//! YAML as this file is written: maps and lists by indentation, lists in one line (`[4, 16]`), comments, quotes. Anchors, tags,
//! maps in braces and texts of several lines are mistakes: nobody needs them here, and they are what hostile files are made of.

use std::collections::BTreeSet;

use super::{Draft, Form, LeafKind, Mistake, Mistakes, Topology, check_length};

/// Maps and lists inside each other; the file needs six.
const MAX_DEPTH: usize = 16;

/// Reads the file's text.
///
/// # Errors
/// Every mistake that can be told apart from those before it.
pub fn parse(text: &str) -> Result<Topology, Vec<Mistake>> {
    check_length(text)?;
    let mut mistakes = Mistakes::default();
    let mut reader = Reader { lines: lines(text, &mut mistakes), at: 0, mistakes: &mut mistakes };
    let root = reader.block(0, 0);
    if let Some(line) = reader.lines.get(reader.at) {
        let words = "this line is no part of what stands above: is it indented as it should be?".to_owned();
        reader.mistakes.add(line.number, words);
    }
    let mut forms = Vec::new();
    match root {
        None => {}
        Some(Node { what: What::List(all), .. }) => {
            forms.extend(all.iter().filter_map(|one| form(one, &mut mistakes)));
        }
        Some(Node { line, .. }) => {
            mistakes.add(line, "the file is a list of topologies: `- topology: NAME`".to_owned())
        }
    }
    mistakes.or(forms)
}

/// One topology; `None`: it has no leaves.
fn form(one: &Node, mistakes: &mut Mistakes) -> Option<Form> {
    if one.get("topology").and_then(Node::text).is_none() {
        mistakes.add(one.line, "a topology begins with `topology: NAME`".to_owned());
    }
    let default =
        one.get("cluster_default").and_then(Node::text).is_some_and(|text| text.eq_ignore_ascii_case("true"));
    let (kind, of, list, name) = match (one.get("tree"), one.get("block")) {
        (Some(tree), None) => (LeafKind::Switch, tree, "switches", "switch"),
        (None, Some(block)) => (LeafKind::Block, block, "blocks", "block"),
        (Some(tree), Some(_)) => {
            mistakes.add(tree.line, "a topology is a tree or has blocks, not both".to_owned());
            return None;
        }
        (None, None) => return None,
    };
    let Some(Node { what: What::List(all), .. }) = of.get(list) else {
        mistakes.add(of.line, format!("here stands a list `{list}:`"));
        return None;
    };
    let mut draft = Draft { form: Form { kind, default, ..Form::default() }, ..Draft::default() };
    for one in all {
        let text = |key: &str| one.get(key).and_then(Node::text);
        match text(name) {
            Some(called) => draft.take((one.line, called), text("nodes"), text("children"), mistakes),
            None => mistakes.add(one.line, format!("an entry of `{list}` begins with `{name}: NAME`")),
        }
    }
    Some(draft.done(mistakes))
}

/// A part of the file.
struct Node {
    line: usize,
    what: What,
}

enum What {
    Text(String),
    List(Vec<Node>),
    Map(Vec<(String, Node)>),
}

impl Node {
    fn get(&self, key: &str) -> Option<&Self> {
        match &self.what {
            What::Map(entries) => entries.iter().find(|(name, _)| name == key).map(|(_, node)| node),
            What::Text(_) | What::List(_) => None,
        }
    }

    fn text(&self) -> Option<&str> {
        if let What::Text(text) = &self.what { Some(text) } else { None }
    }
}

/// A line with something on it.
struct Line {
    number: usize,
    indent: usize,
    text: String,
}

fn lines(text: &str, mistakes: &mut Mistakes) -> Vec<Line> {
    let mut lines = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let text = without_comment(line).trim_end();
        let indent = text.len() - text.trim_start_matches(' ').len();
        let text = &text[indent..];
        if text.is_empty() || (indent == 0 && (text == "---" || text == "...")) {
            continue;
        }
        if text.starts_with('\t') {
            mistakes.add(number, "a tab in front: lines are indented by spaces".to_owned());
            continue;
        }
        lines.push(Line { number, indent, text: text.to_owned() });
    }
    lines
}

/// A `#` at the beginning or after a space begins a comment, unless it stands in quotes.
fn without_comment(line: &str) -> &str {
    let (mut quote, mut before) = (None, ' ');
    for (at, c) in line.char_indices() {
        match (quote, c) {
            (None, '#') if before.is_whitespace() => return &line[..at],
            (None, '"' | '\'') if !before.is_alphanumeric() => quote = Some(c),
            (Some(open), c) if open == c => quote = None,
            _ => {}
        }
        before = c;
    }
    line
}

struct Reader<'m> {
    lines: Vec<Line>,
    at: usize,
    mistakes: &'m mut Mistakes,
}

impl Reader<'_> {
    /// What stands at this indentation or deeper, up to the first line that is indented less.
    fn block(&mut self, least: usize, depth: usize) -> Option<Node> {
        let line = self.lines.get(self.at).filter(|line| line.indent >= least)?;
        let (number, indent) = (line.number, line.indent);
        if depth > MAX_DEPTH {
            self.mistakes.add(number, format!("more than {MAX_DEPTH} maps and lists inside each other"));
            // What is inside can't be read either.
            while self.lines.get(self.at).is_some_and(|line| line.indent >= indent) {
                self.at += 1;
            }
            return None;
        }
        let what = if is_item(&line.text) { self.list(indent, depth) } else { self.map(indent, depth) };
        Some(Node { line: number, what })
    }

    fn list(&mut self, indent: usize, depth: usize) -> What {
        let mut items = Vec::new();
        while let Some(line) =
            self.lines.get_mut(self.at).filter(|line| line.indent == indent && is_item(&line.text))
        {
            let number = line.number;
            let rest = line.text[1..].trim_start().to_owned();
            if rest.is_empty() {
                self.at += 1;
                items.extend(self.block(indent + 1, depth + 1));
            } else if is_item(&rest) || split(&rest).is_some() {
                // The rest of the line begins a list or map of its own, indented by where it stands.
                line.indent += line.text.len() - rest.len();
                line.text = rest;
                items.extend(self.block(indent + 1, depth + 1));
            } else {
                self.at += 1;
                items.extend(self.value(number, &rest));
            }
        }
        What::List(items)
    }

    fn map(&mut self, indent: usize, depth: usize) -> What {
        let mut entries: Vec<(String, Node)> = Vec::new();
        let mut keys = BTreeSet::new();
        while let Some(line) =
            self.lines.get(self.at).filter(|line| line.indent == indent && !is_item(&line.text))
        {
            let number = line.number;
            let Some((key, rest)) = split(&line.text) else {
                let words = format!("{:?}: here stands `key: value`", line.text);
                self.mistakes.add(number, words);
                self.at += 1;
                continue;
            };
            self.at += 1;
            if !keys.insert(key.clone()) {
                self.mistakes.add(number, format!("{key} stands twice"));
            }
            let node = if rest.is_empty() {
                // A list may stand as far out as the key that it belongs to.
                let item =
                    self.lines.get(self.at).is_some_and(|next| next.indent == indent && is_item(&next.text));
                self.block(if item { indent } else { indent + 1 }, depth + 1)
            } else {
                self.value(number, &rest)
            };
            entries.extend(node.map(|node| (key, node)));
        }
        What::Map(entries)
    }

    /// A text, or a list of texts in one line.
    fn value(&mut self, line: usize, text: &str) -> Option<Node> {
        if let Some(inside) = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            let texts = inside.split(',').map(str::trim).filter(|text| !text.is_empty());
            let items = texts.map(|text| Node { line, what: What::Text(unquoted(text)) }).collect();
            return Some(Node { line, what: What::List(items) });
        }
        if text.starts_with(['[', '{', '&', '*', '!', '|', '>', '%', '@', '`']) {
            self.mistakes.add(
                line,
                format!("{text:?}: this form of YAML is not read here; write it as Slurm's manual does"),
            );
            return None;
        }
        Some(Node { line, what: What::Text(unquoted(text)) })
    }
}

fn is_item(text: &str) -> bool {
    text == "-" || text.starts_with("- ")
}

/// Key and value of `key: value`.
fn split(text: &str) -> Option<(String, String)> {
    let (key, rest) = match text.strip_suffix(':').filter(|key| !key.contains(": ")) {
        Some(key) => (key, ""),
        None => text.split_once(": ")?,
    };
    let key = unquoted(key.trim());
    (!key.is_empty() && !key.starts_with(['[', '{'])).then(|| (key, rest.trim().to_owned()))
}

fn unquoted(text: &str) -> String {
    let of = |quote: char| text.strip_prefix(quote)?.strip_suffix(quote);
    of('"').or_else(|| of('\'')).unwrap_or(text).to_owned()
}
