//! What a node tells of its ranks once a second: the types, their bounds, and the check of hostile input. A digest comes
//! over authenticated frames, but what is in it stems from the processes of users. What it means is in the rules beside.
//!
//! Size as JSON: about 180 bytes a rank, and for each of its communicators 130, 40 a function that was used, 20 a sample,
//! 45 a peer of sends and receives. A rank in six communicators costs about 2 KiB a second; [`MAX_DIGEST_BYTES`] bounds a
//! node. Times are ages by the clock of the node that took the digest: no two clocks are ever compared.

use serde::{Deserialize, Serialize};

use crate::c4d::digest_wire::{ProgressWire, StepWire};
use crate::facts::NodeId;
use crate::request::mistake::shown;

/// Largest digest as JSON: 16 ranks in 32 communicators each need a tenth of it.
pub const MAX_DIGEST_BYTES: usize = 1 << 20;

/// Most ranks of one node in one job: four a GPU on the largest nodes (16 GPUs).
pub const MAX_RANKS: usize = 64;

/// Most communicators of a rank. Frameworks make one for each way of splitting the model, ten or less, some twice; of more
/// the agent tells those that moved last.
pub const MAX_COMMS: usize = 32;

/// Most functions that one communicator tells of: all that NCCL has.
pub const MAX_FUNCS: usize = Func::ALL.len();

/// Most samples of a communicator in a window: enough for a median within seconds, few enough to send.
pub const MAX_SAMPLES: usize = 8;

/// Most peers with sends or receives that a communicator tells of, each direction by itself. A pipeline has four; of an
/// all-to-all those that are open longest come first.
pub const MAX_P2P: usize = 16;

/// Most peers and channels with waits of the network's steps; the longest first.
pub const MAX_STEPS: usize = 32;

/// Most ranks of one communicator.
pub const MAX_COMM_RANKS: u32 = 65_536;

/// Longest age that is told apart: a week. The agent writes more as this.
pub const MAX_AGE_MS: u64 = 7 * 24 * 3600 * 1000;

/// What one node tells of one second.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Digest {
    /// The node. The receiver holds it against the session that the digest came in.
    pub node: NodeId,
    /// Counts a node's digests from 0, so that a lost or repeated one shows.
    pub number: u64,
    /// Whether the node saw that the job is being ended: from then on nothing that stops is a fault.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ending: bool,
    /// The job's ranks on this node, at most [`MAX_RANKS`].
    pub ranks: Vec<Rank>,
}

/// One rank: a process that uses NCCL. A process that is gone stays in the digest, as [`ProcessState::Gone`], until its
/// job ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rank {
    /// Its process, as the node's first PID namespace numbers it. With the node it names the rank.
    pub pid: u32,
    /// Its rank in the whole job (`SLURM_PROCID`), if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<u32>,
    /// Its GPU; `None`: it uses several, or that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<Gpu>,
    /// What its process does.
    pub process: Process,
    /// Whether what is told of its communicators is whole.
    pub telemetry: Telemetry,
    /// Whether begin and end of kernels are recorded, and whatever was called before they were is passed. Without that `started` and
    /// `finished` stand still, and how far the rank is shows only in what it called.
    pub kernels: bool,
    /// Its communicators, at most [`MAX_COMMS`]. One that was finalised or aborted is told once more, as ended.
    pub comms: Vec<Comm>,
}

/// A GPU of the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// Slurm's index on its node.
    pub index: u32,
    /// Its UUID; empty: not known.
    #[serde(default)]
    pub uuid: String,
    /// Share of the window in which it ran any kernel, in percent; `None`: not known, or others use it too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy_percent: Option<u8>,
}

/// A process as the kernel shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    /// Its state.
    pub state: ProcessState,
    /// The function of the kernel that it waits in, when it is stuck; else empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub wchan: String,
    /// Bytes that it read and wrote by system calls in this window (`rchar` and `wchar`); `None`: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io_bytes: Option<u64>,
}

