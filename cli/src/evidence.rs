//! What shows that a drained node is fine again: the report of a job, or the checks of single nodes, run now by
//! `aimaster-prolog`. Whether it is enough is decided in `diag::action::undrain`.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use cluster::report_file::REPORT_FILE;
use diag::policy::{Paths, Policy};
use diag::report::{Report, printable};
use prolog::on_demand::CHECK_NODE;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;
use tokio::time::timeout;
use zeroize::Zeroizing;

use crate::undrain::Arguments;
use crate::{files, report};

/// The program that runs the checks, and the folder that it is in where it is not beside this one.
const HELPER: &str = "aimaster-prolog";
const HELPERS: &str = diag::plugstack::HELPERS;

/// Beyond the checks' own deadline, how long the helper may take to end.
const SLACK: Duration = Duration::from_secs(15);

/// Longest report: some findings of 8 or 16 GPUs a node, of the nodes of a step.
const MOST_BYTES: u64 = 64 << 20;

/// The report of a job's last check. A file that its user could have written proves nothing.
///
/// # Errors
/// There is none, it can't be read, or it is not root's.
pub fn of_job(job: u32, arguments: &Arguments, paths: &Paths) -> Result<Report> {
    let folder = arguments.report_dir.clone().unwrap_or_else(|| paths.report_dir.clone());
    let which = report::Arguments::of(job, arguments.cluster.clone());
    let folder = files::find(&folder, &which)?;
    let file = folder.join(REPORT_FILE);
    let (report, owner) = files::owned_report(&file)?;
    if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        bail!(
            "{} is not root's but its user's (paths.report_owner), who could have written anything: it shows nothing; \
             use --check",
            file.display()
        );
    }
    // Where users make the folders, one may lead to another job's.
    if report.job_id != job {
        bail!("{} is the report of job {}", file.display(), report.job_id);
    }
    Ok(report)
}

/// Runs the checks of single nodes on this machine.
///
/// # Errors
/// They can't be run: why, in words.
pub async fn of_check(
    node: &str,
    gpus: u32,
    arguments: &Arguments,
    (policy_file, policy): (&Path, &Policy),
) -> Result<Report, String> {
    let report = checked(node, gpus, arguments, (policy_file, policy)).await;
    report.map_err(|error| format!("its checks could not be run: {}", printable(&format!("{error:#}"))))
}

async fn checked(
    node: &str,
    gpus: u32,
    arguments: &Arguments,
    (policy_file, policy): (&Path, &Policy),
) -> Result<Report> {
    let mut command = helper(arguments.helpers.as_deref())?;
    command.arg(node).arg("--gpus").arg(gpus.to_string()).arg("--policy").arg(policy_file);
    report_of(command, policy, None).await
}

/// The program that runs the checks of a node by itself; the node and what is wanted of it are to follow.
///
/// # Errors
/// It is not known where this program is.
pub fn helper(folder: Option<&Path>) -> Result<Command> {
    let beside = std::env::current_exe().context("where is this program?")?.with_file_name(HELPER);
    let program = match folder {
        Some(folder) => folder.join(HELPER),
        None if beside.is_file() => beside,
        None => PathBuf::from(HELPERS).join(HELPER),
    };
    let mut command = Command::new(&program);
    command.arg(CHECK_NODE).env_clear().kill_on_drop(true);
    if let Some(conf) = std::env::var_os("SLURM_CONF") {
        command.env("SLURM_CONF", conf);
    }
    Ok(command)
}

/// The report that it prints. A key that the nodes have in common goes through a pipe, where nobody else sees it.
///
/// # Errors
/// It does not start, fails or takes too long, or what it prints is none.
pub async fn report_of(
    mut command: Command,
    policy: &Policy,
    key: Option<&Zeroizing<String>>,
) -> Result<Report> {
    let shown = command.as_std().get_program().to_string_lossy().into_owned();
    command.stdin(if key.is_some() { Stdio::piped() } else { Stdio::null() }).stdout(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("can't run {shown}"))?;
    if let (Some(mut input), Some(key)) = (child.stdin.take(), key) {
        // Some dozen bytes, which a pipe always holds.
        input.write_all(key.as_bytes()).await.with_context(|| format!("{shown} did not take the key"))?;
    }
    let out = child.stdout.take().context("the helper has no output")?;
    let bound = Duration::from_secs(policy.time.max_deadline_s.into()) + SLACK;
    let mut text = String::new();
    let ended = timeout(bound, async {
        out.take(MOST_BYTES).read_to_string(&mut text).await?;
        child.wait().await
    });
    let status = ended.await.with_context(|| format!("they did not end within {bound:?}"))??;
    if !status.success() {
        bail!("{shown} ended with {status}");
    }
    serde_json::from_str(&text).with_context(|| format!("what {shown} printed is no report"))
}
