//! The processes of one node: listing them and sending them signals by name. Processes are found
//! by their PID namespace, from outside, so nothing has to run in the node for it.

use std::fs;

use anyhow::{Context, Result};
use rustix::process::{Signal, kill_process};

use crate::cluster::Cluster;
use crate::process::pid_of;

/// A process in a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// The id as this machine sees it.
    pub host_pid: u32,
    /// The id inside the node.
    pub pid: u32,
    /// The short name (15 characters at most).
    pub comm: String,
    /// The command line, its arguments joined by spaces.
    pub cmdline: String,
}

impl Process {
    fn read(host_pid: u32) -> Option<Self> {
        let file = |name: &str| fs::read(format!("/proc/{host_pid}/{name}")).ok();
        let status = String::from_utf8_lossy(&file("status")?).into_owned();
        let inner = status.lines().find_map(|l| l.strip_prefix("NSpid:"))?.split_whitespace().last()?;
        let cmdline = String::from_utf8_lossy(&file("cmdline")?).replace('\0', " ");
        Some(Self {
            host_pid,
            pid: inner.parse().ok()?,
            comm: String::from_utf8_lossy(&file("comm")?).trim_end().to_owned(),
            cmdline: cmdline.trim_end().to_owned(),
        })
    }
}

impl Process {
    /// Whether it is stopped, or has ended meanwhile.
    pub(crate) fn is_stopped(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.host_pid)).unwrap_or_default();
        // The state follows the name in parentheses.
        stat.rsplit_once(')')
            .is_none_or(|(_, rest)| matches!(rest.trim_start().chars().next(), Some('T' | 'Z' | 'X')))
    }
}

impl Cluster {
    /// The processes of a node, its first one (which holds the namespaces) left out.
    pub fn processes(&self, node: &str) -> Result<Vec<Process>> {
        let init = self.find(node)?.init()?;
        let namespace = fs::read_link(format!("/proc/{init}/ns/pid"))
            .with_context(|| format!("{node}: its first process is gone"))?;
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").context("cannot list /proc")?.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse().ok()) else { continue };
            if pid != init && fs::read_link(entry.path().join("ns/pid")).is_ok_and(|ns| ns == namespace) {
                found.extend(Process::read(pid));
            }
        }
        found.sort_by_key(|p| p.pid);
        Ok(found)
    }

    /// Sends a signal to every process of a node whose command line (or short name) contains
    /// `pattern`; gives back which those were.
    pub fn signal_processes(&self, node: &str, pattern: &str, signal: Signal) -> Result<Vec<Process>> {
        let mut hit = Vec::new();
        for process in self.processes(node)? {
            let matches = process.cmdline.contains(pattern) || process.comm.contains(pattern);
            if matches && kill_process(pid_of(process.host_pid)?, signal).is_ok() {
                hit.push(process);
            }
        }
        Ok(hit)
    }
}
