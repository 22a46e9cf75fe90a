//! One rank of a communicator: how it is made, waited for, split and ended. What it computes is in
//! [`super::collective`].

use std::ffi::{OsStr, c_int};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Duration;

use super::bounded::bounded;
use super::error::{Abort, NcclError, failed};
use super::table::{Code, Config, IN_PROGRESS, NO_COLOR, RawComm, RawId, SUCCESS, Table};
use super::until::{Over, Pause, Until};
use super::{Nccl, UniqueId};

/// How long an abort may take where nobody says: it sets a flag that NCCL's threads and kernels look at all the time
/// and joins them, which takes milliseconds unless the driver hangs.
const ABORT_LIMIT: Duration = Duration::from_secs(2);

/// The least that a destroy gets of a deadline that is nearly over: everything was quiet already.
const DESTROY_LEAST: Duration = Duration::from_secs(1);

/// The variable that makes every communicator a blocking one.
const BLOCKING: &str = "NCCL_COMM_BLOCKING";

const INIT: &str = "ncclCommInitRankConfig";
const SPLIT: &str = "ncclCommSplit";
const FINALIZE: &str = "ncclCommFinalize";
const DESTROY: &str = "ncclCommDestroy";
const ABORT: &str = "ncclCommAbort";

/// A rank's place in its communicator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// How many ranks there are.
    pub ranks: u32,
    /// Which of them this is, from 0.
    pub rank: u32,
}

/// One rank of a communicator. Dropped, it is aborted, which takes at most 2 s; [`Comm::close`] is the way out when
/// all went well.
pub struct Comm {
    pub(super) table: &'static Table,
    place: Place,
    /// Where NCCL keeps the handle. It writes there from threads of its own, so it stays where it is, and is given up
    /// for good when an abort does not return. `None`: aborted or destroyed.
    slot: Option<Box<AtomicPtr<std::ffi::c_void>>>,
}

// SAFETY: NCCL ties a communicator to a GPU, not to a thread: any thread may make its next call as long as no two do
// so at once, which `&mut` sees to. The exception, a job that some versions keep in the calling thread's memory, is
// joined when `settle` returns, and every call ends with it or with an abort.
unsafe impl Send for Comm {}

/// A handle on its way to the thread that ends it.
struct Handle(RawComm);

// SAFETY: it is used by that thread alone; see `Comm`.
unsafe impl Send for Handle {}

impl Handle {
    fn give_to(self, end: unsafe extern "C" fn(RawComm) -> Code) -> Code {
        // SAFETY: a communicator that NCCL handed out, ended once: the slot it came from is empty now. Both ncclCommAbort
        // and ncclCommDestroy may be called by another thread than the one that made it.
        unsafe { end(self.0) }
    }
}

impl std::fmt::Debug for Comm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Comm").field("place", &self.place).field("ended", &self.slot.is_none()).finish()
    }
}

impl Comm {
    /// Joins a communicator as one of its ranks, on the GPU whose primary context is current on this thread, and waits
    /// for the other ranks.
    ///
    /// # Errors
    /// NCCL refuses; a rank did not come before the deadline, or `until` was cancelled: then it was aborted.
    pub fn init(nccl: &Nccl, id: &UniqueId, place: Place, until: Until<'_>) -> Result<Self, NcclError> {
        blocking(std::env::var_os(BLOCKING).as_deref())?;
        let wrong = NcclError::Place { ranks: place.ranks, rank: place.rank };
        let (Ok(ranks), Ok(rank)) = (c_int::try_from(place.ranks), c_int::try_from(place.rank)) else {
            return Err(wrong);
        };
        if rank >= ranks {
            return Err(wrong);
        }
        let slot = Box::new(AtomicPtr::new(std::ptr::null_mut()));
        let mut config = Config::non_blocking();
        // SAFETY: the slot stays where it is until NCCL is done with it (see `Comm::slot`); the configuration is read
        // during the call only; the id is passed by value.
        let code =
            unsafe { (nccl.table.init_rank_config)(slot.as_ptr(), ranks, RawId(*id), rank, &raw mut config) };
        Self::begun(nccl.table, slot, place, INIT, code, until)
    }

