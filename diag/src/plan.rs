//! What to measure next: a pure function of the request, the roster and the results so far. Every node feeds it
//! the same and gets the same step.

use std::collections::{BTreeMap, BTreeSet};

use crate::chance::{Weight, misses_to_blame, scatters, share};
use crate::check::{CheckName, Phase, Scope};
use crate::facts::{Engine, NodeFacts, NodeId, Roster};
use crate::gpu_facts::FactKind;
use crate::judge::{Suite, looks};
use crate::localise::{PairState, Setting, pairs};
use crate::look::{Evidence, Look, Number, Sight, View};
use crate::measurement::{CheckError, PartError, Subject};
use crate::round::{Mode, NodeOutcome, Purpose, Round, RoundResult, Step};
use crate::topology::Leaves;

/// Windows in which a node must have missed at least before it is at fault. Nodes that share a machine, and busy ones,
/// have slow moments; the third window costs a second and only where somebody missed twice. Of many numbers some miss
/// three times by chance: [`crate::chance`] says how many windows it takes then.
const WINDOWS_TO_BLAME: usize = 3;

/// Most windows: where even these don't rule chance out, numbers come and go all over the job.
const MAX_WINDOWS: usize = 8;

/// Most rounds of an all-node check that a node may spoil by its own trouble before the check is given up.
const MAX_SPOILT_ROUNDS: usize = 4;

/// What is known of one check.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckState {
    /// The check.
    pub check: CheckName,
    /// The nodes that take part.
    pub nodes: BTreeSet<NodeId>,
    /// Nodes that the check does not apply to, and why.
    pub unfit: BTreeMap<NodeId, &'static str>,
    /// Every look, in order.
    pub looks: Vec<Look>,
    /// Nodes that could not do their work.
    pub errors: BTreeMap<NodeId, CheckError>,
    /// Parts of nodes that have no number, where their nodes could do their work.
    pub parts: BTreeMap<Subject, CheckError>,
    /// Nodes that were lost during this check.
    pub lost: BTreeMap<NodeId, String>,
    /// What the looks amount to.
    pub shown: Shown,
    /// The next round of this check, if it needs one.
    pub next: Option<Round>,
}

/// What can be compared: numbers that were measured in the same way, on the same rail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Channel {
    /// How.
    pub mode: Mode,
    /// Which rail, where a check measures each by itself.
    pub rail: Option<u32>,
}

impl Channel {
    /// The looks at pairs of nodes as this channel shows them.
    #[must_use]
    pub fn looks(self, looks: &[Look]) -> Vec<View<'_>> {
        self.of(looks.iter())
    }

    fn of<'l>(self, looks: impl Iterator<Item = &'l Look>) -> Vec<View<'l>> {
        let pairs = looks.filter(|look| look.mode == self.mode && look.group.len() == 2);
        pairs.map(|look| self.rail.map_or_else(|| look.whole(), |rail| look.on_rail(rail))).collect()
    }
}

/// What the looks of a check amount to.
#[derive(Debug, Clone, PartialEq)]
pub enum Shown {
    /// A check of single nodes.
    Nodes {
        /// Nodes that missed in every window.
        failed: BTreeSet<NodeId>,
        /// Nodes that missed in some of them.
        flaky: BTreeSet<NodeId>,
    },
    /// A check of pairs.
    Pairs(Vec<(Channel, PairState)>),
    /// A check of all nodes at once.
    All {
        /// How often all nodes together missed; two misses bring pairs.
        misses: usize,
        /// Whether all nodes together were measured at all.
        measured: bool,
        /// What the pairs showed that were measured to find a culprit.
        pairs: Vec<(Channel, PairState)>,
    },
    /// Nothing was measured, with the reason.
    Skipped(String),
}

impl CheckState {
    /// Nodes with a fault of their own, or with a part that could not be measured.
    #[must_use]
    pub fn failed(&self) -> BTreeSet<NodeId> {
        let mut failed = self.at_fault();
        failed.extend(self.parts.keys().flat_map(Subject::nodes));
        failed
    }

    fn at_fault(&self) -> BTreeSet<NodeId> {
        match &self.shown {
            Shown::Nodes { failed, .. } => failed.clone(),
            Shown::Pairs(states) | Shown::All { pairs: states, .. } => {
                states.iter().flat_map(|(_, state)| state.bad.keys().copied()).collect()
            }
            Shown::Skipped(_) => BTreeSet::new(),
        }
    }
}

/// The next step of the suite.
#[must_use]
pub fn next(suite: &Suite, roster: &Roster, results: &[RoundResult]) -> Step {
    Settled::default().next(suite, roster, results)
}

