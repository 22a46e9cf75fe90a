//! Operations in flight: a table of fixed size, private to the process. A slot is taken when an operation is handed to NCCL and
//! given back when its last channel ended on the GPU.
//!
//! NCCL can lose the events that tell of that end. An operation that was passed by a later one of its kind, whose communicator is
//! gone, or that is older than any finding waits for, gives its slot to the next.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use super::communicators::Communicator;
use super::handle::{Handle, Kind};
use super::shared::{Cell, Reached, Ring};
use crate::ring::{Counter, Function, Op, Record};

/// Operations in flight. Frameworks enqueue some hundred before the GPU has done the first.
pub(super) const OPS: usize = 4096;

/// Slots looked at for a new operation, so that a full table costs little.
const PROBES: u32 = 8;

/// The longest that a hang takes to be found is 120 s after it began; a slot is kept for longer.
const EVICT_AFTER_NS: u64 = 300_000_000_000;

/// In a slot's `what`: KernelCh is on.
const KERNELS: u64 = 1 << 24;

const FREE: u64 = 0;
const BUSY: u64 = 1;
const LIVE: u64 = 2;

/// What the thread that hands the operation to NCCL writes, and the proxy's thread reads. A line of the processor's cache.
#[repr(C, align(64))]
struct Told {
    /// Generation in the upper half, state in the lower.
    life: AtomicU64,
    /// Communicator's slot 8 bits, function 8, channels 8, whether KernelCh is on 1; peer in the upper half.
    what: AtomicU64,
    /// The communicator's generation.
    generation: AtomicU64,
    sequence: AtomicU64,
    bytes: AtomicU64,
    enqueued_ns: AtomicU64,
}

/// What the proxy's thread keeps. Whoever gives the slot back leaves it as it was, so that it is no matter of the next caller's:
/// the line stays with the proxy's thread.
#[repr(C, align(64))]
struct Heard {
    started_ns: AtomicU64,
    gpu_start_ns: AtomicU64,
    gpu_stop_ns: AtomicU64,
    /// A bit a channel.
    began: AtomicU64,
    /// A bit a channel that began and has not ended.
    open: AtomicU64,
}

struct Slot {
    told: Told,
    heard: Heard,
}

static TABLE: [Slot; OPS] = [const {
    Slot {
        told: Told {
            life: AtomicU64::new(0),
            what: AtomicU64::new(0),
            generation: AtomicU64::new(0),
            sequence: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            enqueued_ns: AtomicU64::new(0),
        },
        heard: Heard {
            started_ns: AtomicU64::new(0),
            gpu_start_ns: AtomicU64::new(u64::MAX),
            gpu_stop_ns: AtomicU64::new(0),
            began: AtomicU64::new(0),
            open: AtomicU64::new(0),
        },
    }
}; OPS];

/// Slots that are taken in turn while few operations are in flight: they stay in the caches, and each was left by the proxy's thread
/// long before it is taken again.
const IN_TURN: u32 = 256;

/// Counts operations.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// What begins.
#[derive(Clone, Copy)]
pub(super) struct NewOp {
    pub(super) communicator: Communicator,
    pub(super) function: Function,
    pub(super) sequence: u64,
    pub(super) peer: i32,
    pub(super) bytes: u64,
    /// Channels that its kernel uses, 0 if NCCL does not say.
    pub(super) channels: u8,
    /// Whether NCCL tells when it runs on the GPU.
    pub(super) kernels: bool,
}

impl NewOp {
    pub(super) const fn op(&self) -> Op {
        Op {
            communicator: self.communicator.slot as u8,
            generation: self.communicator.generation as u16,
            function: self.function,
            sequence: self.sequence,
            peer: self.peer,
        }
    }
}

/// An operation in flight.
#[derive(Clone, Copy)]
pub(super) struct InFlight {
    slot: &'static Slot,
    index: u32,
    generation: u32,
}

/// Takes a slot. None if there is none near.
#[inline]
pub(super) fn begin(ring: Ring, new: &NewOp, now_ns: u64) -> Option<InFlight> {
    let next = NEXT.fetch_add(1, Relaxed) as u32;
    let one = claim(ring, next % IN_TURN, now_ns, false).or_else(|| {
        let near = |evict| (0..PROBES).find_map(|probe| claim(ring, next.wrapping_add(probe), now_ns, evict));
        // Nobody is evicted while there is room: the end of one that was passed may just be on its way.
        near(false).or_else(|| near(true))
    });
    let Some(one) = one else {
        ring.count(Counter::OpsFull);
        return None;
    };
    let told = &one.slot.told;
    let low = u64::from(new.communicator.slot) | (new.function as u64) << 8 | u64::from(new.channels) << 16;
    let low = if new.kernels { low | KERNELS } else { low };
    told.what.store(low | u64::from(new.peer as u32) << 32, Relaxed);
    told.generation.store(u64::from(new.communicator.generation), Relaxed);
    told.sequence.store(new.sequence, Relaxed);
    told.bytes.store(new.bytes, Relaxed);
    told.enqueued_ns.store(now_ns, Relaxed);
    told.life.store(life(one.generation, LIVE), Release);
    Some(one)
}

