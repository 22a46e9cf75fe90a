//! `topology.conf`: a line a switch (`SwitchName=s1 Nodes=n[1-16]`, `SwitchName=top Switches=s[1-4]`) or block
//! (`BlockName=b1 Nodes=n[1-18]`), keys in any case, `#` begins a comment, a backslash at its end joins a line to the next.

use super::{Draft, LeafKind, Mistake, Mistakes, Topology, check_length};

/// Keys that say nothing of who is below what.
const PASSED_OVER: [&str; 2] = ["linkspeed", "blocksizes"];

/// Reads the file's text.
///
/// # Errors
/// Every mistake, in the order of lines.
pub fn parse(text: &str) -> Result<Topology, Vec<Mistake>> {
    check_length(text)?;
    let mut mistakes = Mistakes::default();
    let (mut tree, mut block) = (Draft::default(), Draft::default());
    tree.form.default = true;
    block.form.kind = LeafKind::Block;
    for (line, words) in lines(text) {
        let mut said: [Option<&str>; 4] = [None; 4];
        const KEYS: [&str; 4] = ["switchname", "blockname", "nodes", "switches"];
        let mut anything = false;
        for word in words.split_whitespace() {
            anything = true;
            let Some((key, value)) = word.split_once('=') else {
                mistakes.add(
                    line,
                    format!("{word:?}: here stand words like Key=value, without spaces around the ="),
                );
                continue;
            };
            let value = value.trim_matches('"');
            match KEYS.iter().position(|known| known.eq_ignore_ascii_case(key)) {
                Some(at) if said[at].is_some() => mistakes.add(line, format!("{key} stands twice")),
                Some(at) => said[at] = Some(value),
                None if PASSED_OVER.iter().any(|known| known.eq_ignore_ascii_case(key)) => {}
                None => mistakes.add(
                    line,
                    format!("unknown key {key:?}; known: SwitchName, Switches, Nodes, LinkSpeed, BlockName, BlockSizes"),
                ),
            }
        }
        match said {
            [Some(name), None, nodes, children] => tree.take((line, name), nodes, children, &mut mistakes),
            [None, Some(name), nodes, children] => {
                if children.is_some() {
                    mistakes.add(line, format!("block {name} has Switches: a block has nodes"));
                }
                block.take((line, name), nodes, None, &mut mistakes);
            }
            [Some(_), Some(_), ..] => mistakes.add(line, "SwitchName and BlockName in one line".to_owned()),
            [None, None, None, None] if !anything || is_sizes(&words) => {}
            [None, None, ..] => mistakes.add(line, "neither SwitchName nor BlockName".to_owned()),
        }
    }
    let forms = [tree, block].into_iter().map(|draft| draft.done(&mut mistakes));
    let forms = forms.filter(|form| !form.leaves.is_empty()).collect();
    mistakes.or(forms)
}

/// A line that holds for all blocks.
fn is_sizes(words: &str) -> bool {
    words.trim_start().get(..10).is_some_and(|key| key.eq_ignore_ascii_case("BlockSizes"))
}

/// Logical lines with the number of their first one: without comments, continued ones joined.
fn lines(text: &str) -> Vec<(usize, String)> {
    let mut lines: Vec<(usize, String)> = Vec::new();
    let mut goes_on = false;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or_default().trim_end();
        let (line, more) = line.strip_suffix('\\').map_or((line, false), |line| (line, true));
        match lines.last_mut().filter(|_| goes_on) {
            Some((_, last)) => last.push_str(line),
            None => lines.push((number, line.to_owned())),
        }
        goes_on = more;
    }
    lines
}
