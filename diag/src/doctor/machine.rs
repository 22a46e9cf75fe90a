//! This machine: MUNGE, its address and ports, slurmd's limits, GPUs and their libraries.

use super::Findings;
use super::facts::{Facts, Machine};
use crate::facts::Engine;

/// Ports of the range that may be in use by others before it is too narrow: a job takes a port a rank and one to meet.
const MOST_BUSY: usize = 32;

pub(super) fn rules(facts: &Facts, findings: &mut Findings) {
    munge(facts, findings);
    if facts.machine == Machine::Login {
        return;
    }
    slurmd(facts, findings);
    if facts.site.knows_policy() {
        network(facts, findings);
        gpus(facts, findings);
    }
}

fn munge(facts: &Facts, findings: &mut Findings) {
    let Some(words) = &facts.node.munge else { return };
    let auth = facts.slurm.get("AuthType").unwrap_or("auth/munge");
    let change = if auth.contains("munge") {
        "start munged on this machine (systemctl enable --now munge), with the key of all other machines"
    } else {
        "install munge and run munged on all nodes, with one key: Slurm itself need not use it"
    };
    findings.mistake(
        "munge",
        format!("MUNGE can't be used here: {words}"),
        change,
        format!("nodes prove to each other who they are by it (AuthType={auth})"),
    );
}

fn network(facts: &Facts, findings: &mut Findings) {
    let node = &facts.node;
    let network = &facts.site.policy.network;
    match &node.address {
        Some(Ok(address)) if address.is_loopback() => findings.mistake(
            "address_loopback",
            format!("this node's name leads to {address}, which is this machine for everybody"),
            "take the name out of the 127.* lines of /etc/hosts, set NodeAddr in slurm.conf, or network.interface in the policy",
            "other nodes would look for it on themselves",
        ),
        Some(Err(words)) => findings.mistake(
            "address_unknown",
            words.clone(),
            "mend the name, set NodeAddr in slurm.conf, or network.interface or network.addresses in the policy",
            "other nodes can't find it",
        ),
        _ => {}
    }
    let (first, last) = (network.port_first, network.port_last);
    if let Some((low, high)) = node.local_ports.filter(|(low, high)| *low <= last && *high >= first) {
        findings.mistake(
            "ports_dealt_out",
            format!("the ports of the checks, {first} to {last}, are among those that Linux deals out by itself, {low} to {high}"),
            "choose others below that (network.port_first, port_last), or narrow net.ipv4.ip_local_port_range",
            "any program's outgoing connection may hold a port that a check needs",
        );
    }
    let width = usize::from(last - first) + 1;
    if node.busy_ports.len() > MOST_BUSY || node.busy_ports.len() * 2 > width {
        let shown: Vec<String> = node.busy_ports.iter().take(5).map(u16::to_string).collect();
        findings.mistake(
            "ports_busy",
            format!(
                "{} of the ports {first} to {last} are in use: {}, ...",
                node.busy_ports.len(),
                shown.join(", ")
            ),
            "end what holds them (ss -tlnp), or choose others in network.port_first and port_last",
            "each rank of a check listens on one of its own",
        );
    }
    for words in &node.blocked {
        findings.mistake(
            "ports_blocked",
            words.clone(),
            format!("open the TCP ports {first} to {last} between all nodes, both ways"),
            "nodes that can't reach each other are not checked together",
        );
    }
}

fn slurmd(facts: &Facts, findings: &mut Findings) {
    let node = &facts.node;
    if node.slurmd == Some(false) {
        findings.mistake(
            "slurmd",
            "slurmd does not run on this node",
            "start it",
            "no job runs here, and what systemd would give it can't be looked at",
        );
    }
    if facts.site.policy.engine == Engine::Cuda
        && facts.site.knows_policy()
        && let Some(bytes) = node.memlock.filter(|bytes| *bytes != u64::MAX)
    {
        findings.mistake(
            "memlock",
            format!("slurmd may lock {} KiB of memory", bytes >> 10),
            "set LimitMEMLOCK=infinity in slurmd's unit (systemctl edit slurmd), and restart it",
            "users' programs inherit it, and NCCL registers all its buffers with the network's cards",
        );
    }
    let Some(unit) = &node.unit else { return };
    if unit.kill_mode != "process" {
        findings.mistake(
            "kill_mode",
            format!("slurmd's unit has KillMode={}", unit.kill_mode),
            "set KillMode=process in slurmd's unit (systemctl edit slurmd)",
            "a restart of slurmd would kill the jobs' agents, and their steps with them",
        );
    }
    if !unit.delegate {
        findings.mistake(
            "delegate",
            "slurmd's unit has Delegate=no",
            "set Delegate=yes in slurmd's unit (systemctl edit slurmd)",
            "systemd would move processes of jobs between control groups, and their limits are lost",
        );
    }
}

fn gpus(facts: &Facts, findings: &mut Findings) {
    let node = &facts.node;
    let by_slurm = facts.slurm.gpus.unwrap_or(0);
    if facts.site.policy.engine == Engine::Host {
        if node.gpu_devices > 0 {
            findings.note(
                "engine_host",
                format!("engine=host, and this node has {} GPUs", node.gpu_devices),
                "set engine=cuda in the policy",
                "GPUs are not measured",
            );
        }
        return;
    }
    let has_gres = facts.slurm.get("GresTypes").is_some_and(|types| types.contains("gpu"));
    if node.gpu_devices == 0 && by_slurm == 0 {
        if !has_gres && !facts.slurm.settings.is_empty() {
            findings.mistake(
                "engine_cuda",
                "engine=cuda, which is the default, and Slurm knows of no GPU (GresTypes)",
                "set engine=\"host\" in the policy; or GresTypes=gpu in slurm.conf, and the GPUs in gres.conf",
                "a job that holds no GPU is skipped",
            );
        }
        return;
    }
    if by_slurm != node.gpu_devices {
        findings.mistake(
            "gpus_differ",
            format!("Slurm says that this node has {by_slurm} GPUs, and it has {}", node.gpu_devices),
            "mend Gres= in slurm.conf and gres.conf; or look why a GPU is gone (nvidia-smi, the kernel's log)",
            "jobs get GPUs that are not there, or some are never used",
        );
    }
    for words in &node.missing_libraries {
        findings.mistake(
            "gpu_library",
            words.clone(),
            "install it, or name its file or folder in [cuda] of the policy",
            "every check on GPUs is an ERROR without it",
        );
    }
}
