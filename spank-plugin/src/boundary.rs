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

/// Slurm's side of the functions that the unit tests reach; a test program is not loaded by Slurm.
#[cfg(test)]
mod host {
    use std::ffi::{c_char, c_int};
    use std::sync::Mutex;

    use slurm_spank::spank_sys::{spank_err_t, spank_option, spank_t};

    /// Name and `has_arg` of each option that was registered.
    pub static REGISTERED: Mutex<Vec<(String, c_int)>> = Mutex::new(Vec::new());

    macro_rules! silent {
        ($($name:ident)*) => {
            $(#[unsafe(no_mangle)] extern "C" fn $name(_: *const c_char, _: *const c_char) {})*
        };
    }
    silent!(slurm_error slurm_info slurm_verbose slurm_debug slurm_debug2 slurm_debug3);

    #[unsafe(no_mangle)]
    extern "C" fn spank_option_register(_: spank_t, option: *mut spank_option) -> spank_err_t {
        // SAFETY: called by the code under test with an option of its own.
        let (name, has_arg) = unsafe { (super::text((*option).name), (*option).has_arg) };
        REGISTERED.lock().unwrap().push((name.unwrap(), has_arg));
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct PanicsWhenDropped;

    impl Drop for PanicsWhenDropped {
        fn drop(&mut self) {
            panic!("again");
        }
    }

    // A13: whatever happens inside, Slurm gets one of its two answers.
    #[test]
    fn no_panic_gets_through_and_the_next_hook_works() {
        assert_eq!(guarded("hook", FAILURE, || panic!("text")), FAILURE);
        assert_eq!(guarded("hook", SUCCESS, || std::panic::panic_any(PanicsWhenDropped)), SUCCESS);
        assert_eq!(guarded("hook", FAILURE, || 7), 7);
    }

    #[test]
    fn an_option_may_be_bare_only_where_that_means_something() {
        assert_eq!(crate::options::register(std::ptr::null_mut()), SUCCESS);
        let registered = host::REGISTERED.lock().unwrap();
        let bare: Vec<&str> =
            registered.iter().filter(|(_, has_arg)| *has_arg == 2).map(|(name, _)| name.as_str()).collect();
        assert_eq!(bare, ["sanity-check", "runtime-check"]);
        assert!(
            registered.len() == crate::options::COUNT && registered.iter().all(|(_, has_arg)| *has_arg > 0)
        );
    }

    // B13, B14: in the order of Slurm's header, which from 22.05 to 26.05 has not changed.
    #[test]
    fn items_and_contexts_have_the_numbers_of_slurm_s_header() {
        use slurm_spank::Context::{Allocator, JobScript, Local, Remote, Slurmd};
        use slurm_spank::spank_sys as header;
        let items = [
            (0, header::spank_item_S_JOB_UID),
            (1, header::spank_item_S_JOB_GID),
            (2, header::spank_item_S_JOB_ID),
            (3, header::spank_item_S_JOB_STEPID),
            (9, header::spank_item_S_JOB_ARGV),
            (11, header::spank_item_S_TASK_ID),
            (12, header::spank_item_S_TASK_GLOBAL_ID),
        ];
        assert!(items.iter().all(|(number, item)| number == item), "{items:?}");
        let contexts = [Local, Remote, Allocator, Slurmd, JobScript].map(|context| context as u32);
        assert_eq!(contexts, [1, 2, 3, 4, 5]);
    }

    #[test]
    fn texts_of_c_are_taken_as_they_are() {
        // SAFETY: null, and strings that end with NUL.
        unsafe {
            assert_eq!(text(std::ptr::null()), None);
            assert_eq!(text(c"a".as_ptr()).as_deref(), Some("a"));
            assert_eq!(text(c"\xff".as_ptr()).as_deref(), Some("\u{fffd}"));
        }
    }
}
