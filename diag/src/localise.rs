//! From looks to culprits: which node, which link, and which meeting would tell more. Every node of a job runs
//! this on the same looks and comes to the same answer.
//!
//! A node is at fault when it missed with two different partners that are each fine with somebody, and missed the same
//! number often enough, with each of them, that it is no chance ([`crate::chance`]); misses of quite different size are not
//! counted together ([`crate::seen`]), and with whom else it must have missed is in [`crate::doubt`]. A link is at fault when its two nodes are each fine with others and miss with each other as often, and
//! at least twice. Rank 0 is a node like any other. Where it is known who is below which leaf switch, what a leaf explains is
//! no node's and no link's ([`crate::switches`]), and a node that is the only one below its leaf can't be told from it.

use std::collections::{BTreeMap, BTreeSet};

use crate::chance::{Weight, misses_to_blame, scatters, share};
use crate::doubt::{Turn, next_to, unsure, where_links_meet};
use crate::facts::{Engine, NodeId};
use crate::look::View;
use crate::round::Purpose;
use crate::seen::{Missed, Seen, Tally, in_both, ordered};
use crate::switches::Switches;
use crate::topology::{LeafId, Leaves};

/// Partners that are fine with somebody and with which a node must have missed before it is at fault.
pub(crate) const PARTNERS_TO_BLAME: usize = 2;

/// Partners that a node meets before it meets those next to it again: any of them may show that it is fine.
const PARTNERS_TO_TRY: usize = 3;

/// Looks that a link must have missed before it is at fault.
const LOOKS_AT_A_LINK: usize = 2;

/// Most meetings after the check's own rounds. Four to six settle one or two faults; more faults than that
/// meet good nodes one at a time, and beyond this bound the rest is undecided.
const MAX_MEETINGS: usize = 12;

pub use crate::seen::Pair;

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
    /// Nodes that missed with several good partners, these, but not often enough, or not known to miss with those next to them: what lies
    /// between them and the others may be slow.
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

/// How many numbers the checks of pairs have, and how often they come and go by themselves.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Odds {
    numbers: usize,
    share: f64,
}

