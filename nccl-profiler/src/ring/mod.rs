//! The ring: what a rank's process writes, and how the agent on the node reads it.
//!
//! One memfd a process. It is written by the plugin through a shared mapping and read by the agent with `read_at`; the
//! only bytes that the agent writes are those of [`Order`], at [`ORDER_AT`]. The process belongs to the user, so
//! that every byte is hostile to the reader: nothing in the file is an address, every number has a bound here, and whatever
//! does not fit is an error or is counted, never believed.
//!
//! All numbers are little-endian words of 64 bits. The file has five parts:
//!
//! | part | offset | bytes | content |
//! |---|---|---|---|
//! | header | 0 | 4096 | [`Header`]: magic, version, sizes, process, counters |
//! | order | [`ORDER_AT`] | 4096 | one word, see [`Order`] |
//! | communicators | [`COMMUNICATORS_AT`] | 64 × 1024 | [`Communicator`]: who it is, and how far each function has come |
//! | live steps | [`LIVE_STEPS_AT`] | 512 × 64 | [`LiveStep`]: network transfers in flight, while they are asked for |
//! | records | [`RECORDS_AT`] | 16384 × 64 | [`Record`]: what happened, oldest overwritten first |
//!
//! Two ways to the same truth: the communicators' progress never loses anything and is enough to see a hang; the records
//! carry durations and can be overwritten before they are read, which the reader sees and counts.
//!
//! Cost: 1 MiB and 128 KiB of memory a process, which is counted to the job. A reader that looks once a second reads the header, the
//! communicators in use (1 KiB each) and the new records, each twice: at 5,000 collectives a second 0.7 MiB.

mod order;
mod progress;
#[cfg(feature = "std")]
mod reader;
mod record;

pub use order::{Kernels, Order};
pub use progress::{Communicator, Header, LiveStep, Progress};
pub(crate) use progress::{SLOT_ENDED, SLOT_LIVE, STEP_LIVE};
#[cfg(feature = "std")]
pub use reader::{Entry, Polled, Reader, RingError, Source};
pub use record::{Op, Record, Steps};

/// First word of the file: `aimaC4D` and a line feed.
pub const MAGIC: u64 = u64::from_le_bytes(*b"aimaC4D\n");

/// Version of this layout. A reader takes no other.
pub const LAYOUT_VERSION: u32 = 1;

/// Bytes of a record: a line of the processor's cache, so that two writers never share one.
pub const RECORD_BYTES: usize = 64;

/// Words of a record.
pub const RECORD_WORDS: usize = RECORD_BYTES / 8;

/// Records in the ring, a power of two. At 16,000 collectives a second, of a record each, it holds a second's worth.
pub const CAPACITY: u64 = 16_384;

/// Communicators that a process can have at a time. Frameworks make up to some forty; the events of more are counted only.
pub const COMMUNICATORS: usize = 64;

/// Bytes of a communicator's slot.
pub const COMMUNICATOR_BYTES: usize = 1024;

/// Network transfers in flight at a time: channels × peers × directions.
pub const LIVE_STEPS: usize = 512;

/// Bytes of a communicator's name that are kept.
pub const NAME_BYTES: usize = 64;

/// Where the agent's order stands.
pub const ORDER_AT: u64 = 4096;
/// Where the communicators begin.
pub const COMMUNICATORS_AT: u64 = 8192;
/// Where the transfers in flight begin.
pub const LIVE_STEPS_AT: u64 = COMMUNICATORS_AT + (COMMUNICATORS * COMMUNICATOR_BYTES) as u64;
/// Where the records begin.
pub const RECORDS_AT: u64 = LIVE_STEPS_AT + (LIVE_STEPS * RECORD_BYTES) as u64;
/// Bytes of the file.
pub const FILE_BYTES: u64 = RECORDS_AT + CAPACITY * RECORD_BYTES as u64;

