//! One number that a check took from the machine: no limit, no opinion.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::check::CheckName;
use crate::facts::NodeId;
use crate::gpu_facts::Fact;

/// What kind of quantity a number is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Rate of arithmetic, TFLOP/s; of GPUs in bf16.
    Flops,
    /// The same in fp8.
    Fp8Flops,
    /// Bus bandwidth as nccl-tests defines it, GB/s (10^9 bytes).
    Busbw,
    /// Time until a TCP connection stood, ms.
    Connect,
    /// Round trip of a small message, ms; median.
    RoundTrip,
    /// Time from a launch call to the start of the work, µs; median. On the host engine a thread's wake-up.
    Launch,
    /// The same, 99th percentile.
    LaunchTail,
    /// A hash of a result that like parts have alike, as a whole number below 2^53; `detail` says which parts are alike.
    Fingerprint,
    /// Share of TCP segments sent again, 0 to 1.
    Retransmits,
    /// Share of results that were right, 0 to 1.
    Correct,
    /// Share of the peer's ports that could be reached, 0 to 1.
    Reachable,
}

impl Metric {
    /// The unit of values of this metric, as the report prints it.
    #[must_use]
    pub fn unit(self) -> &'static str {
        match self {
            Self::Flops | Self::Fp8Flops => "TFLOP/s",
            Self::Busbw => "GB/s",
            Self::Connect | Self::RoundTrip => "ms",
            Self::Launch | Self::LaunchTail => "µs",
            Self::Retransmits | Self::Correct | Self::Reachable => "ratio",
            Self::Fingerprint => "",
        }
    }

    /// Whether a larger value is a better one.
    #[must_use]
    pub fn higher_is_better(self) -> bool {
        self.is_rate() || matches!(self, Self::Correct | Self::Reachable)
    }

    /// Whether it is how much is done in a time: what like parts do alike.
    #[must_use]
    pub fn is_rate(self) -> bool {
        matches!(self, Self::Flops | Self::Fp8Flops | Self::Busbw)
    }
}

/// The part or the group of parts that a number is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Subject {
    /// A whole node.
    Node {
        /// Which.
        node: NodeId,
    },
    /// One GPU of a node.
    Gpu {
        /// The node.
        node: NodeId,
        /// Index of the GPU on that node.
        index: u32,
    },
    /// One network device of a node.
    Nic {
        /// The node.
        node: NodeId,
        /// Name of the device.
        name: String,
    },
    /// One rail of a node.
    Rail {
        /// The node.
        node: NodeId,
        /// Index of the rail.
        index: u32,
    },
    /// Two nodes that were measured together, without saying which side counts; `a < b`.
    Pair {
        /// One node.
        a: NodeId,
        /// The other node.
        b: NodeId,
    },
    /// One rail between two nodes that were measured together; `a < b`.
    PairRail {
        /// One node.
        a: NodeId,
        /// The other node.
        b: NodeId,
        /// Index of the rail.
        rail: u32,
    },
    /// The way from one node to another.
    Path {
        /// Where the traffic starts.
        from: NodeId,
        /// Where it goes.
        to: NodeId,
    },
    /// What lies between two nodes that are both fine with others; `a < b`.
    Link {
        /// One node.
        a: NodeId,
        /// The other node.
        b: NodeId,
    },
    /// What all nodes of the job share.
    Fabric,
    /// What all nodes of the job share on one rail.
    FabricRail {
        /// Index of the rail.
        rail: u32,
    },
    /// A leaf switch, by the name that Slurm's topology gives it.
    Switch {
        /// Its name.
        name: String,
    },
    /// The run of the suite itself.
    Run,
}

impl Subject {
    /// The nodes that this subject belongs to or lies between.
    #[must_use]
    pub fn nodes(&self) -> Vec<NodeId> {
        match *self {
            Self::Node { node }
            | Self::Gpu { node, .. }
            | Self::Nic { node, .. }
            | Self::Rail { node, .. } => {
                vec![node]
            }
            Self::Pair { a, b } | Self::PairRail { a, b, .. } | Self::Link { a, b } => vec![a, b],
            Self::Path { from, to } => vec![from, to],
            Self::Fabric | Self::FabricRail { .. } | Self::Switch { .. } | Self::Run => Vec::new(),
        }
    }

    /// The nodes of [`Self::nodes`], the lower one first; twice the same where there is one.
    #[must_use]
    pub fn ends(&self) -> Option<(NodeId, NodeId)> {
        match *self {
            Self::Node { node }
            | Self::Gpu { node, .. }
            | Self::Nic { node, .. }
            | Self::Rail { node, .. } => Some((node, node)),
            Self::Pair { a, b }
            | Self::PairRail { a, b, .. }
            | Self::Link { a, b }
            | Self::Path { from: a, to: b } => Some((a.min(b), a.max(b))),
            Self::Fabric | Self::FabricRail { .. } | Self::Switch { .. } | Self::Run => None,
        }
    }

    /// The rail, where the subject is a rail's.
    #[must_use]
    pub fn rail(&self) -> Option<u32> {
        match *self {
            Self::Rail { index: rail, .. } | Self::PairRail { rail, .. } | Self::FabricRail { rail } => {
                Some(rail)
            }
            _ => None,
        }
    }

    /// The kind, as the report spells it.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Node { .. } => "node",
            Self::Gpu { .. } => "gpu",
            Self::Nic { .. } => "nic",
            Self::Rail { .. } => "rail",
            Self::Pair { .. } => "pair",
            Self::PairRail { .. } => "pair_rail",
            Self::Path { .. } => "path",
            Self::Link { .. } => "link",
            Self::Fabric => "fabric",
            Self::FabricRail { .. } => "fabric_rail",
            Self::Switch { .. } => "switch",
            Self::Run => "run",
        }
    }
}

/// One measured number.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// The check that took it.
    pub check: CheckName,
    /// What kind of number it is.
    pub metric: Metric,
    /// What it is about.
    pub subject: Subject,
    /// The other nodes that took part.
    pub peers: Vec<NodeId>,
    /// The number, in [`Metric::unit`].
    pub value: f64,
    /// Size of the messages that were moved, where limits depend on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// The single readings behind `value`, at most 32.
    pub samples: Vec<f64>,
    /// What a person should know, such as the port that refused; empty if nothing.
    pub detail: String,
    /// What its subject showed of itself meanwhile.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub facts: Vec<Fact>,
    /// When it began, by the clock of the node that took it.
    pub started_at: Timestamp,
    /// When it ended.
    pub finished_at: Timestamp,
}

/// Why a node has no number to show: its own trouble, which says nothing about any hardware.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckError {
    /// What kind of trouble.
    pub kind: ErrorKind,
    /// What happened and how to mend it, one line.
    pub message: String,
}

impl fmt::Display for CheckError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Why there is no number of one part of a node. Its other parts may have theirs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartError {
    /// The part.
    pub part: Subject,
    /// What happened to it.
    pub error: CheckError,
}

/// Kinds of [`CheckError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The helper that measures could not start, died or answered nonsense.
    Worker,
    /// The check ran past its own limit.
    Timeout,
    /// A library, a setting or a resource of the node is missing.
    Environment,
    /// The driver itself says that the part is broken.
    Broken,
}
