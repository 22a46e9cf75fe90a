//! `aimaster-prolog`: the check of a job's own nodes, in the order in which the data flows. It returns success
//! whatever it finds: the launch gate, not an exit code, tells the plugin whether the job may start.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cluster::events::Events;
use cluster::order::Met;
use cluster::report_writer;
use cluster::session::Session;
use cluster::slurm::environment::JobEnv;
use cluster::slurm::scontrol::Scontrol;
use diag::check::{CheckName, Phase};
use diag::gate::Gate;
use diag::policy::{POLICY_FILE, Undecided};
use diag::report::{phase_line, printable};
use diag::round::RoundResult;
use jiff::Timestamp;
use prolog::agent;
use prolog::assignment::{self, Assignment, REQUEST_VARIABLE};
use prolog::conclusion::{self, Run};
use prolog::engine;
use prolog::history;
use prolog::meeting;
use prolog::on_demand;
use prolog::progress::Progress;
use prolog::run_folder::RunFolder;
use prolog::suite::{self, Bench};
use prolog::watch::{self, Inquiry, Stop, Stopping};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// This program, in syslog.
const PROCESS: &str = "aimaster-prolog";

/// After the request's deadline: how long the leader may still act. Past it nobody does.
const ACTING: Duration = Duration::from_secs(2);

/// After the request's deadline: how long the leader's last word is awaited.
const LAST_WORD: Duration = Duration::from_millis(2500);

/// After the request's deadline: how long all of the conclusion may take, also where the deputy has the last word.
/// The plugin adds a second of its own; all of it together stays below the 5 s in which a prolog must be gone.
const CONCLUSION: Duration = Duration::from_secs(3);

fn main() -> ExitCode {
    if let Some(done) = report_writer::write_report(std::env::args_os().skip(1)) {
        return done;
    }
    if let Some(done) = on_demand::check_node(std::env::args().skip(1)) {
        return done;
    }
    // It will hold keys, and no core file is to. Where that can't be said, it runs all the same.
    _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    let begun = (Instant::now(), Timestamp::now());
    let job = match JobEnv::from_vars(|name| std::env::var(name).ok()) {
        Ok(job) => job,
        Err(errors) => {
            // Without the job's name there is no place for a gate; the plugin takes its absence for an error.
            let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
            complain(&format!("this is no job prolog: {}", errors.join("; ")));
            return ExitCode::SUCCESS;
        }
    };
    let gate = gate(&job, begun);
    if let Err(error) = RunFolder::of(&job).write_gate(&gate) {
        complain(&format!("job {}: can't leave the launch gate: {error}", job.job_id));
    }
    // The very last: a thread that waits for a disk or a driver can keep this process from ending, but not the job.
    say("done");
    ExitCode::SUCCESS
}

/// Reads what is to be done and does it; whatever goes wrong becomes a gate.
fn gate(job: &JobEnv, begun: (Instant, Timestamp)) -> Gate {
    let request = std::env::var(REQUEST_VARIABLE).ok();
    let policy = match assignment::policy(&policy_file()) {
        Ok(policy) => policy,
        Err(error) => return trouble(Undecided::Start, request.is_some(), &error.into()),
    };
    let on_error = policy.actions.on_error;
    let why = assignment::left_out(&policy, job, request.as_deref());
    let assignment = match assignment::assignment(job.clone(), policy, request.as_deref()) {
        Ok(None) => {
            return Gate::open(why.into_iter().collect()).untold();
        }
        Ok(Some(assignment)) => assignment,
        Err(error) => return trouble(on_error, true, &error.into()),
    };
    if assignment.asked.watch.is_some() && engine::holds_no_gpu(assignment.policy.engine, job) {
        return skip("the job holds no GPU on this node");
    }
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => {
            let gate = runtime.block_on(run(&assignment, begun));
            // What still hangs in a thread of it is not waited for.
            runtime.shutdown_background();
            gate
        }
        Err(error) => trouble(on_error, true, &error.into()),
    }
}

/// A gate, and what the agents need if the nodes met on the way to it.
struct Checked {
    gate: Gate,
    met: Option<Met>,
}

impl From<Gate> for Checked {
    fn from(gate: Gate) -> Self {
        Self { gate, met: None }
    }
}

