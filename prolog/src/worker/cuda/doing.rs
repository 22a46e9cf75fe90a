//! What a thread that calls the driver is at, for whoever waits for it: the driver may not come back, and then its step
//! is all that is known. Nothing here waits for the driver.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::Instant;

use kernels::cuda::CudaError;

use super::super::timed::Until;
use super::gpu::words;
use crate::protocol::{Trouble, TroubleKind};
use crate::thread_state;

/// Why there is no result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Flaw {
    pub kind: TroubleKind,
    pub message: String,
}

impl Flaw {
    pub(super) fn failed(message: impl Into<String>) -> Self {
        Self { kind: TroubleKind::Failed, message: message.into() }
    }

    /// The trouble of the rank that has it.
    pub(super) fn of(self, rank: usize) -> Trouble {
        Trouble { rank: u32::try_from(rank).unwrap_or(u32::MAX), kind: self.kind, message: self.message }
    }
}

impl From<CudaError> for Flaw {
    fn from(error: CudaError) -> Self {
        let kind = match &error {
            CudaError::Hung { .. } => TroubleKind::Silent,
            error if error.says_broken() => TroubleKind::Broken,
            _ => TroubleKind::Failed,
        };
        Self { kind, message: words(error) }
    }
}

/// What a thread is at.
#[derive(Debug)]
pub(super) struct Doing {
    /// Tasks that it has ended.
    ended: AtomicU64,
    step: Mutex<Step>,
}

#[derive(Debug)]
struct Step {
    what: &'static str,
    since: Instant,
    /// Where the kernel says what the thread waits for, once the thread runs.
    stat: Option<PathBuf>,
}

impl Doing {
    /// Of a thread that is to begin with this step.
    pub(super) fn new(what: &'static str) -> Arc<Self> {
        let step = Mutex::new(Step { what, since: Instant::now(), stat: None });
        Arc::new(Self { ended: AtomicU64::new(0), step })
    }

    /// The thread that calls this is the one that is told of.
    pub(super) fn here(&self) {
        let thread = rustix::thread::gettid().as_raw_nonzero();
        self.step().stat = Some(format!("/proc/self/task/{thread}/stat").into());
    }

    /// The thread begins this.
    pub(super) fn at(&self, what: &'static str) {
        let mut step = self.step();
        (step.what, step.since) = (what, Instant::now());
    }

    /// A task is over.
    pub(super) fn end(&self) {
        self.ended.fetch_add(1, Ordering::Release);
    }

    /// How many are.
    pub(super) fn ended(&self) -> u64 {
        self.ended.load(Ordering::Acquire)
    }

    /// The flaw of one that does not come back.
    pub(super) fn silent(&self) -> Flaw {
        let step = self.step();
        let inside = step.stat.as_ref().is_some_and(|stat| thread_state::inside_kernel(stat));
        let inside = if inside { ", its thread is in state D, inside the kernel" } else { "" };
        let seconds = step.since.elapsed().as_secs_f64();
        let message = format!("no answer in {} after {seconds:.1} s{inside}", step.what);
        Flaw { kind: TroubleKind::Silent, message }
    }

    fn step(&self) -> MutexGuard<'_, Step> {
        self.step.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Work on a thread of its own that may not come back.
pub(super) struct Alone<T> {
    doing: Arc<Doing>,
    result: mpsc::Receiver<T>,
}

impl<T: Send + 'static> Alone<T> {
    /// Begins `work`, whose first step is `what`.
    pub(super) fn start(
        name: &str,
        what: &'static str,
        work: impl FnOnce(&Doing) -> T + Send + 'static,
    ) -> Result<Self, Flaw> {
        let doing = Doing::new(what);
        let (sender, result) = mpsc::sync_channel(1);
        let own = Arc::clone(&doing);
        let run = move || {
            own.here();
            // Nobody listens any more once the limit has passed.
            _ = sender.send(work(&own));
            own.end();
        };
        let started = thread::Builder::new().name(name.to_owned()).spawn(run);
        started.map_err(|error| Flaw::failed(format!("no thread for {what}: {error}")))?;
        Ok(Self { doing, result })
    }

    /// Its result, waited for until the limit.
    pub(super) fn wait(self, until: &Until) -> Result<T, Flaw> {
        loop {
            // What is there by then counts, also where the limit has passed.
            let slice = until.slice();
            match self.result.recv_timeout(slice.unwrap_or_default()) {
                Ok(result) => return Ok(result),
                Err(mpsc::RecvTimeoutError::Timeout) if slice.is_some() => {}
                Err(mpsc::RecvTimeoutError::Timeout) => return Err(self.doing.silent()),
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    return Err(Flaw::failed("it hit a bug (panic)"));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::super::timed::Cancel;
    use super::*;

    fn until(ms: u64) -> Until {
        Until::after(Duration::from_millis(ms), &Cancel::default())
    }

    #[test]
    fn who_does_not_come_back_is_told_of_by_the_step() {
        let hangs = |doing: &Doing| {
            doing.at("making a context");
            thread::sleep(Duration::from_secs(30));
        };
        let flaw = Alone::start("hangs", "loading", hangs).unwrap().wait(&until(100)).unwrap_err();
        assert_eq!(flaw.kind, TroubleKind::Silent);
        assert!(flaw.message.starts_with("no answer in making a context after 0."), "{}", flaw.message);
        let never = |_: &Doing| thread::sleep(Duration::from_secs(30));
        let flaw = Alone::start("hangs", "loading", never).unwrap().wait(&until(50)).unwrap_err();
        assert!(flaw.message.starts_with("no answer in loading after"), "{}", flaw.message);
        assert_eq!(Alone::start("works", "loading", |_| 7).unwrap().wait(&until(20_000)), Ok(7));
        let done = Alone::start("works", "loading", |_| 7).unwrap();
        while done.doing.ended() == 0 {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(done.wait(&until(0)), Ok(7), "it was there before anybody waited");
        let panics = |_: &Doing| assert!(std::hint::black_box(false), "on purpose");
        let flaw = Alone::start("panics", "loading", panics).unwrap().wait(&until(20_000)).unwrap_err();
        assert!(flaw.message.contains("bug"), "{}", flaw.message);
    }
}
