//! Reads the ports of network devices again and again on a thread of its own: a file of a driver that hangs keeps that
//! thread, and nobody else.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use diag::gpu_facts::reading::Device;
use diag::health::reading::NicReading;
use kernels::sysfs::{self, Root};

/// How often. Counters of what happened between two looks miss nothing.
const EVERY: Duration = Duration::from_secs(2);

/// What was read last.
#[derive(Debug, Default)]
struct Seen {
    at: Option<Instant>,
    ports: Option<Vec<NicReading>>,
    gpus: Option<Vec<Device>>,
}

/// The ports of this node. Dropping it ends the thread, unless a driver holds it.
#[derive(Debug)]
pub(super) struct Nics {
    seen: Arc<Mutex<Seen>>,
    started: Instant,
}

impl Nics {
    pub(super) fn start(root: Root) -> io::Result<Self> {
        let seen = Arc::default();
        let shared = Arc::downgrade(&seen);
        thread::Builder::new().name("nics".to_owned()).spawn(move || look(&root, &shared))?;
        Ok(Self { seen, started: Instant::now() })
    }

    /// The GPUs that the driver lists, once they are read.
    pub(super) fn gpus(&self) -> Option<Vec<Device>> {
        self.seen().gpus.take()
    }

    /// What was read since the last time.
    pub(super) fn take(&self) -> Option<Vec<NicReading>> {
        self.seen().ports.take()
    }

    /// How old the last reading is.
    pub(super) fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.seen().at.unwrap_or(self.started))
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn look(root: &Root, shared: &Weak<Mutex<Seen>>) {
    let gpus = sysfs::gpus(root);
    if let Some(seen) = shared.upgrade() {
        seen.lock().unwrap_or_else(PoisonError::into_inner).gpus = Some(gpus);
    }
    loop {
        let ports = sysfs::nics(root);
        // Who wanted to know is gone.
        let Some(seen) = shared.upgrade() else { return };
        let mut now = seen.lock().unwrap_or_else(PoisonError::into_inner);
        (now.at, now.ports) = (Some(Instant::now()), Some(ports));
        drop(now);
        drop(seen);
        thread::sleep(EVERY);
    }
}
