//! From the numbers of a round to what each group of nodes showed in it: fine, below a limit, or not measured.

use std::collections::{BTreeMap, BTreeSet};

use crate::baseline::{Baselines, Conditions};
use crate::check::CheckName;
use crate::facts::{Engine, NodeId, Roster, RosterEntry};
use crate::gpu_facts::{self, Fact, FactKind};
use crate::look::{Evidence, Look, Sight};
use crate::measurement::{CheckError, ErrorKind, Measurement, Metric, Subject};
use crate::round::{NodeOutcome, Round, RoundResult};
use crate::standards::{Kinds, Scales, Standards};
use crate::verdict::Limit;

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
    /// Ports of each node for its GPUs' traffic, such as `8x400`, if all nodes that can be measured have the same.
    pub network: Option<String>,
    /// Whether NVLink multicast may be used.
    pub nvls: bool,
    /// RDMA devices that the policy names: they are in use.
    pub rdma: BTreeSet<String>,
    /// What is known of the nodes before anything is measured.
    pub facts: Vec<Fact>,
    /// Of each node the model and the number of its GPUs; on the host engine nothing.
    pub kinds: BTreeMap<NodeId, (String, usize)>,
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
        let network = network(roster, &rdma, &facts);
        let hardware =
            Hardware { gpu: only(&models), gpus, network, nvls: self.hardware.nvls, rdma, facts, kinds };
        Self { hardware, ..self.clone() }
    }

    /// The limit of a quantity, for messages of this size.
    pub(crate) fn limit(&self, check: CheckName, metric: Metric, bytes: Option<u64>) -> Option<Limit> {
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
            network: self.hardware.network.as_deref(),
        };
        // Right results need no file.
        let nothing = Baselines::empty(self.engine);
        file.unwrap_or(&nothing).limit_at(check, metric, &conditions)
    }
}

/// What ports the nodes have for their GPUs' traffic, where those that are not known to be at fault have the same: one that
/// lacks a port sits out, and the limits hold for the others.
fn network(roster: &Roster, named: &BTreeSet<String>, facts: &[Fact]) -> Option<String> {
    let faults = facts.iter().filter(|fact| fact.kind == FactKind::Fault);
    let out: BTreeSet<NodeId> = faults.flat_map(|fact| fact.subject.nodes()).collect();
    let known = |node: NodeId| Some(&roster.nodes.get(node as usize)?.joined.as_ref()?.facts.known.compared);
    let able = roster.able().filter(|node| !out.contains(node));
    let all: BTreeSet<Option<String>> =
        able.map(|node| gpu_facts::network::called(known(node)?, named)).collect();
    all.first().filter(|_| all.len() == 1).cloned().flatten()
}

/// Judges the rounds of one check: one look a group, in the rounds' order.
#[must_use]
pub fn looks(suite: &Suite, results: &[&RoundResult]) -> Vec<Look> {
    let Some(check) = results.first().map(|result| result.round.check) else { return Vec::new() };
    let rounds: Vec<(&RoundResult, Numbers<'_>)> =
        results.iter().map(|result| (*result, Numbers::of(result))).collect();
    let kinds = Kinds::of(&suite.hardware);
    let pairs = Scales::of_pairs(suite, check, &kinds, rounds.iter().flat_map(|(_, numbers)| numbers.all()));
    let judged = |(result, numbers): &(&RoundResult, Numbers<'_>)| -> Vec<Look> {
        let standards = Standards::of(suite, check, &kinds, numbers.all(), &pairs);
        let look = |group: &Vec<NodeId>| look(result, group, numbers, &standards);
        result.round.groups.iter().map(look).collect()
    };
    rounds.iter().flat_map(judged).collect()
}

/// The numbers of a round in the order of the nodes that they are about, so that a group's are found by a search; of
/// two sides that measured the same thing the worse one.
struct Numbers<'m>(Vec<&'m Measurement>);

