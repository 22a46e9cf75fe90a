//! The writer's side of the ring: atomic words in the shared mapping. Any thread may call anything here at any time; nothing
//! waits for another thread.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU64, fence};

use crate::ring::{
    BUSY, CAPACITY, COMMUNICATOR_BYTES, COMMUNICATORS, COMMUNICATORS_AT, Counter, FILE_BYTES, Function,
    Header, LIVE_STEPS, LIVE_STEPS_AT, ORDER_AT, RECORD_BYTES, RECORD_WORDS, RECORDS_AT, Record, word,
};

/// A mapped ring.
#[derive(Clone, Copy)]
pub(super) struct Ring(*const AtomicU64);

impl Ring {
    /// # Safety
    /// `base` is a mapping of [`FILE_BYTES`] that is never taken away, and that is written by atomic words only.
    pub(super) const unsafe fn of(base: *mut u8) -> Self {
        Self(base as *const AtomicU64)
    }

    /// The word at a place; places come from this file's constants and from indices that are masked or checked here.
    #[inline]
    fn word(self, byte: u64, index: usize) -> &'static AtomicU64 {
        let place = byte as usize / 8 + index;
        debug_assert!(place < FILE_BYTES as usize / 8);
        // SAFETY: within the mapping, which lives as long as the process.
        unsafe { &*self.0.add(place) }
    }

    /// Fills a new file's header.
    pub(super) fn begin(self, header: &Header) {
        for (index, value) in header.encode().into_iter().enumerate() {
            self.word(0, index).store(value, Relaxed);
        }
        fence(Release);
    }

    pub(super) fn set_mask(self, mask: u64) {
        self.word(0, word::MASK).store(mask, Relaxed);
    }

    /// The agent's order, as it stands in the file.
    #[inline]
    pub(super) fn order(self) -> u64 {
        self.word(ORDER_AT, 0).load(Relaxed)
    }

    pub(super) fn count(self, counter: Counter) {
        self.word(0, word::COUNTERS + counter as usize).fetch_add(1, Relaxed);
    }

    /// Writes a record over the oldest one.
    #[inline]
    pub(super) fn record(self, record: &Record) {
        let index = self.word(0, word::WRITTEN).fetch_add(1, AcqRel);
        let at = RECORDS_AT + (index & (CAPACITY - 1)) * RECORD_BYTES as u64;
        let stamp = self.word(at, 0);
        let seen = stamp.load(Relaxed);
        // A writer that slept through a whole round holds the place, or comes back after it: its record is lost, not this place's.
        if seen > index || stamp.compare_exchange(seen, BUSY | (index + 1), AcqRel, Relaxed).is_err() {
            return self.count(Counter::RecordBusy);
        }
        fence(Release);
        let words = record.encode();
        for (place, value) in words.into_iter().enumerate().skip(1) {
            self.word(at, place).store(value, Relaxed);
        }
        stamp.store(index + 1, Release);
    }

    /// A word of a communicator's slot.
    #[inline]
    pub(super) fn communicator(self, slot: u32, index: usize) -> &'static AtomicU64 {
        let slot = u64::from(slot) & (COMMUNICATORS as u64 - 1);
        self.word(COMMUNICATORS_AT + slot * COMMUNICATOR_BYTES as u64, index & (COMMUNICATOR_BYTES / 8 - 1))
    }

    /// How far a communicator has come with a function.
    #[inline]
    pub(super) fn progress(self, slot: u32, function: Function) -> Cell {
        Cell { ring: self, slot, first: word::PROGRESS + function as usize * word::PROGRESS_WORDS }
    }

    /// A word of a transfer in flight.
    #[inline]
    pub(super) fn live_step(self, slot: u32, index: usize) -> &'static AtomicU64 {
        let slot = u64::from(slot) & (LIVE_STEPS as u64 - 1);
        self.word(LIVE_STEPS_AT + slot * RECORD_BYTES as u64, index & (RECORD_WORDS - 1))
    }
}

/// Progress of one function of one communicator; the fields are those of [`crate::ring::Progress`].
#[derive(Clone, Copy)]
pub(super) struct Cell {
    ring: Ring,
    slot: u32,
    first: usize,
}

/// What of an operation has come about, by the word that holds its number.
#[derive(Clone, Copy)]
pub(super) enum Reached {
    Enqueued = 0,
    Started = 1,
    Finished = 2,
}

impl Cell {
    #[inline]
    fn word(self, index: usize) -> &'static AtomicU64 {
        self.ring.communicator(self.slot, self.first + index)
    }

    /// The operation has come so far; a later one that has already stays the last.
    #[inline]
    pub(super) fn reached(self, what: Reached, sequence: u64, now_ns: u64) {
        let last = self.word(what as usize);
        if last.load(Relaxed) <= sequence && last.fetch_max(sequence + 1, Relaxed) <= sequence {
            self.word(3 + what as usize).store(now_ns, Relaxed);
        }
    }

    /// The operation began on the GPU. Those before it have ended, told or not, unless one is known to be open.
    #[inline]
    pub(super) fn started(self, sequence: u64, now_ns: u64) {
        let before = self.word(Reached::Started as usize).load(Relaxed);
        self.reached(Reached::Started, sequence, now_ns);
        let finished = self.word(Reached::Finished as usize);
        if before < sequence && finished.load(Relaxed) == before {
            finished.fetch_max(sequence, Relaxed);
        }
    }

    /// Counts a call of a function that NCCL does not number.
    pub(super) fn count_one(self, now_ns: u64) -> u64 {
        let sequence = self.word(Reached::Enqueued as usize).fetch_add(1, Relaxed);
        self.word(3).store(now_ns, Relaxed);
        sequence
    }

    /// Whether an operation after this one has finished.
    pub(super) fn has_passed(self, sequence: u64) -> bool {
        self.word(Reached::Finished as usize).load(Relaxed) > sequence + 1
    }

    pub(super) fn set_bytes(self, bytes: u64) {
        self.word(6).store(bytes, Relaxed);
    }

    /// One more operation has channels that run.
    #[inline]
    pub(super) fn runs(self) {
        self.word(7).fetch_add(1, Relaxed);
    }

    /// One operation's channels run no more. Never below zero, whatever the user's process did to the word.
    #[inline]
    pub(super) fn rests(self) {
        let running = self.word(7);
        let _ = running.fetch_update(Relaxed, Relaxed, |now| Some(now.saturating_sub(1)));
    }

    /// A new communicator's.
    pub(super) fn clear(self) {
        for index in 0..word::PROGRESS_WORDS {
            self.word(index).store(0, Relaxed);
        }
    }
}

/// Reads a word that says who owns a slot, before the slot's other words.
#[inline]
pub(super) fn owner(word: &AtomicU64) -> u64 {
    word.load(Acquire)
}
