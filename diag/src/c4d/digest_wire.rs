//! How the numbers of a digest stand in JSON: as lists, because a digest goes over the network every second.

use crate::c4d::digest::{Collective, Func, P2p, Progress, Sample, StepState, StepWait};

/// Enqueued, started, finished, their ages, bytes.
pub(super) type ProgressWire = (u64, u64, u64, u64, u64, u64, u64);

/// Peer, channel, whether it sends, steps, waits for the GPU, for room and for the wire, what is open.
pub(super) type StepWire = (u32, u8, bool, u32, u64, u64, u64, Option<StepState>);

impl From<ProgressWire> for Progress {
    fn from(wire: ProgressWire) -> Self {
        let (enqueued, started, finished, enqueued_age_ms, started_age_ms, finished_age_ms, bytes) = wire;
        Self { enqueued, started, finished, enqueued_age_ms, started_age_ms, finished_age_ms, bytes }
    }
}

impl From<Progress> for ProgressWire {
    fn from(one: Progress) -> Self {
        let ages = (one.enqueued_age_ms, one.started_age_ms, one.finished_age_ms);
        (one.enqueued, one.started, one.finished, ages.0, ages.1, ages.2, one.bytes)
    }
}

impl From<(Func, ProgressWire)> for Collective {
    fn from((func, wire): (Func, ProgressWire)) -> Self {
        Self { func, progress: wire.into() }
    }
}

impl From<Collective> for (Func, ProgressWire) {
    fn from(one: Collective) -> Self {
        (one.func, one.progress.into())
    }
}

impl From<(u32, bool, u32, ProgressWire)> for P2p {
    fn from((peer, send, kernel_us, wire): (u32, bool, u32, ProgressWire)) -> Self {
        Self { peer, send, kernel_us, progress: wire.into() }
    }
}

impl From<P2p> for (u32, bool, u32, ProgressWire) {
    fn from(one: P2p) -> Self {
        (one.peer, one.send, one.kernel_us, one.progress.into())
    }
}

impl From<(Func, u64, u64, u32)> for Sample {
    fn from((func, seq, bytes, kernel_us): (Func, u64, u64, u32)) -> Self {
        Self { func, seq, bytes, kernel_us }
    }
}

impl From<Sample> for (Func, u64, u64, u32) {
    fn from(one: Sample) -> Self {
        (one.func, one.seq, one.bytes, one.kernel_us)
    }
}

impl From<StepWire> for StepWait {
    fn from((peer, channel, send, steps, gpu_us, credit_us, wire_us, open): StepWire) -> Self {
        Self { peer, channel, send, steps, gpu_us, credit_us, wire_us, open }
    }
}

impl From<StepWait> for StepWire {
    fn from(one: StepWait) -> Self {
        let waits = (one.gpu_us, one.credit_us, one.wire_us);
        (one.peer, one.channel, one.send, one.steps, waits.0, waits.1, waits.2, one.open)
    }
}

impl Func {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::AllReduce,
        Self::AllGather,
        Self::ReduceScatter,
        Self::Broadcast,
        Self::Reduce,
        Self::AllToAll,
        Self::Gather,
        Self::Scatter,
        Self::Other,
    ];

    /// Its name, as NCCL spells it.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::AllReduce => "AllReduce",
            Self::AllGather => "AllGather",
            Self::ReduceScatter => "ReduceScatter",
            Self::Broadcast => "Broadcast",
            Self::Reduce => "Reduce",
            Self::AllToAll => "AlltoAll",
            Self::Gather => "Gather",
            Self::Scatter => "Scatter",
            Self::Other => "collective",
        }
    }

    /// Whether no rank can leave before all have come: what makes it a clock that all share.
    #[must_use]
    pub fn synchronises(self) -> bool {
        matches!(self, Self::AllReduce | Self::AllGather | Self::ReduceScatter | Self::AllToAll)
    }
}

impl TryFrom<u8> for Func {
    type Error = String;

    fn try_from(code: u8) -> Result<Self, String> {
        Self::ALL.get(usize::from(code)).copied().ok_or_else(|| format!("no function has number {code}"))
    }
}

impl From<Func> for u8 {
    fn from(func: Func) -> Self {
        func as Self
    }
}
