//! The agent's side. It takes bytes from a [`Source`], which in earnest is the memfd that a rank handed over, and believes none
//! of them.
//!
//! How a record is known to be whole. A writer takes an index from `written`, stamps the record busy, fills it, and stamps it
//! with the index plus one. The reader reads a run of records twice and then `written`. A record counts if its stamp is right in
//! the first reading: then it was whole before the second began, whose bytes are used; and if its stamp is still right in the second
//! and `written` has not come within a round of it: then nobody began to overwrite it meanwhile.
//!
//! A record that is not whole is waited for once, until the next poll, and is then given up: its writer died or was stopped.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::{
    CAPACITY, COMMUNICATOR_BYTES, COMMUNICATORS, COMMUNICATORS_AT, Communicator, FILE_BYTES, Header,
    LIVE_STEPS, LIVE_STEPS_AT, LiveStep, RECORD_BYTES, RECORD_WORDS, RECORDS_AT, Record, word,
};

/// Records read at a time: 32 KiB, so that a slow reader's loop stays short against a round of the ring.
const RUN: u64 = 512;

/// Where the bytes come from.
pub trait Source {
    /// Reads at a place, as [`FileExt::read_at`] does.
    ///
    /// # Errors
    /// Those of the file.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize>;
}

impl Source for File {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, bytes, offset)
    }
}

impl<S: Source + ?Sized> Source for &S {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        (*self).read_at(bytes, offset)
    }
}

/// Why a ring can't be read.
#[derive(Debug)]
pub enum RingError {
    /// The file can't be read.
    Io(io::Error),
    /// The file is shorter than a ring is.
    Short,
    /// It is not a ring of this version.
    Layout(&'static str),
    /// Its count of records went back: the process overwrote its own telemetry.
    Backwards,
}

impl std::fmt::Display for RingError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Io(error) => write!(f, "the rank's ring can't be read: {error}"),
            Self::Short => write!(f, "the rank's ring has fewer than {FILE_BYTES} bytes"),
            Self::Layout(what) => write!(f, "the rank's ring has {what}"),
            Self::Backwards => f.write_str("the rank's ring counts backwards; the process overwrote it"),
        }
    }
}

impl std::error::Error for RingError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        if let Self::Io(error) = self { Some(error) } else { None }
    }
}

/// A record and its place in all that the process ever wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Counts from 0.
    pub index: u64,
    /// What happened.
    pub record: Record,
}

/// What one poll went through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Polled {
    /// Records read.
    pub read: u64,
    /// Records that were overwritten before they were read, or never became whole.
    pub lost: u64,
    /// Records of a kind that is not known.
    pub odd: u64,
    /// Whether there was more than the poll was allowed to take.
    pub more: bool,
}

/// Reads one ring from where it stopped the last time.
#[derive(Debug)]
pub struct Reader<S> {
    source: S,
    next: u64,
    /// The record that was not whole when the last poll ended.
    waited_for: Option<u64>,
    first: Vec<u8>,
    second: Vec<u8>,
}

impl<S: Source> Reader<S> {
    /// Looks at the header and begins with the oldest record.
    ///
    /// # Errors
    /// If it is no ring of this version.
    pub fn open(source: S) -> Result<Self, RingError> {
        let bytes = RUN as usize * RECORD_BYTES;
        let reader =
            Self { source, next: 0, waited_for: None, first: vec![0; bytes], second: vec![0; bytes] };
        reader.header()?;
        // The last byte must be there too.
        reader.fill(&mut [0], FILE_BYTES - 1)?;
        Ok(reader)
    }

    /// The source, to write an order into or to look at its seals.
    pub fn source(&self) -> &S {
        &self.source
    }

    /// The header as it is now.
    ///
    /// # Errors
    /// If it is no ring of this version any more.
    pub fn header(&self) -> Result<Header, RingError> {
        Header::decode(&self.words(0)?).map_err(RingError::Layout)
    }

    /// The communicators that live, and those that ended and whose slot nobody has taken. At most [`COMMUNICATORS`].
    ///
    /// # Errors
    /// If the file can't be read.
    pub fn communicators(&self) -> Result<Vec<Communicator>, RingError> {
        let mut found = Vec::new();
        for slot in 0..COMMUNICATORS {
            let offset = COMMUNICATORS_AT + (slot * COMMUNICATOR_BYTES) as u64;
            // The stamp first: most slots are free.
            if self.words::<1>(offset)?[0] == 0 {
                continue;
            }
            let words = self.settled::<{ Communicator::WORDS }>(offset, u64::MAX)?;
            found.extend(words.and_then(|words| Communicator::decode(slot as u8, &words)));
        }
        Ok(found)
    }

    /// The network transfers in flight. At most [`LIVE_STEPS`]; empty unless steps are asked for.
    ///
    /// # Errors
    /// If the file can't be read.
    pub fn live_steps(&self) -> Result<Vec<LiveStep>, RingError> {
        let mut bytes = vec![0; LIVE_STEPS * RECORD_BYTES];
        self.fill(&mut bytes, LIVE_STEPS_AT)?;
        let mut found = Vec::new();
        for (slot, bytes) in bytes.chunks_exact(RECORD_BYTES).enumerate() {
            if LiveStep::decode(&to_words(bytes)).is_some() {
                let offset = LIVE_STEPS_AT + (slot * RECORD_BYTES) as u64;
                let words = self.settled::<RECORD_WORDS>(offset, LiveStep::WHOSE)?;
                found.extend(words.and_then(|words| LiveStep::decode(&words)));
            }
        }
        Ok(found)
    }

