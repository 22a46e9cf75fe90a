//! The plugin: what happens in a rank's process when NCCL calls.
//!
//! It never allocates after a process's first communicator, takes no lock, waits for nobody, makes no system call once a communicator has
//! begun (the clock is none), starts no thread and leaves no descriptor open. What has no room is dropped and counted. Nothing here
//! can panic: the plugin's file is linked only if no such path is left in it (see the package `nccl-profiler-plugin`).
//!
//! State is the process's: NCCL may unload and load the file again, which changes nothing (`-z nodelete`). A child of fork has
//! the parent's memory but must not write to the parent's ring; it is told by a page that fork wipes.

mod abi;
mod communicators;
mod handle;
mod nccl;
mod ops;
mod process;
mod shared;
mod steps;
mod system;
mod text;
mod version;

pub use abi::{V3, V4, V5, V6};

use core::ffi::c_void;

use communicators::Communicator;
use handle::{Handle, Kind};
use ops::{InFlight, NewOp};
use process::{active, salt};
use shared::{Reached, Ring};
use steps::{NewTransfer, Transfer};

use crate::descriptor::{event, state};
use crate::ring::{Counter, Function, Record};

/// A collective, a send or a receive as NCCL describes it, whatever the version of the interface.
#[derive(Clone, Copy)]
struct Described {
    /// Of the communicator, where the operation carries it; 0 else.
    communicator_id: u64,
    function: Function,
    /// None for those that NCCL does not number.
    sequence: Option<u64>,
    /// Peer or root.
    peer: i32,
    bytes: u64,
    /// 0 if not known.
    channels: u8,
}

/// The context's communicator; counted if there is none.
fn communicator(ring: Ring, context: *const c_void) -> Option<Communicator> {
    let found = Communicator::of(ring, context, salt());
    // Without a slot there was no context; that is counted already.
    if found.is_none() && !context.is_null() {
        ring.count(Counter::Stale);
    }
    found
}

/// A collective, a send or a receive is handed to NCCL.
fn op_began(ring: Ring, context: *const c_void, what: &Described) -> *mut c_void {
    let nothing = core::ptr::null_mut();
    let Some(communicator) = communicator(ring, context) else {
        return nothing;
    };
    let now_ns = system::now_ns();
    communicator.learn_id(ring, what.communicator_id);
    let to_itself = what.sequence.is_none() && what.peer == communicator.rank(ring);
    // Copies within the GPU: no kernel of NCCL's, nobody to wait for.
    if to_itself || communicator.is_alone(ring) {
        process::obey(ring, communicator, now_ns);
        return nothing;
    }
    let cell = ring.progress(communicator.slot, what.function);
    let sequence = match what.sequence {
        Some(sequence) => {
            cell.reached(Reached::Enqueued, sequence, now_ns);
            sequence
        }
        None => cell.count_one(now_ns),
    };
    cell.set_bytes(what.bytes);
    process::begin_window(sequence, now_ns);
    let mask = process::obey(ring, communicator, now_ns);
    let new = NewOp {
        communicator,
        function: what.function,
        sequence,
        peer: what.peer,
        bytes: what.bytes,
        channels: what.channels,
        kernels: mask & event::KERNEL_CH != 0,
    };
    if !what.function.is_collective() {
        let (bytes, channels) = (what.bytes, what.channels);
        ring.record(&Record::Enqueued { op: new.op(), time_ns: now_ns, bytes, channels });
    }
    // Nothing more is told of it.
    if mask & (event::KERNEL_CH | event::PROXY_OP) == 0 {
        return nothing;
    }
    let begun = ops::begin(ring, &new, now_ns);
    begun.map_or(nothing, |op| op.handle().to_pointer(salt()))
}

/// A channel's kernel began. `gpu_ns` is 0 if the interface does not carry the GPU's time.
fn kernel_began(ring: Ring, parent: *const c_void, channel: u8, gpu_ns: u64) -> *mut c_void {
    let nothing = core::ptr::null_mut();
    // The operation had no room, or it is one that is not looked at.
    if parent.is_null() {
        return nothing;
    }
    let Some(op) = Handle::of(parent, Kind::Op, salt()).and_then(InFlight::of) else {
        ring.count(Counter::Stale);
        return nothing;
    };
    let begun = op.channel_began(ring, channel, gpu_ns, system::now_ns);
    begun.map_or(nothing, |kernel| kernel.to_pointer(salt()))
}

