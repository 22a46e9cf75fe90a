//! `spank_aimaster.so`: the SPANK plugin. One file a SPANK context: [`submission`] (srun, sbatch, salloc),
//! [`job_script`] (prolog and epilog on a node), [`remote`] (slurmstepd, the launch gate). This file is the
//! table of what Slurm finds in the library.
//!
//! It is thin: no thread, no check, no RPC; it parses, calls `spank_*` and spawns helpers. Nothing that goes
//! wrong here may end srun, slurmd or slurmstepd: every entry runs inside [`boundary`].
//!
//! Of the crate `slurm-spank` this uses the bindings, the handle's typed getters and the log functions. Its
//! macro is not used: after a caught panic its mutex stays poisoned and every later hook fails, its option
//! callback is not guarded, and it can't register an option whose argument may be left out.

mod arguments;
mod boundary;
mod files;
mod gate_file;
mod helper;
mod job_script;
mod options;
mod policy;
mod remote;
mod step;
mod submission;
mod telemetry;

use std::ffi::{c_char, c_int};

use slurm_spank::spank_sys::spank_t;
use slurm_spank::{Context, SpankHandle};

use crate::boundary::{FAILURE, SUCCESS};

/// Slurm's name of this plugin; part of the names of the option variables, see [`options`].
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static plugin_name: [u8; 9] = *b"aimaster\0";

/// Slurm's type of plugin.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static plugin_type: [u8; 6] = *b"spank\0";

/// Slurm release that this library is for, as `0xMMmmpp`. Slurm loads a plugin of its own major and minor
/// release only; the installation stamps these four bytes, since nothing else in the library depends on it.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static plugin_version: u32 = slurm_spank::SLURM_VERSION_NUMBER;

/// `ESPANK_JOB_FAILURE` of Slurm 25.05 and later (an `int`, looked up by name): under a `required` line a
/// failed `slurm_spank_init` fails the job. Without it the node would be drained. Earlier releases ignore it.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static slurm_spank_init_failure_mode: c_int = 3012;

/// Exports a hook: guarded, and with its plugstack arguments parsed.
macro_rules! hook {
    ($(#[$doc:meta])* $name:ident, $on_panic:expr, $body:path) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// Called by Slurm only: `spank` is its handle and `argv` holds `argc` strings that end with NUL.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(spank: spank_t, argc: c_int, argv: *const *const c_char) -> c_int {
            // SAFETY: the arguments are Slurm's own, see above.
            unsafe { boundary::hook(stringify!($name), spank, argc, argv, $on_panic, $body) }
        }
    };
}

hook!(
    /// Options are registered here, in every context.
    slurm_spank_init, FAILURE, init
);
hook!(
    /// All options have been seen: the request is resolved, or the launch gate is read.
    slurm_spank_init_post_opt, FAILURE, init_post_opt
);
hook!(
    /// srun has its allocation.
    slurm_spank_local_user_init, SUCCESS, local_user_init
);
hook!(
    /// A task is about to start, as the user.
    slurm_spank_task_init, SUCCESS, task_init
);
hook!(
    /// The node's prolog. Never an error: Slurm would drain the node.
    slurm_spank_job_prolog, SUCCESS, job_prolog
);
hook!(
    /// The node's epilog. Never an error, as above.
    slurm_spank_job_epilog, SUCCESS, job_epilog
);
hook!(
    /// Slurm takes the plugin out of the process's memory next: what statics hold would be lost.
    slurm_spank_exit, SUCCESS, exit
);

fn init(spank: &SpankHandle, raw: spank_t) -> c_int {
    let context = spank.context();
    if matches!(context, Ok(Context::Local | Context::Allocator)) {
        options::forget_inherited();
    }
    if matches!(context, Ok(Context::Slurmd | Context::JobScript)) {
        arguments::log_mistakes(&arguments::of(spank));
    }
    options::register(raw)
}

fn init_post_opt(spank: &SpankHandle, _: spank_t) -> c_int {
    match spank.context() {
        Ok(Context::Local) => submission::post_opt(spank, &arguments::of(spank), step::is_step()),
        Ok(Context::Allocator) => submission::post_opt(spank, &arguments::of(spank), false),
        Ok(Context::Remote) => remote::post_opt(spank, &arguments::of(spank)),
        Ok(Context::Slurmd | Context::JobScript) | Err(_) => {}
    }
    SUCCESS
}

fn local_user_init(spank: &SpankHandle, _: spank_t) -> c_int {
    submission::allocation_is_there(spank);
    SUCCESS
}

fn task_init(spank: &SpankHandle, _: spank_t) -> c_int {
    remote::task_init(spank);
    SUCCESS
}

fn job_prolog(spank: &SpankHandle, _: spank_t) -> c_int {
    let arguments = arguments::of(spank);
    arguments::log_mistakes(&arguments);
    job_script::prolog(spank, &arguments);
    SUCCESS
}

fn job_epilog(spank: &SpankHandle, _: spank_t) -> c_int {
    job_script::epilog(spank, &arguments::of(spank));
    SUCCESS
}

fn exit(_: &SpankHandle, _: spank_t) -> c_int {
    options::forget_seen();
    remote::forget_decision();
    SUCCESS
}