impl Odds {
    fn of(
        (looks, seen): (&[View<'_>], &Tally<'_>),
        good: &BTreeSet<NodeId>,
        channels: usize,
        switches: &Switches<'_>,
    ) -> Self {
        let scattering = |look: &View<'_>| look.evidence.iter().filter(|one| scatters(one)).count();
        let numbers: usize = looks.iter().map(scattering).sum();
        // A pair that missed though both of its nodes are fine with others met a slow moment, or is a bad link: then it misses each
        // time, and says nothing of what comes and goes.
        let stays =
            |a, b| seen.between(a, b).is_some_and(|seen| seen.fine == 0 && seen.miss >= LOOKS_AT_A_LINK);
        let both_good = |look: &&View<'_>| match *look.group {
            [a, b] => {
                let good = good.contains(&a) && good.contains(&b);
                good && !stays(a, b) && !switches.may_explain(ordered(a, b))
            }
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

    /// Whether so many misses of one pair that is looked at for a reason, not picked out of all, are more than chance.
    pub(crate) fn of_one(self, seen: &Seen<'_>, misses: usize) -> bool {
        Self { numbers: 1, ..self }.exclude(&seen.always, misses)
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
    /// What measures.
    pub engine: Engine,
}

/// Puts the looks of a pair check together, of one channel.
#[must_use]
pub fn pairs(
    looks: &[View<'_>],
    Setting { nodes, leaves, opening, channels, engine }: Setting<'_>,
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
    let good = state.good.clone();
    let near = |node: NodeId| next_to(node, nodes, &good, &switches);
    let Accused { suspected, enough, mut unsure_of } = accuse(&mut state, &missed, near, (&seen, odds));
    for (pair, seen_of) in &seen.pairs {
        let sound = is_sound(*pair, &seen, &state.good);
        if sound && seen_of.settled_as_link(odds) {
            state.links.insert(*pair);
        } else if seen_of.miss > 0 && seen_of.fine > 0 {
            state.flaky.insert(*pair);
        }
    }
    unsure_of.extend(blame_where_links_meet(&mut state, nodes, near, (&seen, odds)));
    // What a leaf at fault explains is not open, unless a node below it has missed with another one there.
    let left = |node: &NodeId| !switches.is_struck(*node) || missed.contains(node);
    let open: BTreeSet<NodeId> = nodes
        .iter()
        .filter(|node| !state.good.contains(node) && !state.bad.contains_key(node) && left(node))
        .copied()
        .collect();
    let rounds: BTreeSet<u32> = looks.iter().map(|look| look.round).collect();
    if rounds.len() < opening + MAX_MEETINGS {
        let known = Known {
            nodes,
            seen: &seen,
            open: &open,
            suspected: &suspected,
            enough: &enough,
            unsure: &unsure_of,
            odds,
            switches: &switches,
        };
        state.next = meetings(&state, known);
        state.purpose = (!state.next.is_empty()).then(|| purpose(&state.next, &seen));
    }
    state.suspects = open.intersection(&missed).copied().collect();
    let alone = |node: &NodeId, _: &mut Vec<NodeId>| switches.is_alone(*node);
    state.alone = state.bad.extract_if(.., alone).collect();
    state
}

/// What is open of the nodes that missed with several good partners.
#[derive(Default)]
struct Accused {
    /// Those that can be the reason for what they missed.
    suspected: BTreeSet<NodeId>,
    /// Those that have met so many others that those next to them tell more.
    enough: BTreeSet<NodeId>,
    /// With whom they must meet before they are blamed.
    unsure_of: BTreeMap<NodeId, Vec<Vec<NodeId>>>,
}

/// Blames those of whom enough is known.
fn accuse(
    state: &mut PairState,
    missed: &BTreeSet<NodeId>,
    near: impl Fn(NodeId) -> Vec<BTreeSet<NodeId>>,
    (seen, odds): (&Tally<'_>, Odds),
) -> Accused {
    let mut accused = Accused::default();
    for node in missed.difference(&state.good.clone()) {
        let partners: Vec<NodeId> =
            seen.partners(*node, |seen| seen.miss > 0).filter(|other| state.good.contains(other)).collect();
        if partners.len() < PARTNERS_TO_BLAME {
            continue;
        }
        let against = Against::of(seen, *node, &partners, odds);
        let open = unsure(*node, &near(*node), &partners, (seen, odds));
        if against.certain || (against.enough && open.is_empty()) {
            state.bad.insert(*node, against.partners);
            continue;
        }
        if against.partners.len() >= PARTNERS_TO_BLAME {
            accused.suspected.insert(*node);
            state.unsure.insert(*node, against.partners.clone());
        }
        if against.enough || against.partners.len() >= PARTNERS_TO_TRY {
            accused.enough.insert(*node);
        }
        if !open.is_empty() {
            accused.unsure_of.insert(*node, open);
        }
    }
    accused
}

/// What speaks against a node that missed with several good partners.
struct Against {
    /// Those that it can be the reason for.
    partners: Vec<NodeId>,
    /// Whether those are more than chance.
    enough: bool,
    /// Whether they are wrong results or closed ports.
    certain: bool,
}

impl Against {
    fn of(seen: &Tally<'_>, node: NodeId, partners: &[NodeId], odds: Odds) -> Self {
        let missed = |other: &NodeId| {
            let own = seen.may_cause(node, *other, |_| true);
            (!own.is_empty()).then(|| (seen.misses(node, *other), own))
        };
        let mut against: Vec<(NodeId, usize, Missed)> = partners
            .iter()
            .filter_map(|other| missed(other).map(|(misses, own)| (*other, misses, own)))
            .collect();
        let partners = against.iter().map(|(other, ..)| *other).collect();
        // Those seen most often first; of several as often as with the one with whom it was seen least: a bad link to one, looked
        // at again and again, and a slow moment with another are no bad node.
        against.sort_by_key(|(_, misses, _)| std::cmp::Reverse(*misses));
        let (mut enough, mut certain) = (false, false);
        let mut common: Option<Missed> = None;
        for (count, (_, misses, own)) in (1..).zip(&against) {
            let both = common.map_or_else(|| own.clone(), |kept| in_both(&kept, own));
            if count >= PARTNERS_TO_BLAME && odds.exclude(&both, count * misses) {
                enough = true;
                certain |= both.values().any(|weight| *weight == Weight::Certain);
            }
            common = Some(both);
        }
        Self { partners, enough, certain }
    }
}

impl Seen<'_> {
    /// Whether a pair whose nodes are both fine with others missed too often for chance, and never did anything else.
    fn settled_as_link(&self, odds: Odds) -> bool {
        self.fine == 0 && self.miss >= LOOKS_AT_A_LINK && odds.exclude(&self.always, self.miss)
    }
}

/// Whether neither node of a pair can be the reason for what it misses: each is fine with somebody, or does far better.
fn is_sound(pair: Pair, seen: &Tally<'_>, good: &BTreeSet<NodeId>) -> bool {
    let sound =
        |node: NodeId, other: NodeId| good.contains(&node) || seen.does_far_better(node, other, |_| true);
    sound(pair.0, pair.1) && sound(pair.1, pair.0)
}

/// Bad links that share a node that has turned are one bad node. Gives whom others must meet before it is known.
fn blame_where_links_meet(
    state: &mut PairState,
    nodes: &BTreeSet<NodeId>,
    near: impl Fn(NodeId) -> Vec<BTreeSet<NodeId>>,
    (seen, odds): (&Tally<'_>, Odds),
) -> BTreeMap<NodeId, Vec<Vec<NodeId>>> {
    let mut open = BTreeMap::new();
    let mut turned: BTreeMap<NodeId, Vec<NodeId>> = BTreeMap::new();
    for (node, others) in where_links_meet(&state.links) {
        match Turn::of((node, &others), nodes, &near(node), (seen, odds)) {
            Turn::Turned => _ = turned.insert(node, others),
            Turn::Fine => {}
            Turn::Open(ask) => _ = open.insert(node, ask.into_iter().map(|one| vec![one]).collect()),
        }
    }
    state.links.retain(|(a, b)| !turned.contains_key(a) && !turned.contains_key(b));
    for (node, others) in turned {
        state.good.remove(&node);
        state.bad.insert(node, others);
    }
    open
}

fn nodes_where(seen: &Tally<'_>, holds: impl Fn(&Seen<'_>) -> bool) -> BTreeSet<NodeId> {
    seen.pairs.iter().filter(|(_, seen)| holds(seen)).flat_map(|(&(a, b), _)| [a, b]).collect()
}

/// What the next meetings depend on.
#[derive(Clone, Copy)]
struct Known<'k> {
    nodes: &'k BTreeSet<NodeId>,
    seen: &'k Tally<'k>,
    /// Nodes that are neither known to be fine nor at fault.
    open: &'k BTreeSet<NodeId>,
    /// Those of them that missed with partners enough, but not yet often enough.
    suspected: &'k BTreeSet<NodeId>,
    /// Nodes that have met so many others that those next to them tell more.
    enough: &'k BTreeSet<NodeId>,
    /// With whom a node must meet before it is blamed, the best choice first, one of each.
    unsure: &'k BTreeMap<NodeId, Vec<Vec<NodeId>>>,
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
    let hopeless = state.good.is_empty() && fresh <= 1 && !seen.pairs.is_empty() && nodes.len() > 2;
    if !hopeless {
        for &node in open.iter().chain(known.unsure.keys().filter(|node| !open.contains(node))) {
            if busy.contains(&node) || !nodes.contains(&node) {
                continue;
            }
            let able = |other: &&NodeId| nodes.contains(*other) && !busy.contains(*other);
            let asked = || {
                let sets = known.unsure.get(&node).into_iter().flatten();
                sets.filter_map(|set| set.iter().find(able)).next().copied()
            };
            let usual = || open.contains(&node).then(|| partner(node, state, known, &busy)).flatten();
            // Those that it has not met yet may show that it is fine, and come first.
            let partner =
                if known.enough.contains(&node) { asked().or_else(usual) } else { usual().or_else(asked) };
            if let Some(partner) = partner {
                busy.extend([node, partner]);
                next.push(ordered(node, partner));
            }
        }
    }
    let met = |pair: Pair| seen.pairs.contains_key(&pair);
    next.extend(known.switches.meetings(&state.good, met, &mut busy));
    let again = seen.pairs.iter().filter(|(pair, look)| {
        let (a, b) = pair;
        let settled = |node: &NodeId| state.bad.contains_key(node);
        let able = nodes.contains(a) && nodes.contains(b) && !settled(a) && !settled(b);
        // A miss that nothing explains is seen once more, even if it tells nobody's fault.
        let once = look.miss < LOOKS_AT_A_LINK && !state.good.is_empty();
        let open = look.fine == 0 && look.miss > 0 && !look.settled_as_link(known.odds);
        open && able && (once || nodes.len() == 2 || is_sound(**pair, seen, &state.good))
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
    if suspected.contains(&node) {
        let looks = |other: &NodeId| seen.misses(node, *other);
        return good().filter(free).min_by_key(looks);
    }
    beside(open, node, true).find(|other| free(other) && new(other) && switches.may_meet(node, *other))
}

fn purpose(next: &[Pair], seen: &Tally<'_>) -> Purpose {
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
