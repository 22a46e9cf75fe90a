//! Our part of a job's AdminComment, `aimaster{...}`: it survives a requeue, so our own requeues are counted
//! there. Whatever else stands in the comment stays.

use crate::verdict::Outcome;

const OPEN: &str = "aimaster{";

/// Our part for this verdict.
#[must_use]
pub fn part(check_number: u32, outcome: Outcome, requeues: u32, drained: &[&str]) -> String {
    let mut part = format!("{OPEN}n={check_number} outcome={outcome} requeues={requeues}");
    if !drained.is_empty() {
        part.push_str(" drained=");
        part.push_str(&drained.join(","));
    }
    part.push('}');
    part
}

/// How often we requeued the job; 0 where our part is missing or broken.
#[must_use]
pub fn requeues(comment: &str) -> u32 {
    span(comment)
        .and_then(|(start, end)| {
            comment[start + OPEN.len()..end - 1]
                .split(' ')
                .find_map(|word| word.strip_prefix("requeues="))
                .and_then(|count| count.parse().ok())
        })
        .unwrap_or(0)
}

/// The comment with our part in it, in place of an older one.
#[must_use]
pub fn with_part(comment: &str, part: &str) -> String {
    match span(comment) {
        Some((start, end)) => format!("{}{part}{}", &comment[..start], &comment[end..]),
        None if comment.is_empty() => part.to_owned(),
        None => format!("{comment} {part}"),
    }
}

/// Where our part stands; the last one, should there be several.
fn span(comment: &str) -> Option<(usize, usize)> {
    let start = comment.rfind(OPEN)?;
    let end = comment[start..].find('}')?;
    Some((start, start + end + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_part_changes() {
        let first = part(1, Outcome::Fail, 1, &["n3"]);
        assert_eq!(first, "aimaster{n=1 outcome=FAIL requeues=1 drained=n3}");
        let comment = with_part("paid by {lab 7}", &first);
        assert_eq!(comment, format!("paid by {{lab 7}} {first}"));
        assert_eq!(requeues(&comment), 1);
        let second = part(2, Outcome::Pass, 1, &[]);
        assert_eq!(with_part(&comment, &second), format!("paid by {{lab 7}} {second}"));
        assert_eq!(with_part("", &second), second);
    }

    #[test]
    fn a_broken_part_counts_nothing() {
        for comment in ["", "aimaster{", "aimaster{}", "aimaster{requeues=x}", "}aimaster{requeues=-1}"] {
            assert_eq!(requeues(comment), 0, "{comment}");
        }
    }
}
