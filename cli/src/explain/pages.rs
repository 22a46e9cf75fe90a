//! The documentation as a source of explanations: its sections, the rows of its tables, its lists, and the comments of the
//! example policy. What a word means is written there once.

/// A page and its name in the source tree.
const PAGES: [(&str, &str); 5] = [
    ("docs/checks.md", include_str!("../../../docs/checks.md")),
    ("docs/gpus.md", include_str!("../../../docs/gpus.md")),
    ("docs/runtime.md", include_str!("../../../docs/runtime.md")),
    ("docs/drains.md", include_str!("../../../docs/drains.md")),
    ("README.md", include_str!("../../../README.md")),
];

/// The policy with a comment before every key.
const POLICY: &str = include_str!("../../../conf/aimaster.toml");

/// What one place says.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Passage {
    /// The page.
    pub page: &'static str,
    /// The heading that it stands under.
    pub heading: String,
    /// Lines, without marks.
    pub lines: Vec<String>,
}

/// All that the pages say under a heading, in the first cell of a row, or at the head of an item with exactly this word.
#[must_use]
pub fn about(word: &str) -> Vec<Passage> {
    PAGES.iter().flat_map(|(page, text)| in_page(page, text, &|own| own == word)).collect()
}

/// The same where it is only part of the first cell of a row or of the heading; letter case does not matter.
#[must_use]
pub fn mentions(words: &str) -> Vec<Passage> {
    let wanted = words.to_lowercase();
    PAGES
        .iter()
        .flat_map(|(page, text)| in_page(page, text, &|own| own.to_lowercase().contains(&wanted)))
        .collect()
}

fn in_page(page: &'static str, text: &str, fits: &dyn Fn(&str) -> bool) -> Vec<Passage> {
    let mut found = Vec::new();
    let mut heading = String::new();
    let mut header: Vec<String> = Vec::new();
    let mut whole: Option<Vec<String>> = None;
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if let Some(title) = line.strip_prefix("## ").or_else(|| line.strip_prefix("### ")) {
            keep(&mut found, page, &heading, whole.take());
            heading = plain(title);
            whole = title.split(", ").any(|one| fits(&plain(one))).then(Vec::new);
            continue;
        }
        if let Some(section) = &mut whole {
            section.push(plain(line));
            continue;
        }
        let Some(row) = cells(line) else {
            if line.starts_with('|') {
                continue; // what divides header and rows
            }
            if let Some(item) = item(line, fits) {
                let mut all = vec![item];
                while let Some(more) = lines.next_if(|next| next.starts_with("  ")) {
                    all.push(plain(more.trim()));
                }
                keep(&mut found, page, &heading, Some(vec![all.join(" ")]));
            }
            header.clear();
            continue;
        };
        if header.is_empty() {
            header = row;
        } else if row.first().is_some_and(|cell| words(cell).any(|word| fits(&word))) {
            let said = header.iter().zip(&row).map(|(name, cell)| {
                if name.is_empty() { plain(cell) } else { format!("{}: {}", plain(name), plain(cell)) }
            });
            keep(&mut found, page, &heading, Some(said.collect()));
        }
    }
    keep(&mut found, page, &heading, whole);
    found
}

fn keep(found: &mut Vec<Passage>, page: &'static str, heading: &str, lines: Option<Vec<String>>) {
    let Some(mut lines) = lines else { return };
    while lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
    while lines.first().is_some_and(String::is_empty) {
        lines.remove(0);
    }
    if !lines.is_empty() {
        found.push(Passage { page, heading: heading.to_owned(), lines });
    }
}

/// The cells of a table's row; `None`: it is none, or only the line below the header.
fn cells(line: &str) -> Option<Vec<String>> {
    let row = line.strip_prefix("| ")?.strip_suffix(" |")?;
    // A bar inside a cell has a backslash before it.
    let row = row.replace("\\|", "\u{1}");
    Some(row.split(" | ").map(|cell| cell.replace('\u{1}', "|").trim().to_owned()).collect())
}

/// The words of a cell that may be meant: itself, and what stands in backticks.
fn words(cell: &str) -> impl Iterator<Item = String> {
    let marked = cell.split('`').skip(1).step_by(2);
    // `--sanity-check[=LIST]` is known by its name too.
    let marked: Vec<String> = marked
        .flat_map(|word| [word, word.split(['[', '=']).next().unwrap_or(word)])
        .map(str::to_owned)
        .collect();
    std::iter::once(plain(cell)).chain(marked)
}