impl<'m> Numbers<'m> {
    fn of(result: &'m RoundResult) -> Self {
        let mut all: Vec<(NodeId, &Measurement)> = Vec::new();
        for (node, outcome) in &result.outcomes {
            let own = outcome.numbers().iter();
            all.extend(own.filter(|one| one.check == result.round.check).map(|one| (*node, one)));
        }
        // Stable: of the same number that of the lower node stands first. What nodes send is nearly sorted already.
        all.sort_by(|(_, one), (_, other)| place(one).cmp(&place(other)));
        let mut numbers: Vec<&Measurement> = Vec::with_capacity(all.len());
        for (node, one) in all {
            match numbers.last_mut().filter(|kept| place(kept) == place(one)) {
                Some(kept) => *kept = of_two(kept, node, one),
                None => numbers.push(one),
            }
        }
        Self(numbers)
    }

    fn all(&self) -> impl Iterator<Item = &'m Measurement> + Clone + '_ {
        self.0.iter().copied()
    }

    /// Those about these nodes and nobody else.
    fn about(&self, ends: (NodeId, NodeId)) -> &[&'m Measurement] {
        let from = self.0.partition_point(|one| one.subject.ends() < Some(ends));
        let rest = self.0.get(from..).unwrap_or_default();
        rest.get(..rest.partition_point(|one| one.subject.ends() == Some(ends))).unwrap_or_default()
    }

    /// Those of a group, by what they are. What several nodes share, or two of many, was measured by the only group of
    /// its round.
    fn of_group(&self, round: &Round, group: &[NodeId]) -> Vec<&'m Measurement> {
        let mut members = group.to_vec();
        members.sort_unstable();
        members.dedup();
        if let ([one], false) = (members.as_slice(), round.groups.len() == 1) {
            return self.about((*one, *one)).to_vec();
        }
        let mut own: Vec<&Measurement> = match members.as_slice() {
            _ if round.groups.len() == 1 => {
                let member = |node: NodeId| members.binary_search(&node).is_ok();
                let ours =
                    |one: &&&Measurement| one.subject.ends().is_none_or(|(a, b)| member(a) && member(b));
                self.0.iter().filter(ours).copied().collect()
            }
            &[a, b] => {
                [(a, a), (a, b), (b, b)].into_iter().flat_map(|ends| self.about(ends)).copied().collect()
            }
            singles => singles.iter().flat_map(|node| self.about((*node, *node))).copied().collect(),
        };
        own.sort_by(|one, other| number(one).cmp(&number(other)));
        own
    }
}

/// What tells the numbers of a round apart: of one subject there are several quantities and sizes, and fingerprints of
/// several products.
type Number<'m> = (Metric, &'m Subject, Option<u64>, &'m str);

fn number(one: &Measurement) -> Number<'_> {
    let print = one.metric == Metric::Fingerprint;
    (one.metric, &one.subject, one.bytes, if print { one.detail.as_str() } else { "" })
}

/// Where a number stands among those of its round: what it is about first.
fn place(one: &Measurement) -> (Option<(NodeId, NodeId)>, Number<'_>) {
    (one.subject.ends(), number(one))
}

/// Of the same number from two sides the worse one; of two that are equally bad that of the sender, who knows more: it
/// was refused, or got no answer.
fn of_two<'m>(kept: &'m Measurement, node: NodeId, one: &'m Measurement) -> &'m Measurement {
    let sender = matches!(one.subject, Subject::Path { from, .. } if from == node);
    let equal = !worse(one.metric, kept.value, one.value);
    if worse(one.metric, one.value, kept.value) || (sender && equal) { one } else { kept }
}

fn look(
    result: &RoundResult,
    group: &[NodeId],
    numbers: &Numbers<'_>,
    standards: &Standards<'_, '_>,
) -> Look {
    let own = numbers.of_group(&result.round, group);
    let evidence: Vec<Evidence> = own.into_iter().map(|one| standards.judged(one)).collect();
    let sight = trouble(result, group).unwrap_or_else(|| sight(result, group, &evidence));
    let Round { index, purpose, mode, .. } = result.round;
    Look { group: group.to_vec(), round: index, purpose, mode, sight, evidence }
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
    if evidence.iter().any(|one| one.miss) { Sight::Miss } else { Sight::Fine }
}

/// Whether a value is on the wrong side of another.
#[must_use]
pub fn worse(metric: Metric, value: f64, than: f64) -> bool {
    if value.is_nan() {
        return true;
    }
    if metric.higher_is_better() { value < than } else { value > than }
}
