//! What the agent of a node says of a job while it runs and at its end: the content of `runtime.json`, what it amounts to,
//! and in its files its words for a person. Not how anything in it was found out.

mod delays;
mod news;
mod text;

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::c4d::decide;
use crate::c4d::finding::{Finding, Who};
use crate::c4d::matrix::Delay;
use crate::facts::NodeId;
use crate::health::{HealthEvent, Turn};
use crate::measurement::Subject;
use crate::verdict::{Outcome, Status as Weight};
use crate::wording;

/// Its name, in the run folder and, of the job's first node, in the folder of reports.
pub const FILE_NAME: &str = "runtime.json";

/// Most entries of each list; what is beyond is counted.
pub const MOST_ENTRIES: usize = 1000;

/// Largest file that is read: each list full of findings of some 8 KiB.
pub const MOST_BYTES: u64 = 32 << 20;

/// The file's content.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuntimeReport {
    /// 1.
    pub schema: u32,
    /// The job.
    pub job_id: u32,
    /// The cluster.
    pub cluster: String,
    /// 1 for the job's first start.
    pub check_number: u32,
    /// The node that says this.
    pub node: String,
    /// When the agent began.
    pub started_at: Timestamp,
    /// When it saw the first step of the job.
    pub first_step_at: Option<Timestamp>,
    /// When it ended, and why; `None`: it runs, or was killed.
    pub finished: Option<Finished>,
    /// How ranks told what NCCL does.
    pub telemetry: Telemetry,
    /// Whether somebody judges what the job's ranks tell.
    pub judged: bool,
    /// Whether this agent spoke for the job: findings, and what follows from them, are in its report.
    #[serde(default)]
    pub spoke: bool,
    /// Findings that hold; times by the agent's own clock, in ms from its start.
    pub findings: Vec<Finding>,
    /// Findings that held and were withdrawn, the first of them.
    pub withdrawn: Vec<Finding>,
    /// Errors of the watch itself.
    pub errors: Vec<String>,
    /// What this node's hardware shows.
    #[serde(default)]
    pub hardware: Vec<HealthEvent>,
    /// What the other nodes' hardware shows, where this agent judges.
    #[serde(default)]
    pub elsewhere: Vec<OfNode>,
    /// What could not be watched, one line each.
    #[serde(default)]
    pub blind: Vec<String>,
    /// What the network's steps waited for, the worst first, as it was looked into last.
    #[serde(default)]
    pub delays: Vec<Delay>,
    /// What was done, and what was left undone.
    #[serde(default)]
    pub acts: Vec<Act>,
    /// Names of the nodes that findings, delays and other nodes' hardware speak of.
    #[serde(default)]
    pub names: BTreeMap<NodeId, String>,
}

/// The end of the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Finished {
    /// When.
    pub at: Timestamp,
    /// Why, in words.
    pub because: String,
}

/// Telemetry of a node's ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Telemetry {
    /// OK: ranks came and have rings. NONE: none came yet. UNAVAILABLE: none can, or none of those that came has one.
    pub status: Status,
    /// Why it is unavailable, one line each.
    pub because: Vec<String>,
    /// Ranks that came with a ring.
    pub ranks: u64,
    /// Connections that were refused.
    pub refused: u64,
}

/// Whether there is telemetry. UNAVAILABLE and NONE are unknown, never healthy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Status {
    /// Some rank tells.
    Ok,
    /// No rank came.
    None,
    /// No rank can tell.
    Unavailable,
}

/// Something that a node's hardware shows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OfNode {
    /// The node.
    pub node: NodeId,
    /// What it shows.
    pub event: HealthEvent,
}

/// Something that was done because of a finding, or not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Act {
    /// When.
    pub at: Timestamp,
    /// Whether it was done.
    pub done: bool,
    /// What, or why not, in words.
    pub what: String,
}

