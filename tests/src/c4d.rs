//! The agents of the runtime check on the test cluster: which there are, and what they say. What they should be like is
//! the tests' own.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use nccl_profiler::handover::PLUGIN_FILE;
use serde_json::Value;

use crate::builder::ClusterBuilder;
use crate::cluster::Cluster;
use crate::files::install_file;
use crate::install::{Install, NODE_DIR};
use crate::procs::Process;
use crate::product;
use crate::slurm::JobId;
use crate::wait::until;

/// The agent's program.
pub const AGENT: &str = "aimaster-c4d";

/// The profiler plugin as cargo names it; the profile `plugin` makes the one that ships.
const BUILT_PLUGIN: &str = "libnccl_profiler_aimaster.so";

/// A flag of srun, sbatch and salloc.
pub const FLAG: &str = "--runtime-check";

/// The program that plays a rank, as the nodes see it.
pub const PLAYER: &str = "/opt/aimaster/player";

/// Boots a cluster with the product. Where the profiler plugin was not built an empty file stands for it: most tests do not
/// load it.
///
/// # Errors
/// See [`product::boot`].
pub fn boot(builder: ClusterBuilder, policy: &str) -> Result<Cluster> {
    let target = crate::target_dir()?;
    let install = Install::from_target()?.program(target.join("rank"));
    let cluster = product::boot_with(builder, install, policy)?;
    let library = cluster.base().join("opt").join(PLUGIN_FILE);
    let built = [target.join("../plugin").join(BUILT_PLUGIN), target.join(BUILT_PLUGIN)];
    match built.iter().find(|path| path.exists()) {
        Some(built) => install_file(built, &library)?,
        None => {
            std::fs::write(&library, "").with_context(|| format!("cannot write {}", library.display()))?
        }
    }
    Ok(cluster)
}

/// Boots a cluster with the product on which ranks can be played: with the profiler plugin and [`PLAYER`].
///
/// # Errors
/// They were not built, or see [`product::boot`].
pub fn boot_players(builder: ClusterBuilder, policy: &str) -> Result<Cluster> {
    let target = crate::target_dir()?;
    let (player, library) = (target.join("examples/player"), target.join(BUILT_PLUGIN));
    for file in [&player, &library] {
        anyhow::ensure!(
            file.is_file(),
            "not built: {}; `cargo build --workspace --all-targets` makes it",
            file.display()
        );
    }
    let cluster = product::boot_with(builder, Install::from_target()?.program(player), policy)?;
    install_file(&library, &cluster.base().join("opt").join(PLUGIN_FILE))?;
    Ok(cluster)
}

/// Puts the profiler plugin from the folder of a build where the agents offer it.
///
/// # Errors
/// It was not built there.
pub fn put_library(cluster: &Cluster, built: &Path) -> Result<()> {
    install_file(&built.join(BUILT_PLUGIN), &cluster.base().join("opt").join(PLUGIN_FILE))
}

/// The profiler plugin as the nodes see it.
#[must_use]
pub fn library() -> String {
    format!("{NODE_DIR}/{PLUGIN_FILE}")
}

impl Cluster {
    /// The agents on a node.
    ///
    /// # Errors
    /// The node is down.
    pub fn agents(&self, node: &str) -> Result<Vec<Process>> {
        Ok(self.processes(node)?.into_iter().filter(|process| process.comm == AGENT).collect())
    }

    /// Waits until these nodes have one agent each, and says which.
    ///
    /// # Errors
    /// They have not, within `within`.
    pub fn wait_agents(&self, nodes: &[&str], within: Duration) -> Result<Vec<Process>> {
        until(within, format!("an agent on each of {nodes:?}"), || {
            let mut found = Vec::new();
            for node in nodes {
                match self.agents(node)?.as_slice() {
                    [one] => found.push(one.clone()),
                    _ => return Ok(None),
                }
            }
            Ok(Some(found))
        })
    }

    /// Waits until none of these nodes has an agent, a socket or a run folder of one.
    ///
    /// # Errors
    /// Something is left, within `within`: the error says what.
    pub fn wait_no_trace(&self, nodes: &[&str], within: Duration) -> Result<()> {
        let mut left = Vec::new();
        let gone = until(within, "nothing of the runtime check is left", || {
            left.clear();
            for node in nodes {
                left.extend(self.agents(node)?.into_iter().map(|one| format!("{node}: {}", one.cmdline)));
                let script = format!("ls -d /run/aimaster/*/*/*; grep {AGENT} /proc/net/unix");
                let seen = self.exec(node, ["sh", "-c", &script])?.stdout;
                left.extend(seen.lines().map(|line| format!("{node}: {line}")));
            }
            Ok(left.is_empty().then_some(()))
        });
        gone.with_context(|| format!("left: {left:#?}"))
    }

    /// What the agent of a run says in its run folder.
    ///
    /// # Errors
    /// There is no such file, or it is no JSON.
    pub fn runtime_report(&self, node: &str, job: JobId, restart: u32) -> Result<Value> {
        let text = self.read_file(node, &format!("/run/aimaster/aim/{node}/{job}.{restart}/runtime.json"))?;
        serde_json::from_str(&text).context("runtime.json is no JSON")
    }
}