/// The checks that need no more rounds, kept from step to step: no later round changes what is known of them, and to judge
/// all of them again at each step takes seconds in a large job.
#[derive(Debug, Default)]
pub struct Settled(Vec<CheckState>);

impl Settled {
    /// The next step, as [`next`] gives it: of the same suite and roster as before, `results` being those of before and
    /// what came since.
    pub fn next(&mut self, suite: &Suite, roster: &Roster, results: &[RoundResult]) -> Step {
        go_on(&mut self.0, suite, roster, results);
        let Some(mut round) = self.0.last().and_then(|state| state.next.clone()) else {
            return Step::Finished;
        };
        self.0.pop();
        round.index = u32::try_from(results.len()).unwrap_or(u32::MAX);
        Step::Measure(round)
    }
}

/// What is known of each check, in order, up to and including the first that needs another round.
#[must_use]
pub fn states(suite: &Suite, roster: &Roster, results: &[RoundResult]) -> Vec<CheckState> {
    let mut states = Vec::new();
    go_on(&mut states, suite, roster, results);
    states
}

/// Adds what is known of the checks after those.
fn go_on(states: &mut Vec<CheckState>, suite: &Suite, roster: &Roster, results: &[RoundResult]) {
    for &check in suite.checks.get(states.len()..).unwrap_or_default() {
        let mut nodes = participants(check.spec().phase, suite, roster, states);
        let unfit = unfit(check, roster, &nodes);
        nodes.retain(|node| !unfit.contains_key(node));
        let at_fault = sure_of(check.spec().phase, states);
        let state = state(suite, (check, nodes), results, (&roster.leaves, &at_fault));
        let state = CheckState { unfit, ..state };
        let waits = state.next.is_some();
        states.push(state);
        if waits {
            break;
        }
    }
}

/// Able nodes, less those that are known to be at fault or to have nothing to measure, those that failed an earlier phase
/// and those that were lost or unable since.
fn participants(phase: Phase, suite: &Suite, roster: &Roster, before: &[CheckState]) -> BTreeSet<NodeId> {
    let mut nodes: BTreeSet<NodeId> = roster.able().collect();
    // A part that can't be used has no number of its own; between parts it would be missed.
    let together = phase > Phase::DeviceCheck;
    let out = suite.hardware.facts.iter().filter(|fact| match fact.kind {
        FactKind::Fault | FactKind::Skip => true,
        FactKind::Unusable => together,
        FactKind::Error | FactKind::Cause | FactKind::Note => false,
    });
    for node in out.flat_map(|fact| fact.subject.nodes()) {
        nodes.remove(&node);
    }
    for state in before {
        for node in state.lost.keys() {
            nodes.remove(node);
        }
        if state.check.spec().phase < phase {
            nodes = &nodes - &state.failed();
        }
    }
    nodes
}

/// Nodes that a check of pairs before these of the same phase is sure of: what blames them again need not rule out all that once
/// more.
fn sure_of(phase: Phase, before: &[CheckState]) -> BTreeSet<NodeId> {
    let same = before.iter().filter(|state| state.check.spec().phase == phase);
    let pairs = same.filter_map(|state| match &state.shown {
        Shown::Pairs(states) | Shown::All { pairs: states, .. } => Some(states),
        Shown::Nodes { .. } | Shown::Skipped(_) => None,
    });
    pairs.flatten().flat_map(|(_, state)| state.sure.iter().copied()).collect()
}

/// Nodes that have nothing for a check to measure.
fn unfit(check: CheckName, roster: &Roster, nodes: &BTreeSet<NodeId>) -> BTreeMap<NodeId, &'static str> {
    if !matches!(check, CheckName::AllReduce1 | CheckName::CompCommOverlap) {
        return BTreeMap::new();
    }
    let facts = |node: &NodeId| roster.nodes.get(*node as usize)?.joined.as_ref().map(|joined| &joined.facts);
    let why = |facts: &NodeFacts| match facts.engine {
        Engine::Cuda if facts.gpus.len() == 1 => {
            Some("one GPU of the job on this node: nothing to reduce with")
        }
        Engine::Host if facts.rank_ports.len() == 1 => Some("one rank on this node: nothing to reduce with"),
        Engine::Cuda | Engine::Host => None,
    };
    nodes.iter().filter_map(|node| Some((*node, why(facts(node)?)?))).collect()
}

/// What is known before a check: who is below which leaf, and whom checks before it are sure of.
type Before<'b> = (&'b Leaves, &'b BTreeSet<NodeId>);

