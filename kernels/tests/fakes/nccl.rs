//! A library in NCCL's shape for the tests in `../nccl.rs`, which compile it: states and results as they are asked for
//! by `fake_set`, and counters. It moves no data: it tests how results are handled, never a measurement. Without wishes all
//! goes well, which is how the tests of other crates use it.
//!
//! Like NCCL it refuses a call on a communicator that is still busy, and reads a configuration as NCCL 2.28 does.
#![allow(
    non_snake_case,
    unexpected_cfgs,
    reason = "the names are NCCL's; whoever compiles it says which functions it lacks"
)]
#![allow(missing_docs, clippy::not_unsafe_ptr_arg_deref, reason = "each function is NCCL's own of that name")]

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicI32, Ordering::SeqCst};
use std::time::Duration;

const SUCCESS: c_int = 0;
const INVALID_ARGUMENT: c_int = 4;
const IN_PROGRESS: c_int = 7;
const UNDEFINED: c_int = c_int::MIN;

/// What can be set and read, by number; `../nccl.rs` has the same list.
const KNOBS: usize = 19;
static KNOB: [AtomicI32; KNOBS] = [const { AtomicI32::new(0) }; KNOBS];
/// Looks at the state before a call is done with; below 0: never.
const POLLS: usize = 0;
const INIT_RESULT: usize = 1;
const COLLECTIVE_RESULT: usize = 2;
/// State after the first collective.
const ASYNC_RESULT: usize = 3;
const ABORT_MS: usize = 4;
const DESTROY_MS: usize = 5;
const FINALIZE_POLLS: usize = 6;
const SAYS_SUCCESS_EARLY: usize = 7;
const INIT_WITHOUT_COMM: usize = 8;
const ID_MS: usize = 9;
// Counters.
const ABORTS: usize = 10;
const DESTROYS: usize = 11;
const LIVE: usize = 12;
const SENDS: usize = 13;
const RECVS: usize = 14;
const GROUP_ENDS: usize = 15;
const COLLECTIVES: usize = 16;
const FINALIZES: usize = 17;
const BAD_HANDLES: usize = 18;

fn knob(which: usize) -> c_int {
    KNOB[which].load(SeqCst)
}

fn count(which: usize, by: c_int) {
    KNOB[which].fetch_add(by, SeqCst);
}

#[unsafe(no_mangle)]
pub extern "C" fn fake_set(which: usize, value: c_int) {
    KNOB[which].store(value, SeqCst);
}

#[unsafe(no_mangle)]
pub extern "C" fn fake_get(which: usize) -> c_int {
    knob(which)
}

#[repr(C)]
pub struct Id([u8; 128]);

/// As NCCL 2.28 has it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
    traffic_class: c_int,
    comm_name: *const c_char,
    others: [c_int; 6],
}

const ALIVE: u64 = 0x600d_c033_600d_c033;

pub struct Comm {
    alive: u64,
    ranks: c_int,
    rank: c_int,
    /// Looks at the state that are still answered with "in progress".
    busy: AtomicI32,
    state: AtomicI32,
}

fn new_comm(ranks: c_int, rank: c_int) -> *mut Comm {
    count(LIVE, 1);
    let (busy, state) = (AtomicI32::new(knob(POLLS)), AtomicI32::new(SUCCESS));
    Box::into_raw(Box::new(Comm { alive: ALIVE, ranks, rank, busy, state }))
}

/// The communicator behind a handle, or nothing where it was never one or is no more.
fn comm<'a>(handle: *mut Comm) -> Option<&'a Comm> {
    // SAFETY: ended communicators are never freed here, so that a late use is seen and not undefined.
    let comm = unsafe { handle.as_ref() }.filter(|comm| comm.alive == ALIVE);
    if comm.is_none() {
        count(BAD_HANDLES, 1);
    }
    comm
}

fn end(handle: *mut Comm) -> c_int {
    if comm(handle).is_none() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: alive, as was looked up, and no other call is under way.
    unsafe { (*handle).alive = 0 };
    count(LIVE, -1);
    SUCCESS
}

fn begin(comm: &Comm, polls: c_int) -> c_int {
    if comm.busy.load(SeqCst) != 0 {
        return INVALID_ARGUMENT;
    }
    comm.busy.store(polls, SeqCst);
    if polls != 0 && knob(SAYS_SUCCESS_EARLY) == 0 { IN_PROGRESS } else { SUCCESS }
}

