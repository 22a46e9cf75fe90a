//! Our part of a job's AdminComment, `aimaster{...}`: it survives a requeue, so our own requeues are counted
//! there. Whatever else stands in the comment stays as it is.

use crate::verdict::Outcome;

/// What our part begins with.
const OPEN: &str = "aimaster{";

/// Where our part is: the first `aimaster{` that doesn't continue a word, up to the brace that closes it.
fn find(comment: &str) -> Option<std::ops::Range<usize>> {
    let begins_word =
        |at: usize| !comment[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '-');
    comment.match_indices(OPEN).map(|(at, _)| at).filter(|at| begins_word(*at)).find_map(|at| {
        let mut depth = 0_usize;
        let end = comment[at..].char_indices().find_map(|(offset, c)| {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1, // the first brace opens, and depth 0 ends the search
                _ => (),
            }
            (c == '}' && depth == 0).then_some(at + offset + 1)
        })?;
        Some(at..end)
    })
}

/// Our part as it stands in a comment, braces included.
#[must_use]
pub fn part(comment: &str) -> Option<&str> {
    find(comment).map(|range| &comment[range])
}

/// Whether a text can be our part: one line, begins as it should, and its last brace closes its first.
#[must_use]
pub fn is_part(text: &str) -> bool {
    !text.chars().any(char::is_control) && find(text) == Some(0..text.len())
}

/// The comment with our part replaced, or added at its end.
#[must_use]
pub fn with_part(comment: &str, new: &str) -> String {
    match find(comment) {
        Some(range) => format!("{}{new}{}", &comment[..range.start], &comment[range.end..]),
        None if comment.is_empty() => new.to_owned(),
        None => format!("{comment} {new}"),
    }
}

/// Our part for a verdict.
#[must_use]
pub fn new_part(check_number: u32, outcome: Outcome, requeues: u32, drained: &[&str]) -> String {
    let mut part = format!("{OPEN}n={check_number} outcome={outcome} requeues={requeues}");
    if !drained.is_empty() {
        part.push_str(" drained=");
        part.push_str(&drained.join(","));
    }
    part.push('}');
    part
}

/// A part for a verdict as [`new_part`] makes it, with these nodes as what was drained in the end.
#[must_use]
pub fn with_drained(part: &str, drained: &[&str]) -> String {
    let inner = part.strip_prefix(OPEN).and_then(|rest| rest.strip_suffix('}')).unwrap_or_default();
    let mut words: Vec<&str> = inner.split(' ').filter(|word| !word.starts_with("drained=")).collect();
    let list = format!("drained={}", drained.join(","));
    if !drained.is_empty() {
        words.push(&list);
    }
    format!("{OPEN}{}}}", words.join(" "))
}

/// Begins what the runtime check says in our part; it is the last there.
const RUNTIME: &str = "c4d=";

/// Our part for what the runtime check found, in place of what it said before; what the checks before the start said
/// stays. `line`: words that begin with `c4d=` each, or nothing where nothing holds any more.
#[must_use]
pub fn runtime_part(
    comment: &str,
    check_number: u32,
    requeued: bool,
    drained: &[&str],
    line: &str,
) -> String {
    let old = part(comment).and_then(|part| part.strip_prefix(OPEN)?.strip_suffix('}')).unwrap_or_default();
    let number = format!("n={check_number}");
    // Of what somebody wrote between our braces only words are kept: the other half of a brace may go with a word that does.
    let is_word =
        |word: &&str| !word.is_empty() && !word.contains(|c: char| "{}".contains(c) || c.is_control());
    let mut words: Vec<&str> = old.split(' ').filter(is_word).collect();
    words.truncate(words.iter().position(|word| word.starts_with(RUNTIME)).unwrap_or(words.len()));
    // Of another run of the job the outcome and the nodes are not this one's.
    if !words.contains(&number.as_str()) {
        words.clear();
    }
    let requeues = format!("requeues={}", requeues(comment).saturating_add(u32::from(requeued)));
    let mut nodes = listed(&words);
    nodes.extend(drained.iter().filter(|node| !nodes.contains(node)).copied().collect::<Vec<_>>());
    let ours = |word: &&str| ["n=", "requeues=", "drained="].iter().any(|key| word.starts_with(key));
    words.retain(|word| !ours(word));
    words.insert(0, &number);
    words.push(&requeues);
    let nodes = format!("drained={}", nodes.join(","));
    if nodes.len() > "drained=".len() {
        words.push(&nodes);
    }
    if !line.is_empty() {
        words.push(line);
    }
    format!("{OPEN}{}}}", words.join(" "))
}

fn listed<'a>(words: &[&'a str]) -> Vec<&'a str> {
    let list = words.iter().find_map(|word| word.strip_prefix("drained="));
    list.map(|list| list.split(',').collect()).unwrap_or_default()
}

/// The nodes that our part says were drained in this run of the job.
#[must_use]
pub fn drained(comment: &str, check_number: u32) -> Vec<&str> {
    let inner = part(comment).and_then(|part| part.strip_prefix(OPEN)?.strip_suffix('}')).unwrap_or_default();
    let words: Vec<&str> = inner.split(' ').collect();
    if words.contains(&format!("n={check_number}").as_str()) { listed(&words) } else { Vec::new() }
}