/// Words of the header that writers use; the layout of the rest is [`Header`]'s.
pub(crate) mod word {
    /// Records ever begun; on a line of its own.
    pub(crate) const WRITTEN: usize = 8;
    /// First of the counters; on a line of their own.
    pub(crate) const COUNTERS: usize = 16;
    /// What NCCL is asked for now.
    pub(crate) const MASK: usize = 7;
    /// Words that the header uses.
    pub(crate) const USED: usize = 24;

    /// First word of a communicator's name.
    pub(crate) const NAME: usize = 8;
    /// First word of a communicator's progress.
    pub(crate) const PROGRESS: usize = 16;
    /// Words of one function's progress.
    pub(crate) const PROGRESS_WORDS: usize = 8;
}

/// A stamp with this bit belongs to a record that is being written.
pub(crate) const BUSY: u64 = 1 << 63;

/// What the plugin counts instead of telling it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Counter {
    /// No slot for a communicator: it has no telemetry.
    CommunicatorsFull = 0,
    /// No slot for an operation: its start and end on the GPU are not told.
    OpsFull = 1,
    /// No slot for a network transfer.
    StepsFull = 2,
    /// Another thread held the record's place for a whole round of the ring.
    RecordBusy = 3,
    /// An event of a communicator or an operation that is no more, or of a handle that never was.
    Stale = 4,
    /// A network transfer on behalf of another process.
    Foreign = 5,
    /// A stop without a start, a second stop, a state after a stop.
    Repeated = 6,
    /// An operation whose end never came gave its slot to another.
    Evicted = 7,
}

/// How many [`Counter`]s there are.
pub const COUNTERS: usize = 8;

/// NCCL's functions. A number that is not here is read as [`Function::Other`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Function {
    /// A name that this version does not know.
    Other = 0,
    /// `Broadcast`
    Broadcast = 1,
    /// `Reduce`
    Reduce = 2,
    /// `AllGather`
    AllGather = 3,
    /// `ReduceScatter`
    ReduceScatter = 4,
    /// `AllReduce`
    AllReduce = 5,
    /// `SendRecv`
    SendRecv = 6,
    /// `Send`
    Send = 7,
    /// `Recv`
    Recv = 8,
    /// `AlltoAll`
    AllToAll = 9,
    /// `Scatter`
    Scatter = 10,
    /// `Gather`
    Gather = 11,
}

impl Function {
    /// All, in the order of their numbers.
    pub const ALL: [Self; 12] = [
        Self::Other,
        Self::Broadcast,
        Self::Reduce,
        Self::AllGather,
        Self::ReduceScatter,
        Self::AllReduce,
        Self::SendRecv,
        Self::Send,
        Self::Recv,
        Self::AllToAll,
        Self::Scatter,
        Self::Gather,
    ];

    /// The function of a number.
    #[must_use]
    pub fn of(number: u8) -> Self {
        Self::ALL.get(usize::from(number)).copied().unwrap_or(Self::Other)
    }

    /// NCCL's name of it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Other => "Other",
            Self::Broadcast => "Broadcast",
            Self::Reduce => "Reduce",
            Self::AllGather => "AllGather",
            Self::ReduceScatter => "ReduceScatter",
            Self::AllReduce => "AllReduce",
            Self::SendRecv => "SendRecv",
            Self::Send => "Send",
            Self::Recv => "Recv",
            Self::AllToAll => "AlltoAll",
            Self::Scatter => "Scatter",
            Self::Gather => "Gather",
        }
    }

    /// Whether NCCL numbers its calls. Those of the others are counted by the plugin, so that two ranks' numbers are not
    /// of the same call.
    #[must_use]
    pub const fn is_collective(self) -> bool {
        !matches!(self, Self::Send | Self::Recv | Self::SendRecv | Self::Other)
    }
}

/// The low and the high half of a word.
pub(crate) const fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

/// A word of two halves.
pub(crate) const fn joined(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}
