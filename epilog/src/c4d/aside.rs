//! Reads those files of `/proc` that may keep their reader waiting, on a thread beside the agent's loop: what a process moves by
//! system calls, and once its environment. The kernel takes a lock for them that a process which starts another program holds
//! while its files are closed, for as long as their file system likes, and that may be the user's own. A process whose
//! files do not come is asked no more; its thread is left to it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use diag::gpu_facts::ids::GpuId;

use crate::c4d::process;

/// A file of `/proc` takes microseconds; on a machine that swaps, milliseconds.
const MOST_WAIT: Duration = Duration::from_secs(3);

/// Most threads that are left to processes; with more nobody is asked any more.
const MOST_LEFT: usize = 8;

/// What is known of a process from these files.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Told {
    /// Its rank in the whole job, as Slurm told it.
    pub task: Option<u32>,
    /// The GPU that its environment leaves it.
    pub gpu: Option<GpuId>,
    /// Bytes that it read and wrote by system calls.
    pub io_bytes: Option<u64>,
}

/// How a process is read: its number, and what was known of it.
type Read = Arc<dyn Fn(u32, Option<Told>) -> Told + Send + Sync>;

/// The reader of one agent.
pub struct Aside {
    read: Read,
    thread: Option<Thread>,
    /// Processes whose files did not come.
    stuck: BTreeSet<u32>,
    left: usize,
}

struct Thread {
    asks: SyncSender<Vec<u32>>,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// Whom it reads, and since when.
    at: Option<(u32, Instant)>,
    told: BTreeMap<u32, Told>,
}

impl std::fmt::Debug for Aside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Aside").field("stuck", &self.stuck).finish_non_exhaustive()
    }
}

impl Aside {
    /// Of an agent whose job has these GPUs here. Nothing is started.
    #[must_use]
    pub fn new(gpus: &[GpuId]) -> Self {
        let gpus = gpus.to_vec();
        Self::with(Arc::new(move |pid, known| {
            let io_bytes = process::io(pid);
            let known = known.unwrap_or_else(|| {
                let environment = process::Environment::of(pid);
                Told { task: environment.task(), gpu: environment.gpu(&gpus), io_bytes }
            });
            Told { io_bytes, ..known }
        }))
    }

    fn with(read: Read) -> Self {
        Self { read, thread: None, stuck: BTreeSet::new(), left: 0 }
    }

    /// Another process has this number now.
    pub fn forget(&mut self, pid: u32) {
        if let Some(thread) = &self.thread {
            thread.lock().told.remove(&pid);
        }
    }

    /// Asks for these, and gives what has come of what was asked before. It waits for nothing.
    pub fn look(&mut self, pids: impl Iterator<Item = u32>) -> BTreeMap<u32, Told> {
        let wanted: Vec<u32> = pids.filter(|pid| !self.stuck.contains(pid)).collect();
        let at = self.thread.as_ref().and_then(|thread| thread.lock().at);
        let stuck = at.filter(|(_, since)| since.elapsed() >= MOST_WAIT);
        let mut told = BTreeMap::new();
        if let Some(thread) = &self.thread {
            let mut state = thread.lock();
            state.told.retain(|pid, _| wanted.contains(pid));
            told.clone_from(&state.told);
        }
        if let Some((pid, _)) = stuck {
            self.stuck.insert(pid);
            self.left += 1;
            self.thread = None;
        } else if self.left < MOST_LEFT && !wanted.is_empty() {
            let thread = self.thread.take().or_else(|| start(&self.read, &told));
            // One that is still reading is not asked again.
            self.thread = thread.inspect(|thread| drop(thread.asks.try_send(wanted)));
        }
        told
    }
}

impl Thread {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn start(read: &Read, told: &BTreeMap<u32, Told>) -> Option<Thread> {
    let (asks, asked) = sync_channel(1);
    let state = Arc::new(Mutex::new(State { at: None, told: told.clone() }));
    let (theirs, read) = (Arc::clone(&state), Arc::clone(read));
    let work = move || work(&asked, &theirs, &read);
    std::thread::Builder::new().name("aside".to_owned()).spawn(work).ok()?;
    Some(Thread { asks, state })
}

/// Until nobody asks any more.
fn work(asked: &Receiver<Vec<u32>>, state: &Mutex<State>, read: &Read) {
    for pids in asked {
        for pid in pids {
            let known = {
                let mut state = lock(state);
                state.at = Some((pid, Instant::now()));
                state.told.get(&pid).cloned()
            };
            let told = read(pid, known);
            let mut state = lock(state);
            state.at = None;
            state.told.insert(pid, told);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    const SOON: Duration = Duration::from_secs(30);

    #[test]
    fn a_process_whose_files_do_not_come_keeps_one_thread_and_no_other_process() {
        let held = Arc::new(AtomicBool::new(true));
        let hold = Arc::clone(&held);
        let mut aside = Aside::with(Arc::new(move |pid, known| {
            while pid == 7 && hold.load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_millis(1));
            }
            let io_bytes = known.and_then(|told| told.io_bytes).unwrap_or(0) + 1;
            Told { task: Some(pid), gpu: None, io_bytes: Some(io_bytes) }
        }));
        let begun = Instant::now();
        loop {
            assert!(begun.elapsed() < SOON, "{aside:?}");
            let told = aside.look([6, 7, 8].into_iter());
            assert!(!told.contains_key(&7));
            if aside.stuck.contains(&7) && told.get(&8).is_some_and(|one| one.io_bytes > Some(2)) {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!((aside.left, aside.stuck.len()), (1, 1));
        // However many do that.
        aside.left = MOST_LEFT;
        aside.thread = None;
        aside.look([6].into_iter());
        assert!(aside.thread.is_none());
        held.store(false, Ordering::Release);
    }
}
