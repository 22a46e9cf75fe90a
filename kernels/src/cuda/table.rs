//! The functions of the driver that are called, looked up when it is opened. Only types and names; who calls what
//! with which promise stands at each call.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUfunction, CUjit_option, CUmodule,
    CUstream, CUuuid,
};

use super::CudaError;

/// What a call returns. An integer, not cudarc's enum: a newer driver may have more.
pub(super) type Status = c_int;

/// `CUDA_SUCCESS` and `CUBLAS_STATUS_SUCCESS`.
pub(super) const SUCCESS: Status = 0;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub(super) const OUT_OF_MEMORY: Status = 2;
/// `CUDA_ERROR_NOT_READY`: what was asked for is not finished.
pub(super) const NOT_READY: Status = 600;

/// A struct of function pointers, and how to fill it from a library.
macro_rules! functions {
    ($table:ident { $($field:ident = $symbol:literal ( $($argument:ty),* ) -> $result:ty;)* }) => {
        /// Functions of a library, under their names without the library's prefix.
        pub(super) struct $table {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) -> $result,)*
            library: $crate::libraries::Loaded,
        }

        impl $table {
            /// Looks all of them up.
            pub(super) fn load(library: $crate::libraries::Loaded) -> Result<Self, $crate::LibraryError> {
                // SAFETY: the names and types are those of the vendor's headers, which keep the type of a symbol
                // for good: a changed function gets a new one (`_v2`).
                unsafe { Ok(Self { $($field: library.function($symbol)?,)* library }) }
            }

            /// What was opened.
            pub(super) fn path(&self) -> &std::path::Path {
                self.library.path()
            }
        }
    };
}
pub(super) use functions;

functions!(Functions {
    init = c"cuInit"(c_uint) -> Status;
    driver_version = c"cuDriverGetVersion"(*mut c_int) -> Status;
    error_name = c"cuGetErrorName"(Status, *mut *const c_char) -> Status;
    error_text = c"cuGetErrorString"(Status, *mut *const c_char) -> Status;
    device_count = c"cuDeviceGetCount"(*mut c_int) -> Status;
    device = c"cuDeviceGet"(*mut CUdevice, c_int) -> Status;
    device_name = c"cuDeviceGetName"(*mut c_char, c_int, CUdevice) -> Status;
    device_uuid = c"cuDeviceGetUuid_v2"(*mut CUuuid, CUdevice) -> Status;
    device_bus_id = c"cuDeviceGetPCIBusId"(*mut c_char, c_int, CUdevice) -> Status;
    device_attribute = c"cuDeviceGetAttribute"(*mut c_int, CUdevice_attribute, CUdevice) -> Status;
    device_memory = c"cuDeviceTotalMem_v2"(*mut usize, CUdevice) -> Status;
    context_retain = c"cuDevicePrimaryCtxRetain"(*mut CUcontext, CUdevice) -> Status;
    context_release = c"cuDevicePrimaryCtxRelease_v2"(CUdevice) -> Status;
    context_set = c"cuCtxSetCurrent"(CUcontext) -> Status;
    memory_info = c"cuMemGetInfo_v2"(*mut usize, *mut usize) -> Status;
    alloc = c"cuMemAlloc_v2"(*mut CUdeviceptr, usize) -> Status;
    free = c"cuMemFree_v2"(CUdeviceptr) -> Status;
    alloc_host = c"cuMemAllocHost_v2"(*mut *mut c_void, usize) -> Status;
    free_host = c"cuMemFreeHost"(*mut c_void) -> Status;
    copy_to_device = c"cuMemcpyHtoDAsync_v2"(CUdeviceptr, *const c_void, usize, CUstream) -> Status;
    copy_to_host = c"cuMemcpyDtoHAsync_v2"(*mut c_void, CUdeviceptr, usize, CUstream) -> Status;
    set_bytes = c"cuMemsetD8Async"(CUdeviceptr, u8, usize, CUstream) -> Status;
    stream_create = c"cuStreamCreate"(*mut CUstream, c_uint) -> Status;
    stream_query = c"cuStreamQuery"(CUstream) -> Status;
    stream_destroy = c"cuStreamDestroy_v2"(CUstream) -> Status;
    event_create = c"cuEventCreate"(*mut CUevent, c_uint) -> Status;
    event_record = c"cuEventRecord"(CUevent, CUstream) -> Status;
    // CUDA 13's headers call `cuEventElapsedTime_v2`, which 12.x drivers lack; all have the first one.
    event_elapsed = c"cuEventElapsedTime"(*mut f32, CUevent, CUevent) -> Status;
    event_destroy = c"cuEventDestroy_v2"(CUevent) -> Status;
    module_load = c"cuModuleLoadDataEx"(
        *mut CUmodule, *const c_void, c_uint, *mut CUjit_option, *mut *mut c_void
    ) -> Status;
    module_unload = c"cuModuleUnload"(CUmodule) -> Status;
    module_function = c"cuModuleGetFunction"(*mut CUfunction, CUmodule, *const c_char) -> Status;
    launch = c"cuLaunchKernel"(
        CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream, *mut *mut c_void,
        *mut *mut c_void
    ) -> Status;
});

impl Functions {
    /// The driver's name for one of its results.
    pub(super) fn name(&self, code: Status) -> String {
        self.words(self.error_name, code).unwrap_or_else(|| "an error without a name".into())
    }

    /// An error where the call failed.
    pub(super) fn check(&self, gpu: &str, call: &'static str, code: Status) -> Result<(), CudaError> {
        if code == SUCCESS {
            return Ok(());
        }
        Err(CudaError::Driver {
            gpu: gpu.to_owned(),
            call,
            code,
            name: self.name(code),
            text: self.words(self.error_text, code).unwrap_or_else(|| "no text".into()),
        })
    }

    fn words(
        &self,
        look_up: unsafe extern "C" fn(Status, *mut *const c_char) -> Status,
        code: Status,
    ) -> Option<String> {
        let mut text = std::ptr::null();
        // SAFETY: the out pointer is valid for the call; a number that the driver does not know gives null.
        let done = unsafe { look_up(code, &raw mut text) };
        // SAFETY: not null, so it is a string of the driver's own that ends in a zero byte and is never freed.
        (done == SUCCESS && !text.is_null())
            .then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }
}
