//! Streams, events, and waiting with a limit. Nothing here waits inside the driver.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cudarc::driver::sys::{CUevent, CUstream};

use super::table::{NOT_READY, SUCCESS};
use super::{Context, CudaError};

/// `CU_STREAM_NON_BLOCKING`: work of others on the default stream does not hold ours up.
const NON_BLOCKING: u32 = 1;

/// `CU_EVENT_DEFAULT`: with times.
const TIMED: u32 = 0;

/// How long a wait asks without a pause, so that microseconds can be measured by the processor's clock; beyond it
/// events tell the time and a sleep leaves the processor to others.
const SPIN: Duration = Duration::from_millis(2);

/// The pause after that.
const PAUSE: Duration = Duration::from_micros(100);

/// How long to wait, and who may end the wait.
#[derive(Debug, Clone, Copy)]
pub struct Limit<'a> {
    /// From then on what is not finished counts as hung.
    pub deadline: Instant,
    /// Set by another thread to end the wait.
    pub cancel: &'a AtomicBool,
}

/// A queue of work of one GPU.
pub struct Stream {
    context: Context,
    raw: CUstream,
}

// SAFETY: the driver's functions may be called with a stream from any thread.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// A new stream.
    ///
    /// # Errors
    /// The driver makes none.
    pub fn new(context: &Context) -> Result<Self, CudaError> {
        context.bind()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the out pointer is valid for the call; the context is current.
        let code = unsafe { (context.functions().stream_create)(&raw mut raw, NON_BLOCKING) };
        context.check("cuStreamCreate", code)?;
        context.register(raw);
        Ok(Self { context: context.clone(), raw })
    }

    /// The context that it was made in.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The driver's handle, for another library's calls. It is good for as long as this value.
    #[must_use]
    pub fn handle(&self) -> *mut c_void {
        self.raw.cast()
    }

    pub(super) fn raw(&self) -> CUstream {
        self.raw
    }

    /// Whether everything queued is done.
    ///
    /// # Errors
    /// What the work led to.
    pub fn is_done(&self) -> Result<bool, CudaError> {
        self.context.bind()?;
        self.poll()
    }

    /// As [`Self::is_done`], where the context is current.
    pub(super) fn poll(&self) -> Result<bool, CudaError> {
        // SAFETY: the stream lives as long as this value; asking does not wait.
        match unsafe { (self.context.functions().stream_query)(self.raw) } {
            SUCCESS => Ok(true),
            NOT_READY => Ok(false),
            code => self.context.check("cuStreamQuery", code).map(|()| false),
        }
    }

    /// Waits until everything queued is done.
    ///
    /// # Errors
    /// [`CudaError::Hung`] at the deadline, [`CudaError::Cancelled`], or what the work led to. In the first two
    /// cases the work goes on.
    pub fn wait(&self, limit: Limit<'_>) -> Result<(), CudaError> {
        self.context.bind()?;
        let started = Instant::now();
        while !self.poll()? {
            let now = Instant::now();
            let gpu = || self.context.gpu().to_owned();
            if limit.cancel.load(Ordering::Relaxed) {
                return Err(CudaError::Cancelled { gpu: gpu() });
            }
            if now >= limit.deadline {
                let waited_ms = now.duration_since(started).as_millis();
                return Err(CudaError::Hung { gpu: gpu(), waited_ms });
            }
            if now.duration_since(started) < SPIN {
                std::hint::spin_loop();
            } else {
                std::thread::sleep(PAUSE);
            }
        }
        Ok(())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.context.retire(self.raw);
    }
}

/// A point in a stream, with its time.
pub struct Event {
    context: Context,
    raw: CUevent,
}

// SAFETY: the driver's functions may be called with an event from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// A new event, at no point yet.
    ///
    /// # Errors
    /// The driver makes none.
    pub fn new(context: &Context) -> Result<Self, CudaError> {
        context.bind()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the out pointer is valid for the call; the context is current.
        let code = unsafe { (context.functions().event_create)(&raw mut raw, TIMED) };
        context.check("cuEventCreate", code)?;
        Ok(Self { context: context.clone(), raw })
    }

    /// Puts it behind everything that is queued in a stream.
    ///
    /// # Errors
    /// The stream is of another GPU, or the driver refuses.
    pub fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        self.context.owns(&stream.context, "the stream")?;
        self.context.bind()?;
        // SAFETY: both live, in this context.
        let code = unsafe { (self.context.functions().event_record)(self.raw, stream.raw) };
        self.context.check("cuEventRecord", code)
    }

    /// Milliseconds from this event to a later one, by the GPU's clock. Both must have happened.
    ///
    /// # Errors
    /// One of them was never recorded or has not happened.
    pub fn ms_until(&self, later: &Self) -> Result<f64, CudaError> {
        self.context.owns(&later.context, "the event")?;
        self.context.bind()?;
        let mut ms = 0.0;
        // SAFETY: the out pointer is valid for the call, both events live; asking does not wait.
        let code = unsafe { (self.context.functions().event_elapsed)(&raw mut ms, self.raw, later.raw) };
        self.context.check("cuEventElapsedTime", code)?;
        Ok(f64::from(ms))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made by cuEventCreate, destroyed once. The driver does not wait: it frees a pending event when it
        // has happened.
        let _ = unsafe { (self.context.functions().event_destroy)(self.raw) };
    }
}
