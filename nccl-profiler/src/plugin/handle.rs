//! Handles: what NCCL gets for an event and brings back. Numbers in the dress of pointers; nobody follows them.
//!
//! A handle of another process (PXN), of an event that is over, or of nobody is told apart by kind, salt and generation.

use core::ffi::c_void;

/// What a handle stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Communicator = 1,
    Group = 2,
    Op = 3,
    Kernel = 4,
    Proxy = 5,
    Step = 6,
}

/// From the lowest bit: kind 3, index 12, part 6, salt 11, generation 32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Handle {
    pub(super) kind: Kind,
    /// In the table of its kind; below 4096.
    pub(super) index: u32,
    /// Channel of a kernel, place of a step; below 64.
    pub(super) part: u32,
    pub(super) generation: u32,
}

const SALT: u64 = 0x7ff << 21;

impl Handle {
    pub(super) fn to_pointer(self, salt: u64) -> *mut c_void {
        let low = self.kind as u64 | u64::from(self.index & 0xfff) << 3 | u64::from(self.part & 0x3f) << 15;
        let word = low | (salt << 21) & SALT | u64::from(self.generation) << 32;
        core::ptr::without_provenance_mut(word as usize)
    }

    /// The handle, if it can be one of this process's of this kind.
    pub(super) fn of(pointer: *const c_void, kind: Kind, salt: u64) -> Option<Self> {
        let word = pointer.addr() as u64;
        if word & 7 != kind as u64 || (word ^ salt << 21) & SALT != 0 {
            return None;
        }
        Some(Self {
            kind,
            index: (word >> 3) as u32 & 0xfff,
            part: (word >> 15) as u32 & 0x3f,
            generation: (word >> 32) as u32,
        })
    }

    /// What kind a pointer says it is of; nothing is known of it yet.
    pub(super) fn kind(pointer: *const c_void) -> Option<Kind> {
        Some(match pointer.addr() & 7 {
            1 => Kind::Communicator,
            2 => Kind::Group,
            3 => Kind::Op,
            4 => Kind::Kernel,
            5 => Kind::Proxy,
            6 => Kind::Step,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_own_kind_and_salt_come_back() {
        let handle = Handle { kind: Kind::Step, index: 4095, part: 63, generation: u32::MAX };
        let pointer = handle.to_pointer(0x12345);
        assert_eq!(Handle::of(pointer, Kind::Step, 0x12345), Some(handle));
        assert_eq!(Handle::kind(pointer), Some(Kind::Step));
        assert_eq!(Handle::of(pointer, Kind::Proxy, 0x12345), None);
        assert_eq!(Handle::of(pointer, Kind::Step, 0x12346), None);
        for wild in [0, 8, usize::MAX] {
            let pointer = core::ptr::without_provenance_mut(wild);
            assert!(Handle::kind(pointer).is_none(), "{wild:#x}");
        }
    }
}
