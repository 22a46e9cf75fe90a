//! Network transfers in flight, while the agent asks for them: what their steps wait for, and for how long.
//!
//! The transfers stand in the ring's file, where a hang can be seen; their steps' own times are private. One proxy thread drives
//! a transfer, so that its sums need no more than atomic words.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use super::communicators::Communicator;
use super::handle::{Handle, Kind};
use super::shared::{Ring, owner};
use crate::descriptor::state;
use crate::ring::{Counter, Function, LIVE_STEPS, Op, Record, STEP_LIVE, Steps, halves, joined};

/// Steps of one transfer that are told apart. NCCL has eight in flight.
const IN_FLIGHT: usize = 16;

/// Slots looked at for a new transfer.
const PROBES: u32 = 8;

/// The slot is being filled.
const FILLING: u64 = 1 << 25;
const SEND: u64 = 1 << 16;

/// A step: which, in what state, since when.
struct Step {
    /// Step's number in the upper half, its state in the lower.
    state: AtomicU64,
    since_ns: AtomicU64,
}

/// No state yet.
const NONE: u32 = 0;
/// Over.
const OVER: u32 = u32::MAX;

static STEPS: [Step; LIVE_STEPS * IN_FLIGHT] =
    [const { Step { state: AtomicU64::new(0), since_ns: AtomicU64::new(0) } }; LIVE_STEPS * IN_FLIGHT];

/// Bytes of the steps that ended.
static BYTES: [AtomicU64; LIVE_STEPS] = [const { AtomicU64::new(0) }; LIVE_STEPS];

static NEXT: AtomicU64 = AtomicU64::new(0);

/// What NCCL says of a transfer.
#[derive(Clone, Copy)]
pub(super) struct NewTransfer {
    pub(super) communicator: Communicator,
    /// The operation that it is part of, if that is known.
    pub(super) op: Option<Op>,
    pub(super) peer: i32,
    pub(super) channel: u8,
    pub(super) steps: u32,
    pub(super) send: bool,
}

/// A transfer in flight. Words of its slot: see [`crate::ring::LiveStep`].
#[derive(Clone, Copy)]
pub(super) struct Transfer {
    slot: u32,
    generation: u32,
}

impl Transfer {
    /// Takes a slot. None if there is none near.
    pub(super) fn begin(ring: Ring, new: &NewTransfer, now_ns: u64) -> Option<Handle> {
        let next = NEXT.fetch_add(1, Relaxed) as u32;
        let Some(one) = (0..PROBES).find_map(|probe| Self::claim(ring, next.wrapping_add(probe))) else {
            ring.count(Counter::StepsFull);
            return None;
        };
        let (function, sequence) =
            new.op.map_or((Function::Other, Steps::NO_SEQUENCE), |op| (op.function, op.sequence));
        let who = new.communicator.slot & 0xff
            | (function as u32) << 8
            | u32::from(new.communicator.generation as u16) << 16;
        let put = |index, value| ring.live_step(one.slot, index).store(value, Relaxed);
        put(1, now_ns);
        put(2, joined(who, new.peer as u32));
        put(3, sequence);
        put(4, joined(0, new.steps));
        put(5, 0);
        put(6, 0);
        put(7, 0);
        if let Some(bytes) = BYTES.get(one.slot as usize) {
            bytes.store(0, Relaxed);
        }
        let send = if new.send { SEND } else { 0 };
        let head = one.head() | STEP_LIVE | send | u64::from(new.channel) << 8 | state::IN_PROGRESS as u64;
        ring.live_step(one.slot, 0).store(head, Release);
        Some(Handle { kind: Kind::Proxy, index: one.slot, part: 0, generation: one.generation })
    }

    fn claim(ring: Ring, slot: u32) -> Option<Self> {
        let slot = slot % LIVE_STEPS as u32;
        let head = ring.live_step(slot, 0);
        let seen = head.load(Relaxed);
        if seen & (STEP_LIVE | FILLING) != 0 {
            return None;
        }
        let one = Self { slot, generation: ((seen >> 32) as u32).wrapping_add(1) };
        head.compare_exchange(seen, one.head() | FILLING, AcqRel, Relaxed).is_ok().then_some(one)
    }

    const fn head(self) -> u64 {
        (self.generation as u64) << 32
    }

    /// The transfer of a handle, if it is in flight.
    pub(super) fn of(ring: Ring, handle: Handle) -> Option<Self> {
        let one = Self { slot: handle.index, generation: handle.generation };
        one.is_live(ring).then_some(one)
    }

    fn is_live(self, ring: Ring) -> bool {
        let head = owner(ring.live_step(self.slot, 0));
        self.slot < LIVE_STEPS as u32 && head & STEP_LIVE != 0 && head >> 32 == u64::from(self.generation)
    }

    /// The transfer and the step of a step's handle; none if either is over.
    fn of_step(ring: Ring, handle: Handle) -> Option<(Self, &'static Step)> {
        let head = owner(ring.live_step(handle.index, 0));
        let (number, generation) = (handle.generation & 0xffff, handle.generation >> 16);
        let one = Self { slot: handle.index, generation: (head >> 32) as u32 };
        if one.generation & 0xffff != generation || !one.is_live(ring) {
            return None;
        }
        let step = one.step(handle.part)?;
        let (state, now) = halves(step.state.load(Acquire));
        (now == number && state != OVER).then_some((one, step))
    }

