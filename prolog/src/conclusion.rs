//! After the last round: the leader judges, acts, reports and tells everybody; the others wait for its word, so
//! that no task starts before the action is done.

use std::sync::Arc;
use std::time::Duration;

use cluster::session::{Session, SessionError};
use cluster::slurm::apply::{Applied, Step, ThisRun, apply_then};
use cluster::slurm::scontrol::Scontrol;
use diag::action::drains::Kind;
use diag::action::{self, Case, Decision, JobAction};
use diag::admin_comment::with_drained;
use diag::conclude::{self, Caps};
use diag::explain;
use diag::facts::NodeId;
use diag::gate::Gate;
use diag::job::JobView;
use diag::policy::{ControllerLost, Undecided};
use diag::report::{MeasuredOn, Report, RunId, user_lines};
use diag::round::RoundResult;
use diag::verdict::{Outcome, Verdict};
use jiff::Timestamp;
use tokio::time::{Instant, sleep};

use crate::assignment::Assignment;
use crate::components;
use crate::progress::Progress;
use crate::publish;
use crate::suite::Ended;
use crate::watch::Stop;
use cluster::events::Events;

/// What a report says where nothing could be done for want of a word from Slurm.
const NOT_ASKED: &str = "Slurm could not be asked about the job in time (is the controller reachable?): nothing was changed there";

/// What it says where Slurm's answer was of no use.
const NOT_READ: &str = "Slurm answered, but what it says about the job can't be read (a name or path of the job may imitate its output; the system log has the details): nothing was changed there";

/// How long a job that starts anyway is held up for words to its user or the admin.
const COURTESY: Duration = Duration::from_secs(2);

/// Rest before the controller is asked again about the job.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// srun, when its job is cancelled before it starts, says that nodes are not ready and something is wrong with their
/// boot. That would send a user looking in the wrong place.
const CANCELLED: &str =
    "aimaster: it is cancelled now; what Slurm says of nodes that are not ready means only that";

/// A run whose measuring is over.
pub struct Run<'r> {
    /// What was to be done.
    pub assignment: &'r Assignment,
    /// The way to Slurm.
    pub scontrol: &'r Arc<Scontrol>,
    /// The way to syslog.
    pub events: &'r Events,
    /// When this prolog began.
    pub begun: Timestamp,
    /// What was measured.
    pub results: Vec<RoundResult>,
    /// How the measuring ended.
    pub ended: Ended,
    /// Past this nobody acts.
    pub act_until: Instant,
}

/// The verdict on what was measured so far.
#[must_use]
pub fn verdict(
    assignment: &Assignment,
    session: &Session,
    results: &[RoundResult],
    stopped: Option<&str>,
) -> Verdict {
    conclude::verdict(&assignment.suite, session.roster(), results, caps(assignment), stopped)
}

fn caps(assignment: &Assignment) -> Caps {
    let actions = &assignment.policy.actions;
    Caps { max_drain_nodes: actions.max_drain_nodes, max_drain_fraction: actions.max_drain_fraction }
}

/// The same where other jobs run on nodes that a number speaks against, which only the controller knows.
async fn beside_others(run: &Run<'_>, session: &Session, verdict: Verdict) -> Verdict {
    let roster = session.roster();
    let nodes: Vec<NodeId> = explain::disturbable(&verdict.findings).into_iter().collect();
    if nodes.is_empty() {
        return verdict;
    }
    let names: Vec<String> = nodes.iter().map(|node| roster.name(*node).to_owned()).collect();
    match run.scontrol.neighbours(run.assignment.job.job_id, &names, run.act_until).await {
        Ok(others) => {
            let of_node = |(node, name): (&NodeId, &String)| Some((*node, *others.get(name)?));
            let others = nodes.iter().zip(&names).filter_map(of_node).collect();
            conclude::beside_others(verdict, roster, caps(run.assignment), &others)
        }
        // Without the controller nothing is drained either.
        Err(error) => {
            run.events.log(&format!("whose nodes these are is not known: {}", cluster::chain(&error)));
            verdict
        }
    }
}

