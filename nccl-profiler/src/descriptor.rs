//! What NCCL passes to a profiler plugin, `ncclProfiler_v3` to `v6`. Sizes and offsets are those of NCCL 2.30.7's
//! headers, compiled on x86-64; tests hold them.
//!
//! Only the layout: nothing here reads through a pointer.

use core::ffi::{c_char, c_void};

/// Type, parent and rank, from `ncclProfiler_v5` on: the type has 64 bits.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Header {
    /// One bit of [`event`].
    pub kind: u64,
    /// The plugin's own handle of the event that this one is part of; may belong to another process.
    pub parent: *mut c_void,
    /// Rank in the communicator; 0 in some versions, whatever the rank is.
    pub rank: i32,
}

/// Header of `ncclProfiler_v4` and older: the type has 8 bits.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct HeaderV4 {
    /// One bit of [`event`].
    pub kind: u8,
    /// See [`Header::parent`].
    pub parent: *mut c_void,
    /// See [`Header::rank`].
    pub rank: i32,
}

/// A descriptor: a header, and at offset 24 what its type says.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Event<H, P> {
    /// Type, parent and rank.
    pub header: H,
    /// One of the structures below.
    pub payload: P,
}

/// A collective, `ncclProfiler_v4`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Collective {
    /// Sequence number in the communicator, of this function.
    pub sequence: u64,
    /// Name of the function, a C string of NCCL's.
    pub function: *const c_char,
    /// Send buffer.
    pub send: *const c_void,
    /// Receive buffer.
    pub receive: *mut c_void,
    /// Elements.
    pub count: usize,
    /// Root rank.
    pub root: i32,
    /// Name of the data type, a C string of NCCL's.
    pub datatype: *const c_char,
    /// Channels that its kernel uses; in `ncclProfiler_v3` the most that it may use.
    pub channels: u8,
    /// Warps a channel.
    pub warps: u8,
    /// Name of the algorithm.
    pub algorithm: *const c_char,
    /// Name of the protocol.
    pub protocol: *const c_char,
}

/// A collective, `ncclProfiler_v3`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct CollectiveV3 {
    /// The communicator's name.
    pub name: *const c_char,
    /// The communicator's id.
    pub communicator: u64,
    /// The rest.
    pub common: Collective,
}

/// A collective, `ncclProfiler_v5` and later.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct CollectiveV5 {
    /// What older ones have.
    pub common: Collective,
    /// The group that it belongs to.
    pub parent_group: *mut c_void,
}

/// What every version says of a send or receive.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Peer {
    /// Name of the function.
    pub function: *const c_char,
    /// The buffer.
    pub buffer: *mut c_void,
    /// Name of the data type.
    pub datatype: *const c_char,
    /// Elements.
    pub count: usize,
    /// The other rank.
    pub peer: i32,
    /// Channels that its kernel uses; not in `ncclProfiler_v3`, where these bytes are padding.
    pub channels: u8,
}

/// A send or receive, `ncclProfiler_v3`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct PeerV3 {
    /// The communicator's name.
    pub name: *const c_char,
    /// The communicator's id.
    pub communicator: u64,
    /// The rest, without channels.
    pub common: Peer,
}

/// A send or receive, `ncclProfiler_v5` and later.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct PeerV5 {
    /// What older ones have.
    pub common: Peer,
    /// The group that it belongs to.
    pub parent_group: *mut c_void,
}

/// A proxy thread's part of an operation.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ProxyOp {
    /// The process that the operation is of.
    pub pid: i32,
    /// Channel.
    pub channel: u8,
    /// The other rank.
    pub peer: i32,
    /// Steps that it has.
    pub steps: i32,
    /// Bytes of a step.
    pub chunk: i32,
    /// Sending, else receiving.
    pub send: i32,
}

/// One step of a proxy thread's part.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ProxyStep {
    /// Its number.
    pub step: i32,
}

/// A channel of a kernel, `ncclProfiler_v4` and later; v3 has the channel only.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct KernelCh {
    /// Channel.
    pub channel: u8,
    /// The GPU's time at the start.
    pub timer: u64,
}

/// A group of calls, `ncclProfiler_v5` and later.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct GroupApi {
    /// Whether a CUDA graph is being captured.
    pub captured: bool,
    /// How deep groups are nested.
    pub depth: i32,
}

