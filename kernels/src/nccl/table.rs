//! NCCL's functions as pointers, and the few constants and structures of its header that are used. It calls nothing
//! but `ncclGetVersion`.
//!
//! Names, types and numbers are those of `src/nccl.h.in` of NVIDIA/nccl, read in versions 2.14 to 2.31.

use std::error::Error as _;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use super::error::NcclError;

/// The name that NVIDIA's packages and Python wheels ship it under; only development packages have another.
const NAME: &str = "libnccl.so.2";

/// Where the dynamic loader looks for a name without a path.
const LOADER_SEARCH: &str = "by the dynamic loader: LD_LIBRARY_PATH, /etc/ld.so.cache, /lib, /usr/lib";

/// A result, as an integer: a newer NCCL may return what no list of ours has.
pub(super) type Code = c_int;
/// Done.
pub(super) const SUCCESS: Code = 0;
/// A non-blocking call goes on in the background.
pub(super) const IN_PROGRESS: Code = 7;

/// `ncclFloat32`.
pub(super) const FLOAT32: c_int = 7;
/// `ncclSum`.
pub(super) const SUM: c_int = 0;
/// `NCCL_SPLIT_NOCOLOR`: a rank that is in none of the new communicators.
pub(super) const NO_COLOR: c_int = -1;

/// A communicator as NCCL hands it out.
pub(super) type RawComm = *mut c_void;
/// A CUDA stream.
pub(super) type RawStream = *mut c_void;

/// `ncclUniqueId`, which is passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RawId(pub [u8; 128]);

/// `ncclConfig_t` as NCCL 2.14 had it. Every later version reads as many bytes as `size` says, takes its own defaults
/// for the rest, and resets what a configuration of this `version` can't have set (`parseCommConfig` in
/// `src/init.cc`), so one layout serves all of them.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    /// Padding in 2.14 and `cgaClusterSize` from 2.17 on: "undefined" there, whatever `version` says.
    cga_cluster_size: c_int,
}

/// `NCCL_API_MAGIC`: without it NCCL takes the structure for one that was never filled in.
const MAGIC: c_uint = 0xcafe_beef;
/// The version whose layout [`Config`] has.
const LAYOUT: c_uint = 21_400;
/// `NCCL_CONFIG_UNDEF_INT`.
const UNDEFINED: c_int = c_int::MIN;

impl Config {
    pub(super) fn non_blocking() -> Self {
        Self {
            size: size_of::<Self>(),
            magic: MAGIC,
            version: LAYOUT,
            blocking: 0,
            cga_cluster_size: UNDEFINED,
        }
    }
}

/// A version of NCCL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// First number.
    pub major: c_int,
    /// Second number.
    pub minor: c_int,
    /// Third number.
    pub patch: c_int,
}

/// In older ones an abort reaches only what the aborting thread itself began, so an init that hangs could not be ended
/// within a limit; the same version brought `ncclCommSplit`.
pub(super) const OLDEST: Version = Version { major: 2, minor: 18, patch: 0 };

impl Version {
    /// From `ncclGetVersion`: 2809 is 2.8.9, and from 2.9 on 22809 is 2.28.9.
    fn from_code(code: c_int) -> Self {
        let major = if code < 10_000 { code / 1000 } else { code / 10_000 };
        let rest = if code < 10_000 { code % 1000 } else { code % 10_000 };
        Self { major, minor: rest / 100, patch: rest % 100 }
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

macro_rules! table {
    (
        required { $($field:ident $symbol:literal ($($argument:ty),*) -> $result:ty;)* }
        optional { $($maybe:ident $maybe_symbol:literal ($($maybe_argument:ty),*) -> $maybe_result:ty;)* }
    ) => {
        /// The functions, the library's name and its version.
        pub(super) struct Table {
            pub(super) library: PathBuf,
            pub(super) version: Version,
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) -> $result,)*
            $(pub(super) $maybe: Option<unsafe extern "C" fn($($maybe_argument),*) -> $maybe_result>,)*
            /// Keeps the code mapped, for good.
            _mapped: ManuallyDrop<Library>,
        }

        impl Table {
            fn find(mapped: Library, library: &Path) -> Result<Self, NcclError> {
                $(
                    // SAFETY: the type is the header's for this name in every version since 2.14.
                    let $field = unsafe { mapped.get::<Option<unsafe extern "C" fn($($argument),*) -> $result>>($symbol) };
                    let $field = $field.map(|found| *found).map_err(|error| (Some(error), $symbol));
                    let $field = $field.and_then(|found| found.ok_or((None, $symbol)));
                    let $field = $field.map_err(|(error, symbol)| NcclError::Symbol {
                        library: library.to_owned(),
                        symbol,
                        loader: error.map_or_else(|| "it is null".to_owned(), |error| words(&error)),
                    })?;
                )*
                $(
                    // SAFETY: the type is the header's for this name in every version that has it.
                    let $maybe = unsafe {
                        mapped.get::<Option<unsafe extern "C" fn($($maybe_argument),*) -> $maybe_result>>($maybe_symbol)
                    };
                    let $maybe = $maybe.ok().and_then(|found| *found);
                )*
                let version = Version { major: 0, minor: 0, patch: 0 };
                let _mapped = ManuallyDrop::new(mapped);
                Ok(Self { library: library.to_owned(), version, $($field,)* $($maybe,)* _mapped })
            }
        }
    };
}