    /// Adds what is new to `entries`, at most `most` records, and never more than the ring holds.
    ///
    /// # Errors
    /// If the file can't be read, or counts backwards.
    pub fn poll(&mut self, most: u64, entries: &mut Vec<Entry>) -> Result<Polled, RingError> {
        let mut polled = Polled::default();
        let written = self.written()?;
        self.catch_up(written, &mut polled);
        let end = written.min(self.next.saturating_add(most.min(CAPACITY)));
        polled.more = end < written;
        let mut waits = false;
        while self.next < end && !waits {
            let place = self.next % CAPACITY;
            let count = (end - self.next).min(RUN).min(CAPACITY - place);
            let bytes = count as usize * RECORD_BYTES;
            let offset = RECORDS_AT + place * RECORD_BYTES as u64;
            let (mut first, mut second) = (std::mem::take(&mut self.first), std::mem::take(&mut self.second));
            let filled = self
                .fill(&mut first[..bytes], offset)
                .and_then(|()| self.fill(&mut second[..bytes], offset))
                .and_then(|()| self.written());
            if let Ok(written) = filled {
                let pairs =
                    first[..bytes].chunks_exact(RECORD_BYTES).zip(second[..bytes].chunks_exact(RECORD_BYTES));
                for (first, second) in pairs {
                    if !self.take(first, second, written, entries, &mut polled) {
                        waits = true;
                        break;
                    }
                }
            }
            (self.first, self.second) = (first, second);
            filled?;
        }
        Ok(polled)
    }

    /// Takes one record. False if it is not whole yet.
    fn take(
        &mut self,
        first: &[u8],
        second: &[u8],
        written: u64,
        entries: &mut Vec<Entry>,
        polled: &mut Polled,
    ) -> bool {
        let stamp = self.next + 1;
        let words: [u64; RECORD_WORDS] = to_words(second);
        let overwritten = written > self.next.saturating_add(CAPACITY);
        let whole = to_words::<1>(first)[0] == stamp && words[0] == stamp;
        if whole && !overwritten {
            match Record::decode(&words) {
                Some(record) => {
                    entries.push(Entry { index: self.next, record });
                    polled.read += 1;
                }
                None => polled.odd += 1,
            }
        } else if overwritten || self.waited_for == Some(self.next) {
            polled.lost += 1;
        } else {
            self.waited_for = Some(self.next);
            return false;
        }
        self.next += 1;
        true
    }

    /// Skips what is overwritten already.
    fn catch_up(&mut self, written: u64, polled: &mut Polled) {
        let oldest = written.saturating_sub(CAPACITY);
        if oldest > self.next {
            polled.lost += oldest - self.next;
            self.next = oldest;
        }
    }

    fn written(&self) -> Result<u64, RingError> {
        let [written] = self.words((word::WRITTEN * 8) as u64)?;
        // No process comes near the highest bit; sums with a place in the ring stay below it.
        if written < self.next || written >= super::BUSY { Err(RingError::Backwards) } else { Ok(written) }
    }

    /// The words of a slot whose first word says whose it is; none if that changed meanwhile. Words that changed are read a third
    /// time: nothing promises that a word is read in one piece, and a third reading is far from that change.
    fn settled<const N: usize>(&self, offset: u64, whose: u64) -> Result<Option<[u64; N]>, RingError> {
        let before: [u64; N] = self.words(offset)?;
        let mut words: [u64; N] = self.words(offset)?;
        if before != words {
            let after: [u64; N] = self.words(offset)?;
            for ((word, before), after) in words.iter_mut().zip(before).zip(after) {
                if *word != before {
                    *word = after;
                }
            }
        }
        let [now] = self.words(offset)?;
        let same = [before[0], words[0], now].iter().all(|word| (word ^ before[0]) & whose == 0);
        Ok(same.then_some(words))
    }

    fn words<const N: usize>(&self, offset: u64) -> Result<[u64; N], RingError> {
        let mut bytes = [[0; 8]; N];
        self.fill(bytes.as_flattened_mut(), offset)?;
        Ok(bytes.map(u64::from_le_bytes))
    }

    fn fill(&self, mut bytes: &mut [u8], mut offset: u64) -> Result<(), RingError> {
        // Each turn reads at least one byte, so that the loop is bounded by what is asked for.
        while !bytes.is_empty() {
            match self.source.read_at(bytes, offset) {
                Ok(0) => return Err(RingError::Short),
                Ok(read) => {
                    let read = read.min(bytes.len());
                    offset += read as u64;
                    bytes = &mut bytes[read..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(RingError::Io(error)),
            }
        }
        Ok(())
    }
}

fn to_words<const N: usize>(bytes: &[u8]) -> [u64; N] {
    let mut words = [0; N];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        let mut eight = [0; 8];
        eight.copy_from_slice(bytes);
        *word = u64::from_le_bytes(eight);
    }
    words
}
