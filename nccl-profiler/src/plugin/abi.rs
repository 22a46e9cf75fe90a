//! NCCL's side: the functions of the tables, and how a descriptor of each version is read. Nothing is read that the event's type does
//! not promise.

use core::ffi::{c_char, c_void};

use super::communicators::Identity;
use super::process::{self, active};
use super::{Described, text};
use crate::descriptor::{
    Collective, CollectiveV3, Event, Header, HeaderV4, InitV3, InitV4, InitV5, KernelCh, Log, Peer, PeerV3,
    ProxyOp, ProxyStep, StateArgument, Table, event,
};
use crate::ring::{Function, NAME_BYTES};

/// Name of the plugin, in NCCL's log.
const NAME: *const c_char = c"aimaster".as_ptr();

/// `ncclSuccess`. There is no other answer: what goes wrong here is no business of the job's.
const OK: i32 = 0;

/// `ncclProfiler_v3`.
pub const V3: Table<InitV3> = table::<3, InitV3>(init_v3);
/// `ncclProfiler_v4`.
pub const V4: Table<InitV4> = table::<4, InitV4>(init_v4);
/// `ncclProfiler_v5`.
pub const V5: Table<InitV5> = table::<5, InitV5>(init_v5::<5>);
/// `ncclProfiler_v6`.
pub const V6: Table<InitV5> = table::<6, InitV5>(init_v5::<6>);

const fn table<const API: u32, I>(init: I) -> Table<I> {
    Table { name: NAME, init, start: start::<API>, stop, state: state::<API>, finalize }
}

/// # Safety
/// NCCL's promises: see [`begin`].
unsafe extern "C" fn init_v3(context: *mut *mut c_void, mask: *mut i32) -> i32 {
    let identity = Identity { id: 0, nodes: 0, ranks: 0, rank: -1, name: [0; NAME_BYTES] };
    // SAFETY: the caller's promise.
    unsafe { begin(3, context, mask, None, &identity) }
}

/// # Safety
/// NCCL's promises: see [`begin`].
unsafe extern "C" fn init_v4(
    context: *mut *mut c_void,
    mask: *mut i32,
    name: *const c_char,
    id: u64,
    nodes: i32,
    ranks: i32,
    rank: i32,
    log: Option<Log>,
) -> i32 {
    // SAFETY: NCCL passes null or a C string.
    let name = unsafe { text::start(name) };
    let identity = Identity { id, nodes: nodes as u32, ranks: ranks as u32, rank, name };
    // SAFETY: the caller's promise.
    unsafe { begin(4, context, mask, log, &identity) }
}

/// # Safety
/// NCCL's promises: see [`begin`].
unsafe extern "C" fn init_v5<const API: u32>(
    context: *mut *mut c_void,
    id: u64,
    mask: *mut i32,
    name: *const c_char,
    nodes: i32,
    ranks: i32,
    rank: i32,
    log: Option<Log>,
) -> i32 {
    // SAFETY: NCCL passes null or a C string.
    let name = unsafe { text::start(name) };
    let identity = Identity { id, nodes: nodes as u32, ranks: ranks as u32, rank, name };
    // SAFETY: the caller's promise.
    unsafe { begin(API, context, mask, log, &identity) }
}

/// # Safety
/// `context` is null or may be written; `mask` is null or NCCL's mask, which stays as long as the communicator; `log` is NCCL's.
unsafe fn begin(
    api: u32,
    context: *mut *mut c_void,
    mask: *mut i32,
    log: Option<Log>,
    identity: &Identity,
) -> i32 {
    if context.is_null() {
        return OK;
    }
    text::FUNCTIONS.forget();
    text::TYPES.forget();
    // SAFETY: the caller's promise.
    unsafe { context.write(process::began(api, mask, log, identity)) };
    OK
}

/// # Safety
/// `handle` may be written, `descriptor` is one of the version's.
unsafe extern "C" fn start<const API: u32>(
    context: *mut c_void,
    handle: *mut *mut c_void,
    descriptor: *const c_void,
) -> i32 {
    if handle.is_null() || descriptor.is_null() {
        return OK;
    }
    // SAFETY: the caller's promise. NCCL uses handles again without clearing them, so that there must be an answer always.
    unsafe { handle.write(begun::<API>(context, descriptor)) };
    OK
}

