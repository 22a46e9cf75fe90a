//! From what a node says of its GPUs and network devices to facts: a part that is at fault, a cause that explains a
//! slow result and blames no part, a thing that keeps checks from running, a check that does not apply.
//!
//! Nothing is measured here and nothing acted upon: a fact is a sentence with a subject, and who judges a measurement
//! decides with it.

mod compared;
mod fabric;
mod gpu;
mod gpu_reading;
pub mod ids;
mod known;
mod links;
mod load;
mod machine;
pub(crate) mod network;
mod pcie;
mod ports;
pub mod reading;
mod traffic;
mod versions;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use self::reading::{Device, GpuReading, NodeReading};
use crate::facts::NodeId;
use crate::measurement::Subject;

pub use self::compared::Compared;
pub use self::known::{Known, bounded, of_roster};
pub use self::load::under_load;
pub(crate) use self::load::{IDLE, MIN_SAMPLES, STORM_PER_S, Slowed, slowed};
pub use self::pcie::path_under_load;
pub use self::traffic::{Quiet, other_traffic};

/// NVLinks and the fabric are trained for some minutes after a start; 214 nodes were once taken for broken because
/// nobody waited (field case K01).
const BOOT_GRACE_S: u64 = 300;

/// What a fact means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FactKind {
    /// The part is at fault.
    Fault,
    /// The part can't be used by anybody here; whose fault that is, is not known. Its node sits out what needs all of its
    /// parts.
    Unusable,
    /// Checks of this subject do not apply.
    Skip,
    /// Keeps checks from doing their work until somebody mends it; nobody is drained.
    Error,
    /// Explains a slow result; no part is at fault, nobody is drained. Of a GPU it explains all that the GPU does, of a
    /// node or a network device what the node sends to others.
    Cause,
    /// Worth knowing; explains no number.
    Note,
}

/// One thing that is known of a part, with what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fact {
    /// The part.
    pub subject: Subject,
    /// What it means.
    pub kind: FactKind,
    /// One line for a person.
    pub words: String,
}

impl Fact {
    /// A fact.
    #[must_use]
    pub fn new(kind: FactKind, subject: Subject, words: String) -> Self {
        Self { subject, kind, words }
    }
}

/// What the checks need of a node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Needs {
    /// Free memory of each GPU, in bytes.
    pub gpu_free_bytes: u64,
    /// Size of `/dev/shm`, in bytes.
    pub shm_bytes: u64,
    /// Memory that may be locked where RDMA devices are used, in bytes.
    pub memlock_bytes: u64,
}

/// What a node by itself tells.
#[must_use]
pub fn of_node(node: NodeId, reading: &NodeReading, needs: &Needs) -> Vec<Fact> {
    let mut facts = machine::facts(node, reading, needs);
    for gpu in &reading.gpus {
        facts.extend(gpu::facts(node, &reading.name, gpu, needs));
    }
    facts.extend(fabric::facts(node, reading));
    facts.extend(pcie::at_rest(node, reading));
    facts
}

/// What only a look at all nodes of the job tells: versions that differ, links and ports that are down where those of
/// the others are up. `rdma`: devices that the policy names, which are in use whatever the other nodes do.
#[must_use]
pub fn among(nodes: &[Placed<'_>], rdma: &BTreeSet<String>) -> Vec<Fact> {
    let mut facts = versions::facts(nodes);
    facts.extend(links::facts(nodes));
    facts.extend(ports::facts(nodes, rdma));
    facts
}

/// A node, its name and what of it is compared.
pub type Placed<'a> = (NodeId, &'a str, &'a Compared);

/// A GPU's number on its node: that of its device file, as Slurm counts.
#[must_use]
pub fn number(device: &Device) -> u32 {
    device.minor.unwrap_or(device.index)
}

fn subject(node: NodeId, gpu: &GpuReading) -> Subject {
    Subject::Gpu { node, index: number(&gpu.device) }
}

/// `n1 GPU 3 (0000:81:00.0)`.
fn called(name: &str, gpu: &GpuReading) -> String {
    match &gpu.device.pci {
        Some(address) => format!("{name} GPU {} ({address})", number(&gpu.device)),
        None => format!("{name} GPU {}", number(&gpu.device)),
    }
}

/// Whether links and fabric may still be training.
fn just_started(reading: &NodeReading) -> bool {
    reading.machine.uptime_s.is_some_and(|uptime| uptime < BOOT_GRACE_S)
}

#[allow(clippy::cast_precision_loss, reason = "one digit behind the point is shown")]
fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}
