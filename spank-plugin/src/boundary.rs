//! The edge between Slurm and this library: pointers become values, panics become return codes, messages
//! become lines of Slurm's log. Not where anything is decided.

use std::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use slurm_spank::spank_sys::spank_t;
use slurm_spank::{LogLevel, OptionCache, SpankHandle, init_spank_handle, spank_log};

/// What Slurm reads as "went well".
pub const SUCCESS: c_int = 0;

/// What Slurm reads as "failed".
pub const FAILURE: c_int = -1;

/// Runs a hook; a panic ends here, with `on_panic`.
///
/// # Safety
/// `spank` is the handle that Slurm gave to this hook, `argv` holds `argc` strings that end with NUL.
pub unsafe fn hook(
    name: &str,
    spank: spank_t,
    argc: c_int,
    argv: *const *const c_char,
    on_panic: c_int,
    body: fn(&SpankHandle, spank_t) -> c_int,
) -> c_int {
    guarded(name, on_panic, || {
        // Only the crate's own callback fills this cache; ours has a store of its own.
        let mut cache = OptionCache::default();
        let handle = init_spank_handle(spank, argc, argv, &mut cache);
        body(&handle, spank)
    })
}

/// Runs `body`; a panic ends here, is logged, and gives `on_panic`.
pub fn guarded(name: &str, on_panic: c_int, body: impl FnOnce() -> c_int) -> c_int {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|payload| {
        let logged = catch_unwind(|| {
            error(&format!("{name}: internal error, please report it; the job goes on without this step"));
        });
        // A payload may panic when it is dropped, and this is the last place that could catch it.
        std::mem::forget((payload, logged));
        on_panic
    })
}

/// The text of a C string; bytes that are not UTF-8 are replaced. `None` for a null pointer.
///
/// # Safety
/// `text` is null, or ends with NUL and stays as it is during the call.
pub unsafe fn text(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: not null, and the caller vouches for the rest.
    let text = unsafe { CStr::from_ptr(text) };
    Some(text.to_string_lossy().into_owned())
}

/// A line that an admin or a user has to see.
pub fn error(line: &str) {
    spank_log(LogLevel::Error, &format!("aimaster: {line}"));
}

/// A line that is good to know.
pub fn info(line: &str) {
    spank_log(LogLevel::Info, &format!("aimaster: {line}"));
}