/// State of a process, as `/proc/<pid>/stat` spells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ProcessState {
    /// Runs, or could.
    #[serde(rename = "R")]
    Running,
    /// Sleeps.
    #[serde(rename = "S")]
    Sleeping,
    /// Sleeps and can't be woken: a disk, a network file system, a driver.
    #[serde(rename = "D")]
    Blocked,
    /// Stopped: SIGSTOP, or a debugger (`t`).
    #[serde(rename = "T", alias = "t")]
    Stopped,
    /// Has ended and was not yet collected.
    #[serde(rename = "Z")]
    Zombie,
    /// Is no longer there.
    #[serde(rename = "-")]
    Gone,
}

impl ProcessState {
    /// The state of that letter; those that are not told apart count as sleeping.
    #[must_use]
    pub fn of_letter(letter: char) -> Self {
        match letter {
            'R' => Self::Running,
            'D' => Self::Blocked,
            'T' | 't' => Self::Stopped,
            'Z' => Self::Zombie,
            'X' | 'x' => Self::Gone,
            _ => Self::Sleeping,
        }
    }

    /// Whether the process has ended.
    #[must_use]
    pub fn ended(self) -> bool {
        matches!(self, Self::Zombie | Self::Gone)
    }
}

/// Whether what is told of a rank's communicators is whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Telemetry {
    /// Every record was read.
    Ok,
    /// There is none; the rank's state is not known.
    Unavailable {
        /// Why, in words, such as that the user has a profiler of his own.
        why: String,
    },
    /// Records were lost in this window: what did not happen by the digest may have happened.
    Lost {
        /// How many.
        records: u64,
    },
}

/// One communicator as one of its ranks sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Comm {
    /// Its id (NCCL's hash), the same on all its ranks.
    pub id: u64,
    /// Name that the user's program gave it; mostly empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// This rank's number in it.
    pub rank: u32,
    /// How many ranks it has.
    pub nranks: u32,
    /// How many nodes.
    pub nnodes: u32,
    /// How long ago it was made.
    pub age_ms: u64,
    /// Whether it was finalised or aborted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ended: bool,
    /// How far its collectives are, one entry a function that was used.
    pub collectives: Vec<Collective>,
    /// How far its sends and receives are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub p2p: Vec<P2p>,
    /// Collectives of this window that finished, of those that [`sampled`] picks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub samples: Vec<Sample>,
    /// Waits of the network's steps in this window; only while a slow or stuck transport is looked into.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<StepWait>,
}

/// What a collective does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
#[repr(u8)]
#[allow(missing_docs, reason = "NCCL's own names")]
pub enum Func {
    AllReduce = 0,
    AllGather = 1,
    ReduceScatter = 2,
    Broadcast = 3,
    Reduce = 4,
    AllToAll = 5,
    Gather = 6,
    Scatter = 7,
    /// One that this build does not know.
    Other = 8,
}

/// How far a rank is with one function of a communicator. The three numbers count operations from the communicator's
/// start: the sequence number of the last one, and one; 0: none yet. Never more finished than started than enqueued. An
/// operation whose end was lost counts as finished: it hangs only where it is known to be inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(Func, ProgressWire)", into = "(Func, ProgressWire)")]
pub struct Collective {
    /// The function.
    pub func: Func,
    /// How far.
    pub progress: Progress,
}

/// How far a rank is with one kind of operation, and how long ago each number changed by the clock of the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Operations that the host has given to NCCL.
    pub enqueued: u64,
    /// Operations that have begun on the GPU.
    pub started: u64,
    /// Operations whose last kernel has ended.
    pub finished: u64,
    /// How long ago `enqueued` changed; since the communicator was made where it never did.
    pub enqueued_age_ms: u64,
    /// How long ago `started` changed.
    pub started_age_ms: u64,
    /// How long ago `finished` changed.
    pub finished_age_ms: u64,
    /// Bytes of the last collective; of sends and receives the bytes of this window together.
    pub bytes: u64,
}

