//! From what is known of one check to its findings: who is fine, who is at fault and what shows it, who could not be
//! measured.

use std::collections::{BTreeMap, BTreeSet};

use crate::check::{CheckName, Phase};
use crate::facts::{NodeId, Roster};
use crate::look::{Evidence, Look, Shows, Sight, View, always_missed};
use crate::measurement::{CheckError, ErrorKind, Metric, Subject};
use crate::pair_findings::{of_channels, shared_links};
use crate::plan::{CheckState, Shown};
use crate::round::Purpose;
use crate::verdict::{FaultClass, Finding, Rate, Status};
use crate::wording;

/// A finding without a number.
#[must_use]
pub fn blank(check: Option<CheckName>, status: Status, subject: Subject, message: String) -> Finding {
    Finding {
        check,
        phase: check.map_or(Phase::CheckInit, |check| check.spec().phase),
        status,
        class: None,
        subject,
        peers: Vec::new(),
        metric: None,
        value: None,
        bytes: None,
        limit: None,
        median: None,
        samples: Vec::new(),
        rates: Vec::new(),
        message,
        started_at: None,
        finished_at: None,
    }
}

/// The findings of one check; `failed_before` says what a node failed that sits this one out.
#[must_use]
pub fn of_check(
    roster: &Roster,
    state: &CheckState,
    failed_before: &BTreeMap<NodeId, String>,
) -> Vec<Finding> {
    let check = Some(state.check);
    let mut findings = Vec::new();
    for (node, why) in &state.unfit {
        let message = format!("{}: {why}", roster.name(*node));
        findings.push(blank(check, Status::Skip, Subject::Node { node: *node }, message));
    }
    if let Shown::Skipped(why) = &state.shown {
        if findings.is_empty() {
            findings.push(blank(check, Status::Skip, Subject::Run, why.clone()));
        }
        return findings;
    }
    for (node, cause) in failed_before
        .iter()
        .filter(|(node, _)| !state.nodes.contains(node) && !state.unfit.contains_key(node))
    {
        let message = format!("{} sat out: it failed {cause}", roster.name(*node));
        findings.push(blank(check, Status::Skip, Subject::Node { node: *node }, message));
    }
    for (node, because) in &state.lost {
        let name = roster.name(*node);
        let partner = partner(state, *node);
        let with = partner.map_or_else(String::new, |other| format!(" with {}", roster.name(other)));
        let message = format!(
            "{name} was lost during {}{with}: {because}; its health is not known; see the log of slurmd on {name}",
            state.check
        );
        let lost = blank(check, Status::Error, Subject::Node { node: *node }, message);
        findings.push(Finding { peers: partner.into_iter().collect(), ..lost });
    }
    for (node, error) in &state.errors {
        let partner = partner(state, *node);
        let with = partner
            .map_or_else(String::new, |other| format!("; it was measured with {}", roster.name(other)));
        let message = format!("{}: {}{with}", roster.name(*node), error.message);
        let peers = partner.into_iter().collect();
        findings.push(if error.kind == ErrorKind::Timeout {
            let class = Some(FaultClass::Timeout);
            Finding { class, peers, ..blank(check, Status::Fail, Subject::Run, message) }
        } else {
            Finding { peers, ..blank(check, Status::Error, Subject::Node { node: *node }, message) }
        });
    }
    findings.extend(state.parts.iter().map(|(part, error)| unmeasured(roster, state, part, error)));
    match &state.shown {
        Shown::Nodes { failed, flaky } => findings.extend(of_nodes(roster, state, failed, flaky)),
        Shown::Pairs(channels) => findings.extend(of_channels(roster, state, channels)),
        Shown::All { misses, measured, pairs } => {
            let mut culprits = of_channels(roster, state, pairs);
            let shared = shared_links(roster, &mut culprits);
            findings.extend(of_all(roster, state, (*misses, *measured), &culprits, &shared));
            findings.extend(culprits);
        }
        Shown::Skipped(_) => {}
    }
    findings
}

/// A part that has no number. Time that ran out fails the run and blames nobody; of what is broken the driver itself says
/// so.
fn unmeasured(roster: &Roster, state: &CheckState, part: &Subject, error: &CheckError) -> Finding {
    let partner = part.nodes().first().and_then(|node| partner(state, *node));
    let with =
        partner.map_or_else(String::new, |other| format!("; it was measured with {}", roster.name(other)));
    let message = format!("{}: {}{with}", wording::subject(roster, part), error.message);
    let (status, class) = match error.kind {
        ErrorKind::Timeout => (Status::Fail, Some(FaultClass::Timeout)),
        ErrorKind::Broken => (Status::Fail, Some(FaultClass::Part)),
        ErrorKind::Worker | ErrorKind::Environment => (Status::Error, None),
    };
    let peers = partner.into_iter().collect();
    Finding { class, peers, ..blank(Some(state.check), status, part.clone(), message) }
}

