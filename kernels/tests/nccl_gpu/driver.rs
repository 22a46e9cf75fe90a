//! The few calls of the driver that the tests need: a context, memory, a stream. Nothing is given back before the
//! process ends.

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::mem::ManuallyDrop;
use std::ptr::null_mut;
use std::sync::Arc;

use kernels::nccl::{Span, Stream};
use libloading::Library;

/// `CUDA_ERROR_NOT_READY`.
const NOT_READY: c_int = 600;
/// `CU_STREAM_DEFAULT`: it waits for the default stream, on which a copy to the GPU may still be under way.
const AFTER_COPIES: c_uint = 0;

type Context = *mut c_void;
type RawStream = *mut c_void;

struct Functions {
    init: unsafe extern "C" fn(c_uint) -> c_int,
    device_count: unsafe extern "C" fn(*mut c_int) -> c_int,
    device: unsafe extern "C" fn(*mut c_int, c_int) -> c_int,
    retain: unsafe extern "C" fn(*mut Context, c_int) -> c_int,
    set_current: unsafe extern "C" fn(Context) -> c_int,
    alloc: unsafe extern "C" fn(*mut u64, usize) -> c_int,
    to_device: unsafe extern "C" fn(u64, *const c_void, usize) -> c_int,
    to_host: unsafe extern "C" fn(*mut c_void, u64, usize) -> c_int,
    stream: unsafe extern "C" fn(*mut RawStream, c_uint) -> c_int,
    query: unsafe extern "C" fn(RawStream) -> c_int,
    _mapped: ManuallyDrop<Library>,
}

/// The driver.
#[derive(Clone)]
pub struct Driver(Arc<Functions>);

fn checked(call: &str, code: c_int) -> Result<(), String> {
    if code == 0 { Ok(()) } else { Err(format!("{call}: CUDA error {code}")) }
}

impl Driver {
    pub fn load() -> Result<Self, String> {
        // SAFETY: the vendor's library by its own name; its initialisers start nothing.
        let library = unsafe { Library::new("libcuda.so.1") }.map_err(|error| format!("{error:?}"))?;
        /// # Safety
        /// `F` is the type of the function of this name.
        unsafe fn find<F: Copy>(library: &Library, name: &CStr) -> Result<F, String> {
            // SAFETY: the caller vouches for the type; the library is never unmapped.
            unsafe { library.get::<F>(name) }.map(|found| *found).map_err(|error| format!("{error:?}"))
        }
        // SAFETY: names and types are those of cuda.h.
        let functions = unsafe {
            Functions {
                init: find(&library, c"cuInit")?,
                device_count: find(&library, c"cuDeviceGetCount")?,
                device: find(&library, c"cuDeviceGet")?,
                retain: find(&library, c"cuDevicePrimaryCtxRetain")?,
                set_current: find(&library, c"cuCtxSetCurrent")?,
                alloc: find(&library, c"cuMemAlloc_v2")?,
                to_device: find(&library, c"cuMemcpyHtoD_v2")?,
                to_host: find(&library, c"cuMemcpyDtoH_v2")?,
                stream: find(&library, c"cuStreamCreate")?,
                query: find(&library, c"cuStreamQuery")?,
                _mapped: ManuallyDrop::new(library),
            }
        };
        // SAFETY: the flag must be 0.
        checked("cuInit", unsafe { (functions.init)(0) })?;
        Ok(Self(Arc::new(functions)))
    }

    pub fn gpus(&self) -> usize {
        let mut count = 0;
        // SAFETY: the pointer is valid.
        checked("cuDeviceGetCount", unsafe { (self.0.device_count)(&raw mut count) }).unwrap();
        usize::try_from(count).unwrap()
    }

    /// Makes a GPU's primary context this thread's.
    pub fn bind(&self, gpu: usize) -> Result<Gpu, String> {
        let (mut device, mut context) = (0, null_mut());
        let index = c_int::try_from(gpu).map_err(|error| error.to_string())?;
        // SAFETY: the pointers are valid, the index is checked by the driver.
        checked("cuDeviceGet", unsafe { (self.0.device)(&raw mut device, index) })?;
        // SAFETY: the device was just handed out.
        checked("cuDevicePrimaryCtxRetain", unsafe { (self.0.retain)(&raw mut context, device) })?;
        // SAFETY: the context was just retained and is never released.
        checked("cuCtxSetCurrent", unsafe { (self.0.set_current)(context) })?;
        Ok(Gpu(self.clone()))
    }
}

/// A GPU whose context is this thread's.
pub struct Gpu(Driver);

impl Gpu {
    pub fn memory(&self, bytes: usize) -> Result<Memory, String> {
        let mut address = 0;
        // SAFETY: the pointer is valid; the context is current.
        checked("cuMemAlloc_v2", unsafe { (self.0.0.alloc)(&raw mut address, bytes) })?;
        Ok(Memory { driver: self.0.clone(), address, bytes })
    }

    pub fn copy_of(&self, elements: &[f32]) -> Result<Memory, String> {
        let memory = self.memory(size_of_val(elements))?;
        memory.write(elements)?;
        Ok(memory)
    }

    pub fn stream(&self) -> Result<Flow, String> {
        let mut stream = null_mut();
        // SAFETY: the pointer is valid; the context is current.
        checked("cuStreamCreate", unsafe { (self.0.0.stream)(&raw mut stream, AFTER_COPIES) })?;
        Ok(Flow { driver: self.0.clone(), stream })
    }
}

/// Memory of a GPU.
pub struct Memory {
    driver: Driver,
    address: u64,
    bytes: usize,
}

impl Memory {
    pub fn span(&self) -> Span {
        // SAFETY: the memory is never freed; the tests touch it only when its stream is done.
        unsafe { Span::from_raw(self.address, self.bytes) }
    }

    /// Writes from the beginning.
    pub fn write(&self, elements: &[f32]) -> Result<(), String> {
        assert!(size_of_val(elements) <= self.bytes);
        let from = elements.as_ptr().cast();
        // SAFETY: both sides hold as many bytes.
        let code = unsafe { (self.driver.0.to_device)(self.address, from, size_of_val(elements)) };
        checked("cuMemcpyHtoD_v2", code)
    }

    /// Reads so many elements from the beginning.
    pub fn read(&self, count: usize) -> Result<Vec<f32>, String> {
        assert!(count <= self.bytes / 4);
        let mut elements = vec![0.0f32; count];
        let to = elements.as_mut_ptr().cast();
        // SAFETY: both sides hold as many bytes.
        let code = unsafe { (self.driver.0.to_host)(to, self.address, elements.len() * 4) };
        checked("cuMemcpyDtoH_v2", code).map(|()| elements)
    }
}

/// A stream of a GPU.
pub struct Flow {
    driver: Driver,
    stream: RawStream,
}

impl Flow {
    pub fn for_nccl(&self) -> Stream {
        // SAFETY: the stream is never destroyed, and each thread of the tests has one GPU.
        unsafe { Stream::from_raw(self.stream) }
    }

    /// Whether all that was enqueued is done.
    pub fn done(&self) -> Result<bool, String> {
        // SAFETY: the stream is alive.
        match unsafe { (self.driver.0.query)(self.stream) } {
            NOT_READY => Ok(false),
            code => checked("cuStreamQuery", code).map(|()| true),
        }
    }
}
