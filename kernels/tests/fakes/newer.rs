//! The functions that came after R470.

use std::ffi::{c_int, c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlEccSramErrorStatus_t, nvmlFieldValue_t, nvmlGpuFabricInfo_v2_t, nvmlGpuFabricInfo_v3_t,
    nvmlMarginTemperature_t, nvmlMemory_v2_t,
    nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH as VERSION_MISMATCH,
    nvmlReturn_enum_NVML_SUCCESS as SUCCESS, nvmlReturn_t, nvmlValue_t,
    nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT as UNSIGNED_INT,
    nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG as UNSIGNED_LONG_LONG,
};
use serde_json::Value;

use super::state::{member, number, of_gpu};

/// NVML refuses a structure whose tag is not its own size and version.
fn tagged<T>(tag: c_uint, version: u32) -> bool {
    u32::try_from(size_of::<T>()).is_ok_and(|size| tag == size | (version << 24))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCurrentClocksEventReasons(
    device: nvmlDevice_t,
    out: *mut c_ulonglong,
) -> nvmlReturn_t {
    // SAFETY: NVML's callers hand over a pointer to a number.
    unsafe { number(of_gpu(device, "nvmlDeviceGetCurrentClocksEventReasons"), out) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGpuMaxPcieLinkGeneration(
    device: nvmlDevice_t,
    out: *mut c_uint,
) -> nvmlReturn_t {
    // SAFETY: NVML's callers hand over a pointer to a number.
    unsafe { number(of_gpu(device, "nvmlDeviceGetGpuMaxPcieLinkGeneration"), out) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(
    device: nvmlDevice_t,
    out: *mut nvmlMemory_v2_t,
) -> nvmlReturn_t {
    // SAFETY: NVML's callers hand over a pointer to the structure, its tag set.
    let version = unsafe { (*out).version };
    if !tagged::<nvmlMemory_v2_t>(version, 2) {
        return VERSION_MISMATCH;
    }
    match of_gpu(device, "nvmlDeviceGetMemoryInfo_v2") {
        Err(code) => code,
        Ok(it) => {
            let (total, free): (u64, u64) = (member(&it, "total"), member(&it, "free"));
            // SAFETY: the same pointer.
            unsafe { out.write(nvmlMemory_v2_t { version, total, reserved: 0, free, used: total - free }) };
            SUCCESS
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMarginTemperature(
    device: nvmlDevice_t,
    out: *mut nvmlMarginTemperature_t,
) -> nvmlReturn_t {
    // SAFETY: NVML's callers hand over a pointer to the structure, its tag set.
    unsafe {
        if !tagged::<nvmlMarginTemperature_t>((*out).version, 1) {
            return VERSION_MISMATCH;
        }
        number(of_gpu(device, "nvmlDeviceGetMarginTemperature"), &raw mut (*out).marginTemperature)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetSramEccErrorStatus(
    device: nvmlDevice_t,
    out: *mut nvmlEccSramErrorStatus_t,
) -> nvmlReturn_t {
    // SAFETY: NVML's callers hand over a pointer to the structure, its tag set.
    if !tagged::<nvmlEccSramErrorStatus_t>(unsafe { (*out).version }, 1) {
        return VERSION_MISMATCH;
    }
    match of_gpu(device, "nvmlDeviceGetSramEccErrorStatus") {
        Err(code) => code,
        Ok(it) => {
            // SAFETY: the same pointer.
            unsafe {
                (*out).volatileUncParity = member(&it, "volatile_parity");
                (*out).volatileUncSecDed = member(&it, "volatile_secded");
                (*out).aggregateUncParity = member(&it, "aggregate_parity");
                (*out).aggregateUncSecDed = member(&it, "aggregate_secded");
                (*out).bThresholdExceeded = member(&it, "threshold_exceeded");
            }
            SUCCESS
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetFieldValues(
    device: nvmlDevice_t,
    count: c_int,
    values: *mut nvmlFieldValue_t,
) -> nvmlReturn_t {
    for at in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: NVML's callers hand over that many values.
        let value = unsafe { &mut *values.add(at) };
        let key = format!("nvmlDeviceGetFieldValues:{}:{}", value.fieldId, value.scopeId);
        match of_gpu(device, &key).map(|answer| answer.as_u64().unwrap_or_default()) {
            Err(code) => value.nvmlReturn = code,
            Ok(number) => {
                value.nvmlReturn = SUCCESS;
                // Like NVML: small values are 32 bits wide, and the other half is not touched.
                match c_uint::try_from(number) {
                    Ok(narrow) => {
                        value.valueType = UNSIGNED_INT;
                        value.value.uiVal = narrow;
                    }
                    Err(_) => {
                        value.valueType = UNSIGNED_LONG_LONG;
                        value.value = nvmlValue_t { ullVal: number };
                    }
                }
            }
        }
    }
    // A GPU that is lost fails the call as a whole.
    match of_gpu(device, "nvmlDeviceGetFieldValues") {
        Err(code) if code != 3 => code,
        _ => SUCCESS,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGpuFabricInfoV(
    device: nvmlDevice_t,
    out: *mut nvmlGpuFabricInfo_v3_t,
) -> nvmlReturn_t {
    let answer = match of_gpu(device, "nvmlDeviceGetGpuFabricInfoV") {
        Ok(answer) => answer,
        Err(code) => return code,
    };
    let newest: u32 = answer.get("newest").and_then(Value::as_u64).map_or(3, |it| it as u32);
    // SAFETY: NVML's callers hand over a pointer to a structure that begins with its tag.
    let version = unsafe { (*out).version };
    let third = newest >= 3 && tagged::<nvmlGpuFabricInfo_v3_t>(version, 3);
    if !third && !tagged::<nvmlGpuFabricInfo_v2_t>(version, 2) {
        return answer.get("refusal").map_or(VERSION_MISMATCH, |_| member(&answer, "refusal"));
    }
    let info = nvmlGpuFabricInfo_v2_t {
        version,
        clusterUuid: [member(&answer, "cluster"); 16],
        status: member(&answer, "status"),
        cliqueId: member(&answer, "clique"),
        state: member(&answer, "state"),
        healthMask: member(&answer, "health"),
    };
    // SAFETY: version 2 is the beginning of version 3; what lies behind it is touched only where the caller has it.
    unsafe {
        out.cast::<nvmlGpuFabricInfo_v2_t>().write(info);
        if third {
            (*out).healthSummary = member(&answer, "summary");
        }
    }
    SUCCESS
}
