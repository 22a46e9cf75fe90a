//! The product on the test cluster: installed, switched on by one plugstack line, with a policy for the host
//! engine, and its reports read back.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::builder::ClusterBuilder;
use crate::cluster::Cluster;
use crate::conf::CTL;
use crate::exec::Exec;
use crate::install::{Install, NODE_DIR, NODE_PLUGIN};
use crate::slurm::JobId;
use crate::users::ALICE;
use crate::wait::until;

/// How the plugin is loaded by a site that follows the manual.
pub const OPTIONAL: &str = "optional";

/// What every test site has; `[paths] report_dir` is added for each cluster.
const POLICY: &str = "
engine = 'host'
[time]
join_s = 8
max_deadline_s = 40
";

/// How long a report may take to appear once its job is over.
const REPORT_WAIT: Duration = Duration::from_secs(5);

/// How long nodes may take to be idle again once a job is over.
const IDLE_WAIT: Duration = Duration::from_secs(20);

/// The line of plugstack.conf; `how` is `optional` or `required`.
#[must_use]
pub fn plugstack(how: &str) -> String {
    format!("{how} {NODE_PLUGIN} helpers={NODE_DIR}\n")
}

/// Boots a cluster with the product installed; `policy` (TOML) is laid over the test site's own.
///
/// # Errors
/// The product is not built, the cluster does not boot, or the policy is no TOML.
pub fn boot(builder: ClusterBuilder, policy: &str) -> Result<Cluster> {
    boot_with(builder, Install::from_target()?, policy)
}

/// Like [`boot`], with more than the product installed.
///
/// # Errors
/// The cluster does not boot, or the policy is no TOML.
pub fn boot_with(builder: ClusterBuilder, install: Install, policy: &str) -> Result<Cluster> {
    let cluster = builder.install(install).plugstack(&plugstack(OPTIONAL)).boot()?;
    set_policy(&cluster, policy)?;
    Ok(cluster)
}

/// Replaces the site's policy by the test site's own with `policy` laid over it.
///
/// # Errors
/// `policy` is no TOML, or the file can't be written.
pub fn set_policy(cluster: &Cluster, policy: &str) -> Result<()> {
    cluster.set_policy(&policy_text(cluster, policy)?)
}

/// The text of that policy.
///
/// # Errors
/// `policy` is no TOML.
pub fn policy_text(cluster: &Cluster, policy: &str) -> Result<String> {
    let mut table: toml::Table = POLICY.parse().context("the test site's policy")?;
    let reports = format!("paths.report_dir = '{}'", report_dir(cluster));
    lay_over(&mut table, reports.parse().context("the report folder")?);
    lay_over(&mut table, policy.parse().with_context(|| format!("policy of the test: {policy}"))?);
    Ok(table.to_string())
}

/// One policy laid over another.
///
/// # Errors
/// One of them is no TOML.
pub(crate) fn laid_over(below: &str, above: &str) -> Result<String> {
    let mut table: toml::Table = below.parse().with_context(|| format!("policy: {below}"))?;
    lay_over(&mut table, above.parse().with_context(|| format!("policy: {above}"))?);
    Ok(table.to_string())
}

fn lay_over(below: &mut toml::Table, above: toml::Table) {
    for (key, value) in above {
        match (below.get_mut(&key), value) {
            (Some(toml::Value::Table(below)), toml::Value::Table(above)) => lay_over(below, above),
            (_, value) => _ = below.insert(key, value),
        }
    }
}

/// The folder of reports, at the same path on this machine and on all nodes.
#[must_use]
pub fn report_dir(cluster: &Cluster) -> String {
    cluster.base().join("reports").display().to_string()
}

impl Cluster {
    /// The report of a job's check (1 for its first start), once it is there.
    ///
    /// # Errors
    /// There is none in time, or it is no JSON.
    pub fn report(&self, job: JobId, check: u32) -> Result<Value> {
        let folder = std::path::Path::new(&report_dir(self)).join("aim");
        let path = folder.join(job.to_string()).join(check.to_string()).join("report.json");
        let text = until(REPORT_WAIT, path.display(), || Ok(std::fs::read_to_string(&path).ok()))?;
        serde_json::from_str(&text).with_context(|| format!("{} is no JSON", path.display()))
    }

    /// Names of the nodes that are drained, with their reasons.
    ///
    /// # Errors
    /// scontrol does not answer.
    pub fn drained(&self) -> Result<Vec<(String, String)>> {
        let drained = self.all_nodes()?.into_iter().filter(|(_, node)| node.is("DRAIN"));
        Ok(drained.map(|(name, node)| (name, node.reason.unwrap_or_default())).collect())
    }

    /// `aimaster` on the login node as alice.
    pub fn aimaster<S: Into<String>>(&self, args: impl IntoIterator<Item = S>) -> Exec<'_> {
        self.command(CTL, [format!("{NODE_DIR}/aimaster")]).user(ALICE).args(args)
    }

    /// Takes drained nodes back into service, whoever drained them, and waits until all nodes are idle. What is
    /// remembered of their drains is forgotten, as by an admin who has mended them.
    ///
    /// # Errors
    /// scontrol does not answer, or a node stays busy.
    pub fn put_back(&self) -> Result<()> {
        for (name, _) in self.drained()? {
            let node = format!("nodename={name}");
            self.scontrol(["update", &node, "state=resume", "comment="]).ok()?;
        }
        self.wait_idle(self.nodes().len(), IDLE_WAIT)
    }

    /// Counts the product's calls to Slurm from now on: gives the policy under which it calls a program that
    /// takes them down and then does what it is asked. [`Cluster::slurm_calls`] has them.
    ///
    /// # Errors
    /// The programs can't be written.
    pub fn log_slurm_calls(&self) -> Result<String> {
        let mut policy = String::from("[paths]\n");
        let folder = self.base().join("opt/logged");
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        for name in ["scontrol", "scancel", "squeue", "sinfo"] {
            let path = folder.join(name);
            let log = self.calls_file();
            let text = format!(
                "#!/bin/sh\nread -r node </proc/sys/kernel/hostname\n\
                 echo \"CALL $node {name} $*\" >>{}\nexec /usr/bin/{name} \"$@\"\n",
                log.display()
            );
            std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
            // squeue and sinfo are taken from where scontrol is.
            if !["squeue", "sinfo"].contains(&name) {
                policy += &format!("{name} = '{}'\n", path.display());
            }
        }
        Ok(policy)
    }

    /// The calls since the last time that this was asked: `node scontrol arguments`, without later lines of a
    /// text of several lines.
    ///
    /// # Errors
    /// The list can't be emptied.
    pub fn slurm_calls(&self) -> Result<Vec<String>> {
        let text = std::fs::read_to_string(self.calls_file()).unwrap_or_default();
        std::fs::write(self.calls_file(), "").context("cannot empty the list of calls")?;
        Ok(text.lines().filter_map(|line| line.strip_prefix("CALL ")).map(str::to_owned).collect())
    }

    fn calls_file(&self) -> std::path::PathBuf {
        self.base().join("calls")
    }
}
