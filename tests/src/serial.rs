//! One lock for the whole machine: tests that measure it run one at a time, across threads and
//! across test programs.

use std::fs::{File, OpenOptions};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, flock};

use crate::wait;

const LOCK_FILE: &str = "/var/tmp/aimaster-tests.lock";

/// Longer than everything that may run before: the suites together take minutes.
const PATIENCE: Duration = Duration::from_secs(30 * 60);

/// Held while a test measures the machine.
#[derive(Debug)]
pub struct Serial {
    _file: File,
}

/// Waits until no other test holds the machine.
///
/// # Errors
/// Not root, the lock file can't be made, or the wait took longer than half an hour.
pub fn serial() -> Result<Serial> {
    need_root()?;
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(LOCK_FILE)
        .with_context(|| format!("cannot open {LOCK_FILE}"))?;
    wait::until(PATIENCE, format!("waiting for {LOCK_FILE}"), || {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(())),
            Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot lock {LOCK_FILE}")),
        }
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
