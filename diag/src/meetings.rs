//! Who meets whom next, so that more is known of who is at fault.

use std::collections::BTreeSet;

use crate::blame::{Accused, PARTNERS_TO_BLAME, is_sound};
use crate::doubt::next_to;
use crate::facts::NodeId;
use crate::localise::{Basis, PairState};
use crate::odds::LOOKS_AT_A_LINK;
use crate::round::Purpose;
use crate::seen::{Pair, Tally, ordered};

/// What the next meetings depend on.
#[derive(Clone, Copy)]
pub(crate) struct Known<'k> {
    pub(crate) basis: Basis<'k>,
    /// Nodes that are neither known to be fine nor at fault.
    pub(crate) open: &'k BTreeSet<NodeId>,
    /// What is open of those that missed with several.
    pub(crate) accused: &'k Accused,
}

/// The next round of meetings: no node twice, one suspect per good node.
pub(crate) fn meetings(state: &PairState, known: Known<'_>) -> Vec<Pair> {
    let Known { basis: Basis { nodes, seen, odds, switches, .. }, open, accused } = known;
    // Who takes no part any more controls nothing.
    let able = |(a, b): &&Pair| nodes.contains(a) && nodes.contains(b);
    let mut busy = BTreeSet::new();
    let mut next = Vec::new();
    // Those whom somebody must meet yet are left to that.
    let wanted: BTreeSet<NodeId> = accused.unsure_of.values().flatten().flatten().copied().collect();
    let spare = |(a, b): &&Pair| !wanted.contains(a) && !wanted.contains(b);
    take(accused.due.iter().filter(able).filter(spare), &mut busy, &mut next);
    // Nobody is good, and at most one odd node has not missed with two others: it is no single node's fault.
    let fresh = open.iter().filter(|node| met(seen, **node) < PARTNERS_TO_BLAME).count();
    let hopeless = state.good.is_empty() && fresh <= 1 && !seen.pairs.is_empty() && nodes.len() > 2;
    if !hopeless {
        for &node in open.iter().chain(accused.unsure_of.keys().filter(|node| !open.contains(node))) {
            if busy.contains(&node) || !nodes.contains(&node) {
                continue;
            }
            let able = |other: &&NodeId| nodes.contains(*other) && !busy.contains(*other);
            let asked = || {
                let sets = accused.unsure_of.get(&node).into_iter().flatten();
                sets.filter_map(|set| set.iter().find(able)).next().copied()
            };
            let usual = || open.contains(&node).then(|| partner(node, state, known, &busy)).flatten();
            // Those that it has not met yet may show that it is fine, and come first.
            let partner =
                if accused.enough.contains(&node) { asked().or_else(usual) } else { usual().or_else(asked) };
            if let Some(partner) = partner {
                busy.extend([node, partner]);
                next.push(ordered(node, partner));
            }
        }
    }
    let met = |pair: Pair| seen.pairs.contains_key(&pair);
    next.extend(switches.meetings(&state.good, met, &mut busy));
    let again = seen.pairs.iter().filter(|(pair, look)| {
        let (a, b) = pair;
        let settled = |node: &NodeId| state.bad.contains_key(node);
        let able = nodes.contains(a) && nodes.contains(b) && !settled(a) && !settled(b);
        // A miss that nothing explains is seen once more, even if it tells nobody's fault.
        let once = look.miss < LOOKS_AT_A_LINK && !state.good.is_empty();
        let open = look.fine == 0 && look.miss > 0 && !look.settled_as_link(odds);
        open && able && (once || nodes.len() == 2 || is_sound(**pair, seen, &state.good))
    });
    take(accused.due.iter().chain(&accused.between_good).filter(able), &mut busy, &mut next);
    take(again.map(|(pair, _)| pair), &mut busy, &mut next);
    next.sort_unstable();
    next
}

/// Adds those of these meetings whose nodes are still free.
fn take<'p>(pairs: impl Iterator<Item = &'p Pair>, busy: &mut BTreeSet<NodeId>, next: &mut Vec<Pair>) {
    for &(a, b) in pairs {
        if !busy.contains(&a) && !busy.contains(&b) {
            busy.extend([a, b]);
            next.push((a, b));
        }
    }
}

/// Whom a node that is neither known to be fine nor at fault meets next.
fn partner(node: NodeId, state: &PairState, known: Known<'_>, busy: &BTreeSet<NodeId>) -> Option<NodeId> {
    let Known { basis: Basis { nodes, seen, switches, .. }, open, accused } = known;
    let free = |other: &NodeId| *other != node && !busy.contains(other);
    let new = |other: &NodeId| seen.between(node, *other).is_none();
    let all: Vec<NodeId> = seen.partners(node, |_| true).collect();
    // Neighbours in the job are often neighbours in the network: partners on one side only may all be beyond the same slow way.
    let upwards = all.is_empty() || all.len() % 2 == 1;
    let good = || {
        let others = beside(&state.good, node, upwards);
        others.filter(|other| nodes.contains(other) && switches.may_meet(node, *other))
    };
    // One below its own leaf and one below another tell most of a node; the first partner counts before it is known what it is.
    let counts = |other: &NodeId| all.len() == 1 || state.good.contains(other);
    let met: Vec<Option<bool>> =
        all.iter().copied().filter(counts).map(|other| switches.same(node, other)).collect();
    if switches.mates(node).is_none()
        && !all.is_empty()
        && let Some(partner) = next_to(node, nodes, &state.good, switches)
            .into_iter()
            .flatten()
            .find(|other| state.good.contains(other) && free(other) && new(other))
    {
        return Some(partner);
    }
    let telling = |other: &NodeId| {
        let place = switches.same(node, *other);
        place.is_some() && !met.contains(&place)
    };
    if let Some(partner) = good().find(|other| free(other) && new(other) && telling(other)) {
        return Some(partner);
    }
    if let Some(partner) = good().find(|other| free(other) && new(other)) {
        return Some(partner);
    }
    // A node with a good partner in store waits for it rather than meet another suspect.
    if good().any(|other| new(&other)) {
        return None;
    }
    // It has met all that are good: those that it missed with least often, again.
    if accused.suspected.contains(&node) {
        let looks = |other: &NodeId| seen.misses(node, *other);
        return good().filter(free).min_by_key(looks);
    }
    beside(open, node, true).find(|other| free(other) && new(other) && switches.may_meet(node, *other))
}

pub(crate) fn purpose(next: &[Pair], seen: &Tally<'_>) -> Purpose {
    if next.iter().all(|pair| seen.pairs.contains_key(pair)) { Purpose::Confirm } else { Purpose::Localise }
}

fn met(seen: &Tally<'_>, node: NodeId) -> usize {
    seen.partners(node, |_| true).count()
}

/// The set from just after `node` on, then from its start; or from just before it down, then from its end: spreads
/// partners instead of crowding the lowest.
fn beside(set: &BTreeSet<NodeId>, node: NodeId, upwards: bool) -> Box<dyn Iterator<Item = NodeId> + '_> {
    let (below, above) = (set.range(..node), set.range(node + 1..));
    if upwards {
        Box::new(above.chain(below).copied())
    } else {
        Box::new(below.rev().chain(above.rev()).copied())
    }
}
