//! NCCL's version: the profiler's interface does not carry it. The object that NCCL's log function lies in is NCCL; its
//! `ncclGetVersion` is looked up in that object's own table of symbols. `dlsym` would do, but it has another version in glibc
//! 2.34 than before, and a process can hold two NCCLs.
//!
//! This runs once, when a process makes its first communicator.

use core::ffi::{c_int, c_void};

const NAME: &[u8] = b"ncclGetVersion\0";

/// Longest chain of symbols with one hash, and most entries of a dynamic section, that are gone through. NCCL's have some dozens.
const MOST: usize = 1 << 16;

const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_GNU_HASH: i64 = 0x6fff_fef5;

struct Search {
    inside: usize,
    found: usize,
}

/// The version of the NCCL that has `inside` in its code, as its number; 0 if it can't be found.
///
/// # Safety
/// If the object that holds `inside` exports `ncclGetVersion`, it is NCCL's.
pub(super) unsafe fn version(inside: usize) -> u32 {
    let mut search = Search { inside, found: 0 };
    // SAFETY: the callback keeps to what dl_iterate_phdr passes; the objects stay loaded while it runs.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    if search.found == 0 {
        return 0;
    }
    let mut version: c_int = 0;
    // SAFETY: the address is that of the function `ncclGetVersion(int*)` of the object whose code is calling us.
    let result = unsafe {
        let get = core::mem::transmute::<usize, unsafe extern "C" fn(*mut c_int) -> c_int>(search.found);
        get(&raw mut version)
    };
    if result == 0 { u32::try_from(version).unwrap_or(0) } else { 0 }
}

unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _size: usize, data: *mut c_void) -> c_int {
    // SAFETY: dl_iterate_phdr passes the object's description and our search.
    let (info, search) = unsafe { (&*info, &mut *data.cast::<Search>()) };
    let base = info.dlpi_addr as usize;
    let (mut inside, mut dynamic) = (false, 0);
    for place in 0..usize::from(info.dlpi_phnum) {
        // SAFETY: dlpi_phdr has dlpi_phnum entries.
        let header = unsafe { &*info.dlpi_phdr.add(place) };
        let from = base.wrapping_add(header.p_vaddr as usize);
        match header.p_type {
            libc::PT_LOAD => inside |= search.inside.wrapping_sub(from) < header.p_memsz as usize,
            libc::PT_DYNAMIC => dynamic = from,
            _ => {}
        }
    }
    if !inside {
        return 0;
    }
    if dynamic != 0 {
        // SAFETY: the dynamic section of a loaded object, which ends with an empty entry.
        search.found = unsafe { look_up(base, dynamic) }.unwrap_or(0);
    }
    1
}

/// Address of [`NAME`] in the object with this dynamic section.
unsafe fn look_up(base: usize, dynamic: usize) -> Option<usize> {
    let (mut strings, mut symbols, mut hashes) = (0, 0, 0);
    let mut entry = dynamic as *const [i64; 2];
    for _ in 0..MOST {
        // SAFETY: the section ends with a zero tag, and none came yet.
        let [tag, value] = unsafe { entry.read() };
        // The loader has made addresses of offsets, on all but a few machines.
        let value = value as usize;
        let address = if value < base { value.wrapping_add(base) } else { value };
        match tag {
            0 => break,
            DT_STRTAB => strings = address,
            DT_SYMTAB => symbols = address,
            DT_GNU_HASH => hashes = address,
            _ => {}
        }
        entry = entry.wrapping_add(1);
    }
    if strings == 0 || symbols == 0 || hashes == 0 {
        return None;
    }
    let hash = NAME
        .iter()
        .take(NAME.len() - 1)
        .fold(5381_u32, |hash, byte| hash.wrapping_mul(33).wrapping_add(u32::from(*byte)));
    let table = hashes as *const u32;
    // SAFETY: the table begins with four numbers, a filter of so many words, a bucket a hash, and a chain a bucket, which ends with
    // a number whose lowest bit is set.
    unsafe {
        let [buckets, first, filter] = [table.read(), table.add(1).read(), table.add(2).read()];
        if buckets == 0 {
            return None;
        }
        let bucket = table.add(4).wrapping_add(filter as usize * 2);
        let chain = bucket.wrapping_add(buckets as usize);
        let mut symbol = bucket.wrapping_add((hash % buckets) as usize).read();
        if symbol < first {
            return None;
        }
        for _ in 0..MOST {
            let one = chain.wrapping_add((symbol - first) as usize).read();
            if (one ^ hash) & !1 == 0 {
                let entry = &*(symbols as *const libc::Elf64_Sym).wrapping_add(symbol as usize);
                let name = (strings as *const u8).wrapping_add(entry.st_name as usize);
                if entry.st_shndx != 0 && is_name(name) {
                    return Some(base.wrapping_add(entry.st_value as usize));
                }
            }
            if one & 1 != 0 {
                return None;
            }
            symbol = symbol.wrapping_add(1);
        }
    }
    None
}

/// # Safety
/// `text` is a C string.
unsafe fn is_name(text: *const u8) -> bool {
    // SAFETY: the comparison stops at the first difference, so at the string's end at the latest.
    NAME.iter().enumerate().all(|(place, byte)| unsafe { text.add(place).read() } == *byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_without_the_symbol_has_no_version() {
        // SAFETY: neither this program nor the C library exports the name.
        unsafe {
            assert_eq!(version(an_object_without_the_symbol_has_no_version as *const () as usize), 0);
            assert_eq!(version(libc::getpid as *const () as usize), 0);
            assert_eq!(version(16), 0);
        }
    }
}
