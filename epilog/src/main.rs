//! `aimaster-epilog`: started by the plugin, or by a site's Epilog, when a job has ended on this node. It always
//! ends well, since an epilog that fails would drain the node; what went wrong is said on standard error, which
//! the plugin writes to slurmd's log.
#![forbid(unsafe_code)]

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use cluster::report_writer;
use diag::report::printable;
use epilog::c4d::lock::{self, Stopped};
use epilog::job::EndedJob;
use epilog::keep::{self, Kept};
use epilog::{run_folder, sweep};

/// What other jobs left waits for the next epilog if this one's own work took longer: the plugin gives all of it 10 s.
const FOR_OTHERS: Duration = Duration::from_secs(3);

fn main() -> ExitCode {
    // Not the epilog, but the process that writes its report.
    if let Some(done) = report_writer::write_report(std::env::args_os().skip(1)) {
        return done;
    }
    if let Err(error) = clean() {
        say(&format!("{error:#}"));
    }
    ExitCode::SUCCESS
}

fn say(line: &str) {
    eprintln!("aimaster-epilog: {}", printable(line));
}

fn clean() -> Result<()> {
    let job = EndedJob::from_environment(|name| std::env::var(name).ok())
        .context("nothing was cleaned up: it is not known which job ended")?;
    let begun = Instant::now();
    let root = Path::new(diag::gate::RUN_ROOT);
    let mut reports: Vec<Kept> = Vec::new();
    let visited = run_folder::visit(root, &job, |name, folder| {
        match lock::stop(folder) {
            Ok(Stopped::None | Stopped::Ended) => {}
            Ok(how) => say(&format!("the agent of {name} did not end by itself: {how:?}")),
            Err(error) => say(&format!("whether an agent of {name} is left is not known: {error}")),
        }
        match keep::take(folder) {
            Ok(report) => reports.extend(report),
            Err(error) => say(&format!("what the agent of {name} said is lost: {error:#}")),
        }
    });
    if let Err(error) = visited {
        say(&format!("agents of job {} were not looked for: {error}", job.job));
    }
    let removed = run_folder::remove(root, &job)
        .with_context(|| format!("job {}: a part of its run folder is left", job.job));
    if begun.elapsed() < FOR_OTHERS {
        let swept = sweep::sweep(root, &job, Path::new("/"));
        if let Some(line) = swept.line() {
            say(&line);
        }
        reports.extend(swept.reports);
    }
    for (path, written) in keep::put(&reports)? {
        if let Err(error) = written {
            say(&format!(
                "job {}: the runtime report was not written to {}: {error:#}",
                job.job,
                path.display()
            ));
        }
    }
    for line in keep::count(&reports)? {
        say(&format!("job {}: {line}", job.job));
    }
    removed.map(drop)
}
