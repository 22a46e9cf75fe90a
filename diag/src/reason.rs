//! The reason of a drain by this software: how it is written, and how it is known again. Only a reason of exactly this
//! form is ours to take back; one that only begins like it has been changed by somebody.
//!
//! `aimaster: <what> job=<id> n=<check number>`, one line.

use std::fmt;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use crate::plain::printable;

/// What our reasons begin with.
pub const MARK: &str = "aimaster: ";

/// Longest reason, in bytes: what an operator's screen takes well, and less than the 255 that Slurm's accounting keeps.
pub const REASON_MAX: usize = 200;

/// A reason of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ours {
    /// What was found: the check, the part and the number, or words.
    pub what: String,
    /// The job that found it.
    pub job_id: u32,
    /// 1 for the first start of that job, 2 after its first restart, ...
    pub check_number: u32,
}

impl Ours {
    /// Reads a reason; `None`: it is not ours, or not as we wrote it.
    #[must_use]
    pub fn parse(reason: &str) -> Option<Self> {
        let body = reason.strip_prefix(MARK)?;
        let (what, tail) = body.rsplit_once(" job=")?;
        let (job, check) = tail.split_once(" n=")?;
        let ours =
            Self { what: what.to_owned(), job_id: job.parse().ok()?, check_number: check.parse().ok()? };
        // Leading zeros, plus signs, control characters, spaces at the ends: none of that is ours.
        (!ours.what.is_empty() && ours.to_string() == reason).then_some(ours)
    }

    /// The same with words in addition, at the end of what was found.
    #[must_use]
    pub fn with(mut self, words: &str) -> Self {
        let room = REASON_MAX.saturating_sub(MARK.len() + self.tail().len() + words.len() + 1);
        self.what = format!("{} {words}", shortened(&self.what, room));
        self
    }

    /// The first word of what was found: the name of the check, `hardware`, or `c4d`.
    #[must_use]
    pub fn check(&self) -> &str {
        self.what.split(' ').next().unwrap_or_default()
    }

    /// What of this node was at fault, such as `gpu2` or `rail3`; `None`: the node as a whole, or it is told in words only.
    #[must_use]
    pub fn part(&self, node: &str) -> Option<&str> {
        let subject = self.what.split(' ').nth(1)?;
        subject.strip_suffix(':').unwrap_or(subject).strip_prefix(node)?.strip_prefix('/')
    }

    /// Whether the running program's communication told it, and not what the hardware itself shows: `c4d straggler: ...`,
    /// but not `c4d hardware: ...`.
    #[must_use]
    pub fn is_of_communication(&self) -> bool {
        self.check() == "c4d" && self.what.split(' ').nth(1) != Some("hardware:")
    }

    fn tail(&self) -> String {
        format!(" job={} n={}", self.job_id, self.check_number)
    }
}

impl fmt::Display for Ours {
    /// One line of at most [`REASON_MAX`] bytes, whatever was found.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tail = self.tail();
        let what = printable(&self.what);
        let what = shortened(what.trim(), REASON_MAX - MARK.len() - tail.len());
        write!(f, "{MARK}{what}{tail}")
    }
}

/// Whether a reason begins like ours: then the node is held by us, even where somebody added something.
#[must_use]
pub fn is_marked(reason: &str) -> bool {
    reason.starts_with(MARK)
}

/// The time of a reason as Slurm's commands print it where they are told that the clock is UTC.
#[must_use]
pub fn time(text: &str) -> Option<Timestamp> {
    let civil: DateTime = text.parse().ok()?;
    Some(civil.to_zoned(TimeZone::UTC).ok()?.timestamp())
}

