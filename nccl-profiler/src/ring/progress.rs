//! The tables of the ring's file: the header, the communicators with their progress, the network transfers in flight.
//!
//! What stands here is always the newest and is never lost, whatever becomes of the records.

use super::{
    CAPACITY, COUNTERS, Counter, FILE_BYTES, Function, LAYOUT_VERSION, MAGIC, NAME_BYTES, RECORD_BYTES,
    halves, joined, word,
};

/// Head of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The process, as it sees itself.
    pub pid: u32,
    /// NCCL's version as a number, 22809 for 2.28.9; 0 if it is not known.
    pub nccl_version: u32,
    /// Which `ncclProfiler_vN` NCCL took.
    pub api: u32,
    /// When the ring was made.
    pub created_ns: u64,
    /// The event bits that NCCL is asked for now.
    pub mask: u64,
    /// Records ever begun.
    pub written: u64,
    /// See [`Counter`].
    pub counters: [u64; COUNTERS],
}

impl Header {
    /// Words of the header.
    pub const WORDS: usize = word::USED;

    /// One of the counters.
    #[must_use]
    pub const fn counter(&self, counter: Counter) -> u64 {
        self.counters[counter as usize]
    }

    /// The words of a new file.
    #[must_use]
    pub const fn encode(&self) -> [u64; Self::WORDS] {
        let mut words = [0; Self::WORDS];
        words[0] = MAGIC;
        words[1] = joined(LAYOUT_VERSION, RECORD_BYTES as u32);
        words[2] = CAPACITY;
        words[3] = FILE_BYTES;
        words[4] = self.pid as u64;
        words[5] = joined(self.nccl_version, self.api);
        words[6] = self.created_ns;
        words[word::MASK] = self.mask;
        words
    }

    /// The header of the words; what is wrong with them if they are of another layout.
    ///
    /// # Errors
    /// Says what does not fit.
    pub fn decode(words: &[u64; Self::WORDS]) -> Result<Self, &'static str> {
        if words[0] != MAGIC {
            return Err("the first word is not that of a ring");
        }
        if words[1] != joined(LAYOUT_VERSION, RECORD_BYTES as u32) {
            return Err("another version of the layout; plugin and agent must be of one release");
        }
        if words[2] != CAPACITY || words[3] != FILE_BYTES {
            return Err("sizes that are not those of its version");
        }
        let mut counters = [0; COUNTERS];
        counters.copy_from_slice(&words[word::COUNTERS..word::COUNTERS + COUNTERS]);
        let (nccl_version, api) = halves(words[5]);
        Ok(Self {
            pid: words[4] as u32,
            nccl_version,
            api,
            created_ns: words[6],
            mask: words[word::MASK],
            written: words[word::WRITTEN],
            counters,
        })
    }
}

/// How far a communicator has come with one function. Numbers are the sequence number plus one; 0 is none yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Handed to NCCL.
    pub enqueued: u64,
    /// Begun on the GPU. While KernelCh is off, see [`Header::mask`], it stays behind.
    pub started: u64,
    /// Ended on the GPU. While KernelCh is off it stays behind; once an operation begins again, all before it have ended unless one
    /// is known to be open.
    pub finished: u64,
    /// When `enqueued` changed.
    pub enqueued_ns: u64,
    /// When `started` changed.
    pub started_ns: u64,
    /// When `finished` changed.
    pub finished_ns: u64,
    /// Size of the operation that was enqueued last.
    pub bytes: u64,
    /// Operations of which a channel began and has not ended. With `started` above `finished`, 0 says that an event was lost, not
    /// that the operation hangs.
    pub running: u64,
}

/// A communicator of the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Communicator {
    /// Its slot, which the records name.
    pub slot: u8,
    /// How often the slot was used; records carry the low 16 bits.
    pub generation: u32,
    /// Whether it has ended. Its slot can be another's soon.
    pub ended: bool,
    /// NCCL's id, the same on all ranks; 0 if the interface does not carry it.
    pub id: u64,
    /// Ranks; 0 if the interface does not carry it.
    pub ranks: u32,
    /// Nodes; 0 if the interface does not carry it.
    pub nodes: u32,
    /// The process's rank in it; -1 if the interface does not carry it.
    pub rank: i32,
    /// When it began.
    pub begun_ns: u64,
    /// When it ended, or 0.
    pub ended_ns: u64,
    /// The name that the user gave it, cut; bytes, because nobody promises text.
    pub name: [u8; NAME_BYTES],
    /// By [`Function::ALL`].
    pub progress: [Progress; Function::ALL.len()],
}