/// With whom a node was when it was lost or could not work; `None` where it was alone, or with many.
fn partner(state: &CheckState, node: NodeId) -> Option<NodeId> {
    let ended = |look: &&Look| matches!(look.sight, Sight::Error(..) | Sight::Lost(..));
    let mut others = state.looks.iter().filter(ended).filter_map(|look| match *look.group.as_slice() {
        [a, b] if a == node => Some(b),
        [a, b] if b == node => Some(a),
        _ => None,
    });
    others.next().filter(|_| others.next().is_none())
}

fn of_nodes(
    roster: &Roster,
    state: &CheckState,
    failed: &BTreeSet<NodeId>,
    flaky: &BTreeSet<NodeId>,
) -> Vec<Finding> {
    let mut by_node: BTreeMap<NodeId, Vec<&Look>> = BTreeMap::new();
    for look in &state.looks {
        if let [node] = look.group[..] {
            by_node.entry(node).or_default().push(look);
        }
    }
    by_node.retain(|node, looks| {
        let measured = looks.iter().any(|look| matches!(look.sight, Sight::Fine | Sight::Miss));
        let able = !state.errors.contains_key(node) && !state.lost.contains_key(node);
        measured && able && state.nodes.contains(node)
    });
    let mut findings = Vec::new();
    for (node, looks) in by_node {
        let views: Vec<BTreeMap<Subject, View<'_>>> = looks.iter().map(|look| look.by_part(node)).collect();
        let parts: BTreeSet<&Subject> = views.iter().flat_map(BTreeMap::keys).collect();
        for part in parts {
            let mine: Vec<View<'_>> = looks
                .iter()
                .zip(&views)
                .map(|(look, views)| views.get(part).cloned().unwrap_or_else(|| look.of_none()))
                .collect();
            let finding = of_part(roster, state, part, &mine.iter().collect::<Vec<_>>(), failed, flaky);
            // What it could not do is told by itself; it hides no fault of what it did, as of one of two products.
            if finding.status == Status::Fail || !state.parts.contains_key(part) {
                findings.push(finding);
            }
        }
    }
    findings
}