/// The longest payload of v6: a collective on the copy engines. Not asked for; its size is that of the descriptor.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct CopyEngineCollective {
    /// Sequence number.
    pub sequence: u64,
    /// Name of the function.
    pub function: *const c_char,
    /// Send buffer.
    pub send: *const c_void,
    /// Receive buffer.
    pub receive: *mut c_void,
    /// Elements.
    pub count: usize,
    /// Root rank.
    pub root: i32,
    /// Name of the data type.
    pub datatype: *const c_char,
    /// Name of the way to synchronise.
    pub strategy: *const c_char,
    /// Whether batches are synchronised inside.
    pub inside_batch: bool,
    /// Operations a batch.
    pub batch: u32,
    /// Batches.
    pub batches: u32,
    /// Its own count.
    pub own_sequence: u32,
    /// Stream.
    pub stream: *mut c_void,
}

/// The argument of `recordEventState`: one word, by the state a size, a count, a pointer or a time. v3 adds a number.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct StateArgument {
    /// ProxyStep: bytes of the transfer. KernelCh: the GPU's time at the end.
    pub word: u64,
}

/// The argument in `ncclProfiler_v3`: sixteen bytes. Nothing of it is read.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct StateArgumentV3 {
    /// Bytes.
    pub size: usize,
    /// Steps.
    pub steps: i32,
}

/// The table of functions that a plugin exports, 48 bytes. `I` is the type of `init`, which differs.
#[derive(Debug)]
#[repr(C)]
pub struct Table<I> {
    /// The plugin's name, a C string.
    pub name: *const c_char,
    /// A communicator begins.
    pub init: I,
    /// An event begins.
    pub start: unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *const c_void) -> i32,
    /// An event ends.
    pub stop: unsafe extern "C" fn(*mut c_void) -> i32,
    /// An event changes.
    pub state: unsafe extern "C" fn(*mut c_void, i32, *const c_void) -> i32,
    /// A communicator ends.
    pub finalize: unsafe extern "C" fn(*mut c_void) -> i32,
}

// SAFETY: a table holds addresses of functions and of a constant string, and is never written.
unsafe impl<I: Sync> Sync for Table<I> {}

/// NCCL's function for its log, `printf`-like.
pub type Log =
    unsafe extern "C" fn(level: i32, flags: u64, file: *const c_char, line: i32, format: *const c_char, ...);

/// `init` of v3: context, mask.
pub type InitV3 = unsafe extern "C" fn(*mut *mut c_void, *mut i32) -> i32;

/// `init` of v4: context, mask, name, id, nodes, ranks, rank, log.
pub type InitV4 =
    unsafe extern "C" fn(*mut *mut c_void, *mut i32, *const c_char, u64, i32, i32, i32, Option<Log>) -> i32;

/// `init` of v5 and v6: context, id, mask, name, nodes, ranks, rank, log.
pub type InitV5 =
    unsafe extern "C" fn(*mut *mut c_void, u64, *mut i32, *const c_char, i32, i32, i32, Option<Log>) -> i32;

/// Event types, one bit each.
pub mod event {
    /// A group of operations.
    pub const GROUP: u64 = 1 << 0;
    /// A collective.
    pub const COLL: u64 = 1 << 1;
    /// A send or receive.
    pub const P2P: u64 = 1 << 2;
    /// Work of a proxy thread.
    pub const PROXY_OP: u64 = 1 << 3;
    /// One step of it.
    pub const PROXY_STEP: u64 = 1 << 4;
    /// A channel of a kernel.
    pub const KERNEL_CH: u64 = 1 << 6;
    /// A group of calls. From v5 on it is told with any of the others.
    pub const GROUP_API: u64 = 1 << 8;
}

