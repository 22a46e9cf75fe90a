//! Events, and how busy a GPU is. A GPU's `"events"` in the file is a list of `{"type": bits, "data": number}`; each is
//! told once to each set that the GPU is registered with, in the order of the list, also when it is added later.

use std::collections::BTreeMap;
use std::ffi::c_ulonglong;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlEventData_t, nvmlEventSet_t, nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID,
    nvmlReturn_enum_NVML_ERROR_TIMEOUT as TIMEOUT, nvmlReturn_enum_NVML_SUCCESS as SUCCESS, nvmlReturn_t,
    nvmlUtilization_t,
};
use serde_json::Value;

use super::state::{self, member, number, of_gpu, of_system};

/// A set: which GPUs, with which bits, and how many of their events were told.
type Set = BTreeMap<usize, (u64, usize)>;

static SETS: Mutex<BTreeMap<usize, Set>> = Mutex::new(BTreeMap::new());

/// How often the file is looked at while somebody waits.
const LOOK: Duration = Duration::from_millis(2);

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetSupportedEventTypes(
    device: nvmlDevice_t,
    out: *mut c_ulonglong,
) -> nvmlReturn_t {
    // SAFETY: NVML's callers hand over a pointer to a number.
    unsafe { number(of_gpu(device, "nvmlDeviceGetSupportedEventTypes"), out) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlEventSetCreate(out: *mut nvmlEventSet_t) -> nvmlReturn_t {
    let Ok(mut sets) = SETS.lock() else { return INVALID };
    let id = sets.keys().max().map_or(1, |last| last + 1);
    sets.insert(id, Set::new());
    // SAFETY: NVML's callers hand over a pointer to a handle.
    unsafe { out.write(std::ptr::without_provenance_mut(id)) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlEventSetFree(set: nvmlEventSet_t) -> nvmlReturn_t {
    let known = SETS.lock().ok().and_then(|mut sets| sets.remove(&set.addr()));
    if known.is_some() { SUCCESS } else { INVALID }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceRegisterEvents(
    device: nvmlDevice_t,
    bits: c_ulonglong,
    set: nvmlEventSet_t,
) -> nvmlReturn_t {
    if let Err(code) = of_gpu(device, "nvmlDeviceRegisterEvents") {
        return code;
    }
    let Ok(mut sets) = SETS.lock() else { return INVALID };
    let Some(set) = sets.get_mut(&set.addr()) else { return INVALID };
    // What was before is history, which NVML does not tell.
    let told = events(state::index(device).0).len();
    set.insert(state::index(device).0, (bits, told));
    SUCCESS
}

fn events(gpu: usize) -> Vec<Value> {
    let file = state::file();
    let list = file.as_ref().and_then(|file| file.get("gpus")?.get(gpu)?.get("events")?.as_array().cloned());
    list.unwrap_or_default()
}

fn next(set: usize) -> Option<(usize, Value)> {
    let mut sets = SETS.lock().ok()?;
    for (gpu, (bits, told)) in sets.get_mut(&set)? {
        let listed = events(*gpu);
        while let Some(event) = listed.get(*told) {
            *told += 1;
            if member::<u64>(event, "type") & *bits != 0 {
                return Some((*gpu, event.clone()));
            }
        }
    }
    None
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlEventSetWait_v2(
    set: nvmlEventSet_t,
    out: *mut nvmlEventData_t,
    timeout_ms: u32,
) -> nvmlReturn_t {
    // Not supported is what it says where nothing is written: it is not asked then.
    if let Err(code) = of_system("nvmlEventSetWait_v2")
        && code != 3
    {
        return code;
    }
    let until = Instant::now() + Duration::from_millis(timeout_ms.into());
    loop {
        if let Some((gpu, event)) = next(set.addr()) {
            let data = nvmlEventData_t {
                device: state::gpu_handle(gpu),
                eventType: member(&event, "type"),
                eventData: member(&event, "data"),
                gpuInstanceId: u32::MAX,
                computeInstanceId: u32::MAX,
            };
            // SAFETY: NVML's callers hand over a pointer to the structure.
            unsafe { out.write(data) };
            return SUCCESS;
        }
        if Instant::now() >= until {
            return TIMEOUT;
        }
        std::thread::sleep(LOOK);
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetUtilizationRates(
    device: nvmlDevice_t,
    out: *mut nvmlUtilization_t,
) -> nvmlReturn_t {
    match of_gpu(device, "nvmlDeviceGetUtilizationRates") {
        Err(code) => code,
        Ok(it) => {
            // SAFETY: NVML's callers hand over a pointer to the structure.
            unsafe {
                out.write(nvmlUtilization_t { gpu: member(&it, "gpu"), memory: member(&it, "memory") })
            };
            SUCCESS
        }
    }
}
