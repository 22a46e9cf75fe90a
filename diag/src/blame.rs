//! Who is to blame for what pairs missed, and of whom that can't be said yet: nodes, and links.
//!
//! A node is at fault when it missed with partners that are each fine with somebody, two at least and a third where there is one,
//! the same number so often with each of them that it is no chance ([`crate::chance`]), with those next to it as well
//! ([`crate::doubt`]), and with every other node that is accused: two that are slow with all others may be below one leaf. Misses
//! of quite different size are not counted together ([`crate::seen`]). A link is at fault when its two nodes are each fine with
//! others and miss with each other as often, and at least twice.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::chance::Weight;
use crate::doubt::{Doubt, Turn, next_to, of_near, where_links_meet};
use crate::facts::NodeId;
use crate::localise::{Basis, PairState};
use crate::odds::{LOOKS_AT_A_LINK, Odds};
use crate::seen::{Missed, Pair, Quantity, Seen, Tally, ordered};

/// Partners that are fine with somebody and with which a node must have missed before it is at fault.
pub(crate) const PARTNERS_TO_BLAME: usize = 2;

/// Partners that a node meets before it is blamed, as long as there are new ones: with two of them it may have two bad ways. Before
/// it meets those next to it again too: any of them may show that it is fine.
const PARTNERS_TO_TRY: usize = 3;

/// Partners that are fine with each other, with none of which a node is fine, however much it differs by partner what it does: it is
/// under suspicion then, not the ways to them.
const PARTNERS_TO_SUSPECT: usize = 3;

/// Other accused nodes that one meets before it is blamed: as many as the built-in cap lets one verdict drain
/// (`max_drain_nodes`). Where there are more, so many have one cause, and nobody is drained for it.
const ACCUSED_TO_MEET: usize = 4;

/// Up to so many accused nodes each pair of them must miss more often than by chance; of more there is no time for it, and once is
/// enough.
const FEW_ACCUSED: usize = 3;

/// What is open of the nodes that missed with several good partners.
#[derive(Default)]
pub(crate) struct Accused {
    /// Those that can be the reason for what they missed.
    pub(crate) suspected: BTreeSet<NodeId>,
    /// Those that have met so many others that those next to them tell more.
    pub(crate) enough: BTreeSet<NodeId>,
    /// With whom they must meet before they are blamed.
    pub(crate) unsure_of: BTreeMap<NodeId, Vec<Vec<NodeId>>>,
    /// Those that are fine with nobody, though those that they met are with each other: their misses are no bad links.
    pub(crate) fine_with_nobody: BTreeSet<NodeId>,
    /// Good nodes of which it would tell more whether they are fine with each other, or still are.
    pub(crate) between_good: BTreeSet<Pair>,
    /// Those of them without which nothing more is known: they come first.
    pub(crate) due: BTreeSet<Pair>,
}

/// Blames those of whom enough is known.
pub(crate) fn accuse(state: &mut PairState, missed: &BTreeSet<NodeId>, basis: Basis<'_>) -> Accused {
    let good = state.good.clone();
    let charge = |node: &NodeId| Some((*node, Charge::of(*node, &good, basis)?));
    let charges: BTreeMap<NodeId, Charge> = missed.difference(&good).filter_map(charge).collect();
    let suspected: BTreeSet<NodeId> =
        charges.iter().filter(|(_, charge)| charge.is_open()).map(|(node, _)| *node).collect();
    let groups = Groups::of(basis.seen);
    let mut accused = Accused::default();
    for (node, charge) in charges {
        let Charge { partners, against, doubt: Doubt { mut open, controls, due }, tried, known } = charge;
        if against.enough && tried && !known && open.is_empty() {
            open.extend(strangers(node, (&suspected, &good), basis));
        }
        if against.certain || (against.enough && (known || (tried && open.is_empty()))) {
            if !against.certain {
                state.sure.insert(node);
            }
            state.bad.insert(node, against.partners);
            continue;
        }
        let several = against.partners.len() >= PARTNERS_TO_BLAME;
        if several {
            accused.suspected.insert(node);
            state.unsure.insert(node, against.partners);
        }
        let together = groups.among(&partners);
        let most = together.first().cloned().unwrap_or_default();
        if most.len() >= PARTNERS_TO_SUSPECT {
            accused.fine_with_nobody.insert(node);
            state.unsure.entry(node).or_insert(most);
        } else if !several && partners.len() >= PARTNERS_TO_SUSPECT {
            accused.between_good.extend(introduced(&together, basis));
        }
        if tried && (against.enough || partners.len() >= PARTNERS_TO_TRY) {
            accused.enough.insert(node);
        }
        accused.between_good.extend(controls);
        accused.due.extend(due);
        if !open.is_empty() {
            accused.unsure_of.insert(node, open);
        }
    }
    accused
}