    fn step(self, part: u32) -> Option<&'static Step> {
        STEPS.get(self.slot as usize * IN_FLIGHT + part as usize % IN_FLIGHT)
    }

    /// The transfer is over.
    pub(super) fn end(self, ring: Ring, now_ns: u64) {
        let head = ring.live_step(self.slot, 0);
        let seen = head.load(Acquire);
        if seen >> 32 != u64::from(self.generation)
            || head.compare_exchange(seen, self.head() | FILLING, AcqRel, Relaxed).is_err()
        {
            return ring.count(Counter::Repeated);
        }
        let get = |index| ring.live_step(self.slot, index).load(Relaxed);
        let (who, peer) = halves(get(2));
        let (done, _) = halves(get(4));
        let bytes = BYTES.get(self.slot as usize).map_or(0, |bytes| bytes.load(Relaxed));
        let op = Op {
            communicator: who as u8,
            generation: (who >> 16) as u16,
            function: Function::of((who >> 8) as u8),
            sequence: get(3),
            peer: peer as i32,
        };
        let steps = Steps {
            op,
            channel: (seen >> 8) as u8,
            send: seen & SEND != 0,
            count: u16::try_from(done).unwrap_or(u16::MAX),
            kib: u32::try_from(bytes / 1024).unwrap_or(u32::MAX),
            first_ns: get(5),
            second_ns: get(6),
            third_ns: get(7),
        };
        head.store(self.head(), Release);
        ring.record(&Record::Steps { steps, time_ns: now_ns });
    }

    /// A step begins.
    pub(super) fn step_began(self, number: i32, now_ns: u64) -> Option<Handle> {
        let part = number as u32 % IN_FLIGHT as u32;
        let step = self.step(part)?;
        step.since_ns.store(now_ns, Relaxed);
        step.state.store(joined(NONE, number as u32 & 0xffff), Release);
        let generation = (self.generation & 0xffff) << 16 | number as u32 & 0xffff;
        Some(Handle { kind: Kind::Step, index: self.slot, part, generation })
    }

    /// Adds the time since the step's last change to what it waited for.
    fn add(self, ring: Ring, step: &Step, state: u32, now_ns: u64) {
        let since_ns = step.since_ns.swap(now_ns, Relaxed);
        let index = match state as i32 {
            state::SEND_GPU_WAIT | state::RECV_WAIT => 5,
            state::SEND_PEER_WAIT | state::RECV_FLUSH_WAIT => 6,
            state::SEND_WAIT | state::RECV_GPU_WAIT => 7,
            _ => return,
        };
        ring.live_step(self.slot, index).fetch_add(now_ns.saturating_sub(since_ns), Relaxed);
    }
}

/// A step waits for something else. `bytes` is the size of what it moves, as far as it is known.
pub(super) fn step_changed(ring: Ring, handle: Handle, state: i32, bytes: u64, now_ns: u64) {
    let Some((transfer, step)) = Transfer::of_step(ring, handle) else {
        return ring.count(Counter::Repeated);
    };
    let (old, number) = halves(step.state.swap(joined(state as u32, handle.generation & 0xffff), AcqRel));
    if number != handle.generation & 0xffff {
        return;
    }
    transfer.add(ring, step, old, now_ns);
    if matches!(state, state::SEND_WAIT | state::RECV_FLUSH_WAIT)
        && let Some(sum) = BYTES.get(transfer.slot as usize)
    {
        sum.fetch_add(bytes, Relaxed);
    }
    let head = ring.live_step(transfer.slot, 0);
    let seen = head.load(Relaxed);
    // If somebody else changed it just now, theirs is as new as this.
    if seen >> 32 == u64::from(transfer.generation) && seen & STEP_LIVE != 0 {
        let _ = head.compare_exchange(seen, seen & !0xff | state as u64 & 0xff, AcqRel, Relaxed);
        ring.live_step(transfer.slot, 1).store(now_ns, Relaxed);
    }
}

/// A step is over.
pub(super) fn step_ended(ring: Ring, handle: Handle, now_ns: u64) {
    let Some((transfer, step)) = Transfer::of_step(ring, handle) else {
        return ring.count(Counter::Repeated);
    };
    let (old, _) = halves(step.state.swap(joined(OVER, handle.generation & 0xffff), AcqRel));
    transfer.add(ring, step, old, now_ns);
    ring.live_step(transfer.slot, 4).fetch_add(1, Relaxed);
}

/// Transfers of a communicator that ended: nobody will stop them.
pub(super) fn forget(ring: Ring, communicator: Communicator) {
    for slot in 0..LIVE_STEPS as u32 {
        let head = ring.live_step(slot, 0);
        let seen = head.load(Acquire);
        let (who, _) = halves(ring.live_step(slot, 2).load(Relaxed));
        let theirs = who & 0xff == communicator.slot && who >> 16 == communicator.generation & 0xffff;
        if seen & STEP_LIVE != 0 && theirs {
            let _ = head.compare_exchange(seen, seen >> 32 << 32, AcqRel, Relaxed);
        }
    }
}