    /// Waits for a communicator that a call began to make.
    fn begun(
        table: &'static Table,
        slot: Box<AtomicPtr<std::ffi::c_void>>,
        place: Place,
        operation: &'static str,
        code: Code,
        until: Until<'_>,
    ) -> Result<Self, NcclError> {
        if slot.load(Ordering::Acquire).is_null() {
            let nothing = code == SUCCESS || code == IN_PROGRESS;
            return Err(if nothing {
                NcclError::Nothing { operation }
            } else {
                failed(table, operation, code)
            });
        }
        // From here on whatever goes wrong aborts it, by drop at the latest.
        let mut comm = Self { table, place, slot: Some(slot) };
        comm.accept(operation, code, until)?;
        Ok(comm)
    }

    /// Its place.
    #[must_use]
    pub fn place(&self) -> Place {
        self.place
    }

    /// Waits until `done` says that the work on the GPU is over, and looks at the communicator meanwhile: a collective
    /// whose other side is gone stays on the GPU for ever, and only the communicator knows.
    ///
    /// # Errors
    /// The communicator failed; or the deadline passed or `until` was cancelled: then it was aborted, which also ends
    /// what runs on the GPU.
    pub fn wait(
        &mut self,
        operation: &'static str,
        until: Until<'_>,
        mut done: impl FnMut() -> bool,
    ) -> Result<(), NcclError> {
        let mut pause = Pause::start();
        loop {
            if done() {
                return Ok(());
            }
            match self.state(operation)? {
                SUCCESS | IN_PROGRESS => {}
                code => return Err(failed(self.table, operation, code)),
            }
            self.patient(operation, &mut pause, until)?;
        }
    }

    /// Makes new communicators of the ranks that give the same color, in the order of their keys; a rank without a
    /// color gets none. All ranks call it. The new one is used on the same GPU.
    ///
    /// # Errors
    /// This NCCL can't, or it failed; or the deadline passed or `until` was cancelled: then this communicator was
    /// aborted.
    pub fn split(
        &mut self,
        color: Option<u16>,
        key: i32,
        until: Until<'_>,
    ) -> Result<Option<Self>, NcclError> {
        let raw = self.raw(SPLIT)?;
        let unsupported = NcclError::Unsupported { symbol: SPLIT, version: self.table.version };
        let split = self.table.split.ok_or(unsupported)?;
        let slot = Box::new(AtomicPtr::new(std::ptr::null_mut()));
        // SAFETY: the communicator is alive; NCCL writes to the slot until this communicator is at rest again, and the
        // slot is kept for good where that is not sure. No configuration: the new one is non-blocking as this one is.
        let code = unsafe {
            split(raw, color.map_or(NO_COLOR, c_int::from), key, slot.as_ptr(), std::ptr::null_mut())
        };
        // The call may say "success" while it goes on; only the communicator's state tells.
        if let Err(error) = self.accept(SPLIT, code, until) {
            Box::leak(slot);
            return Err(error);
        }
        if color.is_none() && slot.load(Ordering::Acquire).is_null() {
            return Ok(None);
        }
        let mut child =
            Self::begun(self.table, slot, Place { ranks: 0, rank: 0 }, SPLIT, IN_PROGRESS, until)?;
        child.place = Place {
            ranks: child.ask(SPLIT, self.table.count)?,
            rank: child.ask(SPLIT, self.table.user_rank)?,
        };
        Ok(Some(child))
    }

    fn ask(
        &self,
        operation: &'static str,
        call: unsafe extern "C" fn(RawComm, *mut c_int) -> Code,
    ) -> Result<u32, NcclError> {
        let raw = self.raw(operation)?;
        let mut answer = 0;
        // SAFETY: the communicator is alive and at rest; the pointer is valid for the int that NCCL fills in.
        let code = unsafe { call(raw, &raw mut answer) };
        match u32::try_from(answer) {
            Ok(answer) if code == SUCCESS => Ok(answer),
            _ => Err(failed(self.table, operation, code)),
        }
    }

    /// Ends it in good order: what is enqueued is finished, connections are closed, memory is given back.
    ///
    /// # Errors
    /// It failed, or took longer than `until`; then it was aborted.
    pub fn close(mut self, until: Until<'_>) -> Result<(), NcclError> {
        let raw = self.raw(FINALIZE)?;
        if let Some(finalize) = self.table.finalize {
            // SAFETY: the communicator is alive and is finalised once, because `close` takes it.
            let code = unsafe { finalize(raw) };
            self.accept(FINALIZE, code, until)?;
        }
        let Some(slot) = self.slot.take() else { return Err(NcclError::Gone { operation: DESTROY }) };
        let destroy = self.table.destroy;
        let handle = Handle(slot.load(Ordering::Acquire));
        match bounded(DESTROY, until.left().max(DESTROY_LEAST), move || handle.give_to(destroy)) {
            Ok(SUCCESS | IN_PROGRESS) => Ok(()),
            Ok(code) => Err(failed(self.table, DESTROY, code)),
            Err(error) => {
                Box::leak(slot);
                Err(error)
            }
        }
    }

