//! What a finding becomes: a verdict with the report's own types, a short line, and what is wanted of Slurm. Pure: policy,
//! findings of the hardware and what Slurm says of the job are arguments.
//!
//! What a user's process says can lead to a report. It leads to a drain or a requeue only where the policy says so;
//! hardware evidence does by default.

use std::collections::BTreeSet;

use crate::action::{Case, Drain, drains, excluded, obstacle};
use crate::c4d::finding::{Class, Finding, State};
use crate::c4d::picture::Coverage;
use crate::c4d::settings::Settings;
use crate::check::{CheckName, Phase};
use crate::conclude::{Caps, allowed_drains, outcome};
use crate::facts::{NodeId, Roster};
use crate::findings::blank;
use crate::health::{self, Action, HealthEvent};
use crate::job::JobView;
use crate::measurement::Subject;
use crate::policy::Actions;
use crate::request::FailAction;
use crate::verdict::{FaultClass, Finding as Item, Outcome, Status, Verdict};
use crate::wording;

/// Least confidence of a finding of telemetry alone that drains, where the policy lets it. It takes whole telemetry of the
/// ranks that are named and of all that they are compared with.
const DRAIN_CONFIDENCE: f64 = 0.8;

/// Longest short line, in bytes: what fits beside the rest of an AdminComment.
const LINE_MAX: usize = 160;

/// Everything that the decision depends on.
#[derive(Debug, Clone, Copy)]
pub struct RuntimeCase<'a> {
    /// What the request says happens on a fault, after the policy's say.
    pub fail_action: FailAction,
    /// The policy's rules.
    pub policy: &'a Actions,
    /// The thresholds; of them whether telemetry may drain.
    pub settings: &'a Settings,
    /// Whether the site's own rule asked for the runtime check, not only the user.
    pub by_site: bool,
    /// The job, as Slurm shows it; `None`: that is not known.
    pub job: Option<&'a JobView>,
    /// The nodes.
    pub roster: &'a Roster,
    /// What the rules found and hold.
    pub findings: &'a [Finding],
    /// What the hardware itself shows, with phase and class as it is told.
    pub hardware: &'a [Item],
    /// How much of the job is seen.
    pub coverage: &'a Coverage,
    /// For the reason: the job's id.
    pub job_id: u32,
    /// For the reason: 1 for the first start of the job, 2 after its first restart, ...
    pub check_number: u32,
}

/// What happens to the running job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RuntimeAction {
    /// It goes on.
    Keep,
    /// Back to the queue, without these nodes.
    Requeue {
        /// Names of nodes to exclude.
        exclude: Vec<String>,
    },
}

/// What is wanted.
#[derive(Debug, Clone, PartialEq)]
pub struct Wanted {
    /// What happens to the job.
    pub job: RuntimeAction,
    /// Nodes to drain: they leave service when the job ends.
    pub drains: Vec<Drain>,
    /// What the user should know beside the verdict.
    pub notes: Vec<String>,
    /// The verdict, for the report and the event.
    pub verdict: Verdict,
}

/// Decides.
#[must_use]
pub fn decide(case: RuntimeCase<'_>) -> Wanted {
    let verdict = verdict(case);
    // Only parts count: a node that is named for any other reason is neither drained nor left out of a requeue.
    let parts = verdict.findings.iter().filter(|one| one.is_part_fault()).cloned().collect();
    let at_fault = Verdict { findings: parts, ..verdict.clone() };
    // Which check it was does not matter for what has none: whether the site asked for any does.
    let site_checks: BTreeSet<CheckName> = case.by_site.then_some(CheckName::GemmFlops).into_iter().collect();
    let shared = Case {
        fail_action: case.fail_action,
        site_checks: &site_checks,
        policy: case.policy,
        job: case.job,
        unread: false,
        roster: case.roster,
        verdict: &at_fault,
        job_id: case.job_id,
        check_number: case.check_number,
    };
    let mut notes = Vec::new();
    let asked = case.fail_action == FailAction::Requeue && verdict.outcome == Outcome::Fail;
    let job = if asked && !at_fault.findings.is_empty() {
        requeue(shared, &mut notes)
    } else {
        RuntimeAction::Keep
    };
    Wanted { job, drains: drains(shared), notes, verdict }
}

/// Back to the queue, or the reason why not. A running job is never ended for want of a requeue: if it can't go on, it ends
/// by itself.
fn requeue(case: Case<'_>, notes: &mut Vec<String>) -> RuntimeAction {
    let exclude = excluded(case);
    let obstacle = match case.job {
        Some(job) => obstacle(case, job, &exclude),
        None => Some("the controller could not be reached, or its answer can't be read".to_owned()),
    };
    if let Some(obstacle) = obstacle {
        notes.push(format!("the job is not requeued and goes on: {obstacle}"));
        return RuntimeAction::Keep;
    }
    let names: Vec<&str> = exclude.iter().map(String::as_str).collect();
    notes.push(format!(
        "the job goes back to the queue without {}; its age in the queue starts again",
        wording::listed(&names)
    ));
    RuntimeAction::Requeue { exclude }
}

