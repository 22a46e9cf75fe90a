//! Has the report written by a process of its own: a folder on shared storage can keep a process waiting for as long as
//! its server likes, and root may be nobody there.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::path::Path;
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use cluster::slurm::environment::JobEnv;
use diag::policy::{Paths, ReportOwner};
use diag::report::Report;
use rustix::process::{
    DumpableBehavior, Gid, Signal, Uid, set_dumpable_behavior, set_parent_process_death_signal,
};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;
use tokio::time::{Instant, timeout_at};

use crate::report_file;

/// First argument of the process that writes.
const WRITE_REPORT: &str = "write-report";

/// How long it may take; a job waits for it.
const WRITING: Duration = Duration::from_secs(2);

/// How long it may take at least, however little time is left: a local folder takes milliseconds.
const AT_LEAST: Duration = Duration::from_millis(300);

/// Words for a group that Slurm did not say.
const NO_GROUP: &str = "-";

/// Bytes of an error that are kept.
const MOST_ERROR: u64 = 400;

/// Writes the report below `paths.report_dir`, within two seconds and not after `until` if that can be.
///
/// # Errors
/// If it was not written in this time, or can't be.
pub async fn report(paths: &Paths, job: &JobEnv, report: &Report, until: Instant) -> Result<()> {
    let now = Instant::now();
    let until = until.min(now + WRITING).max(now + AT_LEAST);
    let text = serde_json::to_vec(report)?;
    let mut command = Command::new(std::env::current_exe().context("where is this program?")?);
    if paths.report_owner == ReportOwner::User && job.gid.is_none() {
        bail!("Slurm did not say the job's group (SLURM_JOB_GID)");
    }
    let group = job.gid.map_or_else(|| NO_GROUP.to_owned(), |gid| gid.to_string());
    command
        .args([OsStr::new(WRITE_REPORT), paths.report_dir.as_os_str()])
        .args([word(paths.report_owner), &job.uid.to_string(), &group])
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let mut writer = command.spawn().context("the process that writes it can't be started")?;
    let (stdin, stderr) = (writer.stdin.take(), writer.stderr.take());
    let mut said = Vec::new();
    let writing = async {
        if let Some(mut stdin) = stdin {
            // One that does not read says why on its standard error.
            _ = stdin.write_all(&text).await;
        }
        if let Some(stderr) = stderr {
            // It may be the user's process: no more is kept than is told.
            _ = stderr.take(MOST_ERROR).read_to_end(&mut said).await;
        }
        writer.wait().await
    };
    let Ok(status) = timeout_at(until, writing).await else {
        bail!("it was not written within {:.1} s: is its storage in order?", (until - now).as_secs_f64());
    };
    let status = status.context("the process that writes it is lost")?;
    if status.success() {
        return Ok(());
    }
    let error = String::from_utf8_lossy(&said);
    match error.trim() {
        "" => bail!("the process that writes it ended ({status})"),
        error => bail!("{error}"),
    }
}

/// What the process that writes does; `None`: the arguments don't ask for it.
pub fn write_report(mut arguments: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    if arguments.next()? != WRITE_REPORT {
        return None;
    }
    Some(match write(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    })
}

fn write(mut arguments: impl Iterator<Item = OsString>) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let mut next = || arguments.next().context("an argument is missing");
    let (report_dir, owner, uid, group) = (next()?, next()?, next()?, next()?);
    let owner = [ReportOwner::Root, ReportOwner::User].into_iter().find(|one| owner == word(*one));
    let owner = owner.context("whose is it?")?;
    let group = group.to_str().filter(|group| *group != NO_GROUP).map(str::parse).transpose()?;
    let mut text = Vec::new();
    std::io::stdin().read_to_end(&mut text)?;
    let report: Report = serde_json::from_slice(&text).context("what is to be written is no report")?;
    if owner == ReportOwner::User {
        let uid = uid.to_str().context("no number of a user")?.parse()?;
        become_user(uid, group.context("no group")?).context("this process can't become the job's user")?;
    }
    report_file::write(Path::new(&report_dir), &report, owner, group)?;
    Ok(())
}

/// Gives up root's rights for good, here and not before the program starts: nobody but root can stop or look into a
/// process until then, and afterwards nobody can look into it.
fn become_user(uid: u32, gid: u32) -> std::io::Result<()> {
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

fn word(owner: ReportOwner) -> &'static str {
    match owner {
        ReportOwner::Root => "root",
        ReportOwner::User => "user",
    }
}
