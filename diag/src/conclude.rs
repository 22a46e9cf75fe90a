//! From what is known of each check to the verdict: one finding a subject, and the outcome of the suite.

use std::collections::{BTreeMap, BTreeSet};

use crate::check::{CheckName, Phase};
use crate::facts::{NodeId, Roster};
use crate::judge::{Evidence, Look, Sight, Suite};
use crate::localise::PairState;
use crate::measurement::{ErrorKind, Metric, Subject};
use crate::plan::{CheckState, Shown, states};
use crate::round::{Mode, RoundResult};
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
    let mut findings = meeting(suite, roster);
    let mut failed_before: BTreeMap<NodeId, CheckName> = BTreeMap::new();
    for state in &states {
        findings.extend(of_check(roster, state, &failed_before));
        for node in state.failed() {
            failed_before.entry(node).or_insert(state.check);
        }
    }
    if let Some(why) = stopped {
        findings.push(out_of_time(suite, &states, why));
    }
    let (outcome, summary) = outcome(roster, &findings, caps);
    Verdict { outcome, summary, timed_out: stopped.is_some(), findings }
}

fn blank(check: Option<CheckName>, status: Status, subject: Subject, message: String) -> Finding {
    Finding {
        check,
        phase: check.map_or(Phase::CheckInit, |check| check.spec().phase),
        status,
        class: None,
        subject,
        peers: Vec::new(),
        metric: None,
        value: None,
        limit: None,
        median: None,
        samples: Vec::new(),
        message,
        started_at: None,
        finished_at: None,
    }
}

