//! How an agent comes to life: it takes its order, leaves the prolog's process group and its pipes, ends an agent of an
//! earlier run of the job, takes the lock, listens, and says that it is ready. Whatever fails before that is the answer
//! that the prolog's helper gets, and there is no agent.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use anyhow::{Context as _, Result};
use cluster::order::{Order, READY, Telemetry};
use diag::policy::Policy;
use rustix::fs::{Mode, OFlags};
use rustix::process::{setsid, umask};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};

use crate::c4d::health;
use crate::c4d::lock::{self, Lock, Stopped};
use crate::c4d::privileges;
use crate::c4d::report::Keep;
use crate::c4d::socket::Door;
use crate::health::Hired;
use crate::job::EndedJob;
use crate::run_folder;

/// An agent that watches.
#[derive(Debug)]
pub struct Agent {
    /// What it is to do.
    pub order: Order,
    /// The node's copy of the policy.
    pub policy: Policy,
    /// The run folder.
    pub folder: OwnedFd,
    /// Where ranks come in, if they may.
    pub door: Option<Door>,
    /// Those who ask NVML, before they are told of what.
    pub hired: Hired,
    /// Keeps this agent the only one.
    pub lock: Lock,
    /// What should be known of its birth.
    pub notes: Vec<String>,
}

/// What the helper that started this agent waits for.
pub struct Answer(File);

impl Answer {
    /// Takes over standard output, and leaves all three standard descriptors empty: nothing of slurmd's is held.
    ///
    /// # Errors
    /// The system refused.
    pub fn detach() -> Result<Self> {
        let answer = std::io::stdout().as_fd().try_clone_to_owned()?;
        let nothing = File::options().read(true).write(true).open("/dev/null").context("/dev/null")?;
        dup2_stdin(&nothing)?;
        dup2_stdout(&nothing)?;
        dup2_stderr(&nothing)?;
        Ok(Self(File::from(answer)))
    }

    /// Says that the agent watches.
    ///
    /// # Errors
    /// Nobody waits for it any more: the helper was killed, and there should be no agent.
    pub fn ready(mut self) -> std::io::Result<()> {
        writeln!(self.0, "{READY}")
    }

    /// Says why there is no agent.
    pub fn refuse(mut self, why: &anyhow::Error) {
        // A helper that is gone needs no answer.
        _ = writeln!(self.0, "{why:#}");
    }
}

/// From the order to an agent that listens; all but the last word.
///
/// # Errors
/// Any: there can be no agent.
pub fn agent(order: Order) -> Result<Agent> {
    // Not this session's leader, since the helper started it: what can fail here has not happened yet.
    setsid().context("it can't leave the prolog's process group")?;
    umask(Mode::RWXG | Mode::RWXO);
    let policy = Policy::parse(&order.policy);
    let policy = policy.map_err(|mistakes| {
        let mistakes: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
        anyhow::anyhow!("the policy in its order has mistakes: {}", mistakes.join("; "))
    })?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = rustix::fs::open(&order.folder, flags, Mode::empty())
        .with_context(|| format!("{} can't be opened", order.folder.display()))?;
    let notes = end_earlier(&order);
    let lock = lock::take(&folder)?;
    Keep::new(&order, &policy)
        .write(&folder)
        .context("what the epilog needs to keep the report can't be left")?;
    let hired = health::hire(&order, &policy);
    privileges::give_up().context("it can't give up root's rights")?;
    let door = match &order.telemetry {
        Telemetry::Socket(name) => Some(Door::open(name, order.uid)?),
        Telemetry::Unavailable { .. } => None,
    };
    Ok(Agent { order, policy, folder, door, hired, lock, notes })
}

/// Ends the agents of the job's earlier runs: where an epilog did not run, one may be left, and the new run's steps have
/// the same names.
fn end_earlier(order: &Order) -> Vec<String> {
    let Some(last) = order.job.restart.checked_sub(1) else { return Vec::new() };
    let job = EndedJob {
        cluster: order.job.cluster.clone(),
        node: order.node().to_owned(),
        job: order.job.job_id,
        restart: Some(last),
    };
    let root = order.folder.ancestors().nth(3).unwrap_or(Path::new(diag::gate::RUN_ROOT));
    let mut notes = Vec::new();
    let visited = run_folder::visit(root, &job, |name, folder| match lock::stop(folder) {
        Ok(Stopped::None) => {}
        Ok(how) => notes.push(format!("the agent of {name}, an earlier run, was still there: {how:?}")),
        Err(error) => notes.push(format!("whether an agent of {name} is left is not known: {error}")),
    });
    if let Err(error) = visited {
        notes.push(format!("whether an agent of an earlier run is left is not known: {error}"));
    }
    notes
}
