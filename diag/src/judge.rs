//! From the numbers of one round to what each group of nodes showed in it: fine, below a limit, or not
//! measured. One look alone is never a fault: [`crate::localise`] puts looks together.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::baseline::{Baselines, Conditions, LEAVE_OUT_MAX, OutlierRule, median, others};
use crate::check::CheckName;
use crate::facts::{Engine, NodeId, Roster, RosterEntry};
use crate::gpu_facts::{self, Fact, FactKind};
use crate::measurement::{CheckError, ErrorKind, Measurement, Metric, Subject};
use crate::round::{Mode, NodeOutcome, Purpose, Round, RoundResult};
use crate::verdict::Limit;
use crate::votes::Votes;

/// What is measured and by which limits: the same on every node of a job.
#[derive(Debug, Clone, PartialEq)]
pub struct Suite {
    /// The checks that this build can measure on the engine, in registry order.
    pub checks: Vec<CheckName>,
    /// Checks that were asked for and that it can't measure.
    pub unbuilt: Vec<CheckName>,
    /// What measures.
    pub engine: Engine,
    /// The limits: the files that hold for the engine.
    pub baselines: Vec<Baselines>,
    /// What the limits depend on, once the nodes have met.
    pub hardware: Hardware,
}

/// What the nodes of a job have alike, as far as limits depend on it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hardware {
    /// The model of all GPUs, if they are of one.
    pub gpu: Option<String>,
    /// GPUs of each node, if all have as many.
    pub gpus: Option<u32>,
    /// Whether NVLink multicast may be used.
    pub nvls: bool,
    /// RDMA devices that the policy names: they are in use.
    pub rdma: BTreeSet<String>,
    /// What is known of the nodes before anything is measured.
    pub facts: Vec<Fact>,
    /// Of each node the model and the number of its GPUs; on the host engine nothing.
    pub kinds: BTreeMap<NodeId, (String, usize)>,
}

/// What any way between two GPUs carries.
const LEAST_GB_PER_S: f64 = 0.001;

/// Quantity, size of messages, kinds of the nodes: see [`Kinds`].
type Like = (Metric, Option<u64>, Option<(usize, usize)>);

/// Of each node the number of its kind.
struct Kinds(BTreeMap<NodeId, usize>);

impl Kinds {
    fn of(hardware: &Hardware) -> Self {
        let kinds: BTreeSet<&(String, usize)> = hardware.kinds.values().collect();
        let numbered: BTreeMap<&(String, usize), usize> = kinds.into_iter().zip(0..).collect();
        Self(hardware.kinds.iter().filter_map(|(node, kind)| Some((*node, *numbered.get(kind)?))).collect())
    }

    /// What a number may be compared with: the same quantity, of messages of the same size, on nodes of the same kinds.
    /// A subject has two nodes at most: the lower kind first.
    fn like(&self, metric: Metric, measurement: &Measurement) -> Like {
        let nodes = measurement.subject.nodes();
        let kinds = || nodes.iter().filter_map(|node| self.0.get(node).copied());
        (metric, measurement.bytes, kinds().min().zip(kinds().max()))
    }
}

impl Suite {
    /// The same suite on the nodes that met.
    #[must_use]
    pub fn on(&self, roster: &Roster) -> Self {
        let joined = || roster.nodes.iter().filter_map(|entry| entry.joined.as_ref());
        let models: BTreeSet<&str> =
            joined().flat_map(|joined| &joined.facts.gpus).map(|gpu| gpu.model.as_str()).collect();
        let counts: BTreeSet<usize> =
            joined().map(|joined| joined.facts.gpus.len()).filter(|count| *count > 0).collect();
        let only = |models: &BTreeSet<&str>| match models.first() {
            Some(model) if models.len() == 1 => Some((*model).to_owned()),
            _ => None,
        };
        let gpus = counts.first().filter(|_| counts.len() == 1).and_then(|count| u32::try_from(*count).ok());
        let kind = |entry: &RosterEntry| {
            let gpus = &entry.joined.as_ref()?.facts.gpus;
            Some((gpus.first()?.model.clone(), gpus.len()))
        };
        let kinds = (0..).zip(&roster.nodes).filter_map(|(node, entry)| Some((node, kind(entry)?))).collect();
        let rdma = self.hardware.rdma.clone();
        let facts = gpu_facts::of_roster(roster, &rdma);
        let hardware = Hardware { gpu: only(&models), gpus, nvls: self.hardware.nvls, rdma, facts, kinds };
        Self { hardware, ..self.clone() }
    }