fn state(
    suite: &Suite,
    (check, nodes): (CheckName, BTreeSet<NodeId>),
    results: &[RoundResult],
    known: Before<'_>,
) -> CheckState {
    let mine: Vec<&RoundResult> = results.iter().filter(|result| result.round.check == check).collect();
    let looks: Vec<Look> = looks(suite, &mine);
    let mut errors = BTreeMap::new();
    let mut lost = BTreeMap::new();
    let mut parts = BTreeMap::new();
    for (node, outcome) in mine.iter().flat_map(|result| &result.outcomes) {
        match outcome {
            NodeOutcome::Measured(_) => {}
            NodeOutcome::Partly { parts: own, .. } => {
                // A node speaks of its own parts only.
                let own = own.iter().filter(|one| one.part.nodes() == [*node]);
                for PartError { part, error } in own {
                    parts.entry(part.clone()).or_insert_with(|| error.clone());
                }
            }
            NodeOutcome::Error(error) => _ = errors.insert(*node, error.clone()),
            NodeOutcome::Lost { because } => _ = lost.insert(*node, because.clone()),
        }
    }
    let with_parts: BTreeSet<NodeId> = parts.keys().flat_map(Subject::nodes).collect();
    for look in &looks {
        if let Sight::Error(node, error) = &look.sight
            && !with_parts.contains(node)
        {
            errors.entry(*node).or_insert_with(|| error.clone());
        }
    }
    let alone = check.spec().scope == Scope::Node;
    let out = |node: &&NodeId| {
        errors.contains_key(node) || lost.contains_key(node) || (!alone && with_parts.contains(node))
    };
    let able: BTreeSet<NodeId> = nodes.iter().filter(|node| !out(node)).copied().collect();
    let rounds = mine.len();
    let (shown, next) = match check.spec().scope {
        _ if nodes.is_empty() => (Shown::Skipped("no node is left that could measure it".into()), None),
        Scope::Node => of_nodes(check, &able, &looks, rounds),
        Scope::Pair if nodes.len() < 2 => {
            (Shown::Skipped("one node only: there is no pair to measure".into()), None)
        }
        Scope::Pair => of_pairs((check, suite.engine), (&nodes, &able), &looks, rounds, known),
        Scope::All if nodes.len() < 2 => {
            (Shown::Skipped("one node only: there is nobody to measure it with".into()), None)
        }
        Scope::All => of_all((check, suite.engine), &able, &looks, rounds, known),
    };
    CheckState { check, nodes, unfit: BTreeMap::new(), looks, errors, parts, lost, shown, next }
}

fn round(check: CheckName, purpose: Purpose, mode: Mode, groups: Vec<Vec<NodeId>>) -> Option<Round> {
    (!groups.is_empty()).then_some(Round { index: 0, check, purpose, mode, groups })
}

/// Every node measures by itself; after a miss all measure again at once, so that the windows are alike. Who misses
/// in every one of them is at fault.
fn of_nodes(
    check: CheckName,
    able: &BTreeSet<NodeId>,
    looks: &[Look],
    rounds: usize,
) -> (Shown, Option<Round>) {
    let singles = || able.iter().map(|node| vec![*node]).collect();
    if rounds == 0 {
        let nothing = Shown::Nodes { failed: BTreeSet::new(), flaky: BTreeSet::new() };
        return (nothing, round(check, Purpose::First, Mode::Full, singles()));
    }
    let windows: BTreeSet<u32> = looks.iter().map(|look| look.round).collect();
    let missed_in = |window: u32| -> BTreeSet<Number> {
        let missed = looks.iter().filter(|look| look.round == window && look.sight == Sight::Miss);
        missed.flat_map(|look| look.misses().map(Evidence::number)).collect()
    };
    let missed: Vec<BTreeSet<Number>> = windows.into_iter().map(missed_in).collect();
    let nodes_of = |numbers: &BTreeSet<Number>| -> BTreeSet<NodeId> {
        numbers.iter().flat_map(|(subject, ..)| subject.nodes()).collect()
    };
    let numbers: BTreeSet<Number> = missed.iter().flatten().cloned().collect();
    let ever = nodes_of(&numbers);
    let always: BTreeSet<Number> =
        numbers.into_iter().filter(|number| missed.iter().all(|window| window.contains(number))).collect();
    let enough = windows_to_blame(looks, &always, &missed);
    let always = nodes_of(&always);
    if rounds < enough && always.iter().any(|node| able.contains(node)) {
        let open = Shown::Nodes { failed: BTreeSet::new(), flaky: ever };
        return (open, round(check, Purpose::Confirm, Mode::Full, singles()));
    }
    let failed = if rounds < enough { BTreeSet::new() } else { always };
    let flaky = &ever - &failed;
    (Shown::Nodes { failed, flaky }, None)
}