/// What the run amounts to on this node. Nobody gets it before the leader's action is done.
pub async fn gate(
    run: Run<'_>,
    session: &mut Session,
    progress: Option<Progress>,
    last_word: Instant,
) -> Gate {
    if let Ended::Stopped(stop @ (Stop::JobGone(_) | Stop::ParentGone)) = &run.ended {
        let gate = given_up(&run, stop);
        if session.is_leader() {
            tell(&run, session, &gate, last_word).await;
        }
        return gate;
    }
    if let Ended::Stopped(Stop::Terminated) = &run.ended {
        // Without a last word: the others lose this node, and go on without it, led by the deputy if need be.
        return without_verdict(&run, &Stop::Terminated);
    }
    if session.is_leader() {
        return lead(&run, session, progress, last_word).await;
    }
    match session.conclude::<Gate>(None, last_word).await {
        Ok(gate) => gate,
        // The leader was lost before its last word: the deputy looks at what is done and does the rest. One that lost it earlier
        // and was not followed does not: the others may well hear the leader.
        Err(SessionError::LeaderLost { .. })
            if session.may_take_over()
                && !matches!(run.ended, Ended::Session(SessionError::LeaderLost { .. })) =>
        {
            lead(&run, session, None, last_word).await
        }
        Err(error) => without_verdict(&run, &error),
    }
}

/// The leader's part: verdict, decision, actions, report, and the last word to everybody.
async fn lead(run: &Run<'_>, session: &mut Session, progress: Option<Progress>, last_word: Instant) -> Gate {
    let view = match progress {
        Some(progress) => progress.finish().await,
        None => None,
    };
    let gate = match &run.ended {
        Ended::Session(error) if *error != SessionError::Concluded => without_verdict(run, error),
        _ => act(run, session, view).await,
    };
    tell(run, session, &gate, last_word).await;
    gate
}

async fn tell(run: &Run<'_>, session: &mut Session, gate: &Gate, last_word: Instant) {
    if let Err(error) = session.conclude(Some(gate), last_word).await {
        run.events.log(&format!("not every node heard the verdict: {error}"));
    }
}

/// Whether something is done that only the controller can do, and that is worth waiting for it. Words to the user
/// and to the admin are not: a job that starts is not held up for them.
fn needs_controller(decision: &Decision) -> bool {
    let job = matches!(decision.job, JobAction::Requeue { .. } | JobAction::End { cancel: true });
    job || !decision.drains.is_empty()
}

