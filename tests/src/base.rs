//! The folder of one cluster: its unique name, which says who owns it, and the sweep of folders
//! whose owner died. Nothing here starts or enters a namespace.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, anyhow};
use rustix::process::{Signal, kill_process};

use crate::cpu::Cgroups;
use crate::process::pid_of;

/// Start of every cluster's name. The full name is `aimaster-cluster-<pid>-<start time>-<count>`:
/// the owner is in the name itself, so no moment exists in which a folder has no owner.
const PREFIX: &str = "aimaster-cluster-";

static COUNT: AtomicU32 = AtomicU32::new(0);

/// The base folder of a cluster.
#[derive(Debug)]
pub(crate) struct Base {
    pub(crate) id: String,
    pub(crate) path: PathBuf,
}

impl Base {
    /// Makes the folder below `parent`, after sweeping what dead owners left there.
    pub(crate) fn create(parent: &Path) -> Result<Self> {
        fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
        sweep(parent)?;
        let pid = std::process::id();
        let start = start_time(pid).ok_or_else(|| anyhow!("cannot read /proc/{pid}/stat"))?;
        let id = format!("{PREFIX}{pid}-{start}-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let path = parent.join(&id);
        fs::create_dir(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self { id, path })
    }
}

impl Drop for Base {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!("cannot remove {}: {error}", self.path.display());
        }
    }
}

/// Removes folders, control groups and processes of clusters whose owner is gone. (Their processes
/// normally ended with the owner: each node's first process reads a pipe of it until its end.)
pub(crate) fn sweep(parent: &Path) -> Result<()> {
    let dead = |name: &String| owner(name).is_some_and(|(pid, start)| start_time(pid) != Some(start));
    let entries = fs::read_dir(parent).with_context(|| format!("cannot list {}", parent.display()))?;
    let folders = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    for name in folders.filter(dead) {
        // Two sweeps at a time are fine: each file needs to be removed by one of them only.
        let _ = fs::remove_dir_all(parent.join(name));
    }
    // Groups on their own: one that still held a dying process stayed behind when its folder went.
    let Ok(cgroups) = Cgroups::find() else { return Ok(()) };
    for name in cgroups.names().iter().filter(|name| dead(name)) {
        for process in cgroups.processes(name) {
            if let Ok(pid) = pid_of(process) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        cgroups.remove(name);
    }
    Ok(())
}

fn owner(name: &str) -> Option<(u32, u64)> {
    let mut parts = name.strip_prefix(PREFIX)?.split('-');
    let owner = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let _count: u32 = parts.next()?.parse().ok()?;
    parts.next().is_none().then_some(owner)
}

/// When a process started, in clock ticks since boot; with the id it names a process for good.
fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything; field 22 is the 20th after it.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweeps_dead_owners_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let me = std::process::id();
        let dead = format!("{PREFIX}{me}-1-0");
        let alive = format!("{PREFIX}{me}-{}-0", start_time(me).unwrap());
        for name in [&dead, &alive, &format!("{PREFIX}x"), &"else".to_owned()] {
            fs::create_dir_all(dir.path().join(name).join("log")).unwrap();
        }
        sweep(dir.path()).unwrap();
        let mut left: Vec<_> = fs::read_dir(dir.path())
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        let mut want = vec![format!("{PREFIX}x"), "else".to_owned(), alive];
        want.sort();
        assert_eq!(left, want);
    }
}
