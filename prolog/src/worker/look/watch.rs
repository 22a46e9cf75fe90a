//! GPUs at work: each is asked again and again by a thread of its own, until whoever measures has enough. What is seen is
//! there at any moment, so that nobody waits for a driver that hangs.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use diag::gpu_facts::reading::{GpuSample, Load, PciePath};
use kernels::sysfs;

use super::{Eyes, Watched, strangers};

/// Samples in one window: a reason that holds for a quarter of the time is seen in several of them.
const IN_A_WINDOW: u32 = 8;

/// Bounds of the rest between two samples: each costs some thirty calls into the driver.
const LEAST_REST: Duration = Duration::from_millis(20);
const MOST_REST: Duration = Duration::from_secs(1);

/// Most samples that are kept. Past them every other is dropped and the rest doubled, so that they stay spread over the
/// whole time.
const MOST_SAMPLES: usize = 16;

/// Most processes that are kept.
const MOST_PROCESSES: usize = 8;

/// What is seen of one GPU.
#[derive(Debug, Default)]
struct Seen {
    load: Load,
    /// Since when the driver owes an answer.
    asked: Option<Instant>,
}

/// A watch over the GPUs of this node, rank by rank.
#[derive(Debug)]
pub(in super::super) struct Watch {
    stop: Arc<AtomicBool>,
    seen: Vec<Arc<Mutex<Seen>>>,
}

impl Watch {
    pub(super) fn start(eyes: &Eyes, gpus: &[Watched], window: Duration) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let rest = (window / IN_A_WINDOW).clamp(LEAST_REST, MOST_REST);
        let each = |gpu: &Watched| {
            let seen = Arc::new(Mutex::new(Seen::default()));
            let (stop, into) = (Arc::clone(&stop), Arc::clone(&seen));
            let (eyes, gpu) = (eyes.clone(), gpu.clone());
            let look = move || watch(&eyes, &gpu, rest, &stop, &into);
            // A GPU without a thread shows nothing.
            _ = super::named("watch", look);
            seen
        };
        let seen = gpus.iter().map(each).collect();
        Self { stop, seen }
    }

    /// What was seen; a driver that still owes an answer is not waited for, and how long it does counts.
    pub(in super::super) fn finish(self) -> Vec<Load> {
        self.stop.store(true, Ordering::Relaxed);
        let each = |seen: &Arc<Mutex<Seen>>| {
            let seen = open(seen);
            let mut load = seen.load.clone();
            if let Some(asked) = seen.asked {
                let took_ms = u64::try_from(asked.elapsed().as_millis()).unwrap_or(u64::MAX);
                load.samples.push(GpuSample { took_ms, ..GpuSample::default() });
            }
            load
        };
        self.seen.iter().map(each).collect()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn open(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

fn watch(eyes: &Eyes, gpu: &Watched, mut rest: Duration, stop: &AtomicBool, seen: &Mutex<Seen>) {
    let begun = Instant::now();
    let mut known = BTreeSet::from([std::process::id()]);
    while !stop.load(Ordering::Relaxed) {
        open(seen).asked = Some(Instant::now());
        let sample = eyes.nvml.sample(&gpu.uuid);
        let own: Vec<u32> = known.iter().copied().collect();
        let others = eyes.nvml.processes(&gpu.uuid, &own).unwrap_or_default();
        let path = sysfs::pcie_path(&eyes.root, &gpu.pci);
        known.extend(others.iter().map(|one| one.pid));
        let others = strangers(&eyes.root, others);
        let mut now = open(seen);
        now.asked = None;
        let load = &mut now.load;
        load.seconds = begun.elapsed().as_secs_f64();
        load.processes.extend(others);
        load.processes.truncate(MOST_PROCESSES);
        load.samples.extend(sample.ok());
        let speed = |path: &PciePath| path.nodes.first().and_then(|own| own.speed_gt_s);
        let path = (!path.is_empty()).then(|| PciePath { address: gpu.pci.clone(), nodes: path });
        if path.as_ref().and_then(speed) >= load.path.as_ref().and_then(speed) {
            load.path = path;
        }
        if load.samples.len() >= MOST_SAMPLES {
            let mut at = 0;
            load.samples.retain(|_| {
                at += 1;
                at % 2 == 1
            });
            rest = (rest * 2).min(MOST_REST);
        }
        drop(now);
        thread::sleep(rest);
    }
}
