//! What the numbers of a check are held against: the baseline files, and like numbers of the same job.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::baseline::{LEAVE_OUT_MAX, OutlierRule, median, others};
use crate::check::CheckName;
use crate::facts::{Engine, NodeId};
use crate::gpu_facts::FactKind;
use crate::judge::{Hardware, Suite, worse};
use crate::look::Evidence;
use crate::measurement::{Measurement, Metric, Subject};
use crate::verdict::Limit;
use crate::votes::Votes;

/// What any way between two GPUs carries.
const LEAST_GB_PER_S: f64 = 0.001;

/// Of each node the number of its kind: numbers of nodes of different kinds are not compared.
pub(crate) struct Kinds(Vec<Option<usize>>);

impl Kinds {
    pub(crate) fn of(hardware: &Hardware) -> Self {
        let kinds: BTreeSet<&(String, usize)> = hardware.kinds.values().collect();
        let numbered: BTreeMap<&(String, usize), usize> = kinds.into_iter().zip(0..).collect();
        let nodes = hardware.kinds.keys().next_back().map_or(0, |last| *last as usize + 1);
        let mut of = vec![None; nodes];
        for (node, kind) in &hardware.kinds {
            of[*node as usize] = numbered.get(kind).copied();
        }
        Self(of)
    }

    fn get(&self, node: NodeId) -> Option<usize> {
        self.0.get(node as usize).copied().flatten()
    }

    fn like(&self, one: &Measurement) -> Like {
        let kinds = one.subject.ends().and_then(|(a, b)| {
            let (a, b) = (self.get(a), self.get(b));
            let (a, b) = (a.or(b)?, b.or(a)?);
            Some((a.min(b), a.max(b)))
        });
        Like { metric: one.metric, bytes: one.bytes, kinds, pair: is_of_pair(&one.subject) }
    }
}

fn is_of_pair(subject: &Subject) -> bool {
    matches!(subject, Subject::Pair { .. } | Subject::PairRail { .. })
}

/// What a number may be compared with: the same quantity, of messages of the same size, on nodes of the same kinds, the
/// lower kind first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Like {
    metric: Metric,
    bytes: Option<u64>,
    kinds: Option<(usize, usize)>,
    pair: bool,
}

/// Like numbers, and what each of them is held against.
struct Scale {
    values: Vec<f64>,
    of_file: Option<Arc<Limit>>,
    /// Among many, one's own value is not left out, and all are held against the same limit and median.
    of_many: Option<(Option<Arc<Limit>>, Option<f64>)>,
}

/// The like numbers of a round, or of all rounds of a check.
pub(crate) struct Scales<'m> {
    by_kind: BTreeMap<Like, Scale>,
    /// Of several numbers of one pair the one that counts.
    first: BTreeMap<(Like, &'m Subject), f64>,
}

impl<'m> Scales<'m> {
    /// Of all numbers.
    pub(crate) fn of(
        suite: &Suite,
        check: CheckName,
        kinds: &Kinds,
        numbers: impl Iterator<Item = &'m Measurement>,
    ) -> Self {
        let mut values: BTreeMap<Like, Vec<f64>> = BTreeMap::new();
        for one in numbers.filter(|one| one.metric != Metric::Fingerprint) {
            let like = values.entry(kinds.like(one)).or_default();
            like.extend(Some(one.value).filter(|value| value.is_finite()));
        }
        Self::by_kind(suite, check, values)
    }

    /// Of the pairs of all rounds: a round that looks for a culprit has too few to be compared among themselves. Each pair counts
    /// once, by its first number: the more often a slow one is looked at, the more usual it would look else. The host engine's
    /// pairs have a floor; their rounds share processors, and are not compared.
    pub(crate) fn of_pairs(
        suite: &Suite,
        check: CheckName,
        kinds: &Kinds,
        numbers: impl Iterator<Item = &'m Measurement>,
    ) -> Self {
        let cuda = suite.engine == Engine::Cuda;
        let mut values: BTreeMap<Like, Vec<f64>> = BTreeMap::new();
        let mut first: BTreeMap<(Like, &'m Subject), f64> = BTreeMap::new();
        for one in numbers.filter(|one| cuda && one.metric != Metric::Fingerprint && is_of_pair(&one.subject))
        {
            let like = kinds.like(one);
            let own = values.entry(like).or_default();
            if let (Entry::Vacant(place), true) = (first.entry((like, &one.subject)), one.value.is_finite()) {
                place.insert(one.value);
                own.push(one.value);
            }
        }
        Self { first, ..Self::by_kind(suite, check, values) }
    }

    fn by_kind(suite: &Suite, check: CheckName, values: BTreeMap<Like, Vec<f64>>) -> Self {
        let scale = |(like, values): (Like, Vec<f64>)| (like, Scale::of(suite, check, like, values));
        Self { by_kind: values.into_iter().map(scale).collect(), first: BTreeMap::new() }
    }
}

impl Scale {
    fn of(suite: &Suite, check: CheckName, like: Like, values: Vec<f64>) -> Self {
        let of_file = suite.limit(judged_as(check, like.pair), like.metric, like.bytes).map(Arc::new);
        let mut scale = Self { values, of_file, of_many: None };
        if let Some(first) = scale.values.first().filter(|_| scale.values.len() > LEAVE_OUT_MAX) {
            scale.of_many = Some(scale.of_peers(suite.engine, like.metric, like.bytes, *first));
        }
        scale
    }

