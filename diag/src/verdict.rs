//! What was found: one finding a subject and check, and the outcome of the whole suite.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::check::{CheckName, Phase};
use crate::facts::NodeId;
use crate::measurement::{Metric, Subject};

/// Outcome of one subject in one check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Status {
    /// Measured and fine.
    Pass,
    /// Does not apply; never a pass.
    Skip,
    /// The check could not do its work; blames nobody.
    Error,
    /// A fault that can't be pinned on one side; never drained.
    Suspect,
    /// A fault with evidence.
    Fail,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pass => "PASS",
            Self::Skip => "SKIP",
            Self::Error => "ERROR",
            Self::Suspect => "SUSPECT",
            Self::Fail => "FAIL",
        })
    }
}

/// What a FAIL means for the nodes it names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultClass {
    /// The part itself, and so its node, is at fault: the only class that drains.
    Part,
    /// Two nodes are fine by themselves, what lies between them is not: drains nobody.
    Link,
    /// A setting is wrong (port, address, interface): drains nobody.
    Config,
    /// What all nodes share: drains nobody.
    Fabric,
    /// The request's deadline or a check's own limit ran out: drains nobody.
    Timeout,
    /// The running program's own telemetry points there, and nobody measured the part: drains nobody.
    Telemetry,
}

/// A limit and where it comes from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Limit {
    /// The number, in the metric's unit; a lower bound where higher is better, else an upper bound.
    pub value: f64,
    /// Where it comes from: the baseline's file and its stated source, or the peers' median.
    pub source: String,
}

/// One subject in one check.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// The check; `None`: the meeting of the nodes, before any check.
    pub check: Option<CheckName>,
    /// Its phase.
    pub phase: Phase,
    /// The outcome.
    pub status: Status,
    /// Set with FAIL only.
    pub class: Option<FaultClass>,
    /// What it is about.
    pub subject: Subject,
    /// The other nodes that took part.
    pub peers: Vec<NodeId>,
    /// The number that decided, if there is one.
    pub metric: Option<Metric>,
    /// Its value, in the metric's unit.
    pub value: Option<f64>,
    /// Size of its messages, where several are told apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// The limit that decided.
    pub limit: Option<Limit>,
    /// Median of like subjects.
    pub median: Option<f64>,
    /// The readings, all rounds together, in the order in which they were taken.
    pub samples: Vec<f64>,
    /// The rates that were measured beside each other: of several sizes of messages, in several precisions. Empty where
    /// there is one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rates: Vec<Rate>,
    /// What happened, what confirmed it, what to do: one line for a person.
    pub message: String,
    /// When the first measurement began.
    pub started_at: Option<Timestamp>,
    /// When the last one ended.
    pub finished_at: Option<Timestamp>,
}

/// One of several rates of a subject.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// The quantity.
    pub metric: Metric,
    /// Size of the messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Its value, in the metric's unit.
    pub value: f64,
    /// The limit that it was held against.
    pub limit: Option<Limit>,
    /// Median of like subjects at the same size.
    pub median: Option<f64>,
    /// Whether it misses the limit.
    pub miss: bool,
}

/// Outcome of the suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Outcome {
    /// Everything that applied was measured and is fine.
    Pass,
    /// Nothing applied.
    Skip,
    /// A check could not do its work.
    Error,
    /// A fault that can't be pinned on one side.
    Suspect,
    /// Too much fails in the same way: the fabric, the site or this software is at fault.
    Environment,
    /// A fault with evidence, or the request's time ran out.
    Fail,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pass => "PASS",
            Self::Skip => "SKIP",
            Self::Error => "ERROR",
            Self::Suspect => "SUSPECT",
            Self::Environment => "ENVIRONMENT",
            Self::Fail => "FAIL",
        })
    }
}

impl Finding {
    /// Whether this is a fault of a node's own part: the only kind that drains.
    #[must_use]
    pub fn is_part_fault(&self) -> bool {
        self.status == Status::Fail && self.class == Some(FaultClass::Part)
    }
}

/// All findings and what they amount to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The outcome of the suite.
    pub outcome: Outcome,
    /// The outcome in a sentence.
    pub summary: String,
    /// Whether the request's deadline ended the suite.
    pub timed_out: bool,
    /// In the order of checks, then subjects.
    pub findings: Vec<Finding>,
    /// What is worth knowing of the hardware and explained nothing.
    pub notes: Vec<String>,
}
