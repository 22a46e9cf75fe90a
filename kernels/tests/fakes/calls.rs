//! The functions that every driver since R470 has.

use std::ffi::{c_char, c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlMemory_t, nvmlPciInfo_t, nvmlProcessInfo_t,
    nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE as INSUFFICIENT_SIZE,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID,
    nvmlReturn_enum_NVML_ERROR_NOT_FOUND as NOT_FOUND, nvmlReturn_enum_NVML_SUCCESS as SUCCESS, nvmlReturn_t,
    nvmlRowRemapperHistogramValues_t,
};
use serde_json::Value;

use super::state::{self, member, number, of_gpu, of_system, text};

/// Functions that give one number of a GPU.
macro_rules! numbers {
    ($($name:ident: $type:ty),+ $(,)?) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(device: nvmlDevice_t, out: *mut $type) -> nvmlReturn_t {
            // SAFETY: NVML's callers hand over a pointer to a value of that type.
            unsafe { number(of_gpu(device, stringify!($name)), out) }
        }
    )+};
}

/// Functions that give one number of a GPU for an argument: the key is `function:argument`.
macro_rules! numbers_of {
    ($($name:ident: $type:ty),+ $(,)?) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(device: nvmlDevice_t, of: c_uint, out: *mut $type) -> nvmlReturn_t {
            let key = format!("{}:{of}", stringify!($name));
            // SAFETY: NVML's callers hand over a pointer to a value of that type.
            unsafe { number(of_gpu(device, &key), out) }
        }
    )+};
}

numbers! {
    nvmlDeviceGetMinorNumber: c_uint,
    nvmlDeviceGetPersistenceMode: c_uint,
    nvmlDeviceGetComputeMode: c_uint,
    nvmlDeviceGetCurrentClocksThrottleReasons: c_ulonglong,
    nvmlDeviceGetPowerUsage: c_uint,
    nvmlDeviceGetPowerManagementLimit: c_uint,
    nvmlDeviceGetPowerManagementDefaultLimit: c_uint,
    nvmlDeviceGetEnforcedPowerLimit: c_uint,
    nvmlDeviceGetRetiredPagesPendingStatus: c_uint,
    nvmlDeviceGetCurrPcieLinkGeneration: c_uint,
    nvmlDeviceGetMaxPcieLinkGeneration: c_uint,
    nvmlDeviceGetCurrPcieLinkWidth: c_uint,
    nvmlDeviceGetMaxPcieLinkWidth: c_uint,
    nvmlDeviceGetPcieReplayCounter: c_uint,
}

