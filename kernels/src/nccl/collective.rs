//! The collectives, on 32-bit floats: enqueued on a stream, checked against the length of the memory, waited for until
//! NCCL takes the next call. That the work itself is done says the stream; see [`Comm::wait`].

use std::ffi::c_void;

use super::comm::Comm;
use super::error::NcclError;
use super::group::Group;
use super::table::{Code, FLOAT32, IN_PROGRESS, RawStream, SUCCESS, SUM};
use super::until::Until;

/// Bytes of an element.
const ELEMENT: usize = size_of::<f32>();

const EXCHANGE: &str = "ncclSend and ncclRecv in a group";

/// A stream of the communicator's GPU.
#[derive(Debug, Clone, Copy)]
pub struct Stream(RawStream);

// SAFETY: a CUDA stream may be used by any thread; that it is alive is promised where this was made.
unsafe impl Send for Stream {}

impl Stream {
    /// A stream as the driver hands it out; null is the GPU's default stream.
    ///
    /// # Safety
    /// The stream stays alive for as long as this is used, and is one of the GPU of every communicator that it is
    /// used with.
    #[must_use]
    pub const unsafe fn from_raw(stream: *mut c_void) -> Self {
        Self(stream)
    }
}

/// A piece of device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    address: u64,
    bytes: usize,
}

impl Span {
    /// Device memory as the driver hands it out.
    ///
    /// # Safety
    /// The memory is on the GPU of every communicator that this is used with, begins at a whole element, and until what
    /// was enqueued with it is done, or its communicator is aborted, it is neither freed nor used by anything else.
    #[must_use]
    pub const unsafe fn from_raw(address: u64, bytes: usize) -> Self {
        Self { address, bytes }
    }

    /// Its length.
    #[must_use]
    pub const fn bytes(self) -> usize {
        self.bytes
    }

    fn holds(self, operation: &'static str, side: &'static str, elements: u128) -> Result<(), NcclError> {
        let needed = elements * ELEMENT as u128;
        if needed > self.bytes as u128 {
            return Err(NcclError::Short { operation, side, needed, has: self.bytes });
        }
        Ok(())
    }

    /// Where the memory is, as NCCL takes it; null where an address does not fit a pointer, which NCCL refuses.
    fn at(self, element: usize) -> *mut c_void {
        let address = usize::try_from(self.address).ok().filter(|address| *address != 0);
        let address = address.and_then(|address| address.checked_add(element.checked_mul(ELEMENT)?));
        std::ptr::without_provenance_mut(address.unwrap_or(0))
    }
}

/// A collective on floats. `count` is NCCL's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Every rank's `count` elements of `send`, summed into every rank's `receive`.
    AllReduce,
    /// Every rank's `count` elements of `send`, one after the other by rank, in every rank's `receive`.
    AllGather,
    /// `count` elements of `send` for each rank, one after the other by rank, and as many of each in `receive`. Where NCCL
    /// has no such call, a group of sends and receives.
    AllToAll,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "ncclAllReduce",
            Self::AllGather => "ncclAllGather",
            Self::AllToAll => "ncclAlltoAll",
        }
    }

    /// Blocks of `count` elements that a rank of so many sends and receives.
    fn blocks(self, ranks: u128) -> (u128, u128) {
        match self {
            Self::AllReduce => (1, 1),
            Self::AllGather => (1, ranks),
            Self::AllToAll => (ranks, ranks),
        }
    }
}

impl Comm {
    /// Queues a collective.
    ///
    /// # Errors
    /// The memory is too short, or NCCL failed; or the deadline passed or `until` was cancelled: then the communicator
    /// was aborted.
    pub fn collective(
        &mut self,
        operation: Operation,
        (send, receive): (Span, Span),
        count: usize,
        stream: Stream,
        until: Until<'_>,
    ) -> Result<(), NcclError> {
        let name = operation.name();
        let (sent, received) = operation.blocks(self.place().ranks.into());
        send.holds(name, "send", count as u128 * sent)?;
        receive.holds(name, "receive", count as u128 * received)?;
        let raw = self.raw(name)?;
        let (table, from, to) = (self.table, send.at(0), receive.at(0));
        let gathering = match operation {
            Operation::AllReduce => None,
            Operation::AllGather => Some(table.all_gather),
            Operation::AllToAll => match table.all_to_all {
                Some(all_to_all) => Some(all_to_all),
                None => {
                    let code = self.exchange(send, receive, count, stream)?;
                    return self.accept(EXCHANGE, code, until);
                }
            },
        };
        // SAFETY: both spans hold what the operation takes of them, as was compared, and stay as they are until the work
        // is done (`Span::from_raw`); the stream is alive (`Stream::from_raw`); the communicator is alive and at rest.
        let code = unsafe {
            match gathering {
                None => (table.all_reduce)(from, to, count, FLOAT32, SUM, raw, stream.0),
                Some(call) => call(from, to, count, FLOAT32, raw, stream.0),
            }
        };
        self.accept(name, code, until)
    }

    /// The same by a send and a receive for each rank; the lengths were compared by the caller.
    fn exchange(
        &mut self,
        send: Span,
        receive: Span,
        count: usize,
        stream: Stream,
    ) -> Result<Code, NcclError> {
        let raw = self.raw(EXCHANGE)?;
        let group = Group::start(self.table)?;
        // In range: the place was checked when the communicator was made.
        let peers = 0..i32::try_from(self.place().ranks).unwrap_or(0);
        let mut calls = peers.zip((0..).step_by(count.max(1))).flat_map(|(peer, at)| {
            // SAFETY: both spans hold `count` elements from `at` on; the rest as in `collective`.
            let sent = unsafe { (self.table.send)(send.at(at), count, FLOAT32, peer, raw, stream.0) };
            // SAFETY: as above.
            let received = unsafe { (self.table.recv)(receive.at(at), count, FLOAT32, peer, raw, stream.0) };
            [sent, received]
        });
        let bad = calls.find(|code| *code != SUCCESS && *code != IN_PROGRESS);
        drop(calls);
        let ended = group.close();
        Ok(bad.unwrap_or(ended))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_gives_addresses_within_itself() {
        // SAFETY: nothing is done with the memory.
        let span = unsafe { Span::from_raw(0x7000_0000_0000, 64) };
        assert_eq!(span.at(3).addr(), 0x7000_0000_000c);
        span.holds("ncclAllReduce", "send", 16).unwrap();
        let error = span.holds("ncclAllReduce", "send", 17).unwrap_err().to_string();
        assert_eq!(error, "NCCL: ncclAllReduce: send needs 68 bytes and has 64");
        assert!(span.at(usize::MAX).is_null());
        // SAFETY: as above.
        assert!(unsafe { Span::from_raw(0, 64) }.at(1).is_null());
    }
}
