//! Which jobs are on this node: those with a step, by the sockets that their slurmstepds hold, and those of which a process of
//! Slurm's or of ours tells, such as a prolog that runs. Only what can't wait is read: no memory of a process that hangs.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::c4d::steps::{BOUND, MOST_BOUND_BYTES, is_step};

/// Most processes that are looked at: more than any node has (Linux numbers them up to 4 million, nodes have thousands).
const MOST_PROCESSES: usize = 100_000;

/// Most threads of one of them.
const MOST_THREADS: usize = 10_000;

/// Most bytes of a process's environment: Linux takes some 2 MiB from one that starts.
const MOST_ENVIRONMENT_BYTES: u64 = 4 << 20;

/// So long in the kernel, and a process hangs: a disk answers sooner, also a busy one.
const HANGS: Duration = Duration::from_millis(200);

/// How often that is looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// How slurmd tells prologs and epilogs their job, and the plugin its helpers.
const VARIABLE: &[u8] = b"SLURM_JOB_ID=";

/// The parent of all threads of the kernel.
const KERNEL: u32 = 2;

/// Of these jobs, those with a step on this node: whoever holds a socket of such a name, in whatever folder. More are taken
/// for alive than are, since anybody may bind a name.
///
/// # Errors
/// The list of sockets can't be read, or is longer than is looked at.
pub fn with_steps(proc: &Path, node: &str, wanted: &BTreeSet<u32>) -> io::Result<BTreeSet<u32>> {
    let list = File::open(proc.join(BOUND.trim_start_matches("/proc/")))?;
    let mut left = MOST_BOUND_BYTES;
    let mut found = BTreeSet::new();
    for line in BufReader::new(list.take(MOST_BOUND_BYTES + 1)).split(b'\n') {
        let line = line?;
        left = left.checked_sub(line.len() as u64 + 1).ok_or_else(|| too_many("sockets"))?;
        let line = String::from_utf8_lossy(&line);
        found.extend(job_of(&line, node).filter(|job| wanted.contains(job)));
    }
    Ok(found)
}

/// The job whose step's socket this line of the list names.
fn job_of(line: &str, node: &str) -> Option<u32> {
    let name = line.rsplit('/').next()?;
    let rest = name.strip_prefix(node)?.strip_prefix('_')?;
    let (job, _) = rest.split_once('.')?;
    is_step(rest, &format!("{job}.")).then(|| job.parse().ok())?
}

/// Of these jobs, those that a process of this user's (root's) has in its environment: what slurmd starts for a job beside its
/// steps.
///
/// # Errors
/// Not all of them can be looked at before `until`: one hangs in the kernel, or there are too many.
pub fn with_processes(proc: &Path, wanted: &BTreeSet<u32>, until: Instant) -> io::Result<BTreeSet<u32>> {
    let me = rustix::process::geteuid().as_raw();
    let mut found = BTreeSet::new();
    for (count, entry) in std::fs::read_dir(proc)?.enumerate() {
        if count >= MOST_PROCESSES {
            return Err(too_many("processes"));
        }
        let entry = entry?;
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        if Instant::now() >= until {
            return Err(io::Error::other("no time was left to look at all processes"));
        }
        let folder = entry.path();
        let Some(owner) = unless_gone(std::fs::metadata(&folder))? else { continue };
        if owner.uid() != me {
            continue;
        }
        let Some(stat) = unless_gone(text(&folder.join("stat")))? else { continue };
        if pid == KERNEL || parent(&stat) == Some(KERNEL) {
            continue;
        }
        // The memory of a process of which a thread is in the kernel may be locked for as long as that hangs.
        if hangs(&folder, until)? {
            return Err(io::Error::other(format!(
                "process {pid} waits inside the kernel, so its job is not known"
            )));
        }
        let Some(environment) = unless_gone(environment(&folder))? else { continue };
        let jobs = environment.split(|byte| *byte == 0).filter_map(|one| one.strip_prefix(VARIABLE));
        let jobs = jobs.filter_map(|value| std::str::from_utf8(value).ok()?.parse().ok());
        found.extend(jobs.filter(|job| wanted.contains(job)));
    }
    Ok(found)
}

