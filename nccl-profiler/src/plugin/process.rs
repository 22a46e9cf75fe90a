//! The process's own state: whether there is a ring, whose fork this is, and what NCCL is asked for.

use core::ffi::{CStr, c_void};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64};

use super::communicators::{Communicator, Identity};
use super::shared::Ring;
use super::{nccl, steps, system, version};
use crate::descriptor::{Log, event};
use crate::handover::{Hello, SOCKET_NAME_BYTES, Status};
use crate::ring::{COMMUNICATORS, COUNTERS, FILE_BYTES, Header, Kernels, LAYOUT_VERSION, Order};

/// Names of [`crate::handover`] as the C library wants them; a test holds them together.
const SOCKET: &CStr = c"AIMASTER_C4D_SOCKET";
const DENY: &CStr = c"AIMASTER_C4D_NCCL_DENY";

/// Bytes of the deny-list that are read: some forty versions.
const DENY_BYTES: usize = 512;

/// How often a process looks for the agent. More than once, because the first communicator may come before the agent.
const ATTEMPTS: u32 = 3;

/// The ring while it is written to.
static ACTIVE: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
/// The ring that this process, or the one that it was forked from, has.
static BASE: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
/// See [`system::fork_guard`].
static GUARD: AtomicPtr<AtomicU64> = AtomicPtr::new(core::ptr::null_mut());
static TRIED: AtomicU32 = AtomicU32::new(0);
static PID: AtomicU32 = AtomicU32::new(0);
/// Tells this process's handles from another's.
static SALT: AtomicU64 = AtomicU64::new(0);
/// Each communicator's way to NCCL's mask: two NCCLs in a process have two.
static MASKS: [AtomicPtr<i32>; COMMUNICATORS] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; COMMUNICATORS];

/// The order that is obeyed, as its word.
static SEEN: AtomicU64 = AtomicU64::new(0);
static TELEMETRY: AtomicU32 = AtomicU32::new(1);
static KERNELS_UNTIL_NS: AtomicU64 = AtomicU64::new(u64::MAX);
/// Bits that are 0 in the number of an operation that KernelCh goes on with, and for how long; 0: it does not.
static EVERY_BITS: AtomicU64 = AtomicU64::new(0);
static EVERY_NS: AtomicU64 = AtomicU64::new(0);
/// Not 0: KernelCh is never off, whatever is ordered.
static PINNED: AtomicU32 = AtomicU32::new(0);
static STEPS_UNTIL_NS: AtomicU64 = AtomicU64::new(0);

/// The ring, if there is one and this process may write to it.
#[inline]
pub(super) fn active() -> Option<Ring> {
    let base = ACTIVE.load(Acquire);
    if base.is_null() || is_child() {
        return None;
    }
    // SAFETY: a ring's mapping stays for ever and is used through this type only.
    Some(unsafe { Ring::of(base) })
}

#[inline]
fn is_child() -> bool {
    let guard = GUARD.load(Acquire);
    // SAFETY: the page stays for ever; it was published before any ring.
    !guard.is_null() && unsafe { &*guard }.load(Relaxed) == 0
}

#[inline]
pub(super) fn salt() -> u64 {
    SALT.load(Relaxed)
}

pub(super) fn pid() -> u32 {
    PID.load(Relaxed)
}

/// A communicator begins. The context and what NCCL is asked for; none and nothing without telemetry.
///
/// # Safety
/// `mask` is NCCL's, and stays as long as the communicator; `log` is NCCL's.
pub(super) unsafe fn began(api: u32, mask: *mut i32, log: Option<Log>, identity: &Identity) -> *mut c_void {
    let nothing = core::ptr::null_mut();
    // SAFETY: the caller's promise.
    let ring = active().or_else(|| unsafe { set_up(api, log) });
    // Before v5 nobody says whether a graph is being captured.
    if api < 5 {
        pin_kernels();
    }
    let Some(ring) = ring else {
        // SAFETY: the caller's promise.
        unsafe { set(mask, 0) };
        return nothing;
    };
    let now_ns = system::now_ns();
    let Some(communicator) = Communicator::begin(ring, identity, now_ns) else {
        // One mask for all communicators: it is left to those that have a slot.
        // SAFETY: the caller's promise.
        unsafe { set(mask, wanted(ring, now_ns) as i32) };
        return nothing;
    };
    if let Some(place) = MASKS.get(communicator.slot as usize) {
        place.store(mask, Release);
    }
    obey(ring, communicator, now_ns);
    communicator.context(salt())
}

