//! What must have been seen before a node is blamed for slow numbers, so that a slow way between switches, with a slow moment
//! beside it, is never taken for a slow node.
//!
//! A node that has met nobody on its own side of such a way misses with everybody, as a slow node does. So it must have
//! missed, each time and more often than by chance, with those that are next to it: one node below its leaf where the leaves are known, else its neighbours in
//! the order of the job, of which one at least is below the same leaf where the nodes of a leaf stand together in the job and it is not alone there.
//! A neighbour that is fine with nobody, and with which it is far slower than with others, says nothing of it; one that is fine with
//! others must still be so after the first miss, or the leaf of both may have turned slow.
//! Wrong results and closed ports need none of this ([`crate::chance::Weight::Certain`]): no slow way looks like that. And a node
//! that is fine with somebody and misses with others is at fault only if it has turned: it misses with those too, when they meet
//! again.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::blame::PARTNERS_TO_BLAME;
use crate::facts::NodeId;
use crate::odds::Odds;
use crate::seen::{Pair, Seen, Tally, ordered};
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
        // Where none below the leaf is fine with anybody it may be the leaf: nobody there tells.
        return if mates.is_empty() { Vec::new() } else { vec![mates.intersection(good).copied().collect()] };
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

/// What must be seen before it is known that a node misses as much with those next to it, and more often than by chance.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Doubt {
    /// With whom it must meet, by set, those that it met already first. None: nothing is open. A set with nobody in it: no meeting of
    /// it would tell, or not now.
    pub(crate) open: Vec<Vec<NodeId>>,
    /// Meetings of those next to it with others.
    pub(crate) controls: Vec<Pair>,
    /// Those that are all that is open of one.
    pub(crate) due: Vec<Pair>,
}

/// What must be seen of a node that missed with good `partners`.
pub(crate) fn of_near(
    node: NodeId,
    near: &[BTreeSet<NodeId>],
    (partners, good, nodes): (&[NodeId], &BTreeSet<NodeId>, &BTreeSet<NodeId>),
    (seen, odds): (&Tally<'_>, Odds),
) -> Doubt {
    let stale =
        |other: &NodeId| good.contains(other) && is_stale(seen, *other, seen.between(node, *other), 0);
    let looked_at = |other: &NodeId| {
        let own = seen.between(node, *other).filter(|own| odds.exclude_of_one(own, own.miss))?;
        let others = partners.iter().filter(|partner| *partner != other);
        let others: Vec<&Seen<'_>> = others.filter_map(|partner| seen.between(node, *partner)).collect();
        let one_size = if good.contains(other) {
            seen.of_one_size(own, None, &others)
        } else {
            seen.of_its_size(own, &others)
        };
        Some(one_size)
    };
    let confirms = |other: &NodeId| looked_at(other) == Some(true) && !stale(other);
    let open = near.iter().filter(|set| !set.iter().any(confirms)).map(|set| {
        // What was seen often enough of one that is fine with nobody will not become better.
        let tells = |other: &NodeId| match looked_at(other) {
            None => true,
            Some(one_size) => good.contains(other) && !one_size,
        };
        let mut set: Vec<NodeId> = set.iter().copied().filter(tells).collect();
        set.sort_by_key(|other| (Reverse(seen.misses(node, *other)), *other));
        set
    });
    let open: Vec<Vec<NodeId>> = open.collect();
    let (due, early): (Vec<&NodeId>, Vec<&NodeId>) =
        near.iter().flatten().filter(|other| stale(other)).partition(|other| looked_at(other) == Some(true));
    let of =
        |others: Vec<&NodeId>| others.into_iter().flat_map(|other| controls(seen, *other, nodes)).collect();
    Doubt { open, controls: of(early), due: of(due) }
}

/// Whether it is not known of a node that it is still fine with others since it began to miss with one, after a round: the leaf of
/// both may have turned slow.
fn is_stale(seen: &Tally<'_>, node: NodeId, with: Option<&Seen<'_>>, after: u32) -> bool {
    let begun = with.and_then(|with| with.missed_in().filter(|round| *round >= after).min());
    begun.is_some_and(|begun| !seen.is_fine_since(node, begun))
}

/// Meetings that show whether a node is still fine: with those that it was.
fn controls(seen: &Tally<'_>, node: NodeId, nodes: &BTreeSet<NodeId>) -> Vec<Pair> {
    let able = seen.last_fine(node).filter(|(other, _)| nodes.contains(other) && nodes.contains(&node));
    able.map(|(other, _)| ordered(node, other)).collect()
}

/// What is known of a node that is fine with somebody and at which bad links meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It misses with those as well by now: it is the node.
    Turned,
    /// It does clearly better in between: it is not the node.
    Fine,
    /// Not known before it has met these again, and those others.
    Open(Vec<NodeId>, Vec<Pair>),
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
            odds.exclude_of_one(seen, often) && tally.of_one_size(seen, Some(last), &links)
        };
        let stale = |other: &NodeId| is_stale(tally, *other, with(other), last + 1);
        let controls: Vec<Pair> = ask
            .iter()
            .filter(|other| stale(other))
            .flat_map(|other| controls(tally, *other, nodes))
            .collect();
        ask.retain(|other| !with(other).is_some_and(since));
        if ask.is_empty() && controls.is_empty() { Self::Turned } else { Self::Open(ask, controls) }
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
