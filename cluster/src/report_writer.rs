//! Has a report written by a process of its own: a folder on shared storage can keep a process waiting for as long as
//! its server likes, and root may be nobody there. The process is the calling program once more: its `main` asks
//! [`write_report`] first.

use std::ffi::OsString;
use std::io::Read;
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use diag::policy::{ReportOwner, ReportReaders};
use rustix::process::{
    DumpableBehavior, Gid, Signal, Uid, set_dumpable_behavior, set_parent_process_death_signal,
};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;
use tokio::time::{Instant, timeout_at};

use crate::OWN_PROGRAM;
pub use crate::report_file::Rights;
use crate::report_file::{self, Place};

/// First argument of the process that writes.
const WRITE_REPORT: &str = "write-report";

/// How long it may take; a job waits for it.
pub const WRITING: Duration = Duration::from_secs(2);

/// How long it may take at least, however little time is left: a local folder takes milliseconds.
const AT_LEAST: Duration = Duration::from_millis(300);

/// Bytes of an error that are kept.
const MOST_ERROR: u64 = 400;

/// Longest report that is taken: some thousand nodes of 8 GPUs.
const MOST_BYTES: u64 = 256 << 20;

/// Why a report was not written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// It would be the user's, and the group is not known.
    #[error("Slurm did not say the job's group (SLURM_JOB_GID)")]
    NoGroup,
    /// There is no process to write it.
    #[error("the process that writes it can't be started or is lost")]
    Process(#[source] std::io::Error),
    /// Its storage keeps it waiting.
    #[error("it was not written within {seconds:.1} s: is its storage in order?")]
    Late {
        /// How long that was.
        seconds: f64,
    },
    /// The process said why.
    #[error("{0}")]
    Refused(String),
}

/// What the process is told, on its first line of input; the report follows.
#[derive(Serialize, Deserialize)]
struct Job {
    report_dir: String,
    cluster: String,
    job_id: u32,
    check_number: u32,
    file: String,
    by_user: bool,
    readers: ReportReaders,
    uid: u32,
    gid: Option<u32>,
}

/// Writes a report, within two seconds and not after `until` if that can be.
///
/// # Errors
/// If it was not written in this time, or can't be.
pub async fn write(place: &Place, text: &[u8], rights: Rights, until: Instant) -> Result<(), WriteError> {
    let now = Instant::now();
    let until = until.min(now + WRITING).max(now + AT_LEAST);
    let by_user = rights.owner == ReportOwner::User;
    if by_user && rights.gid.is_none() {
        return Err(WriteError::NoGroup);
    }
    let job = Job {
        report_dir: place.report_dir.to_string_lossy().into_owned(),
        cluster: place.cluster.clone(),
        job_id: place.job_id,
        check_number: place.check_number,
        file: place.file.clone(),
        by_user,
        readers: rights.readers,
        uid: rights.uid,
        gid: rights.gid,
    };
    let lost = WriteError::Process;
    let mut input = serde_json::to_vec(&job).map_err(|error| lost(error.into()))?;
    input.push(b'\n');
    input.extend_from_slice(text);
    let mut command = Command::new(OWN_PROGRAM);
    command
        .arg(WRITE_REPORT)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let mut writer = command.spawn().map_err(lost)?;
    let (stdin, stderr) = (writer.stdin.take(), writer.stderr.take());
    let mut said = Vec::new();
    let writing = async {
        if let Some(mut stdin) = stdin {
            // One that does not read says why on its standard error.
            _ = stdin.write_all(&input).await;
        }
        if let Some(stderr) = stderr {
            // It may be the user's process: no more is kept than is told.
            _ = stderr.take(MOST_ERROR).read_to_end(&mut said).await;
        }
        writer.wait().await
    };
    let Ok(status) = timeout_at(until, writing).await else {
        return Err(WriteError::Late { seconds: (until - now).as_secs_f64() });
    };
    let status = status.map_err(lost)?;
    if status.success() {
        return Ok(());
    }
    let error = String::from_utf8_lossy(&said);
    Err(WriteError::Refused(match error.trim() {
        "" => format!("the process that writes it ended ({status})"),
        error => error.to_owned(),
    }))
}

/// What the process that writes does; `None`: the arguments don't ask for it.
pub fn write_report(mut arguments: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    if arguments.next()? != WRITE_REPORT {
        return None;
    }
    Some(match take() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}", crate::chain(&error));
            ExitCode::FAILURE
        }
    })
}

fn take() -> std::io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let mut input = Vec::new();
    std::io::stdin().take(MOST_BYTES).read_to_end(&mut input)?;
    let end = input.iter().position(|byte| *byte == b'\n').unwrap_or(input.len());
    let (head, text) = (&input[..end], input.get(end + 1..).unwrap_or_default());
    let job: Job = serde_json::from_slice(head)?;
    // A report that was cut off is none.
    serde_json::from_slice::<serde::de::IgnoredAny>(text)?;
    let owner = if job.by_user { ReportOwner::User } else { ReportOwner::Root };
    if job.by_user {
        let group = job.gid.ok_or_else(|| std::io::Error::other("no group"))?;
        become_user(job.uid, group).map_err(|error| {
            std::io::Error::new(error.kind(), format!("this process can't become the job's user: {error}"))
        })?;
    }
    let place = Place {
        report_dir: job.report_dir.into(),
        cluster: job.cluster,
        job_id: job.job_id,
        check_number: job.check_number,
        file: job.file,
    };
    let rights = Rights { owner, readers: job.readers, uid: job.uid, gid: job.gid };
    report_file::write(&place, text, rights).map(drop)
}

/// Gives up root's rights for good, here and not before the program starts: nobody but root can stop or look into a
/// process until then, and afterwards nobody can look into it.
fn become_user(uid: u32, gid: u32) -> std::io::Result<()> {
    // To the kernel this number means that nothing changes.
    if uid == u32::MAX || gid == u32::MAX {
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "it has no number of its own"));
    }
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    // This process has one thread.
    if rustix::process::geteuid().is_root() {
        set_thread_groups(&[])?;
    }
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)?;
    // A change of user undoes both.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    Ok(())
}
