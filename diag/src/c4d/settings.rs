//! The thresholds of the rules, their defaults and where those come from. They are keys of the policy's `[c4d]`.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use crate::request::mistake::{Mistake, Mistakes, Origin};

/// Thresholds. Times in ms on the clock of the judging node; shares from 0 to 1.
///
/// Alibaba's C4 publishes no thresholds (arXiv 2406.04594), so these are our own. The tests of this crate hold them
/// against every class of fault and everything that only looks like one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Shortest silence of a communicator that can be a hang (default 10 s: with a window to confirm it a hung rank is
    /// named within 15 s; NCCL's own RAS waits 20 s).
    pub floor_ms: u64,
    /// Silence that is a hang whatever the communicator did before (default 120 s: a checkpoint of one rank is shorter,
    /// the usual timeout of a collective, 10 to 30 min, is far longer).
    pub ceiling_ms: u64,
    /// Between the two: this many times the longest silence that the communicator broke by itself within the last ten
    /// minutes (default 3: a step that takes three times as long as the slowest one is no step any more).
    pub gap_factor: f64,
    /// The same for a communicator's first operations: loading, compiling, finding each other (default 300 s).
    pub grace_ms: u64,
    /// How many operations those are (default 5).
    pub warmup_ops: u64,
    /// How long a hang must hold after it was first seen (default 1 s: one more window of digests).
    pub confirm_ms: u64,
    /// A node that was not heard for so long is not known any more (default 5 s: five digests).
    pub silent_ms: u64,
    /// What was not seen again for so long is forgotten: findings, processes, communicators (default 60 s).
    pub expire_ms: u64,
    /// GPU use from which a rank that others wait for is taken to work (default 50 %); it has until the ceiling.
    pub busy_percent: u8,
    /// Bytes read and written within a window from which the same holds (default 1 MiB: a checkpoint or a data set, not
    /// a log).
    pub busy_io_bytes: u64,
    /// Window over which times are compared (default 10 s).
    pub window_ms: u64,
    /// Fewest operations in it that say something (default 8); a window is stretched up to six times for them.
    pub min_ops: u64,
    /// Share of a window's operations in which the same rank must come last (default 0.7: by chance it is one in the
    /// number of ranks).
    pub late_share: f64,
    /// Share of the time that a straggler or a slow transport must cost (default 0.1: GPUs of one model differ by 2 to
    /// 5 % under a power cap, which is no fault).
    pub slow_share: f64,
    /// Shortest wait for the last rank that counts (default 20 µs: the GPU's clock has a grain of 1 µs, a launch jitters
    /// by 10).
    pub late_us: u64,
    /// How much longer than at its best, or than its like, the last rank's collective takes when the transport is slow
    /// (default 2).
    pub slow_ratio: f64,
    /// How much longer than the median a connection's wait must be to be hot (default 3).
    pub hot_ratio: f64,
    /// Shortest mean wait of a step that can be hot (default 50 µs: below it is the noise of the proxy's polling).
    pub hot_us: u64,
    /// How much more data than its like a rank must get to be late for a reason (default 1.1).
    pub work_ratio: f64,
    /// Whether what only the program's own telemetry shows may drain a node or requeue the job (default false: it is
    /// written by the user's process).
    pub telemetry_may_drain: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            floor_ms: 10_000,
            ceiling_ms: 120_000,
            gap_factor: 3.0,
            grace_ms: 300_000,
            warmup_ops: 5,
            confirm_ms: 1_000,
            silent_ms: 5_000,
            expire_ms: 60_000,
            busy_percent: 50,
            busy_io_bytes: 1 << 20,
            window_ms: 10_000,
            min_ops: 8,
            late_share: 0.7,
            slow_share: 0.1,
            late_us: 20,
            slow_ratio: 2.0,
            hot_ratio: 3.0,
            hot_us: 50,
            work_ratio: 1.1,
            telemetry_may_drain: false,
        }
    }
}

/// A day: more is a slip of a digit.
const DAY_MS: u64 = 24 * 3600 * 1000;

/// Where a mistake stands.
fn at(key: &str) -> Origin {
    Origin::Policy { path: format!("c4d.{key}"), line: None }
}

fn whole(m: &mut Mistakes, key: &str, value: u64, range: RangeInclusive<u64>) {
    if !range.contains(&value) {
        let right = format!("give a whole number from {} to {}", range.start(), range.end());
        m.push(at(key), format!("{value} is not accepted"), right);
    }
}

fn number(m: &mut Mistakes, key: &str, value: f64, range: RangeInclusive<f64>) {
    // NaN is in no range.
    if !range.contains(&value) {
        let right = format!("give a number from {} to {}", range.start(), range.end());
        m.push(at(key), format!("{value} is not accepted"), right);
    }
}

impl Settings {
    /// Whether every value and every rule between them holds.
    ///
    /// # Errors
    /// Every mistake, by its key in the policy.
    pub fn check(&self) -> Result<(), Vec<Mistake>> {
        let mut mistakes = Mistakes::default();
        let m = &mut mistakes;
        // Below two digests nothing can be told from the network's own delay.
        whole(m, "floor_ms", self.floor_ms, 2_000..=DAY_MS);
        whole(m, "ceiling_ms", self.ceiling_ms, 2_000..=DAY_MS);
        number(m, "gap_factor", self.gap_factor, 1.0..=100.0);
        whole(m, "grace_ms", self.grace_ms, 2_000..=DAY_MS);
        whole(m, "warmup_ops", self.warmup_ops, 0..=1_000_000);
        whole(m, "confirm_ms", self.confirm_ms, 500..=600_000);
        whole(m, "silent_ms", self.silent_ms, 2_000..=600_000);
        whole(m, "expire_ms", self.expire_ms, 10_000..=DAY_MS);
        whole(m, "busy_percent", u64::from(self.busy_percent), 1..=100);
        whole(m, "busy_io_bytes", self.busy_io_bytes, 1..=1 << 40);
        whole(m, "window_ms", self.window_ms, 2_000..=600_000);
        whole(m, "min_ops", self.min_ops, 2..=10_000);
        // At half and below two ranks that take turns would both be named.
        number(m, "late_share", self.late_share, 0.51..=1.0);
        number(m, "slow_share", self.slow_share, 0.01..=1.0);
        whole(m, "late_us", self.late_us, 2..=10_000_000);
        number(m, "slow_ratio", self.slow_ratio, 1.1..=1000.0);
        number(m, "hot_ratio", self.hot_ratio, 1.1..=1000.0);
        whole(m, "hot_us", self.hot_us, 1..=10_000_000);
        number(m, "work_ratio", self.work_ratio, 1.0..=100.0);
        if self.ceiling_ms < self.floor_ms {
            let wrong = format!("{} is below c4d.floor_ms ({})", self.ceiling_ms, self.floor_ms);
            m.push(at("ceiling_ms"), wrong, "give at least the floor");
        }
        if self.silent_ms >= self.floor_ms {
            let wrong = format!("{} is not below c4d.floor_ms ({})", self.silent_ms, self.floor_ms);
            m.push(
                at("silent_ms"),
                wrong,
                "a node must be known to be silent before its ranks can be blamed",
            );
        }
        mistakes.into_result(())
    }
}
