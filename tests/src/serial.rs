//! One lock for the whole machine, across threads and across test programs: tests that measure it run one at a time,
//! those that wait most of their time may run beside each other.

use std::fs::{File, OpenOptions};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, flock};

use crate::wait;

const LOCK_FILE: &str = "/var/tmp/aimaster-tests.lock";

/// Longer than everything that may run before: the suites together take minutes.
const PATIENCE: Duration = Duration::from_secs(30 * 60);

/// Held while a test uses the machine.
#[derive(Debug)]
pub struct Serial {
    _file: File,
}

/// Waits until no other test holds the machine, and keeps all others away.
///
/// # Errors
/// Not root, the lock file can't be made, or the wait took longer than half an hour.
pub fn serial() -> Result<Serial> {
    hold(FlockOperation::NonBlockingLockExclusive)
}

/// For a test that does not depend on how quick the machine is: waits until no other test holds it for itself.
///
/// # Errors
/// See [`serial`].
pub fn side_by_side() -> Result<Serial> {
    hold(FlockOperation::NonBlockingLockShared)
}

fn hold(how: FlockOperation) -> Result<Serial> {
    need_root()?;
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(LOCK_FILE)
        .with_context(|| format!("cannot open {LOCK_FILE}"))?;
    wait::until(PATIENCE, format!("waiting for {LOCK_FILE}"), || match flock(&file, how) {
        Ok(()) => Ok(Some(())),
        Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot lock {LOCK_FILE}")),
    })?;
    Ok(Serial { _file: file })
}

/// The clear message that every test with a cluster gives to an ordinary user.
pub(crate) fn need_root() -> Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    bail!("the test cluster needs root (namespaces, mounts, daemons): run the tests as root")
}
