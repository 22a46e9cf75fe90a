//! From what is known of all checks to the verdict: the findings and the outcome of the suite.

use std::collections::{BTreeMap, BTreeSet};

use crate::check::{CheckName, Scope};
use crate::explain;
use crate::facts::{NodeId, Roster};
use crate::findings::{blank, of_check};
use crate::gpu_facts::FactKind;
use crate::judge::Suite;
use crate::measurement::{Metric, Subject};
use crate::plan::{CheckState, states};
use crate::round::RoundResult;
use crate::verdict::{FaultClass, Finding, Outcome, Status, Verdict};
use crate::wording;

/// Bounds on how many nodes one verdict may call broken before it is the site that is broken.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Caps {
    /// Most nodes.
    pub max_drain_nodes: u32,
    /// Most nodes as a share of the job, rounded up, at least one.
    pub max_drain_fraction: f64,
}

/// Fewest nodes of a job for which "more than half fail in the same way" says something.
const ENVIRONMENT_MIN_NODES: usize = 3;

/// The verdict on everything that was measured. `stopped` says why the suite ended before its last round, if so.
#[must_use]
pub fn verdict(
    suite: &Suite,
    roster: &Roster,
    results: &[RoundResult],
    caps: Caps,
    stopped: Option<&str>,
) -> Verdict {
    let states = states(suite, roster, results);
    let facts = &suite.hardware.facts;
    let mut findings = meeting(suite, roster);
    let at_fault = explain::nodes_with(facts, FactKind::Fault)
        .into_iter()
        .chain(explain::nodes_with(facts, FactKind::Unusable));
    let mut failed_before: BTreeMap<NodeId, String> =
        at_fault.map(|node| (node, "before the first check".to_owned())).collect();
    for state in &states {
        findings.extend(of_check(roster, state, &failed_before));
        for node in state.failed() {
            failed_before.entry(node).or_insert_with(|| state.check.to_string());
        }
    }
    let notes = explain::causes(facts, results, &mut findings);
    explain_disagreements(&mut findings);
    if let Some(why) = stopped {
        findings.push(out_of_time(suite, &states, why));
    }
    let (outcome, summary) = outcome(roster, &findings, caps);
    Verdict { outcome, summary, timed_out: stopped.is_some(), findings, notes }
}

/// The verdict once it is known that other jobs run on some of the nodes: by node, one of them.
#[must_use]
pub fn beside_others(
    verdict: Verdict,
    roster: &Roster,
    caps: Caps,
    others: &BTreeMap<NodeId, u32>,
) -> Verdict {
    let mut findings = verdict.findings;
    explain::neighbours(others, roster, &mut findings);
    let (outcome, summary) = outcome(roster, &findings, caps);
    Verdict { outcome, summary, findings, ..verdict }
}

/// Nodes that did not join, can't measure, or differ from the leader, and what is known of the others.
fn meeting(suite: &Suite, roster: &Roster) -> Vec<Finding> {
    let facts = &suite.hardware.facts;
    let skipped = explain::nodes_with(facts, FactKind::Skip);
    let mut findings = explain::known(facts);
    for (node, entry) in (0..).zip(&roster.nodes) {
        let trouble = match (&entry.joined, &entry.absent_because) {
            // What need not work there need not be able to.
            (Some(joined), None) => joined.facts.unable.clone().filter(|_| !skipped.contains(&node)),
            (_, Some(because)) => Some(because.clone()),
            (None, None) => Some("did not join the meeting of the job's nodes".into()),
        };
        if let Some(trouble) = trouble {
            let message = format!("{}: {trouble}", entry.name);
            findings.push(blank(None, Status::Error, Subject::Node { node }, message));
        }
    }
    for check in &suite.unbuilt {
        let message = format!("{check}: this build can't measure it on engine {}", suite.engine);
        findings.push(blank(Some(*check), Status::Error, Subject::Run, message));
    }
    if findings.is_empty() && suite.checks.is_empty() {
        findings.push(blank(None, Status::Skip, Subject::Run, "no check was asked for".into()));
    }
    findings
}

/// Says of a node at fault in which checks of the same phase it was fine: one fault that only some traffic meets
/// is one verdict, not a contradiction.
fn explain_disagreements(findings: &mut [Finding]) {
    if !findings.iter().any(Finding::is_part_fault) {
        return;
    }
    let passed: Vec<(CheckName, Vec<NodeId>)> = findings
        .iter()
        .filter(|one| one.status == Status::Pass)
        .filter_map(|one| Some((one.check?, one.subject.nodes())))
        .collect();
    for finding in findings.iter_mut().filter(|one| one.is_part_fault()) {
        let nodes = finding.subject.nodes();
        let mut fine: Vec<&str> = passed
            .iter()
            .filter(|(check, others)| {
                Some(*check) != finding.check
                    && check.spec().phase == finding.phase
                    && others.iter().any(|node| nodes.contains(node))
            })
            .map(|(check, _)| check.spec().text)
            .collect();
        fine.dedup();
        if !fine.is_empty() {
            finding.message.push_str(&format!("; fine in {}", wording::listed(&fine)));
        }
    }
}

fn out_of_time(suite: &Suite, states: &[CheckState], why: &str) -> Finding {
    let open = states.iter().find(|state| state.next.is_some()).map(|state| state.check);
    let open = open.or_else(|| suite.checks.get(states.len()).copied());
    let from = open.and_then(|open| suite.checks.iter().position(|check| *check == open));
    let left: Vec<String> = suite.checks[from.unwrap_or(0)..].iter().map(ToString::to_string).collect();
    let message = format!("{why}; not finished: {}", left.join(", "));
    let class = Some(FaultClass::Timeout);
    Finding { class, ..blank(open.or(suite.checks.first().copied()), Status::Fail, Subject::Run, message) }
}

