//! `aimaster-epilog`: started by the plugin, or by a site's Epilog, when a job has ended on this node. It always
//! ends well, since an epilog that fails would drain the node; what went wrong is said on standard error, which
//! the plugin writes to slurmd's log.
#![forbid(unsafe_code)]

use std::path::Path;

use anyhow::{Context, Result};
use epilog::c4d::lock::{self, Stopped};
use epilog::job::EndedJob;
use epilog::run_folder;

fn main() {
    if let Err(error) = clean() {
        eprintln!("aimaster-epilog: {error:#}");
    }
}

fn clean() -> Result<()> {
    let job = EndedJob::from_environment(|name| std::env::var(name).ok())
        .context("nothing was cleaned up: it is not known which job ended")?;
    let root = Path::new(diag::gate::RUN_ROOT);
    let visited = run_folder::visit(root, &job, |name, folder| match lock::stop(folder) {
        Ok(Stopped::None | Stopped::Ended) => {}
        Ok(how) => eprintln!("aimaster-epilog: the agent of {name} did not end by itself: {how:?}"),
        Err(error) => eprintln!("aimaster-epilog: whether an agent of {name} is left is not known: {error}"),
    });
    if let Err(error) = visited {
        eprintln!("aimaster-epilog: agents of job {} were not looked for: {error}", job.job);
    }
    run_folder::remove(root, &job)
        .with_context(|| format!("job {}: a part of its run folder is left", job.job))?;
    Ok(())
}
