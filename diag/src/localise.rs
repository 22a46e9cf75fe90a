//! From looks to culprits: which node, which link, and which meeting would tell more. Every node of a job runs
//! this on the same looks and comes to the same answer.
//!
//! A node is at fault when it missed with two different partners that are each fine with somebody. A link is at
//! fault when its two nodes are each fine with others and miss with each other, twice. Rank 0 is a node like any
//! other.

use std::collections::{BTreeMap, BTreeSet};

use crate::facts::NodeId;
use crate::judge::{Look, Sight};
use crate::round::Purpose;

/// Partners that are fine with somebody and with which a node must have missed before it is at fault.
const PARTNERS_TO_BLAME: usize = 2;

/// Most meetings after the check's own rounds. Two or three settle one or two faults; more faults than that
/// meet good nodes one at a time, and beyond this bound the rest is undecided.
const MAX_MEETINGS: usize = 8;

/// A pair of nodes, lower first.
pub type Pair = (NodeId, NodeId);

/// What is known after some rounds of a pair check.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PairState {
    /// Nodes that are fine with at least one partner.
    pub good: BTreeSet<NodeId>,
    /// Nodes at fault, with the good partners that they missed with.
    pub bad: BTreeMap<NodeId, Vec<NodeId>>,
    /// Links at fault.
    pub links: BTreeSet<Pair>,
    /// Pairs that missed once and were fine the next time.
    pub flaky: BTreeSet<Pair>,
    /// Nodes that missed and can't be told apart from their partners.
    pub suspects: BTreeSet<NodeId>,
    /// The meetings that would tell more; empty: nothing would.
    pub next: Vec<Pair>,
    /// What the meetings are for.
    pub purpose: Option<Purpose>,
}

/// What was seen of one pair, all rounds together.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    fine: u32,
    miss: u32,
    last_was_fine: bool,
}

/// Puts the looks of a pair check together. `nodes` are those that can still take part; `opening` is how many
/// rounds the check makes whatever they show, so that meetings are counted from there.
#[must_use]
pub fn pairs(nodes: &BTreeSet<NodeId>, looks: &[Look], opening: usize) -> PairState {
    let seen = tally(looks);
    let mut state = PairState { good: nodes_where(&seen, |seen| seen.fine > 0), ..PairState::default() };
    let missed = nodes_where(&seen, |seen| seen.miss > 0);
    for node in missed.difference(&state.good) {
        let partners: Vec<NodeId> =
            partners(&seen, *node, |seen| seen.miss > 0).filter(|other| state.good.contains(other)).collect();
        if partners.len() >= PARTNERS_TO_BLAME {
            state.bad.insert(*node, partners);
        }
    }
    for (pair, seen) in &seen {
        let both_good = state.good.contains(&pair.0) && state.good.contains(&pair.1);
        if both_good && seen.miss > 1 && !seen.last_was_fine {
            state.links.insert(*pair);
        } else if seen.miss > 0 && seen.fine > 0 {
            state.flaky.insert(*pair);
        }
    }
    blame_where_links_meet(&mut state);
    let open: BTreeSet<NodeId> = nodes
        .iter()
        .filter(|node| !state.good.contains(node) && !state.bad.contains_key(node))
        .copied()
        .collect();
    let rounds: BTreeSet<u32> = looks.iter().map(|look| look.round).collect();
    if rounds.len() < opening + MAX_MEETINGS {
        state.next = meetings(nodes, &state, &seen, &open);
        state.purpose = (!state.next.is_empty()).then(|| purpose(&state.next, &seen));
    }
    state.suspects = open.intersection(&missed).copied().collect();
    state
}

/// Two bad links that share a node are one bad node that had a good moment with somebody.
fn blame_where_links_meet(state: &mut PairState) {
    let mut partners: BTreeMap<NodeId, Vec<NodeId>> = BTreeMap::new();
    for &(a, b) in &state.links {
        partners.entry(a).or_default().push(b);
        partners.entry(b).or_default().push(a);
    }
    partners.retain(|_, others| others.len() >= PARTNERS_TO_BLAME);
    state.links.retain(|(a, b)| !partners.contains_key(a) && !partners.contains_key(b));
    for (node, others) in partners {
        state.good.remove(&node);
        state.bad.insert(node, others);
    }
}

