//! A round: one check measured once by groups of nodes at the same time, and what came back. Rounds are
//! what the plan hands out and what the judge reads.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::check::CheckName;
use crate::facts::NodeId;
use crate::measurement::{CheckError, Measurement, PartError};

/// Why a round is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// The first look.
    First,
    /// The same again, because somebody missed.
    Confirm,
    /// Suspects meet nodes that passed.
    Localise,
}

/// How a pair of nodes is measured in `network_connectivity`; other checks know one way only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// The check's main measurement.
    Full,
    /// Only connect and round trip: many groups may share a node.
    Reach,
}

/// One round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Round {
    /// Position in the suite, from 0; the same on every node.
    pub index: u32,
    /// What is measured.
    pub check: CheckName,
    /// Why.
    pub purpose: Purpose,
    /// How.
    pub mode: Mode,
    /// Who is measured together: one node, two nodes (lower first), or all. In [`Mode::Full`] no node is in
    /// two groups.
    pub groups: Vec<Vec<NodeId>>,
}

impl Round {
    /// The groups that `node` is in.
    pub fn groups_of(&self, node: NodeId) -> impl Iterator<Item = &[NodeId]> {
        self.groups.iter().map(Vec::as_slice).filter(move |group| group.contains(&node))
    }

    /// Every node that takes part, once each, in order.
    #[must_use]
    pub fn participants(&self) -> Vec<NodeId> {
        let mut nodes: Vec<NodeId> = self.groups.iter().flatten().copied().collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }
}

/// What one node brought back from a round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeOutcome {
    /// Its numbers.
    Measured(Vec<Measurement>),
    /// Numbers of some of its parts, and why the others have none.
    Partly {
        /// The numbers.
        numbers: Vec<Measurement>,
        /// The others, at least one.
        parts: Vec<PartError>,
    },
    /// It could not do its work.
    Error(CheckError),
    /// It was lost to the session before it answered.
    Lost {
        /// How the loss showed, in words.
        because: String,
    },
}

impl NodeOutcome {
    /// Its numbers, if it has any.
    #[must_use]
    pub fn numbers(&self) -> &[Measurement] {
        match self {
            Self::Measured(numbers) | Self::Partly { numbers, .. } => numbers,
            Self::Error(_) | Self::Lost { .. } => &[],
        }
    }

    /// Its parts that have none.
    #[must_use]
    pub fn parts(&self) -> &[PartError] {
        match self {
            Self::Partly { parts, .. } => parts,
            Self::Measured(_) | Self::Error(_) | Self::Lost { .. } => &[],
        }
    }
}

/// A round and what every participant brought back; all nodes hold the same one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RoundResult {
    /// The round.
    pub round: Round,
    /// One entry a participant.
    pub outcomes: BTreeMap<NodeId, NodeOutcome>,
}

/// What every node does next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Measure this round and gather the results.
    Measure(Round),
    /// Nothing is left to measure.
    Finished,
}
