//! NCCL's collectives on this crate's own device memory: the one place where the two meet, so that what NCCL is handed
//! lives for as long as its work. It measures nothing.

use crate::cuda::{Collective, CudaError, DeviceBuffer, Stream};
use crate::nccl::{self, Comm, NcclError, Operation};

/// The memory of a rank: what it sends and what it receives, of the same size.
pub struct Memory {
    /// What it sends.
    pub send: DeviceBuffer<f32>,
    /// What it receives.
    pub receive: DeviceBuffer<f32>,
}

impl Memory {
    /// Takes `bytes` for each of the two.
    ///
    /// # Errors
    /// There is not so much.
    pub fn new(context: &crate::cuda::Context, bytes: usize) -> Result<Self, CudaError> {
        let elements = bytes / size_of::<f32>();
        Ok(Self {
            send: DeviceBuffer::new(context, elements)?,
            receive: DeviceBuffer::new(context, elements)?,
        })
    }

    /// Bytes of each of the two.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.send.bytes()
    }
}

/// Queues a collective over a message of `bytes`, as nccl-tests counts them: of an all-reduce what each rank brings, of
/// an all-gather what each receives, of an all-to-all what each sends. At least one element a rank.
///
/// # Errors
/// NCCL's; then the communicator may be gone.
pub fn enqueue(
    comm: &mut Comm,
    collective: Collective,
    memory: &mut Memory,
    bytes: usize,
    stream: &Stream,
    until: nccl::Until<'_>,
) -> Result<(), NcclError> {
    let ranks = comm.place().ranks as usize;
    let elements = bytes / size_of::<f32>();
    let (operation, count) = match collective {
        Collective::AllReduce { .. } => (Operation::AllReduce, elements),
        Collective::AllGather { .. } => (Operation::AllGather, elements / ranks),
        Collective::AllToAll { .. } => (Operation::AllToAll, elements / ranks),
        Collective::Received { .. } => {
            return Err(NcclError::Place { ranks: comm.place().ranks, rank: 0 });
        }
    };
    // SAFETY: the addresses and lengths are those of device buffers of this crate. While a stream of their context
    // holds work they are not freed even when they are dropped (`Context::give_back`), and the exclusive borrow of both
    // ends only after the work was queued; what is queued on the same stream later runs after it.
    let (send, receive) = unsafe {
        (
            nccl::Span::from_raw(memory.send.address(), memory.send.bytes()),
            nccl::Span::from_raw(memory.receive.address(), memory.receive.bytes()),
        )
    };
    // SAFETY: the stream is borrowed for the call, and a stream whose owner is gone is not destroyed while it holds work
    // (`Context::retire`).
    let queue = unsafe { nccl::Stream::from_raw(stream.handle()) };
    comm.collective(operation, (send, receive), count.max(1), queue, until)
}
