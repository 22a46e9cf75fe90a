//! What jobs could leave behind on the nodes of a cluster: processes, listening sockets, files, mounts, shared memory, locks;
//! and what of memory and descriptors the long-lived daemons hold.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::cluster::Cluster;
use crate::procs::Process;

/// What of a node must be the same before and after. `/var/tmp` is the machine's own, and only what has our name or user
/// counts there.
const SHOW: &str = "
ps -eo user=,args= | grep -vE '(ps -eo|grep -vE|sort|bash -c|sed |find |ipcs|\\[.*\\])' | sed 's/^/process /'
cat /proc/net/tcp /proc/net/tcp6 | sed -nE 's/^ *[0-9]+: ([0-9A-F:]+) [0-9A-F:]+ 0A .*/socket \\1/p'
find /run/aimaster /tmp /dev/shm -mindepth 1 -printf 'file %p\\n' 2>/dev/null
find /var/tmp -maxdepth 1 \\( -user aimaster -o -name '*aimaster*' \\) -not -name 'aimaster-cluster-*' \
  -not -name aimaster-tests.lock -printf 'file %p\\n'
sed 's/^/mount /' /proc/self/mounts
ipcs | grep -E '^0x' | sed 's/^/ipc /'
awk '{ print \"lock\", $2, $4, $6 }' /proc/locks
";

/// The traces of each node: `kind what`, sorted.
pub type Traces = BTreeMap<String, Vec<String>>;

/// What is there now.
///
/// # Errors
/// A node can't be looked at.
pub fn traces(cluster: &Cluster) -> Result<Traces> {
    let show = |node: &str| {
        let output = cluster.exec(node, ["bash", "-c", SHOW])?;
        let mut lines: Vec<String> = output.stdout.lines().map(str::to_owned).collect();
        lines.sort();
        if !lines.iter().any(|line| line.contains("slurmd")) {
            bail!("{node} shows no slurmd, so nothing that it shows counts: {output:?}");
        }
        Ok((node.to_owned(), lines))
    };
    cluster.nodes().into_iter().map(show).collect()
}

/// Lines of `after` that `before` lacks.
#[must_use]
pub fn added(before: &Traces, after: &Traces) -> Vec<String> {
    let mut added = Vec::new();
    for (node, lines) in after {
        let mut known = before.get(node).cloned().unwrap_or_default();
        for line in lines {
            match known.iter().position(|one| one == line) {
                Some(at) => _ = known.swap_remove(at),
                None => added.push(format!("{node}: {line}")),
            }
        }
    }
    added
}

/// What a process holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// Its own memory, not that of files it maps.
    pub memory_kib: u64,
    /// Its open descriptors.
    pub descriptors: usize,
}

/// What the oldest process of this name holds.
///
/// # Errors
/// There is none, or it can't be looked at.
pub fn held(cluster: &Cluster, node: &str, comm: &str) -> Result<Held> {
    let process: Process = cluster
        .processes(node)?
        .into_iter()
        .find(|process| process.comm == comm)
        .with_context(|| format!("no {comm} on {node}"))?;
    let folder = Path::new("/proc").join(process.host_pid.to_string());
    let status = std::fs::read_to_string(folder.join("status")).with_context(|| format!("{comm}: status"))?;
    let memory = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let memory = memory.and_then(|text| text.split_whitespace().next()?.parse().ok());
    let descriptors = std::fs::read_dir(folder.join("fd")).with_context(|| format!("{comm}: fd"))?.count();
    Ok(Held { memory_kib: memory.with_context(|| format!("{comm}: RssAnon"))?, descriptors })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_once_more_is_added() {
        let of = |lines: &[&str]| {
            Traces::from([("n1".to_owned(), lines.iter().map(|l| (*l).to_owned()).collect())])
        };
        let before = of(&["file /a", "process x"]);
        assert_eq!(added(&before, &of(&["process x"])), Vec::<String>::new());
        let after = of(&["file /a", "file /a", "file /b", "process x"]);
        assert_eq!(added(&before, &after), ["n1: file /a", "n1: file /b"]);
    }
}
