//! The communicators of this process: a context of NCCL's is a handle of a slot in the ring's table.

use core::ffi::c_void;
use core::sync::atomic::Ordering::{AcqRel, Relaxed, Release};

use super::handle::{Handle, Kind};
use super::shared::{Ring, owner};
use crate::ring::{
    COMMUNICATORS, Counter, Function, NAME_BYTES, Record, SLOT_ENDED, SLOT_LIVE, joined, word,
};

/// Being filled.
const SLOT_FILLING: u64 = 1;

/// What NCCL says of a communicator.
#[derive(Clone, Copy)]
pub(super) struct Identity {
    /// 0 if it does not say.
    pub(super) id: u64,
    pub(super) nodes: u32,
    pub(super) ranks: u32,
    /// -1 if it does not say.
    pub(super) rank: i32,
    pub(super) name: [u8; NAME_BYTES],
}

/// A communicator that lives.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Communicator {
    pub(super) slot: u32,
    pub(super) generation: u32,
}

impl Communicator {
    /// Takes a slot. None if all are taken.
    pub(super) fn begin(ring: Ring, identity: &Identity, now_ns: u64) -> Option<Self> {
        // Slots that nobody had first, so that those that ended stay readable as long as can be.
        let slots = 0..COMMUNICATORS as u32;
        let found = slots
            .clone()
            .filter_map(|slot| Self::take(ring, slot, 0))
            .next()
            .or_else(|| slots.filter_map(|slot| Self::take(ring, slot, SLOT_ENDED)).next());
        let Some(one) = found else {
            ring.count(Counter::CommunicatorsFull);
            return None;
        };
        let put = |index, value| ring.communicator(one.slot, index).store(value, Relaxed);
        put(1, identity.id);
        put(2, joined(identity.ranks, identity.nodes));
        put(3, u64::from(identity.rank as u32));
        put(4, now_ns);
        put(5, 0);
        for (index, bytes) in identity.name.as_chunks::<8>().0.iter().enumerate() {
            put(word::NAME + index, u64::from_le_bytes(*bytes));
        }
        for function in Function::ALL {
            ring.progress(one.slot, function).clear();
        }
        ring.communicator(one.slot, 0).store(one.stamp(SLOT_LIVE), Release);
        ring.record(&Record::CommInit {
            communicator: one.slot as u8,
            generation: one.generation as u16,
            id: identity.id,
            time_ns: now_ns,
        });
        Some(one)
    }

    fn take(ring: Ring, slot: u32, state: u64) -> Option<Self> {
        let stamp = ring.communicator(slot, 0);
        let seen = stamp.load(Relaxed);
        if seen & 3 != state {
            return None;
        }
        let one = Self { slot, generation: ((seen >> 2) as u32).wrapping_add(1) };
        stamp.compare_exchange(seen, one.stamp(SLOT_FILLING), AcqRel, Relaxed).is_ok().then_some(one)
    }

    const fn stamp(self, state: u64) -> u64 {
        (self.generation as u64) << 2 | state
    }

    /// Ends it; false if it had ended before.
    pub(super) fn end(self, ring: Ring, now_ns: u64) -> bool {
        let stamp = ring.communicator(self.slot, 0);
        if stamp.compare_exchange(self.stamp(SLOT_LIVE), self.stamp(SLOT_ENDED), AcqRel, Relaxed).is_err() {
            return false;
        }
        ring.communicator(self.slot, 5).store(now_ns, Relaxed);
        ring.record(&Record::CommEnd {
            communicator: self.slot as u8,
            generation: self.generation as u16,
            id: ring.communicator(self.slot, 1).load(Relaxed),
            time_ns: now_ns,
        });
        true
    }

    pub(super) fn context(self, salt: u64) -> *mut c_void {
        let handle =
            Handle { kind: Kind::Communicator, index: self.slot, part: 0, generation: self.generation };
        handle.to_pointer(salt)
    }

    /// The communicator of a context, if it is one of this process and lives.
    #[inline]
    pub(super) fn of(ring: Ring, context: *const c_void, salt: u64) -> Option<Self> {
        let handle = Handle::of(context, Kind::Communicator, salt)?;
        let one = Self { slot: handle.index, generation: handle.generation };
        one.lives(ring).then_some(one)
    }

    #[inline]
    pub(super) fn lives(self, ring: Ring) -> bool {
        self.slot < COMMUNICATORS as u32 && owner(ring.communicator(self.slot, 0)) == self.stamp(SLOT_LIVE)
    }

    /// The process's rank in it, -1 if NCCL did not say.
    pub(super) fn rank(self, ring: Ring) -> i32 {
        ring.communicator(self.slot, 3).load(Relaxed) as u32 as i32
    }

    /// Whether nobody else is in it.
    pub(super) fn is_alone(self, ring: Ring) -> bool {
        ring.communicator(self.slot, 2).load(Relaxed) as u32 == 1
    }

    /// `ncclProfiler_v3` tells the id with an operation, not before.
    pub(super) fn learn_id(self, ring: Ring, id: u64) {
        if id != 0 {
            let _ = ring.communicator(self.slot, 1).compare_exchange(0, id, Relaxed, Relaxed);
        }
    }
}
