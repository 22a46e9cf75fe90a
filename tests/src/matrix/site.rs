//! A cluster on which cells run one after the other: the product with gates before its programs, so that a phase can be
//! held open on a node until the fault is there; and what has to be as before once a cell is over.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::cell::{Cell, Fault, Phase};
use super::lives::namespace;
use crate::builder::ClusterBuilder;
use crate::cluster::Cluster;
use crate::conf::CTL;
use crate::fields::Record;
use crate::{NODE_DIR, c4d, product, wait};

/// The request's deadline in a cell.
pub const DEADLINE: Duration = Duration::from_secs(8);

/// For all nodes to be idle again. Slurm itself needs as long as a node is not heard, and one more round.
const IDLE: Duration = Duration::from_secs(60);

/// All phases fit into the deadline several times on an idle machine.
const POLICY: &str = "
[time]
join_s = 4
max_deadline_s = 8
scontrol_s = 2
job_poll_s = 1
[host]
ranks_per_node = 1
seconds_per_check = 0.4
[paths]
scontrol = '/opt/aimaster/slurm/scontrol'
scancel = '/opt/aimaster/slurm/scancel'
";

/// Stands before a program of ours on a node: waits while it is held, and sets limits. In the shell's own words, and with
/// absolute paths: there is no PATH.
const GATE: &str = r#"#!/bin/sh
name=${0##*/}
[ -e /run/limit.$name ] && . /run/limit.$name
while [ -e /run/hold.$name ]; do /bin/sleep 0.02; done
exec REAL/$name "$@"
"#;

/// Stands before Slurm's commands: a controller that is slow, and the moment before a drain.
const SLURM: &str = r#"#!/bin/sh
[ -e /run/delay ] && . /run/delay
case "$*" in
*State=DRAIN*)
    : >/run/at.drain
    while [ -e /run/hold.drain ]; do /bin/sleep 0.02; done
    ;;
