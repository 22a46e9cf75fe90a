//! NCCL's groups: several calls of one thread as one operation.

use std::marker::PhantomData;

use super::comm::Comm;
use super::error::{NcclError, failed};
use super::table::{Code, IN_PROGRESS, SUCCESS, Table};
use super::until::Until;

const END: &str = "ncclGroupEnd";

/// A group that was started on this thread; NCCL counts groups by thread, so it can't move to another. Dropped, it
/// ends without anybody looking at the result.
#[must_use = "a group does nothing before its end"]
pub struct Group {
    table: &'static Table,
    open: bool,
    here: PhantomData<*const ()>,
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Group").finish_non_exhaustive()
    }
}

impl Group {
    pub(super) fn start(table: &'static Table) -> Result<Self, NcclError> {
        // SAFETY: the call takes nothing; its end is made by `close`, at the latest in drop.
        let code = unsafe { (table.group_start)() };
        if code != SUCCESS {
            return Err(failed(table, "ncclGroupStart", code));
        }
        Ok(Self { table, open: true, here: PhantomData })
    }

    /// Ends the group and waits until its calls are enqueued on the communicators that took part. Within the group
    /// the calls themselves return at once.
    ///
    /// # Errors
    /// The group or one of the communicators failed, or the deadline passed; then that communicator was aborted.
    pub fn end(mut self, comms: &mut [&mut Comm], until: Until<'_>) -> Result<(), NcclError> {
        let code = self.close();
        if code != SUCCESS && code != IN_PROGRESS {
            return Err(failed(self.table, END, code));
        }
        comms.iter_mut().try_for_each(|comm| comm.settle(END, until))
    }

    /// Ends the group, whatever is in it.
    pub(super) fn close(&mut self) -> Code {
        self.open = false;
        // SAFETY: the group was started on this thread, which the type can't leave, and is ended once.
        unsafe { (self.table.group_end)() }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if self.open {
            _ = self.close();
        }
    }
}