/// A communicator ends.
pub(super) fn ended(context: *const c_void) {
    let Some(ring) = active() else { return };
    let Some(communicator) = super::communicator(ring, context) else { return };
    // First, so that nobody writes into NCCL when it may be gone.
    if let Some(place) = MASKS.get(communicator.slot as usize) {
        place.store(core::ptr::null_mut(), Release);
    }
    if communicator.end(ring, system::now_ns()) {
        steps::forget(ring, communicator);
    }
}

/// KernelCh is never off again.
pub(super) fn pin_kernels() {
    PINNED.store(1, Relaxed);
}

/// KernelCh goes on with this operation, if the agent wants it with this number.
#[inline]
pub(super) fn begin_window(sequence: u64, now_ns: u64) {
    let for_ns = EVERY_NS.load(Relaxed);
    if for_ns != 0 && sequence & EVERY_BITS.load(Relaxed) == 0 {
        KERNELS_UNTIL_NS.store(now_ns.saturating_add(for_ns), Relaxed);
    }
}

/// Does what the agent orders, and gives what NCCL was asked for until now: NCCL reads its mask before it tells of an operation.
#[inline]
pub(super) fn obey(ring: Ring, communicator: Communicator, now_ns: u64) -> u64 {
    let mask = wanted(ring, now_ns);
    let place =
        MASKS.get(communicator.slot as usize).map_or(core::ptr::null_mut(), |place| place.load(Acquire));
    if !place.is_null() {
        // SAFETY: the communicator lives, so does the NCCL that it is of; NCCL reads its mask atomically.
        let now = unsafe { AtomicI32::from_ptr(place) };
        let before = now.load(Relaxed);
        if before != mask as i32 {
            now.store(mask as i32, Relaxed);
            ring.set_mask(mask);
        }
        return before as u32 as u64;
    }
    mask
}

#[inline]
fn wanted(ring: Ring, now_ns: u64) -> u64 {
    let word = ring.order();
    if word != SEEN.load(Relaxed)
        && let Some(order) = Order::of(word)
    {
        let until = |ms: u16| now_ns.saturating_add(u64::from(ms) * 1_000_000);
        let (kernels, (bits, for_ms)) = match order.kernels {
            Kernels::On => (u64::MAX, (0, 0)),
            Kernels::Off => (0, (0, 0)),
            Kernels::For(ms) => (until(ms), (0, 0)),
            // What is on stays on until its time is over: a new order in a window must not end it on some ranks only.
            Kernels::Every { shift, ms } => {
                let now_until = KERNELS_UNTIL_NS.load(Relaxed);
                let until = if now_until == u64::MAX { 0 } else { now_until.min(until(ms)) };
                (until, ((1 << (shift & 31)) - 1, ms))
            }
        };
        EVERY_BITS.store(bits, Relaxed);
        EVERY_NS.store(u64::from(for_ms) * 1_000_000, Relaxed);
        KERNELS_UNTIL_NS.store(kernels, Relaxed);
        STEPS_UNTIL_NS.store(if order.steps_ms == 0 { 0 } else { until(order.steps_ms) }, Relaxed);
        TELEMETRY.store(u32::from(order.telemetry), Relaxed);
        SEEN.store(word, Relaxed);
    }
    if TELEMETRY.load(Relaxed) == 0 {
        return 0;
    }
    let mut mask = event::COLL | event::P2P;
    if now_ns < KERNELS_UNTIL_NS.load(Relaxed) || PINNED.load(Relaxed) != 0 {
        mask |= event::KERNEL_CH;
    }
    if now_ns < STEPS_UNTIL_NS.load(Relaxed) {
        mask |= event::PROXY_OP | event::PROXY_STEP;
    }
    mask
}

/// # Safety
/// `mask` is null or NCCL's.
unsafe fn set(mask: *mut i32, value: i32) {
    if !mask.is_null() {
        // SAFETY: the caller's promise; NCCL reads it atomically.
        unsafe { AtomicI32::from_ptr(mask) }.store(value, Relaxed);
    }
}