#[inline]
fn claim(ring: Ring, index: u32, now_ns: u64, evict: bool) -> Option<InFlight> {
    let index = index % OPS as u32;
    let slot = TABLE.get(index as usize)?;
    let seen = slot.told.life.load(Acquire);
    let generation = (seen >> 32) as u32;
    match seen as u32 as u64 {
        FREE => {}
        LIVE if evict && InFlight { slot, index, generation }.is_over(ring, now_ns) => {}
        _ => return None,
    }
    let one = InFlight { slot, index, generation: generation.wrapping_add(1) };
    slot.told.life.compare_exchange(seen, life(one.generation, BUSY), AcqRel, Relaxed).ok()?;
    if seen & LIVE != 0 {
        // One that never began may be one that NCCL was not asked to tell of: the mask changed while it was made.
        if slot.heard.began.load(Relaxed) != 0 {
            ring.count(Counter::Evicted);
        }
        one.forget_channels(ring);
        one.forget();
    }
    Some(one)
}

const fn life(generation: u32, state: u64) -> u64 {
    (generation as u64) << 32 | state
}

impl InFlight {
    /// The operation of a handle, if it is in flight.
    #[inline]
    pub(super) fn of(handle: Handle) -> Option<Self> {
        let slot = TABLE.get(handle.index as usize)?;
        let live = slot.told.life.load(Acquire) == life(handle.generation, LIVE);
        live.then_some(Self { slot, index: handle.index, generation: handle.generation })
    }

    pub(super) const fn handle(self) -> Handle {
        Handle { kind: Kind::Op, index: self.index, part: 0, generation: self.generation }
    }

    const fn kernel(self, channel: u32) -> Handle {
        Handle { kind: Kind::Kernel, index: self.index, part: channel, generation: self.generation }
    }

    /// A slot is free again: nothing more is heard of the operation.
    pub(super) fn release(self) {
        let (from, to) = (life(self.generation, LIVE), life(self.generation, BUSY));
        // If somebody else took it meanwhile, its words are of another operation.
        if self.slot.told.life.compare_exchange(from, to, AcqRel, Relaxed).is_ok() {
            self.forget();
            self.slot.told.life.store(life(self.generation, FREE), Release);
        }
    }

    /// Leaves the proxy's part as a new operation wants it.
    #[inline]
    fn forget(self) {
        let heard = &self.slot.heard;
        if heard.began.load(Relaxed) == 0 {
            return;
        }
        heard.started_ns.store(0, Relaxed);
        heard.gpu_start_ns.store(u64::MAX, Relaxed);
        heard.gpu_stop_ns.store(0, Relaxed);
        heard.open.store(0, Relaxed);
        heard.began.store(0, Relaxed);
    }

    /// It was handed to NCCL. Without KernelCh nothing more is heard of it.
    pub(super) fn enqueued(self) {
        if self.slot.told.what.load(Relaxed) & KERNELS == 0 {
            self.release();
        }
    }

    fn communicator(self) -> Communicator {
        Communicator {
            slot: self.slot.told.what.load(Relaxed) as u32 & 0xff,
            generation: self.slot.told.generation.load(Relaxed) as u32,
        }
    }

    #[inline]
    pub(super) fn op(self) -> Op {
        let what = self.slot.told.what.load(Relaxed);
        Op {
            communicator: what as u8,
            generation: self.slot.told.generation.load(Relaxed) as u16,
            function: Function::of((what >> 8) as u8),
            sequence: self.slot.told.sequence.load(Relaxed),
            peer: (what >> 32) as i32,
        }
    }

    #[inline]
    fn cell(self, ring: Ring) -> Cell {
        let what = self.slot.told.what.load(Relaxed);
        ring.progress(what as u32 & 0xff, Function::of((what >> 8) as u8))
    }

    /// Whether nothing that still comes of it could matter.
    fn is_over(self, ring: Ring, now_ns: u64) -> bool {
        let age_ns = now_ns.saturating_sub(self.slot.told.enqueued_ns.load(Relaxed));
        age_ns > EVICT_AFTER_NS
            || !self.communicator().lives(ring)
            || self.cell(ring).has_passed(self.slot.told.sequence.load(Relaxed))
    }

