//! The lock of one run on one node: one agent holds it, and whoever wants that agent to end finds it by the lock. The
//! kernel says whose the lock is, so no number in a file can be out of date and hit another process.

use std::os::fd::{AsFd, OwnedFd};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags, fcntl_lock, openat};
use rustix::io::Errno;
use rustix::process::{Flock, FlockType, Pid, Signal, fcntl_getlk, kill_process};

/// Its file in the run folder.
const FILE_NAME: &str = "c4d.lock";

/// How long an agent may take to end when it is asked to: it writes a small file and a line of a log,
/// tells the other nodes (a second at most), and may look a second time at nodes that it has just drained.
pub const TERM_WAIT: Duration = Duration::from_secs(4);

/// How long it may take when it is killed. One that hangs in the kernel is left: no node waits for it.
pub const KILL_WAIT: Duration = Duration::from_secs(1);

/// How often its end is looked for.
const POLL: Duration = Duration::from_millis(10);

/// Held by the agent until its process ends.
#[derive(Debug)]
pub struct Lock {
    _file: OwnedFd,
}

/// Why the lock was not taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another agent has it.
    #[error("another agent watches this run of the job already")]
    Taken,
    /// The system refused.
    #[error("{FILE_NAME} can't be made in the run folder: {0}")]
    Refused(#[source] std::io::Error),
}

/// What became of an agent that was to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    /// There was none.
    None,
    /// It ended when it was asked to.
    Ended,
    /// It had to be killed.
    Killed,
    /// It is still there.
    Left(Pid),
}

/// Takes the lock of a run.
///
/// # Errors
/// Another agent has it, or the file can't be made.
pub fn take(folder: impl AsFd) -> Result<Lock, LockError> {
    let refused = |errno: Errno| LockError::Refused(errno.into());
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = openat(folder, FILE_NAME, flags, Mode::RUSR | Mode::WUSR).map_err(refused)?;
    match fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Lock { _file: file }),
        Err(Errno::ACCESS | Errno::AGAIN) => Err(LockError::Taken),
        Err(errno) => Err(refused(errno)),
    }
}

/// Whether an agent watches this run.
///
/// # Errors
/// The lock can't be looked at: whether there is an agent is not known then.
pub fn is_held(folder: impl AsFd) -> std::io::Result<bool> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    match openat(folder, FILE_NAME, flags, Mode::empty()) {
        Ok(file) => Ok(fcntl_getlk(&file, &Flock::from(FlockType::WriteLock))?.is_some()),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Ends the agent of a run: SIGTERM, a while, SIGKILL, a moment. It waits for nothing else and not longer.
///
/// # Errors
/// The lock can't be looked at; whether there is an agent is not known then.
pub fn stop(folder: impl AsFd) -> std::io::Result<Stopped> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = match openat(folder, FILE_NAME, flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(Stopped::None),
        Err(errno) => return Err(errno.into()),
    };
    let Some(first) = holder(&file)? else { return Ok(Stopped::None) };
    let mut left = first;
    for (signal, wait, end) in
        [(Signal::TERM, TERM_WAIT, Stopped::Ended), (Signal::KILL, KILL_WAIT, Stopped::Killed)]
    {
        let until = Instant::now() + wait;
        // It holds the lock now, so the number is its own. One that is gone meanwhile needs no signal.
        _ = kill_process(left, signal);
        loop {
            match holder(&file)? {
                None => return Ok(end),
                Some(pid) => left = pid,
            }
            if Instant::now() >= until {
                break;
            }
            sleep(POLL);
        }
    }
    Ok(Stopped::Left(left))
}

fn holder(file: &OwnedFd) -> std::io::Result<Option<Pid>> {
    let held = fcntl_getlk(file, &Flock::from(FlockType::WriteLock))?;
    Ok(held.and_then(|lock| lock.pid))
}
