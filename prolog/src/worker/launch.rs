//! How a worker starts another program that must not outlive it: it starts itself again, and that copy binds
//! itself to the worker before it becomes the program. (Between fork and exec only unsafe code could do that.)
//! The program has the worker's user, can't gain rights either, and does not inherit its secrets.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use cluster::OWN_PROGRAM;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

/// First argument of the copy.
pub(super) const FLAG: &str = "--become";

/// A command that becomes `program`; the program is killed when the calling thread ends.
pub(super) fn command(program: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(OWN_PROGRAM);
    command.arg(FLAG).arg(std::process::id().to_string()).arg(program).args(arguments);
    command
}

/// Becomes the program that the arguments after [`FLAG`] name: the worker's pid, the program, its arguments.
pub(super) fn launch(mut arguments: impl Iterator<Item = std::ffi::OsString>) -> ExitCode {
    let parent = arguments.next().and_then(|pid| pid.to_str()?.parse::<i32>().ok());
    let Some(program) = arguments.next() else { return ExitCode::from(2) };
    if let Err(errno) = set_parent_process_death_signal(Some(Signal::KILL)) {
        eprintln!("PR_SET_PDEATHSIG: {errno}");
        return ExitCode::FAILURE;
    }
    // A worker that died before the line above sends no signal any more.
    if getppid().map(|pid| pid.as_raw_nonzero().get()) != parent {
        return ExitCode::FAILURE;
    }
    let error = Command::new(&program).args(arguments).exec();
    eprintln!("{} can't be run: {error}", Path::new(&program).display());
    ExitCode::from(127)
}
