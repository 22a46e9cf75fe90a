//! Settings of a node that keep checks from working or make them slow: GPUs that are missing or shared, memory
//! limits, kernel modules.

use super::reading::{MachineReading, NodeReading, Sharing};
use super::{Fact, FactKind, Needs};
use crate::facts::NodeId;
use crate::measurement::Subject;

/// NVIDIA's number on the PCI bus.
const NVIDIA: u32 = 0x10de;

/// PCI class of display controllers, third byte; GPUs without a display are among them.
const CLASS_DISPLAY: u32 = 0x03;

pub(super) fn facts(node: NodeId, reading: &NodeReading, needs: &Needs) -> Vec<Fact> {
    let name = &reading.name;
    let machine = &reading.machine;
    let mut facts = Vec::new();
    let mut add = |kind, words: String| facts.push(Fact::new(kind, Subject::Node { node }, words));
    // E03, E05, K11.
    for trouble in &reading.trouble {
        add(FactKind::Error, format!("{name}: {trouble}"));
    }
    if let Some(shared) = reading.shared {
        let how = match shared {
            Sharing::Mps => "MPS",
            Sharing::Shard => "shards",
        };
        add(
            FactKind::Skip,
            format!("{name}: Slurm lets other jobs use this job's GPUs ({how}): not measured"),
        );
    }
    if !reading.absent.is_empty() {
        absent(reading, &mut add);
    }
    // J13.
    if let Some(shm) = machine.shm.filter(|shm| shm.total_bytes < needs.shm_bytes) {
        let (has, needed) = (mib(shm.total_bytes), mib(needs.shm_bytes));
        add(
            FactKind::Error,
            format!("{name}: /dev/shm has {has}, the checks need {needed}; mount it larger"),
        );
    }
    let uses_rdma = machine.rdma.iter().any(|one| one.ports.iter().any(|port| is_up(port.state.as_deref())));
    // J10.
    let locked =
        machine.memlock.and_then(|limit| limit.soft_bytes).filter(|soft| *soft < needs.memlock_bytes);
    if let Some(soft) = locked.filter(|_| uses_rdma) {
        let (has, needed) = (mib(soft), mib(needs.memlock_bytes));
        add(
            FactKind::Error,
            format!(
                "{name}: a process may lock {has} of memory, RDMA needs {needed}; LimitMEMLOCK=infinity in slurmd's unit"
            ),
        );
    }
    if !reading.gpus.is_empty() {
        gpu_modules(name, machine, uses_rdma, &mut add);
    }
    facts
}

fn is_up(state: Option<&str>) -> bool {
    state == Some("ACTIVE")
}

/// E18, F13: a GPU that is on the bus and not in NVML is broken; one that is nowhere is a mistake in gres.conf, or it
/// fell off the bus.
fn absent(reading: &NodeReading, add: &mut impl FnMut(FactKind, String)) {
    let on_bus: Vec<_> = reading
        .machine
        .pci
        .iter()
        .filter(|one| one.vendor == NVIDIA && one.class >> 16 == CLASS_DISPLAY)
        .collect();
    let shown = reading.present.len();
    let known = |address: &String| reading.present.iter().any(|gpu| gpu.pci.as_ref() == Some(address));
    let lost: Vec<String> = on_bus
        .iter()
        .filter(|one| !known(&one.address))
        .map(|one| match &one.driver {
            Some(driver) => format!("{} (driver {driver})", one.address),
            None => format!("{} (no driver)", one.address),
        })
        .collect();
    let wanted = reading.absent.join(", ");
    let name = &reading.name;
    if lost.is_empty() || on_bus.len() <= shown {
        add(
            FactKind::Error,
            format!(
                "{name}: the job's GPU {wanted} is not there: NVML shows {shown}, the bus {}; compare gres.conf with nvidia-smi -L",
                on_bus.len()
            ),
        );
    } else {
        add(
            FactKind::Fault,
            format!(
                "{name}: the job's GPU {wanted} is missing: NVML shows {shown} of the {} on the bus, not {}; the kernel's log says why",
                on_bus.len(),
                lost.join(", ")
            ),
        );
    }
}

fn gpu_modules(
    name: &str,
    machine: &MachineReading,
    uses_rdma: bool,
    add: &mut impl FnMut(FactKind, String),
) {
    if let Some(modules) = &machine.modules {
        let loaded = |module: &str| modules.iter().any(|one| one == module);
        // K10. The first program that runs as root may still load it.
        if loaded("nvidia") && !loaded("nvidia_uvm") {
            add(
                FactKind::Note,
                format!(
                    "{name}: nvidia_uvm is not loaded, CUDA may fail with an unknown error; nvidia-modprobe -u -c=0"
                ),
            );
        }
    }
    // J11.
    if let Some(peer) = machine.peer_memory.filter(|_| uses_rdma) {
        let why = match (peer.loaded, peer.registered) {
            (true, Some(false)) => "nvidia_peermem is loaded and not registered with the RDMA stack",
            (false, _) => "nvidia_peermem is not loaded",
            (true, _) => return,
        };
        add(
            FactKind::Cause,
            format!(
                "{name}: {why}: GPUDirect RDMA is off, and network traffic slow, unless NCCL finds DMA-BUF"
            ),
        );
    }
}

/// Whole MiB, as these limits are set.
fn mib(bytes: u64) -> String {
    /// Below this the rounded number would mislead.
    const ONE: u64 = 1 << 20;
    if bytes < ONE { format!("{} KiB", bytes >> 10) } else { format!("{} MiB", bytes / ONE) }
}