/// In how many windows those that missed in `all` so far must miss, so that it is no chance for any of them: by how many
/// numbers there are, and how many of those that missed did so in some windows only.
fn windows_to_blame(looks: &[Look], always: &BTreeSet<Number>, missed: &[BTreeSet<Number>]) -> usize {
    let mut weights: BTreeMap<Number, Weight> = BTreeMap::new();
    for one in looks.iter().flat_map(Look::misses).filter(|one| always.contains(&one.number())) {
        let weight = weights.entry(one.number()).or_insert(Weight::Certain);
        *weight = (*weight).min(Weight::of(one));
    }
    let scattering = |look: &Look| look.evidence.iter().filter(|one| scatters(one)).count();
    let numbers = looks.iter().map(scattering).sum::<usize>() / missed.len().max(1);
    let came_and_went: usize = missed.iter().map(|window| window.len() - always.len()).sum();
    let share = share(came_and_went, numbers * missed.len());
    let least = weights.values().map(|weight| misses_to_blame(*weight, numbers, share)).max();
    least.unwrap_or(0).clamp(WINDOWS_TO_BLAME, MAX_WINDOWS)
}

/// The check's opening rounds, then meetings until nothing would tell more.
fn of_pairs(
    (check, engine): (CheckName, Engine),
    (nodes, able): (&BTreeSet<NodeId>, &BTreeSet<NodeId>),
    looks: &[Look],
    rounds: usize,
    (leaves, at_fault): Before<'_>,
) -> (Shown, Option<Round>) {
    let opening = opening(check, nodes);
    let modes: BTreeSet<Mode> = opening.iter().map(|(mode, _)| *mode).collect();
    let states: Vec<(Channel, PairState)> = modes
        .into_iter()
        .flat_map(|mode| {
            let own = opening.iter().filter(|(other, _)| *other == mode).count();
            let channels = channels(mode, looks.iter());
            let count = channels.len();
            channels.into_iter().map(move |channel| (channel, own, count))
        })
        .map(|(channel, opening, channels)| {
            let setting = Setting { nodes: able, leaves, at_fault, opening, channels, engine };
            (channel, pairs(&channel.looks(looks), setting))
        })
        .collect();
    // A group that lost a member is dropped; its other member meets somebody later.
    let next = opening
        .into_iter()
        .skip(rounds)
        .find_map(|(mode, mut groups)| {
            groups.retain(|group| group.iter().all(|node| able.contains(node)));
            round(check, Purpose::First, mode, groups)
        })
        .or_else(|| meeting(check, &states));
    (Shown::Pairs(states), next)
}

/// All nodes at once; after two misses pairs of the same collective, so that a cause can be named. A round that
/// a node spoilt is made again without it.
fn of_all(
    (check, engine): (CheckName, Engine),
    able: &BTreeSet<NodeId>,
    looks: &[Look],
    rounds: usize,
    (leaves, at_fault): Before<'_>,
) -> (Shown, Option<Round>) {
    let together: Vec<&Look> = looks.iter().filter(|look| look.purpose != Purpose::Localise).collect();
    let missed = misses(&together, rounds);
    let fine = together.iter().any(|look| look.sight == Sight::Fine);
    let shown = |pairs| Shown::All { misses: missed, measured: fine || missed > 0, pairs };
    let everybody = |purpose: Purpose| {
        let groups = if able.len() < 2 { Vec::new() } else { vec![able.iter().copied().collect()] };
        round(check, purpose, Mode::Full, groups)
    };
    match (missed, fine) {
        (0, false) if rounds < MAX_SPOILT_ROUNDS => return (shown(Vec::new()), everybody(Purpose::First)),
        (1, false) if rounds < MAX_SPOILT_ROUNDS => return (shown(Vec::new()), everybody(Purpose::Confirm)),
        (2.., false) if able.len() > 2 => {}
        _ => return (shown(Vec::new()), None),
    }
    let met = || looks.iter().filter(|look| look.purpose == Purpose::Localise);
    let opening = ring_edges(able);
    let channels = channels(Mode::Full, met());
    let (opened, count) = (opening.len(), channels.len());
    let setting = Setting { nodes: able, leaves, at_fault, opening: opened, channels: count, engine };
    let states: Vec<(Channel, PairState)> =
        channels.into_iter().map(|channel| (channel, pairs(&channel.of(met()), setting))).collect();
    let meetings: BTreeSet<u32> = met().map(|look| look.round).collect();
    let next = match opening.into_iter().nth(meetings.len()) {
        Some(groups) => round(check, Purpose::Localise, Mode::Full, groups),
        // Whatever they are for, pairs of an all-node check are there to find a culprit.
        None => meeting(check, &states).map(|round| Round { purpose: Purpose::Localise, ..round }),
    };
    (shown(states), next)
}