/// The job, for the decision; asked for again while the controller is not reached. The error: what the report says.
async fn ask_for_job(run: &Run<'_>, until: Instant) -> Result<JobView, &'static str> {
    loop {
        match run.scontrol.show_job(run.assignment.job.job_id, until).await {
            Ok(view) => return Ok(view),
            Err(error) if error.is_unreachable() && Instant::now() + RETRY_PAUSE < until => {
                sleep(RETRY_PAUSE).await;
            }
            Err(error) => {
                run.events.log(&format!("the job is not known: {}", cluster::chain(&error)));
                return Err(if error.is_unread() { NOT_READ } else { NOT_ASKED });
            }
        }
    }
}

async fn act(run: &Run<'_>, session: &Session, view: Option<JobView>) -> Gate {
    let assignment = run.assignment;
    let job = &assignment.job;
    let stopped = matches!(run.ended, Ended::Stopped(Stop::Deadline))
        .then(|| format!("the time of {} s ran out", assignment.asked.timeout_s));
    let verdict = verdict(assignment, session, &run.results, stopped.as_deref());
    let verdict = beside_others(run, session, verdict).await;
    let brief = run.act_until.min(Instant::now() + COURTESY);
    let passed = matches!(verdict.outcome, Outcome::Pass | Outcome::Skip);
    let view = match view {
        Some(view) => Ok(view),
        None => ask_for_job(run, if passed { brief } else { run.act_until }).await,
    };
    let (view, unknown) = match view {
        Ok(view) => (Some(view), None),
        Err(because) => (None, Some(because)),
    };
    let decision = action::decide(Case {
        fail_action: assignment.asked.fail_action,
        site_checks: &assignment.site_checks(),
        policy: &assignment.policy.actions,
        job: view.as_ref(),
        unread: unknown == Some(NOT_READ),
        roster: session.roster(),
        verdict: &verdict,
        job_id: job.job_id,
        check_number: assignment.check_number(),
    });
    let id = run_id(assignment);
    let times = (run.begun, Timestamp::now());
    let mut report = Report::new(&id, session.roster(), &verdict, &decision, times);
    report.errors.extend(assignment.asked.notices.iter().cloned());
    let path = assignment.policy.paths.report_dir.display().to_string();
    let place = format!("on {}: {path}", job.node);
    let until = if needs_controller(&decision) { run.act_until } else { brief };
    let applied = match &view {
        Some(view) => carried_out(run, view, &decision, (&mut report, &place), until).await,
        None => {
            report.errors.extend(unknown.filter(|_| !is_nothing(&decision)).map(str::to_owned));
            Applied::default()
        }
    };
    let start = starts(run, &decision, &applied);
    if matches!(decision.job, JobAction::Requeue { .. }) && !requeued(&applied) {
        report.action = if start { "start" } else { "end" }.into();
    }
    let lines = publish(run, &report, place).await;
    if start && let Some(view) = &view {
        let every = Duration::from_secs(assignment.policy.time.job_poll_s.into());
        if let Some(words) = components::wait(run.scontrol, job, view, every, run.act_until).await {
            return given_up(run, &Stop::JobGone(words));
        }
    }
    let gate = if start { Gate::open(lines) } else { Gate::closed(lines) };
    let told =
        applied.outcomes.iter().any(|one| matches!(one.step, Step::Notify { .. }) && one.result.is_ok());
    if told { gate } else { gate.untold() }
}

/// Has the decision carried out, and takes down in the report what came of it.
async fn carried_out(
    run: &Run<'_>,
    view: &JobView,
    decision: &Decision,
    (report, place): (&mut Report, &str),
    until: Instant,
) -> Applied {
    let Assignment { job, policy, .. } = run.assignment;
    let this_run = ThisRun::starting(job.job_id, job.restart, &job.nodes, policy.budget);
    let rest = |so_far: &Applied| {
        note_drains(report, so_far);
        steps(decision, &report.drained, policy.actions.requeue_nice, !view.batch, &user_lines(report, place))
    };
    let applied = apply_then(run.scontrol, &this_run, &drains(decision), rest, until).await;
    note(report, &applied);
    for line in cluster::events::withheld(&applied.withheld) {
        run.events.event(&line, true);
    }
    applied
}

fn run_id(assignment: &Assignment) -> RunId {
    RunId {
        job_id: assignment.job.job_id,
        cluster: assignment.job.cluster.clone(),
        check_number: assignment.check_number(),
        engine: assignment.policy.engine,
        hardware: MeasuredOn::of(&assignment.suite),
    }
}

/// Leaves the report, the event and the numbers; the lines for the user.
async fn publish(run: &Run<'_>, report: &Report, place: String) -> Vec<String> {
    let paths = &run.assignment.policy.paths;
    let place = match publish::report(paths, &run.assignment.job, report, run.act_until).await {
        Ok(()) => place,
        Err(error) => {
            run.events.log(&format!("no report under {}: {error:#}", paths.report_dir.display()));
            format!("not written: {error:#}")
        }
    };
    crate::events::finished(run.events, report);
    if let Err(error) = publish::numbers(paths, report).await {
        run.events.log(&format!("no metrics: {}", cluster::chain(&error)));
    }
    user_lines(report, &place)
}

/// The drains, which come first.
fn drains(decision: &Decision) -> Vec<Step> {
    let drain =
        |drain: &action::Drain| Step::Drain { node: drain.node.clone(), reason: drain.reason.clone() };
    decision.drains.iter().map(drain).collect()
}

/// Whether nothing is asked of Slurm.
fn is_nothing(decision: &Decision) -> bool {
    steps(decision, &[], None, false, &[]).is_empty() && decision.drains.is_empty()
}

/// Then the job: told, requeued or cancelled, and last our part of its comment. A job that passed gets no comment:
/// nothing in Slurm need change for it.
fn steps(
    decision: &Decision,
    drained: &[String],
    nice: Option<i32>,
    interactive: bool,
    lines: &[String],
) -> Vec<Step> {
    let mut steps = Vec::new();
    if interactive {
        let mut named: Vec<String> = lines.iter().map(|line| format!("aimaster: {line}")).collect();
        if matches!(decision.job, JobAction::End { .. }) {
            named.push(CANCELLED.into());
        }
        steps.push(Step::Notify { text: named.join("\n") });
    }
    if let JobAction::Requeue { exclude } = &decision.job {
        steps.push(Step::Requeue { exclude: exclude.clone(), nice });
    }
    if let Some(part) = &decision.comment {
        let drained: Vec<&str> = drained.iter().map(String::as_str).collect();
        steps.push(Step::AdminComment { part: with_drained(part, &drained) });
    }
    if decision.job == (JobAction::End { cancel: true }) {
        steps.push(Step::Cancel);
    }
    steps
}

/// Takes down which nodes were drained, which not, and why.
fn note_drains(report: &mut Report, applied: &Applied) {
    for one in &applied.outcomes {
        match (&one.step, &one.result) {
            (Step::Drain { node, .. }, Ok(_)) => report.drained.push(node.clone()),
            (Step::Drain { .. }, Err(because)) => {
                report.errors.push(format!("not done: {}: {because}", name(&one.step)));
            }
            _ => {}
        }
    }
    let over = applied.withheld.iter().filter(|one| one.kind == Kind::Budget);
    report.held_back.extend(over.map(|one| one.node.clone()));
}

/// Takes down what else could not be done.
fn note(report: &mut Report, applied: &Applied) {
    for one in applied.outcomes.iter().filter(|one| !matches!(one.step, Step::Drain { .. })) {
        if let Err(because) = &one.result {
            report.errors.push(format!("not done: {}: {because}", name(&one.step)));
        }
    }
}

fn name(step: &Step) -> String {
    match step {
        Step::Drain { node, .. } => format!("drain of {node}"),
        Step::Requeue { .. } => "requeue".into(),
        Step::AdminComment { .. } => "AdminComment".into(),
        Step::Notify { .. } => "message to the user".into(),
        Step::Cancel => "cancel".into(),
    }
}

fn requeued(applied: &Applied) -> bool {
    applied.outcomes.iter().any(|one| matches!(one.step, Step::Requeue { .. }) && one.result.is_ok())
}

/// Whether the job's tasks may start on these nodes.
fn starts(run: &Run<'_>, decision: &Decision, applied: &Applied) -> bool {
    match decision.job {
        JobAction::Start => true,
        JobAction::End { .. } => false,
        JobAction::Requeue { .. } => {
            !requeued(applied)
                && applied.controller_lost
                && run.assignment.policy.actions.on_controller_lost == ControllerLost::Start
        }
    }
}

/// The job is gone, or slurmd is: nothing is left to act on.
fn given_up(run: &Run<'_>, stop: &Stop) -> Gate {
    run.events.log(&format!("event=SanityCheckStopped summary={:?}", stop.to_string()));
    Gate::closed(vec![format!("{stop}; nothing was decided")])
}

/// The session broke, or this helper is to end: nobody is blamed, the job starts or not by `on_error`.
fn without_verdict(run: &Run<'_>, error: &dyn std::fmt::Display) -> Gate {
    run.events.log(&format!("event=SanityCheckFailed outcome=ERROR summary={:?}", error.to_string()));
    let line = format!("ERROR: {error}; no node is blamed");
    match run.assignment.policy.actions.on_error {
        Undecided::Start => Gate::open(vec![line, "the job starts".into()]).untold(),
        Undecided::Fail => Gate::closed(vec![line, "the job does not start (on_error)".into()]),
    }
}