fn collective(handle: *mut Comm, counter: usize) -> c_int {
    let Some(comm) = comm(handle) else { return INVALID_ARGUMENT };
    count(counter, 1);
    if knob(COLLECTIVE_RESULT) != SUCCESS {
        return knob(COLLECTIVE_RESULT);
    }
    comm.state.store(knob(ASYNC_RESULT), SeqCst);
    begin(comm, knob(POLLS))
}

/// What is left of a configuration once NCCL 2.28 has read it: its defaults, what the caller gave, and back to the
/// defaults where the caller's version did not have the field yet.
fn parsed(config: *const Config) -> Option<Config> {
    let defaults = Config {
        size: size_of::<Config>(),
        magic: 0,
        version: 22_809,
        blocking: UNDEFINED,
        cga_cluster_size: UNDEFINED,
        min_ctas: UNDEFINED,
        max_ctas: UNDEFINED,
        net_name: std::ptr::null(),
        split_share: UNDEFINED,
        traffic_class: UNDEFINED,
        comm_name: std::ptr::null(),
        others: [UNDEFINED; 6],
    };
    let mut read = defaults;
    // SAFETY: the first field says how much there is to read.
    unsafe {
        let size = config.cast::<usize>().read().min(size_of::<Config>());
        std::ptr::copy_nonoverlapping(config.cast::<u8>(), (&raw mut read).cast::<u8>(), size);
    }
    if read.version < 21_700 {
        read.cga_cluster_size = defaults.cga_cluster_size;
        read.min_ctas = defaults.min_ctas;
        read.max_ctas = defaults.max_ctas;
        read.net_name = defaults.net_name;
    }
    (read.magic == 0xcafe_beef && read.version >= 21_400).then_some(read)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetVersion(version: *mut c_int) -> c_int {
    // SAFETY: the caller's pointer is valid.
    unsafe { version.write(if cfg!(old) { 21_701 } else { 22_809 }) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetUniqueId(id: *mut Id) -> c_int {
    std::thread::sleep(Duration::from_millis(knob(ID_MS).unsigned_abs().into()));
    // SAFETY: the caller's pointer is valid.
    unsafe { id.write(Id([0x5a; 128])) };
    SUCCESS
}

#[cfg(not(without_init))]
#[unsafe(no_mangle)]
pub extern "C" fn ncclCommInitRankConfig(
    out: *mut *mut Comm,
    ranks: c_int,
    id: Id,
    rank: c_int,
    config: *mut Config,
) -> c_int {
    let whole = id.0.iter().all(|byte| *byte == 0x5a);
    let config = parsed(config);
    let right = config.is_some_and(|read| {
        let ints =
            [read.cga_cluster_size, read.min_ctas, read.max_ctas, read.split_share, read.traffic_class];
        let undefined = ints.iter().chain(&read.others).all(|value| *value == UNDEFINED);
        read.blocking == 0 && undefined && read.net_name.is_null() && read.comm_name.is_null()
    });
    if !whole || !right {
        return INVALID_ARGUMENT;
    }
    if knob(INIT_WITHOUT_COMM) != 0 {
        return knob(INIT_RESULT);
    }
    let made = new_comm(ranks, rank);
    // SAFETY: the caller's pointer is valid.
    unsafe { out.write(made) };
    if knob(INIT_RESULT) != SUCCESS {
        return knob(INIT_RESULT);
    }
    if knob(POLLS) == 0 { SUCCESS } else { IN_PROGRESS }
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommGetAsyncError(handle: *mut Comm, state: *mut c_int) -> c_int {
    let Some(comm) = comm(handle) else { return INVALID_ARGUMENT };
    let busy = comm.busy.load(SeqCst);
    if busy > 0 {
        comm.busy.store(busy - 1, SeqCst);
    }
    // SAFETY: the caller's pointer is valid.
    unsafe { state.write(if busy == 0 { comm.state.load(SeqCst) } else { IN_PROGRESS }) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommAbort(handle: *mut Comm) -> c_int {
    count(ABORTS, 1);
    std::thread::sleep(Duration::from_millis(knob(ABORT_MS).unsigned_abs().into()));
    end(handle)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommDestroy(handle: *mut Comm) -> c_int {
    count(DESTROYS, 1);
    std::thread::sleep(Duration::from_millis(knob(DESTROY_MS).unsigned_abs().into()));
    if comm(handle).is_some_and(|comm| comm.busy.load(SeqCst) != 0) {
        return INVALID_ARGUMENT;
    }
    end(handle)
}

#[cfg(not(without_optional))]
#[unsafe(no_mangle)]
pub extern "C" fn ncclCommFinalize(handle: *mut Comm) -> c_int {
    count(FINALIZES, 1);
    let Some(comm) = comm(handle) else { return INVALID_ARGUMENT };
    begin(comm, knob(FINALIZE_POLLS))
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommCount(handle: *mut Comm, out: *mut c_int) -> c_int {
    let Some(comm) = comm(handle) else { return INVALID_ARGUMENT };
    // SAFETY: the caller's pointer is valid.
    unsafe { out.write(comm.ranks) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommUserRank(handle: *mut Comm, out: *mut c_int) -> c_int {
    let Some(comm) = comm(handle) else { return INVALID_ARGUMENT };
    // SAFETY: the caller's pointer is valid.
    unsafe { out.write(comm.rank) };
    SUCCESS
}

/// Half of the ranks, this one in the middle of nothing.
#[cfg(not(without_optional))]
#[unsafe(no_mangle)]
pub extern "C" fn ncclCommSplit(
    handle: *mut Comm,
    color: c_int,
    key: c_int,
    out: *mut *mut Comm,
    config: *mut Config,
) -> c_int {
    let Some(comm) = comm(handle) else { return INVALID_ARGUMENT };
    let code = begin(comm, knob(POLLS));
    if !config.is_null() || (code != SUCCESS && code != IN_PROGRESS) {
        return INVALID_ARGUMENT;
    }
    let made = if color < 0 { std::ptr::null_mut() } else { new_comm(comm.ranks / 2, key) };
    // SAFETY: the caller's pointer is valid.
    unsafe { out.write(made) };
    code
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupStart() -> c_int {
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupEnd() -> c_int {
    count(GROUP_ENDS, 1);
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclAllReduce(
    _: *const c_void,
    _: *mut c_void,
    _: usize,
    kind: c_int,
    reduction: c_int,
    handle: *mut Comm,
    _: *mut c_void,
) -> c_int {
    // Floats, summed.
    if (kind, reduction) != (7, 0) {
        return INVALID_ARGUMENT;
    }
    collective(handle, COLLECTIVES)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclAllGather(
    _: *const c_void,
    _: *mut c_void,
    _: usize,
    _: c_int,
    handle: *mut Comm,
    _: *mut c_void,
) -> c_int {
    collective(handle, COLLECTIVES)
}

#[cfg(not(without_optional))]
#[unsafe(no_mangle)]
pub extern "C" fn ncclAlltoAll(
    _: *const c_void,
    _: *mut c_void,
    _: usize,
    _: c_int,
    handle: *mut Comm,
    _: *mut c_void,
) -> c_int {
    collective(handle, COLLECTIVES)
}

/// A send or a receive: in its group it is enqueued at once. Its element must lie at the peer's place.
fn exchange(handle: *mut Comm, counter: usize, address: usize, count_: usize, peer: c_int) -> c_int {
    let expected = 0x1000 + usize::try_from(peer).unwrap_or(0) * count_ * 4;
    let Some(comm) = comm(handle) else { return INVALID_ARGUMENT };
    if address != expected || peer >= comm.ranks || comm.busy.load(SeqCst) != 0 {
        return INVALID_ARGUMENT;
    }
    count(counter, 1);
    knob(COLLECTIVE_RESULT)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclSend(
    from: *const c_void,
    elements: usize,
    _: c_int,
    peer: c_int,
    handle: *mut Comm,
    _: *mut c_void,
) -> c_int {
    exchange(handle, SENDS, from as usize, elements, peer)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclRecv(
    to: *mut c_void,
    elements: usize,
    _: c_int,
    peer: c_int,
    handle: *mut Comm,
    _: *mut c_void,
) -> c_int {
    exchange(handle, RECVS, to as usize, elements, peer)
}

#[cfg(not(without_optional))]
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetLastError(_: *mut Comm) -> *const c_char {
    c"\nfake: the cable is out\nfake: rank 1 is gone\n".as_ptr()
}
