//! The configuration of Slurm for one cluster: slurm.conf, gres.conf, cgroup.conf, plugstack.conf
//! and /etc/hosts, from the builder's wishes. Rendering is pure; one function writes the files.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::builder::ClusterBuilder;
use crate::slurm_version::SlurmVersion;
use crate::users;

/// The controller's and login node's name.
pub const CTL: &str = "ctl";
/// The port of slurmctld.
pub(crate) const SLURMCTLD_PORT: u16 = 6817;
/// How many nodes the addresses suffice for.
pub(crate) const MAX_NODES: usize = 200;

/// The name of the node with this index (from 1).
pub(crate) fn node_name(index: usize) -> String {
    format!("n{index}")
}

/// The address of the node with this index; 0 is the controller.
pub(crate) fn address(index: usize) -> String {
    format!("10.77.0.{}", if index == 0 { 1 } else { 10 + index })
}

/// Keys of slurm.conf in the order of the file; a wish of the builder replaces a value.
fn keys(base: &Path) -> Vec<(&'static str, String)> {
    let base = base.display();
    let fixed = |key, value: &str| (key, value.to_owned());
    vec![
        fixed("ClusterName", "aim"),
        ("SlurmctldHost", format!("{CTL}({})", address(0))),
        fixed("SlurmUser", "slurm"),
        fixed("SlurmdUser", "root"),
        fixed("AuthType", "auth/munge"),
        fixed("CredType", "cred/munge"),
        // How long a requeued job waits: the default of 120 s is too long for a test.
        fixed("AuthInfo", "cred_expire=5"),
        ("SlurmctldPort", SLURMCTLD_PORT.to_string()),
        fixed("SlurmdPort", "6818"),
        ("StateSaveLocation", format!("{base}/state")),
        fixed("SlurmdSpoolDir", "/var/spool/slurmd"),
        fixed("SlurmctldPidFile", "/run/slurmctld.pid"),
        fixed("SlurmdPidFile", "/run/slurmd.pid"),
        ("SlurmctldLogFile", format!("{base}/log/slurmctld.log")),
        ("SlurmdLogFile", format!("{base}/log/slurmd.%n.log")),
        fixed("SlurmctldDebug", "debug"),
        fixed("SlurmdDebug", "debug"),
        // Nodes claim processors that this machine may not have.
        fixed("SlurmdParameters", "config_overrides"),
        fixed("ProctrackType", "proctrack/linuxproc"),
        fixed("TaskPlugin", "task/none"),
        fixed("JobAcctGatherType", "jobacct_gather/none"),
        fixed("AccountingStorageType", "accounting_storage/none"),
        fixed("MpiDefault", "none"),
        fixed("SelectType", "select/cons_tres"),
        fixed("SelectTypeParameters", "CR_Core"),
        fixed("SchedulerType", "sched/backfill"),
        fixed("SchedulerParameters", "bf_interval=1,batch_sched_delay=0"),
        fixed("PrologFlags", "Alloc,DeferBatch,Contain"),
        fixed("PrologEpilogTimeout", "60"),
        fixed("BatchStartTimeout", "60"),
        fixed("MessageTimeout", "10"),
        fixed("SlurmdTimeout", "20"),
        fixed("InactiveLimit", "0"),
        fixed("KillWait", "5"),
        fixed("MinJobAge", "300"),
        fixed("ReturnToService", "2"),
        fixed("GresTypes", "gpu"),
        fixed("PlugStackConfig", "/etc/slurm/plugstack.conf"),
    ]
}

/// The text of slurm.conf.
pub(crate) fn slurm_conf(wishes: &ClusterBuilder, base: &Path) -> String {
    let mut text = String::new();
    let defaults = keys(base);
    let wish = |key: &str| wishes.keys.iter().rev().find(|(k, _)| k.eq_ignore_ascii_case(key));
    for (key, value) in &defaults {
        let value = wish(key).map_or(value, |(_, wished)| wished);
        text += &format!("{key}={value}\n");
    }
    for (index, (key, value)) in wishes.keys.iter().enumerate() {
        let known = defaults.iter().any(|(k, _)| k.eq_ignore_ascii_case(key));
        let later = wishes.keys[index + 1..].iter().any(|(k, _)| k.eq_ignore_ascii_case(key));
        if !known && !later {
            text += &format!("{key}={value}\n");
        }
    }
    let cpus = wishes.cpus;
    let gpus = gpu_devices(wishes).len();
    let gres = if gpus > 0 { format!(" Gres=gpu:{gpus}") } else { String::new() };
    text += &format!(
        "NodeName=DEFAULT CPUs={cpus} Boards=1 SocketsPerBoard=1 CoresPerSocket={cpus} ThreadsPerCore=1 \
         RealMemory=1000{gres} State=UNKNOWN\n"
    );
    for index in 1..=wishes.nodes {
        let name = node_name(index);
        let more = wishes.node_options.get(&name).map_or("", String::as_str);
        text += &format!("NodeName={name} NodeAddr={} {more}\n", address(index));
    }
    text += "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n";
    for line in &wishes.lines {
        text += line;
        text.push('\n');
    }
    text
}

