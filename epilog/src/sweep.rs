//! The run folders of other jobs that are surely over: what stays where Slurm never ran a job's epilog on this node, or that
//! could not do its work. A later job's epilog removes them.
//!
//! A folder goes only if its run began long ago, by a clock that nobody sets, or on an earlier start of the machine; no agent
//! holds its lock; and its job, whatever its restart count, has no step and no process of Slurm's here. What can't be told
//! stays, and is looked at again when the next job ends.

mod alive;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use diag::run_stamp::{FILE_NAME, MAX_BYTES, RunStamp};
use kernels::sysfs::{self, Root};
use rustix::fs::{Mode, OFlags, fstat, openat};

use crate::c4d::lock;
use crate::job::EndedJob;
use crate::keep::{self, Kept};
use crate::run_folder::{FOLDER, MAX_ENTRIES, RemoveError, entries, node_folder, remove_entry, run_of};

/// So long after its prolog a job has had a step, if it is still there: slurmd starts the lasting step right after the prolog,
/// and a site's own prolog that runs longer than this is a process that is found.
pub const OVER: Duration = Duration::from_secs(3600);

/// Most folders that are removed at once; the next epilog goes on.
pub const MOST_FOLDERS: usize = 64;

/// How long it may take: the end of another job waits for it.
pub const MOST_TIME: Duration = Duration::from_secs(1);

/// What was done.
#[derive(Debug, Default)]
pub struct Swept {
    /// Folders that are gone, by name.
    pub removed: Vec<String>,
    /// What their agents said and is to be kept.
    pub reports: Vec<Kept>,
    /// Why something that is over is still there: the first cause.
    pub trouble: Option<String>,
}

impl Swept {
    /// What is to be known of it, in a line; `None`: there was nothing to do.
    #[must_use]
    pub fn line(&self) -> Option<String> {
        let mut parts = Vec::new();
        if let Some((first, rest)) = self.removed.split_first() {
            let more = if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
            parts.push(format!(
                "removed run folder {first}{more} of jobs that are over and had no epilog here"
            ));
        }
        parts.extend(
            self.trouble.iter().map(|why| format!("run folders of jobs that seem to be over stay: {why}")),
        );
        (!parts.is_empty()).then(|| parts.join("; "))
    }
}

/// A folder that is over unless its job is found.
struct Old {
    name: String,
    job: u32,
    folder: OwnedFd,
}

/// Removes what is over of other jobs than the one whose epilog this is, by `machine`'s word (`/` but in tests). It never fails:
/// what went wrong is in the answer.
#[must_use]
pub fn sweep(root: &Path, job: &EndedJob, machine: &Path) -> Swept {
    let mut swept = Swept::default();
    let until = Instant::now() + MOST_TIME;
    if let Err(error) = try_sweep(root, job, machine, until, &mut swept) {
        swept.trouble.get_or_insert_with(|| cluster::chain(error.as_ref()));
    }
    swept
}

fn try_sweep(
    root: &Path,
    job: &EndedJob,
    machine: &Path,
    until: Instant,
    swept: &mut Swept,
) -> anyhow::Result<()> {
    let Some(node) = node_folder(root, job)? else { return Ok(()) };
    let mut old = old(&node, job, &Root::new(machine))?;
    if old.is_empty() {
        return Ok(());
    }
    let proc = machine.join("proc");
    let mut wanted: BTreeSet<u32> = old.iter().map(|one| one.job).collect();
    let there = alive::with_steps(&proc, &job.node, &wanted)?;
    wanted.retain(|job| !there.contains(job));
    if wanted.is_empty() {
        return Ok(());
    }
    // The last look before the removal: a prolog that runs now is seen.
    let there = alive::with_processes(&proc, &wanted, until)?;
    wanted.retain(|job| !there.contains(job));
    old.retain(|one| wanted.contains(&one.job));
    let mut budget = MAX_ENTRIES;
    for Old { name, folder, .. } in old {
        if Instant::now() >= until {
            anyhow::bail!("no time was left for all of them");
        }
        let report = keep::take(&folder);
        match remove_entry(&node, &name, 0, &mut budget) {
            Ok(()) => swept.removed.push(name),
            Err(error) => {
                swept.trouble.get_or_insert_with(|| cluster::chain(&error));
                continue;
            }
        }
        match report {
            Ok(report) => swept.reports.extend(report),
            Err(error) => {
                swept.trouble.get_or_insert_with(|| format!("none, but a report is lost: {error:#}"));
            }
        }
    }
    Ok(())
}