    /// The limit of a quantity, for messages of this size.
    fn limit(&self, check: CheckName, metric: Metric, bytes: Option<u64>) -> Option<Limit> {
        let file = match (self.engine, &self.hardware.gpu) {
            (Engine::Host, _) => self.baselines.first(),
            (Engine::Cuda, model) => {
                Baselines::for_gpu(&self.baselines, model.as_deref().unwrap_or_default())
            }
        };
        let conditions = Conditions {
            gpus: self.hardware.gpus,
            bytes,
            nvls: (self.engine == Engine::Cuda).then_some(self.hardware.nvls),
            network: None,
        };
        // Right results need no file.
        let nothing = Baselines::empty(self.engine);
        file.unwrap_or(&nothing).limit_at(check, metric, &conditions)
    }
}

/// What one group of nodes showed in one round.
#[derive(Debug, Clone, PartialEq)]
pub struct Look {
    /// The nodes that were measured together.
    pub group: Vec<NodeId>,
    /// Index of the round.
    pub round: u32,
    /// Why the round was run.
    pub purpose: Purpose,
    /// How it was measured; looks of different modes say different things.
    pub mode: Mode,
    /// What it amounts to.
    pub sight: Sight,
    /// Every number of the group, judged.
    pub evidence: Vec<Evidence>,
}

impl Evidence {
    /// The faults that its subject showed.
    pub fn faults(&self) -> impl Iterator<Item = &str> {
        self.facts.iter().filter(|fact| fact.kind == FactKind::Fault).map(|fact| fact.words.as_str())
    }
}

impl Look {
    /// The numbers that miss their limit.
    pub fn misses(&self) -> impl Iterator<Item = &Evidence> {
        self.evidence.iter().filter(|one| one.miss)
    }

    /// The part of its node that a number is about: a GPU where they are told apart, else the node as a whole.
    #[must_use]
    pub fn part(node: NodeId, one: &Evidence) -> Subject {
        match one.subject {
            Subject::Gpu { .. } => one.subject.clone(),
            _ => Subject::Node { node },
        }
    }

    /// The same look with the numbers of one part of a node: see [`Look::part`].
    #[must_use]
    pub fn on_part(&self, node: NodeId, part: &Subject) -> Self {
        let ours = |one: &&Evidence| Self::part(node, one) == *part;
        self.narrowed(self.evidence.iter().filter(ours).cloned().collect())
    }

    /// The same look with the numbers of one rail, and those that belong to no rail.
    #[must_use]
    pub fn on_rail(&self, rail: u32) -> Self {
        let ours = |one: &&Evidence| one.subject.rail().is_none_or(|other| other == rail);
        self.narrowed(self.evidence.iter().filter(ours).cloned().collect())
    }

    fn narrowed(&self, evidence: Vec<Evidence>) -> Self {
        let sight = match &self.sight {
            trouble @ (Sight::Error(..) | Sight::Lost(..)) => trouble.clone(),
            Sight::Fine | Sight::Miss => sight_of(&evidence),
        };
        Self { evidence, sight, ..self.clone() }
    }
}

/// What a look amounts to.
#[derive(Debug, Clone, PartialEq)]
pub enum Sight {
    /// All numbers are fine.
    Fine,
    /// At least one number misses its limit.
    Miss,
    /// A node of the group could not do its work.
    Error(NodeId, CheckError),
    /// A node of the group was lost.
    Lost(NodeId, String),
}

/// One number with the limit that it was held against.
#[derive(Debug, Clone, PartialEq)]
pub struct Evidence {
    /// The quantity.
    pub metric: Metric,
    /// Size of the messages, where numbers of several sizes are told apart.
    pub bytes: Option<u64>,
    /// What it is about.
    pub subject: Subject,
    /// The number; of two sides that measured the same thing, the worse one.
    pub value: f64,
    /// The limit that it misses, else the one nearest to it.
    pub limit: Option<Limit>,
    /// Median of the other like subjects in the round.
    pub median: Option<f64>,
    /// Whether it misses the limit, or the part showed a fault while it was taken.
    pub miss: bool,
    /// Whether it differs from what should be alike, and which of them is right is not known.
    pub tied: bool,
    /// The readings behind it.
    pub samples: Vec<f64>,
    /// What a person should know.
    pub detail: String,
    /// What its subject showed of itself meanwhile.
    pub facts: Vec<Fact>,
    /// When it began.
    pub started_at: Timestamp,
    /// When it ended.
    pub finished_at: Timestamp,
}

