//! A node whose clock jumps: a library that all its programs load adds what a file of the node says. The machine's own clock
//! stays. Deadlines by the monotonic clock are not touched, as by a real jump.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::site::Site;
use crate::NODE_DIR;
use crate::conf::CTL;

/// The library, in the folder of the product.
const LIBRARY: &str = "clock.so";

/// By how many seconds the clock is off; the folder is the node's own.
const FILE: &str = "clock";

/// The loader's list of what every program loads.
const PRELOAD: &str = "/etc/ld.so.preload";

/// Compiles the library into `folder`, which the nodes see as the product's.
///
/// # Errors
/// There is no compiler, or it fails.
pub fn build(folder: &Path) -> Result<()> {
    let source = tempfile::Builder::new().suffix(".c").tempfile().context("a file for the source")?;
    fs::write(source.path(), include_str!("clock.c"))?;
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", &format!("-DCLOCK=\"/run/{FILE}\""), "-o"])
        .args([folder.join(LIBRARY).as_path(), source.path()])
        .status()
        .context("cc, which compiles the library that moves a node's clock")?;
    ensure!(status.success(), "cc: {status}");
    Ok(())
}

impl Site {
    /// Has the programs of a machine load the library; its daemons start anew for it.
    ///
    /// # Errors
    /// A daemon does not come back.
    pub fn make_movable(&self, machine: &str) -> Result<()> {
        self.script(machine, &format!("echo {NODE_DIR}/{LIBRARY} >{PRELOAD}"))?;
        self.restart_daemons(machine)
    }

    /// The clock of a machine is off by so many seconds from now on.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn move_clock(&self, machine: &str, seconds: i32) -> Result<()> {
        fs::write(self.run_file(machine, FILE)?, seconds.to_string()).context("the clock's file")
    }

    /// The clock is right again, and the daemons start anew: Slurm's and MUNGE's own notes of times to come are gone with them.
    ///
    /// # Errors
    /// A daemon does not come back.
    pub fn mend_clock(&self, machine: &str) -> Result<()> {
        fs::remove_file(self.run_file(machine, FILE)?).context("the clock's file")?;
        self.keep_clock(machine)
    }

    /// The clock of a machine will not be moved after all.
    ///
    /// # Errors
    /// A daemon does not come back.
    pub fn keep_clock(&self, machine: &str) -> Result<()> {
        self.script(machine, &format!("rm {PRELOAD}"))?;
        self.restart_daemons(machine)
    }

    fn restart_daemons(&self, machine: &str) -> Result<()> {
        let cluster = &self.cluster;
        cluster.stop_munged(machine)?;
        cluster.start_munged(machine)?;
        if machine == CTL {
            cluster.stop_slurmctld()?;
            return cluster.start_slurmctld();
        }
        cluster.restart_slurmd(machine)
    }
}
