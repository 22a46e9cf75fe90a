//! NCCL by a table of its own: the library is opened when it is needed, by its versioned name or by a path from the
//! policy, and every result is an integer. It measures nothing, and it sets no variable of NCCL's: which settings
//! hold is decided by whoever starts the process.
//!
//! Communicators are non-blocking (`ncclConfig_t.blocking` = 0), so what waits for other ranks is waited for here,
//! until a deadline, and then aborted. What a call of NCCL or of the driver does before it returns can't be bounded
//! from inside the process; a worker that hangs there is ended by the coordinator.
//!
//! Who makes a communicator has made the GPU's primary context current on its thread. One thread a GPU: a [`Comm`]
//! may move to another thread between two calls, but the thread that called must outlive the call's work, because
//! NCCL keeps a group's job in the thread's own memory in some versions.

mod bounded;
mod collective;
mod comm;
mod error;
mod group;
mod table;
mod until;

use std::path::Path;
use std::time::Duration;

pub use collective::{Operation, Span, Stream};
pub use comm::{Comm, Place};
pub use error::{Abort, NcclError};
pub use table::Version;
pub use until::Until;

use bounded::bounded;
use error::failed;
use table::{RawId, SUCCESS, Table};

/// What ranks need to find each other: made by one of them, given to all.
pub type UniqueId = [u8; 128];

/// A loaded NCCL. It stays mapped until the process ends: NCCL has threads of its own that run on after a
/// communicator is gone, and an unmapped library would pull the code away under them.
#[derive(Clone, Copy)]
pub struct Nccl {
    table: &'static Table,
}

impl std::fmt::Debug for Nccl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nccl")
            .field("library", &self.table.library)
            .field("version", &self.table.version.to_string())
            .finish()
    }
}

impl Nccl {
    /// Opens NCCL: a file, a folder that holds `libnccl.so.2`, or where the policy names neither whatever the dynamic
    /// loader finds under that name.
    ///
    /// # Errors
    /// It can't be loaded, lacks a function that is needed, or is older than 2.18.
    pub fn load(policy: Option<&Path>) -> Result<Self, NcclError> {
        Table::load(policy).map(|table| Self { table: Box::leak(Box::new(table)) })
    }

    /// Its version.
    #[must_use]
    pub fn version(&self) -> Version {
        self.table.version
    }

    /// What was handed to the loader.
    #[must_use]
    pub fn library(&self) -> &Path {
        &self.table.library
    }

    /// Makes the id of a new communicator; NCCL then listens for the ranks on the interface that its settings name.
    ///
    /// # Errors
    /// NCCL refuses, such as when it finds no interface, or does not answer within `limit`.
    pub fn unique_id(&self, limit: Duration) -> Result<UniqueId, NcclError> {
        const OPERATION: &str = "ncclGetUniqueId";
        let get = self.table.get_unique_id;
        let (code, id) = bounded(OPERATION, limit, move || {
            let mut id = RawId([0; 128]);
            // SAFETY: the pointer is valid for the 128 bytes that NCCL fills in.
            let code = unsafe { get(&raw mut id) };
            (code, id.0)
        })?;
        if code == SUCCESS { Ok(id) } else { Err(failed(self.table, OPERATION, code)) }
    }
}
