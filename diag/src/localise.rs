//! From looks to culprits: which node, which link, and which meeting would tell more. Every node of a job runs
//! this on the same looks and comes to the same answer.
//!
//! A node is at fault when it missed with two different partners that are each fine with somebody, and missed the same
//! number often enough, with each of them, that it is no chance ([`crate::chance`]): in a small job, and when it is off by
//! more than half, the two are enough. A link is at fault when its two nodes are each fine with others and miss with each other as often, and
//! at least twice. Rank 0 is a node like any other. Where it is known who is below which leaf switch, what a leaf explains is
//! no node's and no link's ([`crate::switches`]), and a node that is the only one below its leaf can't be told from it.

use std::collections::{BTreeMap, BTreeSet};

use crate::chance::{Weight, misses_to_blame, scatters, share};
use crate::facts::NodeId;
use crate::look::{Shows, View};
use crate::measurement::Metric;
use crate::round::Purpose;
use crate::switches::Switches;
use crate::topology::{LeafId, Leaves};

/// Partners that are fine with somebody and with which a node must have missed before it is at fault.
const PARTNERS_TO_BLAME: usize = 2;

/// Looks that a link must have missed before it is at fault.
const LOOKS_AT_A_LINK: usize = 2;

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
    /// Nodes that would be at fault, and are the only ones below their leaf, with the good partners that they missed with:
    /// leaf and node can't be told apart.
    pub alone: BTreeMap<NodeId, Vec<NodeId>>,
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

/// What misses of different looks confirm each other by: a quantity and a size of messages. Each with what the least of
/// its misses is worth.
pub(crate) type Missed = BTreeMap<(Metric, Option<u64>), Weight>;

/// What was seen of one pair, all rounds together.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    pub(crate) fine: u32,
    pub(crate) miss: usize,
    /// What missed in every look that missed.
    pub(crate) always: Missed,
}

/// How many numbers the checks of pairs have, and how often they come and go by themselves.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Odds {
    numbers: usize,
    share: f64,
}

impl Odds {
    fn of(looks: &[View<'_>], good: &BTreeSet<NodeId>, channels: usize, switches: &Switches<'_>) -> Self {
        let scattering = |look: &View<'_>| look.evidence.iter().filter(|one| scatters(one)).count();
        let numbers: usize = looks.iter().map(scattering).sum();
        // A pair that missed though both of its nodes are fine with others met a slow moment, or is a bad link.
        let both_good = |look: &&View<'_>| match *look.group {
            [a, b] => good.contains(&a) && good.contains(&b) && !switches.may_explain(ordered(a, b)),
            _ => false,
        };
        let missed = looks.iter().filter(both_good).flat_map(View::misses);
        let passing = missed.filter(|one| scatters(one)).count();
        // Each pair's number speaks against either node.
        Self { numbers: 2 * numbers * channels, share: share(passing, numbers) }
    }

    /// Whether so many misses of the same numbers are more than chance.
    pub(crate) fn exclude(self, missed: &Missed, misses: usize) -> bool {
        missed.values().any(|weight| misses >= misses_to_blame(*weight, self.numbers, self.share))
    }
}

/// What putting looks together depends on beside them.
#[derive(Debug, Clone, Copy)]
pub struct Setting<'s> {
    /// Nodes that can still take part.
    pub nodes: &'s BTreeSet<NodeId>,
    /// Who is below which leaf switch.
    pub leaves: &'s Leaves,
    /// How many rounds the check makes whatever they show: meetings are counted from there.
    pub opening: usize,
    /// How many channels the check has.
    pub channels: usize,
}