table! {
    required {
        get_version "ncclGetVersion" (*mut c_int) -> Code;
        get_unique_id "ncclGetUniqueId" (*mut RawId) -> Code;
        init_rank_config "ncclCommInitRankConfig" (*mut RawComm, c_int, RawId, c_int, *mut Config) -> Code;
        get_async_error "ncclCommGetAsyncError" (RawComm, *mut Code) -> Code;
        abort "ncclCommAbort" (RawComm) -> Code;
        destroy "ncclCommDestroy" (RawComm) -> Code;
        count "ncclCommCount" (RawComm, *mut c_int) -> Code;
        user_rank "ncclCommUserRank" (RawComm, *mut c_int) -> Code;
        group_start "ncclGroupStart" () -> Code;
        group_end "ncclGroupEnd" () -> Code;
        all_reduce "ncclAllReduce" (*const c_void, *mut c_void, usize, c_int, c_int, RawComm, RawStream) -> Code;
        all_gather "ncclAllGather" (*const c_void, *mut c_void, usize, c_int, RawComm, RawStream) -> Code;
        send "ncclSend" (*const c_void, usize, c_int, c_int, RawComm, RawStream) -> Code;
        recv "ncclRecv" (*mut c_void, usize, c_int, c_int, RawComm, RawStream) -> Code;
    }
    optional {
        finalize "ncclCommFinalize" (RawComm) -> Code;
        split "ncclCommSplit" (RawComm, c_int, c_int, *mut RawComm, *mut Config) -> Code;
        all_to_all "ncclAlltoAll" (*const c_void, *mut c_void, usize, c_int, RawComm, RawStream) -> Code;
        last_error "ncclGetLastError" (RawComm) -> *const c_char;
    }
}

impl Table {
    /// Opens the library and looks everything up.
    pub(super) fn load(policy: Option<&Path>) -> Result<Self, NcclError> {
        let (library, searched) = candidate(policy);
        // SAFETY: the path is the policy's, which root alone can write, or the vendor's own name; NCCL's initialisers
        // start nothing until a function is called, and RTLD_LOCAL keeps its symbols out of everybody else's way.
        let mapped = unsafe { Library::open(Some(&library), RTLD_NOW | RTLD_LOCAL) }
            .map_err(|error| NcclError::Load { library: library.clone(), searched, loader: words(&error) })?;
        let mut table = Self::find(mapped, &library)?;
        let mut code = 0;
        // SAFETY: the pointer is valid for the int that NCCL fills in.
        let result = unsafe { (table.get_version)(&raw mut code) };
        if result != SUCCESS {
            return Err(super::error::failed(&table, "ncclGetVersion", result));
        }
        table.version = Version::from_code(code);
        if table.version < OLDEST {
            return Err(NcclError::TooOld { library, version: table.version });
        }
        Ok(table)
    }
}

/// What is opened, and where that is looked for. Where the policy names a path nothing else is tried.
fn candidate(policy: Option<&Path>) -> (PathBuf, String) {
    match policy {
        None => (NAME.into(), LOADER_SEARCH.to_owned()),
        Some(folder) if folder.is_dir() => {
            (folder.join(NAME), "in that folder only, which the policy names".to_owned())
        }
        // A bare file name would send the loader elsewhere; "./" keeps it a path.
        Some(file) if file.components().count() == 1 => {
            (Path::new(".").join(file), "at that path only, which the policy names".to_owned())
        }
        Some(file) => (file.to_owned(), "at that path only, which the policy names".to_owned()),
    }
}

/// The loader's own words: libloading keeps them in the source.
fn words(error: &libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_has_the_layout_of_2_14() {
        assert_eq!(size_of::<Config>(), 24);
        assert_eq!(std::mem::offset_of!(Config, magic), 8);
        assert_eq!(std::mem::offset_of!(Config, version), 12);
        assert_eq!(std::mem::offset_of!(Config, blocking), 16);
        assert_eq!(std::mem::offset_of!(Config, cga_cluster_size), 20);
        let config = Config::non_blocking();
        assert_eq!((config.size, config.blocking, config.version), (24, 0, 21_400));
        assert_eq!(size_of::<RawId>(), 128);
    }

    #[test]
    fn versions_are_read_in_both_ways_of_writing_them() {
        for (code, text) in [(2809, "2.8.9"), (21_403, "2.14.3"), (22_809, "2.28.9"), (23_100, "2.31.0")] {
            assert_eq!(Version::from_code(code).to_string(), text);
        }
        assert!(Version::from_code(21_701) < OLDEST && Version::from_code(21_801) > OLDEST);
        assert!(Version::from_code(30_000) > OLDEST);
    }

    #[test]
    fn a_bare_file_name_of_the_policy_is_a_path() {
        assert_eq!(candidate(Some(Path::new("libnccl.so"))).0, Path::new("./libnccl.so"));
        assert_eq!(candidate(None).0, Path::new("libnccl.so.2"));
        assert_eq!(candidate(Some(Path::new("/"))).0, Path::new("/libnccl.so.2"));
    }
}
