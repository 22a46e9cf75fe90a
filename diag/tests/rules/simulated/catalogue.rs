//! Classes of faults, where each can be in a job, and what a right verdict on it is.

use std::collections::BTreeSet;

use diag::check::CheckName::{
    self, AllReduce, AllReduce1, AllReduce2, GemmFlops, KernelLaunch, MultiAllReduce2,
};
use diag::conclude::Caps;
use diag::facts::NodeId;
use diag::verdict::{Outcome, Status};

use super::fault::{Fault, When};
use super::machine::Machine;
use super::noise::{Noise, key};
use super::{Job, Run};

/// What is measured.
pub const CHECKS: &[CheckName] =
    &[GemmFlops, KernelLaunch, AllReduce1, AllReduce2, MultiAllReduce2, AllReduce];

/// The built-in caps.
pub const CAPS: Caps = Caps { max_drain_nodes: 4, max_drain_fraction: 0.34 };

/// A class of faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    SlowGpu,
    WrongGpu,
    NvLink,
    SlowHost,
    Port,
    Network,
    Link,
    Leaf,
    /// Told from other faults only where the leaves are known: not among [`ALL`].
    Uplinks,
    Spine,
    Intermittent,
    Begins,
    Absent,
    Lost,
}

pub const ALL: [Class; 13] = [
    Class::SlowGpu,
    Class::WrongGpu,
    Class::NvLink,
    Class::SlowHost,
    Class::Port,
    Class::Network,
    Class::Link,
    Class::Leaf,
    Class::Spine,
    Class::Intermittent,
    Class::Begins,
    Class::Absent,
    Class::Lost,
];

/// How a verdict on a fault that is known came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Judged {
    /// Exactly the nodes at fault are drained; nobody where no node is, or where two candidates are alike.
    Right,
    /// Nobody is drained who is fine, and the fault is not named, or not all of it.
    Undecided,
    /// A node is drained that is fine.
    Wrong,
}

impl Class {
    pub fn text(self) -> &'static str {
        match self {
            Self::SlowGpu => "GPU half as fast",
            Self::WrongGpu => "GPU computes wrongly",
            Self::NvLink => "NVLink half as fast",
            Self::SlowHost => "host launches ten times as late",
            Self::Port => "one port, cable or leaf port half as fast",
            Self::Network => "all ports of a node half as fast",
            Self::Link => "what lies between two neighbours half as fast",
            Self::Leaf => "a whole leaf switch half as fast",
            Self::Uplinks => "all uplinks of a leaf switch a fifth as fast",
            Self::Spine => "a spine switch half as fast",
            Self::Intermittent => "GPU half as fast in half of the rounds",
            Self::Begins => "all ports of a node half as fast from the fifth round on",
            Self::Absent => "a node does not join",
            Self::Lost => "a node is lost from the fourth round on",
        }
    }

    /// Whether a fault of one node, which can be at any other node as well.
    pub fn is_of_a_node(self) -> bool {
        !matches!(self, Self::Link | Self::Leaf | Self::Uplinks | Self::Spine)
    }

    /// The job with the fault at this place.
    pub fn at(self, mut job: Job, node: NodeId, left: f64) -> Job {
        let machine = job.machine;
        let pick = |of: u32| u32::try_from(key(&[u64::from(node), job.noise.seed]) % u64::from(of)).unwrap();
        let (gpu, rail) = (pick(machine.gpus), pick(machine.rails));
        let always = |fault| Some((fault, When::Always));
        let fault = match self {
            Self::SlowGpu => always(Fault::Gpu { node, gpu, left }),
            Self::WrongGpu => always(Fault::Wrong { node, gpu }),
            Self::NvLink => always(Fault::Inside { node, left }),
            Self::SlowHost => always(Fault::Host { node, left: left / 5.0 }),
            Self::Port => always(Fault::Rail { node, rail, left }),
            Self::Network => always(Fault::Network { node, left }),
            Self::Link => always(Fault::Link { a: node, b: (node + 1) % job.size, left }),
            Self::Leaf => always(Fault::Leaf { leaf: machine.leaf(node), left }),
            Self::Uplinks => always(Fault::Uplinks { leaf: machine.leaf(node), left }),
            Self::Spine => always(Fault::Spine { spine: node % machine.spines, left }),
            Self::Intermittent => Some((Fault::Gpu { node, gpu, left }, When::Share(0.5))),
            Self::Begins => Some((Fault::Network { node, left }, When::From(4))),
            Self::Absent => {
                job.absent.insert(node);
                None
            }
            Self::Lost => {
                job.lost_from.insert(node, 3);
                None
            }
        };
        job.faults.extend(fault);
        job
    }

    /// The nodes that a right verdict drains.
    pub fn culprits(self, job: &Job, node: NodeId) -> BTreeSet<NodeId> {
        let (machine, size) = (job.machine, job.size);
        let below = (0..size).filter(|one| machine.leaf(*one) == machine.leaf(node));
        let alone = below.count() == 1 && size > 1;
        match self {
            // The job's only node below it: leaf switch and port of the leaf are one to it, and where the leaf is known of
            // that is said.
            Self::Leaf if alone && !job.topology => [node].into(),
            Self::Port | Self::Network | Self::Begins if alone && job.topology => BTreeSet::new(),
            Self::SlowGpu | Self::WrongGpu | Self::NvLink | Self::SlowHost | Self::Intermittent => {
                [node].into()
            }
            // Two nodes alone: each may be the slow one.
            Self::Port | Self::Network | Self::Begins if size > 2 => [node].into(),
            _ => BTreeSet::new(),
        }
    }
}

/// A healthy job of H200 with the noise of docs/trust.md.
pub fn job(size: u32, seed: u64) -> Job {
    Job::on(Machine::H200, size, Noise::acceptance(seed))
}

/// The nodes that the built-in policy drains.
pub fn drained(job: &Job, run: &Run) -> BTreeSet<NodeId> {
    let drains = job.decision(run).drains;
    drains.iter().map(|drain| drain.node.trim_start_matches('n').parse::<u32>().unwrap() - 1).collect()
}

/// How naming these came out where those are at fault.
pub fn judged(named: &BTreeSet<NodeId>, culprits: &BTreeSet<NodeId>) -> Judged {
    if named == culprits {
        Judged::Right
    } else if named.is_subset(culprits) {
        Judged::Undecided
    } else {
        Judged::Wrong
    }
}

/// Whether anything at all was said of what is wrong.
pub fn is_told(run: &Run) -> bool {
    let again = "missed once, fine when measured again";
    run.verdict.outcome != Outcome::Pass
        || run.verdict.findings.iter().any(|one| one.status == Status::Pass && one.message.contains(again))
}
