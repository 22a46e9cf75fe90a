//! What a node tells the others about itself in its hello, and the roster that the leader makes of it.

use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::gpu_facts::Known;
use crate::topology::Leaves;

/// What measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Engine {
    /// cuBLASLt, the driver and NCCL.
    Cuda,
    /// The processor and TCP, only where the policy says so.
    Host,
}

impl std::fmt::Display for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Cuda => "cuda",
            Self::Host => "host",
        })
    }
}

/// A node's position in the job's node list, from 0.
pub type NodeId = u32;

/// What one node is, as it says itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFacts {
    /// Version of this software (`CARGO_PKG_VERSION`).
    pub version: String,
    /// BLAKE3 of the canonical request and of the judging part of the policy, hexadecimal.
    pub request_digest: String,
    /// What it measures with.
    pub engine: Engine,
    /// The address that it believes others reach it at.
    pub address: Option<IpAddr>,
    /// TCP ports on which its ranks listen, rank i at index i.
    pub rank_ports: Vec<u16>,
    /// Its GPUs in this job, rank i at index i; none on the host engine.
    #[serde(default)]
    pub gpus: Vec<GpuName>,
    /// Version of NCCL; empty on the host engine.
    #[serde(default)]
    pub libraries: String,
    /// What it knows of its hardware before anything is measured; nothing on the host engine.
    #[serde(default)]
    pub known: Known,
    /// Why this node can't measure at all (missing library, worker did not start), if so.
    pub unable: Option<String>,
}

impl Joined {
    /// What a node said of itself, and where the leader saw it.
    #[must_use]
    pub fn new(mut facts: NodeFacts, seen_address: IpAddr) -> Self {
        let address = facts.address.take();
        Self { facts: Arc::new(facts), address, seen_address }
    }
}

impl NodeFacts {
    /// What makes this node unfit to be measured together with the leader, naming both, and how to mend it.
    #[must_use]
    pub fn unfit_for(&self, leader: &Self) -> Option<String> {
        if leader.version != self.version {
            return Some(format!(
                "it runs version {}, the leader runs {}: install the same one",
                self.version, leader.version
            ));
        }
        if leader.engine != self.engine {
            return Some(format!(
                "it measures with engine {}, the leader with {}: make `engine` in aimaster.toml equal on all nodes",
                self.engine, leader.engine
            ));
        }
        // A node that could not load its libraries says so by itself.
        let loaded = !self.libraries.is_empty() && !leader.libraries.is_empty();
        if loaded && leader.libraries != self.libraries {
            return Some(format!(
                "it has {}, the leader has {}: install the same ones",
                self.libraries, leader.libraries
            ));
        }
        (leader.request_digest != self.request_digest).then(|| {
            format!(
                "its request and policy have digest {}, the leader's {}: make the policies equal",
                self.request_digest, leader.request_digest
            )
        })
    }
}

/// A GPU as it is called.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuName {
    /// Slurm's index on its node.
    pub index: u32,
    /// Model.
    pub model: String,
}

/// One node in the roster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RosterEntry {
    /// Slurm's name of the node.
    pub name: Arc<str>,
    /// What it said, and the address at which its hello was seen; `None`: it did not join.
    pub joined: Option<Joined>,
    /// Why it is absent, or does not fit the leader and so is not measured, in words.
    pub absent_because: Option<String>,
}

/// A node that joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Joined {
    /// Its facts but for its address, which is below: thousands of nodes are alike and hold one copy.
    pub facts: Arc<NodeFacts>,
    /// The address that it believes others reach it at.
    pub address: Option<IpAddr>,
    /// The address at which the leader saw it.
    pub seen_address: IpAddr,
}

/// All nodes of the job, in the order of the job's node list; every node holds the same one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roster {
    /// Entry i is node i.
    pub nodes: Vec<RosterEntry>,
    /// Which node leads.
    pub leader: NodeId,
    /// Below which leaf switch each node is, as far as the leader knows.
    pub leaves: Leaves,
}

impl Roster {
    /// Nodes that joined, fit the others and can measure.
    pub fn able(&self) -> impl Iterator<Item = NodeId> + '_ {
        (0..).zip(&self.nodes).filter_map(|(id, entry)| {
            let can = entry.joined.as_ref().is_some_and(|joined| joined.facts.unable.is_none());
            (can && entry.absent_because.is_none()).then_some(id)
        })
    }

    /// Name of a node; a dash for an id that is not in the roster.
    #[must_use]
    pub fn name(&self, node: NodeId) -> &str {
        self.nodes.get(node as usize).map_or("-", |entry| &*entry.name)
    }
}
