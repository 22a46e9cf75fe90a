//! NCCL's names, read from its C strings without a copy that could overrun and without a comparison of many bytes.

use core::ffi::c_char;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use crate::ring::Function;

/// Bytes of a name that are looked at; the longest that matters is `ReduceScatter`.
const LONGEST: usize = 16;

/// The first bytes of a C string, padded with zeros. Nothing after its NUL is touched.
///
/// # Safety
/// `text` is null or a C string.
pub(super) unsafe fn start<const N: usize>(text: *const c_char) -> [u8; N] {
    let mut bytes = [0; N];
    if text.is_null() {
        return bytes;
    }
    for (place, byte) in bytes.iter_mut().enumerate() {
        // SAFETY: no NUL came before this place, so that it belongs to the string.
        let letter = unsafe { text.add(place).read() } as u8;
        if letter == 0 {
            break;
        }
        *byte = letter;
    }
    bytes
}

const fn key(name: &str) -> u128 {
    let (bytes, mut key, mut place) = (name.as_bytes(), 0, 0);
    while place < bytes.len() {
        key |= (bytes[place] as u128) << (8 * place);
        place += 1;
    }
    key
}

/// What names were found to mean, by their address: NCCL's names of functions and types are literals in its file. Address in the
/// upper 56 bits; addresses of a process have fewer.
pub(super) struct Meanings([AtomicU64; MEANINGS]);

/// A job uses two or three of each.
const MEANINGS: usize = 16;

pub(super) static FUNCTIONS: Meanings = Meanings::new();
pub(super) static TYPES: Meanings = Meanings::new();

impl Meanings {
    const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; MEANINGS])
    }

    /// The meaning of a name, read if it is not known.
    #[inline]
    pub(super) fn of(&self, name: *const c_char, read: impl FnOnce() -> u8) -> u8 {
        let address = name.addr() as u64;
        let Some(known) = self.0.get((address >> 3) as usize % MEANINGS) else { return read() };
        let word = known.load(Relaxed);
        if word >> 8 == address && address != 0 {
            return word as u8;
        }
        let meaning = read();
        known.store(address << 8 | u64::from(meaning), Relaxed);
        meaning
    }

    /// Nothing is known any more: another NCCL may lie where one was.
    pub(super) fn forget(&self) {
        self.0.iter().for_each(|known| known.store(0, Relaxed));
    }
}

/// The function of a name.
///
/// # Safety
/// `name` is null or a C string.
pub(super) unsafe fn function(name: *const c_char) -> Function {
    const BROADCAST: u128 = key(Function::Broadcast.name());
    const REDUCE: u128 = key(Function::Reduce.name());
    const ALL_GATHER: u128 = key(Function::AllGather.name());
    const REDUCE_SCATTER: u128 = key(Function::ReduceScatter.name());
    const ALL_REDUCE: u128 = key(Function::AllReduce.name());
    const SEND_RECV: u128 = key(Function::SendRecv.name());
    const SEND: u128 = key(Function::Send.name());
    const RECV: u128 = key(Function::Recv.name());
    const ALL_TO_ALL: u128 = key(Function::AllToAll.name());
    const SCATTER: u128 = key(Function::Scatter.name());
    const GATHER: u128 = key(Function::Gather.name());
    // SAFETY: the caller's promise.
    match u128::from_le_bytes(unsafe { start::<LONGEST>(name) }) {
        BROADCAST => Function::Broadcast,
        REDUCE => Function::Reduce,
        ALL_GATHER => Function::AllGather,
        REDUCE_SCATTER => Function::ReduceScatter,
        ALL_REDUCE => Function::AllReduce,
        SEND_RECV => Function::SendRecv,
        SEND => Function::Send,
        RECV => Function::Recv,
        ALL_TO_ALL => Function::AllToAll,
        SCATTER => Function::Scatter,
        GATHER => Function::Gather,
        _ => Function::Other,
    }
}

/// Bytes of an element, by the bits in the type's name: `ncclFloat32`, `ncclFloat8e4m3`. 1 if it says none.
///
/// # Safety
/// `datatype` is null or a C string.
pub(super) unsafe fn element_bytes(datatype: *const c_char) -> u64 {
    // SAFETY: the caller's promise.
    let name: [u8; LONGEST] = unsafe { start(datatype) };
    match name.iter().find(|byte| byte.is_ascii_digit()) {
        Some(b'6') => 8,
        Some(b'3') => 4,
        Some(b'1') => 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function_of(name: &std::ffi::CStr) -> Function {
        // SAFETY: a C string.
        unsafe { function(name.as_ptr()) }
    }

    #[test]
    fn names_and_sizes() {
        for one in Function::ALL {
            assert_eq!(function_of(&std::ffi::CString::new(one.name()).unwrap()), one);
        }
        for name in [c"AllReduceExtra", c"AllReduc", c"", c"a name that is longer than sixteen bytes"] {
            assert_eq!(function_of(name), Function::Other, "{name:?}");
        }
        for (name, bytes) in [
            (c"ncclInt8", 1),
            (c"ncclUint8", 1),
            (c"ncclInt32", 4),
            (c"ncclUint64", 8),
            (c"ncclFloat16", 2),
            (c"ncclFloat32", 4),
            (c"ncclFloat64", 8),
            (c"ncclBfloat16", 2),
            (c"ncclFloat8e4m3", 1),
            (c"Unknown", 1),
        ] {
            // SAFETY: a C string.
            assert_eq!(unsafe { element_bytes(name.as_ptr()) }, bytes, "{name:?}");
        }
        // SAFETY: null is allowed.
        let of_nothing = unsafe { (function(std::ptr::null()), element_bytes(std::ptr::null())) };
        assert_eq!(of_nothing, (Function::Other, 1));
    }

    #[test]
    fn a_name_is_read_once_until_it_is_forgotten() {
        let meanings = Meanings::new();
        let (one, other) = (c"one".as_ptr(), c"other".as_ptr());
        assert_eq!((meanings.of(one, || 1), meanings.of(other, || 2)), (1, 2));
        assert_eq!(meanings.of(one, || 3), if (one.addr() ^ other.addr()) >> 3 & 15 == 0 { 3 } else { 1 });
        assert_eq!(meanings.of(other, || 2), 2);
        assert_eq!(meanings.of(other, || 7), 2);
        meanings.forget();
        assert_eq!(meanings.of(other, || 7), 7);
        assert_eq!((meanings.of(core::ptr::null(), || 4), meanings.of(core::ptr::null(), || 5)), (4, 5));
    }

    #[test]
    fn nothing_behind_the_end_is_read() {
        let text = *b"ab\0cd\0";
        // SAFETY: a C string.
        assert_eq!(unsafe { start::<6>(text.as_ptr().cast()) }, *b"ab\0\0\0\0");
        // SAFETY: a C string.
        assert_eq!(unsafe { start::<1>(text.as_ptr().cast()) }, *b"a");
    }
}
