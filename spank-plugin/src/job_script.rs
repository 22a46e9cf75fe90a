//! The `job_script` context: `slurmstepd spank prolog` and `epilog`, root, on the node. It starts the helper
//! with a clean environment and a deadline, and says in slurmd's log when that did not work. It never fails:
//! an error would drain the node and hold the job. What becomes of a job whose helper failed is decided when
//! its tasks start, in [`crate::remote`].

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use diag::request::canonical::MAX_ENCODED_BYTES;
use slurm_spank::SpankHandle;

use crate::arguments::Arguments;
use crate::boundary::{error, info};
use crate::files;
use crate::helper::{self, End, Limits};

/// The request as the prolog sees it: what the submission set, with Slurm's prefix.
const REQUEST_VARIABLE: &str = "SPANK_AIMASTER_REQUEST";

/// The release of Slurm that loaded this plugin, as `0xMMmmpp`.
const RELEASE_VARIABLE: &str = "AIMASTER_SLURM_RELEASE";

/// Most lines of a helper's standard error that go to slurmd's log.
const MAX_ERROR_LINES: usize = 20;

/// How often the epilog's helper is started where it does not come to its own end: nobody else removes what a job left
/// on this node, and whatever ended the first one may be over.
const EPILOG_STARTS: u32 = 2;

/// Runs `aimaster-prolog`.
pub fn prolog(spank: &SpankHandle, arguments: &Arguments) {
    let after = "the job goes on and policy's on_error decides whether it starts";
    start(spank, arguments, "aimaster-prolog", (Limits::PROLOG, 1), after);
}

/// Runs `aimaster-epilog`.
pub fn epilog(spank: &SpankHandle, arguments: &Arguments) {
    let after =
        "the job's run folder may stay until a later job ends on this node, nothing else depends on it";
    start(spank, arguments, "aimaster-epilog", (Limits::EPILOG, EPILOG_STARTS), after);
}

/// `starts`: how often, at most. `after`: what comes of it if the helper fails.
fn start(
    spank: &SpankHandle,
    arguments: &Arguments,
    name: &str,
    (limits, starts): (Limits, u32),
    after: &str,
) {
    if !arguments.starts_helpers {
        return;
    }
    let program = arguments.helpers.join(name);
    if let Some(open) = files::open_to_others(&program) {
        return error(&format!(
            "{} is not started as root, because others than root can change {}; mend its owner and mode; {after}",
            program.display(),
            open.display()
        ));
    }
    let mut command = Command::new(&program);
    command.arg("--policy").arg(&arguments.policy).env_clear().envs(environment(std::env::vars_os()));
    command.env(RELEASE_VARIABLE, release().to_string());
    // The handle's word goes over the environment's.
    let identity = [
        ("SLURM_JOB_ID", spank.job_id()),
        ("SLURM_JOB_UID", spank.job_uid()),
        ("SLURM_JOB_GID", spank.job_gid()),
    ];
    for (variable, value) in identity {
        match value {
            Ok(value) => drop(command.env(variable, value.to_string())),
            Err(cause) => info(&format!("{name}: {variable} is taken from the environment: {cause}")),
        }
    }
    for turn in 1..=starts {
        let run = helper::run(&mut command, limits);
        for line in error_lines(&run.errors) {
            info(&format!("{name}: {line}"));
        }
        let again = turn < starts && was_cut_short(&run.end);
        let after = if again { "it is started once more" } else { after };
        if let Some(line) = complaint(&program, &run.end, after) {
            error(&line);
        }
        if !again {
            return;
        }
    }
}

/// Whether something from outside ended it: a signal, or this plugin's own limit.
fn was_cut_short(end: &End) -> bool {
    match end {
        End::Exited(status) => status.signal().is_some(),
        End::Overran { .. } | End::Lost(_) => true,
        End::Left { .. } | End::NotStarted(_) => false,
    }
}

/// As the installation stamped it: the file's bytes, not the compiler's constant.
fn release() -> u32 {
    std::hint::black_box(&crate::plugin_version).to_owned()
}

/// How slurmd tells a prolog that the job's GPU is a share by gres/mps.
const MPS_VARIABLE: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";

/// What the helper gets to see of this process's environment.
fn environment(
    all: impl Iterator<Item = (OsString, OsString)>,
) -> impl Iterator<Item = (OsString, OsString)> {
    all.filter(|(name, value)| {
        let Some(name) = name.to_str() else { return false };
        match name {
            REQUEST_VARIABLE => value.len() <= MAX_ENCODED_BYTES,
            MPS_VARIABLE => true,
            _ => {
                (name.starts_with("SLURM_") && !name.starts_with("SLURM_SPANK_"))
                    || name.starts_with("SLURMD_")
            }
        }
    })
}

