//! The `local` and `allocator` contexts: srun, sbatch and salloc, as the user. Everything that was asked for
//! is resolved here, before anything is queued: a wrong request ends the program with all its mistakes shown.
//! The rules themselves are in `diag::request`.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use diag::policy::Policy;
use diag::request::Request;
use diag::request::document::MAX_DOCUMENT_BYTES;
use diag::request::submission::{DocumentSource, Flag, Given, Inputs, resolve};
use slurm_spank::{Context, SpankHandle};

use crate::arguments::Arguments;
use crate::boundary::{error, info};
use crate::options::{self, set_environment};
use crate::{files, policy, step};

/// Name of the request in the job control environment. Slurm puts `SPANK_` before it in the prolog.
const REQUEST: &str = "AIMASTER_REQUEST";

/// Names under which an outer job's request may stand in this process's environment.
const INHERITED: [&str; 2] = ["SLURM_SPANK_AIMASTER_REQUEST", "SPANK_AIMASTER_REQUEST"];

/// Said to a step that carries flags.
const STEP_NOTICE: &str = "this step is part of a job that has already started: the checks belong to the job, \
    so the flags of this srun change nothing; give them to the sbatch, salloc or srun that asks for the nodes";

/// Exit code of srun, sbatch and salloc when the request is wrong.
const EXIT_WRONG: i32 = 1;

/// Whether the options were taken for those of a new job. Not asked again later: srun fills its environment
/// in once it knows the job.
static IS_NEW_JOB: AtomicBool = AtomicBool::new(false);

/// All options have been seen.
pub fn post_opt(spank: &SpankHandle, arguments: &Arguments, is_step: bool) {
    let flags = options::seen();
    IS_NEW_JOB.store(!is_step, Ordering::Relaxed);
    if is_step {
        if flags.iter().any(|flag| *flag != Flag::Absent) {
            info(STEP_NOTICE);
        }
        return;
    }
    // An outer job's request, or a made-up one, must not be taken for this job's.
    for name in INHERITED {
        set_environment(name, None);
    }
    let mut inputs = inputs(&flags);
    if inputs == Inputs::default() {
        return;
    }
    if let DocumentSource::File(path) = inputs.document_source() {
        inputs.document =
            Some(files::read(Path::new(path), MAX_DOCUMENT_BYTES + 1).map_err(|cause| cause.to_string()));
    }
    match resolve(&inputs, site_policy(&arguments.policy).as_ref()) {
        Ok(resolved) => {
            resolved.notices.iter().for_each(|notice| info(notice));
            send(spank, &resolved.request);
        }
        Err(mistakes) => {
            mistakes.iter().for_each(|mistake| error(&mistake.to_string()));
            refuse();
        }
    }
}

/// srun has its allocation, and says now what it runs: whether it joined a job by `--jobid` can be told.
pub fn allocation_is_there(spank: &SpankHandle) {
    if !IS_NEW_JOB.load(Ordering::Relaxed) || options::seen().iter().all(|flag| *flag == Flag::Absent) {
        return;
    }
    let (Ok(program), Ok(command_line)) = (spank.job_argv_os(), std::fs::read("/proc/self/cmdline")) else {
        return;
    };
    if step::joins_by_option(&command_line, &program) {
        info(STEP_NOTICE);
    }
}

fn inputs(flags: &[Flag; options::COUNT]) -> Inputs {
    let given = |index: usize| Given {
        flag: flags[index].clone(),
        twin: std::env::var_os(options::TWINS[index]).as_deref().map(lossy),
    };
    Inputs {
        sanity_check: given(options::SANITY_CHECK),
        sanity_fail_action: given(options::SANITY_FAIL_ACTION),
        sanity_timeout: given(options::SANITY_TIMEOUT),
        runtime_check: given(options::RUNTIME_CHECK),
        runtime_fail_action: given(options::RUNTIME_FAIL_ACTION),
        aimaster: given(options::AIMASTER),
        document: None,
    }
}

fn lossy(text: &OsStr) -> String {
    text.to_string_lossy().into_owned()
}

/// The policy, where this machine has one. A broken one is not the user's mistake, and the node's copy decides.
fn site_policy(path: &Path) -> Option<Policy> {
    policy::load(path).unwrap_or_else(|broken| {
        info(&format!("warning: {broken}: the request is not checked against it here, the nodes decide"));
        None
    })
}

/// Puts the request where the prolog finds it.
fn send(spank: &SpankHandle, request: &Request) {
    if request.is_silent() {
        return;
    }
    let text = match request.encode() {
        Ok(text) => text,
        Err(cause) => {
            error(&format!("the request can't be sent: {cause}"));
            return refuse();
        }
    };
    if let Err(cause) = spank.job_control_setenv(REQUEST, &text, true) {
        error(&format!("the request can't be handed to Slurm: {cause}; nothing is queued"));
        return refuse();
    }
    // For sbatch and salloc Slurm itself does this; steps see by it that their job was to be checked.
    if matches!(spank.context(), Ok(Context::Local)) {
        set_environment(INHERITED[0], Some(&text));
    }
}

/// Ends srun, sbatch or salloc. An error code would not do: under an `optional` line Slurm ignores it.
fn refuse() {
    std::process::exit(EXIT_WRONG);
}