/// What all findings amount to, with a sentence.
pub(crate) fn outcome(roster: &Roster, findings: &[Finding], caps: Caps) -> (Outcome, String) {
    let size = roster.nodes.len();
    let parts: BTreeSet<NodeId> =
        findings.iter().filter(|one| one.is_part_fault()).flat_map(|one| one.subject.nodes()).collect();
    if let Some(check) = same_failure(findings) {
        let why = format!(
            "more than half of the nodes fail {check} in the same way: the fabric, the site or this software is \
             at fault, no single node"
        );
        return (Outcome::Environment, why);
    }
    let before = |one: &&Finding| one.check.is_none() && one.is_part_fault();
    let broken: BTreeSet<NodeId> =
        findings.iter().filter(before).flat_map(|one| one.subject.nodes()).collect();
    if size >= ENVIRONMENT_MIN_NODES && broken.len() * 2 > size {
        let why = format!(
            "{} of {size} nodes are at fault before anything is measured: the site or this software is at fault, no \
             single node",
            broken.len()
        );
        return (Outcome::Environment, why);
    }
    let allowed = allowed_drains(size, caps);
    let alike = alike(findings);
    if let Some(count) = [Some(parts.len()), alike].into_iter().flatten().find(|count| *count > allowed) {
        let why = format!(
            "{count} of {size} nodes fail, more than the {allowed} that one verdict may take out of service: the \
             fabric, the site or this software is at fault"
        );
        return (Outcome::Environment, why);
    }
    let has = |status: Status| findings.iter().any(|one| one.status == status);
    let outcome = if has(Status::Fail) {
        Outcome::Fail
    } else if has(Status::Suspect) {
        Outcome::Suspect
    } else if has(Status::Error) {
        Outcome::Error
    } else if has(Status::Pass) {
        Outcome::Pass
    } else {
        Outcome::Skip
    };
    (outcome, wording::summary(outcome, size, findings))
}

/// How many nodes look as bad to each other, those that are not told from the ways to them too: so many have one cause. What a
/// node shows by itself has another, and nodes that are only suspected do not speak for it.
fn alike(findings: &[Finding]) -> Option<usize> {
    let between = |one: &&Finding| one.check.is_some_and(|check| check.spec().scope != Scope::Node);
    let unsure = |one: &&Finding| one.status == Status::Suspect && one.class == Some(FaultClass::Part);
    let at_fault = || findings.iter().filter(|one| one.is_part_fault());
    let named: BTreeSet<NodeId> = at_fault().filter(between).flat_map(|one| one.subject.nodes()).collect();
    if named.is_empty() && at_fault().next().is_some() {
        return None;
    }
    let unsure = findings.iter().filter(unsure).flat_map(|one| one.subject.nodes());
    Some(unsure.chain(named.iter().copied()).collect::<BTreeSet<_>>().len())
}

/// Most nodes that one verdict may drain.
pub(crate) fn allowed_drains(size: usize, caps: Caps) -> usize {
    let nodes = u32::try_from(size).unwrap_or(u32::MAX);
    let share = (f64::from(nodes) * caps.max_drain_fraction).ceil().max(1.0);
    // A site that drains nobody still has nodes that break one at a time.
    let most = caps.max_drain_nodes.max(1);
    // The smaller of the two bounds; counting up avoids a float-to-integer cast.
    (1..=most).take_while(|count| f64::from(*count) <= share).count()
}

/// The check, if any, that more than half of the nodes that it measured fail. A node that is suspected counts unless it was
/// fine with somebody by the same quantity, and two of those count as one: of a pair that can't be told apart one at least is at fault, not both.
/// Where nobody was fine with anybody there is nothing to count.
fn same_failure(findings: &[Finding]) -> Option<CheckName> {
    #[derive(Default)]
    struct Tally {
        measured: BTreeSet<NodeId>,
        failed: BTreeSet<NodeId>,
        suspected: BTreeSet<(NodeId, Option<Metric>)>,
        fine: BTreeSet<(NodeId, Option<Metric>)>,
    }
    let mut tallies: BTreeMap<CheckName, Tally> = BTreeMap::new();
    for finding in findings {
        let Some(check) = finding.check else { continue };
        let tally = tallies.entry(check).or_default();
        let nodes = finding.subject.nodes();
        let by_metric = nodes.iter().map(|node| (*node, finding.metric));
        match finding.status {
            Status::Fail if matches!(finding.subject, Subject::Node { .. }) => tally.failed.extend(&nodes),
            Status::Suspect => tally.suspected.extend(by_metric),
            Status::Pass => tally.fine.extend(by_metric),
            Status::Fail => {}
            Status::Skip | Status::Error => continue,
        }
        tally.measured.extend(&nodes);
    }
    let fails = |tally: &Tally| {
        let measured = tally.measured.len();
        let suspected = tally.suspected.difference(&tally.fine).map(|(node, _)| *node);
        let suspected = suspected.filter(|node| !tally.failed.contains(node)).collect::<BTreeSet<_>>().len();
        let all = tally.failed.len() + suspected == measured;
        let at_fault = tally.failed.len() + suspected.div_ceil(2);
        measured >= ENVIRONMENT_MIN_NODES && (all || at_fault * 2 > measured)
    };
    tallies.into_iter().find(|(_, tally)| fails(tally)).map(|(check, _)| check)
}