/// What an admin has to know about this end, what comes `after` it, and what to do.
fn complaint(program: &Path, end: &End, after: &str) -> Option<String> {
    let shown = program.display();
    match end {
        End::Exited(status) if status.success() => None,
        End::Exited(status) => Some(format!("{shown} {}: {after}; its messages are above", ended(*status))),
        // It was only slow: this node is a busy one.
        End::Left { killed: true, .. } => None,
        End::Left { pid, killed: false } => Some(format!(
            "{shown} (pid {pid}) did all it had to do but does not end; it waits inside the kernel and is left behind, the \
             job goes on with its verdict: see the kernel's log for a disk or driver in trouble, and whether the folder in \
             paths.state_dir can be read"
        )),
        End::Overran { after: waited, answered: true } => Some(format!(
            "{shown} was stopped after {}: it missed its own deadline; {after}; please report it",
            seconds(*waited)
        )),
        End::Overran { after: waited, answered: false } => Some(format!(
            "{shown} was stopped after {}: it did not say its deadline; {after}; is it of the same version as the plugin?",
            seconds(*waited)
        )),
        End::NotStarted(cause) => Some(format!(
            "{shown} can't be started: {cause}; {after}; install it there, or set helpers=DIR in plugstack.conf"
        )),
        End::Lost(cause) => Some(format!("{shown} can't be waited for: {cause}; {after}")),
    }
}

fn ended(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("was killed by signal {signal}"),
        (None, Some(code)) => format!("ended with exit code {code}"),
        (None, None) => "ended".to_owned(),
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// A helper's standard error as lines for a log.
fn error_lines(bytes: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(bytes);
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    lines.take(MAX_ERROR_LINES).map(|line| line.escape_debug().to_string()).collect()
}

/// Path of the prolog's helper, for messages.
pub fn prolog_helper(arguments: &Arguments) -> PathBuf {
    arguments.helpers.join("aimaster-prolog")
}

#[cfg(test)]
mod tests {
    use super::*;

    // A31, N09: no PATH to look programs up in, nothing of the user's.
    #[test]
    fn the_helper_sees_slurm_s_variables_and_the_request_only() {
        let all = [
            "SLURM_JOB_ID",
            "SLURMD_NODENAME",
            "SLURM_CONF",
            "SPANK_AIMASTER_REQUEST",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
            "CUDA_VISIBLE_DEVICES",
            "PATH",
            "LD_PRELOAD",
            "SPANK_LD_PRELOAD",
            "SLURM_SPANK_X",
            "SPANK__SLURM_SPANK_OPTION_aimaster_aimaster",
        ];
        let seen: Vec<OsString> =
            environment(all.iter().map(|name| (name.into(), "1".into()))).map(|(name, _)| name).collect();
        assert_eq!(seen, all[..5]);
    }

    #[test]
    fn a_request_that_is_too_long_is_not_passed_on() {
        let long = "x".repeat(MAX_ENCODED_BYTES + 1);
        assert_eq!(environment([(REQUEST_VARIABLE.into(), long.into())].into_iter()).count(), 0);
    }

    #[test]
    fn a_good_end_is_silent_and_every_other_one_says_what_to_do() {
        let program = Path::new("/x/aimaster-prolog");
        assert_eq!(complaint(program, &End::Exited(ExitStatus::from_raw(0)), ""), None);
        let crash = complaint(program, &End::Exited(ExitStatus::from_raw(11)), "").unwrap();
        assert!(crash.contains("signal 11"), "{crash}");
        let left = complaint(program, &End::Left { pid: 7, killed: false }, "on_error decides").unwrap();
        assert!(left.contains("pid 7") && left.contains("state_dir") && !left.contains("on_error"), "{left}");
        assert_eq!(complaint(program, &End::Left { pid: 7, killed: true }, ""), None);
        let missing = std::io::Error::from(std::io::ErrorKind::NotFound);
        let line = complaint(program, &End::NotStarted(missing), "").unwrap();
        assert!(line.contains("/x/aimaster-prolog") && line.contains("helpers=DIR"), "{line}");
    }

    #[test]
    fn only_a_helper_that_was_cut_short_is_started_again() {
        let end = |raw| End::Exited(ExitStatus::from_raw(raw));
        assert!(was_cut_short(&end(9)) && !was_cut_short(&end(0)) && !was_cut_short(&end(3 << 8)));
        let overran = End::Overran { after: Duration::from_secs(10), answered: false };
        let missing = End::NotStarted(std::io::Error::from(std::io::ErrorKind::NotFound));
        assert!(was_cut_short(&overran) && !was_cut_short(&missing));
    }

    #[test]
    fn foreign_output_stays_one_line_each() {
        assert_eq!(error_lines(b"a\x1b[2J\n\nb\n").len(), 2);
        assert!(error_lines(b"a\x1b[2J\n")[0].is_ascii());
        assert_eq!(error_lines("x\n".repeat(100).as_bytes()).len(), MAX_ERROR_LINES);
    }
}
