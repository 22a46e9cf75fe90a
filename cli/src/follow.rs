//! `aimaster report JOBID --follow`: on a node of the job, what its agent says, as it comes, until the job is over; then
//! the report. It only reads, and every wait of it is short.

use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use cluster::slurm::scontrol::Scontrol;
use diag::gate::RUN_ROOT;
use diag::policy::Policy;
use diag::report::printable;
use diag::runtime_report::{FILE_NAME, RuntimeReport};
use epilog::c4d::lock;
use rustix::fs::{Mode, OFlags};

use crate::report::Arguments;
use crate::{files, report};

/// Between two looks; the agent writes once a second at most.
const POLL: Duration = Duration::from_secs(1);

/// How long the report may take to be where reports are: the epilog stops the agent, which may take 5 s, and then writes
/// for at most 2 s.
const KEEPING: Duration = Duration::from_secs(10);

/// Follows the job.
///
/// # Errors
/// What its agent says can't be read here: the error says where it can be, and by whom.
pub fn follow(arguments: &Arguments, policy: &Policy, reports: &Path) -> Result<ExitCode> {
    let Some(run) = find(Path::new(RUN_ROOT), arguments)? else {
        // It may be over already.
        if let Ok(code) = report::last(reports, arguments) {
            return Ok(code);
        }
        bail!("{}", elsewhere(arguments.job_id, first_node(arguments.job_id, policy).as_deref()));
    };
    let path = run.folder.join(FILE_NAME);
    let mut before: Option<RuntimeReport> = None;
    let ended = loop {
        match files::runtime(&path) {
            Ok(now) => {
                say(&now.news(before.as_ref()));
                let finished = now.finished.is_some();
                before = Some(now);
                if finished {
                    break true;
                }
            }
            Err(error) if is(&error, ErrorKind::NotFound) && before.is_some() => break true,
            Err(error) if is(&error, ErrorKind::NotFound) => {}
            Err(error) if is(&error, ErrorKind::PermissionDenied) => {
                let job = arguments.job_id;
                bail!(
                    "can't read {}: run `aimaster report {job} --follow` as root on {}",
                    path.display(),
                    run.node
                )
            }
            // It is replaced whole: what can't be read once can't be read later either.
            Err(error) => return Err(error),
        }
        if !watched(&run.folder) {
            break !run.folder.exists();
        }
        sleep(POLL);
    };
    if !ended {
        let words = "the agent of this job is gone, and the job may go on: nobody watches it on this node";
        say(&[words.to_owned()]);
    }
    finish(arguments, reports, &run, ended)
}

/// A run of the job on this machine.
#[derive(Debug, PartialEq, Eq)]
struct Run {
    folder: PathBuf,
    cluster: String,
    node: String,
    check_number: u32,
}

/// The last run of the job on this machine; of several nodes on one machine that of the node that speaks for the job, or else the first.
fn find(root: &Path, arguments: &Arguments) -> Result<Option<Run>> {
    let mut found: Vec<(bool, Run)> = Vec::new();
    for cluster in listed(root) {
        if arguments.cluster.as_ref().is_some_and(|wanted| *wanted != cluster) {
            continue;
        }
        for node in listed(&root.join(&cluster)) {
            let runs = root.join(&cluster).join(&node);
            let of = |name: &str| -> Option<u32> {
                let (job, restart) = name.split_once('.')?;
                (job.parse() == Ok(arguments.job_id)).then(|| restart.parse().ok())?
            };
            let Some(restart) = listed(&runs).iter().filter_map(|name| of(name)).max() else { continue };
            let folder = runs.join(format!("{}.{restart}", arguments.job_id));
            let speaks = files::runtime(&folder.join(FILE_NAME)).is_ok_and(|report| report.spoke);
            let check_number = restart.saturating_add(1);
            found.push((!speaks, Run { folder, cluster: cluster.clone(), node, check_number }));
        }
    }
    let clusters: Vec<&str> = found.iter().map(|(_, run)| run.cluster.as_str()).collect();
    if clusters.iter().any(|cluster| *cluster != clusters[0]) {
        bail!("several clusters have a job {} here: name one with --cluster", arguments.job_id);
    }
    Ok(found.into_iter().min_by_key(|(later, _)| *later).map(|(_, run)| run))
}

/// What is not there holds nothing.
fn listed(folder: &Path) -> Vec<String> {
    files::names(folder).unwrap_or_default()
}