/// A proxy thread begins its part. What `parent` and `context` are is known only if the part is for this process.
fn transfer_began(
    ring: Ring,
    context: *const c_void,
    parent: *const c_void,
    what: &crate::descriptor::ProxyOp,
) -> *mut c_void {
    let nothing = core::ptr::null_mut();
    if what.pid as u32 != process::pid() {
        ring.count(Counter::Foreign);
        return nothing;
    }
    let Some(communicator) = communicator(ring, context) else {
        return nothing;
    };
    let now_ns = system::now_ns();
    process::obey(ring, communicator, now_ns);
    let new = NewTransfer {
        communicator,
        op: Handle::of(parent, Kind::Op, salt()).and_then(InFlight::of).map(InFlight::op),
        peer: what.peer,
        channel: what.channel,
        steps: u32::try_from(what.steps).unwrap_or(0),
        send: what.send != 0,
    };
    Transfer::begin(ring, &new, now_ns).map_or(nothing, |handle| handle.to_pointer(salt()))
}

/// A step of a part begins.
fn step_began(ring: Ring, parent: *const c_void, number: i32) -> *mut c_void {
    let nothing = core::ptr::null_mut();
    // The part had no room or is another process's.
    if parent.is_null() {
        return nothing;
    }
    let transfer = Handle::of(parent, Kind::Proxy, salt()).and_then(|handle| Transfer::of(ring, handle));
    let Some(transfer) = transfer else {
        ring.count(Counter::Stale);
        return nothing;
    };
    let step = transfer.step_began(number, system::now_ns());
    step.map_or(nothing, |step| step.to_pointer(salt()))
}

/// An event ends.
fn stopped(pointer: *const c_void) {
    if pointer.is_null() {
        return;
    }
    let Some(ring) = active() else { return };
    let found = Handle::kind(pointer).and_then(|kind| Handle::of(pointer, kind, salt()));
    match found {
        Some(Handle { kind: Kind::Group, .. }) => {}
        Some(handle @ Handle { kind: Kind::Op, .. }) => {
            // By now it may have ended on the GPU too.
            if let Some(op) = InFlight::of(handle) {
                op.enqueued();
            }
        }
        Some(handle @ Handle { kind: Kind::Kernel, .. }) => match InFlight::of(handle) {
            Some(op) => op.channel_ended(ring, handle.part),
            None => ring.count(Counter::Stale),
        },
        Some(handle @ Handle { kind: Kind::Proxy, .. }) => match Transfer::of(ring, handle) {
            Some(transfer) => transfer.end(ring, system::now_ns()),
            None => ring.count(Counter::Stale),
        },
        Some(handle @ Handle { kind: Kind::Step, .. }) => steps::step_ended(ring, handle, system::now_ns()),
        Some(Handle { kind: Kind::Communicator, .. }) | None => ring.count(Counter::Stale),
    }
}

/// An event changes. `word` gives the state's argument: bytes of a step, the GPU's time of a kernel.
fn changed(pointer: *const c_void, what: i32, word: impl FnOnce() -> u64) {
    if pointer.is_null() {
        return;
    }
    let Some(ring) = active() else { return };
    match (Handle::kind(pointer), what) {
        (Some(Kind::Kernel), state::KERNEL_STOP) => {
            let handle = Handle::of(pointer, Kind::Kernel, salt());
            match handle.and_then(|handle| Some((InFlight::of(handle)?, handle.part))) {
                Some((op, channel)) => op.channel_stopped_at(ring, channel, word()),
                None => ring.count(Counter::Stale),
            }
        }
        (Some(Kind::Step), state::SEND_GPU_WAIT..=state::RECV_GPU_WAIT | state::SEND_PEER_WAIT) => {
            match Handle::of(pointer, Kind::Step, salt()) {
                Some(handle) => steps::step_changed(ring, handle, what, word(), system::now_ns()),
                None => ring.count(Counter::Stale),
            }
        }
        // What else there is says nothing that is looked at.
        _ => {}
    }
}

/// A CUDA graph is being captured. What NCCL is asked for then holds for every replay, and without KernelCh replays are not numbered,
/// or not told at all: of ranks with it and ranks without it one would seem to fall behind the other. So it stays on from here.
fn captured(ring: Ring, context: *const c_void) {
    process::pin_kernels();
    if let Some(communicator) = communicator(ring, context) {
        process::obey(ring, communicator, system::now_ns());
    }
}

/// The handle of every group. Up to 2.28.2 NCCL tells only operations whose group has one, and to this day it numbers collectives in
/// CUDA graphs only then.
fn group() -> *mut c_void {
    Handle { kind: Kind::Group, index: 0, part: 0, generation: 0 }.to_pointer(salt())
}