/// State of a communicator's slot. The others are 0, never used, and 1, being filled.
pub(crate) const SLOT_LIVE: u64 = 2;
/// Its communicator ended.
pub(crate) const SLOT_ENDED: u64 = 3;

impl Communicator {
    /// Words of a slot.
    #[cfg(feature = "std")]
    pub(crate) const WORDS: usize = super::COMMUNICATOR_BYTES / 8;

    /// How far one function has come.
    #[must_use]
    pub fn progress(&self, function: Function) -> &Progress {
        &self.progress[function as usize]
    }

    /// The communicator in a slot; none if it is free or being filled.
    #[cfg(feature = "std")]
    pub(crate) fn decode(slot: u8, words: &[u64; Self::WORDS]) -> Option<Self> {
        let state = words[0] & 3;
        if state != SLOT_LIVE && state != SLOT_ENDED {
            return None;
        }
        let mut name = [0; NAME_BYTES];
        for (bytes, word) in name.chunks_exact_mut(8).zip(&words[word::NAME..]) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        let mut progress = [Progress::default(); Function::ALL.len()];
        for (one, words) in
            progress.iter_mut().zip(words[word::PROGRESS..].chunks_exact(word::PROGRESS_WORDS))
        {
            *one = Progress {
                enqueued: words[0],
                started: words[1],
                finished: words[2],
                enqueued_ns: words[3],
                started_ns: words[4],
                finished_ns: words[5],
                bytes: words[6],
                running: words[7],
            };
        }
        let (ranks, nodes) = halves(words[2]);
        Some(Self {
            slot,
            generation: (words[0] >> 2) as u32,
            ended: state == SLOT_ENDED,
            id: words[1],
            ranks,
            nodes,
            rank: words[3] as u32 as i32,
            begun_ns: words[4],
            ended_ns: words[5],
            name,
            progress,
        })
    }

    /// The name as text, as far as it is text.
    #[cfg(feature = "std")]
    #[must_use]
    pub fn name(&self) -> String {
        let end = self.name.iter().position(|byte| *byte == 0).unwrap_or(NAME_BYTES);
        let text = String::from_utf8_lossy(&self.name[..end]);
        text.chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect()
    }
}

/// A network transfer in flight: one operation's part to or from one peer over one channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LiveStep {
    /// Slot of its communicator.
    pub communicator: u8,
    /// The communicator's generation, its low 16 bits.
    pub generation: u16,
    /// The operation's function.
    pub function: Function,
    /// The operation's number; [`super::Steps::NO_SEQUENCE`] if it is not known.
    pub sequence: u64,
    /// The other rank.
    pub peer: i32,
    /// Channel.
    pub channel: u8,
    /// Sending, else receiving.
    pub send: bool,
    /// NCCL's number of the state that a step came into last: 8 SendGPUWait, 20 SendPeerWait, 9 SendWait, 10 RecvWait,
    /// 11 RecvFlushWait, 12 RecvGPUWait, 19 none yet.
    pub state: u8,
    /// When it came into it.
    pub since_ns: u64,
    /// Steps that ended.
    pub done: u32,
    /// Steps that it has.
    pub steps: u32,
    /// Time in the first, second and third kind of wait, of the steps that left it; see [`super::Steps`].
    pub waits_ns: [u64; 3],
}

/// A live step's first word: this bit says that the slot is in use.
pub(crate) const STEP_LIVE: u64 = 1 << 24;

impl LiveStep {
    /// Bits of the first word that change only with the slot's user: all but the state.
    #[cfg(feature = "std")]
    pub(crate) const WHOSE: u64 = !0xff;

    /// The transfer in a slot; none if it is free.
    #[cfg(feature = "std")]
    pub(crate) const fn decode(words: &[u64; 8]) -> Option<Self> {
        let [head, since_ns, what, sequence, steps, first, second, third] = *words;
        if head & STEP_LIVE == 0 {
            return None;
        }
        let number = (what >> 8) as u8;
        let function = if (number as usize) < Function::ALL.len() {
            Function::ALL[number as usize]
        } else {
            Function::Other
        };
        let (done, steps) = halves(steps);
        Some(Self {
            communicator: what as u8,
            generation: (what >> 16) as u16,
            function,
            sequence,
            peer: (what >> 32) as i32,
            channel: (head >> 8) as u8,
            send: head >> 16 & 1 != 0,
            state: head as u8,
            since_ns,
            done,
            steps,
            waits_ns: [first, second, third],
        })
    }
}
