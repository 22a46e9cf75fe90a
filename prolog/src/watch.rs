//! What ends a suite early: its deadline, a job that was cancelled or requeued meanwhile (slurmd does not tell a
//! prolog), and a slurmd that is gone.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cluster::slurm::environment::JobEnv;
use cluster::slurm::scontrol::Scontrol;
use diag::job::JobView;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

/// How often the parent process is looked at: cheap, no call to Slurm.
const PARENT_POLL: Duration = Duration::from_millis(500);

/// Job states in which a prolog has work to do.
const STARTING: &[&str] = &["CONFIGURING", "RUNNING"];

/// Why a suite stops before its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    /// The request's time is over.
    Deadline,
    /// The job is no longer this run's: its state, in words.
    JobGone(String),
    /// The process that started this one is gone.
    ParentGone,
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deadline => f.write_str("the time for the checks ran out"),
            Self::JobGone(words) => write!(f, "the job changed ({words})"),
            Self::ParentGone => f.write_str("slurmd's prolog process ended"),
        }
    }
}

/// Hears of a stop.
#[derive(Debug, Clone)]
pub struct Stopping(watch::Receiver<Option<Stop>>);

impl Stopping {
    /// Waits for a stop.
    pub async fn stopped(&mut self) -> Stop {
        match self.0.wait_for(Option::is_some).await {
            Ok(stop) => stop.clone().unwrap_or(Stop::ParentGone),
            // The watching task ended without a word: nothing is left that could stop the suite but its deadline.
            Err(_) => Stop::Deadline,
        }
    }
}

/// Whether Slurm still shows the run that `job` is; else its state, in words.
#[must_use]
pub fn changed(view: &JobView, job: &JobEnv) -> Option<String> {
    if !STARTING.contains(&view.state.as_str()) {
        return Some(format!("its state is {}", view.state));
    }
    if view.restarts != job.restart {
        return Some(format!(
            "it was restarted ({} times, this run knows of {})",
            view.restarts, job.restart
        ));
    }
    None
}

/// How the leader asks Slurm about the job.
pub struct Inquiry {
    /// The way to Slurm.
    pub scontrol: Arc<Scontrol>,
    /// How often.
    pub every: Duration,
    /// Whether this node leads: the others leave the controller alone.
    pub leading: Arc<AtomicBool>,
}

/// Starts to watch.
#[must_use]
pub fn start(deadline: Instant, job: &JobEnv, inquiry: Inquiry) -> (Stopping, tokio::task::JoinHandle<()>) {
    let (sender, receiver) = watch::channel(None);
    let parent = rustix::process::getppid();
    let job = job.clone();
    let task = tokio::spawn(async move {
        let stop = tokio::select! {
            () = tokio::time::sleep_until(deadline) => Stop::Deadline,
            () = parent_gone(parent) => Stop::ParentGone,
            words = job_gone(&job, &inquiry) => Stop::JobGone(words),
        };
        _ = sender.send(Some(stop));
    });
    (Stopping(receiver), task)
}

async fn parent_gone(parent: Option<rustix::process::Pid>) {
    while rustix::process::getppid() == parent {
        sleep(PARENT_POLL).await;
    }
}

async fn job_gone(job: &JobEnv, Inquiry { scontrol, every, leading }: &Inquiry) -> String {
    loop {
        sleep(*every).await;
        if !leading.load(Ordering::Relaxed) {
            continue;
        }
        // A controller that does not answer says nothing about the job.
        if let Ok(view) = scontrol.show_job(job.job_id, Instant::now() + *every).await
            && let Some(words) = changed(&view, job)
        {
            return words;
        }
    }
}
