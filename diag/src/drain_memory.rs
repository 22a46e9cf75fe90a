//! What is remembered of a node's drains: our part of the comment that Slurm keeps of the node,
//! `aimaster{drained=<time>,<time> sum=<checksum>}`. It outlives the drain, which a reason does not, needs no file and no
//! daemon, and is written by the very call that drains. Whatever else stands in the comment stays.

use jiff::Timestamp;

use crate::admin_comment::{is_part, part, with_part};
use crate::reason;

/// Most drains that are remembered, so that the comment stays short.
pub const MOST_REMEMBERED: u32 = 16;

const OPEN: &str = "aimaster{";

/// The drains of a node that are remembered, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Memory {
    /// When each was.
    pub drained: Vec<Timestamp>,
    /// [`reason::sum`] of the last one's reason.
    pub sum: Option<u32>,
}

impl Memory {
    /// Reads it from a node's comment. What can't be read is not there: then a node is drained once more than it should.
    #[must_use]
    pub fn of(comment: &str) -> Self {
        let inner =
            part(comment).and_then(|part| part.strip_prefix(OPEN)?.strip_suffix('}')).unwrap_or_default();
        let value = |key: &str| inner.split(' ').find_map(|word| word.strip_prefix(key));
        let times = value("drained=").unwrap_or_default().split(',');
        let mut drained: Vec<Timestamp> = times.filter_map(|time| time.parse().ok()).collect();
        drained.sort_unstable();
        let sum = value("sum=").and_then(|sum| u32::from_str_radix(sum, 16).ok());
        Self { drained, sum }
    }

    /// How many were at `since` or later.
    #[must_use]
    pub fn count(&self, since: Timestamp) -> usize {
        self.drained.iter().filter(|at| **at >= since).count()
    }

    /// The same after one more drain.
    #[must_use]
    pub fn and(mut self, at: Timestamp, reason: &str) -> Self {
        // Whole seconds, like Slurm's own times.
        self.drained.push(Timestamp::from_second(at.as_second()).unwrap_or(at));
        let forgotten = self.drained.len().saturating_sub(MOST_REMEMBERED as usize);
        self.drained.drain(..forgotten);
        self.sum = Some(reason::sum(reason));
        self
    }

    /// The whole comment with this as our part; `None` where the comment can't be written back as it is: it holds line
    /// breaks, or begins with a quote, which scontrol takes away.
    #[must_use]
    pub fn into_comment(self, comment: &str) -> Option<String> {
        if comment.contains(char::is_control) || comment.starts_with(['"', '\'']) {
            return None;
        }
        let times: Vec<String> = self.drained.iter().map(ToString::to_string).collect();
        let mut text = format!("{OPEN}drained={}", times.join(","));
        if let Some(sum) = self.sum {
            text.push_str(&format!(" sum={sum:08x}"));
        }
        text.push('}');
        is_part(&text).then(|| with_part(comment, &text))
    }

    /// Whether this reason is not as it was written; one of which nothing is remembered can't be told.
    #[must_use]
    pub fn contradicts(&self, reason: &str) -> bool {
        self.sum.is_some_and(|sum| sum != reason::sum(reason))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn it_stands_in_the_comment_beside_what_others_wrote() {
        let once = Memory::default().and(at(0), "a").into_comment("rack 7").unwrap();
        assert_eq!(once, "rack 7 aimaster{drained=1970-01-01T00:00:00Z sum=e40c292c}");
        let twice = Memory::of(&once).and(at(90_000), "b").into_comment(&once).unwrap();
        assert!(twice.starts_with("rack 7 aimaster{drained=1970-01-01T00:00:00Z,1970-01-02T01:00:00Z sum="));
        let memory = Memory::of(&twice);
        assert_eq!((memory.count(at(0)), memory.count(at(1)), memory.count(at(90_001))), (2, 1, 0));
        assert!(!memory.contradicts("b") && memory.contradicts("b; called Bob"));
        assert!(!Memory::of("").contradicts("anything"));
        for odd in ["", "rack 7", "aimaster{", "aimaster{drained=x,y sum=zz}", "aimaster{requeues=1}"] {
            assert_eq!(Memory::of(odd), Memory::default(), "{odd}");
        }
        for kept in ["two\nlines", "\"quoted", "'quoted"] {
            assert_eq!(Memory::default().and(at(0), "a").into_comment(kept), None);
        }
    }

    proptest! {
        #[test]
        fn what_is_remembered_is_read_back(
            comment in "[^{}\"'\\x00-\\x1f\\x7f-\\u{9f}][^{}\\x00-\\x1f\\x7f-\\u{9f}]{0,40}",
            times in proptest::collection::vec(0_i64..4_000_000_000, 1..20),
        ) {
            let memory = times.iter().fold(Memory::default(), |memory, second| memory.and(at(*second), "r"));
            let read = Memory::of(&memory.clone().into_comment(&comment).unwrap());
            let mut newest = memory.drained.clone();
            newest.sort_unstable();
            prop_assert_eq!(read.drained, newest);
            prop_assert!(memory.drained.len() <= MOST_REMEMBERED as usize);
        }
    }
}