impl Progress {
    /// Whether the GPU is inside an operation.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.started > self.finished
    }

    /// How long ago any of the numbers changed.
    #[must_use]
    pub fn age_ms(&self) -> u64 {
        self.enqueued_age_ms.min(self.started_age_ms).min(self.finished_age_ms)
    }
}

/// Sends to, or receives from, one peer. They have no sequence number in NCCL, so the agent counts them: the third send to
/// a peer meets its third receive from here. Once records were lost ([`Telemetry::Lost`], in whatever window) the counts of
/// the two ends are not held against each other any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u32, bool, u32, ProgressWire)", into = "(u32, bool, u32, ProgressWire)")]
pub struct P2p {
    /// The peer's number in the communicator.
    pub peer: u32,
    /// Sends; else receives.
    pub send: bool,
    /// How long those that ended in this window were on the GPU, together.
    pub kernel_us: u32,
    /// How far.
    pub progress: Progress,
}

/// One collective that finished, as one rank saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(Func, u64, u64, u32)", into = "(Func, u64, u64, u32)")]
pub struct Sample {
    /// The function.
    pub func: Func,
    /// Its sequence number, from 0.
    pub seq: u64,
    /// Bytes.
    pub bytes: u64,
    /// From the start of the first kernel to the end of the last, by the GPU's clock.
    pub kernel_us: u32,
}

/// Waits of the network's steps with one peer over one channel: sums over the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "StepWire", into = "StepWire")]
pub struct StepWait {
    /// The peer's number in the communicator.
    pub peer: u32,
    /// The channel.
    pub channel: u8,
    /// Steps that send; else steps that receive.
    pub send: bool,
    /// How many steps ended.
    pub steps: u32,
    /// Sending: until the GPU had the data (SendGPUWait). Receiving: until it had taken it (RecvGPUWait, flush).
    pub gpu_us: u64,
    /// Sending: until the receiver gave room (SendPeerWait). Receiving: always 0.
    pub credit_us: u64,
    /// Sending: from the hand-over to the network until it was away (SendWait). Receiving: until it came (RecvWait).
    pub wire_us: u64,
    /// What the oldest step that has not ended waits for, if there is one.
    pub open: Option<StepState>,
}

/// What a step of the network waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepState {
    /// The GPU.
    Gpu,
    /// Room at the receiver.
    Credit,
    /// Sending: the network.
    Wire,
    /// Receiving: data.
    Data,
}

/// The step between two sampled operations where about `ops` are made in a window: a power of two, so that of two ranks
/// that count differently one samples a part of what the other does.
#[must_use]
pub fn stride(ops: u64) -> u64 {
    let most = MAX_SAMPLES as u64;
    ops.div_ceil(most).max(1).next_power_of_two()
}

/// Whether the operation of this number is sampled.
#[must_use]
pub fn sampled(seq: u64, stride: u64) -> bool {
    seq.is_multiple_of(stride.max(1))
}

/// A text of a user's process as a digest may hold it: one line, nothing that misleads, shortened.
#[must_use]
pub fn clean(text: &str) -> String {
    shown(text)
}

/// Why a digest was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DigestError {
    /// More than [`MAX_DIGEST_BYTES`].
    #[error("a digest of {0} bytes is longer than {MAX_DIGEST_BYTES}")]
    TooLong(usize),
    /// Not the JSON of a digest.
    #[error("no digest: {0}")]
    Unreadable(String),
}

impl Digest {
    /// Reads a digest. [`Digest::check`] comes after it; the rules call that themselves.
    ///
    /// # Errors
    /// If it is too long, or not a digest.
    pub fn parse(bytes: &[u8]) -> Result<Self, DigestError> {
        if bytes.len() > MAX_DIGEST_BYTES {
            return Err(DigestError::TooLong(bytes.len()));
        }
        serde_json::from_slice(bytes).map_err(|error| DigestError::Unreadable(clean(&error.to_string())))
    }
}