/// The checks before start, then the start of the agent, if the job starts.
async fn run(whole: &Assignment, begun: (Instant, Timestamp)) -> Gate {
    let apart = assignment::apart(&whole.job).map(|why| whole.alone(why));
    let assignment = apart.as_ref().unwrap_or(whole);
    let Assignment { job, policy, asked, suite, .. } = assignment;
    let on_error = policy.actions.on_error;
    let events = Events::open(&policy.paths.syslog, PROCESS, &job.node, job.job_id);
    let Checked { gate, met } = if asked.checks.is_empty() && apart.is_some() {
        Gate::open(asked.notices.clone()).into()
    } else if asked.checks.is_empty() {
        meet(assignment, begun.0, &events).await
    } else if let Some(why) = engine::nothing_to_measure(policy.engine, job) {
        skip(why).into()
    } else if suite.checks.is_empty() {
        trouble(on_error, true, &anyhow::anyhow!("{}", asked.notices.join("; "))).into()
    } else {
        announce(Duration::from_secs(asked.timeout_s.into()) + CONCLUSION);
        check(assignment, begun, &events).await
    };
    let Some(watch) = asked.watch.filter(|_| gate.start) else { return gate };
    // A deadline of its own: an earlier part that hangs must not have the agent's time too.
    let end = begun.0 + Duration::from_secs(asked.timeout_s.into()) + LAST_WORD;
    let patience = agent::patience(end);
    announce(agent::longest(patience));
    let met = met.filter(|_| apart.is_none());
    let Err(error) = agent::start(whole, watch, met, patience).await else { return gate };
    let line = format!("runtime check: ERROR: nobody watches the job on {}: {error:#}", job.node);
    events.log(&format!("event=RuntimeCheckFailed outcome=ERROR summary={line:?}"));
    gate.with(printable(&line))
}

/// Where only the runtime check was asked for: the nodes meet, so that their agents know each other. Without a
/// meeting each of them judges by itself.
async fn meet(assignment: &Assignment, begun: Instant, events: &Events) -> Checked {
    let deadline = agent::meeting_ends(assignment, begun);
    announce(deadline - begun + CONCLUSION);
    let Watching { mut stopping, task, .. } = watching(assignment, deadline, events);
    let facts = meeting::bare_facts(assignment).await;
    let met = match meeting::session(assignment, None, &facts, events, &mut stopping).await {
        Ok(mut session) => {
            let met = agent::met(&session);
            // Nobody leaves before everybody has the roster.
            let word = session.is_leader().then_some(&());
            if let Err(error) = session.conclude(word, deadline + LAST_WORD).await {
                events.log(&format!("not every node heard the end of the meeting: {error}"));
            }
            Ok(met)
        }
        Err(error) => Err(error),
    };
    task.abort();
    match (met, stopping.now()) {
        (Ok(met), _) => Checked { gate: Gate::open(assignment.asked.notices.clone()), met: Some(met) },
        (Err(_), Some(stop @ (Stop::JobGone(_) | Stop::ParentGone | Stop::Terminated))) => {
            Gate::closed(vec![format!("{stop}; the runtime check was not started")]).into()
        }
        (Err(error), _) => {
            let line = format!("runtime check: each node is watched by itself: {error:#}");
            events.log(&line);
            Gate::open(assignment.asked.notices.clone()).with(printable(&line)).into()
        }
    }
}

/// What looks for an early end of this run.
struct Watching {
    scontrol: Arc<Scontrol>,
    /// Whether this node leads.
    leading: Arc<AtomicBool>,
    stopping: Stopping,
    task: JoinHandle<()>,
}

/// Starts to look for what ends this run early.
fn watching(assignment: &Assignment, deadline: Instant, events: &Events) -> Watching {
    let Assignment { job, policy, .. } = assignment;
    let paths = &policy.paths;
    let call = Duration::from_secs(policy.time.scontrol_s.into());
    let scontrol = Scontrol::new(paths.scontrol.clone(), paths.scancel.clone(), job.slurm_conf.clone(), call);
    let scontrol = Arc::new(scontrol);
    // Leader and deputy may lead the meeting; who leads the rest is known after it.
    let leading = Arc::new(AtomicBool::new(job.me <= 1));
    let every = Duration::from_secs(policy.time.job_poll_s.into());
    let inquiry = Inquiry { scontrol: Arc::clone(&scontrol), every, leading: Arc::clone(&leading) };
    let (stopping, task) = watch::start(deadline, job, inquiry, events);
    Watching { scontrol, leading, stopping, task }
}

