//! Stands in for libnccl in the tests: an object with NCCL's version and with a log function, by whose address the plugin finds
//! it. The version is what `FAKE_NCCL_VERSION` says.

use std::ffi::{c_char, c_int, c_ulong};

/// As NCCL's.
///
/// # Safety
/// `version` may be written.
// SAFETY: the name is NCCL's, on purpose; the object is loaded by tests only.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> c_int {
    let said = std::env::var("FAKE_NCCL_VERSION").ok().and_then(|text| text.parse().ok());
    // SAFETY: the caller's promise.
    unsafe { version.write(said.unwrap_or(22809)) };
    0
}

/// As far as the plugin sees, NCCL's log.
// SAFETY: no other object has this name.
#[unsafe(no_mangle)]
pub extern "C" fn fake_nccl_log(_: c_int, _: c_ulong, _: *const c_char, _: c_int, _: *const c_char) {}
