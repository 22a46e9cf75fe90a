//! What a node sets for all programs: shared memory, locked memory, kernel modules, IMEX, how long it is up.

use diag::gpu_facts::reading::{Imex, Memlock, PeerMemory, Shm};

use super::{Root, names, text};

/// `None` where there is no such folder.
#[must_use]
pub fn shm(root: &Root) -> Option<Shm> {
    let stat = rustix::fs::statvfs(root.path("dev/shm")).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
    Some(Shm { total_bytes: bytes(stat.f_blocks), free_bytes: bytes(stat.f_bavail) })
}

/// The limits of the process that asks.
#[must_use]
pub fn memlock(root: &Root) -> Option<Memlock> {
    let limits = text(&root.path("proc/self/limits"))?;
    let mut words =
        limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?.split_whitespace();
    let mut limit = || match words.next()? {
        "unlimited" => Some(None),
        bytes => Some(Some(bytes.parse().ok()?)),
    };
    Some(Memlock { soft_bytes: limit()?, hard_bytes: limit()? })
}

/// Names of the loaded kernel modules, in the kernel's order; `None` where it doesn't say. What is compiled into the
/// kernel is not among them.
#[must_use]
pub fn modules(root: &Root) -> Option<Vec<String>> {
    let text = text(&root.path("proc/modules"))?;
    Some(text.lines().filter_map(|line| line.split_whitespace().next()).map(ToOwned::to_owned).collect())
}

/// `None` where the kernel doesn't say which modules are loaded.
#[must_use]
pub fn peer_memory(root: &Root) -> Option<PeerMemory> {
    let loaded = modules(root)?.iter().any(|name| name == "nvidia_peermem" || name == "nv_peer_mem");
    // Only the RDMA stack of the NIC's vendor has this folder.
    let clients = root.path("sys/kernel/mm/memory_peers");
    let registered = clients.is_dir().then(|| !names(&clients).is_empty());
    Some(PeerMemory { loaded, registered })
}

/// Looks through all processes, so it is asked for only where a GPU says that its fabric spans nodes.
#[must_use]
pub fn imex(root: &Root) -> Imex {
    let channels = names(&root.path("dev/nvidia-caps-imex-channels"));
    let channels = channels.iter().filter(|name| name.starts_with("channel")).count();
    let proc = root.path("proc");
    let mut pids = names(&proc).into_iter().filter(|name| name.bytes().all(|digit| digit.is_ascii_digit()));
    let daemon = pids.any(|pid| text(&proc.join(pid).join("comm")).as_deref() == Some("nvidia-imex"));
    Imex { channels: u32::try_from(channels).unwrap_or(u32::MAX), daemon }
}

/// Whole seconds since the machine was started.
#[must_use]
pub fn uptime_s(root: &Root) -> Option<u64> {
    text(&root.path("proc/uptime"))?.split('.').next()?.parse().ok()
}

/// The kernel's number of this start of the machine.
#[must_use]
pub fn boot_id(root: &Root) -> Option<String> {
    text(&root.path("proc/sys/kernel/random/boot_id"))
}
