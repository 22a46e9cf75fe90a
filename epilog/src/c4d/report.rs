//! Where the agent leaves what it says of the job: `runtime.json` in the run folder, for whoever looks while the job runs
//! and for the epilog, and beside it what the epilog needs to keep it. What is said is [`diag::runtime_report`]'s.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use cluster::order::Order;
use cluster::report_file::Place;
use cluster::report_writer::Rights;
use diag::policy::{Policy, ReportOwner, ReportReaders};
use rustix::fs::{AtFlags, Mode, OFlags, openat, renameat, unlinkat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

pub use diag::runtime_report::{
    Act, FILE_NAME, Finished, MOST_ENTRIES, OfNode, RuntimeReport, Status, Telemetry,
};

/// Its name until it is whole.
const FRESH: &str = "runtime.new";

/// Name of the file with what the epilog needs.
pub const KEEP_FILE_NAME: &str = "keep.json";

/// Its name until it is whole.
const KEEP_FRESH: &str = "keep.new";

/// Largest such file: a path of 4 KiB and a few names, each byte escaped.
pub const MOST_KEEP_BYTES: u64 = 32 * 1024;

/// Where the report is kept when the job is over, and as whose. The epilog reads no policy: what held when the job began
/// holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Keep {
    /// The policy's folder of reports.
    pub report_dir: PathBuf,
    /// The cluster.
    pub cluster: String,
    /// The job.
    pub job_id: u32,
    /// 1 for the job's first start.
    pub check_number: u32,
    /// Slurm's name of this node.
    pub node: String,
    /// Whether it is the job's first.
    pub first: bool,
    /// Whose the report is to be.
    pub owner: ReportOwner,
    /// Who may read it; an agent of an earlier version did not say.
    #[serde(default)]
    pub readers: ReportReaders,
    /// The job's user.
    pub uid: u32,
    /// The job's group, where Slurm said it.
    pub gid: Option<u32>,
    /// Where numbers for Prometheus go; empty: nowhere. An agent of an earlier version did not say.
    #[serde(default)]
    pub metrics_dir: PathBuf,
}

impl Keep {
    /// By the order and the policy in it.
    #[must_use]
    pub fn new(order: &Order, policy: &Policy) -> Self {
        Self {
            report_dir: policy.paths.report_dir.clone(),
            cluster: order.job.cluster.clone(),
            job_id: order.job.job_id,
            check_number: order.job.restart.saturating_add(1),
            node: order.node().to_owned(),
            first: order.me == 0,
            owner: policy.paths.report_owner,
            readers: policy.paths.report_readers,
            uid: order.uid,
            gid: order.gid,
            metrics_dir: policy.paths.metrics_dir.clone(),
        }
    }

    /// Leaves it in the run folder, whole or not at all.
    ///
    /// # Errors
    /// The system refuses.
    pub fn write(&self, folder: &OwnedFd) -> io::Result<()> {
        put(folder, (KEEP_FRESH, KEEP_FILE_NAME), &serde_json::to_vec(self)?)
    }

    /// The file of this node's report. Nodes may share the folder: the first node's has the plain name.
    #[must_use]
    pub fn place(&self) -> Place {
        let file = if self.first { FILE_NAME.to_owned() } else { format!("runtime.{}.json", self.node) };
        Place {
            report_dir: self.report_dir.clone(),
            cluster: self.cluster.clone(),
            job_id: self.job_id,
            check_number: self.check_number,
            file,
        }
    }

    /// Whose it is.
    #[must_use]
    pub fn rights(&self) -> Rights {
        Rights { owner: self.owner, readers: self.readers, uid: self.uid, gid: self.gid }
    }

    /// Whether this node's report is kept: of a job of a thousand nodes only those that spoke for it or have something to say.
    #[must_use]
    pub fn wants(&self, report: &RuntimeReport) -> bool {
        self.first || report.has_something_to_say()
    }
}

/// Writes the report into the run folder, whole or not at all.
///
/// # Errors
/// The system refuses.
pub fn write(report: &RuntimeReport, folder: &OwnedFd) -> io::Result<()> {
    put(folder, (FRESH, FILE_NAME), &serde_json::to_vec(report)?)
}

fn put(folder: impl AsFd, (fresh, name): (&str, &str), text: &[u8]) -> io::Result<()> {
    let folder = folder.as_fd();
    // Of an agent that was killed at this point; a new file is nobody's link.
    match unlinkat(folder, fresh, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno.into()),
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(folder, fresh, flags, Mode::RUSR | Mode::WUSR)?;
    File::from(file).write_all(text)?;
    Ok(renameat(folder, fresh, folder, name)?)
}
