//! The plugin's file: what it offers to other objects of the user's process, and what it needs of a container's C library.

use std::collections::BTreeSet;

use object::elf::FileHeader64;
use object::read::elf::{Dyn, FileHeader, SectionTable};
use object::{Endianness, Object, ObjectSymbol};

use crate::agent::built;

/// Red Hat 7's: no image with CUDA 12 has an older one.
const OLDEST_GLIBC: [u32; 2] = [2, 17];

fn bytes() -> Vec<u8> {
    std::fs::read(&built().plugin).unwrap()
}

#[test]
fn only_nccl_s_names_are_offered() {
    let bytes = bytes();
    let file = object::File::parse(&*bytes).unwrap();
    let offered: BTreeSet<_> = file
        .dynamic_symbols()
        .filter(|symbol| !symbol.is_undefined())
        .map(|symbol| symbol.name().unwrap())
        .collect();
    let expected = ["ncclProfiler_v3", "ncclProfiler_v4", "ncclProfiler_v5", "ncclProfiler_v6"];
    assert_eq!(offered, BTreeSet::from(expected));
}

#[test]
fn tables_have_48_bytes() {
    let bytes = bytes();
    let file = object::File::parse(&*bytes).unwrap();
    let mut tables = 0;
    for symbol in file.dynamic_symbols().filter(|symbol| !symbol.is_undefined()) {
        assert_eq!(symbol.size(), 48, "{:?}", symbol.name());
        tables += 1;
    }
    assert_eq!(tables, 4);
}

#[test]
fn nothing_is_needed_that_an_old_container_lacks_or_that_a_rank_must_not_do() {
    let bytes = bytes();
    let file = object::File::parse(&*bytes).unwrap();
    let needed: BTreeSet<_> = file
        .dynamic_symbols()
        .filter(|symbol| symbol.is_undefined() && !symbol.is_weak())
        .map(|symbol| symbol.name().unwrap())
        .filter(|name| !name.is_empty())
        .collect();
    assert!(needed.contains("sendmsg"), "{needed:?}");
    for never in [
        "malloc",
        "calloc",
        "realloc",
        "posix_memalign",
        "free",
        "pthread_create",
        "pthread_mutex_lock",
        "pthread_atfork",
        "__register_atfork",
        "atexit",
        "__cxa_atexit",
        "__cxa_thread_atexit_impl",
        "__tls_get_addr",
        "pthread_key_create",
        "_Unwind_Resume",
        "abort",
        "dlopen",
        "dlsym",
        "memfd_create",
        "fork",
        "sigaction",
        "poll",
        "nanosleep",
    ] {
        assert!(!needed.contains(never), "{never}");
    }
    assert_eq!(Elf::of(&bytes).libraries(), ["libc.so.6"]);
    let mut versions = 0;
    for version in Elf::of(&bytes).versions() {
        let numbers = version.strip_prefix("GLIBC_").unwrap_or_else(|| panic!("{version}"));
        let mut parts = numbers.split('.').map(|part| part.parse::<u32>().unwrap());
        let number = [parts.next().unwrap(), parts.next().unwrap()];
        assert!(number <= OLDEST_GLIBC, "{version}");
        versions += 1;
    }
    assert!(versions > 0);
}

#[test]
fn unloading_leaves_the_code_in_place() {
    let bytes = bytes();
    let elf = Elf::of(&bytes);
    let flags: u64 = elf.dynamic().filter(|(tag, _)| *tag == DT_FLAGS_1).map(|(_, value)| value).sum();
    assert_ne!(flags & DF_1_NODELETE, 0);
}

const DT_NEEDED: i64 = 1;
const DT_FLAGS_1: i64 = 0x6fff_fffb;
const DF_1_NODELETE: u64 = 8;

struct Elf<'a> {
    bytes: &'a [u8],
    endian: Endianness,
    sections: SectionTable<'a, FileHeader64<Endianness>>,
}

impl<'a> Elf<'a> {
    fn of(bytes: &'a [u8]) -> Self {
        let header = FileHeader64::<Endianness>::parse(bytes).unwrap();
        let endian = header.endian().unwrap();
        Self { bytes, endian, sections: header.sections(endian, bytes).unwrap() }
    }

    fn dynamic(&self) -> impl Iterator<Item = (i64, u64)> {
        let entries = self.sections.dynamic(self.endian, self.bytes).unwrap().unwrap().0;
        entries.iter().map(|entry| (entry.tag(self.endian).0, entry.val(self.endian)))
    }

    fn libraries(&self) -> Vec<String> {
        let index = self.sections.dynamic(self.endian, self.bytes).unwrap().unwrap().1;
        let strings = self.sections.strings(self.endian, self.bytes, index).unwrap();
        let needed = self.dynamic().filter(|(tag, _)| *tag == DT_NEEDED);
        needed.map(|(_, at)| String::from_utf8(strings.get(at as u32).unwrap().to_vec()).unwrap()).collect()
    }

    /// Names of the versions of symbols that are needed of the libraries.
    fn versions(&self) -> Vec<String> {
        let (mut libraries, index) = self.sections.gnu_verneed(self.endian, self.bytes).unwrap().unwrap();
        let strings = self.sections.strings(self.endian, self.bytes, index).unwrap();
        let mut found = Vec::new();
        while let Some((_, mut versions)) = libraries.next().unwrap() {
            while let Some(version) = versions.next().unwrap() {
                let name = version.name(self.endian, strings).unwrap();
                found.push(String::from_utf8(name.to_vec()).unwrap());
            }
        }
        found
    }
}
