//! A GPU's primary context, and what becomes of memory that is given back while work may still touch it. No policy on
//! how long work may take: callers bring their limits.
//!
//! `cuMemFree` and its like wait until the GPU has finished everything, which a hung GPU never does. So memory is
//! freed only once every stream of the context has run dry; where that does not happen in [`SETTLE`], it is parked and
//! freed when a later look finds the streams dry, or never.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cudarc::driver::sys::{CUcontext, CUdevice, CUdeviceptr, CUmodule, CUstream};

use super::table::{Functions, NOT_READY, OUT_OF_MEMORY, SUCCESS};
use super::{CudaError, DeviceInfo};

/// How long giving something back waits for queued work: many times the longest single product or collective, which
/// take milliseconds, and short against the limit of a check. Only the first wait in a row may take it.
const SETTLE: Duration = Duration::from_secs(2);

/// How long a look at the streams sleeps before the next.
const PAUSE: Duration = Duration::from_micros(100);

/// A primary context. Clones are the same context; the last one gives it back.
#[derive(Clone)]
pub struct Context {
    inner: Arc<Inner>,
}

struct Inner {
    functions: Arc<Functions>,
    device: CUdevice,
    raw: CUcontext,
    info: DeviceInfo,
    gpu: String,
    /// Every stream that may hold work, those included whose owner is gone.
    streams: Mutex<Vec<CUstream>>,
    parked: Mutex<Vec<Parked>>,
}

// SAFETY: the handles are the driver's, whose functions may be called with them from any thread; the lists are behind
// mutexes.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// What must not be freed before all work is done.
#[derive(Debug, Clone, Copy)]
pub(super) enum Parked {
    Device(CUdeviceptr),
    Host(*mut c_void),
    Module(CUmodule),
}

impl Context {
    pub(super) fn retain(
        functions: Arc<Functions>,
        device: CUdevice,
        info: &DeviceInfo,
    ) -> Result<Self, CudaError> {
        let gpu = format!("{} at {}", info.uuid, info.bus_id);
        let mut raw = std::ptr::null_mut();
        // SAFETY: the out pointer is valid for the call, the device is the driver's.
        let code = unsafe { (functions.context_retain)(&raw mut raw, device) };
        functions.check(&gpu, "cuDevicePrimaryCtxRetain", code)?;
        let (streams, parked) = Default::default();
        let inner = Arc::new(Inner { functions, device, raw, info: info.clone(), gpu, streams, parked });
        let context = Self { inner };
        context.bind()?;
        Ok(context)
    }

    /// Makes it current on this thread. Every function of this module does so by itself; code that hands pointers to
    /// another library on a thread of its own calls it first.
    ///
    /// # Errors
    /// The context is gone.
    pub fn bind(&self) -> Result<(), CudaError> {
        self.check("cuCtxSetCurrent", self.inner.bind())
    }

    /// The GPU.
    #[must_use]
    pub fn info(&self) -> &DeviceInfo {
        &self.inner.info
    }

    /// The GPU in messages: UUID and PCI address.
    #[must_use]
    pub fn gpu(&self) -> &str {
        &self.inner.gpu
    }

    /// Bytes of device memory that are free, and all of them.
    ///
    /// # Errors
    /// The driver can't say.
    pub fn memory(&self) -> Result<(usize, usize), CudaError> {
        self.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the out pointers are valid for the call; the context is current.
        let code = unsafe { (self.functions().memory_info)(&raw mut free, &raw mut total) };
        self.check("cuMemGetInfo", code)?;
        Ok((free, total))
    }

    pub(super) fn functions(&self) -> &Functions {
        &self.inner.functions
    }

    pub(super) fn check(&self, call: &'static str, code: i32) -> Result<(), CudaError> {
        self.inner.functions.check(&self.inner.gpu, call, code)
    }

    pub(super) fn size_error(&self, what: impl Into<String>) -> CudaError {
        CudaError::Size { gpu: self.inner.gpu.clone(), what: what.into() }
    }

    /// An error where something was made in another context.
    pub(super) fn owns(&self, other: &Self, what: &'static str) -> Result<(), CudaError> {
        if Arc::ptr_eq(&self.inner, &other.inner) {
            return Ok(());
        }
        Err(CudaError::Foreign { gpu: self.inner.gpu.clone(), what })
    }

    /// Takes device memory by `cuMemAlloc`.
    pub(super) fn alloc(&self, bytes: usize) -> Result<CUdeviceptr, CudaError> {
        self.inner.reclaim();
        self.bind()?;
        let mut address = 0;
        // SAFETY: the out pointer is valid for the call; the context is current.
        let code = unsafe { (self.functions().alloc)(&raw mut address, bytes) };
        if code == OUT_OF_MEMORY {
            let (free, total) = self.memory()?;
            return Err(CudaError::OutOfMemory { gpu: self.inner.gpu.clone(), wanted: bytes, free, total });
        }
        self.check("cuMemAlloc", code)?;
        Ok(address)
    }

