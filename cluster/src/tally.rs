//! How many hellos a listener took and refused.

use std::sync::atomic::{AtomicU64, Ordering};

/// How many hellos were refused and connections ended, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Handshakes that proved a node of this job.
    pub accepted: u64,
    /// Hellos that were refused: forged, replayed, garbage, another job's, late.
    pub refused: u64,
    /// Connections that made room for others before they proved anything.
    pub evicted: u64,
}

/// The counters' home, shared by the tasks.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) accepted: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) evicted: AtomicU64,
}

impl Tally {
    pub(crate) fn read(&self) -> Counters {
        Counters {
            accepted: self.accepted.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            evicted: self.evicted.load(Ordering::Relaxed),
        }
    }
}
