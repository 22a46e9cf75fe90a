//! A job and its nodes as Slurm shows them: what actions are decided on.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::reason::{Ours, is_marked};

/// What Slurm says of one job, as far as decisions need it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct JobView {
    /// The job's own id.
    pub job_id: u32,
    /// Id of the array that it is a task of.
    pub array_job_id: Option<u32>,
    /// Index in that array.
    pub array_task_id: Option<u32>,
    /// Id of the heterogeneous job that it is a component of.
    pub het_job_id: Option<u32>,
    /// State, such as `RUNNING` or `CONFIGURING`.
    pub state: String,
    /// How often it was restarted, for whatever reason.
    pub restarts: u32,
    /// Names of its nodes, in order.
    pub nodes: Vec<String>,
    /// Whether it was submitted with sbatch.
    pub batch: bool,
    /// Whether Slurm may requeue it.
    pub requeue: bool,
    /// Nodes that the user asked for by name.
    pub required_nodes: Vec<String>,
    /// Nodes that the user excluded.
    pub excluded_nodes: Vec<String>,
    /// The whole AdminComment.
    pub admin_comment: String,
    /// Whether its record can't be read, since a name or path of the job imitates Slurm's output. Then AdminComment
    /// and the nodes asked for and excluded are not known, and empty here; all else is.
    pub unreadable: bool,
}

/// States of a job whose prologs run. One that is suspended, signalled or resized meanwhile is still the same run: it
/// starts, or goes on, when that is over.
const STARTING: [&str; 6] = ["CONFIGURING", "RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING"];

impl JobView {
    /// Whether the job is in a state in which its prologs run.
    #[must_use]
    pub fn is_starting(&self) -> bool {
        STARTING.contains(&self.state.as_str())
    }

    /// Whether it has ended and its nodes are not free yet.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.state == "COMPLETING"
    }

    /// Why the job is no longer the run that had been restarted `restarts` times, in words; `None`: it still is.
    #[must_use]
    pub fn changed(&self, restarts: u32) -> Option<String> {
        if !self.is_starting() {
            return Some(format!("its state is {}", self.state));
        }
        (self.restarts != restarts)
            .then(|| format!("it was restarted ({} times, this run knows of {restarts})", self.restarts))
    }

    /// What to call the job in a command so that exactly this job is meant: one task of an array may have the
    /// array's own id, and a heterogeneous job is addressed through its leader.
    #[must_use]
    pub fn target(&self) -> String {
        match (self.het_job_id, self.array_job_id, self.array_task_id) {
            (Some(het), _, _) => het.to_string(),
            (None, Some(array), Some(task)) => format!("{array}_{task}"),
            _ => self.job_id.to_string(),
        }
    }
}

/// What `scontrol show node` says of one node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeView {
    /// Its name.
    pub name: String,
    /// State flags without decoration, upper case: `IDLE`, `ALLOCATED`, `DRAIN`, `DOWN`, `NOT_RESPONDING`, ...
    pub state: BTreeSet<String>,
    /// The reason, without the trailing `[user@time]`; empty if there is none.
    pub reason: String,
    /// When the reason was given, by the controller's clock.
    pub reason_at: Option<Timestamp>,
    /// The whole Comment.
    pub comment: String,
}

impl NodeView {
    /// Whether somebody already took it out of service or left a reason: then it is left alone. Since Slurm 24.11 a reason
    /// outlives its drain: one of ours on a node in service is nobody's any more.
    #[must_use]
    pub fn is_taken(&self) -> bool {
        let left = !self.reason.trim().is_empty() && Ours::parse(&self.reason).is_none();
        left || self.is_out_of_service()
    }

    /// Whether no job starts there, whoever's doing that is.
    #[must_use]
    pub fn is_out_of_service(&self) -> bool {
        ["DRAIN", "FAIL", "DOWN"].iter().any(|flag| self.state.contains(*flag))
    }

    /// Whether we hold it drained, also where somebody added something to the reason.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.state.contains("DRAIN") && is_marked(&self.reason)
    }
}