fn environment(folder: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(folder.join("environ"))?.take(MOST_ENVIRONMENT_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Whether a thread of the process waits inside the kernel, for longer than a disk takes.
fn hangs(folder: &Path, until: Instant) -> io::Result<bool> {
    let until = until.min(Instant::now() + HANGS);
    loop {
        if !waits(folder)? {
            return Ok(false);
        }
        if Instant::now() >= until {
            return Ok(true);
        }
        sleep(LOOK_AGAIN);
    }
}

fn waits(folder: &Path) -> io::Result<bool> {
    let Some(threads) = unless_gone(std::fs::read_dir(folder.join("task")))? else { return Ok(false) };
    for (count, thread) in threads.enumerate() {
        let Some(thread) = unless_gone(thread)? else { break };
        if count >= MOST_THREADS {
            return Err(too_many("threads"));
        }
        let stat = unless_gone(text(&thread.path().join("stat")))?;
        if stat.is_some_and(|stat| after_name(&stat).next() == Some("D")) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn parent(stat: &str) -> Option<u32> {
    after_name(stat).nth(1)?.parse().ok()
}

/// State, parent, ...: what stands behind the name, which is in parentheses and may hold anything.
fn after_name(stat: &str) -> impl Iterator<Item = &str> {
    stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace()
}

fn text(path: &Path) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&std::fs::read(path)?).into_owned())
}

/// What was read; `None` of a process that has ended meanwhile.
fn unless_gone<T>(read: io::Result<T>) -> io::Result<Option<T>> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => Ok(None),
        Err(error) => Err(error),
    }
}

fn too_many(what: &str) -> io::Error {
    io::Error::other(format!("there are more {what} than are looked at"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn a_socket_of_a_step_of_any_folder_is_a_job() {
        let line = |path: &str| format!("0000: 00000002 00000000 00010000 0001 01 1 {path}");
        for path in ["/s/n1_7.0", "/var/spool/slurmd/n1_7.4294967292", "/x y/n1_7.0.1"] {
            assert_eq!(job_of(&line(path), "n1"), Some(7), "{path}");
        }
        for path in ["/s/n11_7.0", "/s/n1_7", "/s/n1_7.x", "/s/n1_7x.0", "/s/n1_.0", "@n1_7.0/x", ""] {
            assert_eq!(job_of(&line(path), "n1"), None, "{path}");
        }
        let proc = tempfile::tempdir().unwrap();
        let wanted = BTreeSet::from([7, 8]);
        assert!(with_steps(proc.path(), "n1", &wanted).is_err());
        fs::create_dir(proc.path().join("net")).unwrap();
        let list = ["/s/n1_7.0", "/s/n1_9.0"].map(line).join("\n");
        fs::write(proc.path().join("net/unix"), list).unwrap();
        assert_eq!(with_steps(proc.path(), "n1", &wanted).unwrap(), BTreeSet::from([7]));
    }

    fn process(proc: &Path, pid: u32, (state, parent): (&str, u32), environment: &[u8]) {
        let folder = proc.join(pid.to_string());
        fs::create_dir_all(folder.join("task").join(pid.to_string())).unwrap();
        let stat = format!("{pid} (a) S 1 (b) {state} {parent} 0");
        fs::write(folder.join("stat"), &stat).unwrap();
        fs::write(folder.join("task").join(pid.to_string()).join("stat"), &stat).unwrap();
        fs::write(folder.join("environ"), environment).unwrap();
    }

    #[test]
    fn a_prolog_that_runs_is_a_job_and_one_that_hangs_leaves_it_open() {
        let proc = tempfile::tempdir().unwrap();
        let wanted = BTreeSet::from([7, 8, 10]);
        process(proc.path(), 100, ("S", 1), b"A=SLURM_JOB_ID=8\0SLURM_JOB_ID=7\0");
        process(proc.path(), 101, ("R", 1), b"SLURM_JOB_ID=9");
        // A thread of the kernel that waits is none that hangs.
        process(proc.path(), 102, ("D", 2), b"");
        fs::create_dir(proc.path().join("self")).unwrap();
        fs::create_dir(proc.path().join("103")).unwrap();
        assert_eq!(with_processes(proc.path(), &wanted, soon()).unwrap(), BTreeSet::from([7]));
        assert!(with_processes(proc.path(), &wanted, Instant::now()).is_err(), "no time is no answer");
        process(proc.path(), 104, ("D", 1), b"");
        let error = with_processes(proc.path(), &wanted, soon()).unwrap_err();
        assert!(error.to_string().contains("process 104"), "{error}");
    }

    #[test]
    fn the_real_list_can_be_looked_at() {
        assert_eq!(
            with_steps(Path::new("/proc"), "no-such-node", &BTreeSet::from([7])).unwrap(),
            BTreeSet::new()
        );
    }
}
