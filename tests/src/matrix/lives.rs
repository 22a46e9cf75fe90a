//! How long the product's processes live, seen from outside: a thread that lists them all on this machine several times a
//! second, for all clusters at once. It judges nothing.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How often it looks. What is shorter may be missed, and a life is measured so much too short at most.
pub const LOOK: Duration = Duration::from_millis(60);

/// Names of the product's processes begin so.
const OURS: &str = "aimaster-";

/// A process of the product.
#[derive(Clone, Debug)]
pub struct Life {
    /// The PID namespace: which node it is on.
    pub namespace: String,
    /// Its short name.
    pub comm: String,
    /// Its id on this machine.
    pub pid: u32,
    /// When it started, by the kernel's word.
    pub first: Instant,
    /// When it was seen last.
    pub last: Instant,
}

#[derive(Default)]
struct Seen {
    lives: BTreeMap<u32, Life>,
    over: Vec<Life>,
}

/// The thread.
pub struct Lives {
    seen: Arc<Mutex<Seen>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Lives {
    /// Starts to look.
    #[must_use]
    pub fn watch() -> Self {
        let (seen, stop) = (Arc::<Mutex<Seen>>::default(), Arc::<AtomicBool>::default());
        let (into, until) = (Arc::clone(&seen), Arc::clone(&stop));
        let thread = thread::spawn(move || {
            while !until.load(Ordering::Relaxed) {
                look(&into);
                thread::sleep(LOOK);
            }
        });
        Self { seen, stop, thread: Some(thread) }
    }

    /// The processes in these namespaces that were seen since then.
    #[must_use]
    pub fn since(&self, namespaces: &[String], since: Instant) -> Vec<Life> {
        let seen = lock(&self.seen);
        let all = seen.over.iter().chain(seen.lives.values());
        all.filter(|life| life.last >= since && namespaces.contains(&life.namespace)).cloned().collect()
    }

    /// Those that were there at the last look. (A look costs as much as the machine has processes, so that not everybody
    /// who asks takes one.)
    #[must_use]
    pub fn now(&self, namespaces: &[String]) -> Vec<Life> {
        let seen = lock(&self.seen);
        seen.lives.values().filter(|life| namespaces.contains(&life.namespace)).cloned().collect()
    }

    /// Forgets those that were over before then.
    pub fn forget(&self, namespaces: &[String]) {
        lock(&self.seen).over.retain(|life| !namespaces.contains(&life.namespace));
    }
}

impl Drop for Lives {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It ends within a look.
            let _ = thread.join();
        }
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Looks once. What has ended and was not waited for yet is no process any more.
fn look(seen: &Mutex<Seen>) {
    let mut here = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let Ok(comm) = fs::read_to_string(entry.path().join("comm")) else { continue };
        if comm.starts_with(OURS) && !is_zombie(pid) {
            here.insert(pid, comm.trim_end().to_owned());
        }
    }
    let mut seen = lock(seen);
    let now = Instant::now();
    let gone: Vec<u32> = seen.lives.keys().filter(|pid| !here.contains_key(*pid)).copied().collect();
    for pid in gone {
        let life = seen.lives.remove(&pid);
        seen.over.extend(life);
    }
    for (pid, comm) in here {
        if let Some(life) = seen.lives.get_mut(&pid) {
            (life.last, life.comm) = (now, comm);
        } else if let Some(namespace) = namespace(pid) {
            let first = now.checked_sub(age(pid)).unwrap_or(now);
            seen.lives.insert(pid, Life { namespace, comm, pid, first, last: now });
        }
    }
}

fn is_zombie(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with(['Z', 'X']))
}

/// How long a process has lived; zero where that is not known.
fn age(pid: u32) -> Duration {
    let read = |path: String| fs::read_to_string(path).unwrap_or_default();
    let stat = read(format!("/proc/{pid}/stat"));
    let uptime = read("/proc/uptime".to_owned());
    // Field 22, in hundredths of a second since boot, is the 20th after the name in parentheses.
    let started =
        stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(19)?.parse::<f64>().ok());
    let now = uptime.split_whitespace().next().and_then(|seconds| seconds.parse::<f64>().ok());
    let age = started.zip(now).map_or(0.0, |(started, now)| now - started / 100.0);
    Duration::try_from_secs_f64(age).unwrap_or_default()
}

/// The PID namespace of a process, as a name.
#[must_use]
pub fn namespace(pid: u32) -> Option<String> {
    Some(fs::read_link(format!("/proc/{pid}/ns/pid")).ok()?.display().to_string())
}
