//! From a verdict to what is done: does the job start, which nodes are drained, is the job requeued, ended,
//! told. Pure: policy, caps and what Slurm says of the job are arguments; `cluster` carries it out.

pub mod drains;
pub mod undrain;

use std::collections::BTreeSet;

use crate::admin_comment;
use crate::check::{CheckName, Phase};
use crate::facts::{NodeId, Roster};
use crate::job::JobView;
use crate::measurement::{Metric, Subject};
use crate::policy::{Actions, ControllerLost, Undecided};
use crate::reason::Ours;
use crate::request::FailAction;
use crate::verdict::{FaultClass, Finding, Outcome, Status, Verdict};
use crate::wording;

/// Everything that the decision depends on.
#[derive(Debug, Clone, Copy)]
pub struct Case<'a> {
    /// What the request says happens on a FAIL, after the policy's say.
    pub fail_action: FailAction,
    /// The checks that the site's own rule asked for, not only the user.
    pub site_checks: &'a BTreeSet<CheckName>,
    /// The policy's rules.
    pub policy: &'a Actions,
    /// The job, as Slurm shows it; `None`: that is not known.
    pub job: Option<&'a JobView>,
    /// Where it is not known: whether Slurm did answer, but unreadably. Otherwise the controller was not reached.
    pub unread: bool,
    /// The nodes.
    pub roster: &'a Roster,
    /// What was found.
    pub verdict: &'a Verdict,
    /// For the reason: the job's id.
    pub job_id: u32,
    /// For the reason: 1 for the first start of the job, 2 after its first restart, ...
    pub check_number: u32,
}

/// A node to take out of service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drain {
    /// Its name.
    pub node: String,
    /// The reason that `scontrol show node` will show.
    pub reason: String,
}

/// What happens to the job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobAction {
    /// It starts.
    Start,
    /// The launch gate ends its tasks; `cancel`: the job itself must be cancelled too, because a task's end does
    /// not end it (salloc, srun, components of a heterogeneous job).
    End {
        /// Whether to cancel it.
        cancel: bool,
    },
    /// Back to the queue, without these nodes.
    Requeue {
        /// Names of nodes to exclude.
        exclude: Vec<String>,
    },
}

/// The decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// What happens to the job.
    pub job: JobAction,
    /// Nodes to drain.
    pub drains: Vec<Drain>,
    /// Our part of the job's AdminComment; `None` for a job that passed: nothing in Slurm need change for it.
    pub comment: Option<String>,
    /// What the user should know beside the verdict: why a requeue is not possible, what it costs.
    pub notes: Vec<String>,
}

/// Decides.
#[must_use]
pub fn decide(case: Case<'_>) -> Decision {
    let mut notes = Vec::new();
    let job = job_action(case, &mut notes);
    let drains = drains(case);
    let requeues = case.job.map_or(0, |job| admin_comment::requeues(&job.admin_comment));
    let requeues = requeues + u32::from(matches!(job, JobAction::Requeue { .. }));
    let passed = matches!(case.verdict.outcome, Outcome::Pass | Outcome::Skip);
    let part =
        admin_comment::new_part(case.check_number, case.verdict.outcome, requeues, &drained_names(&drains));
    Decision { job, drains, comment: (!passed).then_some(part), notes }
}

fn drained_names(drains: &[Drain]) -> Vec<&str> {
    drains.iter().map(|drain| drain.node.as_str()).collect()
}

fn job_action(case: Case<'_>, notes: &mut Vec<String>) -> JobAction {
    let policy = case.policy;
    match case.verdict.outcome {
        Outcome::Pass | Outcome::Skip => JobAction::Start,
        Outcome::Error => undecided(case, policy.on_error),
        Outcome::Suspect => undecided(case, policy.on_suspect),
        Outcome::Environment => environment(case),
        Outcome::Fail if !names_a_part(case.verdict) => environment(case),
        Outcome::Fail => match case.fail_action {
            FailAction::Retain | FailAction::Drain => JobAction::Start,
            FailAction::Fail => end(case),
            FailAction::Requeue => requeue(case, notes),
        },
    }
}

fn undecided(case: Case<'_>, rule: Undecided) -> JobAction {
    match rule {
        Undecided::Start => JobAction::Start,
        Undecided::Fail => end(case),
    }
}

/// Fabric, environment and timeout never requeue: they end or start the job, by policy, else by the request.
fn environment(case: Case<'_>) -> JobAction {
    match (case.policy.on_environment, case.fail_action) {
        (Some(rule), _) => undecided(case, rule),
        (None, FailAction::Retain | FailAction::Drain) => JobAction::Start,
        (None, FailAction::Fail | FailAction::Requeue) => end(case),
    }
}

fn names_a_part(verdict: &Verdict) -> bool {
    verdict.findings.iter().any(|one| {
        one.status == Status::Fail
            && matches!(one.class, Some(FaultClass::Part | FaultClass::Link | FaultClass::Config))
    })
}

fn end(case: Case<'_>) -> JobAction {
    // Without a word from the controller the gate alone must do: it ends every task on the nodes. A batch job ends
    // with its script, which runs in the first component of a heterogeneous job, on the job's first node. Where that
    // does not lead, it may not have heard the verdict, and would start the script.
    let without_script = |job: &JobView| {
        let elsewhere = job.het_job_id.is_some_and(|first| first != job.job_id);
        !job.batch || elsewhere || case.roster.leader != 0
    };
    let cancel = case.job.is_some_and(without_script);
    JobAction::End { cancel }
}

