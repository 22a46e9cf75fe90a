//! A process that loads a GPU library: never root, never with rights that it could gain, never longer than who started
//! it. Which user it is and the first acts of its life are here; what it does is its program's.

mod user;

use rustix::fs::Mode;
use rustix::process::{
    DumpableBehavior, Resource, Rlimit, Signal, geteuid, getppid, getrlimit, getuid, set_dumpable_behavior,
    set_parent_process_death_signal, setrlimit, umask,
};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_no_new_privs};

pub use user::{UserError, look_up, resolve};

/// The first descriptor after standard input, output and error.
const FIRST_DESCRIPTOR: i32 = 3;

/// Most descriptors that are closed: more than slurmd, a container or a shell ever leaves open.
const MOST_DESCRIPTORS: usize = 4096;

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
    /// It would have all rights.
    #[error("it was started as root, and must run without rights")]
    Root,
    /// Who started it is gone already.
    #[error("the parent is not the coordinator {parent} any more")]
    Orphan {
        /// The pid that the parent should have.
        parent: u32,
    },
}

/// Closes everything but the standard descriptors: what whoever started this process left open is none of its business.
/// To be called first in `main`, before anything is opened.
pub fn close_inherited() {
    let Ok(open) = std::fs::read_dir("/proc/self/fd") else { return };
    let numbers: Vec<i32> = open
        .take(MOST_DESCRIPTORS)
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|number| *number >= FIRST_DESCRIPTOR)
        .collect();
    for number in numbers {
        // That of the list itself is closed by now.
        if std::fs::symlink_metadata(format!("/proc/self/fd/{number}")).is_ok() {
            // SAFETY: it is open, and nothing in this process owns it: nothing was opened yet.
            unsafe { rustix::io::close(number) };
        }
    }
}

/// Confines this process, first in its `main`. `parent` is the pid of who started it.
///
/// # Errors
/// The first step that fails; the process must end then.
pub fn confine(parent: u32) -> Result<(), ConfineError> {
    let failed = |call| move |errno| ConfineError::Call { call, errno };
    close_inherited();
    if geteuid().is_root() || getuid().is_root() {
        return Err(ConfineError::Root);
    }
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(failed("PR_SET_PDEATHSIG"))?;
    // A parent that died before the line above sends no signal any more: its pid tells. The socket, which
    // ends with it, is the second lock.
    let now = getppid().map(|pid| pid.as_raw_nonzero().get().unsigned_abs());
    if now != Some(parent) {
        return Err(ConfineError::Orphan { parent });
    }
    set_no_new_privs(true).map_err(failed("PR_SET_NO_NEW_PRIVS"))?;
    // A change of user leaves what a container or unit made inheritable; with the line above nothing comes back.
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, none).map_err(failed("capset"))?;
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
