//! From looks to culprits: which node, which link, and which meeting would tell more. Every node of a job runs
//! this on the same looks and comes to the same answer.
//!
//! What was seen of each pair is put together by [`crate::seen`]; what a leaf switch explains is no node's and no link's
//! ([`crate::switches`]); who is to blame for the rest is in [`crate::blame`], with what [`crate::doubt`] asks for before it; who
//! meets whom next in [`crate::meetings`]. Rank 0 is a node like any other. Where it is known who is below which leaf switch, a
//! node that is the only one below its leaf can't be told from it.

use std::collections::{BTreeMap, BTreeSet};

use crate::blame::{accuse, blame_links, blame_where_links_meet};
use crate::facts::{Engine, NodeId};
use crate::look::View;
use crate::meetings::{Known, meetings, purpose};
use crate::odds::Odds;
use crate::round::Purpose;
use crate::seen::{Seen, Tally};
use crate::switches::Switches;
use crate::topology::{LeafId, Leaves};

/// Most meetings after the check's own rounds. Four to six settle one fault, a few more two: those meet each other too. More faults
/// meet good nodes one at a time, and beyond this bound the rest is undecided.
const MAX_MEETINGS: usize = 16;

pub use crate::seen::Pair;

/// What is known after some rounds of a pair check.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PairState {
    /// Nodes that are fine with at least one partner.
    pub good: BTreeSet<NodeId>,
    /// Nodes at fault, with the good partners that they missed with.
    pub bad: BTreeMap<NodeId, Vec<NodeId>>,
    /// Those of them that are by numbers that scatter, with all that it takes to rule out chance and a slow way.
    pub sure: BTreeSet<NodeId>,
    /// Links at fault.
    pub links: BTreeSet<Pair>,
    /// Nodes that would be at fault, and are the only ones below their leaf, with the good partners that they missed with:
    /// leaf and node can't be told apart.
    pub alone: BTreeMap<NodeId, Vec<NodeId>>,
    /// Nodes that missed with several good partners, these, but not often enough, or with each quite differently, or not known to miss
    /// with those next to them: what lies between them and the others may be slow.
    pub unsure: BTreeMap<NodeId, Vec<NodeId>>,
    /// Leaves at fault; several in one: which of them, or what joins them, is not known.
    pub switches: Vec<Vec<LeafId>>,
    /// Pairs whose misses those leaves explain.
    pub explained: BTreeSet<Pair>,
    /// Pairs that missed once and were fine the next time.
    pub flaky: BTreeSet<Pair>,
    /// Nodes that missed and can't be told apart from their partners.
    pub suspects: BTreeSet<NodeId>,
    /// The meetings that would tell more; empty: nothing would.
    pub next: Vec<Pair>,
    /// What the meetings are for.
    pub purpose: Option<Purpose>,
}

/// What putting looks together depends on beside them.
#[derive(Debug, Clone, Copy)]
pub struct Setting<'s> {
    /// Nodes that can still take part.
    pub nodes: &'s BTreeSet<NodeId>,
    /// Who is below which leaf switch.
    pub leaves: &'s Leaves,
    /// Nodes that an earlier check of the same phase is sure of ([`PairState::sure`]).
    pub at_fault: &'s BTreeSet<NodeId>,
    /// How many rounds the check makes whatever they show: meetings are counted from there.
    pub opening: usize,
    /// How many channels the check has.
    pub channels: usize,
    /// What measures.
    pub engine: Engine,
}

/// What blame and the next meetings depend on.
#[derive(Clone, Copy)]
pub(crate) struct Basis<'b> {
    /// Nodes that can still take part.
    pub(crate) nodes: &'b BTreeSet<NodeId>,
    /// What no leaf at fault explains.
    pub(crate) seen: &'b Tally<'b>,
    pub(crate) odds: Odds,
    pub(crate) switches: &'b Switches<'b>,
    /// Nodes that an earlier check of the same phase is sure of: in this one there is less to rule out.
    pub(crate) at_fault: &'b BTreeSet<NodeId>,
}

/// Puts the looks of a pair check together, of one channel.
#[must_use]
pub fn pairs(
    looks: &[View<'_>],
    Setting { nodes, leaves, at_fault, opening, channels, engine }: Setting<'_>,
) -> PairState {
    let mut seen = Tally::of(looks, engine);
    let good = nodes_where(&seen, |seen| seen.fine > 0);
    let mut switches = Switches::of(leaves, nodes, &seen);
    let odds = Odds::of((looks, &seen), &good, channels, &switches);
    switches.settle(odds);
    let mut state = PairState { good, switches: switches.struck.clone(), ..PairState::default() };
    if !state.switches.is_empty() {
        state.explained =
            seen.pairs.keys().filter(|pair| switches.explains(**pair, &seen)).copied().collect();
        seen.pairs.retain(|pair, _| !state.explained.contains(pair));
    }
    let missed = nodes_where(&seen, |seen| seen.miss > 0);
    let basis = Basis { nodes, seen: &seen, odds, switches: &switches, at_fault };
    let mut accused = accuse(&mut state, &missed, basis);
    blame_links(&mut state, &accused, basis);
    blame_where_links_meet(&mut state, &mut accused, basis);
    // What a leaf at fault explains is not open, unless a node below it has missed with another one there.
    let left = |node: &NodeId| !switches.is_struck(*node) || missed.contains(node);
    let open: BTreeSet<NodeId> = nodes
        .iter()
        .filter(|node| !state.good.contains(node) && !state.bad.contains_key(node) && left(node))
        .copied()
        .collect();
    let rounds: BTreeSet<u32> = looks.iter().map(|look| look.round).collect();
    if rounds.len() < opening + MAX_MEETINGS {
        state.next = meetings(&state, Known { basis, open: &open, accused: &accused });
        state.purpose = (!state.next.is_empty()).then(|| purpose(&state.next, &seen));
    }
    state.suspects = open.intersection(&missed).copied().collect();
    let alone = |node: &NodeId, _: &mut Vec<NodeId>| switches.is_alone(*node);
    state.alone = state.bad.extract_if(.., alone).collect();
    state.sure.retain(|node| state.bad.contains_key(node));
    state
}

fn nodes_where(seen: &Tally<'_>, holds: impl Fn(&Seen<'_>) -> bool) -> BTreeSet<NodeId> {
    seen.pairs.iter().filter(|(_, seen)| holds(seen)).flat_map(|(&(a, b), _)| [a, b]).collect()
}