/// A node or one of its GPUs; `failed` and `flaky` are nodes.
fn of_part(
    roster: &Roster,
    state: &CheckState,
    part: &Subject,
    looks: &[&View<'_>],
    failed: &BTreeSet<NodeId>,
    flaky: &BTreeSet<NodeId>,
) -> Finding {
    let of = |nodes: &BTreeSet<NodeId>| part.nodes().iter().any(|node| nodes.contains(node));
    let windows: Vec<&View<'_>> = looks.iter().filter(|look| look.shows != Shows::Nothing).copied().collect();
    let missed = looks.iter().filter(|look| look.shows == Shows::Miss).count();
    let name = wording::subject(roster, part);
    if of(failed) && !always_missed(&windows).is_empty() {
        let words = |one: &Evidence| wording::node_failed(&name, state.check, one, windows.len());
        from_looks(state.check, Status::Fail, Some(FaultClass::Part), part.clone(), looks, words)
    } else if let Some((look, tie)) = tie(looks) {
        let look = look.of_one(tie);
        let words = |one: &Evidence| wording::tied(&name, state.check, one);
        from_looks(state.check, Status::Suspect, None, part.clone(), &[&look], words)
    } else if of(flaky) && missed > 0 && state.next.is_some() {
        let words = |one: &Evidence| wording::not_confirmed(&name, state.check, one);
        from_looks(state.check, Status::Error, None, part.clone(), looks, words)
    } else {
        let words = |one: &Evidence| wording::fine(&name, state.check, one, missed > 0);
        from_looks(state.check, Status::Pass, None, part.clone(), looks, words)
    }
}

/// What of the last look differs from its like, and nobody knows which of them is right.
fn tie<'v, 'l>(looks: &[&'v View<'l>]) -> Option<(&'v View<'l>, &'l Evidence)> {
    let last = looks.iter().rfind(|look| look.shows != Shows::Nothing)?;
    last.evidence.iter().find(|one| one.tied).map(|tie| (*last, *tie))
}

/// What all nodes together showed. A miss that a culprit among the pairs explains is not a fault of its own; one
/// that nothing explains is the fabric's, and drains nobody.
fn of_all(
    roster: &Roster,
    state: &CheckState,
    (misses, measured): (usize, bool),
    culprits: &[Finding],
    shared: &[String],
) -> Vec<Finding> {
    let check = state.check;
    let together = state.looks.iter().filter(|look| look.purpose != Purpose::Localise);
    let rails: BTreeSet<u32> =
        together.clone().flat_map(|look| look.evidence.iter().filter_map(|one| one.subject.rail())).collect();
    let mut channels: Vec<Option<u32>> = rails.into_iter().map(Some).collect();
    if channels.is_empty() {
        channels.push(None);
    }
    if !measured {
        return Vec::new();
    }
    let explained = culprits.iter().any(|one| matches!(one.status, Status::Fail | Status::Suspect));
    let mut findings = Vec::new();
    for rail in channels {
        let looks: Vec<View<'_>> = together
            .clone()
            .map(|look| rail.map_or_else(|| look.whole(), |rail| look.on_rail(rail)))
            .collect();
        let looks: Vec<&View<'_>> = looks.iter().collect();
        let subject = rail.map_or(Subject::Fabric, |rail| Subject::FabricRail { rail });
        let bad = looks.iter().filter(|look| look.shows == Shows::Miss).count();
        let size = state.nodes.len();
        findings.push(if bad == 0 || (misses == 1 && state.next.is_none()) {
            let words = |one: &Evidence| wording::all_fine(size, check, one, bad > 0);
            from_looks(check, Status::Pass, None, subject, &looks, words)
        } else if explained {
            continue;
        } else if state.next.is_some() {
            let words = |one: &Evidence| wording::not_confirmed("all nodes together", check, one);
            from_looks(check, Status::Error, None, subject, &looks, words)
        } else if let (2, [a, b]) = (size, state.nodes.iter().copied().collect::<Vec<_>>().as_slice()) {
            let names = (roster.name(*a), roster.name(*b));
            let words = |one: &Evidence| wording::suspect(names, check, one);
            from_looks(check, Status::Suspect, None, Subject::Pair { a: *a, b: *b }, &looks, words)
        } else {
            let words = |one: &Evidence| wording::fabric_failed(size, check, one, shared);
            from_looks(check, Status::Fail, Some(FaultClass::Fabric), subject, &looks, words)
        });
    }
    findings
}

/// A finding around the number that decides: the worst miss for a fault, else the number nearest to its limit.
pub(crate) fn from_looks(
    check: CheckName,
    status: Status,
    class: Option<FaultClass>,
    subject: Subject,
    looks: &[&View<'_>],
    words: impl Fn(&Evidence) -> String,
) -> Finding {
    let mut finding = Finding { class, ..blank(Some(check), status, subject, String::new()) };
    // A pass is shown by a look that was fine, a fault by one that was not.
    let wanted = if status == Status::Pass { Shows::Fine } else { Shows::Miss };
    let wanted: Vec<&View<'_>> = looks.iter().filter(|look| look.shows == wanted).copied().collect();
    // What missed each time says more than what missed once.
    let always = always_missed(&wanted);
    let weight = |one: &Evidence| (always.contains(&one.number()), strain(one));
    let shown = wanted.iter().flat_map(|look| look.evidence.iter().map(move |one| (*look, *one)));
    let heavier = |one: (bool, f64), other: (bool, f64)| one.0.cmp(&other.0).then(one.1.total_cmp(&other.1));
    let Some((look, decisive)) = shown.max_by(|one, other| heavier(weight(one.1), weight(other.1))) else {
        finding.message = format!("{check}: no number to show");
        return finding;
    };
    let same = |one: &&&Evidence| (one.metric, one.bytes) == (decisive.metric, decisive.bytes);
    let all = || looks.iter().flat_map(|look| &look.evidence).filter(same);
    finding.metric = Some(decisive.metric);
    finding.value = Some(decisive.value);
    finding.bytes = decisive.bytes;
    finding.rates = rates(look, &decisive.subject);
    finding.limit = decisive.limit.as_deref().cloned();
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

/// What was measured of a subject at several sizes or in several precisions.
fn rates(look: &View<'_>, subject: &Subject) -> Vec<Rate> {
    let apart = |one: &&&Evidence| one.bytes.is_some() || one.metric != Metric::Busbw;
    let of_subject = look.evidence.iter().filter(|one| one.subject == *subject && one.metric.is_rate());
    let rates: Vec<Rate> = of_subject
        .filter(apart)
        .map(|one| Rate {
            metric: one.metric,
            bytes: one.bytes,
            value: one.value,
            limit: one.limit.as_deref().cloned(),
            median: one.median,
            miss: one.miss,
        })
        .collect();
    if rates.len() > 1 { rates } else { Vec::new() }
}

/// How close a number is to its limit, or how far beyond: 1 is at the limit, more is worse. Shares of right
/// results and of reached ports strain only when they miss.
fn strain(one: &Evidence) -> f64 {
    let broken = one.faults().next().is_some();
    let Some(limit) = &one.limit else { return if broken { f64::MAX } else { 0.0 } };
    if !one.miss && matches!(one.metric, Metric::Correct | Metric::Reachable) {
        return -1.0;
    }
    // Any wrong result, closed port or fault that the part shows outweighs any slowness.
    if broken || (one.miss && matches!(one.metric, Metric::Correct | Metric::Reachable)) {
        return f64::MAX;
    }
    let ratio = if one.metric.higher_is_better() { limit.value / one.value } else { one.value / limit.value };
    if ratio.is_nan() { f64::MAX } else { ratio }
}
