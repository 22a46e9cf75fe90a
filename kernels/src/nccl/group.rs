//! NCCL's groups: several calls of one thread as one operation.

use std::marker::PhantomData;

use super::error::{NcclError, failed};
use super::table::{Code, SUCCESS, Table};

/// A group that was started on this thread; NCCL counts groups by thread, so it can't move to another. Dropped, it
/// ends without anybody looking at the result: an open one would swallow every later call.
#[must_use = "a group does nothing before its end"]
pub(super) struct Group {
    table: &'static Table,
    open: bool,
    here: PhantomData<*const ()>,
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

    /// Ends the group, whatever is in it. Its calls go on in the background of their communicator.
    pub(super) fn close(mut self) -> Code {
        self.end()
    }

    fn end(&mut self) -> Code {
        self.open = false;
        // SAFETY: the group was started on this thread, which the type can't leave, and is ended once.
        unsafe { (self.table.group_end)() }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if self.open {
            _ = self.end();
        }
    }
}
