//! Until when something may wait, and how it waits.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Until when something may wait.
#[derive(Debug, Clone, Copy)]
pub struct Until<'c> {
    /// The end, whatever happens.
    pub deadline: Instant,
    /// Set by somebody else who does not want the result any more.
    pub cancel: &'c AtomicBool,
}

/// Why waiting is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Over {
    Deadline,
    Cancelled,
}

/// What a limit is cut to that no clock can count to; no check lasts a day.
const LONGEST: Duration = Duration::from_hours(24);

impl<'c> Until<'c> {
    /// `limit` from now.
    #[must_use]
    pub fn after(limit: Duration, cancel: &'c AtomicBool) -> Self {
        let now = Instant::now();
        Self { deadline: now.checked_add(limit).unwrap_or(now + LONGEST), cancel }
    }

    /// The time that is left.
    #[must_use]
    pub fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    pub(super) fn over(&self) -> Option<Over> {
        if self.cancel.load(Ordering::Relaxed) {
            Some(Over::Cancelled)
        } else {
            self.left().is_zero().then_some(Over::Deadline)
        }
    }
}

/// How long to look again at once: a collective is enqueued within some 50 µs, and sleeping would be measured with it.
const EAGER: Duration = Duration::from_micros(300);
/// First and longest sleep after that; an init takes half a second, and nobody notices 2 ms of it.
const FIRST_NAP: Duration = Duration::from_micros(50);
const LONGEST_NAP: Duration = Duration::from_millis(2);

/// Waits between two looks, longer and longer.
#[derive(Debug)]
pub(super) struct Pause {
    began: Instant,
    nap: Duration,
}

impl Pause {
    pub(super) fn start() -> Self {
        Self { began: Instant::now(), nap: FIRST_NAP }
    }

    /// How long it has been.
    pub(super) fn waited(&self) -> Duration {
        self.began.elapsed()
    }

    pub(super) fn wait(&mut self, until: Until<'_>) {
        if self.began.elapsed() < EAGER {
            thread::yield_now();
            return;
        }
        thread::sleep(self.nap.min(until.left()));
        self.nap = (self.nap * 2).min(LONGEST_NAP);
    }
}
