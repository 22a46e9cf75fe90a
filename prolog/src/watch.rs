//! What ends a suite early: its deadline, a job that was cancelled or requeued meanwhile (slurmd does not tell a
//! prolog), a slurmd that is gone, and SIGTERM.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cluster::slurm::environment::JobEnv;
use cluster::slurm::scontrol::Scontrol;
use rustix::process::Pid;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use cluster::events::Events;

/// How often the parent process is looked at: cheap, no call to Slurm.
const PARENT_POLL: Duration = Duration::from_millis(500);

/// Why a suite stops before its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    /// The request's time is over.
    Deadline,
    /// The job is no longer this run's: its state, in words.
    JobGone(String),
    /// The process that started this one is gone, or slurmd above it.
    ParentGone,
    /// Somebody wants this process to end: slurmd at its own deadline, or an admin.
    Terminated,
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deadline => f.write_str("the time for the checks ran out"),
            Self::JobGone(words) => write!(f, "the job changed ({words})"),
            Self::ParentGone => f.write_str("slurmd or its prolog process ended"),
            Self::Terminated => f.write_str("the helper was told to end (SIGTERM)"),
        }
    }
}

/// Hears of a stop.
#[derive(Debug, Clone)]
pub struct Stopping(watch::Receiver<Option<Stop>>);

impl Stopping {
    /// The stop, if there was one.
    #[must_use]
    pub fn now(&self) -> Option<Stop> {
        self.0.borrow().clone()
    }

    /// Waits for a stop.
    pub async fn stopped(&mut self) -> Stop {
        match self.0.wait_for(Option::is_some).await {
            Ok(stop) => stop.clone().unwrap_or(Stop::ParentGone),
            // The watching task ended without a word: nothing is left that could stop the suite but its deadline.
            Err(_) => Stop::Deadline,
        }
    }
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
pub fn start(
    deadline: Instant,
    job: &JobEnv,
    inquiry: Inquiry,
    events: &Events,
) -> (Stopping, tokio::task::JoinHandle<()>) {
    let (sender, receiver) = watch::channel(None);
    let above = Above::now();
    let terminated = signal(SignalKind::terminate())
        .map_err(|error| events.log(&format!("SIGTERM will end this helper without a word: {error}")))
        .ok();
    let job = job.clone();
    let task = tokio::spawn(async move {
        let stop = tokio::select! {
            () = tokio::time::sleep_until(deadline) => Stop::Deadline,
            () = parent_gone(above) => Stop::ParentGone,
            () = told_to_end(terminated) => Stop::Terminated,
            words = job_gone(&job, &inquiry) => Stop::JobGone(words),
        };
        _ = sender.send(Some(stop));
    });
    (Stopping(receiver), task)
}

/// The processes that wait for this one: slurmstepd (or the site's Prolog script), and above it slurmd. Where slurmd
/// dies its prolog process lives on, with another parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Above {
    parent: Option<Pid>,
    /// `None`: what it was at the start is not known, and nothing is told from it.
    grandparent: Option<Pid>,
}

impl Above {
    fn now() -> Self {
        let parent = rustix::process::getppid();
        Self { parent, grandparent: parent.and_then(|parent| parent_of(parent).ok().flatten()) }
    }

    /// Whether one of them is gone. What can't be read, such as where no descriptor is left, does not say so.
    fn is_gone(self, parent: Option<Pid>, above_parent: impl FnOnce(Pid) -> io::Result<Option<Pid>>) -> bool {
        let Some(parent) = parent.filter(|parent| Some(*parent) == self.parent) else {
            return parent != self.parent;
        };
        self.grandparent.is_some()
            && match above_parent(parent) {
                Ok(now) => now != self.grandparent,
                Err(error) => error.kind() == io::ErrorKind::NotFound,
            }
    }
}

/// The parent of a process as /proc shows it.
fn parent_of(pid: Pid) -> io::Result<Option<Pid>> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()))?;
    // State and parent follow the name, which stands in parentheses and may hold anything.
    let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
    Ok(parent.and_then(Pid::from_raw))
}

async fn parent_gone(above: Above) {
    while !above.is_gone(rustix::process::getppid(), parent_of) {
        sleep(PARENT_POLL).await;
    }
}

async fn told_to_end(signal: Option<Signal>) {
    match signal {
        Some(mut signal) => _ = signal.recv().await,
        None => std::future::pending().await,
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
            && let Some(words) = view.changed(job.restart)
        {
            return words;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pid(number: i32) -> Option<Pid> {
        Pid::from_raw(number)
    }

    #[test]
    fn a_parent_is_gone_only_where_that_was_seen() {
        let above = Above { parent: pid(20), grandparent: pid(10) };
        assert!(!above.is_gone(pid(20), |_| Ok(pid(10))));
        // slurmd died, and its prolog process has another parent now; the prolog process died.
        assert!(above.is_gone(pid(20), |_| Ok(pid(1))));
        assert!(above.is_gone(pid(1), |_| Ok(pid(10))));
        assert!(above.is_gone(pid(20), |_| Err(io::ErrorKind::NotFound.into())));
        // No descriptor, no memory, no /proc to read: nothing was seen.
        for error in [io::Error::from_raw_os_error(24), io::ErrorKind::OutOfMemory.into()] {
            assert!(!above.is_gone(pid(20), |_| Err(error)));
        }
        let unknown = Above { grandparent: None, ..above };
        assert!(!unknown.is_gone(pid(20), |_| Ok(pid(10))) && unknown.is_gone(pid(1), |_| Ok(pid(10))));
    }

    #[test]
    fn this_process_has_a_parent_that_is_there() {
        let above = Above::now();
        assert!(above.parent.is_some() && !above.is_gone(rustix::process::getppid(), parent_of));
    }
}