/// How often we requeued the job; 0 where our part is missing or broken.
#[must_use]
pub fn requeues(comment: &str) -> u32 {
    part(comment)
        .and_then(|part| part.strip_prefix(OPEN)?.strip_suffix('}'))
        .and_then(|fields| fields.split(' ').find_map(|word| word.strip_prefix("requeues=")))
        .and_then(|count| count.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn our_own_requeues_are_counted_there() {
        let first = new_part(1, Outcome::Fail, 1, &["n3"]);
        assert_eq!(first, "aimaster{n=1 outcome=FAIL requeues=1 drained=n3}");
        assert_eq!(with_drained(&first, &["n3"]), first);
        assert_eq!(with_drained(&first, &[]), "aimaster{n=1 outcome=FAIL requeues=1}");
        let comment = with_part("paid by {lab 7}", &first);
        assert_eq!(requeues(&comment), 1);
        for broken in ["", "aimaster{", "aimaster{}", "aimaster{requeues=x}", "}aimaster{requeues=-1}"] {
            assert_eq!(requeues(broken), 0, "{broken}");
        }
    }

    #[test]
    fn the_runtime_check_says_its_own_beside_what_was_said_before() {
        let line = "c4d=straggler:n3/gpu1 c4d=deadlock:run +2";
        let first = runtime_part("", 1, false, &[], line);
        assert_eq!(first, format!("aimaster{{n=1 requeues=0 {line}}}"));
        assert_eq!(runtime_part(&first, 1, false, &[], ""), "aimaster{n=1 requeues=0}");
        let before = "paid aimaster{n=1 outcome=SUSPECT requeues=1 drained=n4} by x";
        let second = runtime_part(before, 1, true, &["n3", "n4"], line);
        assert_eq!(second, format!("aimaster{{n=1 outcome=SUSPECT requeues=2 drained=n4,n3 {line}}}"));
        assert_eq!(with_part(before, &second), format!("paid {second} by x"));
        assert_eq!(runtime_part(&second, 1, false, &[], "c4d=x:n1"), second.replace(line, "c4d=x:n1"));
        // The run after a requeue: our requeues are still counted.
        assert_eq!(runtime_part(&second, 2, false, &[], line), format!("aimaster{{n=2 requeues=2 {line}}}"));
        assert!(is_part(&second) && requeues(&second) == 2);
    }

    #[test]
    fn braces_inside_our_part_do_not_break_it() {
        for old in [
            "aimaster{n=1 c4d={ x}",
            "aimaster{n=1{ requeues=3 }}",
            "aimaster{n=1 requeues=3 drained={n3 a}}",
        ] {
            let part = runtime_part(old, 1, true, &[], "c4d=x:n1");
            assert!(is_part(&part) && requeues(&part) == requeues(old) + 1, "{old}: {part}");
        }
    }

    #[test]
    fn only_our_part_changes() {
        let new = "aimaster{requeues=2}";
        assert_eq!(with_part("", new), new);
        assert_eq!(with_part("ticket=7 a=b", new), "ticket=7 a=b aimaster{requeues=2}");
        assert_eq!(with_part("x aimaster{requeues=1} y  z", new), "x aimaster{requeues=2} y  z");
        assert_eq!(with_part("aimaster{a{b}c} y", new), "aimaster{requeues=2} y");
        assert_eq!(with_part("myaimaster{1}", new), "myaimaster{1} aimaster{requeues=2}");
        assert_eq!(with_part("aimaster{open", new), "aimaster{open aimaster{requeues=2}");
        assert_eq!(part("é aimaster{ü}"), Some("aimaster{ü}"));
    }

    #[test]
    fn a_part_is_one_line_and_closed() {
        assert!(is_part("aimaster{a=1 b={c}}"));
        for no in ["aimaster{", "aimaster{}x", "aimaster{}}", "aimaster{\n}", "x aimaster{}", ""] {
            assert!(!is_part(no), "{no:?}");
        }
    }

    proptest! {
        #[test]
        fn foreign_text_survives(before in "[^{}\\n]{0,30}", after in "[^{}\\n]{0,30}") {
            prop_assume!(!before.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '-'));
            let old = format!("{before}aimaster{{1}}{after}");
            prop_assert_eq!(with_part(&old, "aimaster{2}"), format!("{before}aimaster{{2}}{after}"));
        }

        #[test]
        fn any_comment_takes_the_runtime_check_s_words(comment in ".{0,200}") {
            let comment: String = comment.chars().filter(|c| !c.is_control()).collect();
            let part = runtime_part(&comment, 3, true, &["n1"], "c4d=straggler:n1");
            prop_assert_eq!(requeues(&part), requeues(&comment).saturating_add(1));
        }

        #[test]
        fn any_comment_can_be_read(comment in ".{0,200}") {
            let twice = with_part(&with_part(&comment, "aimaster{2}"), "aimaster{2}");
            prop_assert_eq!(part(&twice), Some("aimaster{2}"));
        }
    }
}
