//! What the agent says of the job: `runtime.json` in the run folder, for whoever looks while the job runs and for the
//! epilog. Not how anything in it was found out.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;

use diag::c4d::finding::Finding;
use diag::health::HealthEvent;
use jiff::Timestamp;
use rustix::fs::{Mode, OFlags, openat, renameat};
use serde::{Deserialize, Serialize};

/// Its name.
pub const FILE_NAME: &str = "runtime.json";

/// Its name until it is whole.
const FRESH: &str = "runtime.new";

/// Most entries of each list; what is beyond is counted.
pub const MOST_ENTRIES: usize = 1000;

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
    /// Whether this agent judges what ranks tell.
    pub judged: bool,
    /// Findings that hold; times by the agent's own clock, in ms from its start.
    pub findings: Vec<Finding>,
    /// Findings that held and were withdrawn, the first of them.
    pub withdrawn: Vec<Finding>,
    /// Errors of the watch itself.
    pub errors: Vec<String>,
    /// What this node's hardware shows.
    #[serde(default)]
    pub hardware: Vec<HealthEvent>,
    /// What could not be watched, one line each.
    #[serde(default)]
    pub blind: Vec<String>,
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

impl RuntimeReport {
    /// Writes it into the run folder, whole or not at all.
    ///
    /// # Errors
    /// The system refuses.
    pub fn write(&self, folder: impl AsFd) -> io::Result<()> {
        let folder = folder.as_fd();
        let text = serde_json::to_vec(self)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(folder, FRESH, flags, Mode::RUSR | Mode::WUSR)?;
        File::from(file).write_all(&text)?;
        Ok(renameat(folder, FRESH, folder, FILE_NAME)?)
    }
}
