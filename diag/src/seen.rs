//! What was seen of the pairs of a check: how often each was fine and how often it missed, what missed each time, and which of
//! it one of its nodes can be the reason for.
//!
//! A slow part is a bound: whatever goes through it is as slow as it is, and no slower. So a node that showed 0.145 GB/s with one
//! partner is not the reason for 0.002 with another, and misses of quite different size do not add up to one fault.

use std::collections::BTreeMap;

use crate::baseline::OutlierRule;
use crate::chance::Weight;
use crate::facts::{Engine, NodeId};
use crate::look::{Evidence, Shows, View};
use crate::measurement::Metric;

/// A pair of nodes, lower first.
pub type Pair = (NodeId, NodeId);

/// A quantity and a size of messages.
pub(crate) type Quantity = (Metric, Option<u64>);

/// What misses of different looks confirm each other by. Each with what the least of its misses is worth.
pub(crate) type Missed = BTreeMap<Quantity, Weight>;

/// By how many times times and shares differ at least before they are of quite different size: on a healthy network they
/// scatter by more than rates do (see [`OutlierRule::limit`]), so that only another order of magnitude counts.
const TIMES_APART: f64 = 10.0;

/// Below this share of its limit a rate is that of something that no longer works, and so is a time beyond its limit by as much:
/// how little came through says nothing then, 0.003 GB/s with one partner is no better than 0.0 with others.
const NO_LONGER_WORKS: f64 = 0.02;

/// What was seen of all pairs.
pub(crate) struct Tally<'v> {
    pub(crate) pairs: BTreeMap<Pair, Seen<'v>>,
    rule: OutlierRule,
    /// The least strict limit that each quantity was held against.
    limits: BTreeMap<Quantity, f64>,
}

/// What was seen of one pair, all rounds together.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen<'v> {
    pub(crate) fine: u32,
    pub(crate) miss: usize,
    /// What missed in every look that missed.
    pub(crate) always: Missed,
    views: Vec<&'v View<'v>>,
}