/// How often all nodes together missed, by the number that did so most often: one size's miss does not confirm another's.
/// When there are no rounds left to confirm it, any of them counts.
fn misses(together: &[&Look], rounds: usize) -> usize {
    let missed = together.iter().filter(|look| look.sight == Sight::Miss);
    if rounds >= MAX_SPOILT_ROUNDS {
        return missed.count();
    }
    let mut often: BTreeMap<Number, usize> = BTreeMap::new();
    for look in missed {
        for number in look.misses().map(Evidence::number).collect::<BTreeSet<_>>() {
            *often.entry(number).or_default() += 1;
        }
    }
    often.into_values().max().unwrap_or(0)
}

/// The rails that the looks of a mode tell apart, else the mode as a whole.
fn channels<'l>(mode: Mode, looks: impl Iterator<Item = &'l Look>) -> Vec<Channel> {
    let rails: BTreeSet<u32> = looks
        .filter(|look| look.mode == mode && look.group.len() == 2)
        .flat_map(|look| look.evidence.iter().filter_map(|one| one.subject.rail()))
        .collect();
    if rails.is_empty() {
        return vec![Channel { mode, rail: None }];
    }
    rails.into_iter().map(|rail| Channel { mode, rail: Some(rail) }).collect()
}

/// The meetings that any channel asks for. One meeting measures all rails, so those of several rails are made at
/// once where they don't share a node.
fn meeting(check: CheckName, states: &[(Channel, PairState)]) -> Option<Round> {
    let (first, purpose) = states.iter().find_map(|(channel, state)| Some((channel, state.purpose?)))?;
    let mut busy = BTreeSet::new();
    let mut groups = Vec::new();
    for (_, state) in states.iter().filter(|(channel, _)| channel.mode == first.mode) {
        for &(a, b) in &state.next {
            let free = first.mode == Mode::Reach || (!busy.contains(&a) && !busy.contains(&b));
            if free && !groups.contains(&vec![a, b]) {
                busy.extend([a, b]);
                groups.push(vec![a, b]);
            }
        }
    }
    groups.sort_unstable();
    round(check, purpose, first.mode, groups)
}

/// Neighbours in the ring of all nodes: every edge once, in two rounds; of an odd number the last and the first meet in
/// a third.
fn ring_edges(nodes: &BTreeSet<NodeId>) -> Vec<Vec<Vec<NodeId>>> {
    let mut list: Vec<NodeId> = nodes.iter().copied().collect();
    let pairs = |list: &[NodeId]| -> Vec<Vec<NodeId>> {
        list.chunks_exact(2).map(|pair| vec![pair[0].min(pair[1]), pair[0].max(pair[1])]).collect()
    };
    let mut rounds = vec![pairs(&list)];
    list.rotate_left(1);
    rounds.push(pairs(&list));
    if let [.., last, first] = list[..]
        && list.len() % 2 == 1
    {
        rounds.push(pairs(&[last, first]));
    }
    rounds
}

/// The rounds that a pair check makes whatever they show.
fn opening(check: CheckName, nodes: &BTreeSet<NodeId>) -> Vec<(Mode, Vec<Vec<NodeId>>)> {
    let list: Vec<NodeId> = nodes.iter().copied().collect();
    let chain = |from: usize| -> Vec<Vec<NodeId>> {
        list.get(from..).unwrap_or_default().chunks_exact(2).map(<[NodeId]>::to_vec).collect()
    };
    let mut rounds = Vec::new();
    if check == CheckName::NetworkConnectivity && list.len() > 2 {
        // Head and tail of the job reach everybody: two views of each node for two light rounds.
        let (head, tail) = (list[0], list[list.len() - 1]);
        rounds.push((Mode::Reach, list[1..].iter().map(|node| vec![head, *node]).collect()));
        rounds.push((Mode::Reach, list[1..list.len() - 1].iter().map(|node| vec![*node, tail]).collect()));
    }
    rounds.push((Mode::Full, chain(0)));
    if check == CheckName::NetworkConnectivity && list.len() > 2 {
        rounds.push((Mode::Full, chain(1)));
    }
    rounds
}
