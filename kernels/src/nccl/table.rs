//! NCCL's functions as pointers, and the few constants and structures of its header that are used. It calls nothing
//! but `ncclGetVersion`.
//!
//! Names, types and numbers are those of `src/nccl.h.in` of NVIDIA/nccl, read in versions 2.14 to 2.31.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};

use super::error::NcclError;
use crate::libraries::{Libraries, LibraryError, Loaded, Purpose};

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
            _mapped: Loaded,
        }

        impl Table {
            fn find(mapped: Loaded) -> Result<Self, LibraryError> {
                // SAFETY: each type is the header's for that name in every version since 2.14 that has it.
                unsafe {
                    Ok(Self {
                        library: mapped.path().to_owned(),
                        version: Version { major: 0, minor: 0, patch: 0 },
                        $($field: mapped.function($symbol)?,)*
                        $($maybe: mapped.function($maybe_symbol).ok(),)*
                        _mapped: mapped,
                    })
                }
            }
        }
    };
}

table! {
    required {
        get_version c"ncclGetVersion" (*mut c_int) -> Code;
        get_unique_id c"ncclGetUniqueId" (*mut RawId) -> Code;
        init_rank_config c"ncclCommInitRankConfig" (*mut RawComm, c_int, RawId, c_int, *mut Config) -> Code;
        get_async_error c"ncclCommGetAsyncError" (RawComm, *mut Code) -> Code;
        abort c"ncclCommAbort" (RawComm) -> Code;
        destroy c"ncclCommDestroy" (RawComm) -> Code;
        count c"ncclCommCount" (RawComm, *mut c_int) -> Code;
        user_rank c"ncclCommUserRank" (RawComm, *mut c_int) -> Code;
        group_start c"ncclGroupStart" () -> Code;
        group_end c"ncclGroupEnd" () -> Code;
        all_reduce c"ncclAllReduce" (*const c_void, *mut c_void, usize, c_int, c_int, RawComm, RawStream) -> Code;
        all_gather c"ncclAllGather" (*const c_void, *mut c_void, usize, c_int, RawComm, RawStream) -> Code;
        send c"ncclSend" (*const c_void, usize, c_int, c_int, RawComm, RawStream) -> Code;
        recv c"ncclRecv" (*mut c_void, usize, c_int, c_int, RawComm, RawStream) -> Code;
    }
    optional {
        finalize c"ncclCommFinalize" (RawComm) -> Code;
        split c"ncclCommSplit" (RawComm, c_int, c_int, *mut RawComm, *mut Config) -> Code;
        all_to_all c"ncclAlltoAll" (*const c_void, *mut c_void, usize, c_int, RawComm, RawStream) -> Code;
        last_error c"ncclGetLastError" (RawComm) -> *const c_char;
    }
}

impl Table {
    /// Opens the library and looks everything up.
    pub(super) fn load(policy: Option<&Path>) -> Result<Self, NcclError> {
        let libraries = Libraries { nccl: policy.map(Path::to_owned), ..Libraries::default() };
        let mut table = Self::find(libraries.open(Purpose::Nccl)?)?;
        let mut code = 0;
        // SAFETY: the pointer is valid for the int that NCCL fills in.
        let result = unsafe { (table.get_version)(&raw mut code) };
        if result != SUCCESS {
            return Err(super::error::failed(&table, "ncclGetVersion", result));
        }
        table.version = Version::from_code(code);
        if table.version < OLDEST {
            return Err(NcclError::TooOld { library: table.library, version: table.version });
        }
        Ok(table)
    }
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
}