/// What is held against a node that missed with several good partners.
struct Charge {
    partners: Vec<NodeId>,
    against: Against,
    /// What must be seen with those next to it before it is blamed.
    doubt: Doubt,
    /// Whether it has met partners enough, or all that there are.
    tried: bool,
    /// Whether an earlier check of the same kind knows that it is at fault, with all that takes.
    known: bool,
}

impl Charge {
    fn of(node: NodeId, good: &BTreeSet<NodeId>, basis: Basis<'_>) -> Option<Self> {
        let Basis { nodes, seen, odds, switches, at_fault } = basis;
        let partners: Vec<NodeId> =
            seen.partners(node, |seen| seen.miss > 0).filter(|other| good.contains(other)).collect();
        if partners.len() < PARTNERS_TO_BLAME {
            return None;
        }
        let known = at_fault.contains(&node);
        let odds_of_it = if known { odds.of_one() } else { odds };
        let against = Against::of(seen, node, &partners, odds_of_it);
        let near = next_to(node, nodes, good, switches);
        let doubt = of_near(node, &near, (&partners, good, nodes), (seen, odds));
        let new = |other: &&NodeId| {
            seen.between(node, **other).is_none()
                && nodes.contains(*other)
                && switches.may_meet(node, **other)
        };
        let tried = partners.len() >= PARTNERS_TO_TRY || !good.iter().any(|other| new(&other));
        Some(Self { partners, against, doubt, tried, known })
    }

    /// Whether numbers that scatter may blame it.
    fn is_open(&self) -> bool {
        self.against.partners.len() >= PARTNERS_TO_BLAME && !self.against.certain
    }
}

/// Other nodes that one must meet before it is blamed, by set: those that are accused too, and good ones that are slow with several
/// good ones. Two below one leaf that stand apart in the job are slow with everybody beyond a slow way, and fine with each other.
/// Where the leaves are known, those below its own one tell.
fn strangers(
    node: NodeId,
    (suspected, good): (&BTreeSet<NodeId>, &BTreeSet<NodeId>),
    Basis { nodes, seen, odds, switches, .. }: Basis<'_>,
) -> Vec<Vec<NodeId>> {
    if switches.mates(node).is_some() {
        return Vec::new();
    }
    let slow_with = |one: &NodeId| {
        let missed = seen.partners(*one, |seen| seen.fine == 0 && seen.miss > 0);
        missed.filter(|other| good.contains(other)).count()
    };
    let slow: BTreeSet<NodeId> =
        good.iter().copied().filter(|one| slow_with(one) >= PARTNERS_TO_BLAME).collect();
    let open = |among: &BTreeSet<NodeId>, most: usize| {
        let others: Vec<NodeId> =
            among.iter().copied().filter(|other| *other != node && nodes.contains(other)).collect();
        let met = |other: &NodeId| {
            let few = others.len() < FEW_ACCUSED;
            seen.between(node, *other).is_some_and(|seen| !few || odds.exclude_of_one(seen, seen.miss))
        };
        let (met, mut open): (Vec<NodeId>, Vec<NodeId>) = others.iter().copied().partition(met);
        open.sort_by_key(|other| (Reverse(seen.misses(node, *other)), *other));
        (!open.is_empty() && met.len() < most).then_some(open)
    };
    open(suspected, ACCUSED_TO_MEET).into_iter().chain(open(&slow, nodes.len())).collect()
}

/// Who is fine with whom, if need be by way of others.
struct Groups(BTreeMap<NodeId, NodeId>);

impl Groups {
    fn of(seen: &Tally<'_>) -> Self {
        let mut groups = Self(BTreeMap::new());
        for (&(a, b), _) in seen.pairs.iter().filter(|(_, seen)| seen.fine > 0) {
            let (a, b) = (groups.first(a), groups.first(b));
            if a != b {
                groups.0.insert(a.max(b), a.min(b));
            }
        }
        groups
    }

    /// The first node of a node's group.
    fn first(&self, mut node: NodeId) -> NodeId {
        while let Some(lower) = self.0.get(&node) {
            node = *lower;
        }
        node
    }

    /// These nodes by group, the largest group first.
    fn among(&self, nodes: &[NodeId]) -> Vec<Vec<NodeId>> {
        let mut groups: BTreeMap<NodeId, Vec<NodeId>> = BTreeMap::new();
        for node in nodes {
            groups.entry(self.first(*node)).or_default().push(*node);
        }
        let mut groups: Vec<Vec<NodeId>> = groups.into_values().collect();
        groups.sort_by_key(|group| Reverse(group.len()));
        groups
    }
}