impl Evidence {
    /// What the same number of another window has the same: only such ones confirm each other.
    #[must_use]
    pub fn number(&self) -> (Subject, Metric, Option<u64>) {
        (self.subject.clone(), self.metric, self.bytes)
    }
}

/// The numbers that miss in each of these looks.
#[must_use]
pub fn always_missed(looks: &[&Look]) -> BTreeSet<(Subject, Metric, Option<u64>)> {
    let mut missed = looks.iter().map(|look| look.misses().map(Evidence::number).collect::<BTreeSet<_>>());
    let first = missed.next().unwrap_or_default();
    missed.fold(first, |kept, other| &kept & &other)
}

/// Judges the rounds of one check: one look a group, in the rounds' order.
#[must_use]
pub fn looks(suite: &Suite, results: &[&RoundResult]) -> Vec<Look> {
    let rounds: Vec<_> = results.iter().map(|result| (*result, merged(result))).collect();
    let kinds = Kinds::of(&suite.hardware);
    let pairs = pairs(suite, &kinds, &rounds);
    rounds
        .iter()
        .flat_map(|(result, numbers)| {
            let evidence = judged(suite, &kinds, (result, numbers), &pairs);
            // By the nodes that it is about, with its place: a search of everything for each group takes minutes in a
            // large job.
            let mut about = About::new();
            for (place, one) in evidence.into_iter().enumerate() {
                let mut nodes = one.subject.nodes();
                nodes.sort_unstable();
                about.entry(nodes).or_default().push((place, one));
            }
            result.round.groups.iter().map(|group| look(result, group, &mut about)).collect::<Vec<_>>()
        })
        .collect()
}

/// The judged numbers of a round by the nodes that they are about, each with its place.
type About = BTreeMap<Vec<NodeId>, Vec<(usize, Evidence)>>;

fn look(result: &RoundResult, group: &[NodeId], about: &mut About) -> Look {
    let members: BTreeSet<NodeId> = group.iter().copied().collect();
    // What several nodes share, or two of many, was measured by the only group of its round.
    let own: Vec<Vec<NodeId>> = if result.round.groups.len() == 1 {
        about.keys().filter(|nodes| nodes.iter().all(|node| members.contains(node))).cloned().collect()
    } else {
        let together = (members.len() > 1).then(|| members.iter().copied().collect());
        members.iter().map(|node| vec![*node]).chain(together).collect()
    };
    // Only light rounds have groups that share a node, and what is about it.
    let take = |nodes: &Vec<NodeId>| match result.round.mode {
        Mode::Full => about.remove(nodes),
        Mode::Reach => about.get(nodes).cloned(),
    };
    let mut mine: Vec<(usize, Evidence)> = own.iter().filter_map(take).flatten().collect();
    mine.sort_unstable_by_key(|(place, _)| *place);
    let mine: Vec<Evidence> = mine.into_iter().map(|(_, one)| one).collect();
    let sight = trouble(result, group).unwrap_or_else(|| sight(result, group, &mine));
    let Round { index, purpose, mode, .. } = result.round;
    Look { group: group.to_vec(), round: index, purpose, mode, sight, evidence: mine }
}

/// A member that was lost or could not work; a lost one explains the other's trouble, so it comes first.
fn trouble(result: &RoundResult, group: &[NodeId]) -> Option<Sight> {
    let lost = group.iter().find_map(|node| match result.outcomes.get(node) {
        None => Some(Sight::Lost(*node, "it sent no result".into())),
        Some(NodeOutcome::Lost { because }) => Some(Sight::Lost(*node, because.clone())),
        Some(_) => None,
    });
    lost.or_else(|| {
        group.iter().find_map(|node| match result.outcomes.get(node) {
            Some(NodeOutcome::Error(error)) => Some(Sight::Error(*node, error.clone())),
            // What was measured together lacks a part; of a node by itself the other parts' numbers count.
            Some(NodeOutcome::Partly { numbers, parts }) if numbers.is_empty() || group.len() > 1 => {
                parts.first().map(|one| Sight::Error(*node, one.error.clone()))
            }
            _ => None,
        })
    })
}