    /// Limit and median for the one that has `value`.
    fn of_peers(
        &self,
        engine: Engine,
        metric: Metric,
        bytes: Option<u64>,
        value: f64,
    ) -> (Option<Arc<Limit>>, Option<f64>) {
        let median = (self.values.len() > 1).then(|| median(&others(value, &self.values))).flatten();
        let outlier = OutlierRule::of(engine).at(bytes).limit(metric, value, &self.values).map(Arc::new);
        let both = [self.of_file.clone(), outlier].into_iter().flatten();
        let stricter = |kept: Arc<Limit>, other: Arc<Limit>| {
            if worse(metric, kept.value, other.value) { other } else { kept }
        };
        (both.reduce(stricter), median)
    }
}

/// A pair that an all-node check measures to find a culprit is held against the limit for pairs.
fn judged_as(check: CheckName, pair: bool) -> CheckName {
    match check {
        CheckName::AllReduce if pair => CheckName::AllReduce2,
        CheckName::AllGather if pair => CheckName::AllGather2,
        CheckName::MultiAllReduce if pair => CheckName::MultiAllReduce2,
        other => other,
    }
}

/// What the numbers of one round are held against.
pub(crate) struct Standards<'s, 'm> {
    engine: Engine,
    kinds: &'s Kinds,
    votes: Votes<'m>,
    round: Scales<'m>,
    pairs: &'s Scales<'m>,
    no_words: Arc<str>,
}

impl<'s, 'm> Standards<'s, 'm> {
    /// `numbers`: those of the round; `pairs`: see [`Scales::of_pairs`].
    pub(crate) fn of(
        suite: &Suite,
        check: CheckName,
        kinds: &'s Kinds,
        numbers: impl Iterator<Item = &'m Measurement> + Clone,
        pairs: &'s Scales<'m>,
    ) -> Self {
        // Who is known to be wrong has no vote on what is right.
        let is_wrong = |one: &&Measurement| one.metric == Metric::Correct && one.value < 1.0;
        let known_wrong: BTreeSet<&Subject> =
            numbers.clone().filter(is_wrong).map(|one| &one.subject).collect();
        let votes = Votes::of(numbers.clone().filter(|one| !known_wrong.contains(&one.subject)));
        let in_all_rounds = |one: &&Measurement| is_of_pair(&one.subject) && !pairs.by_kind.is_empty();
        let round = Scales::of(suite, check, kinds, numbers.filter(|one| !in_all_rounds(one)));
        Self { engine: suite.engine, kinds, votes, round, pairs, no_words: Arc::from("") }
    }

    /// A number with what it is held against.
    pub(crate) fn judged(&self, one: &Measurement) -> Evidence {
        let Measurement { metric, bytes, value, .. } = *one;
        if metric == Metric::Fingerprint {
            return self.votes.verdict(one);
        }
        let like = self.kinds.like(one);
        let scale = self.pairs.by_kind.get(&like).or_else(|| self.round.by_kind.get(&like));
        let own = self.pairs.first.get(&(like, &one.subject)).copied().unwrap_or(value);
        let of_peers = |scale: &Scale| match &scale.of_many {
            Some(many) => many.clone(),
            None => scale.of_peers(self.engine, metric, bytes, own),
        };
        let (limit, median) = scale.map(of_peers).unwrap_or_default();
        let limit = limit.or_else(|| silence(self.engine, metric, value));
        let beyond = limit.as_ref().is_some_and(|limit| worse(metric, value, limit.value));
        let broken = one.facts.iter().any(|fact| fact.kind == FactKind::Fault);
        let said = !one.detail.is_empty();
        Evidence {
            metric,
            bytes,
            subject: one.subject.clone(),
            value,
            limit,
            median,
            miss: beyond || broken,
            tied: false,
            detail: if said { Arc::from(one.detail.as_str()) } else { Arc::clone(&self.no_words) },
            facts: one.facts.clone(),
            started_at: one.started_at,
            finished_at: one.finished_at,
        }
    }
}

/// Where GPUs exchange nothing at all no file is needed to call it a miss.
fn silence(engine: Engine, metric: Metric, value: f64) -> Option<Arc<Limit>> {
    let silent = engine == Engine::Cuda && metric == Metric::Busbw && value == 0.0;
    let source = || "floor: 1 MB/s, what any way carries".to_owned();
    silent.then(|| Arc::new(Limit { value: LEAST_GB_PER_S, source: source() }))
}
