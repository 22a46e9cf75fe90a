//! What the rules say: a finding names what is at fault, shows why, says how sure it is, and is withdrawn when things move
//! again.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::c4d::digest::Func;
use crate::facts::NodeId;
use crate::measurement::Subject;

/// Most ranks that a finding lists; how many there are is said beside.
pub const MAX_NAMED: usize = 32;

/// Kinds of findings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// Ranks do not come to an operation in which others wait for them.
    NonCommunicationHang,
    /// All ranks have come, and the operation does not end: the transport.
    CommunicationHang,
    /// One or few ranks come late to every operation.
    Straggler,
    /// Operations take long although all ranks have come: the transport.
    CommunicationSlow,
    /// A process that others wait for is stopped by a signal or a debugger: no fault.
    Paused,
    /// Ranks wait for each other in different operations: the order in the program differs between ranks.
    Deadlock,
    /// Something hangs, and those that may be the cause tell nothing.
    Undecided,
}

impl Class {
    /// Its spelling, the same in the report, the events and serde.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::NonCommunicationHang => "non_communication_hang",
            Self::CommunicationHang => "communication_hang",
            Self::Straggler => "straggler",
            Self::CommunicationSlow => "communication_slow",
            Self::Paused => "paused",
            Self::Deadlock => "deadlock",
            Self::Undecided => "undecided",
        }
    }

    /// Whether nothing moves at all.
    #[must_use]
    pub fn is_hang(self) -> bool {
        !matches!(self, Self::Straggler | Self::CommunicationSlow)
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// A rank that a finding names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Who {
    /// Its node.
    pub node: NodeId,
    /// Its process.
    pub pid: u32,
    /// Its GPU, by Slurm's index.
    pub gpu: Option<u32>,
    /// Its rank in the job, where that is known.
    pub task: Option<u32>,
    /// Its rank in the finding's communicator; `None`: it is not in it.
    pub rank: Option<u32>,
}

/// The operation that shows it best.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// The communicator.
    pub comm: u64,
    /// Its name, if it has one.
    pub name: String,
    /// Its ranks.
    pub nranks: u32,
    /// What it does; `None`: sends and receives.
    pub func: Option<Func>,
    /// Its sequence number, from 0; of slowness none.
    pub seq: Option<u64>,
}

/// Whether a finding holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It was seen in two windows.
    Confirmed,
    /// It holds no more.
    Withdrawn {
        /// Why, in words.
        because: String,
    },
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// What kind.
    pub class: Class,
    /// What is at fault.
    pub subject: Subject,
    /// The ranks that are at fault or may be, at most [`MAX_NAMED`], in the order of nodes and processes.
    pub suspects: Vec<Who>,
    /// How many there are.
    pub suspects_total: usize,
    /// The operation.
    pub operation: Option<Operation>,
    /// How many ranks wait for them.
    pub waiting: usize,
    /// Ranks that were compared, and all that the communicator has: the rest tells nothing.
    pub compared: (usize, usize),
    /// What is at fault and what shows it, one line for a person.
    pub message: String,
    /// What else is known, one line each.
    pub evidence: Vec<String>,
    /// How sure it is, 0 to 1.
    pub confidence: f64,
    /// When the fault began, as near as that is known, on the clock of the judging node.
    pub since_ms: u64,
    /// When it was confirmed.
    pub found_ms: u64,
    /// Whether it holds.
    pub state: State,
}

impl Finding {
    /// Whether it names the same ranks.
    #[must_use]
    pub fn same_ranks(&self, other: &Self) -> bool {
        let ranks =
            |finding: &Self| finding.suspects.iter().map(|who| (who.node, who.pid)).collect::<Vec<_>>();
        self.suspects_total == other.suspects_total && ranks(self) == ranks(other)
    }
}