numbers_of! {
    nvmlDeviceGetClockInfo: c_uint,
    nvmlDeviceGetMaxClockInfo: c_uint,
    nvmlDeviceGetApplicationsClock: c_uint,
    nvmlDeviceGetDefaultApplicationsClock: c_uint,
    nvmlDeviceGetTemperature: c_uint,
    nvmlDeviceGetTemperatureThreshold: c_uint,
    nvmlDeviceGetNvLinkState: c_uint,
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> nvmlReturn_t {
    if let Ok(path) = of_system("environ") {
        let lines: Vec<String> = std::env::vars().map(|(name, value)| format!("{name}={value}\n")).collect();
        let _ = std::fs::write(path.as_str().unwrap_or_default(), lines.concat());
    }
    match of_system("nvmlInit_v2") {
        Ok(_) => SUCCESS,
        Err(code) => code,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> nvmlReturn_t {
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(code: nvmlReturn_t) -> *const c_char {
    match code {
        SUCCESS => c"Success",
        23 => c"Insufficient Resources",
        _ => c"Unknown Error",
    }
    .as_ptr()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetDriverVersion(out: *mut c_char, length: c_uint) -> nvmlReturn_t {
    // SAFETY: NVML's callers hand over a buffer and its length.
    unsafe { text(of_system("nvmlSystemGetDriverVersion"), out, length) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetCudaDriverVersion_v2(out: *mut i32) -> nvmlReturn_t {
    // SAFETY: NVML's callers hand over a pointer to a value of that type.
    unsafe { number(of_system("nvmlSystemGetCudaDriverVersion_v2"), out) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCount_v2(out: *mut c_uint) -> nvmlReturn_t {
    let gpus = state::file().and_then(|file| Some(file.get("gpus")?.as_array()?.len()));
    let answer = of_system("nvmlDeviceGetCount_v2").or_else(|code| match gpus {
        Some(count) if code == 3 => Ok(Value::from(count)),
        _ => Err(code),
    });
    // SAFETY: NVML's callers hand over a pointer to a value of that type.
    unsafe { number(answer, out) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(at: c_uint, out: *mut nvmlDevice_t) -> nvmlReturn_t {
    let handle = state::gpu_handle(at as usize);
    // A GPU may refuse to be opened.
    match of_gpu(handle, "nvmlDeviceGetHandleByIndex_v2") {
        Err(code) if code != 3 => code,
        _ => {
            // SAFETY: NVML's callers hand over a pointer to a handle.
            unsafe { out.write(handle) };
            SUCCESS
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByUUID(
    uuid: *const c_char,
    out: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    // SAFETY: NVML's callers hand over a C string.
    let Ok(uuid) = unsafe { std::ffi::CStr::from_ptr(uuid) }.to_str() else { return INVALID };
    let Some(file) = state::file() else { return INVALID };
    let mig = file.get("mig").and_then(|mig| mig.get(uuid)).and_then(Value::as_u64);
    let gpus = file.get("gpus").and_then(Value::as_array);
    let whole = || gpus?.iter().position(|gpu| gpu["nvmlDeviceGetUUID"] == uuid);
    let handle = match mig.and_then(|parent| usize::try_from(parent).ok()) {
        Some(parent) => state::mig_handle(parent),
        None => match whole() {
            Some(index) => state::gpu_handle(index),
            None => return NOT_FOUND,
        },
    };
    // SAFETY: NVML's callers hand over a pointer to a handle.
    unsafe { out.write(handle) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(
    part: nvmlDevice_t,
    out: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    let (parent, true) = state::index(part) else { return INVALID };
    // SAFETY: NVML's callers hand over a pointer to a handle.
    unsafe { out.write(state::gpu_handle(parent)) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetUUID(
    device: nvmlDevice_t,
    out: *mut c_char,
    length: c_uint,
) -> nvmlReturn_t {
    // SAFETY: NVML's callers hand over a buffer and its length.
    unsafe { text(of_gpu(device, "nvmlDeviceGetUUID"), out, length) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetName(
    device: nvmlDevice_t,
    out: *mut c_char,
    length: c_uint,
) -> nvmlReturn_t {
    // SAFETY: NVML's callers hand over a buffer and its length.
    unsafe { text(of_gpu(device, "nvmlDeviceGetName"), out, length) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPciInfo_v3(
    device: nvmlDevice_t,
    out: *mut nvmlPciInfo_t,
) -> nvmlReturn_t {
    let answer = of_gpu(device, "nvmlDeviceGetPciInfo_v3");
    // SAFETY: NVML's callers hand over a pointer to the structure, whose last field is 32 bytes of text.
    unsafe { text(answer, (&raw mut (*out).busId).cast(), 32) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo(
    device: nvmlDevice_t,
    out: *mut nvmlMemory_t,
) -> nvmlReturn_t {
    match of_gpu(device, "nvmlDeviceGetMemoryInfo") {
        Err(code) => code,
        Ok(it) => {
            let (total, free): (u64, u64) = (member(&it, "total"), member(&it, "free"));
            // SAFETY: NVML's callers hand over a pointer to the structure.
            unsafe { out.write(nvmlMemory_t { total, free, used: total - free }) };
            SUCCESS
        }
    }
}

/// A list of processes, with NVML's rule for a buffer that is too small.
unsafe fn processes(
    device: nvmlDevice_t,
    function: &str,
    count: *mut c_uint,
    out: *mut nvmlProcessInfo_t,
) -> nvmlReturn_t {
    let answer = match of_gpu(device, function) {
        Ok(answer) => answer,
        Err(code) => return code,
    };
    let listed = answer.as_array().cloned().unwrap_or_default();
    // SAFETY: NVML's callers hand over a pointer to how many fit.
    let room = unsafe { count.read() } as usize;
    // SAFETY: the same.
    unsafe { count.write(u32::try_from(listed.len()).unwrap_or(0)) };
    if listed.len() > room {
        return INSUFFICIENT_SIZE;
    }
    for (at, one) in listed.iter().enumerate() {
        let info = nvmlProcessInfo_t {
            pid: member(one, "pid"),
            usedGpuMemory: one.get("bytes").and_then(Value::as_u64).unwrap_or(u64::MAX),
            gpuInstanceId: u32::MAX,
            computeInstanceId: u32::MAX,
        };
        // SAFETY: `at` is below the number that fits.
        unsafe { out.add(at).write(info) };
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    device: nvmlDevice_t,
    count: *mut c_uint,
    out: *mut nvmlProcessInfo_t,
) -> nvmlReturn_t {
    // SAFETY: as NVML's callers hand them over.
    unsafe { processes(device, "nvmlDeviceGetComputeRunningProcesses_v3", count, out) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMPSComputeRunningProcesses_v3(
    device: nvmlDevice_t,
    count: *mut c_uint,
    out: *mut nvmlProcessInfo_t,
) -> nvmlReturn_t {
    // SAFETY: as NVML's callers hand them over.
    unsafe { processes(device, "nvmlDeviceGetMPSComputeRunningProcesses_v3", count, out) }
}

/// Functions that give two numbers of a GPU: the answer is a list of two.
macro_rules! pairs {
    ($($name:ident),+ $(,)?) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            device: nvmlDevice_t,
            one: *mut c_uint,
            other: *mut c_uint,
        ) -> nvmlReturn_t {
            let answer = of_gpu(device, stringify!($name));
            let part = |at: usize| answer.clone().map(|pair| pair[at].clone());
            // SAFETY: NVML's callers hand over pointers to numbers.
            unsafe {
                let code = number(part(0), one);
                if code == SUCCESS { number(part(1), other) } else { code }
            }
        }
    )+};
}

pairs!(nvmlDeviceGetPowerManagementLimitConstraints, nvmlDeviceGetEccMode, nvmlDeviceGetMigMode);

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetTotalEccErrors(
    device: nvmlDevice_t,
    error: c_uint,
    counter: c_uint,
    out: *mut c_ulonglong,
) -> nvmlReturn_t {
    let key = format!("nvmlDeviceGetTotalEccErrors:{error}:{counter}");
    // SAFETY: NVML's callers hand over a pointer to a number.
    unsafe { number(of_gpu(device, &key), out) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetNvLinkErrorCounter(
    device: nvmlDevice_t,
    link: c_uint,
    counter: c_uint,
    out: *mut c_ulonglong,
) -> nvmlReturn_t {
    let key = format!("nvmlDeviceGetNvLinkErrorCounter:{link}:{counter}");
    // SAFETY: NVML's callers hand over a pointer to a number.
    unsafe { number(of_gpu(device, &key), out) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetRemappedRows(
    device: nvmlDevice_t,
    corrected: *mut c_uint,
    uncorrected: *mut c_uint,
    pending: *mut c_uint,
    failed: *mut c_uint,
) -> nvmlReturn_t {
    match of_gpu(device, "nvmlDeviceGetRemappedRows") {
        Err(code) => code,
        Ok(it) => {
            // SAFETY: NVML's callers hand over pointers to numbers.
            unsafe {
                corrected.write(member(&it, "corrected"));
                uncorrected.write(member(&it, "uncorrected"));
                pending.write(member(&it, "pending"));
                failed.write(member(&it, "failed"));
            }
            SUCCESS
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetRowRemapperHistogram(
    device: nvmlDevice_t,
    out: *mut nvmlRowRemapperHistogramValues_t,
) -> nvmlReturn_t {
    match of_gpu(device, "nvmlDeviceGetRowRemapperHistogram") {
        Err(code) => code,
        Ok(it) => {
            let banks = nvmlRowRemapperHistogramValues_t {
                max: member(&it, "max"),
                high: member(&it, "high"),
                partial: member(&it, "partial"),
                low: member(&it, "low"),
                none: member(&it, "none"),
            };
            // SAFETY: NVML's callers hand over a pointer to the structure.
            unsafe { out.write(banks) };
            SUCCESS
        }
    }
}

/// The number of retired pages; which pages they are is not told.
unsafe fn retired(device: nvmlDevice_t, cause: c_uint, count: *mut c_uint) -> nvmlReturn_t {
    // SAFETY: NVML's callers hand over a pointer to a number.
    unsafe { number(of_gpu(device, &format!("nvmlDeviceGetRetiredPages:{cause}")), count) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetRetiredPages(
    device: nvmlDevice_t,
    cause: c_uint,
    count: *mut c_uint,
    _addresses: *mut c_ulonglong,
) -> nvmlReturn_t {
    // SAFETY: as NVML's callers hand it over.
    match unsafe { retired(device, cause, count) } {
        SUCCESS => INSUFFICIENT_SIZE,
        code => code,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetRetiredPages_v2(
    device: nvmlDevice_t,
    cause: c_uint,
    count: *mut c_uint,
    _addresses: *mut c_ulonglong,
    _times: *mut c_ulonglong,
) -> nvmlReturn_t {
    // SAFETY: as NVML's callers hand it over.
    unsafe { retired(device, cause, count) }
}
