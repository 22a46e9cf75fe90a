//! A call that may never return, on a thread of its own: whoever waits for it does so for a limited time.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::error::NcclError;

/// Stack of such a thread: what C programs' main threads have, and NCCL was written for.
const STACK_BYTES: usize = 8 << 20;

/// Makes the call and waits for it at most `limit`. A call that takes longer keeps its thread; nobody waits for that
/// one any more, and it ends with the process.
pub(super) fn bounded<T: Send + 'static>(
    operation: &'static str,
    limit: Duration,
    call: impl FnOnce() -> T + Send + 'static,
) -> Result<T, NcclError> {
    let (done, result) = mpsc::sync_channel(1);
    let thread = thread::Builder::new().name("nccl call".to_owned()).stack_size(STACK_BYTES);
    let started = thread.spawn(move || {
        // Nobody listens any more once the limit has passed.
        _ = done.send(call());
    });
    started.map_err(|source| NcclError::Thread { operation, source })?;
    result.recv_timeout(limit).map_err(|_| NcclError::Stuck { operation, limit })
}