/// Whether the agent is there; where that can't be told it is taken to be.
fn watched(folder: &Path) -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::open(folder, flags, Mode::empty()) {
        Ok(folder) => lock::is_held(folder).unwrap_or(true),
        Err(_) => false,
    }
}

fn is(error: &anyhow::Error, kind: ErrorKind) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|cause| cause.kind() == kind)
}

fn say(lines: &[String]) {
    let mut out = std::io::stdout().lock();
    for line in lines {
        // A reader that went away ends this with the next signal; until then nothing is lost.
        _ = writeln!(out, "{}", printable(line));
    }
    _ = out.flush();
}

/// Waits until what the agent said is kept, and shows the report of that run.
fn finish(arguments: &Arguments, reports: &Path, run: &Run, ended: bool) -> Result<ExitCode> {
    let wanted = Arguments {
        check: Some(run.check_number),
        cluster: Some(run.cluster.clone()),
        report_dir: None,
        follow: false,
        output: None,
        ..*arguments
    };
    let folder =
        reports.join(&run.cluster).join(arguments.job_id.to_string()).join(run.check_number.to_string());
    let files = [folder.join(FILE_NAME), folder.join(format!("runtime.{}.json", run.node))];
    let until = Instant::now() + KEEPING;
    while ended && Instant::now() < until && !files.iter().any(|file| file.exists()) {
        sleep(POLL / 4);
    }
    report::last(reports, &wanted)
}

/// The job's first node, where Slurm is asked and answers.
fn first_node(job: u32, policy: &Policy) -> Option<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    let (scontrol, scancel) = (policy.paths.scontrol.clone(), policy.paths.scancel.clone());
    let per_call = Duration::from_secs(policy.time.scontrol_s.into());
    let conf = std::env::var_os("SLURM_CONF").map(PathBuf::from);
    let scontrol = Scontrol::new(scontrol, scancel, conf, per_call);
    let deadline = tokio::time::Instant::now() + per_call * 2;
    let job = runtime.block_on(scontrol.show_job(job, deadline)).ok()?;
    job.nodes.first().cloned()
}

fn elsewhere(job: u32, first: Option<&str>) -> String {
    let place = match first {
        Some(node) => format!("as root on {node}, the job's first node"),
        None => format!("as root on the job's first node (BatchHost of `scontrol show job {job}`)"),
    };
    format!(
        "no runtime check of job {job} on this machine: run `aimaster report {job} --follow` {place}, while it runs"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(cluster: Option<&str>) -> Arguments {
        let cluster = cluster.map(str::to_owned);
        Arguments { follow: true, ..Arguments::of(7, cluster) }
    }

    #[test]
    fn the_last_run_of_this_job_is_followed() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(find(root.path(), &arguments(None)).unwrap(), None);
        for folder in ["aim/n1/7.0", "aim/n1/7.2", "aim/n1/7.x", "aim/n1/77.3", "aim/n2/7.1", "aim/n3/8.0"] {
            std::fs::create_dir_all(root.path().join(folder)).unwrap();
        }
        let run = find(root.path(), &arguments(None)).unwrap().unwrap();
        assert_eq!((run.node.as_str(), run.check_number), ("n1", 3));
        assert!(run.folder.ends_with("aim/n1/7.2"));
        assert_eq!(find(root.path(), &arguments(Some("bee"))).unwrap(), None);
        std::fs::create_dir_all(root.path().join("bee/n1/7.0")).unwrap();
        assert!(find(root.path(), &arguments(None)).unwrap_err().to_string().contains("--cluster"));
        assert_eq!(find(root.path(), &arguments(Some("bee"))).unwrap().unwrap().check_number, 1);
    }

    #[test]
    fn a_folder_that_nobody_holds_is_not_watched() {
        let root = tempfile::tempdir().unwrap();
        assert!(!watched(root.path()) && !watched(&root.path().join("none")));
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let folder = rustix::fs::open(root.path(), flags, Mode::empty()).unwrap();
        // A process's own lock does not count for itself: only that the file can be looked at is seen here.
        let _lock = lock::take(&folder).unwrap();
        assert!(!lock::is_held(&folder).unwrap());
    }

    #[test]
    fn where_to_look_is_said() {
        let words = elsewhere(7, Some("gpu-01"));
        assert!(words.contains("`aimaster report 7 --follow` as root on gpu-01"), "{words}");
        assert!(elsewhere(7, None).contains("scontrol show job 7"));
    }
}