fn sight(result: &RoundResult, group: &[NodeId], evidence: &[Evidence]) -> Sight {
    let check = result.round.check;
    // Of the node that brought it, which need not be the first of the group.
    let useless = |brought: &dyn Fn(&[Measurement]) -> bool, message: String| {
        let is_it = |node: &&NodeId| match result.outcomes.get(node) {
            Some(NodeOutcome::Error(_) | NodeOutcome::Lost { .. }) | None => false,
            Some(outcome) => brought(outcome.numbers()),
        };
        let node = group.iter().find(is_it).unwrap_or(&group[0]);
        Sight::Error(*node, CheckError { kind: ErrorKind::Worker, message })
    };
    if evidence.is_empty() {
        return useless(&<[Measurement]>::is_empty, format!("{check} measured nothing"));
    }
    let is_none = |value: f64| !value.is_finite() || value < 0.0;
    if let Some(bad) = evidence.iter().find(|one| is_none(one.value)) {
        let brought =
            |own: &[Measurement]| own.iter().any(|one| one.subject == bad.subject && is_none(one.value));
        let message = format!("{check} measured {}, which is no {}", bad.value, bad.metric.unit());
        return useless(&brought, message);
    }
    // No work done says nothing about how fast it would have been; between nodes a silent link is a fault.
    if evidence.iter().any(|one| one.value == 0.0 && matches!(one.metric, Metric::Flops | Metric::Fp8Flops)) {
        return useless(&|_| true, format!("{check} finished no product in its window"));
    }
    sight_of(evidence)
}

fn sight_of(evidence: &[Evidence]) -> Sight {
    if evidence.iter().any(|one| one.miss) { Sight::Miss } else { Sight::Fine }
}

/// The numbers of a round, both sides of a pair merged.
type Numbers<'m> = BTreeMap<Number<'m>, &'m Measurement>;

/// The values that a number is compared with.
type Peers = BTreeMap<Like, Vec<f64>>;

fn merged(result: &RoundResult) -> Numbers<'_> {
    let mut numbers = Numbers::new();
    for (node, outcome) in &result.outcomes {
        for measurement in outcome.numbers().iter().filter(|one| one.check == result.round.check) {
            numbers
                .entry(number(measurement))
                .and_modify(|kept| {
                    // Of two that are equally bad the sender knows more: it was refused, or got no answer.
                    let sender = matches!(measurement.subject, Subject::Path { from, .. } if from == *node);
                    let equal = !worse(measurement.metric, kept.value, measurement.value);
                    if worse(measurement.metric, measurement.value, kept.value) || (sender && equal) {
                        *kept = measurement;
                    }
                })
                .or_insert(measurement);
        }
    }
    numbers
}

