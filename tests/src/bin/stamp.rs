//! Stamps a plugin for the Slurm that is installed here: `stamp FILE`.

use aimaster_tests::{SlurmVersion, stamp};
use anyhow::{Context, Result};

fn main() -> Result<()> {
    let path = std::env::args_os().nth(1).context("stamp FILE: which plugin?")?;
    let version = SlurmVersion::installed()?;
    stamp(path.as_ref(), version)?;
    println!("{} is stamped for Slurm {version}", path.display());
    Ok(())
}
