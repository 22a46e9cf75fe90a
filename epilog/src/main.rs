//! `aimaster-epilog`: started by the plugin, or by a site's Epilog, when a job has ended on this node. It always
//! ends well, since an epilog that fails would drain the node; what went wrong is said on standard error, which
//! the plugin writes to slurmd's log.
#![forbid(unsafe_code)]

use std::path::Path;

use anyhow::{Context, Result};
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
    run_folder::remove(Path::new(diag::gate::RUN_ROOT), &job)
        .with_context(|| format!("job {}: a part of its run folder is left", job.job))?;
    Ok(())
}