/// What pairs of nodes showed in all rounds: a round that looks for a culprit has too few pairs to be compared among
/// themselves. The host engine's pairs have a floor; their rounds share processors, and are not compared.
fn pairs(suite: &Suite, kinds: &Kinds, rounds: &[(&RoundResult, Numbers<'_>)]) -> Peers {
    let mut pairs = Peers::new();
    for (_, numbers) in rounds.iter().filter(|_| suite.engine == Engine::Cuda) {
        add(kinds, numbers, of_pair, &mut pairs);
    }
    pairs
}

fn of_pair(subject: &Subject) -> bool {
    matches!(subject, Subject::Pair { .. } | Subject::PairRail { .. })
}

fn add(kinds: &Kinds, numbers: &Numbers<'_>, of: fn(&Subject) -> bool, peers: &mut Peers) {
    for ((metric, subject, ..), measurement) in numbers {
        if measurement.value.is_finite() && of(subject) {
            peers.entry(kinds.like(*metric, measurement)).or_default().push(measurement.value);
        }
    }
}

/// Every number of a round, held against baseline and peers.
fn judged(
    suite: &Suite,
    kinds: &Kinds,
    (result, numbers): (&RoundResult, &Numbers<'_>),
    pairs: &Peers,
) -> Vec<Evidence> {
    // Who is known to be wrong has no vote on what is right.
    let known_wrong: BTreeSet<Subject> = numbers
        .iter()
        .filter(|((metric, ..), one)| *metric == Metric::Correct && one.value < 1.0)
        .map(|((_, subject, ..), _)| subject.clone())
        .collect();
    let votes = Votes::of(numbers.values().copied().filter(|one| !known_wrong.contains(&one.subject)));
    let mut peers = Peers::new();
    add(kinds, numbers, |_| true, &mut peers);
    let mut of_many: BTreeMap<Like, (Option<Limit>, Option<f64>)> = BTreeMap::new();
    // The files are searched once for each kind of number, not for each number.
    let mut of_files: BTreeMap<(CheckName, Metric, Option<u64>), Option<Limit>> = BTreeMap::new();
    numbers
        .iter()
        .map(|((metric, subject, bytes, _), measurement)| {
            let (metric, subject, bytes) = (*metric, subject.clone(), *bytes);
            if metric == Metric::Fingerprint {
                return votes.verdict(subject, measurement);
            }
            let kind = kinds.like(metric, measurement);
            let all_rounds = pairs.get(&kind).filter(|_| of_pair(&subject));
            let like = all_rounds.or_else(|| peers.get(&kind)).map_or(&[][..], Vec::as_slice);
            let of_peers = || {
                let median = (like.len() > 1).then(|| median(&others(measurement.value, like))).flatten();
                let rule = OutlierRule::of(suite.engine).at(bytes);
                (rule.limit(metric, measurement.value, like), median)
            };
            // Among many, one's own value is not left out, and all are held against the same.
            let (outlier, median) = if like.len() > LEAVE_OUT_MAX {
                of_many.entry(kind).or_insert_with(of_peers).clone()
            } else {
                of_peers()
            };
            let judged_as = judged_as(result.round.check, &subject);
            let of_file = of_files.entry((judged_as, metric, bytes));
            let of_file = of_file.or_insert_with(|| suite.limit(judged_as, metric, bytes)).clone();
            let limits = [of_file, outlier];
            let limit = limits.into_iter().flatten().reduce(|kept, other| stricter(metric, kept, other));
            let limit = limit.or_else(|| silence(suite.engine, metric, measurement.value));
            let beyond = limit.as_ref().is_some_and(|limit| worse(metric, measurement.value, limit.value));
            let broken = measurement.facts.iter().any(|fact| fact.kind == FactKind::Fault);
            let miss = beyond || broken;
            Evidence {
                metric,
                bytes,
                subject,
                value: measurement.value,
                limit,
                median,
                miss,
                tied: false,
                samples: measurement.samples.clone(),
                detail: measurement.detail.clone(),
                facts: measurement.facts.clone(),
                started_at: measurement.started_at,
                finished_at: measurement.finished_at,
            }
        })
        .collect()
}

/// What tells the numbers of a round apart: of one subject there are several quantities and sizes, and fingerprints of
/// several products.
type Number<'m> = (Metric, Subject, Option<u64>, &'m str);

fn number(measurement: &Measurement) -> Number<'_> {
    let print = measurement.metric == Metric::Fingerprint;
    let of = if print { measurement.detail.as_str() } else { "" };
    (measurement.metric, measurement.subject.clone(), measurement.bytes, of)
}

/// Where GPUs exchange nothing at all no file is needed to call it a miss.
fn silence(engine: Engine, metric: Metric, value: f64) -> Option<Limit> {
    let silent = engine == Engine::Cuda && metric == Metric::Busbw && value == 0.0;
    silent.then(|| Limit { value: LEAST_GB_PER_S, source: "floor: 1 MB/s, what any way carries".into() })
}

/// A pair that an all-node check measures to find a culprit is held against the limit for pairs.
fn judged_as(check: CheckName, subject: &Subject) -> CheckName {
    let pair = matches!(subject, Subject::Pair { .. } | Subject::PairRail { .. });
    match check {
        CheckName::AllReduce if pair => CheckName::AllReduce2,
        CheckName::AllGather if pair => CheckName::AllGather2,
        CheckName::MultiAllReduce if pair => CheckName::MultiAllReduce2,
        other => other,
    }
}

/// Whether a value is on the wrong side of another.
#[must_use]
pub fn worse(metric: Metric, value: f64, than: f64) -> bool {
    if value.is_nan() {
        return true;
    }
    if metric.higher_is_better() { value < than } else { value > than }
}

fn stricter(metric: Metric, one: Limit, other: Limit) -> Limit {
    if worse(metric, one.value, other.value) { other } else { one }
}