/// `- WORD: text`.
fn item(line: &str, fits: &dyn Fn(&str) -> bool) -> Option<String> {
    let text = plain(line.strip_prefix("- ")?);
    let (word, _) = text.split_once(':')?;
    fits(word).then_some(text)
}

/// Text without marks: links keep their words.
fn plain(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('[') {
        out.push_str(before);
        match after.split_once("](").and_then(|(words, tail)| Some((words, tail.split_once(')')?.1))) {
            Some((words, tail)) if !words.contains('[') => {
                out.push_str(words);
                rest = tail;
            }
            _ => {
                out.push('[');
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out.replace("**", "").replace('`', "")
}

/// A key of the policy: the default's line and the comment before it. Keys of one comment share it.
#[must_use]
pub fn key(path: &str) -> Option<Passage> {
    let (wanted_table, wanted) = path.rsplit_once('.').unwrap_or(("", path));
    let mut table = String::new();
    let mut comment: Vec<String> = Vec::new();
    let mut ended = true;
    for line in POLICY.lines() {
        if let Some(words) = line.strip_prefix("# ").or_else(|| (line == "#").then_some("")) {
            if ended {
                comment.clear();
            }
            ended = false;
            comment.push(words.to_owned());
        } else if let Some(name) = line.strip_prefix("#[").and_then(|name| name.strip_suffix(']')) {
            name.clone_into(&mut table);
            ended = true;
        } else if let Some((key, _)) = line.strip_prefix('#').and_then(|text| text.split_once(" = ")) {
            ended = true;
            if table == wanted_table && key == wanted {
                let mut lines = vec![line.trim_start_matches('#').to_owned()];
                lines.append(&mut comment);
                return Some(Passage { page: "conf/aimaster.toml", heading: format!("[{table}]"), lines });
            }
        } else {
            comment.clear();
            ended = true;
        }
    }
    None
}

/// All keys of the policy.
#[must_use]
pub fn keys() -> Vec<String> {
    let mut table = String::new();
    let mut keys = Vec::new();
    for line in POLICY.lines() {
        let Some(text) = line.strip_prefix('#') else { continue };
        if let Some(name) = text.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
            name.clone_into(&mut table);
        } else if let Some((key, _)) = text.split_once(" = ").filter(|(key, _)| !key.contains(' ')) {
            keys.push(if table.is_empty() { key.to_owned() } else { format!("{table}.{key}") });
        }
    }
    keys
}

#[cfg(test)]
mod tests {
    use diag::policy::Policy;

    use super::*;

    #[test]
    fn sections_rows_and_items_are_found() {
        let page = "# T\n\n## a, `b`\n\n**Means** [x](y.md) [1].\n\n## c\n\n| word | what |\n|---|---|\n| `d`, the `e_2` | f \\| g |\n\n\
                    - H: one\n  more\n- other\n";
        let about = |word: &str| in_page("p", page, &|own| own == word);
        assert_eq!(about("b")[0].lines, ["Means x [1]."]);
        assert_eq!(about("a"), about("b"));
        assert_eq!(
            (about("e_2")[0].heading.as_str(), about("e_2")[0].lines.clone()),
            ("c", vec!["word: d, the e_2".into(), "what: f | g".into()])
        );
        assert_eq!(about("H")[0].lines, ["H: one more"]);
        assert!(about("word").is_empty() && about("other").is_empty());
    }

    #[test]
    fn every_key_of_the_policy_has_its_comment() {
        let keys = keys();
        assert!(keys.len() > 60, "{keys:?}");
        for path in &keys {
            let passage = key(path).unwrap_or_else(|| panic!("{path} is not found"));
            assert!(passage.lines.len() > 1, "{path} has no comment: {passage:?}");
        }
        assert!(key("time.join_s").unwrap().lines[1].contains("wait for each other"));
        assert!(key("network.port_last").unwrap().lines[1].contains("TCP ports"));
        // They are the policy's own.
        let whole = serde_json::to_value(Policy::default()).unwrap();
        for path in keys {
            let found = path.split('.').try_fold(&whole, |at, part| at.get(part));
            assert!(found.is_some(), "the policy has no {path}");
        }
    }
}
