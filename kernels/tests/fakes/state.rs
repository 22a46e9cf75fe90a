//! Where the stand-in's answers come from: a JSON file, read anew at each call, so that a test can change the hardware
//! under a running reader. `AIMASTER_FAKE_NVML` names it, else it lies beside the library as `<library>.json`.
//!
//! The file: `{"<function>": answer, …, "mig": {"MIG-…": 0}, "gpus": [{"<function>[:<argument>]": answer, …}]}`. An
//! answer `{"error": N}` is that code of NVML, `{"hang_ms": N}` is not supported and says so that late, a GPU's `"*"`
//! answers for all that it doesn't name, and what has no answer is not supported. `"environ"` names a file that gets the
//! environment of the process that starts the library.

use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID,
    nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED, nvmlReturn_enum_NVML_ERROR_UNKNOWN as UNKNOWN,
    nvmlReturn_enum_NVML_SUCCESS as SUCCESS, nvmlReturn_t,
};
use serde_json::Value;

/// Handles of MIG instances begin here; below are GPUs, index plus one.
const MIG_HANDLES: usize = 1000;

/// The file as it is now; it is parsed again only when it changed.
pub fn file() -> Option<Arc<Value>> {
    static LAST: Mutex<Option<(Vec<u8>, Arc<Value>)>> = Mutex::new(None);
    let path = std::env::var_os("AIMASTER_FAKE_NVML").map(PathBuf::from).or_else(beside)?;
    let bytes = std::fs::read(path).ok()?;
    let mut last = LAST.lock().ok()?;
    if let Some((_, value)) = last.as_ref().filter(|(known, _)| *known == bytes) {
        return Some(Arc::clone(value));
    }
    let value = Arc::new(serde_json::from_slice(&bytes).ok()?);
    *last = Some((bytes, Arc::clone(&value)));
    Some(value)
}

fn beside() -> Option<PathBuf> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: the address is of this library, and `info` is what dladdr fills in.
    let found = unsafe { libc::dladdr(file as *const () as *const libc::c_void, info.as_mut_ptr()) };
    // SAFETY: all zeros is a valid value of it, whether dladdr filled it in or not.
    let name = unsafe { info.assume_init() }.dli_fname;
    if found == 0 || name.is_null() {
        return None;
    }
    // SAFETY: not null, a C string of the loader's that lives as long as this library.
    let name = unsafe { CStr::from_ptr(name) }.to_str().ok()?;
    Some(format!("{name}.json").into())
}

pub fn gpu_handle(index: usize) -> nvmlDevice_t {
    std::ptr::without_provenance_mut(index + 1)
}

pub fn mig_handle(parent: usize) -> nvmlDevice_t {
    std::ptr::without_provenance_mut(MIG_HANDLES + parent)
}

/// The GPU of a handle, and whether the handle is a MIG instance's.
pub fn index(device: nvmlDevice_t) -> (usize, bool) {
    let number = device.addr();
    if number >= MIG_HANDLES { (number - MIG_HANDLES, true) } else { (number.wrapping_sub(1), false) }
}

fn checked(answer: Option<&Value>) -> Result<Value, nvmlReturn_t> {
    let answer = answer.ok_or(NOT_SUPPORTED)?;
    if let Some(late) = answer.get("hang_ms").and_then(Value::as_u64) {
        std::thread::sleep(std::time::Duration::from_millis(late));
        return Err(NOT_SUPPORTED);
    }
    match answer.get("error").and_then(Value::as_u64) {
        Some(code) => Err(u32::try_from(code).unwrap_or(UNKNOWN)),
        None => Ok(answer.clone()),
    }
}

/// The library's own answer.
pub fn of_system(function: &str) -> Result<Value, nvmlReturn_t> {
    checked(file().ok_or(UNKNOWN)?.get(function))
}

/// A GPU's answer.
pub fn of_gpu(device: nvmlDevice_t, function: &str) -> Result<Value, nvmlReturn_t> {
    let file = file().ok_or(UNKNOWN)?;
    let gpu = file.get("gpus").and_then(|gpus| gpus.get(index(device).0)).ok_or(INVALID)?;
    checked(gpu.get(function).or_else(|| gpu.get("*")))
}

/// Writes a number where the caller wants it.
///
/// # Safety
/// `out` is null or may be written.
pub unsafe fn number<T: TryFrom<i128>>(answer: Result<Value, nvmlReturn_t>, out: *mut T) -> nvmlReturn_t {
    let value = match answer {
        Ok(value) => value,
        Err(code) => return code,
    };
    let wide = value.as_i64().map(i128::from).or_else(|| value.as_u64().map(i128::from));
    match wide.and_then(|wide| T::try_from(wide).ok()) {
        Some(value) if !out.is_null() => {
            // SAFETY: not null, and the caller's to write.
            unsafe { out.write(value) };
            SUCCESS
        }
        _ => INVALID,
    }
}

/// Writes a text into the caller's buffer.
///
/// # Safety
/// `out` is null or has `length` bytes that may be written.
pub unsafe fn text(answer: Result<Value, nvmlReturn_t>, out: *mut c_char, length: u32) -> nvmlReturn_t {
    let value = match answer {
        Ok(value) => value,
        Err(code) => return code,
    };
    let Some(text) = value.as_str().filter(|text| !out.is_null() && text.len() < length as usize) else {
        return INVALID;
    };
    // SAFETY: the text and its final zero byte fit, as was just compared.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), out, text.len());
        out.add(text.len()).write(0);
    }
    SUCCESS
}

/// A member of an answer that is an object; 0 where it has none.
pub fn member<T: TryFrom<i64> + Default>(answer: &Value, name: &str) -> T {
    answer.get(name).and_then(Value::as_i64).and_then(|wide| T::try_from(wide).ok()).unwrap_or_default()
}