/// The folders that are old enough, of other jobs, with nobody's lock.
fn old(node: &OwnedFd, job: &EndedJob, machine: &Root) -> Result<Vec<Old>, RemoveError> {
    let mut found = Vec::new();
    let mut budget = MAX_ENTRIES;
    let names = entries(node, "the node's run folder", &mut budget)?;
    // Of this job a later run may be on its way; all others are this epilog's own work.
    let others = names.into_iter().filter_map(|name| run_of(&name).map(|(id, _)| (name, id)));
    let others: Vec<(String, u32)> = others.filter(|(_, id)| *id != job.job).collect();
    if others.is_empty() {
        return Ok(found);
    }
    let uptime = sysfs::uptime_s(machine).and_then(|uptime| i64::try_from(uptime).ok());
    // A machine that does not say when it is says nothing about jobs.
    let Some((boot, uptime_s)) = sysfs::boot_id(machine).zip(uptime) else { return Ok(found) };
    let least_s = i64::try_from(OVER.as_secs()).unwrap_or(i64::MAX);
    for (name, job) in others {
        // What is no folder, or nobody's or somebody else's, is none of ours.
        let Ok(folder) = openat(node, name.as_str(), FOLDER, Mode::empty()) else { continue };
        let own = fstat(&folder).is_ok_and(|stat| stat.st_uid == rustix::process::geteuid().as_raw());
        let is_old = || stamp(&folder).is_ok_and(|stamp| stamp.needs_a_step(&boot, uptime_s, least_s));
        if own && is_old() && lock::is_held(&folder).is_ok_and(|held| !held) {
            found.push(Old { name, job, folder });
            if found.len() >= MOST_FOLDERS {
                break;
            }
        }
    }
    Ok(found)
}