/// States of `recordEventState`.
pub mod state {
    /// A step waits for the own GPU's data.
    pub const SEND_GPU_WAIT: i32 = 8;
    /// A step waits for the network card.
    pub const SEND_WAIT: i32 = 9;
    /// A step waits for the network, so for the sender.
    pub const RECV_WAIT: i32 = 10;
    /// A step waits for the data to be visible to the GPU.
    pub const RECV_FLUSH_WAIT: i32 = 11;
    /// A step waits for the own GPU to take the data.
    pub const RECV_GPU_WAIT: i32 = 12;
    /// A proxy thread works on its part.
    pub const IN_PROGRESS: i32 = 19;
    /// A step waits for the receiver's credit.
    pub const SEND_PEER_WAIT: i32 = 20;
    /// A channel's kernel ended.
    pub const KERNEL_STOP: i32 = 22;
}

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};

    use super::*;

    /// Where a payload's fields stand in the whole descriptor.
    macro_rules! offsets {
        ($payload:ty: $($field:ident $(. $inner:ident)*),+) => {
            [$(offset_of!(Event<Header, $payload>, payload.$field $(.$inner)*)),+]
        };
    }

    #[test]
    fn headers() {
        assert_eq!(
            [offset_of!(Header, kind), offset_of!(Header, parent), offset_of!(Header, rank)],
            [0, 8, 16]
        );
        assert_eq!(
            [offset_of!(HeaderV4, kind), offset_of!(HeaderV4, parent), offset_of!(HeaderV4, rank)],
            [0, 8, 16]
        );
        assert_eq!([size_of::<Header>(), size_of::<HeaderV4>()], [24, 24]);
        assert_eq!(offset_of!(Event<HeaderV4, Collective>, payload), 24);
    }

    #[test]
    fn collectives() {
        assert_eq!(
            offsets!(Collective: sequence, function, send, receive, count, root, datatype, channels, warps, algorithm, protocol),
            [24, 32, 40, 48, 56, 64, 72, 80, 81, 88, 96]
        );
        assert_eq!(
            offsets!(CollectiveV5: common.sequence, common.function, common.send, common.receive, common.count,
                common.root, common.datatype, common.channels, common.warps, common.algorithm, common.protocol, parent_group),
            [24, 32, 40, 48, 56, 64, 72, 80, 81, 88, 96, 104]
        );
        assert_eq!(
            offsets!(CollectiveV3: name, communicator, common.sequence, common.function, common.send, common.receive,
                common.count, common.root, common.datatype, common.channels, common.warps, common.algorithm, common.protocol),
            [24, 32, 40, 48, 56, 64, 72, 80, 88, 96, 97, 104, 112]
        );
    }

    #[test]
    fn sends_and_receives() {
        assert_eq!(
            offsets!(Peer: function, buffer, datatype, count, peer, channels),
            [24, 32, 40, 48, 56, 60]
        );
        assert_eq!(offsets!(PeerV5: common.peer, common.channels, parent_group), [56, 60, 64]);
        assert_eq!(
            offsets!(PeerV3: name, communicator, common.function, common.buffer, common.datatype, common.count, common.peer),
            [24, 32, 40, 48, 56, 64, 72]
        );
    }

    #[test]
    fn proxies_and_kernels() {
        assert_eq!(offsets!(ProxyOp: pid, channel, peer, steps, chunk, send), [24, 28, 32, 36, 40, 44]);
        assert_eq!(offsets!(ProxyStep: step), [24]);
        assert_eq!(offsets!(KernelCh: channel, timer), [24, 32]);
        assert_eq!(offsets!(GroupApi: captured, depth), [24, 28]);
    }

    #[test]
    fn the_longest_payload_is_the_descriptor_s_size() {
        assert_eq!(size_of::<Event<HeaderV4, CollectiveV3>>(), 120, "v3");
        assert_eq!(size_of::<Event<HeaderV4, Collective>>(), 104, "v4");
        assert_eq!(size_of::<Event<Header, CollectiveV5>>(), 112, "v5");
        assert_eq!(size_of::<Event<Header, CopyEngineCollective>>(), 112, "v6");
        assert_eq!(
            offsets!(CopyEngineCollective: strategy, inside_batch, batch, batches, own_sequence, stream),
            [80, 88, 92, 96, 100, 104]
        );
    }

    #[test]
    fn tables_and_arguments() {
        assert_eq!(
            [size_of::<Table<InitV3>>(), size_of::<Table<InitV4>>(), size_of::<Table<InitV5>>()],
            [48; 3]
        );
        assert_eq!(
            [
                offset_of!(Table<InitV5>, name),
                offset_of!(Table<InitV5>, init),
                offset_of!(Table<InitV5>, start),
                offset_of!(Table<InitV5>, stop),
                offset_of!(Table<InitV5>, state),
                offset_of!(Table<InitV5>, finalize),
            ],
            [0, 8, 16, 24, 32, 40]
        );
        assert_eq!([size_of::<StateArgument>(), size_of::<StateArgumentV3>()], [8, 16]);
    }

    #[test]
    fn bits_and_states() {
        assert_eq!(event::COLL | event::P2P | event::KERNEL_CH, 70);
        assert_eq!(
            event::GROUP | event::COLL | event::P2P | event::PROXY_OP | event::PROXY_STEP | event::KERNEL_CH,
            95
        );
        use state::*;
        assert_eq!(
            [
                SEND_GPU_WAIT,
                SEND_WAIT,
                RECV_WAIT,
                RECV_FLUSH_WAIT,
                RECV_GPU_WAIT,
                IN_PROGRESS,
                SEND_PEER_WAIT,
                KERNEL_STOP
            ],
            [8, 9, 10, 11, 12, 19, 20, 22]
        );
    }
}