/// A short checksum (FNV-1a) that tells whether somebody changed a reason. It is no secret and no proof.
#[must_use]
pub fn sum(reason: &str) -> u32 {
    reason.bytes().fold(0x811c_9dc5, |sum, byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// At most `most` bytes, cut between characters, without spaces at the end.
fn shortened(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].trim_end()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ours(what: &str) -> Ours {
        Ours { what: what.into(), job_id: 12, check_number: 1 }
    }

    #[test]
    fn only_the_exact_form_is_ours() {
        let reason = "aimaster: all_reduce_2 n3 0.002<0.05GB/s job=12 n=1";
        assert_eq!(Ours::parse(reason), Some(ours("all_reduce_2 n3 0.002<0.05GB/s")));
        assert_eq!(Ours::parse(reason).unwrap().check(), "all_reduce_2");
        for other in [
            "",
            "aimaster",
            "aimaster: ",
            "aimaster:  job=1 n=1",
            "Aimaster: gemm_flops n3 job=12 n=1",
            " aimaster: gemm_flops n3 job=12 n=1",
            "aimaster: gemm_flops n3 job=12 n=1 ",
            "aimaster: gemm_flops n3 job=12 n=1; ordered a new one",
            "aimaster: gemm_flops n3 job=012 n=1",
            "aimaster: gemm_flops n3 job=+12 n=1",
            "aimaster: gemm_flops n3 job=12 n=",
            "aimaster: gemm_flops n3 job=12",
            "aimaster: gemm_flops\nn3 job=12 n=1",
            "Prolog error",
            "fan 3 is loud, see aimaster: x job=1 n=1",
        ] {
            assert_eq!(Ours::parse(other), None, "{other:?}");
        }
    }

    #[test]
    fn the_part_is_the_one_of_the_node_itself() {
        for (what, part) in [
            ("gemm_flops n2/gpu2 5<10TFLOP/s", Some("gpu2")),
            ("multi_all_reduce_2 n2/rail3 1<2GB/s", Some("rail3")),
            ("hardware n2/gpu1: fell off the bus", Some("gpu1")),
            ("gemm_flops n2 5<10TFLOP/s", None),
            ("gemm_flops n22/gpu2 5<10TFLOP/s", None),
            ("hardware n2 GPU 1: it can't be opened", None),
            ("gemm_flops", None),
        ] {
            assert_eq!(ours(what).part("n2"), part, "{what}");
        }
        assert!(ours("c4d straggler: rank 3 is late").is_of_communication());
        assert!(!ours("c4d hardware: n2: GPU 1 is lost").is_of_communication());
        assert!(!ours("gemm_flops hardware").is_of_communication());
    }

    #[test]
    fn slurms_times_are_read() {
        assert_eq!(time("1970-01-02T00:00:01").unwrap().as_second(), 86_401);
        assert!(["Unknown", "None", "", "12:00"].iter().all(|text| time(text).is_none()));
    }

    #[test]
    fn words_are_added_in_front_of_the_job_however_long_it_is() {
        let again = ours("gemm_flops n2 5<10TFLOP/s").with("third time in 24 h").to_string();
        assert_eq!(again, "aimaster: gemm_flops n2 5<10TFLOP/s third time in 24 h job=12 n=1");
        let long = ours(&"é".repeat(500)).with("third time in 24 h").to_string();
        assert!(long.len() <= REASON_MAX && long.ends_with("é third time in 24 h job=12 n=1"), "{long}");
        assert_eq!(Ours::parse(&long).unwrap().to_string(), long);
    }

    proptest! {
        // C06, C10: whatever was found is one line, and is known again, whatever the check was called then.
        #[test]
        fn every_reason_is_read_back(what in "(?s).{1,300}", job_id: u32, check_number: u32, words in "[a-z0-9 ]{0,30}") {
            for one in [
                Ours { what: what.clone(), job_id, check_number },
                Ours { what: what.clone(), job_id, check_number }.with(&words),
            ] {
                let reason = one.to_string();
                prop_assert!(reason.len() <= REASON_MAX && reason.chars().all(crate::plain::is_plain));
                let read = Ours::parse(&reason);
                let empty = what.trim_matches(|c: char| !crate::plain::is_plain(c) || c.is_whitespace()).is_empty();
                prop_assert!(read.is_some() || empty, "{reason:?}");
                if let Some(read) = read {
                    prop_assert_eq!((read.job_id, read.check_number), (job_id, check_number));
                    prop_assert_eq!(read.to_string(), reason);
                }
            }
        }

        #[test]
        fn anything_added_is_somebody_elses(what in "[a-z_0-9 <./]{1,60}[a-z]", more in "[^0-9].{0,20}") {
            let reason = ours(&what).to_string();
            prop_assume!(Ours::parse(&reason).is_some());
            prop_assert_eq!(Ours::parse(&(reason.clone() + &more)), None);
            prop_assert_ne!(sum(&(reason.clone() + &more)), sum(&reason));
        }
    }
}