/// The verdict on what was found. Nothing found is a pass only of what was seen.
fn verdict(case: RuntimeCase<'_>) -> Verdict {
    let mut findings: Vec<Item> = case.hardware.to_vec();
    let mut notes = Vec::new();
    for finding in case.findings {
        match &finding.state {
            State::Confirmed => findings.push(item(finding, case.settings.telemetry_may_drain)),
            State::Withdrawn { because } => notes.push(format!("{}: withdrawn: {because}", finding.message)),
        }
    }
    let Coverage { known, unknown, gaps } = case.coverage;
    if *known == 0 {
        let why = "no rank told anything: whether the job is well is not known";
        findings.push(runtime(Status::Error, Subject::Run, why.to_owned()));
    } else if *unknown > 0 {
        let why =
            format!("{unknown} ranks told nothing, {known} did: of those alone it is known how they are");
        findings.push(runtime(Status::Error, Subject::Run, why));
    } else if findings.is_empty() {
        findings.push(runtime(Status::Pass, Subject::Run, format!("nothing was found at {known} ranks")));
    }
    notes.extend(gaps.iter().cloned());
    let caps = Caps {
        max_drain_nodes: case.policy.max_drain_nodes,
        max_drain_fraction: case.policy.max_drain_fraction,
    };
    let (outcome, summary) = outcome(case.roster, &findings, caps);
    let passed = findings.iter().find(|one| outcome == Outcome::Pass && one.status == Status::Pass);
    let summary = match (passed, outcome) {
        (Some(one), _) => one.message.clone(),
        (None, Outcome::Environment) => {
            "more nodes are at fault at once than one verdict may take out of service: the \
             fabric, the site or this software is at fault, no single node"
                .to_owned()
        }
        (None, _) => summary,
    };
    Verdict { outcome, summary, timed_out: false, findings, notes }
}

fn runtime(status: Status, subject: Subject, message: String) -> Item {
    Item { phase: Phase::RuntimeCheck, ..blank(None, status, subject, message) }
}

/// A finding of the rules in the report's own words.
#[must_use]
pub fn item(finding: &Finding, may_drain: bool) -> Item {
    let drains = may_drain && finding.confidence >= DRAIN_CONFIDENCE;
    let own = matches!(finding.subject, Subject::Node { .. } | Subject::Gpu { .. });
    let (status, class) = match (finding.class, &finding.subject) {
        // A debugger's doing, and what nobody can tell, blame nobody.
        (Class::Paused, _) => (Status::Skip, None),
        (Class::Undecided, _) => (Status::Error, None),
        (Class::Deadlock, _) => (Status::Suspect, None),
        _ if own && drains => (Status::Fail, Some(FaultClass::Part)),
        (
            Class::CommunicationHang | Class::CommunicationSlow,
            Subject::Path { .. } | Subject::Link { .. },
        ) => (Status::Fail, Some(FaultClass::Link)),
        (Class::CommunicationHang | Class::CommunicationSlow, Subject::Fabric | Subject::Run) => {
            (Status::Fail, Some(FaultClass::Fabric))
        }
        _ => (Status::Fail, Some(FaultClass::Telemetry)),
    };
    let evidence = finding.evidence.join("; ");
    let sure = wording::number(finding.confidence * 100.0);
    let message = format!("{}: {} [confidence {sure} %; {evidence}]", finding.class, finding.message);
    Item { class, ..runtime(status, finding.subject.clone(), message) }
}

/// What the hardware itself shows, in the report's own words.
#[must_use]
pub fn hardware_item(node: NodeId, name: &str, event: &HealthEvent) -> Item {
    let (status, class) = weight(event);
    Item { class, ..runtime(status, event.part.subject(node), format!("hardware: {name}: {}", event.words)) }
}

/// How much an event of the hardware weighs. Only what the table or a rule says drains is a fault with evidence; what is
/// only told blames nobody, and a fault of the program is none of the node's.
#[must_use]
pub fn weight(event: &HealthEvent) -> (Status, Option<FaultClass>) {
    match (event.action, event.class) {
        (Action::Drain, _) => (Status::Fail, Some(FaultClass::Part)),
        (_, health::Class::Application) | (Action::Ignore, _) => (Status::Skip, None),
        (Action::Report, _) => (Status::Suspect, None),
    }
}

/// Most nodes that may leave service in one run of a job, in however many verdicts.
#[must_use]
pub fn most_drains(policy: &Actions, nodes: usize) -> usize {
    let (max_drain_nodes, max_drain_fraction) = (policy.max_drain_nodes, policy.max_drain_fraction);
    allowed_drains(nodes, Caps { max_drain_nodes, max_drain_fraction })
}

/// What the hardware shows and the findings in one short line, what is surest first; empty where there is none.
#[must_use]
pub fn line(findings: &[Finding], hardware: &[Item], roster: &Roster) -> String {
    let shown = hardware.iter().filter(|one| one.status > Status::Skip);
    let mut words: Vec<String> =
        shown.map(|one| format!("c4d=hardware:{}", wording::subject(roster, &one.subject))).collect();
    words.dedup();
    let mut holding: Vec<&Finding> = findings.iter().filter(|one| one.state == State::Confirmed).collect();
    holding.sort_by(|a, b| b.confidence.total_cmp(&a.confidence));
    let subject = |one: &Finding| wording::subject(roster, &one.subject);
    words.extend(holding.iter().map(|one| format!("c4d={}:{}", one.class, subject(one))));
    let mut line = String::new();
    for (count, next) in words.iter().enumerate() {
        let more = format!(" +{}", words.len() - count);
        if line.len() + next.len() + more.len() + 1 > LINE_MAX {
            line.push_str(&more);
            break;
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(next);
    }
    line
}
