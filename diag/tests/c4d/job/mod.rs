//! A simulated job, for tests and benches only: tensor, pipeline and data parallel ranks whose operations end when all have
//! come. Nothing in it is a measurement: it makes the shapes that the rules must tell apart, from a seed, so that the same
//! run comes out every time.
//!
//! A rank does one thing after the other: it computes, it comes to an operation, it leaves when that is over. A fault changes
//! what one rank or one connection does; everything else follows.

mod count;
mod program;
mod run;
mod told;

use serde::Deserialize;

/// How a job is cut.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// Ranks of a tensor group.
    pub tp: usize,
    /// Stages of a pipeline.
    pub pp: usize,
    /// Replicas.
    pub dp: usize,
    /// Ranks of a node.
    pub per_node: usize,
    /// Batches that go through the pipeline in a step.
    pub batches: usize,
}

impl Shape {
    pub const SMALL: Self = Self { tp: 4, pp: 4, dp: 4, per_node: 8, batches: 2 };

    pub fn ranks(&self) -> usize {
        self.tp * self.pp * self.dp
    }

    pub fn nodes(&self) -> usize {
        self.ranks().div_ceil(self.per_node)
    }

    pub fn stage(&self, rank: usize) -> usize {
        rank / self.tp % self.pp
    }
}

/// What happens to a job, from `at_ms` on.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Event {
    /// The rank's program stops; until `until_ms`, if that is given.
    HostHang { rank: usize, at_ms: u64, until_ms: Option<u64> },
    /// A kernel of the rank's own does not end.
    GpuHang { rank: usize, at_ms: u64 },
    /// The rank's process ends without a word.
    Crash { rank: usize, at_ms: u64 },
    /// The rank's process is stopped by a signal.
    Pause { rank: usize, at_ms: u64, until_ms: Option<u64> },
    /// The node is gone.
    NodeLost { node: usize, at_ms: u64 },
    /// The node's agent is gone, its ranks go on.
    AgentLost { node: usize, at_ms: u64 },
    /// The rank computes so many times longer.
    Slow { rank: usize, at_ms: u64, factor: f64 },
    /// All ranks of a node do.
    SlowNode { node: usize, at_ms: u64, factor: f64 },
    /// What the rank sends to the next one in its data parallel ring takes so many times longer.
    SlowLink { rank: usize, at_ms: u64, until_ms: Option<u64>, factor: f64 },
    /// What the rank sends to the next stage of its pipeline does.
    SlowPipe { rank: usize, at_ms: u64, factor: f64 },
    /// What it sends to the next one in its data parallel ring does not arrive.
    StuckLink { rank: usize, at_ms: u64 },
    /// All ranks stop for so long at the end of a step, and do something else: with `io` they write, with `gpu` they compute.
    AllPause { at_ms: u64, for_ms: u64, io: bool, gpu: bool },
    /// One rank does something else between two steps, and the others come to the next step.
    OneWorks { rank: usize, at_ms: u64, for_ms: u64, io: bool, gpu: bool },
    /// A rank gets so many times more data than the others from an all-to-all, and computes longer for it.
    Popular { rank: usize, at_ms: u64, factor: f64 },
    /// The records of a rank are lost from then on: what it does is not told.
    RecordsLost { rank: usize, at_ms: u64 },
    /// A rank has no telemetry at all.
    NoTelemetry { rank: usize },
    /// The job ends at the end of its step; its processes go one after the other.
    JobEnds { at_ms: u64 },
    /// Slurm ends the job in the middle of a step.
    Cancelled { at_ms: u64 },
    /// Kernels are not recorded, only calls.
    CallsOnly {},
    /// The same of one rank.
    BlindRank { rank: usize },
    /// Kernels are recorded for so long of each such time, and all the time once a rank stood still for 2 s.
    Windows { on_ms: u64, of_ms: u64 },
    /// The network's steps are never recorded.
    NoSteps {},
    /// All ranks use one GPU, which is busy as long as any of them waits in a kernel.
    OneGpu {},
}

impl Event {
    /// How many times longer the connection of a rank in its data parallel ring takes at this time, if it does.
    pub fn slows_link(&self, rank: usize, now_us: u64) -> Option<f64> {
        match *self {
            Self::SlowLink { rank: one, at_ms, until_ms, factor } if one == rank => {
                let over = until_ms.is_some_and(|until| until * 1000 <= now_us);
                (at_ms * 1000 <= now_us && !over).then_some(factor)
            }
            _ => None,
        }
    }
}

/// A job to run.
#[derive(Debug, Clone)]
pub struct Plan {
    pub shape: Shape,
    pub seed: u64,
    /// Relative spread of computing times.
    pub jitter: f64,
    /// Time of computing of one batch in one stage.
    pub compute_ms: f64,
    /// How many times longer the first step takes, at most; each rank its own.
    pub first_step: f64,
    /// How much longer each stage computes than the one before it, as a part of the first.
    pub uneven: f64,
    /// Share of digests that come late, by a second.
    pub late_digests: f64,
    pub events: Vec<Event>,
}

impl Plan {
    pub fn new(shape: Shape, seed: u64) -> Self {
        Self {
            shape,
            seed,
            jitter: 0.03,
            compute_ms: 60.0,
            first_step: 5.0,
            uneven: 0.0,
            late_digests: 0.0,
            events: Vec::new(),
        }
    }
}

pub use run::Job;

/// A number from 0 to 1 that depends on nothing but these.
pub fn chance(seed: u64, a: u64, b: u64) -> f64 {
    let mut x = seed ^ a.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ b.wrapping_mul(0xd1b5_4a32_d192_ed03);
    for _ in 0..2 {
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^= x >> 31;
    }
    (x >> 11) as f64 / (1u64 << 53) as f64
}
