//! What can go wrong with NCCL, in words that name the call, its result and what NCCL said last.

use std::ffi::c_int;
use std::path::PathBuf;
use std::time::Duration;

use super::table::{Code, OLDEST, Table, Version};
use crate::LibraryError;

/// Longest text that NCCL keeps of its last error (`ncclLastError` in `src/debug.cc`).
const LAST_ERROR_MAX: usize = 1024;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum NcclError {
    /// The library or a function of it is missing.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// The library is too old.
    #[error("NCCL: {} is version {version}; {} or newer is needed, because older ones can't end an init that hangs", .library.display(), OLDEST)]
    TooOld {
        /// The library.
        library: PathBuf,
        /// Its version.
        version: Version,
    },
    /// The environment makes every communicator a blocking one, whose waits have no end.
    #[error(
        "NCCL: NCCL_COMM_BLOCKING={value} is set: then no wait of NCCL has a limit; take it out of [nccl.env]"
    )]
    Blocking {
        /// What it is set to.
        value: String,
    },
    /// This version has no such call.
    #[error("NCCL {version} has no {symbol}")]
    Unsupported {
        /// The call.
        symbol: &'static str,
        /// The version.
        version: Version,
    },
    /// A call, or what it began in the background, failed.
    #[error("NCCL: {operation}: {} ({code}){}{last}", code_name(*.code), if .last.is_empty() { "" } else { ": " })]
    Failed {
        /// The call.
        operation: &'static str,
        /// Its result.
        code: c_int,
        /// What NCCL said last. It keeps one text for the whole process, so with several communicators it may belong
        /// to another; empty: nothing.
        last: String,
    },
    /// A call says that it succeeded and handed out no communicator.
    #[error("NCCL: {operation} made no communicator, and names no error")]
    Nothing {
        /// The call.
        operation: &'static str,
    },
    /// The deadline passed.
    #[error("NCCL: {operation} did not end within {:.1} s; {abort}", .waited.as_secs_f64())]
    Deadline {
        /// What was waited for.
        operation: &'static str,
        /// How long.
        waited: Duration,
        /// What became of the communicator.
        abort: Abort,
    },
    /// Somebody asked for an end.
    #[error("NCCL: {operation} was cancelled; {abort}")]
    Cancelled {
        /// What was waited for.
        operation: &'static str,
        /// What became of the communicator.
        abort: Abort,
    },
    /// A call that should return at once did not; its thread is left behind.
    #[error("NCCL: {operation} did not return within {:.1} s: this process can't use the GPU any more", .limit.as_secs_f64())]
    Stuck {
        /// The call.
        operation: &'static str,
        /// How long it was given.
        limit: Duration,
    },
    /// No thread could be started for a call that may hang.
    #[error("NCCL: no thread for {operation}")]
    Thread {
        /// The call.
        operation: &'static str,
        /// What the operating system said.
        #[source]
        source: std::io::Error,
    },
    /// The communicator was aborted before.
    #[error("NCCL: {operation}: the communicator was aborted before")]
    Gone {
        /// The call.
        operation: &'static str,
    },
    /// A communicator of no ranks, or a rank outside it.
    #[error("NCCL: rank {rank} of {ranks} is no place in a communicator")]
    Place {
        /// Ranks of the communicator.
        ranks: u32,
        /// The rank.
        rank: u32,
    },
    /// Device memory is too short for the collective.
    #[error("NCCL: {operation}: {side} needs {needed} bytes and has {has}")]
    Short {
        /// The call.
        operation: &'static str,
        /// "send" or "receive".
        side: &'static str,
        /// What is needed.
        needed: u128,
        /// What is there.
        has: usize,
    },
}

/// What became of a communicator that was given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Abort {
    /// It was aborted.
    Done,
    /// The abort returned an error.
    Failed(c_int),
    /// The abort did not return.
    Stuck,
}

impl std::fmt::Display for Abort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Done => f.write_str("the communicator was aborted"),
            Self::Failed(code) => write!(f, "its abort failed: {} ({code})", code_name(*code)),
            Self::Stuck => f.write_str("its abort did not return: this process can't use the GPU any more"),
        }
    }
}

/// The header's name of a result.
pub(super) fn code_name(code: Code) -> &'static str {
    match code {
        0 => "ncclSuccess",
        1 => "ncclUnhandledCudaError",
        2 => "ncclSystemError",
        3 => "ncclInternalError",
        4 => "ncclInvalidArgument",
        5 => "ncclInvalidUsage",
        6 => "ncclRemoteError",
        7 => "ncclInProgress",
        8 => "ncclTimeout",
        _ => "a result that this software does not know",
    }
}

/// The error of a call, with what NCCL said last.
pub(super) fn failed(table: &Table, operation: &'static str, code: Code) -> NcclError {
    NcclError::Failed { operation, code, last: last_error(table) }
}

/// NCCL's last error as one line.
fn last_error(table: &Table) -> String {
    let Some(last_error) = table.last_error else { return String::new() };
    // SAFETY: the communicator is not used by any version and may be null; the result is checked.
    let text = unsafe { last_error(std::ptr::null_mut()) };
    if text.is_null() {
        return String::new();
    }
    let mut bytes = Vec::new();
    for at in 0..LAST_ERROR_MAX {
        // SAFETY: the text is NCCL's buffer of this length or a shorter string, and reading ends at its zero byte.
        // Another thread of NCCL may write to it meanwhile: each byte is read once, and nothing relies on it.
        match unsafe { text.add(at).cast::<u8>().read_volatile() } {
            0 => break,
            byte => bytes.push(byte),
        }
    }
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.join("; ")
}
