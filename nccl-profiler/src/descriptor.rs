//! The event descriptor of `startEvent`. Sizes and offsets are those of NCCL 2.30.7's headers, compiled on
//! x86-64; a test holds them.

use std::ffi::c_void;

/// What every descriptor begins with, from `ncclProfiler_v5` on: the type has 64 bits.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Header {
    /// One bit of [`event`].
    pub kind: u64,
    /// The plugin's own handle of the event that this one is part of; may belong to another process.
    pub parent: *mut c_void,
    /// Rank in the communicator.
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
    /// Rank in the communicator.
    pub rank: i32,
}

/// A collective, `ncclProfiler_v5` and later.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Collective {
    /// The header.
    pub header: Header,
    /// Sequence number in the communicator.
    pub sequence: u64,
    /// Name of the function, a C string of NCCL's.
    pub function: *const std::ffi::c_char,
    /// Send buffer.
    pub send: *const c_void,
    /// Receive buffer.
    pub receive: *mut c_void,
    /// Elements.
    pub count: usize,
    /// Root rank.
    pub root: i32,
    /// Name of the data type, a C string of NCCL's.
    pub datatype: *const std::ffi::c_char,
    /// Channels.
    pub channels: u8,
    /// Warps a channel.
    pub warps: u8,
    /// Name of the algorithm.
    pub algorithm: *const std::ffi::c_char,
    /// Name of the protocol.
    pub protocol: *const std::ffi::c_char,
    /// The group that it belongs to.
    pub parent_group: *mut c_void,
}

/// Event types, one bit each.
pub mod event {
    /// A group of calls.
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
}

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};

    use super::*;

    #[test]
    fn offsets_are_those_of_nccls_headers() {
        assert_eq!(
            [offset_of!(Header, kind), offset_of!(Header, parent), offset_of!(Header, rank)],
            [0, 8, 16]
        );
        assert_eq!([offset_of!(HeaderV4, parent), offset_of!(HeaderV4, rank)], [8, 16]);
        assert_eq!(
            [
                offset_of!(Collective, sequence),
                offset_of!(Collective, function),
                offset_of!(Collective, send),
                offset_of!(Collective, receive),
                offset_of!(Collective, count),
                offset_of!(Collective, root),
                offset_of!(Collective, datatype),
                offset_of!(Collective, channels),
                offset_of!(Collective, warps),
                offset_of!(Collective, algorithm),
                offset_of!(Collective, protocol),
                offset_of!(Collective, parent_group),
            ],
            [24, 32, 40, 48, 56, 64, 72, 80, 81, 88, 96, 104]
        );
        assert_eq!(size_of::<Collective>(), 112);
    }
}
