//! What a node tells the others of its hardware when they meet, and what all of that together comes to: the same on
//! every node, since each holds the same roster.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::reading::NodeReading;
use super::{Compared, Fact, FactKind, Needs, Placed, among, of_node};
use crate::facts::{NodeId, Roster};
use crate::measurement::Subject;

/// Most facts that a node tells of itself, and that a measurement carries: two of each of 16 GPUs. A cause that is not told
/// excuses nobody.
const MOST_FACTS: usize = 32;

/// Longest line of a fact, in bytes.
const MOST_BYTES: usize = 400;

/// All lines together, in bytes: a hello has room for them.
const MOST_BYTES_TOGETHER: usize = 6 << 10;

/// What one node tells.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Known {
    /// What it knows of itself.
    pub facts: Vec<Fact>,
    /// What is compared with the others.
    pub compared: Compared,
}

impl Known {
    /// What `node` tells, by what was read of it.
    #[must_use]
    pub fn of(node: NodeId, reading: &NodeReading, needs: &Needs) -> Self {
        Self { facts: bounded(of_node(node, reading, needs)), compared: Compared::from(reading) }
    }

    /// What a node tells that could not be read.
    #[must_use]
    pub fn nothing(node: NodeId, why: String) -> Self {
        let fact = Fact::new(FactKind::Error, Subject::Node { node }, why);
        Self { facts: bounded(vec![fact]), compared: Compared::default() }
    }
}

/// Few enough, and short enough, to travel: the worst kinds first.
#[must_use]
pub fn bounded(mut facts: Vec<Fact>) -> Vec<Fact> {
    facts.sort_by_key(|fact| fact.kind);
    facts.truncate(MOST_FACTS);
    let mut room = MOST_BYTES_TOGETHER;
    for fact in &mut facts {
        let end = fact.words.floor_char_boundary(MOST_BYTES);
        fact.words.truncate(end);
    }
    facts.retain(|fact| {
        let left = room.checked_sub(fact.words.len());
        room = left.unwrap_or(0);
        left.is_some()
    });
    facts
}

/// Everything that is known of the nodes that met: what each says of itself, and what comparing them tells.
#[must_use]
pub fn of_roster(roster: &Roster, rdma: &BTreeSet<String>) -> Vec<Fact> {
    let joined = (0..).zip(&roster.nodes).filter_map(|(node, entry)| {
        let known = &entry.joined.as_ref()?.facts.known;
        Some((node, &*entry.name, known))
    });
    let mut facts = Vec::new();
    let mut nodes: Vec<Placed<'_>> = Vec::new();
    for (node, name, known) in joined {
        // A node speaks of itself only.
        facts.extend(known.facts.iter().filter(|fact| fact.subject.nodes() == [node]).cloned());
        // One that could not be read, or needs none of it, is compared with nobody.
        if known.compared != Compared::default() {
            nodes.push((node, name, &known.compared));
        }
    }
    facts.extend(among(&nodes, rdma));
    facts
}