/// Back to the queue, or the reason why not.
fn requeue(case: Case<'_>, notes: &mut Vec<String>) -> JobAction {
    let Some(job) = case.job else {
        if case.unread {
            notes.push("the job is not requeued but ends: Slurm's answer about it can't be read".to_owned());
            return end(case);
        }
        let (action, fate) = match case.policy.on_controller_lost {
            ControllerLost::Start => (JobAction::Start, "starts"),
            ControllerLost::Hold => (end(case), "ends"),
        };
        notes.push(format!(
            "the job is not requeued but {fate} (on_controller_lost): the controller could not be reached"
        ));
        return action;
    };
    let exclude = excluded(case);
    if let Some(obstacle) = obstacle(case, job, &exclude) {
        notes.push(format!("the job is not requeued but ends: {obstacle}"));
        return end(case);
    }
    notes.push(format!(
        "the job goes back to the queue without {}; its age in the queue starts again",
        wording::listed(&exclude.iter().map(String::as_str).collect::<Vec<_>>())
    ));
    JobAction::Requeue { exclude }
}

/// Why a job can't go back to the queue without these nodes, if it can't.
pub(crate) fn obstacle(case: Case<'_>, job: &JobView, exclude: &[String]) -> Option<String> {
    let asked_by_name: Vec<&str> =
        exclude.iter().filter(|node| job.required_nodes.contains(node)).map(String::as_str).collect();
    let own_requeues = admin_comment::requeues(&job.admin_comment);
    if !job.batch {
        Some("Slurm can requeue batch jobs only".to_owned())
    } else if !job.requeue {
        Some("it was submitted with --no-requeue".to_owned())
    } else if !asked_by_name.is_empty() {
        Some(format!("it asks for {} by name", wording::listed(&asked_by_name)))
    } else if job.unreadable {
        Some("a name or path of it imitates Slurm's output, so that its requeues can't be counted".to_owned())
    } else if job.admin_comment.contains('\n') {
        Some("its AdminComment holds line breaks, so that its requeues can't be counted there".to_owned())
    } else if own_requeues >= case.policy.max_requeues {
        Some(format!("it was requeued {own_requeues} times for this already (max_requeues)"))
    } else {
        None
    }
}

/// Nodes that a requeue leaves out: those at fault, one of the two ends of a bad link, those that are absent or were
/// lost, and those of which a part could not be measured.
pub(crate) fn excluded(case: Case<'_>) -> Vec<String> {
    let mut nodes: BTreeSet<NodeId> = BTreeSet::new();
    let named = case.verdict.findings.iter();
    for finding in named.clone() {
        let whole = matches!(finding.subject, Subject::Node { .. });
        // One part of a node that could not be measured is a reason to go elsewhere too.
        let of_one = finding.subject.ends().is_some_and(|(one, other)| one == other);
        if whole && finding.status == Status::Fail || of_one && finding.status == Status::Error {
            nodes.extend(finding.subject.nodes());
        }
    }
    for finding in named.filter(|one| one.status == Status::Fail) {
        let ends = finding.subject.nodes();
        if ends.iter().all(|node| !nodes.contains(node)) {
            // Peers that show a way to be blocked at one end are fine: it is the other end that is left out.
            nodes.extend(ends.iter().rfind(|end| !finding.peers.contains(end)).or(ends.last()));
        }
    }
    nodes.into_iter().map(|node| case.roster.name(node).to_owned()).collect()
}

pub(crate) fn drains(case: Case<'_>) -> Vec<Drain> {
    let allowed = case.policy.drain_on.contains(&case.fail_action) && case.verdict.outcome == Outcome::Fail;
    if !allowed || case.policy.max_drain_nodes == 0 {
        return Vec::new();
    }
    let mut drains: Vec<Drain> = Vec::new();
    let counts = |one: &&Finding| {
        // What is known before the first check is known whichever check was asked for.
        let by_site =
            one.check.map_or(!case.site_checks.is_empty(), |check| case.site_checks.contains(&check));
        one.is_part_fault() && (by_site || case.policy.drain_on_user_request)
    };
    for finding in case.verdict.findings.iter().filter(counts) {
        for node in finding.subject.nodes() {
            let name = case.roster.name(node);
            if drains.iter().all(|drain| drain.node != name) {
                drains.push(Drain { node: name.to_owned(), reason: reason(case, finding) });
            }
        }
    }
    drains
}

/// `<check> <subject> <value><op><limit><unit>`; of what was known before the first check the words.
fn reason(case: Case<'_>, finding: &Finding) -> String {
    let mut what = match finding.check {
        Some(check) => format!("{check} {}", wording::subject(case.roster, &finding.subject)),
        None if finding.phase == Phase::RuntimeCheck => format!("c4d {}", wording::brief(&finding.message)),
        None => format!("hardware {}", wording::brief(&finding.message)),
    };
    // Of a part that has no number the words tell why.
    let why = || finding.message.split_once(&format!("{}: ", finding.check?)).map(|(_, why)| why.to_owned());
    if let Some(why) = number(finding).or_else(why) {
        what.push(' ');
        what.push_str(&why);
    }
    Ours { what, job_id: case.job_id, check_number: case.check_number }.to_string()
}

fn number(finding: &Finding) -> Option<String> {
    let (metric, value) = (finding.metric?, finding.value?);
    if metric == Metric::Correct {
        return Some("wrong result".into());
    }
    // Shares as percentages, as everywhere else that a person reads them.
    let (scale, unit) = if metric.unit() == "ratio" { (100.0, "%") } else { (1.0, metric.unit()) };
    let shown = |value: f64| wording::number(value * scale);
    let limit = finding.limit.as_ref().map_or_else(String::new, |limit| shown(limit.value));
    let which = wording::which(metric, finding.bytes);
    Some(format!("{}{}{limit}{unit}{which}", shown(value), wording::side(metric)))
}