/// Makes the ring and hands it to the agent. None if there is no agent, if this NCCL may not be looked at, or in a fork's child.
///
/// # Safety
/// `log` is NCCL's.
unsafe fn set_up(api: u32, log: Option<Log>) -> Option<Ring> {
    let mut name = [0; SOCKET_NAME_BYTES + 1];
    let length = system::variable(SOCKET, &mut name);
    let name = name.get(..length)?;
    if is_child() || name.is_empty() || TRIED.load(Relaxed) >= ATTEMPTS {
        return None;
    }
    let mut denied = [0; DENY_BYTES];
    let length = system::variable(DENY, &mut denied);
    // A list that is longer than what is read may hold anything: the cut part can't be read, which denies.
    let denied = if length == DENY_BYTES { &b"?"[..] } else { denied.get(..length)? };
    // SAFETY: NCCL's log function lies in NCCL.
    let version = log.map_or(0, |log| unsafe { nccl::version(log as usize) });
    let Some(socket) = system::connect(name) else {
        TRIED.fetch_add(1, Relaxed);
        return None;
    };
    let made = match version::judge(api, version, denied) {
        Status::Ring => make(version, api),
        status => Err(status),
    };
    let status = made.as_ref().err().copied().unwrap_or(Status::Ring);
    let hello = Hello {
        layout_version: LAYOUT_VERSION,
        pid: system::pid(),
        file_bytes: FILE_BYTES,
        nccl_version: version,
        api,
        status,
    };
    let memory = match made {
        Ok(Made::New(memory)) => memory,
        Ok(Made::Before(ring)) => {
            system::close(socket);
            return Some(ring);
        }
        Err(_) => {
            system::send(socket, &hello.encode(), None);
            system::close(socket);
            // It would be the same the next time.
            TRIED.store(ATTEMPTS, Relaxed);
            return None;
        }
    };
    let sent = system::send(socket, &hello.encode(), Some(memory.fd));
    system::close(socket);
    if !sent {
        ACTIVE.store(core::ptr::null_mut(), Release);
        BASE.store(core::ptr::null_mut(), Release);
        memory.empty();
        TRIED.fetch_add(1, Relaxed);
        return None;
    }
    system::close(memory.fd);
    // SAFETY: the mapping stays for ever.
    Some(unsafe { Ring::of(memory.base) })
}

enum Made {
    New(system::Memory),
    /// Another thread was first.
    Before(Ring),
}

fn make(nccl_version: u32, api: u32) -> Result<Made, Status> {
    let pid = system::pid();
    if GUARD.load(Acquire).is_null() {
        let guard = system::fork_guard().ok_or(Status::NoForkGuard)?;
        // SAFETY: the page is ours, and nobody else knows it yet.
        unsafe { &*guard }.store(1, Relaxed);
        if GUARD.compare_exchange(core::ptr::null_mut(), guard, AcqRel, Acquire).is_err() {
            system::discard_guard(guard);
        }
    }
    // Before there is a ring, and from what all threads that come here at a time see alike.
    let seed = (GUARD.load(Acquire).addr() as u64 >> 12) ^ u64::from(pid) << 40;
    SALT.store(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 53, Relaxed);
    PID.store(pid, Relaxed);
    let memory = system::Memory::new().ok_or(Status::NoMemory)?;
    let created_ns = system::now_ns();
    // SAFETY: the mapping is ours.
    let ring = unsafe { Ring::of(memory.base) };
    ring.begin(&Header { pid, nccl_version, api, created_ns, mask: 0, written: 0, counters: [0; COUNTERS] });
    match BASE.compare_exchange(core::ptr::null_mut(), memory.base, AcqRel, Acquire) {
        Ok(_) => {
            ACTIVE.store(memory.base, Release);
            Ok(Made::New(memory))
        }
        Err(other) => {
            memory.discard();
            // SAFETY: the first one's mapping stays for ever.
            Ok(Made::Before(unsafe { Ring::of(other) }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_are_those_of_the_hand_over() {
        assert_eq!(SOCKET.to_str(), Ok(crate::handover::SOCKET_VARIABLE));
        assert_eq!(DENY.to_str(), Ok(crate::handover::DENY_VARIABLE));
    }
}