/// Puts the looks of a pair check together, of one channel.
#[must_use]
pub fn pairs(looks: &[View<'_>], Setting { nodes, leaves, opening, channels }: Setting<'_>) -> PairState {
    let mut seen = tally(looks);
    let good = nodes_where(&seen, |seen| seen.fine > 0);
    let mut switches = Switches::of(leaves, nodes, &seen);
    let odds = Odds::of(looks, &good, channels, &switches);
    switches.settle(odds);
    let mut state = PairState { good, switches: switches.struck.clone(), ..PairState::default() };
    if !state.switches.is_empty() {
        state.explained = seen.keys().filter(|pair| switches.explains(**pair, &seen)).copied().collect();
        seen.retain(|pair, _| !state.explained.contains(pair));
    }
    let missed = nodes_where(&seen, |seen| seen.miss > 0);
    let mut suspected: BTreeSet<NodeId> = BTreeSet::new();
    for node in missed.difference(&state.good) {
        let partners: Vec<NodeId> =
            partners(&seen, *node, |seen| seen.miss > 0).filter(|other| state.good.contains(other)).collect();
        if partners.len() < PARTNERS_TO_BLAME {
            continue;
        }
        let looks = partners.iter().filter_map(|other| seen.get(&ordered(*node, *other)));
        // As often as with the partner with whom it was seen least: a bad link to one, looked at again and again, and a
        // slow moment with another are no bad node.
        let misses = partners.len() * looks.clone().map(|seen| seen.miss).min().unwrap_or(0);
        let always = looks.map(|seen| seen.always.clone()).reduce(|kept, other| in_both(&kept, &other));
        if odds.exclude(&always.unwrap_or_default(), misses) {
            state.bad.insert(*node, partners);
        } else {
            suspected.insert(*node);
        }
    }
    for (pair, seen) in &seen {
        let both_good = state.good.contains(&pair.0) && state.good.contains(&pair.1);
        if both_good && seen.settled_as_link(odds) {
            state.links.insert(*pair);
        } else if seen.miss > 0 && seen.fine > 0 {
            state.flaky.insert(*pair);
        }
    }
    blame_where_links_meet(&mut state);
    // What a leaf at fault explains is not open, unless a node below it has missed with another one there.
    let left = |node: &NodeId| !switches.is_struck(*node) || missed.contains(node);
    let open: BTreeSet<NodeId> = nodes
        .iter()
        .filter(|node| !state.good.contains(node) && !state.bad.contains_key(node) && left(node))
        .copied()
        .collect();
    let rounds: BTreeSet<u32> = looks.iter().map(|look| look.round).collect();
    if rounds.len() < opening + MAX_MEETINGS {
        let known =
            Known { nodes, seen: &seen, open: &open, suspected: &suspected, odds, switches: &switches };
        state.next = meetings(&state, known);
        state.purpose = (!state.next.is_empty()).then(|| purpose(&state.next, &seen));
    }
    state.suspects = open.intersection(&missed).copied().collect();
    let alone = |node: &NodeId, _: &mut Vec<NodeId>| switches.is_alone(*node);
    state.alone = state.bad.extract_if(.., alone).collect();
    state
}

impl Seen {
    /// Whether a pair whose nodes are both fine with others missed too often for chance, and never did anything else.
    fn settled_as_link(&self, odds: Odds) -> bool {
        self.fine == 0 && self.miss >= LOOKS_AT_A_LINK && odds.exclude(&self.always, self.miss)
    }
}

/// What missed in both, worth what it is worth in the lesser of the two.
pub(crate) fn in_both(one: &Missed, other: &Missed) -> Missed {
    let both = one.iter().filter_map(|(number, weight)| Some((*number, *weight.min(other.get(number)?))));
    both.collect()
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

fn tally(looks: &[View<'_>]) -> BTreeMap<Pair, Seen> {
    let mut seen: BTreeMap<Pair, Seen> = BTreeMap::new();
    for look in looks {
        let &[a, b] = look.group else { continue };
        let entry = seen.entry((a.min(b), a.max(b))).or_default();
        match look.shows {
            Shows::Fine => entry.fine += 1,
            Shows::Miss => {
                let missed: Missed =
                    look.misses().map(|one| ((one.metric, one.bytes), Weight::of(one))).collect();
                entry.always = if entry.miss == 0 { missed } else { in_both(&entry.always, &missed) };
                entry.miss += 1;
            }
            Shows::Nothing => {}
        }
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

/// What the next meetings depend on.
#[derive(Clone, Copy)]
struct Known<'k> {
    nodes: &'k BTreeSet<NodeId>,
    seen: &'k BTreeMap<Pair, Seen>,
    /// Nodes that are neither known to be fine nor at fault.
    open: &'k BTreeSet<NodeId>,
    /// Those of them that missed with partners enough, but not yet often enough.
    suspected: &'k BTreeSet<NodeId>,
    odds: Odds,
    switches: &'k Switches<'k>,
}

/// The next round of meetings: no node twice, one suspect per good node.
fn meetings(state: &PairState, known: Known<'_>) -> Vec<Pair> {
    let Known { nodes, seen, open, .. } = known;
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
            if let Some(partner) = partner(node, state, known, &busy) {
                busy.extend([node, partner]);
                next.push(ordered(node, partner));
            }
        }
    }
    let met = |pair: Pair| seen.contains_key(&pair);
    next.extend(known.switches.meetings(&state.good, met, &mut busy));
    let again = seen.iter().filter(|((a, b), look)| {
        let settled = |node: &NodeId| state.bad.contains_key(node);
        let both_good = state.good.contains(a) && state.good.contains(b);
        let able = nodes.contains(a) && nodes.contains(b) && !settled(a) && !settled(b);
        let open = look.fine == 0 && look.miss > 0 && !look.settled_as_link(known.odds);
        open && able && (both_good || nodes.len() == 2)
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

/// Whom a node that is neither known to be fine nor at fault meets next.
fn partner(node: NodeId, state: &PairState, known: Known<'_>, busy: &BTreeSet<NodeId>) -> Option<NodeId> {
    let Known { nodes, seen, open, suspected, switches, .. } = known;
    let free = |other: &NodeId| *other != node && !busy.contains(other);
    let new = |other: &NodeId| !seen.contains_key(&ordered(node, *other));
    let all: Vec<NodeId> = partners(seen, node, |_| true).collect();
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
    if suspected.contains(&node) {
        let looks = |other: &NodeId| seen.get(&ordered(node, *other)).map_or(0, |seen| seen.miss);
        return good().filter(free).min_by_key(looks);
    }
    beside(open, node, true).find(|other| free(other) && new(other) && switches.may_meet(node, *other))
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
