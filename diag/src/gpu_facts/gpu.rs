//! What one GPU tells by itself while nothing runs: who else is on it, what somebody set, what is broken.

use super::reading::{ComputeMode, GpuReading, Process, Recovery};
use super::{Fact, FactKind, Needs, called, gib, subject};
use crate::facts::NodeId;

/// NVML's bit for clocks that a setting holds down.
pub(super) const REASON_SETTING: u64 = 0x2;

/// NVML's bit for a GPU that has nothing to do.
const REASON_IDLE: u64 = 0x1;

/// The name of MPS's server as the kernel cuts it.
const MPS_SERVER: &str = "nvidia-cuda-mps";

pub(super) fn facts(node: NodeId, name: &str, gpu: &GpuReading, needs: &Needs) -> Vec<Fact> {
    let who = called(name, gpu);
    // E18, L10: the other GPUs are judged without it.
    if let Some(lost) = &gpu.lost {
        let words = format!(
            "{who} does not answer: {lost}; the kernel's log has its Xid; reset it, or restart the node and check its seat"
        );
        return vec![Fact::new(FactKind::Fault, subject(node, gpu), words)];
    }
    let mut facts = Vec::new();
    let mut add = |kind, words: String| facts.push(Fact::new(kind, subject(node, gpu), words));
    sharing(&who, gpu, needs, &mut add);
    settings(&who, gpu, &mut add);
    memory_errors(&who, gpu, &mut add);
    facts
}

/// What a CUDA context alone takes on the smallest GPUs that are checked; NVML's own rounding is far below.
const CONTEXT_BYTES: u64 = 128 * 1024 * 1024;

/// A GPU that nobody uses is not busy; one that a job trains on is so nearly always.
const BUSY_PERCENT: u32 = 10;

/// Who else uses it. L05, A10, E13.
fn sharing(who: &str, gpu: &GpuReading, needs: &Needs, add: &mut impl FnMut(FactKind, String)) {
    if gpu.mig == Some(true) {
        add(
            FactKind::Skip,
            format!("{who} is split into MIG instances: not measured; what NVML says of it is"),
        );
    }
    let processes = gpu.processes.as_deref().unwrap_or_default();
    if processes.iter().any(is_mps) {
        add(FactKind::Skip, format!("{who} is shared through MPS: not measured"));
    }
    let foreign: Vec<String> = processes.iter().filter(|one| !is_mps(one)).map(process).collect();
    for one in &foreign {
        add(FactKind::Cause, used_by(who, one));
    }
    // Where slurmd runs in a container, NVML does not tell it of the others' processes, but of their load.
    let hidden = gpu.hidden_bytes.filter(|bytes| foreign.is_empty() && *bytes >= CONTEXT_BYTES);
    let busy = gpu.busy_percent.filter(|percent| *percent >= BUSY_PERCENT);
    if let (Some(bytes), Some(percent)) = (hidden, busy) {
        let whose = format!(
            "process that can't be seen from here, such as one in another container ({} held, {percent} % busy before the \
             checks began)",
            gib(bytes)
        );
        add(FactKind::Cause, used_by(who, &whose));
    }
    if let Some(memory) = gpu.memory.filter(|memory| memory.free_bytes < needs.gpu_free_bytes) {
        let holders = if foreign.is_empty() {
            "no process that can be seen from here holds it (one in another container may); else a reset of the GPU frees it"
                .to_owned()
        } else {
            format!("held by {}", foreign.join(", "))
        };
        let (free, all) = (gib(memory.free_bytes), gib(memory.total_bytes));
        let needed = gib(needs.gpu_free_bytes);
        add(FactKind::Error, format!("{who} has {free} of {all} free, the checks need {needed}; {holders}"));
    }
    if gpu.compute_mode == Some(ComputeMode::Prohibited) {
        add(
            FactKind::Error,
            format!("{who} is in compute mode PROHIBITED: nothing can use it; nvidia-smi -c DEFAULT"),
        );
    }
    if !gpu.unreadable.is_empty() {
        // F05, E18: the driver's own words, whatever they are worth.
        add(FactKind::Error, format!("{who}: NVML fails: {}", gpu.unreadable.join("; ")));
    }
}

fn is_mps(one: &Process) -> bool {
    one.mps || one.owner.as_ref().is_some_and(|owner| owner.command.starts_with(MPS_SERVER))
}

pub(super) fn used_by(who: &str, process: &str) -> String {
    format!("{who} is used by another {process}; nothing here ends it")
}

/// `process 4711 (python of user alice, 10.0 GiB)`.
pub(super) fn process(one: &Process) -> String {
    let owner = match &one.owner {
        Some(owner) => match &owner.user {
            Some(user) => format!("{} of user {user}", owner.command),
            None => format!("{} of user {}", owner.command, owner.uid),
        },
        // L07: it may have ended between two looks.
        None => "ended meanwhile, or not visible from here".to_owned(),
    };
    let stuck = one.owner.as_ref().is_some_and(|owner| owner.state == Some('D'));
    let stuck = if stuck { ", stuck in the kernel" } else { "" };
    let memory = one.memory_bytes.map_or(String::new(), |bytes| format!(", {}", gib(bytes)));
    format!("process {} ({owner}{memory}{stuck})", one.pid)
}

