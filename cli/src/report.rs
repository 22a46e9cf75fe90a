//! `aimaster report JOBID`: a report as text or JSON.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use diag::report::Report;
use diag::verdict::Outcome;
use rustix::fs::OFlags;

use crate::config;

/// Which report, and how.
#[derive(clap::Args)]
pub struct Arguments {
    /// The job's id.
    job_id: u32,
    /// Which of the job's checks: 1 for its first start, 2 after its first restart; the last one by default.
    #[arg(long)]
    check: Option<u32>,
    /// The cluster, where several keep their reports in one place.
    #[arg(long)]
    cluster: Option<String>,
    /// The report as JSON.
    #[arg(long)]
    json: bool,
    /// Folder of reports, in place of the policy's.
    #[arg(long)]
    report_dir: Option<PathBuf>,
}

/// Longest report that is read: some thousand nodes of 8 GPUs.
const MOST_BYTES: u64 = 256 << 20;

/// Shows it. The exit code is the outcome: 0 pass, 1 fault, 3 undecided, error or skipped.
///
/// # Errors
/// If there is no such report or it can't be read.
pub fn show(arguments: &Arguments, policy: &Path) -> Result<ExitCode> {
    let folder = match &arguments.report_dir {
        Some(folder) => folder.clone(),
        None => config::read(policy)?.paths.report_dir,
    };
    let path = find(&folder, arguments)?;
    let text = read(&path).with_context(|| {
        format!("can't read {}; a report is readable by its owner and the job's group", path.display())
    })?;
    let report: Report =
        serde_json::from_str(&text).with_context(|| format!("{} is no report", path.display()))?;
    let shown = if arguments.json { text } else { report.text() };
    // A reader that went away, such as `head`, is no error.
    _ = std::io::stdout().write_all(shown.as_bytes());
    Ok(ExitCode::from(match report.outcome {
        Outcome::Pass => 0,
        Outcome::Fail => 1,
        Outcome::Skip | Outcome::Error | Outcome::Suspect | Outcome::Environment => 3,
    }))
}

/// The text of a report, which may stand where others write: a plain file and no link, and no more of it than a report
/// can have.
fn read(path: &Path) -> Result<String> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        bail!("it is no plain file");
    }
    let mut text = String::new();
    if file.take(MOST_BYTES + 1).read_to_string(&mut text)? as u64 > MOST_BYTES {
        bail!("it is longer than {} MiB", MOST_BYTES >> 20);
    }
    Ok(text)
}

/// The report's file: of the wanted check, else of the last one; of the only cluster that has it.
fn find(folder: &Path, arguments: &Arguments) -> Result<PathBuf> {
    let job = arguments.job_id.to_string();
    if !folder.is_dir() {
        bail!(
            "no report of job {job} here: {} does not exist on this machine; look on the job's first node, or let \
             paths.report_dir of the policy be on shared storage",
            folder.display()
        );
    }
    let clusters = match &arguments.cluster {
        Some(cluster) => vec![cluster.clone()],
        None => names(folder)?,
    };
    let found: Vec<PathBuf> =
        clusters.iter().map(|cluster| folder.join(cluster).join(&job)).filter(|path| path.is_dir()).collect();
    let job_folder = match found.as_slice() {
        [one] => one,
        [] => bail!(
            "no report of job {job} under {}{}; it is on the job's first node unless that folder is shared",
            folder.display(),
            arguments.cluster.as_ref().map_or_else(String::new, |cluster| format!(" for cluster {cluster}"))
        ),
        several => {
            let several: Vec<String> = several.iter().map(|path| path.display().to_string()).collect();
            bail!("several clusters have a job {job} ({}): name one with --cluster", several.join(", "))
        }
    };
    let checks: Vec<u32> = names(job_folder)?.iter().filter_map(|name| name.parse().ok()).collect();
    let check = match arguments.check {
        Some(check) if !checks.contains(&check) => {
            let known: Vec<String> = checks.iter().map(ToString::to_string).collect();
            bail!("job {job} has no check {check}; it has {}", known.join(", "))
        }
        Some(check) => check,
        None => *checks.iter().max().with_context(|| format!("{} holds no report", job_folder.display()))?,
    };
    Ok(job_folder.join(check.to_string()).join("report.json"))
}

fn names(folder: &Path) -> Result<Vec<String>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("can't read {}", folder.display()))?;
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    Ok(names)
}