impl<'v> Tally<'v> {
    /// Puts looks together by pair.
    pub(crate) fn of(looks: &'v [View<'v>], engine: Engine) -> Self {
        let mut pairs: BTreeMap<Pair, Seen<'v>> = BTreeMap::new();
        let mut limits: BTreeMap<Quantity, f64> = BTreeMap::new();
        for one in looks.iter().flat_map(|look| &look.evidence) {
            let Some(limit) = &one.limit else { continue };
            let least = limits.entry((one.metric, one.bytes)).or_insert(limit.value);
            *least = worse_of(one.metric, *least, limit.value);
        }
        for look in looks {
            let &[a, b] = look.group else { continue };
            let entry = pairs.entry(ordered(a, b)).or_default();
            match look.shows {
                Shows::Fine => entry.fine += 1,
                Shows::Miss => {
                    let missed = missed_by(look, &limits);
                    entry.always = if entry.miss == 0 { missed } else { in_both(&entry.always, &missed) };
                    entry.miss += 1;
                }
                Shows::Nothing => continue,
            }
            entry.views.push(look);
        }
        Self { pairs, rule: OutlierRule::of(engine), limits }
    }

    /// What was seen of two nodes with each other.
    pub(crate) fn between(&self, a: NodeId, b: NodeId) -> Option<&Seen<'v>> {
        self.pairs.get(&ordered(a, b))
    }

    /// How often two nodes missed with each other.
    pub(crate) fn misses(&self, a: NodeId, b: NodeId) -> usize {
        self.between(a, b).map_or(0, |seen| seen.miss)
    }

    /// By how many times two numbers must differ to be of quite different size, and so not of one cause: a healthy number may be
    /// as far from the usual one as [`OutlierRule::share`] says before it is a miss, and so may each of two that one slow part
    /// explains be from what that part can do. For GPUs that is 1.23, of small messages 2.04, for processors that nodes share 4 (as
    /// measured on such nodes, 0.59 to 1.26 GB/s).
    fn apart(&self, (metric, bytes): Quantity) -> f64 {
        if metric.is_rate() { self.rule.at(bytes).share.powi(-2) } else { TIMES_APART }
    }

    /// Whether a value is worse than another by so much that one cause does not do both. What no longer works is of one size.
    pub(crate) fn far_beyond(&self, quantity: Quantity, value: f64, shown: f64) -> bool {
        let bound = |value: f64| match self.limits.get(&quantity) {
            Some(limit) if quantity.0.higher_is_better() => value.max(limit * NO_LONGER_WORKS),
            Some(limit) => value.min(limit / NO_LONGER_WORKS),
            None => value,
        };
        beyond(quantity.0, bound(value), bound(shown), self.apart(quantity))
    }

    /// Those that a node has met, of whom it holds.
    pub(crate) fn partners<'a>(
        &'a self,
        node: NodeId,
        holds: impl Fn(&Seen<'_>) -> bool + 'a,
    ) -> impl Iterator<Item = NodeId> + 'a {
        self.pairs.iter().filter(move |(_, seen)| holds(seen)).filter_map(move |(&(a, b), _)| match node {
            n if n == a => Some(b),
            n if n == b => Some(a),
            _ => None,
        })
    }

    /// Whether a node was fine with somebody in a round or later.
    pub(crate) fn is_fine_since(&self, node: NodeId, round: u32) -> bool {
        self.last_fine(node).any(|(_, last)| last >= round)
    }

    /// With whom a node was fine, and when the last time.
    pub(crate) fn last_fine(&self, node: NodeId) -> impl Iterator<Item = (NodeId, u32)> + '_ {
        let last = move |other: NodeId| Some((other, self.between(node, other)?.rounds(Shows::Fine).max()?));
        self.partners(node, |seen| seen.fine > 0).filter_map(last)
    }

    /// What of a pair's misses one of its nodes can be the reason for: all but what it did far better each time with somebody that
    /// `counts`. A wrong result or a closed port has no size.
    pub(crate) fn may_cause(&self, node: NodeId, other: NodeId, counts: impl Fn(NodeId) -> bool) -> Missed {
        let Some(missing) = self.between(node, other) else { return Missed::new() };
        let others: Vec<&Seen<'_>> = self
            .partners(node, |_| true)
            .filter(|other| counts(*other))
            .filter_map(|other| self.between(node, other))
            .collect();
        let far_better = |quantity: Quantity, value: f64| {
            let shown = others.iter().filter_map(|other| other.least(quantity));
            shown.into_iter().any(|shown| self.far_beyond(quantity, value, shown))
        };
        let mut own = missing.always.clone();
        own.retain(|quantity, weight| {
            *weight == Weight::Certain
                || !missing.best(*quantity).is_some_and(|value| far_better(*quantity, value))
        });
        own
    }

    /// Whether a node can't be the reason for anything that it always misses with another, since it does far better elsewhere.
    pub(crate) fn does_far_better(
        &self,
        node: NodeId,
        other: NodeId,
        counts: impl Fn(NodeId) -> bool,
    ) -> bool {
        self.between(node, other).is_some_and(|seen| !seen.always.is_empty())
            && self.may_cause(node, other, counts).is_empty()
    }

    /// Whether looks that a node missed with one partner, those after a round, are of one size with what it always misses with
    /// others: a part that is slow with these is as slow with that one.
    pub(crate) fn of_one_size(&self, one: &Seen<'_>, after: Option<u32>, others: &[&Seen<'_>]) -> bool {
        sizes(one, after, others)
            .into_iter()
            .any(|(quantity, shown, missed)| !self.far_beyond(quantity, missed, shown))
    }

    /// The same, and no worse by as much: what is far worse with one partner is that partner's, or lies between the two. How much is
    /// left of what hardly works counts here.
    pub(crate) fn of_its_size(&self, one: &Seen<'_>, others: &[&Seen<'_>]) -> bool {
        sizes(one, None, others).into_iter().any(|(quantity, shown, missed)| {
            let worse = beyond(quantity.0, shown, missed, self.apart(quantity));
            !worse && !self.far_beyond(quantity, missed, shown)
        })
    }
}

/// The best that one pair showed, after a round, of what others always miss, and the best of those.
fn sizes(one: &Seen<'_>, after: Option<u32>, others: &[&Seen<'_>]) -> Vec<(Quantity, f64, f64)> {
    let mut common: Option<Missed> = None;
    for other in others {
        common = Some(common.map_or_else(|| other.always.clone(), |kept| in_both(&kept, &other.always)));
    }
    let both = |quantity: Quantity| {
        let best = |values: &mut dyn Iterator<Item = f64>| {
            values.reduce(|one, other| better_of(quantity.0, one, other))
        };
        let shown = best(&mut one.values_after(after, quantity))?;
        let missed = best(&mut others.iter().filter_map(|other| other.best(quantity)))?;
        Some((quantity, shown, missed))
    };
    common.unwrap_or_default().into_keys().filter_map(both).collect()
}

