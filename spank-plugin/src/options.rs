//! The plugin's options: their table, their registration, and the store that the callbacks fill. What a value
//! means is decided in `diag::request`, not here: a callback only collects, so that all mistakes can be shown
//! at once.

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use diag::request::submission::Flag;
use slurm_spank::spank_sys::{ESPANK_SUCCESS, spank_option, spank_option_register, spank_t};

use crate::boundary::{self, FAILURE, SUCCESS};

/// Slurm's word for whether an option takes an argument.
#[derive(Clone, Copy)]
enum HasArg {
    /// Always.
    Required = 1,
    /// It may be left out. The crate's own registration knows no such option.
    Optional = 2,
}

struct Spec {
    name: &'static CStr,
    has_arg: HasArg,
    argument: &'static CStr,
    help: &'static CStr,
}

/// How many options there are.
pub const COUNT: usize = 6;

// Indices into the table, the twins and the store.
/// `--sanity-check`.
pub const SANITY_CHECK: usize = 0;
/// `--sanity-fail-action`.
pub const SANITY_FAIL_ACTION: usize = 1;
/// `--sanity-timeout`.
pub const SANITY_TIMEOUT: usize = 2;
/// `--runtime-check`.
pub const RUNTIME_CHECK: usize = 3;
/// `--runtime-fail-action`.
pub const RUNTIME_FAIL_ACTION: usize = 4;
/// `--aimaster`.
pub const AIMASTER: usize = 5;

/// The environment twins, by index.
pub const TWINS: [&str; COUNT] = [
    "AIMASTER_SANITY_CHECK",
    "AIMASTER_SANITY_FAIL_ACTION",
    "AIMASTER_SANITY_TIMEOUT",
    "AIMASTER_RUNTIME_CHECK",
    "AIMASTER_RUNTIME_FAIL_ACTION",
    "AIMASTER_CONFIG",
];

const TABLE: [Spec; COUNT] = [
    Spec {
        name: c"sanity-check",
        has_arg: HasArg::Optional,
        argument: c"LIST",
        help: c"measure this job's own nodes before it starts; LIST is checks separated by commas, or default (the \
                same as no LIST: gemm_flops,all_reduce_1,all_reduce_2), all, or off; `aimaster explain CHECK` says what \
                one does",
    },
    Spec {
        name: c"sanity-fail-action",
        has_arg: HasArg::Required,
        argument: c"ACTION",
        help: c"when a node fails its check: retain (start anyway), drain (start, and take the node out of \
                service afterwards), fail (end the job before it starts; the default) or requeue (start it on other \
                nodes)",
    },
    Spec {
        name: c"sanity-timeout",
        has_arg: HasArg::Required,
        argument: c"MINUTES",
        help: c"longest time that the checks before the start may take, in whole minutes (default 5; it counts against \
                --time)",
    },
    Spec {
        name: c"runtime-check",
        has_arg: HasArg::Optional,
        argument: c"c4d",
        help: c"watch the job while it runs, and name what hangs, breaks or slows it down: c4d (the same as no \
                argument), or off",
    },
    Spec {
        name: c"runtime-fail-action",
        has_arg: HasArg::Required,
        argument: c"ACTION",
        help: c"what to do when the runtime check finds a fault of a node: retain (default), drain, requeue",
    },
    Spec {
        name: c"aimaster",
        has_arg: HasArg::Required,
        argument: c"FILE|JSON",
        help: c"all of the above as a JSON document with the key aimaster: a file, or the text itself",
    },
];

static STORE: Mutex<[Flag; COUNT]> = Mutex::new([const { Flag::Absent }; COUNT]);

/// What was seen so far, by index.
pub fn seen() -> [Flag; COUNT] {
    store().clone()
}

/// Gives the store's memory back.
pub fn forget_seen() {
    *store() = [const { Flag::Absent }; COUNT];
}

fn store() -> MutexGuard<'static, [Flag; COUNT]> {
    // Each entry is replaced as a whole, so what a panic leaves behind is still good.
    STORE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers every option.