/// # Safety
/// `descriptor` is one of the version's.
#[inline]
unsafe fn begun<const API: u32>(context: *const c_void, descriptor: *const c_void) -> *mut c_void {
    let nothing = core::ptr::null_mut();
    let Some(ring) = active() else { return nothing };
    // SAFETY: every descriptor has its version's header.
    let (kind, parent) = unsafe {
        if API >= 5 {
            let header = descriptor.cast::<Header>();
            ((*header).kind, (*header).parent)
        } else {
            let header = descriptor.cast::<HeaderV4>();
            (u64::from((*header).kind), (*header).parent)
        }
    };
    // SAFETY: the type says which payload there is.
    unsafe {
        match kind {
            event::GROUP => super::group(),
            event::COLL => super::op_began(ring, context, &collective::<API>(descriptor)),
            event::P2P => super::op_began(ring, context, &peer::<API>(descriptor)),
            event::KERNEL_CH => {
                let kernel = payload::<KernelCh>(descriptor);
                let gpu_ns = if API >= 4 { (*kernel).timer } else { 0 };
                super::kernel_began(ring, parent, (*kernel).channel, gpu_ns)
            }
            event::GROUP_API if API >= 5 => {
                // By its byte: a Rust bool must not be anything but 0 and 1.
                if payload::<u8>(descriptor).read() != 0 {
                    super::captured(ring, context);
                }
                nothing
            }
            event::PROXY_OP => super::transfer_began(ring, context, parent, &*payload::<ProxyOp>(descriptor)),
            event::PROXY_STEP => super::step_began(ring, parent, (*payload::<ProxyStep>(descriptor)).step),
            _ => nothing,
        }
    }
}

/// Both headers have 24 bytes, so that payloads stand at one place.
const fn payload<P>(descriptor: *const c_void) -> *const P {
    // SAFETY: no more than the address of a field: nothing is read.
    unsafe { &raw const (*descriptor.cast::<Event<Header, P>>()).payload }
}

/// # Safety
/// `name` is null or one of NCCL's names of functions.
#[inline]
unsafe fn function(name: *const c_char) -> Function {
    // SAFETY: the caller's promise.
    Function::of(text::FUNCTIONS.of(name, || unsafe { text::function(name) } as u8))
}

/// # Safety
/// `name` is null or one of NCCL's names of types.
#[inline]
unsafe fn element_bytes(name: *const c_char) -> u64 {
    // SAFETY: the caller's promise.
    u64::from(text::TYPES.of(name, || unsafe { text::element_bytes(name) } as u8))
}

/// # Safety
/// `descriptor` is a collective's.
#[inline]
unsafe fn collective<const API: u32>(descriptor: *const c_void) -> Described {
    let (common, communicator_id) = if API == 3 {
        let whole = payload::<CollectiveV3>(descriptor);
        // SAFETY: the caller's promise.
        unsafe { (&raw const (*whole).common, (*whole).communicator) }
    } else {
        (payload::<Collective>(descriptor), 0)
    };
    // SAFETY: the caller's promise; NCCL's names are null or C strings.
    unsafe {
        let one = &*common;
        Described {
            communicator_id,
            function: function(one.function),
            sequence: Some(one.sequence),
            peer: one.root,
            bytes: (one.count as u64).saturating_mul(element_bytes(one.datatype)),
            // In v3 it is the most that there can be: nobody can wait for so many.
            channels: if API == 3 { 0 } else { one.channels },
        }
    }
}

/// # Safety
/// `descriptor` is a send's or a receive's.
#[inline]
unsafe fn peer<const API: u32>(descriptor: *const c_void) -> Described {
    let (common, communicator_id) = if API == 3 {
        let whole = payload::<PeerV3>(descriptor);
        // SAFETY: the caller's promise.
        unsafe { (&raw const (*whole).common, (*whole).communicator) }
    } else {
        (payload::<Peer>(descriptor), 0)
    };
    // SAFETY: the caller's promise; NCCL's names are null or C strings. Padding of v3 is not read.
    unsafe {
        let function = function((*common).function);
        Described {
            communicator_id,
            function: if function == Function::Other { Function::SendRecv } else { function },
            sequence: None,
            peer: (*common).peer,
            bytes: ((*common).count as u64).saturating_mul(element_bytes((*common).datatype)),
            channels: if API == 3 { 0 } else { (*common).channels },
        }
    }
}

/// Takes any handle: what is not ours is counted.
unsafe extern "C" fn stop(handle: *mut c_void) -> i32 {
    super::stopped(handle);
    OK
}

/// # Safety
/// `argument` is null or what belongs to the state.
unsafe extern "C" fn state<const API: u32>(handle: *mut c_void, what: i32, argument: *const c_void) -> i32 {
    super::changed(handle, what, || {
        if API == 3 || argument.is_null() {
            return 0;
        }
        // SAFETY: steps and kernels have a word.
        unsafe { (*argument.cast::<StateArgument>()).word }
    });
    OK
}

/// Takes any context: what is not ours is counted.
unsafe extern "C" fn finalize(context: *mut c_void) -> i32 {
    process::ended(context);
    OK
}
