//! munged, slurmd and slurmctld of the cluster: starting and stopping each. Whole nodes are killed
//! and started in `cluster`.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::Signal;

use crate::cluster::Cluster;
use crate::conf::{CTL, SLURMCTLD_PORT};
use crate::wait;

/// Daemons start in milliseconds.
const START: Duration = Duration::from_secs(30);
/// slurmd waits for its prologs and threads before it ends; then it is killed.
const GENTLE: Duration = Duration::from_secs(10);

impl Cluster {
    /// Starts munged of a machine.
    pub fn start_munged(&self, node: &str) -> Result<()> {
        let dir = self.find(node)?.dir.join("munge");
        let file = |option: &str, name: &str| format!("--{option}={}", dir.join(name).display());
        self.command(node, ["munged", "--socket=/run/munge/munge.socket.2"])
            .args(["--pid-file=/run/munge/munged.pid", "--num-threads=2", "--force"])
            .args([file("key-file", "key"), file("log-file", "log"), file("seed-file", "seed")])
            .user("munge")
            .timeout(START)
            .ok()
            .with_context(|| format!("munged of {node}"))?;
        Ok(())
    }

    /// Stops munged of a machine.
    pub fn stop_munged(&self, node: &str) -> Result<()> {
        self.stop_daemon(node, "munge/munged.pid", "munged")
    }

    /// Starts slurmd of a node.
    pub fn start_slurmd(&self, node: &str) -> Result<()> {
        let started = self.command(node, ["slurmd", "-N", node]).timeout(START).ok();
        started.map(drop).with_context(|| format!("slurmd of {node}"))
    }

    /// Stops slurmd of a node; steps and their processes live on.
    pub fn stop_slurmd(&self, node: &str) -> Result<()> {
        self.stop_daemon(node, "slurmd.pid", "slurmd")
    }

    /// Stops slurmd of a node and starts it again.
    pub fn restart_slurmd(&self, node: &str) -> Result<()> {
        self.stop_slurmd(node)?;
        self.start_slurmd(node)
    }

    /// Starts slurmctld and waits until it listens.
    pub fn start_slurmctld(&self) -> Result<()> {
        self.command(CTL, ["slurmctld"]).timeout(START).ok().context("slurmctld")?;
        wait::until(START, "slurmctld listens", || Ok(self.listens(CTL, SLURMCTLD_PORT)?.then_some(())))
    }

    /// Stops slurmctld; its state is saved.
    pub fn stop_slurmctld(&self) -> Result<()> {
        self.stop_daemon(CTL, "slurmctld.pid", "slurmctld")
    }

    /// Ends the daemon of a pid file: asked first, then killed. No error if it does not run.
    fn stop_daemon(&self, node: &str, pid_file: &str, comm: &str) -> Result<()> {
        let file = self.find(node)?.run_file(pid_file);
        let Ok(text) = fs::read_to_string(&file) else { return Ok(()) };
        let pid: u32 = text.trim().parse().with_context(|| format!("{}", file.display()))?;
        let is_it = |p: &crate::procs::Process| p.pid == pid && p.comm.starts_with(comm);
        let Some(process) = self.processes(node)?.into_iter().find(is_it) else { return Ok(()) };
        let target = crate::process::pid_of(process.host_pid)?;
        for (signal, patience) in [(Signal::TERM, GENTLE), (Signal::KILL, GENTLE)] {
            let _ = rustix::process::kill_process(target, signal);
            let gone = || Ok((!self.processes(node)?.iter().any(is_it)).then_some(()));
            if wait::until(patience, "it ends", gone).is_ok() {
                return Ok(());
            }
        }
        anyhow::bail!("{comm} of {node} does not end")
    }
}