/// Nodes that did not join, can't measure, or differ from the leader.
fn meeting(suite: &Suite, roster: &Roster) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (node, entry) in (0..).zip(&roster.nodes) {
        let trouble = match (&entry.joined, &entry.absent_because) {
            (Some(joined), None) => joined.facts.unable.clone(),
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

fn of_check(
    roster: &Roster,
    state: &CheckState,
    failed_before: &BTreeMap<NodeId, CheckName>,
) -> Vec<Finding> {
    let check = Some(state.check);
    if let Shown::Skipped(why) = &state.shown {
        return vec![blank(check, Status::Skip, Subject::Run, why.clone())];
    }
    let mut findings = Vec::new();
    for (node, cause) in failed_before.iter().filter(|(node, _)| !state.nodes.contains(node)) {
        let message = format!("{} sat out: it failed {cause}", roster.name(*node));
        findings.push(blank(check, Status::Skip, Subject::Node { node: *node }, message));
    }
    for (node, because) in &state.lost {
        let message = format!(
            "{} was lost during {}: {because}; its health is not known",
            roster.name(*node),
            state.check
        );
        findings.push(blank(check, Status::Error, Subject::Node { node: *node }, message));
    }
    for (node, error) in &state.errors {
        let message = format!("{}: {}", roster.name(*node), error.message);
        findings.push(if error.kind == ErrorKind::Timeout {
            let class = Some(FaultClass::Timeout);
            Finding { class, ..blank(check, Status::Fail, Subject::Run, message) }
        } else {
            blank(check, Status::Error, Subject::Node { node: *node }, message)
        });
    }
    match &state.shown {
        Shown::Nodes { failed, flaky } => findings.extend(of_nodes(roster, state, failed, flaky)),
        Shown::Pairs(modes) => {
            // A node that is at fault by one way of measuring explains what the other ways show of its pairs.
            let failed = state.failed();
            let mut named = BTreeSet::new();
            for (mode, pairs) in modes {
                for (&node, partners) in pairs.bad.iter().filter(|(node, _)| named.insert(**node)) {
                    findings.push(of_bad(roster, state, *mode, node, partners));
                }
                findings.extend(of_pairs(roster, state, *mode, pairs, &failed));
            }
        }
        Shown::Skipped(_) => {}
    }
    findings
}

fn of_nodes(
    roster: &Roster,
    state: &CheckState,
    failed: &BTreeSet<NodeId>,
    flaky: &BTreeSet<NodeId>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for &node in &state.nodes {
        let looks: Vec<&Look> = state.looks.iter().filter(|look| look.group == [node]).collect();
        let measured = looks.iter().any(|look| matches!(look.sight, Sight::Fine | Sight::Miss));
        if !measured || state.errors.contains_key(&node) || state.lost.contains_key(&node) {
            continue;
        }
        let subject = Subject::Node { node };
        let name = roster.name(node);
        findings.push(if failed.contains(&node) {
            let words = |one: &Evidence| wording::node_failed(name, state.check, one);
            from_looks(state.check, Status::Fail, Some(FaultClass::Part), subject, &looks, words)
        } else if flaky.contains(&node) && state.next.is_some() {
            let words = |one: &Evidence| wording::not_confirmed(name, state.check, one);
            from_looks(state.check, Status::Error, None, subject, &looks, words)
        } else {
            let again = flaky.contains(&node);
            let words = |one: &Evidence| wording::fine(name, state.check, one, again);
            from_looks(state.check, Status::Pass, None, subject, &looks, words)
        });
    }
    findings
}

/// A node that missed with several good partners. Where every miss is a port that can't be reached, the finding is
/// about a way to that node, or from it: a setting, no part.
fn of_bad(roster: &Roster, state: &CheckState, mode: Mode, node: NodeId, partners: &[NodeId]) -> Finding {
    let check = state.check;
    let of_node = |look: &&Look| look.mode == mode && look.group.contains(&node) && look.sight == Sight::Miss;
    let missed: Vec<&Look> = state.looks.iter().filter(of_node).collect();
    let names: Vec<&str> = partners.iter().map(|other| roster.name(*other)).collect();
    let class = class_of(&missed, FaultClass::Part);
    let mut finding = match blocked_way(&missed, node).filter(|_| class == FaultClass::Config) {
        Some(look) => {
            let subject = look.evidence[0].subject.clone();
            let words = |one: &Evidence| wording::node_blocked(roster.name(node), check, one, &names);
            from_looks(check, Status::Fail, Some(class), subject, &[&look], words)
        }
        None => {
            let words = |one: &Evidence| wording::node_failed_with(roster.name(node), check, one, &names);
            from_looks(check, Status::Fail, Some(class), Subject::Node { node }, &missed, words)
        }
    };
    finding.peers = partners.to_vec();
    finding
}

/// The miss that shows best which ports of `node` are closed: on the way to it, else on the way from it.
fn blocked_way(missed: &[&Look], node: NodeId) -> Option<Look> {
    let ways = || missed.iter().flat_map(|look| look.misses().map(move |one| (*look, one)));
    let inward = |one: &Evidence| matches!(one.subject, Subject::Path { to, .. } if to == node);
    let (look, one) = ways().find(|(_, one)| inward(one)).or_else(|| ways().next())?;
    Some(Look { evidence: vec![one.clone()], ..look.clone() })
}

fn of_pairs(
    roster: &Roster,
    state: &CheckState,
    mode: Mode,
    pairs: &PairState,
    failed: &BTreeSet<NodeId>,
) -> Vec<Finding> {
    let check = state.check;
    let mut findings = Vec::new();
    let looks_at = |holds: &dyn Fn(&[NodeId]) -> bool| -> Vec<&Look> {
        state.looks.iter().filter(|look| look.mode == mode && holds(&look.group)).collect()
    };
    let groups: BTreeSet<&[NodeId]> =
        state.looks.iter().filter(|look| look.mode == mode).map(|look| look.group.as_slice()).collect();
    for group in groups {
        let &[a, b] = group else { continue };
        let looks = looks_at(&|other| other == group);
        let missed = looks.iter().any(|look| look.sight == Sight::Miss);
        let fine = looks.iter().any(|look| look.sight == Sight::Fine);
        let names = (roster.name(a), roster.name(b));
        let explained = failed.contains(&a) || failed.contains(&b);
        if pairs.links.contains(&(a, b)) && !explained {
            let class = class_of(&looks, FaultClass::Link);
            let words = |one: &Evidence| wording::link_failed(names, check, one);
            let subject = Subject::Link { a, b };
            findings.push(from_looks(check, Status::Fail, Some(class), subject, &looks, words));
        } else if missed && !fine && !explained {
            findings.push(undecided(state, pairs, (a, b), names, &looks));
        } else if fine {
            let words = |one: &Evidence| wording::pair_fine(names, check, one, missed);
            findings.push(from_looks(check, Status::Pass, None, Subject::Pair { a, b }, &looks, words));
        }
    }
    findings
}

/// A pair that missed and that nothing explains: a path that is known to be blocked, two suspects, or a pair that
/// there was no time to look at again.
fn undecided(
    state: &CheckState,
    pairs: &PairState,
    (a, b): (NodeId, NodeId),
    names: (&str, &str),
    looks: &[&Look],
) -> Finding {
    let check = state.check;
    let blocked = class_of(looks, FaultClass::Part) == FaultClass::Config;
    if blocked && looks.len() > 1 {
        let words = |one: &Evidence| wording::path_blocked(check, one);
        let subject = Subject::Link { a, b };
        return from_looks(check, Status::Fail, Some(FaultClass::Config), subject, looks, words);
    }
    if state.next.is_some() && !pairs.suspects.is_empty() && looks.len() < 2 {
        let name = format!("{} and {}", names.0, names.1);
        let words = |one: &Evidence| wording::not_confirmed(&name, check, one);
        return from_looks(check, Status::Error, None, Subject::Pair { a, b }, looks, words);
    }
    let words = |one: &Evidence| wording::suspect(names, check, one);
    from_looks(check, Status::Suspect, None, Subject::Pair { a, b }, looks, words)
}

/// `Config` where every miss is a port that could not be reached, else `other`.
fn class_of(looks: &[&Look], other: FaultClass) -> FaultClass {
    let mut misses = looks.iter().flat_map(|look| look.misses()).peekable();
    let blocked = misses.peek().is_some() && misses.all(|one| one.metric == Metric::Reachable);
    if blocked { FaultClass::Config } else { other }
}

/// A finding around the number that decides: the worst miss for a fault, else the number nearest to its limit.
fn from_looks(
    check: CheckName,
    status: Status,
    class: Option<FaultClass>,
    subject: Subject,
    looks: &[&Look],
    words: impl Fn(&Evidence) -> String,
) -> Finding {
    let mut finding = Finding { class, ..blank(Some(check), status, subject, String::new()) };
    // A pass is shown by a look that was fine, a fault by one that was not.
    let wanted = if status == Status::Pass { Sight::Fine } else { Sight::Miss };
    let shown = looks.iter().filter(|look| look.sight == wanted).flat_map(|look| &look.evidence);
    let Some(decisive) = shown.max_by(|one, other| strain(one).total_cmp(&strain(other))) else {
        finding.message = format!("{check}: no number to show");
        return finding;
    };
    let same = |one: &&Evidence| one.metric == decisive.metric;
    let all = || looks.iter().flat_map(|look| &look.evidence).filter(same);
    finding.metric = Some(decisive.metric);
    finding.value = Some(decisive.value);
    finding.limit.clone_from(&decisive.limit);
    finding.median = decisive.median;
    finding.samples = all().map(|one| one.value).collect();
    finding.started_at = all().map(|one| one.started_at).min();
    finding.finished_at = all().map(|one| one.finished_at).max();
    finding.message = words(decisive);
    if let Subject::Pair { a, b } = finding.subject {
        finding.peers = vec![a, b];
    }
    finding
}

/// How close a number is to its limit, or how far beyond: 1 is at the limit, more is worse. Shares of right
/// results and of reached ports strain only when they miss.
fn strain(one: &Evidence) -> f64 {
    let Some(limit) = &one.limit else { return 0.0 };
    if !one.miss && matches!(one.metric, Metric::Correct | Metric::Reachable) {
        return -1.0;
    }
    // Any wrong result or closed port outweighs any slowness.
    if one.miss && matches!(one.metric, Metric::Correct | Metric::Reachable) {
        return f64::MAX;
    }
    let ratio = if one.metric.higher_is_better() { limit.value / one.value } else { one.value / limit.value };
    if ratio.is_nan() { f64::MAX } else { ratio }
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
fn outcome(roster: &Roster, findings: &[Finding], caps: Caps) -> (Outcome, String) {
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
    let allowed = allowed_drains(size, caps);
    if parts.len() > allowed {
        let why = format!(
            "{} of {size} nodes fail, more than the {allowed} that one verdict may take out of service: the \
             fabric, the site or this software is at fault",
            parts.len()
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

/// Most nodes that one verdict may drain.
fn allowed_drains(size: usize, caps: Caps) -> usize {
    let nodes = u32::try_from(size).unwrap_or(u32::MAX);
    let share = (f64::from(nodes) * caps.max_drain_fraction).ceil().max(1.0);
    // A site that drains nobody still has nodes that break one at a time.
    let most = caps.max_drain_nodes.max(1);
    // The smaller of the two bounds; counting up avoids a float-to-integer cast.
    (1..=most).take_while(|count| f64::from(*count) <= share).count()
}

/// The check, if any, that more than half of the nodes that it measured fail.
fn same_failure(findings: &[Finding]) -> Option<CheckName> {
    #[derive(Default)]
    struct Tally {
        measured: BTreeSet<NodeId>,
        failed: BTreeSet<NodeId>,
    }
    let mut tallies: BTreeMap<CheckName, Tally> = BTreeMap::new();
    for finding in findings {
        let Some(check) = finding.check else { continue };
        let tally = tallies.entry(check).or_default();
        let own = matches!(finding.subject, Subject::Node { .. });
        match finding.status {
            Status::Fail if own => tally.failed.extend(finding.subject.nodes()),
            Status::Suspect => tally.failed.extend(finding.subject.nodes()),
            Status::Fail | Status::Pass => {}
            Status::Skip | Status::Error => continue,
        }
        tally.measured.extend(finding.subject.nodes());
    }
    tallies
        .into_iter()
        .find(|(_, tally)| {
            tally.measured.len() >= ENVIRONMENT_MIN_NODES && tally.failed.len() * 2 > tally.measured.len()
        })
        .map(|(check, _)| check)
}