    /// Ends it at once, also while others still wait for it.
    pub fn abort(mut self, limit: Duration) -> Abort {
        self.give_up(limit)
    }

    fn give_up(&mut self, limit: Duration) -> Abort {
        let Some(slot) = self.slot.take() else { return Abort::Done };
        let abort = self.table.abort;
        let handle = Handle(slot.load(Ordering::Acquire));
        match bounded(ABORT, limit, move || handle.give_to(abort)) {
            Ok(SUCCESS | IN_PROGRESS) => Abort::Done,
            Ok(code) => Abort::Failed(code),
            Err(_) => {
                // A thread of NCCL may still write there.
                Box::leak(slot);
                Abort::Stuck
            }
        }
    }

    /// The handle, while there is one.
    pub(super) fn raw(&self, operation: &'static str) -> Result<RawComm, NcclError> {
        let slot = self.slot.as_ref().ok_or(NcclError::Gone { operation })?;
        Ok(slot.load(Ordering::Acquire))
    }

    /// What NCCL says of the communicator; errors of the question itself are `operation`'s.
    fn state(&self, operation: &'static str) -> Result<Code, NcclError> {
        let raw = self.raw(operation)?;
        let mut state = SUCCESS;
        // SAFETY: the communicator is alive, and this call is made for one that is busy; the pointer is valid for the
        // result that NCCL fills in, which is an int to us whatever its value.
        let code = unsafe { (self.table.get_async_error)(raw, &raw mut state) };
        if code == SUCCESS { Ok(state) } else { Err(failed(self.table, operation, code)) }
    }

    /// What became of a call on this communicator. "Success" is looked into too: some calls say so while they go on.
    pub(super) fn accept(
        &mut self,
        operation: &'static str,
        code: Code,
        until: Until<'_>,
    ) -> Result<(), NcclError> {
        match code {
            SUCCESS | IN_PROGRESS => self.settle(operation, until),
            other => Err(failed(self.table, operation, other)),
        }
    }

    /// Waits until the last call is done with: NCCL takes no other before.
    pub(super) fn settle(&mut self, operation: &'static str, until: Until<'_>) -> Result<(), NcclError> {
        let mut pause = Pause::start();
        loop {
            match self.state(operation)? {
                // Older versions join the call's thread, whose job is the calling thread's, no sooner than in the next
                // call: this is one that changes nothing.
                SUCCESS => return self.ask(operation, self.table.count).map(drop),
                IN_PROGRESS => self.patient(operation, &mut pause, until)?,
                code => return Err(failed(self.table, operation, code)),
            }
        }
    }

    /// Waits a moment; over, the communicator is aborted.
    fn patient(
        &mut self,
        operation: &'static str,
        pause: &mut Pause,
        until: Until<'_>,
    ) -> Result<(), NcclError> {
        match until.over() {
            None => {
                pause.wait(until);
                Ok(())
            }
            Some(Over::Deadline) => {
                let waited = pause.waited();
                Err(NcclError::Deadline { operation, waited, abort: self.give_up(ABORT_LIMIT) })
            }
            Some(Over::Cancelled) => {
                Err(NcclError::Cancelled { operation, abort: self.give_up(ABORT_LIMIT) })
            }
        }
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        // Nobody is left to tell; what could not be ended ends with the process.
        _ = self.give_up(ABORT_LIMIT);
    }
}

/// Refuses an environment in which NCCL overrides the communicator's own setting.
fn blocking(value: Option<&OsStr>) -> Result<(), NcclError> {
    match value.map(|value| value.to_string_lossy().into_owned()) {
        Some(value) if value.trim() != "0" => Err(NcclError::Blocking { value }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_that_makes_all_waits_endless_is_refused() {
        for value in ["1", "2", "yes", ""] {
            let error = blocking(Some(OsStr::new(value))).unwrap_err().to_string();
            assert!(error.contains(&format!("NCCL_COMM_BLOCKING={value} ")), "{error}");
        }
        blocking(Some(OsStr::new("0"))).unwrap();
        blocking(None).unwrap();
    }
}
