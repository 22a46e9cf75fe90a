//! What must have been seen before a node is blamed for slow numbers, so that a slow way between switches, with a slow moment
//! beside it, is never taken for a slow node.
//!
//! A node that has met nobody on its own side of such a way misses with everybody, as a slow node does. So it must have
//! missed, each time and more often than by chance, with those that are next to it: one node below its leaf where the leaves are known, else its neighbours in
//! the order of the job, of which one at least is below the same leaf where the nodes of a leaf stand together in the job and it is not alone there.
//! Wrong results and closed ports need none of this. And a node that is fine with somebody
//! and misses with others is at fault only if it has turned: it misses with those too, when they meet again.

use std::collections::{BTreeMap, BTreeSet};

use crate::facts::NodeId;
use crate::localise::{Odds, PARTNERS_TO_BLAME};
use crate::seen::{Pair, Seen, Tally};
use crate::switches::Switches;

/// How many on each side are next to a node, counted up to the first that is fine with somebody: one with a fault of its own tells
/// nothing of the way to it, two together are rare.
const NEXT_TO: usize = 2;

/// By how many times a fine number must be better than what missed to show that a node can do better: numbers of like parts
/// differ by a tenth, and one that is just below its limit is now and then just above.
const CLEARLY_BETTER: f64 = 1.1;

/// Those of whom one must have missed with the node, one of each set.
pub(crate) fn next_to(
    node: NodeId,
    nodes: &BTreeSet<NodeId>,
    good: &BTreeSet<NodeId>,
    switches: &Switches<'_>,
) -> Vec<BTreeSet<NodeId>> {
    if let Some(mates) = switches.mates(node) {
        let fine: BTreeSet<NodeId> = mates.intersection(good).copied().collect();
        return if fine.is_empty() { up_to_good(mates.iter(), good) } else { vec![fine] };
    }
    let mut sides = up_to_good(nodes.range(node + 1..), good);
    sides.extend(up_to_good(nodes.range(..node).rev(), good));
    sides
}

fn up_to_good<'n>(side: impl Iterator<Item = &'n NodeId>, good: &BTreeSet<NodeId>) -> Vec<BTreeSet<NodeId>> {
    let mut sets = Vec::new();
    for node in side.take(NEXT_TO) {
        sets.push([*node].into());
        if good.contains(node) {
            break;
        }
    }
    sets
}

/// With whom a node that missed with good `partners` must meet, by set, before it is known that it misses as much with those
/// next to it, and more often than by chance: those that it met already first. Empty: it does.
pub(crate) fn unsure(
    node: NodeId,
    near: &[BTreeSet<NodeId>],
    partners: &[NodeId],
    (seen, odds): (&Tally<'_>, Odds),
) -> Vec<Vec<NodeId>> {
    let confirms = |other: &NodeId| {
        let others = partners.iter().filter(|partner| *partner != other);
        let others: Vec<&Seen<'_>> = others.filter_map(|partner| seen.between(node, *partner)).collect();
        let own = seen.between(node, *other);
        own.is_some_and(|own| odds.of_one(own, own.miss) && seen.of_one_size(own, None, &others))
    };
    let open = near.iter().filter(|set| !set.iter().any(confirms));
    open.map(|set| {
        let mut set: Vec<NodeId> = set.iter().copied().collect();
        set.sort_by_key(|other| (std::cmp::Reverse(seen.misses(node, *other)), *other));
        set
    })
    .collect()
}

/// What is known of a node that is fine with somebody and at which bad links meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It misses with those as well by now: it is the node.
    Turned,
    /// It does clearly better in between: it is not the node.
    Fine,
    /// Not known before it has met these again.
    Open(Vec<NodeId>),
}

impl Turn {
    /// Of a node with bad links to `others`.
    pub(crate) fn of(
        (node, others): (NodeId, &[NodeId]),
        nodes: &BTreeSet<NodeId>,
        near: &[BTreeSet<NodeId>],
        (tally, odds): (&Tally<'_>, Odds),
    ) -> Self {
        let with = |other: &NodeId| tally.between(node, *other);
        let links: Vec<&Seen<'_>> = others.iter().filter_map(with).collect();
        let mut begun: Vec<u32> = links.iter().filter_map(|link| link.missed_in().min()).collect();
        begun.sort_unstable();
        let fine_in = |times: f64| -> BTreeMap<NodeId, u32> {
            let last = |other: &NodeId| with(other)?.fine_in(times, &links).max();
            let fine = tally.partners(node, |seen| seen.fine > 0);
            fine.filter_map(|other| Some((other, last(&other)?))).collect()
        };
        let settles = |last: &u32| begun.get(PARTNERS_TO_BLAME - 1).is_some_and(|begun| last >= begun);
        let fine = fine_in(0.0);
        let Some(last) = fine.values().max().copied() else { return Self::Fine };
        if fine_in(CLEARLY_BETTER).values().any(settles) {
            return Self::Fine;
        }
        let able = || fine.keys().copied().filter(|other| nodes.contains(other));
        let mut ask: Vec<NodeId> =
            able().filter(|other| near.iter().any(|set| set.contains(other))).collect();
        if ask.is_empty() {
            ask = able().collect();
        }
        if ask.is_empty() {
            return Self::Fine;
        }
        let since = |seen: &Seen<'_>| {
            let often = seen.missed_in().filter(|at| *at > last).count();
            odds.of_one(seen, often) && tally.of_one_size(seen, Some(last), &links)
        };
        ask.retain(|other| !with(other).is_some_and(since));
        if ask.is_empty() { Self::Turned } else { Self::Open(ask) }
    }
}

/// The nodes at which several bad links meet, with the other ends.
pub(crate) fn where_links_meet(links: &BTreeSet<Pair>) -> BTreeMap<NodeId, Vec<NodeId>> {
    let mut ends: BTreeMap<NodeId, Vec<NodeId>> = BTreeMap::new();
    for &(a, b) in links {
        ends.entry(a).or_default().push(b);
        ends.entry(b).or_default().push(a);
    }
    ends.retain(|_, others| others.len() >= PARTNERS_TO_BLAME);
    ends
}
