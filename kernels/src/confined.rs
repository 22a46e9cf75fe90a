//! A process that loads a GPU library: never root, never with rights that it could gain, never longer than who started
//! it. Which user it is and the first acts of its life are here; what it does is its program's.

mod user;

use rustix::fs::Mode;
use rustix::process::{
    DumpableBehavior, Resource, Rlimit, Signal, getppid, getrlimit, set_dumpable_behavior,
    set_parent_process_death_signal, setrlimit, umask,
};
use rustix::thread::set_no_new_privs;

pub use user::{UserError, look_up, resolve};

/// Why such a process does not start.
#[derive(Debug, thiserror::Error)]
pub enum ConfineError {
    /// A kernel call failed.
    #[error("{call}: {errno}")]
    Call {
        /// Which.
        call: &'static str,
        /// What the kernel said.
        #[source]
        errno: rustix::io::Errno,
    },
    /// Who started it is gone already.
    #[error("the parent is not the coordinator {parent} any more")]
    Orphan {
        /// The pid that the parent should have.
        parent: u32,
    },
}

/// Confines this process. `parent` is the pid of who started it.
///
/// # Errors
/// The first step that fails; the process must end then.
pub fn confine(parent: u32) -> Result<(), ConfineError> {
    let failed = |call| move |errno| ConfineError::Call { call, errno };
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(failed("PR_SET_PDEATHSIG"))?;
    // A parent that died before the line above sends no signal any more: its pid tells. The socket, which
    // ends with it, is the second lock.
    let now = getppid().map(|pid| pid.as_raw_nonzero().get().unsigned_abs());
    if now != Some(parent) {
        return Err(ConfineError::Orphan { parent });
    }
    set_no_new_privs(true).map_err(failed("PR_SET_NO_NEW_PRIVS"))?;
    // Other processes of the same user, often `nobody`, must not read the data key out of this one's memory.
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(failed("PR_SET_DUMPABLE"))?;
    // A head node is connected to by every other one at once; the usual soft limit is 1024.
    let most = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most }).map_err(failed("RLIMIT_NOFILE"))?;
    umask(Mode::RWXG | Mode::RWXO);
    std::env::set_current_dir("/")
        .map_err(|error| rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO))
        .map_err(failed("chdir /"))
}