/// When the run of this folder began.
fn stamp(folder: impl AsFd) -> io::Result<RunStamp> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let mut text = Vec::new();
    File::from(openat(folder, FILE_NAME, flags, Mode::empty())?).take(MAX_BYTES).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// A node on which job 7 has ended, with folders and a machine of its own.
    struct Node {
        folder: tempfile::TempDir,
    }

    /// How long the machine is up, and so long an hour ago.
    const UPTIME_S: i64 = 10_000;
    const LONG_AGO_S: i64 = UPTIME_S - 3600;

    impl Node {
        fn new() -> Self {
            let node = Self { folder: tempfile::tempdir().unwrap() };
            fs::create_dir_all(node.at("proc/net")).unwrap();
            fs::create_dir_all(node.at("proc/sys/kernel/random")).unwrap();
            fs::write(node.at("proc/sys/kernel/random/boot_id"), "now\n").unwrap();
            fs::write(node.at("proc/uptime"), format!("{UPTIME_S}.12 1.0\n")).unwrap();
            node.steps(&[]);
            node
        }

        fn at(&self, name: &str) -> std::path::PathBuf {
            self.folder.path().join(name)
        }

        fn steps(&self, names: &[&str]) {
            let lines: Vec<String> =
                names.iter().map(|name| format!("0: 2 0 10000 1 01 1 /spool/{name}")).collect();
            fs::write(self.at("proc/net/unix"), lines.join("\n")).unwrap();
        }

        fn run(&self, name: &str, stamp: &RunStamp) -> std::path::PathBuf {
            let folder = self.at("run/c/n1").join(name);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(FILE_NAME), serde_json::to_vec(stamp).unwrap()).unwrap();
            fs::write(folder.join("gate.json"), "{}").unwrap();
            folder
        }

        fn sweep(&self) -> Swept {
            let job = EndedJob { cluster: "c".into(), node: "n1".into(), job: 7, restart: Some(1) };
            sweep(&self.at("run"), &job, self.folder.path())
        }
    }

    fn stamp(uptime_s: i64) -> RunStamp {
        RunStamp::new("now".into(), uptime_s, true)
    }

    fn names(swept: &Swept) -> Vec<&str> {
        let mut names: Vec<&str> = swept.removed.iter().map(String::as_str).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn only_runs_that_are_surely_over_go() {
        let node = Node::new();
        assert_eq!(node.sweep().line(), None, "nothing is there");
        node.run("8.0", &stamp(LONG_AGO_S));
        node.run("9.1", &RunStamp { boot: "before".into(), lasting: false, ..stamp(UPTIME_S) });
        // Young; without a lasting step; of this job, whose next run may be here; with a lock that can't be looked at; without
        // its word, or with another; in another spelling; not this node's, not this cluster's.
        let young = node.run("10.0", &stamp(LONG_AGO_S + 1));
        let between = node.run("11.0", &RunStamp { lasting: false, ..stamp(0) });
        let (earlier, later) = (node.run("7.0", &stamp(0)), node.run("7.2", &stamp(0)));
        let locked = node.run("12.0", &stamp(0));
        symlink("/dev/null", locked.join("c4d.lock")).unwrap();
        let silent = node.run("13.0", &stamp(0));
        fs::remove_file(silent.join(FILE_NAME)).unwrap();
        let odd = node.run("14.0", &stamp(0));
        fs::write(odd.join(FILE_NAME), "{").unwrap();
        let others = ["15.00", "x.0", "../n2/16.0", "../../d/n1/17.0"].map(|name| node.run(name, &stamp(0)));
        let swept = node.sweep();
        assert_eq!(names(&swept), ["8.0", "9.1"]);
        let line = swept.line().unwrap();
        assert!(line.contains("and 1 more of jobs that are over") && !line.contains("stay"), "{line}");
        for kept in [young, between, earlier, later, locked, silent, odd].iter().chain(&others) {
            assert!(kept.join("gate.json").exists(), "{}", kept.display());
        }
    }

    #[test]
    fn a_job_that_is_here_keeps_the_folders_of_all_its_runs() {
        let node = Node::new();
        for name in ["8.0", "8.1", "9.0", "10.0"] {
            node.run(name, &stamp(0));
        }
        node.steps(&["n1_8.4294967292", "n2_10.0"]);
        let process = node.at("proc/50");
        fs::create_dir_all(process.join("task/50")).unwrap();
        for name in ["stat", "task/50/stat"] {
            fs::write(process.join(name), "50 (sh) S 1 1").unwrap();
        }
        fs::write(process.join("environ"), "SLURM_JOB_ID=9\0").unwrap();
        assert_eq!(names(&node.sweep()), ["10.0"]);
        node.steps(&[]);
        fs::remove_dir_all(process).unwrap();
        assert_eq!(names(&node.sweep()), ["8.0", "8.1", "9.0"]);
    }

    #[test]
    fn a_node_that_cannot_be_looked_at_keeps_all() {
        let node = Node::new();
        let folder = node.run("8.0", &stamp(0));
        fs::remove_file(node.at("proc/net/unix")).unwrap();
        let swept = node.sweep();
        assert!(swept.removed.is_empty() && folder.exists());
        assert!(swept.line().unwrap().contains("seem to be over stay"), "{swept:?}");
        node.steps(&[]);
        fs::remove_file(node.at("proc/uptime")).unwrap();
        assert_eq!(node.sweep().line(), None);
        assert!(folder.exists());
    }

    #[test]
    fn links_are_never_followed_and_the_number_is_bounded() {
        let node = Node::new();
        let elsewhere = node.run("../../elsewhere/18.0", &stamp(0));
        fs::create_dir_all(node.at("run/c/n1")).unwrap();
        symlink(&elsewhere, node.at("run/c/n1/8.0")).unwrap();
        let folder = node.run("9.0", &stamp(0));
        symlink(&elsewhere, folder.join("link")).unwrap();
        assert_eq!(names(&node.sweep()), ["9.0"]);
        assert!(elsewhere.join("gate.json").exists() && node.at("run/c/n1/8.0").is_symlink());
        for job in 0..=MOST_FOLDERS {
            node.run(&format!("{}.0", 100 + job), &stamp(0));
        }
        assert_eq!(node.sweep().removed.len(), MOST_FOLDERS);
        assert_eq!(node.sweep().removed.len(), 1);
    }
}