impl Seen<'_> {
    /// What each look showed of a quantity; of several numbers in one look the worst.
    fn values(&self, quantity: Quantity) -> impl Iterator<Item = f64> {
        self.values_after(None, quantity)
    }

    fn values_after(&self, round: Option<u32>, quantity: Quantity) -> impl Iterator<Item = f64> {
        let after = move |view: &&&View<'_>| round.is_none_or(|round| view.round > round);
        self.views.iter().filter(after).filter_map(move |view| shown(view, quantity))
    }

    /// The best that its looks showed of a quantity.
    pub(crate) fn best(&self, quantity: Quantity) -> Option<f64> {
        self.values(quantity).reduce(|one, other| better_of(quantity.0, one, other))
    }

    /// What all its looks showed of a quantity, and some more.
    pub(crate) fn least(&self, quantity: Quantity) -> Option<f64> {
        self.values(quantity).reduce(|one, other| worse_of(quantity.0, one, other))
    }

    /// The rounds of the looks that missed.
    pub(crate) fn missed_in(&self) -> impl Iterator<Item = u32> {
        self.rounds(Shows::Miss)
    }

    /// The rounds of the looks that showed this.
    fn rounds(&self, shows: Shows) -> impl Iterator<Item = u32> {
        self.views.iter().filter(move |view| view.shows == shows).map(|view| view.round)
    }

    /// The rounds of the looks that were fine, and better by `times` than the best of what `others` always missed.
    pub(crate) fn fine_in(&self, times: f64, others: &[&Seen<'_>]) -> impl Iterator<Item = u32> {
        let better = move |view: &&&View<'_>| {
            others.iter().all(|missing| {
                missing.always.keys().all(|quantity| {
                    let both = shown(view, *quantity).zip(missing.best(*quantity));
                    both.is_none_or(|(shown, missed)| beyond(quantity.0, missed, shown, times))
                })
            })
        };
        self.views.iter().filter(|view| view.shows == Shows::Fine).filter(better).map(|view| view.round)
    }
}

/// What a look missed. One that gave out belongs to no size, and misses all sizes that its like are measured at.
fn missed_by(look: &View<'_>, limits: &BTreeMap<Quantity, f64>) -> Missed {
    let mut missed = Missed::new();
    for one in look.misses() {
        let sizes = limits.keys().filter(|(metric, bytes)| *metric == one.metric && bytes.is_some());
        let all: Vec<Quantity> = if gave_out(one) { sizes.copied().collect() } else { Vec::new() };
        let own = if all.is_empty() { vec![(one.metric, one.bytes)] } else { all };
        for quantity in own {
            let weight = missed.entry(quantity).or_insert(Weight::of(one));
            *weight = (*weight).max(Weight::of(one));
        }
    }
    missed
}

/// Whether nothing came through, at no size in particular.
fn gave_out(one: &Evidence) -> bool {
    one.miss && one.metric.is_rate() && one.bytes.is_none() && one.value == 0.0
}

/// What a look showed of a quantity.
fn shown(view: &View<'_>, (metric, bytes): Quantity) -> Option<f64> {
    let same =
        view.evidence.iter().filter(|one| one.metric == metric && (one.bytes == bytes || gave_out(one)));
    same.map(|one| one.value).reduce(|one, other| worse_of(metric, one, other))
}

fn worse_of(metric: Metric, one: f64, other: f64) -> f64 {
    if metric.higher_is_better() { one.min(other) } else { one.max(other) }
}

pub(crate) fn better_of(metric: Metric, one: f64, other: f64) -> f64 {
    if metric.higher_is_better() { one.max(other) } else { one.min(other) }
}

/// Whether a value is worse than another by so many times.
fn beyond(metric: Metric, value: f64, shown: f64, times: f64) -> bool {
    if metric.higher_is_better() { value * times < shown } else { value > shown * times }
}

/// What missed in both, worth what it is worth in the lesser of the two.
pub(crate) fn in_both(one: &Missed, other: &Missed) -> Missed {
    let both = one.iter().filter_map(|(number, weight)| Some((*number, *weight.min(other.get(number)?))));
    both.collect()
}

pub(crate) fn ordered(a: NodeId, b: NodeId) -> Pair {
    (a.min(b), a.max(b))
}