    /// Takes pinned memory of the host.
    pub(super) fn alloc_host(&self, bytes: usize) -> Result<*mut c_void, CudaError> {
        self.inner.reclaim();
        self.bind()?;
        let mut address = std::ptr::null_mut();
        // SAFETY: the out pointer is valid for the call; the context is current.
        let code = unsafe { (self.functions().alloc_host)(&raw mut address, bytes) };
        self.check("cuMemAllocHost", code)?;
        Ok(address)
    }

    /// Frees something once no work can touch it, or parks it.
    pub(super) fn give_back(&self, what: Parked) {
        let mut parked = lock(&self.inner.parked);
        let patience = if parked.is_empty() { SETTLE } else { Duration::ZERO };
        parked.push(what);
        if self.inner.settled(patience) {
            parked.drain(..).for_each(|one| self.inner.free(one));
        }
    }

    pub(super) fn register(&self, stream: CUstream) {
        lock(&self.inner.streams).push(stream);
    }

    /// Whether nothing holds work, now or after the patience that giving something back has.
    pub(super) fn is_dry(&self) -> bool {
        let parked = lock(&self.inner.parked);
        self.inner.settled(if parked.is_empty() { SETTLE } else { Duration::ZERO })
    }

    /// Destroys a stream whose owner is gone, unless it holds work: then its work is still waited for.
    pub(super) fn retire(&self, stream: CUstream) {
        // Under the lock, so that nobody asks for a stream that is gone.
        let mut streams = lock(&self.inner.streams);
        if self.inner.bind() != SUCCESS || self.inner.query(stream) != SUCCESS {
            return;
        }
        streams.retain(|one| *one != stream);
        // SAFETY: made by cuStreamCreate, destroyed once: it has left the list and its owner is gone.
        let _ = unsafe { (self.functions().stream_destroy)(stream) };
    }
}

impl Inner {
    fn bind(&self) -> i32 {
        // SAFETY: the context is retained until the last owner is gone.
        unsafe { (self.functions.context_set)(self.raw) }
    }

    /// Asks for a stream of the list, whose lock the caller holds.
    fn query(&self, stream: CUstream) -> i32 {
        // SAFETY: a stream leaves the list before it is destroyed; asking does not wait.
        unsafe { (self.functions.stream_query)(stream) }
    }

    /// As [`Self::query`]; one that has left the list was dry.
    fn query_listed(&self, stream: CUstream) -> i32 {
        let streams = lock(&self.streams);
        if streams.contains(&stream) { self.query(stream) } else { SUCCESS }
    }

    /// Whether all streams are dry, at once or within some time. A context that reports an error is never: its
    /// memory goes with the process.
    fn settled(&self, patience: Duration) -> bool {
        if self.bind() != SUCCESS {
            return false;
        }
        let deadline = Instant::now() + patience;
        let streams = lock(&self.streams).clone();
        streams.into_iter().all(|stream| {
            loop {
                match self.query_listed(stream) {
                    SUCCESS => return true,
                    NOT_READY if Instant::now() < deadline => std::thread::sleep(PAUSE),
                    _ => return false,
                }
            }
        })
    }

    /// Frees what is parked, if that can be done now.
    fn reclaim(&self) {
        let mut parked = lock(&self.parked);
        if !parked.is_empty() && self.settled(Duration::ZERO) {
            parked.drain(..).for_each(|one| self.free(one));
        }
    }

    /// Gives it back to the driver. The context is current and no stream holds work.
    fn free(&self, what: Parked) {
        // A result would say nothing that the next call does not.
        let _ = match what {
            // SAFETY: each was made by the matching function in this context, is freed once, as its owner is gone,
            // and no work can touch it.
            Parked::Device(address) => unsafe { (self.functions.free)(address) },
            // SAFETY: as above.
            Parked::Host(address) => unsafe { (self.functions.free_host)(address) },
            // SAFETY: as above.
            Parked::Module(module) => unsafe { (self.functions.module_unload)(module) },
        };
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let left = std::mem::take(&mut *lock(&self.parked));
        if !self.settled(if left.is_empty() { SETTLE } else { Duration::ZERO }) {
            // Work still runs, or the GPU is lost: releasing would wait for it.
            return;
        }
        for one in left {
            self.free(one);
        }
        for stream in std::mem::take(&mut *lock(&self.streams)) {
            // SAFETY: it is dry and its owner is gone, as owners hold this context.
            let _ = unsafe { (self.functions.stream_destroy)(stream) };
        }
        // SAFETY: retained once by this value.
        let _ = unsafe { (self.functions.context_release)(self.device) };
    }
}

/// The lists stay whole whatever a thread was doing when it panicked.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