/// One of the largest group with one of each other, where none of them has met: whether they are fine with each other.
fn introduced(groups: &[Vec<NodeId>], Basis { nodes, seen, .. }: Basis<'_>) -> Vec<Pair> {
    let Some((largest, others)) = groups.split_first() else { return Vec::new() };
    let mut free: Vec<NodeId> = largest.iter().copied().filter(|node| nodes.contains(node)).collect();
    let mut pairs = Vec::new();
    for group in others {
        let met = |node: &NodeId| group.iter().any(|other| seen.between(*node, *other).is_some());
        if largest.iter().any(met) {
            continue;
        }
        if let (Some(one), Some(other)) = (free.pop(), group.iter().find(|node| nodes.contains(*node))) {
            pairs.push(ordered(one, *other));
        }
    }
    pairs
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
        let own: BTreeMap<NodeId, Missed> = partners
            .iter()
            .map(|other| (*other, seen.may_cause(node, *other, |_| true)))
            .filter(|(_, own)| !own.is_empty())
            .collect();
        let quantities: BTreeSet<Quantity> = own.values().flat_map(Missed::keys).copied().collect();
        let (mut enough, mut certain) = (false, false);
        for quantity in quantities {
            let mut missed: Vec<(usize, Weight)> = own
                .iter()
                .filter_map(|(other, own)| Some((seen.misses(node, *other), *own.get(&quantity)?)))
                .collect();
            // Those seen most often first; of several as often as with the one with whom it was seen least: a bad link to one, looked
            // at again and again, and a slow moment with another are no bad node.
            missed.sort_by_key(|one| Reverse(*one));
            let mut least = Weight::Certain;
            for (count, (misses, weight)) in (1..).zip(missed) {
                least = least.min(weight);
                if count >= PARTNERS_TO_BLAME && odds.exclude(least, count * misses) {
                    enough = true;
                    certain |= least == Weight::Certain;
                }
            }
        }
        Self { partners: own.into_keys().collect(), enough, certain }
    }
}

impl Seen<'_> {
    /// Whether a pair whose nodes are both fine with others missed too often for chance, and never did anything else.
    pub(crate) fn settled_as_link(&self, odds: Odds) -> bool {
        self.fine == 0 && self.miss >= LOOKS_AT_A_LINK && odds.exclude_any(&self.always, self.miss)
    }
}

/// Whether neither node of a pair can be the reason for what it misses: each is fine with somebody, or does far better.
pub(crate) fn is_sound(pair: Pair, seen: &Tally<'_>, good: &BTreeSet<NodeId>) -> bool {
    let sound =
        |node: NodeId, other: NodeId| good.contains(&node) || seen.does_far_better(node, other, |_| true);
    sound(pair.0, pair.1) && sound(pair.1, pair.0)
}

/// Tells bad links, and pairs that came and went.
pub(crate) fn blame_links(state: &mut PairState, accused: &Accused, Basis { seen, odds, .. }: Basis<'_>) {
    for (&(a, b), seen_of) in &seen.pairs {
        let of_a_node = [a, b].iter().any(|node| accused.fine_with_nobody.contains(node));
        if !of_a_node && is_sound((a, b), seen, &state.good) && seen_of.settled_as_link(odds) {
            state.links.insert((a, b));
        } else if seen_of.miss > 0 && seen_of.fine > 0 {
            state.flaky.insert((a, b));
        }
    }
}

/// Bad links that share a node that has turned are one bad node, once it has met some others again.
pub(crate) fn blame_where_links_meet(
    state: &mut PairState,
    accused: &mut Accused,
    Basis { nodes, seen, odds, switches, .. }: Basis<'_>,
) {
    let mut turned: BTreeMap<NodeId, Vec<NodeId>> = BTreeMap::new();
    for (node, others) in where_links_meet(&state.links) {
        let near = next_to(node, nodes, &state.good, switches);
        match Turn::of((node, &others), nodes, &near, (seen, odds)) {
            Turn::Turned => _ = turned.insert(node, others),
            Turn::Fine => {}
            Turn::Open(ask, controls) => {
                let asked = if ask.is_empty() { &mut accused.due } else { &mut accused.between_good };
                asked.extend(controls);
                accused.unsure_of.insert(node, ask.into_iter().map(|one| vec![one]).collect());
            }
        }
    }
    state.links.retain(|(a, b)| !turned.contains_key(a) && !turned.contains_key(b));
    for (node, others) in turned {
        state.good.remove(&node);
        state.bad.insert(node, others);
    }
}