pub fn register(spank: spank_t) -> c_int {
    for (index, spec) in (0..).zip(&TABLE) {
        let mut option = spank_option {
            name: spec.name.as_ptr(),
            arginfo: spec.argument.as_ptr(),
            usage: spec.help.as_ptr(),
            has_arg: spec.has_arg as c_int,
            val: index,
            cb: Some(callback),
        };
        // SAFETY: `spank` is the handle of the running hook; Slurm copies the option, whose texts are static.
        let rc = unsafe { spank_option_register(spank, ptr::from_mut(&mut option)) };
        if rc != ESPANK_SUCCESS {
            boundary::error(&format!(
                "option --{} can't be registered (error {rc})",
                spec.name.to_string_lossy()
            ));
            return FAILURE;
        }
    }
    SUCCESS
}

/// Slurm calls this for every use of an option, the last one counts.
unsafe extern "C" fn callback(index: c_int, argument: *const c_char, _remote: c_int) -> c_int {
    boundary::guarded("option callback", SUCCESS, || {
        // SAFETY: Slurm passes null or a string that ends with NUL.
        let argument = unsafe { boundary::text(argument) };
        remember(index, argument);
        SUCCESS
    })
}

fn remember(index: c_int, argument: Option<String>) {
    let mut store = store();
    if let Some(entry) = usize::try_from(index).ok().and_then(|index| store.get_mut(index)) {
        *entry = match argument.as_deref() {
            // How Slurm carries an option without an argument to a node.
            None | Some(UNSAID) => Flag::Bare,
            Some(argument) => Flag::Value(argument.to_owned()),
        };
    }
}

/// An argument that was left out, after it went through an environment variable of Slurm's.
const UNSAID: &str = "(null)";

/// Removes the options of an outer job from this process's environment. Slurm hands a job's options to
/// everything that is started inside it, where they would be taken for options of the step or of the nested
/// job. The checks belong to the job that asked for them.
pub fn forget_inherited() {
    for spec in &TABLE {
        let option = spec.name.to_string_lossy().replace('-', "_");
        for prefix in ["_SLURM_SPANK_OPTION_aimaster_", "SLURM_SPANK__SLURM_SPANK_OPTION_aimaster_"] {
            set_environment(&format!("{prefix}{option}"), None);
        }
    }
}

/// Sets or removes a variable of this process.
pub fn set_environment(name: &str, value: Option<&str>) {
    let (Ok(name), Ok(value)) = (CString::new(name), value.map(CString::new).transpose()) else {
        return; // no such name or value can be in an environment
    };
    // SAFETY: called in srun, sbatch and salloc only, from hooks that Slurm calls before it starts a thread.
    unsafe {
        match value {
            Some(value) => libc::setenv(name.as_ptr(), value.as_ptr(), 1),
            None => libc::unsetenv(name.as_ptr()),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_use_counts_and_a_bare_one_stays_bare() {
        remember(0, Some("gemm_flops".into()));
        remember(0, None);
        remember(2, Some("5".into()));
        remember(3, Some("(null)".into()));
        remember(-1, Some("x".into()));
        remember(99, Some("x".into()));
        let seen = seen();
        assert_eq!(seen[SANITY_CHECK], Flag::Bare);
        assert_eq!(seen[SANITY_TIMEOUT], Flag::Value("5".into()));
        assert_eq!(seen[RUNTIME_CHECK], Flag::Bare);
        assert_eq!(seen[AIMASTER], Flag::Absent);
    }

    #[test]
    fn names_fit_into_slurm_s_limit_and_the_twins_follow_them() {
        for (spec, twin) in TABLE.iter().zip(TWINS) {
            let name = spec.name.to_str().unwrap();
            // SPANK_OPTION_MAXLEN of spank.h.
            assert!(name.len() < 75);
            if name != "aimaster" {
                assert_eq!(twin, format!("AIMASTER_{}", name.to_uppercase().replace('-', "_")));
            }
        }
    }
}
