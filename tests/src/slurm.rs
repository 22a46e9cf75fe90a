//! Slurm's commands and what they say about jobs and nodes. Users' commands run on the login node
//! (`ctl`) as alice, the admin's as root; `.user("bob")` changes that.

use std::fmt;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};

use crate::cluster::Cluster;
use crate::conf::CTL;
use crate::exec::Exec;
use crate::fields::{self, NodeInfo, Record};
use crate::users::ALICE;
use crate::wait;

/// The number of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u32);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Arguments of a command.
macro_rules! tool {
    ($(#[$doc:meta])* $name:ident, $user:expr) => {
        $(#[$doc])*
        pub fn $name<S: Into<String>>(&self, args: impl IntoIterator<Item = S>) -> Exec<'_> {
            self.command(CTL, [stringify!($name)]).user($user).args(args)
        }
    };
}

impl Cluster {
    tool!(
        /// `srun` as alice.
        srun,
        ALICE
    );
    tool!(
        /// `sbatch` as alice; see [`Cluster::submit`].
        sbatch,
        ALICE
    );
    tool!(
        /// `salloc` as alice.
        salloc,
        ALICE
    );
    tool!(
        /// `scancel` as root.
        scancel,
        "root"
    );
    tool!(
        /// `scontrol` as root.
        scontrol,
        "root"
    );
    tool!(
        /// `sinfo` as root.
        sinfo,
        "root"
    );
    tool!(
        /// `squeue` as root.
        squeue,
        "root"
    );

    /// Submits a batch script as alice. A script without `#!` is one for bash.
    pub fn submit<S: Into<String>>(&self, script: &str, args: impl IntoIterator<Item = S>) -> Result<JobId> {
        self.submit_as(ALICE, script, args)
    }

    /// Submits a batch script as a user.
    pub fn submit_as<S: Into<String>>(
        &self,
        user: &str,
        script: &str,
        args: impl IntoIterator<Item = S>,
    ) -> Result<JobId> {
        let script =
            if script.starts_with("#!") { script.to_owned() } else { format!("#!/bin/bash\n{script}\n") };
        let output = self.sbatch(["--parsable"]).args(args).user(user).stdin(script).ok()?;
        let id = output.text().split(';').next().unwrap_or_default();
        Ok(JobId(id.parse().with_context(|| format!("sbatch printed {:?}", output.text()))?))
    }

    /// All records of a job, an array (`5`), one of its tasks (`5_1`) or a heterogeneous job.
    pub fn jobs(&self, target: impl fmt::Display) -> Result<Vec<Record>> {
        let output = self.scontrol(["show".into(), "job".into(), target.to_string()]).ok()?;
        Ok(fields::parse(&output.stdout))
    }

    /// The record of a job (the first one, where there are several).
    pub fn job(&self, id: JobId) -> Result<Record> {
        self.jobs(id)?.into_iter().next().ok_or_else(|| anyhow!("scontrol shows no job {id}"))
    }

    /// Waits until a job's record satisfies a condition.
    pub fn wait_job(
        &self,
        id: JobId,
        what: &str,
        condition: impl Fn(&Record) -> bool,
        timeout: Duration,
    ) -> Result<Record> {
        let mut last = None;
        let found = wait::until(timeout, format!("job {id}: {what}"), || {
            let record = self.job(id)?;
            let fits = condition(&record);
            last = Some(record.clone());
            Ok(fits.then_some(record))
        });
        found.with_context(|| format!("the job's record at last: {last:?}"))
    }

    /// Waits until a job is in this state; an end in another one is an error at once.
    pub fn wait_state(&self, id: JobId, state: &str, timeout: Duration) -> Result<Record> {
        let settled = |r: &Record| r.state() == state || r.is_finished();
        let record = self.wait_job(id, state, settled, timeout)?;
        if record.state() != state {
            bail!("job {id} is {}, not {state}: {record:?}", record.state());
        }
        Ok(record)
    }

    /// Waits until a job has ended, however, and has left its nodes.
    pub fn wait_end(&self, id: JobId, timeout: Duration) -> Result<Record> {
        self.wait_job(id, "ends", Record::is_finished, timeout)
    }

    /// What a batch job printed, read from the file that its record names.
    pub fn job_output(&self, id: JobId) -> Result<String> {
        let record = self.job(id)?;
        self.read_file(CTL, record.get("StdOut"))
    }

    /// A node as the controller sees it.
    pub fn node(&self, name: &str) -> Result<NodeInfo> {
        let output = self.scontrol(["show", "node", name]).ok()?;
        let record = fields::parse(&output.stdout).into_iter().next();
        let record = record.ok_or_else(|| anyhow!("scontrol shows no node {name}: {output:?}"))?;
        Ok(NodeInfo::from_record(record))
    }

    /// All nodes as the controller sees them, by name.
    pub fn all_nodes(&self) -> Result<Vec<(String, NodeInfo)>> {
        let output = self.scontrol(["show", "node"]).ok()?;
        let records = fields::parse(&output.stdout).into_iter();
        let all: Vec<_> = records.map(|r| (r.get("NodeName").to_owned(), NodeInfo::from_record(r))).collect();
        if all.len() < self.nodes().len() {
            bail!("scontrol shows {} nodes: {output:?}", all.len());
        }
        Ok(all)
    }

    /// Waits until the controller sees a node in a certain way.
    pub fn wait_node(
        &self,
        name: &str,
        what: &str,
        condition: impl Fn(&NodeInfo) -> bool,
        timeout: Duration,
    ) -> Result<NodeInfo> {
        let mut last = None;
        let found = wait::until(timeout, format!("node {name}: {what}"), || {
            let info = self.node(name)?;
            let fits = condition(&info);
            last = Some(info.clone());
            Ok(fits.then_some(info))
        });
        found.with_context(|| format!("the node at last: {last:?}"))
    }

    /// Waits until this many nodes are idle and answer.
    pub fn wait_idle(&self, count: usize, timeout: Duration) -> Result<()> {
        wait::until(timeout, format!("{count} idle nodes"), || {
            // Not `-t idle`, which counts nodes whose epilog still runs; -r: nor those that do not answer. It fails while
            // slurmctld starts.
            let output = self.sinfo(["-h", "-r", "-p", "main", "-o", "%T %D"]).run()?;
            let lines = output.stdout.lines().filter_map(|line| line.trim().strip_prefix("idle "));
            let idle: usize = lines.filter_map(|nodes| nodes.trim().parse::<usize>().ok()).sum();
            Ok((idle >= count).then_some(()))
        })
    }
}