    /// Channels that began and did not end run no more, as far as anybody will hear.
    fn forget_channels(self, ring: Ring) {
        if self.slot.heard.open.load(Relaxed) != 0 && self.communicator().lives(ring) {
            self.cell(ring).rests();
        }
    }

    /// A channel's kernel began. None if it had begun before.
    #[inline]
    pub(super) fn channel_began(
        self,
        ring: Ring,
        channel: u8,
        gpu_ns: u64,
        now_ns: impl FnOnce() -> u64,
    ) -> Option<Handle> {
        let bit = 1_u64.checked_shl(u32::from(channel)).unwrap_or(0);
        let heard = &self.slot.heard;
        let before = heard.began.fetch_or(bit, AcqRel);
        if before & bit != 0 || bit == 0 {
            ring.count(Counter::Repeated);
            return None;
        }
        if gpu_ns != 0 && gpu_ns < heard.gpu_start_ns.load(Relaxed) {
            heard.gpu_start_ns.fetch_min(gpu_ns, Relaxed);
        }
        // An operation of a communicator that is gone has no place in its slot's successor. The communicator is not touched with
        // every channel: its words are the caller's too.
        let rested = heard.open.fetch_or(bit, AcqRel) == 0;
        if rested && self.communicator().lives(ring) {
            self.cell(ring).runs();
            if before == 0 {
                self.began(ring, gpu_ns, now_ns());
            }
        }
        Some(self.kernel(u32::from(channel)))
    }

    /// Its first channel began.
    fn began(self, ring: Ring, gpu_start_ns: u64, now_ns: u64) {
        self.slot.heard.started_ns.store(now_ns, Relaxed);
        let op = self.op();
        self.cell(ring).started(op.sequence, now_ns);
        if !op.function.is_collective() {
            let bytes = self.slot.told.bytes.load(Relaxed);
            ring.record(&Record::Started { op, time_ns: now_ns, bytes, gpu_start_ns });
        }
    }

    /// The GPU's time at a channel's end.
    #[inline]
    pub(super) fn channel_stopped_at(self, ring: Ring, channel: u32, gpu_ns: u64) {
        if self.slot.heard.open.load(Relaxed) & 1 << (channel & 63) == 0 {
            return ring.count(Counter::Repeated);
        }
        if gpu_ns > self.slot.heard.gpu_stop_ns.load(Relaxed) {
            self.slot.heard.gpu_stop_ns.fetch_max(gpu_ns, Relaxed);
        }
    }

    /// A channel's kernel ended; with the last one the operation is done.
    #[inline]
    pub(super) fn channel_ended(self, ring: Ring, channel: u32) {
        let bit = 1_u64 << (channel & 63);
        let before = self.slot.heard.open.fetch_and(!bit, AcqRel);
        if before & bit == 0 {
            return ring.count(Counter::Repeated);
        }
        let open = before & !bit;
        let ended = self.slot.heard.began.load(Acquire) & !open;
        let channels = (self.slot.told.what.load(Relaxed) >> 16) as u32 & 0xff;
        let last = if channels == 0 { open == 0 } else { ended.count_ones() >= channels };
        if open != 0 && !last {
            return;
        }
        let lives = self.communicator().lives(ring);
        if open == 0 && lives {
            self.cell(ring).rests();
        }
        if !lives {
            ring.count(Counter::Stale);
        }
        if !last {
            return;
        }
        if lives {
            self.done(ring);
        }
        self.release();
    }

    fn done(self, ring: Ring) {
        let now_ns = super::system::now_ns();
        let (enqueued_ns, started_ns) =
            (self.slot.told.enqueued_ns.load(Relaxed), self.slot.heard.started_ns.load(Relaxed));
        let start_ns = self.slot.heard.gpu_start_ns.load(Relaxed);
        self.cell(ring).reached(Reached::Finished, self.slot.told.sequence.load(Relaxed), now_ns);
        ring.record(&Record::Done {
            op: self.op(),
            time_ns: now_ns,
            bytes: self.slot.told.bytes.load(Relaxed),
            gpu_start_ns: if start_ns == u64::MAX { 0 } else { start_ns },
            gpu_stop_ns: self.slot.heard.gpu_stop_ns.load(Relaxed),
            wait_us: micros(enqueued_ns, started_ns),
            run_us: micros(started_ns, now_ns),
        });
    }
}

fn micros(from_ns: u64, to_ns: u64) -> u32 {
    u32::try_from(to_ns.saturating_sub(from_ns) / 1000).unwrap_or(u32::MAX)
}
