//! When a run of a job began on a node, by a clock that nobody sets: what the prolog leaves in the run folder so that a later
//! epilog can tell a job that is there from one that is over and had no epilog of its own.

use serde::{Deserialize, Serialize};

/// Name of the file in the run folder.
pub const FILE_NAME: &str = "run.json";

/// Largest file: a boot's number has 36 characters.
pub const MAX_BYTES: u64 = 1024;

/// Content of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunStamp {
    /// 1.
    pub schema: u32,
    /// The kernel's number of this start of the machine.
    pub boot: String,
    /// How long the machine was up, in seconds.
    pub uptime_s: i64,
    /// Whether the job has a step on this node for all of its life (`PrologFlags=Contain`), so that a job without one is none.
    pub lasting: bool,
}

impl RunStamp {
    /// Of a run that begins now.
    #[must_use]
    pub fn new(boot: String, uptime_s: i64, lasting: bool) -> Self {
        Self { schema: 1, boot, uptime_s, lasting }
    }

    /// Whether the run is over unless a step of it is there: it began on an earlier start of the machine, or at least
    /// `least_s` ago as one that has a lasting step. What is not known is not over.
    #[must_use]
    pub fn needs_a_step(&self, boot: &str, uptime_s: i64, least_s: i64) -> bool {
        if self.schema != 1 || self.boot.is_empty() || boot.is_empty() {
            return false;
        }
        self.boot != boot || (self.lasting && uptime_s.saturating_sub(self.uptime_s) >= least_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_known_to_be_old_needs_a_step() {
        let stamp = RunStamp::new("b".into(), 100, true);
        assert!(stamp.needs_a_step("b", 160, 60) && !stamp.needs_a_step("b", 159, 60));
        // A machine that started anew took all of its processes along, with a lasting step or without.
        let between = RunStamp { lasting: false, ..stamp.clone() };
        assert!(!between.needs_a_step("b", 1_000_000, 60) && between.needs_a_step("c", 0, 60));
        for unknown in
            [RunStamp { schema: 2, ..stamp.clone() }, RunStamp { boot: String::new(), ..stamp.clone() }]
        {
            assert!(!unknown.needs_a_step("c", i64::MAX, 60), "{unknown:?}");
        }
        assert!(!stamp.needs_a_step("", i64::MAX, 60));
        // No subtraction overflows.
        let odd = RunStamp { uptime_s: i64::MIN, ..stamp };
        assert!(odd.needs_a_step("b", i64::MAX, 60));
    }
}