impl RuntimeReport {
    /// Of a run on a node where nothing was seen yet.
    #[must_use]
    pub fn new(cluster: &str, job_id: u32, check_number: u32, node: &str, started_at: Timestamp) -> Self {
        Self {
            schema: 1,
            job_id,
            cluster: cluster.to_owned(),
            check_number,
            node: node.to_owned(),
            started_at,
            first_step_at: None,
            finished: None,
            telemetry: Telemetry { status: Status::None, because: Vec::new(), ranks: 0, refused: 0 },
            judged: false,
            spoke: false,
            findings: Vec::new(),
            withdrawn: Vec::new(),
            errors: Vec::new(),
            hardware: Vec::new(),
            elsewhere: Vec::new(),
            blind: Vec::new(),
            delays: Vec::new(),
            acts: Vec::new(),
            names: [].into(),
        }
    }

    /// What it amounts to. Nothing found is a pass only where ranks told something and were judged.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        let findings = self.findings.iter().map(|one| decide::item(one, false).status);
        let elsewhere = self.elsewhere.iter().map(|one| &one.event);
        let holds = self.hardware.iter().chain(elsewhere).filter(|event| event.turn != Turn::Ended);
        let hardware = holds.map(|event| decide::weight(event).0);
        let errors = self.errors.iter().map(|_| Weight::Error);
        match findings.chain(hardware).chain(errors).max() {
            Some(Weight::Fail) => Outcome::Fail,
            Some(Weight::Suspect) => Outcome::Suspect,
            Some(Weight::Error) => Outcome::Error,
            _ if self.judged && self.telemetry.status == Status::Ok => Outcome::Pass,
            _ => Outcome::Skip,
        }
    }

    /// Whether there is more in it than that nothing was seen.
    #[must_use]
    pub fn has_something_to_say(&self) -> bool {
        let found = self.spoke || !self.findings.is_empty() || !self.withdrawn.is_empty();
        found || !self.hardware.is_empty() || !self.errors.is_empty() || !self.acts.is_empty()
    }

    /// Why nothing is known of the ranks; empty where some told.
    #[must_use]
    pub fn unknown_because(&self) -> String {
        match self.telemetry.status {
            Status::Ok if self.judged => String::new(),
            Status::Ok => "nobody judged what the ranks told".to_owned(),
            Status::None => {
                "no rank came: the program does not use NCCL, or NCCL did not load the plugin".to_owned()
            }
            Status::Unavailable => self.telemetry.because.join("; "),
        }
    }

    /// Name of a node that it speaks of.
    pub(crate) fn name(&self, node: NodeId) -> String {
        self.names.get(&node).cloned().unwrap_or_else(|| format!("node {node}"))
    }

    /// Name of what a finding is about.
    pub(crate) fn subject(&self, subject: &Subject) -> String {
        wording::subject_of(|node| self.name(node), subject)
    }

    /// A rank as a person looks for it.
    pub(crate) fn rank(&self, who: &Who) -> String {
        let mut words = match (who.task, who.rank) {
            (Some(task), _) => format!("task {task}"),
            (None, Some(rank)) => format!("rank {rank}"),
            (None, None) => "a rank".to_owned(),
        };
        words.push_str(&format!(" on {}, process {}", self.name(who.node), who.pid));
        if let Some(gpu) = who.gpu {
            words.push_str(&format!(", GPU {gpu}"));
        }
        words
    }
}

/// What the reports of several nodes of a job amount to: the worst of them, where a node that did not judge counts only
/// for what it found itself.
#[must_use]
pub fn joint_outcome(reports: &[RuntimeReport]) -> Option<Outcome> {
    let rank = |outcome: &Outcome| match outcome {
        Outcome::Skip => 0,
        Outcome::Pass => 1,
        Outcome::Error => 2,
        Outcome::Suspect | Outcome::Environment => 3,
        Outcome::Fail => 4,
    };
    reports.iter().map(RuntimeReport::outcome).max_by_key(rank)
}

#[cfg(test)]
mod tests;