fn tally(looks: &[Look]) -> BTreeMap<Pair, Seen> {
    let mut seen: BTreeMap<Pair, Seen> = BTreeMap::new();
    for look in looks {
        let &[a, b] = look.group.as_slice() else { continue };
        let entry = seen.entry((a.min(b), a.max(b))).or_default();
        match look.sight {
            Sight::Fine => entry.fine += 1,
            Sight::Miss => entry.miss += 1,
            Sight::Error(..) | Sight::Lost(..) => continue,
        }
        entry.last_was_fine = look.sight == Sight::Fine;
    }
    seen
}

fn nodes_where(seen: &BTreeMap<Pair, Seen>, holds: impl Fn(&Seen) -> bool) -> BTreeSet<NodeId> {
    seen.iter().filter(|(_, seen)| holds(seen)).flat_map(|(&(a, b), _)| [a, b]).collect()
}

fn partners<'a>(
    seen: &'a BTreeMap<Pair, Seen>,
    node: NodeId,
    holds: impl Fn(&Seen) -> bool + 'a,
) -> impl Iterator<Item = NodeId> + 'a {
    seen.iter().filter(move |(_, seen)| holds(seen)).filter_map(move |(&(a, b), _)| match node {
        n if n == a => Some(b),
        n if n == b => Some(a),
        _ => None,
    })
}

/// The next round of meetings: no node twice, one suspect per good node.
fn meetings(
    nodes: &BTreeSet<NodeId>,
    state: &PairState,
    seen: &BTreeMap<Pair, Seen>,
    open: &BTreeSet<NodeId>,
) -> Vec<Pair> {
    let mut busy = BTreeSet::new();
    let mut next = Vec::new();
    // Nobody is good, and at most one odd node has not missed with two others: it is no single node's fault.
    let fresh = open.iter().filter(|node| met(seen, **node) < PARTNERS_TO_BLAME).count();
    let hopeless = state.good.is_empty() && fresh <= 1 && !seen.is_empty() && nodes.len() > 2;
    if !hopeless {
        for &node in open {
            if busy.contains(&node) {
                continue;
            }
            let free = |other: &NodeId| {
                *other != node && !busy.contains(other) && !seen.contains_key(&ordered(node, *other))
            };
            let able = |other: &NodeId| nodes.contains(other);
            let good = after(&state.good, node).filter(able).find(free);
            let partner = good.or_else(|| {
                // A node with a good partner in store waits for it rather than meet another suspect.
                let waits = state
                    .good
                    .iter()
                    .filter(|other| able(other))
                    .any(|other| !seen.contains_key(&ordered(node, *other)));
                if waits { None } else { after(open, node).find(free) }
            });
            if let Some(partner) = partner {
                busy.extend([node, partner]);
                next.push(ordered(node, partner));
            }
        }
    }
    let again = seen.iter().filter(|((a, b), look)| {
        let settled = |node: &NodeId| state.bad.contains_key(node);
        let once = look.miss == 1 && look.fine == 0;
        let both_good = state.good.contains(a) && state.good.contains(b);
        let able = nodes.contains(a) && nodes.contains(b) && !settled(a) && !settled(b);
        once && able && (both_good || nodes.len() == 2)
    });
    for (&(a, b), _) in again {
        if !busy.contains(&a) && !busy.contains(&b) {
            busy.extend([a, b]);
            next.push((a, b));
        }
    }
    next.sort_unstable();
    next
}

fn purpose(next: &[Pair], seen: &BTreeMap<Pair, Seen>) -> Purpose {
    if next.iter().all(|pair| seen.contains_key(pair)) { Purpose::Confirm } else { Purpose::Localise }
}

fn met(seen: &BTreeMap<Pair, Seen>, node: NodeId) -> usize {
    partners(seen, node, |_| true).count()
}

fn ordered(a: NodeId, b: NodeId) -> Pair {
    (a.min(b), a.max(b))
}

/// The set from just after `node` on, then from its start: spreads partners instead of crowding the lowest.
fn after(set: &BTreeSet<NodeId>, node: NodeId) -> impl Iterator<Item = NodeId> + '_ {
    set.range(node + 1..).chain(set.range(..node)).copied()
}
