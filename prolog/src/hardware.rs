//! What this node tells of its hardware before anything is measured: what the worker is to look at, and what comes of it.
//! The rules are in [`diag::gpu_facts`]; NVML is loaded by the worker only, never by this process, which is root.

use std::time::Duration;

use diag::facts::Engine;
use diag::gpu_facts::reading::NodeReading;
use diag::gpu_facts::{self, Fact, FactKind, Known, Needs};
use diag::measurement::Subject;

use crate::assignment::Assignment;
use crate::engine::{self, EngineError};
use crate::protocol::{Look, Opened, TroubleKind};
use crate::worker_client::Worker;

/// How long NVML and the kernel's files may take. They take some hundred milliseconds; a driver that is loaded for its
/// first client takes seconds (field case E11), and one in trouble for ever.
const LOOK_LIMIT_MS: u64 = 10_000;

/// Beyond that: how late the worker's answer may be.
const ANSWER_GRACE: Duration = Duration::from_secs(1);

/// What the smallest run needs of a GPU: its context, three matrices of 128 MiB, NCCL's buffers.
const GPU_FREE_BYTES: u64 = 2 << 30;

/// NCCL's buffers between the ranks of a node, for each of several; containers often have 64 MiB in all.
const SHM_BYTES: u64 = 16 << 20;

/// What NCCL registers with network devices; the limit that systems ship with is 8 MiB or less.
const MEMLOCK_BYTES: u64 = 1 << 30;

/// What the worker is to look at; `None` on the host engine.
pub(crate) fn look(assignment: &Assignment) -> Result<Option<Look>, EngineError> {
    if assignment.policy.engine == Engine::Host {
        return Ok(None);
    }
    Ok(Some(Look {
        gpus: engine::gpus(&assignment.job)?,
        nvml: assignment.policy.cuda.nvml.clone(),
        root: "/".into(),
        gpu_free_bytes: GPU_FREE_BYTES,
        limit_ms: LOOK_LIMIT_MS,
    }))
}

/// What this node tells the others.
pub(crate) async fn known(assignment: &Assignment, worker: &mut Worker) -> Known {
    let ranks = u64::from(engine::ranks(assignment));
    let shm_bytes = if ranks > 1 { SHM_BYTES * ranks } else { 0 };
    let needs = Needs { gpu_free_bytes: GPU_FREE_BYTES, shm_bytes, memlock_bytes: MEMLOCK_BYTES };
    let (me, name) = (assignment.job.me, &assignment.job.node);
    match worker.looked(Duration::from_millis(LOOK_LIMIT_MS) + ANSWER_GRACE).await {
        Ok(reading) => Known::of(me, &NodeReading { name: name.clone(), ..reading.clone() }, &needs),
        Err(error) => Known::nothing(me, format!("{name}: what NVML says of its GPUs is not known: {error}")),
    }
}

/// What this node knows of itself, with the GPUs that could not be opened.
pub(crate) fn with_closed(mut facts: Vec<Fact>, assignment: &Assignment, opened: &Opened) -> Vec<Fact> {
    let (node, name) = (assignment.job.me, &assignment.job.node);
    for trouble in &opened.troubles {
        let Some(gpu) = opened.gpus.get(trouble.rank as usize) else { continue };
        let kind = match trouble.kind {
            TroubleKind::Broken => FactKind::Fault,
            TroubleKind::Failed | TroubleKind::Silent => FactKind::Unusable,
        };
        let words = format!("{name} GPU {}: it can't be opened: {}", gpu.index, trouble.message);
        facts.push(Fact::new(kind, Subject::Gpu { node, index: gpu.index }, words));
    }
    gpu_facts::bounded(facts)
}