/// From the assignment to the gate.
async fn check(assignment: &Assignment, begun: (Instant, Timestamp), events: &Events) -> Checked {
    let policy = &assignment.policy;
    let deadline = begun.0 + Duration::from_secs(assignment.asked.timeout_s.into());
    let Watching { scontrol, leading, mut stopping, task } = watching(assignment, deadline, events);
    match engine::shares(assignment, &scontrol, deadline).await {
        Ok(None) => {}
        Ok(Some(why)) => return skip(why).into(),
        Err(error) => return trouble(policy.actions.on_error, true, &error).into(),
    }
    let recalled = history::recall(assignment);
    let (mut worker, facts) = meeting::facts(assignment).await;
    let mut session = match meeting::session(assignment, None, &facts, events, &mut stopping).await {
        Ok(session) => session,
        Err(error) => {
            meeting::dismiss(worker, events).await;
            events.log(&format!("event=SanityCheckFailed outcome=ERROR summary={:?}", format!("{error:#}")));
            return trouble(policy.actions.on_error, true, &error).into();
        }
    };
    leading.store(session.is_leader(), Ordering::Relaxed);
    let assignment = &assignment.on(session.roster());
    meeting::introduce(&mut worker, &session, events).await;
    let reading = worker.as_ref().and_then(|worker| worker.reading());
    let mut past = recalled.arrive(assignment, (&facts, reading), events).await;
    let job_id = assignment.job.job_id;
    let progress = session.is_leader().then(|| Progress::start(Arc::clone(&scontrol), job_id, deadline));
    let mut shown = None;
    let (results, ended) = {
        let mut bench = Bench::new(assignment, &facts, worker.as_mut(), &mut past, deadline);
        suite::run(&mut bench, &mut session, &mut stopping, |session, results, next| {
            leading.store(session.is_leader(), Ordering::Relaxed);
            if let Some(progress) = &progress {
                say_phases(assignment, session, (results, next), progress, &mut shown);
            }
        })
        .await
    };
    task.abort();
    prolog::events::declines(events, assignment, past.told());
    let keeping = past.keep(session.roster(), &results);
    let run = Run {
        assignment,
        scontrol: &scontrol,
        events,
        begun: begun.1,
        results,
        ended,
        act_until: deadline + ACTING,
    };
    let concluded = conclusion::gate(run, &mut session, progress, deadline + LAST_WORD);
    let gate = tokio::join!(concluded, meeting::dismiss(worker, events), keeping.end(events)).0;
    Checked { gate, met: Some(agent::met(&session)) }
}

/// Says a line for each phase that is over once `next` is: all nodes wait meanwhile, so only then anything is judged.
fn say_phases(
    assignment: &Assignment,
    session: &Session,
    (results, next): (&[RoundResult], Option<CheckName>),
    progress: &Progress,
    shown: &mut Option<Phase>,
) {
    let open = next.map(|check| check.spec().phase);
    let mut phases: Vec<Phase> = assignment.suite.checks.iter().map(|check| check.spec().phase).collect();
    phases.dedup();
    phases.retain(|phase| *shown < Some(*phase) && open.is_none_or(|open| *phase < open));
    if phases.is_empty() {
        return;
    }
    let verdict = conclusion::verdict(assignment, session, results, None);
    for phase in phases {
        *shown = Some(phase);
        if let Some(line) = phase_line(&verdict, phase) {
            progress.say(format!("aimaster: {}", printable(&line)));
        }
    }
}

/// Tells the plugin, which reads this process's standard output, how long to wait for it.
fn announce(time: Duration) {
    say(&format!("deadline_ms {}", time.as_millis()));
}

/// A line for slurmd's log.
fn complain(line: &str) {
    eprintln!("aimaster: {}", printable(line));
}

/// A line for the plugin.
fn say(line: &str) {
    use std::io::Write as _;
    // A plugin that does not listen has its own bound.
    _ = writeln!(std::io::stdout(), "{line}");
    _ = std::io::stdout().flush();
}

/// The gate where nothing on this node is to be measured.
fn skip(why: &str) -> Gate {
    Gate::open(vec![format!("SKIP: {why}")]).untold()
}

/// The gate where this software, not the hardware, has a problem.
fn trouble(rule: Undecided, asked: bool, error: &anyhow::Error) -> Gate {
    complain(&format!("{error:#}"));
    if !asked {
        return Gate::open(Vec::new());
    }
    let mut lines = vec![format!("ERROR: {}", printable(&format!("{error:#}")))];
    match rule {
        Undecided::Start => {
            lines.push("nothing was measured; the job starts".into());
            Gate::open(lines).untold()
        }
        Undecided::Fail => {
            lines.push("nothing was measured; the job does not start (on_error)".into());
            Gate::closed(lines)
        }
    }
}

/// `--policy FILE`, or the usual place.
fn policy_file() -> PathBuf {
    let mut arguments = std::env::args_os().skip(1);
    while let Some(argument) = arguments.next() {
        if argument == "--policy"
            && let Some(file) = arguments.next()
        {
            return file.into();
        }
    }
    Path::new(POLICY_FILE).to_owned()
}