esac
exec /usr/bin/${0##*/} "$@"
"#;

/// The cluster and what was there at first.
pub struct Site {
    /// The cluster.
    pub cluster: Cluster,
    mounts: BTreeMap<String, usize>,
}

impl Site {
    /// Boots one.
    ///
    /// # Errors
    /// The product is not built, or the cluster does not come up.
    pub fn boot() -> Result<Self> {
        let builder = Cluster::builder()
            .nodes(5)
            .node_options("n4", "Weight=100")
            .node_options("n5", "Weight=100")
            .set("SlurmdTimeout", 8)
            .set("MessageTimeout", 5)
            .set("KillWait", 2)
            // A batch job whose prolog Slurm takes for failed is not to wait for an admin.
            .set("SchedulerParameters", "bf_interval=1,batch_sched_delay=0,nohold_on_prolog_fail")
            // A job whose srun is gone must come to an end.
            .set("InactiveLimit", 5)
            .set("BatchStartTimeout", 20)
            .set("PrologEpilogTimeout", 30);
        Self::boot_as(builder, "")
    }

    /// Boots one of another size or with other settings; `policy` is laid over that of the cells.
    ///
    /// # Errors
    /// See [`Site::boot`].
    pub fn boot_as(builder: ClusterBuilder, policy: &str) -> Result<Self> {
        let policy = product::laid_over(POLICY, policy)?;
        let cluster = c4d::boot(builder, &policy)?;
        put_gates(&cluster)?;
        let mut site = Self { cluster, mounts: BTreeMap::new() };
        let all = format!("-N{}", site.cluster.nodes().len());
        site.cluster.srun([&all, "true"]).ok().context("a first job")?;
        site.wait_idle()?;
        site.mounts = site.count_mounts()?;
        Ok(site)
    }

    /// Waits until all nodes are idle.
    ///
    /// # Errors
    /// They are not, within a minute.
    pub fn wait_idle(&self) -> Result<()> {
        self.cluster.wait_idle(self.cluster.nodes().len(), IDLE)
    }

    /// The policy of this cell.
    ///
    /// # Errors
    /// It can't be written.
    pub fn set_policy(&self, cell: &Cell) -> Result<()> {
        // An answer that comes is waited for; and what is to be hit while it measures measures long enough.
        let more = match (cell.fault, cell.phase) {
            (Fault::Slow(_), _) => "time.scontrol_s = 6",
            (_, Phase::Measure) => "host.seconds_per_check = 1.2",
            _ => "",
        };
        product::set_policy(&self.cluster, &product::laid_over(POLICY, more)?)
    }

    /// The nodes' PID namespaces by name; a node that is down has none.
    #[must_use]
    pub fn namespaces(&self) -> BTreeMap<String, String> {
        let nodes = self.cluster.nodes().into_iter();
        nodes
            .filter_map(|node| {
                let init = self.cluster.find(node).and_then(crate::node::Node::init).ok()?;
                Some((node.to_owned(), namespace(init)?))
            })
            .collect()
    }

    /// A file of a node's /run on this machine.
    ///
    /// # Errors
    /// There is no such node.
    pub fn run_file(&self, node: &str, name: &str) -> Result<PathBuf> {
        Ok(self.cluster.find(node)?.run_file(name))
    }

    /// Holds what is named on a node until [`Site::release`].
    ///
    /// # Errors
    /// The file can't be written.
    pub fn hold(&self, node: &str, name: &str) -> Result<()> {
        fs::write(self.run_file(node, &format!("hold.{name}"))?, "").context("hold")
    }

    /// Lets go on all that was held, everywhere.
    ///
    /// # Errors
    /// A file stays.
    pub fn release(&self) -> Result<()> {
        for node in self.cluster.nodes() {
            for name in [
                "hold.aimaster-prolog",
                "hold.aimaster-worker",
                "hold.aimaster-epilog",
                "hold.drain",
                "at.drain",
            ] {
                match fs::remove_file(self.run_file(node, name)?) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// The run folders of all nodes.
    #[must_use]
    pub fn run_folders(&self) -> Vec<PathBuf> {
        let each = |node: &str| self.cluster.run_folders(node).unwrap_or_default();
        self.cluster.nodes().into_iter().flat_map(each).collect()
    }

    /// The record of the job of this name, if the controller answers and knows it.
    #[must_use]
    pub fn job_named(&self, name: &str) -> Option<Record> {
        let output = self.cluster.scontrol(["show", "job"]).run().ok()?;
        let all = crate::fields::parse(&output.stdout);
        all.into_iter().rev().find(|record| record.get("JobName") == name)
    }

    /// What is left of a cell: mounts and control groups that were not there before.
    ///
    /// # Errors
    /// A node is down.
    pub fn left(&self) -> Result<Vec<String>> {
        let mut left = Vec::new();
        for (node, count) in self.count_mounts()? {
            let before = self.mounts.get(&node).copied().unwrap_or(count);
            if count != before {
                left.push(format!("{node} has {count} mounts, had {before}"));
            }
        }
        left.extend(self.cluster.groups_below().into_iter().map(|group| format!("control group {group}")));
        Ok(left)
    }

    fn count_mounts(&self) -> Result<BTreeMap<String, usize>> {
        let mut counts = BTreeMap::new();
        for node in self.cluster.nodes() {
            let init = self.cluster.find(node)?.init()?;
            let mounts = fs::read_to_string(format!("/proc/{init}/mounts")).context("mounts")?;
            counts.insert(node.to_owned(), mounts.lines().count());
        }
        Ok(counts)
    }

    /// Takes all nodes back into service and waits until they are idle.
    ///
    /// # Errors
    /// They are not, within a minute.
    pub fn put_back(&self) -> Result<()> {
        for node in self.cluster.nodes() {
            let state = self.cluster.node(node)?;
            if state.is("DRAIN") || state.is("DOWN") || state.is("FAIL") {
                let target = format!("nodename={node}");
                self.cluster.scontrol(["update", &target, "state=resume", "comment="]).run()?;
            }
        }
        self.wait_idle()
    }

    /// A script on a node, as root; `$NODE`, `$REPORTS`, and `$DIR`, the node's folder, are set.
    ///
    /// # Errors
    /// It fails.
    pub fn script(&self, node: &str, script: &str) -> Result<()> {
        let reports = product::report_dir(&self.cluster);
        let command = self.cluster.command(node, ["bash", "-c", script]);
        let folder = self.cluster.find(node)?.dir.display().to_string();
        command.env("NODE", node).env("REPORTS", &reports).env("DIR", &folder).ok().map(drop)
    }
}

/// Moves the programs aside and puts the gates into their places.
fn put_gates(cluster: &Cluster) -> Result<()> {
    let opt = cluster.base().join("opt");
    let (held, inner) = (opt.join("held"), opt.join("held/inner"));
    for folder in [&held, &inner, &opt.join("slurm")] {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let library = nccl_profiler::handover::PLUGIN_FILE;
    for name in ["aimaster-prolog", "aimaster-epilog", c4d::AGENT, "aimaster-watcher", library] {
        fs::rename(opt.join(name), held.join(name)).with_context(|| format!("cannot move {name}"))?;
    }
    fs::rename(opt.join("aimaster-worker"), inner.join("aimaster-worker"))
        .context("cannot move the worker")?;
    for name in ["aimaster-prolog", "aimaster-epilog"] {
        write_program(&opt.join(name), &GATE.replace("REAL", &format!("{NODE_DIR}/held")))?;
    }
    let worker = GATE.replace("REAL", &format!("{NODE_DIR}/held/inner"));
    write_program(&held.join("aimaster-worker"), &worker)?;
    for name in ["scontrol", "scancel", "squeue", "sinfo"] {
        write_program(&opt.join("slurm").join(name), SLURM)?;
    }
    super::clock::build(&opt)
}

/// Written by a process of its own: another thread's child would keep the file open for writing, and then it can't be run.
pub fn write_program(path: &std::path::Path, text: &str) -> Result<()> {
    let write = "printf '%s' \"$1\" >\"$0\" && chmod 755 \"$0\"";
    let status = Command::new("sh").args(["-c", write]).arg(path).arg(text).status().context("sh")?;
    ensure!(status.success(), "cannot write {}", path.display());
    Ok(())
}

/// Whether the controller answers.
pub fn controller_answers(cluster: &Cluster) -> bool {
    let ping = cluster.command(CTL, ["timeout", "3", "scontrol", "show", "config"]).run();
    ping.is_ok_and(|output| output.success())
}

/// Waits until it does.
///
/// # Errors
/// It does not, within half a minute.
pub fn wait_controller(cluster: &Cluster) -> Result<()> {
    wait::until(Duration::from_secs(30), "the controller answers", || {
        Ok(controller_answers(cluster).then_some(()))
    })
}
