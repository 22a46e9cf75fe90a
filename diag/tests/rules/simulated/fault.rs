//! What can be broken, and how much of the usual speed is left of what then.

use diag::facts::NodeId;

use super::machine::Machine;
use super::noise::{Noise, key};

/// A broken part. `left`: the share of the usual speed that is left.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fault {
    /// A GPU is slow; on the host engine the processor is, for `gpu` 0.
    Gpu { node: NodeId, gpu: u32, left: f64 },
    /// A GPU computes wrongly.
    Wrong { node: NodeId, gpu: u32 },
    /// An NVLink, or whatever joins the GPUs inside a node, is slow.
    Inside { node: NodeId, left: f64 },
    /// The host is slow: it launches late.
    Host { node: NodeId, left: f64 },
    /// A port, its cable, or the port of the leaf that it leads to: nothing that is measured tells the three apart.
    Rail { node: NodeId, rail: u32, left: f64 },
    /// All ports of a node.
    Network { node: NodeId, left: f64 },
    /// A leaf switch: all ports of all nodes below it.
    Leaf { leaf: u32, left: f64 },
    /// What joins a leaf switch to the others: the ways that leave it.
    Uplinks { leaf: u32, left: f64 },
    /// A spine switch: the ways that lead over it.
    Spine { spine: u32, left: f64 },
    /// What lies between two nodes only.
    Link { a: NodeId, b: NodeId, left: f64 },
    /// What all nodes together meet only.
    Fabric { left: f64 },
}

/// When a fault shows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum When {
    Always,
    /// In the first round of each check only.
    First,
    /// In this share of the rounds.
    Share(f64),
    /// From this round of the suite on.
    From(u32),
    /// In this round of the suite only.
    Only(u32),
}

impl When {
    pub fn now(self, noise: &Noise, (round, first): (u32, bool), place: usize) -> bool {
        match self {
            Self::Always => true,
            Self::First => first,
            Self::Share(share) => noise.happens(share, key(&[place as u64, u64::from(round)])),
            Self::From(from) => round >= from,
            Self::Only(only) => round == only,
        }
    }
}

/// The faults that show in one round.
#[derive(Debug, Default)]
pub struct Now(pub Vec<Fault>);

fn least(lefts: impl Iterator<Item = f64>) -> f64 {
    lefts.fold(1.0, f64::min)
}

impl Now {
    fn of(&self, left: impl Fn(&Fault) -> Option<f64>) -> f64 {
        least(self.0.iter().filter_map(left))
    }

    pub fn compute(&self, at: NodeId, index: u32) -> f64 {
        self.of(|fault| match *fault {
            Fault::Gpu { node, gpu, left } if (node, gpu) == (at, index) => Some(left),
            _ => None,
        })
    }

    pub fn wrong(&self, at: NodeId, index: u32) -> bool {
        self.0.contains(&Fault::Wrong { node: at, gpu: index })
    }

    pub fn host(&self, at: NodeId) -> f64 {
        self.of(|fault| match *fault {
            Fault::Host { node, left } if node == at => Some(left),
            _ => None,
        })
    }

    pub fn inside(&self, at: NodeId) -> f64 {
        self.of(|fault| match *fault {
            Fault::Inside { node, left } if node == at => Some(left),
            _ => None,
        })
    }

    /// The way between two nodes on a rail; without one, on those ports and ways that all rails share.
    pub fn way(&self, machine: &Machine, (a, b): (NodeId, NodeId), on: Option<u32>) -> f64 {
        let here = |node: NodeId| node == a || node == b;
        self.of(|fault| match *fault {
            Fault::Rail { node, rail, left } if here(node) && on == Some(rail) => Some(left),
            Fault::Network { node, left } if here(node) => Some(left),
            Fault::Leaf { leaf, left } if machine.leaf(a) == leaf || machine.leaf(b) == leaf => Some(left),
            Fault::Uplinks { leaf, left } if (machine.leaf(a) == leaf) != (machine.leaf(b) == leaf) => {
                Some(left)
            }
            Fault::Spine { spine, left } if machine.spine(a, b, on.unwrap_or(0)) == Some(spine) => Some(left),
            Fault::Link { a: one, b: other, left } if here(one) && here(other) => Some(left),
            _ => None,
        })
    }

    /// The ring of all nodes on a rail: as slow as its slowest edge.
    pub fn ring(&self, machine: &Machine, group: &[NodeId], on: Option<u32>) -> f64 {
        let fabric = self.of(|fault| match *fault {
            Fault::Fabric { left } => Some(left),
            _ => None,
        });
        if self.0.is_empty() {
            return 1.0;
        }
        let closing = group.last().zip(group.first()).map(|(last, first)| (*last, *first));
        let edges = group.windows(2).map(|pair| (pair[0], pair[1])).chain(closing);
        edges.map(|edge| self.way(machine, edge, on)).fold(fabric, f64::min)
    }
}