/// What somebody set. G10, E11.
fn settings(who: &str, gpu: &GpuReading, add: &mut impl FnMut(FactKind, String)) {
    if gpu.persistence == Some(false) {
        add(
            FactKind::Note,
            format!(
                "{who}: persistence mode is off, so each first use waits for the driver; nvidia-smi -pm 1, or nvidia-persistenced"
            ),
        );
    }
    let clocks = &gpu.clocks;
    let set_low = |set: Option<u32>, default: Option<u32>, most: Option<u32>| {
        Some((set?, default.or(most)?)).filter(|(set, usual)| set < usual)
    };
    let sm = set_low(clocks.sm_set_mhz, clocks.sm_default_mhz, clocks.sm_max_mhz);
    let memory = set_low(clocks.memory_set_mhz, clocks.memory_default_mhz, clocks.memory_max_mhz);
    for (what, low) in [("SM", sm), ("memory", memory)] {
        if let Some((set, usual)) = low {
            add(
                FactKind::Cause,
                format!("{who}: {what} clock set to {set} MHz, usual {usual} MHz; nvidia-smi -rac undoes it"),
            );
        }
    }
    // Locked clocks show only as a reason and a speed. H03: an idle GPU is slow by itself.
    let reasons = clocks.reasons.unwrap_or_default();
    if sm.is_none()
        && reasons & (REASON_SETTING | REASON_IDLE) == REASON_SETTING
        && let (Some(now), Some(most)) = (clocks.sm_mhz, clocks.sm_max_mhz)
        && held_down(gpu, now, most)
    {
        add(FactKind::Cause, locked(who, now, most));
    }
    let power = &gpu.power;
    if let (Some(limit), Some(default)) = (power.limit_mw, power.default_limit_mw)
        && limit < default
    {
        add(
            FactKind::Cause,
            format!(
                "{who}: power limit lowered to {} W, usual {} W; nvidia-smi -pl {} undoes it",
                limit / 1000,
                default / 1000,
                default / 1000
            ),
        );
    } else if let (Some(enforced), Some(limit)) = (power.enforced_limit_mw, power.limit_mw)
        && enforced < limit
    {
        add(
            FactKind::Cause,
            format!(
                "{who}: {} W are enforced below its power limit of {} W: a limit of the chassis or of its management",
                enforced / 1000,
                limit / 1000
            ),
        );
    }
}

/// Whether a setting can be what keeps the clock from its highest: a GPU that runs at its factory's application clock
/// is not held down by anybody.
pub(super) fn held_down(gpu: &GpuReading, now: u32, most: u32) -> bool {
    let as_delivered = gpu.clocks.sm_default_mhz == Some(now) && gpu.clocks.sm_set_mhz == Some(now);
    now < most && !as_delivered
}

pub(super) fn locked(who: &str, now: u32, most: u32) -> String {
    format!("{who}: SM clock locked at {now} of {most} MHz by a setting; nvidia-smi -rgc undoes it")
}

/// What is broken in its memory. The vendor's rules for GPU memory errors: a failed remapping or a passed SRAM
/// threshold means a new GPU, the rest a reset.
fn memory_errors(who: &str, gpu: &GpuReading, add: &mut impl FnMut(FactKind, String)) {
    let ecc = &gpu.ecc;
    if let Some(count) = ecc.volatile_uncorrected.filter(|count| *count > 0) {
        add(
            FactKind::Fault,
            format!(
                "{who}: {count} uncorrected memory errors since the driver was loaded (limit 0); drain the node and reset the GPU; replace it if they come back"
            ),
        );
    }
    if let Some(sram) = ecc.sram {
        // NVML may or may not count these in the sum above.
        if sram.volatile_uncorrected > 0 && ecc.volatile_uncorrected.is_none_or(|count| count == 0) {
            add(
                FactKind::Fault,
                format!(
                    "{who}: {} uncorrected errors of the memory inside the chip since the driver was loaded (limit 0); reset the GPU",
                    sram.volatile_uncorrected
                ),
            );
        }
        if sram.threshold_exceeded {
            add(
                FactKind::Fault,
                format!(
                    "{who}: {} uncorrected errors of the memory inside the chip in its life, past the vendor's threshold; replace the GPU",
                    sram.aggregate_uncorrected
                ),
            );
        }
    }
    if let Some(rows) = gpu.rows {
        if rows.failed {
            let none = gpu.spare_rows.map_or(String::new(), |spare| {
                format!(" ({} of {} banks have no spare row left)", spare.none, spare.all)
            });
            add(
                FactKind::Fault,
                format!("{who}: a bad row of memory could not be replaced{none}; replace the GPU"),
            );
        }
        if rows.pending {
            add(
                FactKind::Fault,
                format!("{who}: a bad row of memory waits to be replaced; reset the GPU to do it"),
            );
        }
    }
    if gpu.pages.pending == Some(true) {
        add(
            FactKind::Fault,
            format!("{who}: bad pages of memory wait to be taken out of use; reset the GPU"),
        );
    }
    let wanted = match gpu.recovery {
        None | Some(Recovery::None) => return,
        Some(Recovery::Reset) => "a reset",
        Some(Recovery::Reboot) => "a restart of the node",
        Some(Recovery::DrainP2p) => "a reset together with the GPUs that reach it by NVLink",
        Some(Recovery::DrainAndReset) => "a reset once what runs has ended",
        // I09: what has no name yet is told and blames nobody.
        Some(Recovery::Other(action)) => {
            let words =
                format!("{who}: the driver asks for recovery action {action}, which has no name here");
            return add(FactKind::Note, words);
        }
    };
    add(FactKind::Fault, format!("{who}: the driver asks for {wanted} before it can be used again"));
}
