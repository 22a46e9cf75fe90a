//! The health of GPUs and network devices while a job runs: from what driver, kernel log and sysfs say to conditions
//! of a part, and from conditions to events that are told once, confirmed first, and taken back when they are over.
//!
//! Pure: readings and times are arguments. What reads them is in `epilog::health`; which Xid means what is in
//! [`crate::xid`].

pub mod board;
pub mod gpu;
pub mod kernel_log;
pub mod nic;
pub mod reading;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::facts::NodeId;
use crate::measurement::Subject;

pub use board::{Board, HealthEvent, Turn};

/// Longest line of words that travels, in bytes: a digest of a node carries a few of them.
pub const MOST_WORDS_BYTES: usize = 400;

/// What kind of fault it is. It says whose matter it is, not what is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// The user's program, or the libraries that it uses.
    Application,
    /// The chip.
    Gpu,
    /// The GPU's memory, on the board or inside the chip.
    Memory,
    /// NVLink and NVSwitch.
    Nvlink,
    /// The PCIe link.
    Pcie,
    /// Driver or firmware.
    Driver,
    /// Power supply.
    Power,
    /// Cooling.
    Heat,
    /// A network device, its cable or what is behind it.
    Network,
    /// Nobody has said.
    Unknown,
}

/// What follows from a condition. The order is that of weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Nothing is said of it.
    Ignore,
    /// It is told.
    Report,
    /// It is told, and the node leaves service where the policy's caps allow it.
    Drain,
}

/// What is at fault.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// A GPU.
    Gpu {
        /// Its number on the node, as Slurm counts.
        index: u32,
        /// Its PCI address, where it says one.
        pci: Option<String>,
    },
    /// An NVSwitch of the node.
    Switch {
        /// Its PCI address.
        pci: String,
    },
    /// A port of a network device.
    Nic {
        /// Its name on this node.
        device: String,
        /// Its number, from 1.
        port: u32,
    },
    /// The node as a whole.
    Node,
}

impl Part {
    /// The part as verdicts and actions name it; an NVSwitch is the node's.
    #[must_use]
    pub fn subject(&self, node: NodeId) -> Subject {
        match self {
            Self::Gpu { index, .. } => Subject::Gpu { node, index: *index },
            Self::Nic { device, .. } => Subject::Nic { node, name: device.clone() },
            Self::Switch { .. } | Self::Node => Subject::Node { node },
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gpu { index, pci: Some(pci) } => write!(f, "GPU {index} ({pci})"),
            Self::Gpu { index, pci: None } => write!(f, "GPU {index}"),
            Self::Switch { pci } => write!(f, "NVSwitch {pci}"),
            Self::Nic { device, port } => write!(f, "{device} port {port}"),
            Self::Node => f.write_str("the node"),
        }
    }
}

/// Something that holds of a part right now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// The part.
    pub part: Part,
    /// Which fault of it: the same fault has the same name at every look.
    pub what: String,
    /// Whose matter it is.
    pub class: Class,
    /// What follows.
    pub action: Action,
    /// One line for a person, with the numbers.
    pub words: String,
    /// How long it must hold before it is told.
    pub confirm_ms: u64,
    /// How long it must be gone before it is taken back; `None`: it stays for the job.
    pub recovery_ms: Option<u64>,
    /// Since when it holds, where that is known better than by looking.
    pub since_ms: Option<u64>,
}

/// How much a counter grew; one that went back was set to zero (F14), and what it has now came after that.
fn grown(before: Option<u64>, after: Option<u64>) -> Option<u64> {
    let (before, after) = (before?, after?);
    Some(after.checked_sub(before).unwrap_or(after))
}

/// The beginning of a text, at most so many bytes, without control characters: words of a driver may hold a user's.
#[must_use]
pub fn short(text: &str, most_bytes: usize) -> String {
    let end = text.floor_char_boundary(most_bytes);
    crate::plain::printable(&text[..end])
}
