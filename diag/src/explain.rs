//! What is known of the hardware as findings: a part at fault, a check that does not apply, a thing to mend; and slow
//! results that a cause explains, which are nobody's fault then.

use std::collections::{BTreeMap, BTreeSet};

use crate::check::Scope;
use crate::facts::{NodeId, Roster};
use crate::findings::blank;
use crate::gpu_facts::{Fact, FactKind};
use crate::measurement::{Metric, Subject};
use crate::round::{NodeOutcome, RoundResult};
use crate::verdict::{FaultClass, Finding, Status};

/// Most causes that a finding names.
const MOST_CAUSES: usize = 3;

/// The findings of what is known before anything is measured: one a part and kind, however much is wrong with it.
pub(crate) fn known(facts: &[Fact]) -> Vec<Finding> {
    let mut by_part: BTreeMap<(FactKind, &Subject), Vec<&str>> = BTreeMap::new();
    for fact in facts {
        by_part.entry((fact.kind, &fact.subject)).or_default().push(&fact.words);
    }
    let finding = |((kind, subject), words): ((FactKind, &Subject), Vec<&str>)| {
        let (status, class) = match kind {
            FactKind::Fault => (Status::Fail, Some(FaultClass::Part)),
            FactKind::Skip => (Status::Skip, None),
            FactKind::Unusable | FactKind::Error => (Status::Error, None),
            FactKind::Cause | FactKind::Note => return None,
        };
        Some(Finding { class, ..blank(None, status, subject.clone(), words.join("; ")) })
    };
    by_part.into_iter().filter_map(finding).collect()
}

/// Nodes that a kind of fact is about.
pub(crate) fn nodes_with(facts: &[Fact], kind: FactKind) -> BTreeSet<NodeId> {
    facts.iter().filter(|fact| fact.kind == kind).flat_map(|fact| fact.subject.nodes()).collect()
}

/// Slow results that a cause explains become errors that name it, and how to undo it. Gives what explained nothing and
/// is worth knowing.
pub(crate) fn causes(before: &[Fact], results: &[RoundResult], findings: &mut [Finding]) -> Vec<String> {
    let outcomes = results.iter().flat_map(|result| result.outcomes.values());
    let meanwhile: Vec<&Fact> =
        outcomes.flat_map(NodeOutcome::numbers).flat_map(|number| &number.facts).collect();
    let all = || before.iter().chain(meanwhile.iter().copied());
    let broken: BTreeSet<&Subject> =
        meanwhile.iter().filter(|fact| fact.kind == FactKind::Fault).map(|fact| &fact.subject).collect();
    let mut told: BTreeSet<&str> = BTreeSet::new();
    for finding in findings.iter_mut().filter(|one| is_slow(one) && !broken.contains(&one.subject)) {
        let mut words: Vec<&str> = Vec::new();
        for fact in all().filter(|fact| fact.kind == FactKind::Cause && explains(fact, finding)) {
            if !words.contains(&fact.words.as_str()) {
                words.push(&fact.words);
            }
        }
        words.truncate(MOST_CAUSES);
        if !words.is_empty() {
            excuse(finding, &format!("no fault of a part: {}", words.join("; ")));
            told.extend(words);
        }
    }
    let mut notes: Vec<String> = Vec::new();
    for fact in all().filter(|fact| matches!(fact.kind, FactKind::Cause | FactKind::Note)) {
        if !told.contains(fact.words.as_str()) && !notes.contains(&fact.words) {
            notes.push(fact.words.clone());
        }
    }
    notes
}

/// Nodes whose numbers another job's load may have spoilt: those that a number speaks against, a wrong result apart.
#[must_use]
pub fn disturbable(findings: &[Finding]) -> BTreeSet<NodeId> {
    findings.iter().filter(|one| is_disturbable(one)).flat_map(|one| one.subject.nodes()).collect()
}

/// The numbers of nodes on which another job runs are nobody's fault: on such a node nobody knows whose load it was.
pub(crate) fn neighbours(others: &BTreeMap<NodeId, u32>, roster: &Roster, findings: &mut [Finding]) {
    for finding in findings.iter_mut().filter(|one| is_disturbable(one)) {
        let Some((node, job)) = finding.subject.nodes().iter().find_map(|node| others.get_key_value(node))
        else {
            continue;
        };
        excuse(
            finding,
            &format!("job {job} runs on {} too, and its load may be the reason", roster.name(*node)),
        );
    }
}

/// A finding that blames becomes an error that says why it is nobody's fault.
fn excuse(finding: &mut Finding, why: &str) {
    finding.status = Status::Error;
    finding.class = None;
    crate::wording::add(&mut finding.message, &format!("; {why}"));
}

fn is_disturbable(finding: &Finding) -> bool {
    let blames = match finding.status {
        Status::Suspect => true,
        Status::Fail => matches!(finding.class, Some(FaultClass::Part | FaultClass::Link)),
        Status::Pass | Status::Skip | Status::Error => false,
    };
    blames && finding.metric.is_some_and(|metric| !matches!(metric, Metric::Correct | Metric::Reachable))
}

/// Whether a finding says that something is slow, and blames a part, one of two or what all share. A wrong result has no
/// such excuse, and a link whose two ends are fine with others is not slow for the sake of one of them.
fn is_slow(finding: &Finding) -> bool {
    let rate =
        matches!(finding.metric, Some(Metric::Flops | Metric::Busbw | Metric::Launch | Metric::LaunchTail));
    let blames = match finding.status {
        Status::Suspect => true,
        Status::Fail => matches!(finding.class, Some(FaultClass::Part | FaultClass::Fabric)),
        Status::Pass | Status::Skip | Status::Error => false,
    };
    rate && blames
}

fn explains(cause: &Fact, finding: &Finding) -> bool {
    let between = finding.check.is_some_and(|check| check.spec().scope != Scope::Node);
    match (&cause.subject, &finding.subject) {
        (Subject::Gpu { .. }, Subject::Gpu { .. }) => cause.subject == finding.subject,
        // As slow as its slowest member.
        (_, Subject::Fabric | Subject::FabricRail { .. }) => true,
        (Subject::Gpu { node, .. }, other) => other.nodes().contains(node),
        (Subject::Nic { node, .. } | Subject::Node { node }, other) => {
            between && other.nodes().contains(node)
        }
        _ => false,
    }
}
