//! Waiting with a deadline: the one loop that polls. It is not for processes (`process` waits on a
//! pidfd) and it never waits without an end.

use std::fmt::Display;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// How often a condition is looked at: short against what Slurm does, long against one `scontrol`.
const POLL: Duration = Duration::from_millis(20);

/// Polls `probe` until it gives a value, fails, or `timeout` is over.
pub fn until<T>(
    timeout: Duration,
    what: impl Display,
    mut probe: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let start = Instant::now();
    loop {
        if let Some(value) = probe()? {
            return Ok(value);
        }
        if start.elapsed() >= timeout {
            bail!("{what}: not within {timeout:?}");
        }
        thread::sleep(POLL);
    }
}
