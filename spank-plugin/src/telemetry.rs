//! What a task needs so that NCCL tells the node's agent what it does: three variables, in jobs with the runtime check and
//! in no others. NCCL takes one profiler plugin only, and a user's own stays. Called in slurmstepd, as root, before the
//! change of user; see [`crate::remote`].

use diag::telemetry::{DENY_VARIABLE, PROFILER_VARIABLE, SOCKET_VARIABLE, Telemetry, is_ours};
use slurm_spank::{SpankError, SpankHandle};

use crate::boundary::{error, info};
use crate::gate_file::RunFolder;

/// What becomes of a task's environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Choice {
    /// It gets all variables.
    Ours,
    /// The user has a profiler of his own.
    Theirs,
    /// What it inherited from a job of ours goes.
    Clean,
    /// There is nothing to do.
    Nothing,
}

/// `offered`: whether this job has an agent that listens; then the variable of the profiler, and whether the other is set.
fn choice(offered: bool, profiler: Option<&str>, has_socket: bool) -> Choice {
    match (offered, profiler) {
        // Ours from outside may be of another job, or of another place.
        (true, None) => Choice::Ours,
        (true, Some(value)) if is_ours(value) => Choice::Ours,
        (true, Some(_)) => Choice::Theirs,
        (false, Some(value)) if is_ours(value) => Choice::Clean,
        (false, _) if has_socket => Choice::Clean,
        (false, _) => Choice::Nothing,
    }
}

/// Puts the variables into the environment of the step's tasks, or takes away what they inherited.
pub fn inject(spank: &SpankHandle, folder: Option<&RunFolder>) {
    let offered = folder.and_then(|folder| {
        folder.telemetry().unwrap_or_else(|cause| {
            error(&format!("NCCL of this job tells nothing to the runtime check: {cause}"));
            None
        })
    });
    let profiler = spank.getenv_lossy(PROFILER_VARIABLE).ok().flatten();
    let has_socket = spank.getenv_lossy(SOCKET_VARIABLE).is_ok_and(|value| value.is_some());
    let done = match (choice(offered.is_some(), profiler.as_deref(), has_socket), &offered) {
        (Choice::Ours, Some(offered)) => ours(spank, offered, profiler.is_some()),
        (Choice::Theirs, _) => theirs(spank, folder, &profiler.unwrap_or_default()),
        (Choice::Clean, _) => clean(spank, profiler.as_deref()),
        (Choice::Ours | Choice::Nothing, _) => Ok(()),
    };
    if let Err(cause) = done {
        error(&format!("the environment of the job's tasks can't be set for the runtime check: {cause}"));
    }
}

fn ours(spank: &SpankHandle, offered: &Telemetry, inherited: bool) -> Result<(), SpankError> {
    // Between the look and this call nobody else sets it; where it was there and ours, it is replaced.
    spank.setenv(PROFILER_VARIABLE, &offered.profiler, inherited)?;
    // Nobody but this software has a use for it.
    spank.setenv(SOCKET_VARIABLE, &offered.socket, true)?;
    // The site's list holds, whatever the user's own says.
    spank.setenv(DENY_VARIABLE, &offered.nccl_deny, true)
}

fn theirs(spank: &SpankHandle, folder: Option<&RunFolder>, value: &str) -> Result<(), SpankError> {
    info("the job has a profiler plugin of its own: NCCL tells nothing to the runtime check");
    if let Some(Err(cause)) = folder.map(|folder| folder.note_taken(value)) {
        error(&format!("the agent can't be told of the job's own profiler plugin: {cause}"));
    }
    spank.unsetenv(DENY_VARIABLE)?;
    spank.unsetenv(SOCKET_VARIABLE)
}

fn clean(spank: &SpankHandle, profiler: Option<&str>) -> Result<(), SpankError> {
    if profiler.is_some_and(is_ours) {
        spank.unsetenv(PROFILER_VARIABLE)?;
    }
    spank.unsetenv(DENY_VARIABLE)?;
    spank.unsetenv(SOCKET_VARIABLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    // O02.
    #[test]
    fn a_user_s_own_profiler_stays_and_ours_of_another_job_does_not() {
        let ours = Some("/opt/x/libnccl-profiler-aimaster.so");
        let theirs = Some("inspector");
        for (offered, profiler, has_socket, wanted) in [
            (true, None, false, Choice::Ours),
            (true, ours, true, Choice::Ours),
            (true, theirs, false, Choice::Theirs),
            (true, Some(""), false, Choice::Theirs),
            (false, None, false, Choice::Nothing),
            (false, theirs, false, Choice::Nothing),
            (false, ours, true, Choice::Clean),
            (false, ours, false, Choice::Clean),
            (false, theirs, true, Choice::Clean),
        ] {
            assert_eq!(choice(offered, profiler, has_socket), wanted, "{offered} {profiler:?} {has_socket}");
        }
    }
}