fn hosts(nodes: usize) -> String {
    let mut text = format!("127.0.0.1 localhost\n{} {CTL}\n", address(0));
    for index in 1..=nodes {
        text += &format!("{} {}\n", address(index), node_name(index));
    }
    text
}

fn gpu_devices(wishes: &ClusterBuilder) -> Vec<String> {
    if wishes.gpu_devices.is_empty() {
        return (0..wishes.gpus).map(|gpu| format!("/dev/fakegpu{gpu}")).collect();
    }
    wishes.gpu_devices.clone()
}

fn gres_conf(wishes: &ClusterBuilder) -> String {
    let gpus = gpu_devices(wishes).into_iter().map(|device| format!("Name=gpu File={device}\n"));
    gpus.chain(wishes.gres_lines.iter().map(|line| format!("{line}\n"))).collect()
}

/// Writes everything that the daemons read below `base`.
pub(crate) fn write(wishes: &ClusterBuilder, base: &Path, version: SlurmVersion) -> Result<()> {
    for dir in ["etc/slurm", "etc/aimaster", "log", "state", "opt", "home"] {
        fs::create_dir_all(base.join(dir)).with_context(|| format!("cannot create {dir}"))?;
    }
    let slurm = users::get("slurm").context("is slurmctld installed?")?;
    users::own(&base.join("state"), &slurm)?;
    users::own(&base.join("log"), &slurm)?;
    // Nobody uses it here (linuxproc, task/none), but Slurm looks for a plugin. Older releases have
    // no "disabled", newer ones would talk to systemd.
    let cgroup = if version.is_before(23, 2) { "cgroup/v1" } else { "disabled" };
    let files = [
        ("etc/slurm/slurm.conf", slurm_conf(wishes, base)),
        ("etc/slurm/gres.conf", gres_conf(wishes)),
        ("etc/slurm/cgroup.conf", format!("CgroupPlugin={cgroup}\nIgnoreSystemd=yes\n")),
        ("etc/slurm/plugstack.conf", format!("{}\n", wishes.plugstack)),
        ("etc/hosts", hosts(wishes.nodes)),
    ];
    for (name, text) in files {
        fs::write(base.join(name), text).with_context(|| format!("cannot write {name}"))?;
    }
    if let Some(policy) = &wishes.policy {
        fs::write(base.join("etc/aimaster/aimaster.toml"), policy).context("cannot write the policy")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cluster;

    #[test]
    fn a_wish_replaces_a_key_and_new_keys_and_lines_are_added() {
        let wishes = Cluster::builder()
            .nodes(2)
            .gpus(8)
            .set("prologflags", "Alloc")
            .set("PreemptMode", "OFF")
            .line("PartitionName=extra Nodes=n1")
            .node_options("n2", "Feature=slow");
        let text = slurm_conf(&wishes, Path::new("/base"));
        assert_eq!(text.matches("PrologFlags=").count(), 1);
        assert!(text.contains("PrologFlags=Alloc\n"));
        assert!(text.contains("PreemptMode=OFF\n"));
        assert!(text.contains("NodeName=n2 NodeAddr=10.77.0.12 Feature=slow\n"));
        assert!(text.contains("Gres=gpu:8"));
        assert!(text.ends_with("PartitionName=extra Nodes=n1\n"));
        assert!(gres_conf(&wishes).ends_with("Name=gpu File=/dev/fakegpu7\n"));
        assert_eq!(gres_conf(&wishes.gpu_devices(["/dev/nvidia0"])), "Name=gpu File=/dev/nvidia0\n");
    }
}
