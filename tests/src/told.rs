//! What people are told of one run of the checks: the user by srun, the admin by scontrol, sinfo and syslog, and
//! both by the report. It gathers and compares nothing.

use std::fmt;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::cluster::Cluster;
use crate::fields;
use crate::process::Output;
use crate::slurm::JobId;
use crate::wait::until;

/// Longest run of srun here: the test site's deadline for the checks and the ends of all steps fit into it.
const SRUN: Duration = Duration::from_secs(75);

/// From the end of a job to idle nodes: epilogs, and Slurm's own bookkeeping.
const IDLE: Duration = Duration::from_secs(20);

/// Names of the product's processes begin so.
const OURS: &str = "aimaster";

/// What was said and done.
#[derive(Debug)]
pub struct Told {
    /// The job.
    pub job: JobId,
    /// What srun printed and how it ended.
    pub srun: Output,
    /// The report; null where none was written.
    pub report: Value,
    /// Nodes that are drained now, with their reasons.
    pub drained: Vec<(String, String)>,
    /// `sinfo -R`.
    pub sinfo: String,
}

impl Told {
    /// Whether the user's program ran.
    #[must_use]
    pub fn started(&self) -> bool {
        self.srun.stdout.contains("started")
    }

    /// The outcome that the report shows.
    #[must_use]
    pub fn outcome(&self) -> &str {
        self.report["outcome"].as_str().unwrap_or("no report")
    }

    /// Check, kind and name of the subject of all items with this status.
    #[must_use]
    pub fn items(&self, status: &str) -> Vec<[&str; 3]> {
        let all = self.report["items"].as_array().map_or(&[][..], Vec::as_slice);
        all.iter()
            .filter(|item| item["status"] == status)
            .map(|item| {
                [&item["check"], &item["subject"]["kind"], &item["subject"]["name"]]
                    .map(|value| value.as_str().unwrap_or_default())
            })
            .collect()
    }

    /// The message of the first item with this status; empty if there is none.
    #[must_use]
    pub fn message(&self, status: &str) -> &str {
        let all = self.report["items"].as_array().map_or(&[][..], Vec::as_slice);
        let found = all.iter().find(|item| item["status"] == status);
        found.and_then(|item| item["message"].as_str()).unwrap_or_default()
    }

    /// Names of the drained nodes.
    #[must_use]
    pub fn drained_names(&self) -> Vec<&str> {
        self.drained.iter().map(|(node, _)| node.as_str()).collect()
    }
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "job {}: srun ended with {} after {:?}", self.job, self.srun.code(), self.srun.elapsed)?;
        writeln!(f, "--- srun says\n{}{}", self.srun.stderr, self.srun.stdout)?;
        writeln!(f, "--- drained: {:?}\n--- sinfo -R\n{}", self.drained, self.sinfo)?;
        writeln!(f, "--- report\n{:#}", self.report)
    }
}

impl Cluster {
    /// Runs `srun ARGUMENTS echo started` as a user's job with checks, and gathers what was said.
    ///
    /// # Errors
    /// srun does not end, or Slurm does not answer.
    pub fn told<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Result<Told> {
        let arguments: Vec<&str> = arguments.into_iter().chain(["echo", "started"]).collect();
        let srun = self.srun(arguments).timeout(SRUN).run()?;
        self.told_of(srun)
    }

    /// Gathers what was said of the job that was submitted last, once it has ended.
    ///
    /// # Errors
    /// The job does not end, or Slurm does not answer.
    pub fn told_of(&self, srun: Output) -> Result<Told> {
        let job = self.last_job()?;
        self.wait_end(job, IDLE)?;
        let report = self.report(job, 1).unwrap_or(Value::Null);
        let (drained, sinfo) = (self.drained()?, self.sinfo(["-R"]).ok()?.stdout);
        Ok(Told { job, srun, report, drained, sinfo })
    }

    /// The job that was submitted last.
    ///
    /// # Errors
    /// There is none, or the controller does not answer.
    pub fn last_job(&self) -> Result<JobId> {
        let output = self.scontrol(["show", "job"]).ok()?;
        let records = fields::parse(&output.stdout);
        let ids = records.iter().filter_map(|record| record.number("JobId").ok()?.try_into().ok());
        ids.max().map(JobId).context("scontrol shows no job")
    }

    /// Returns all drained nodes to service, forgets what is remembered of them, and waits until all nodes are idle.
    ///
    /// # Errors
    /// They do not become idle in time.
    pub fn undrain(&self) -> Result<()> {
        for (node, _) in self.drained()? {
            self.scontrol(["update", &format!("nodename={node}"), "state=undrain", "comment="]).ok()?;
        }
        self.wait_idle(self.nodes().len(), IDLE)
    }

    /// Waits until no process of the product is left on any node that is up.
    ///
    /// # Errors
    /// Some are left at the end of `within`: the error names them.
    pub fn wait_no_helper(&self, within: Duration) -> Result<()> {
        let mut left = Vec::new();
        let gone = until(within, "no helper is left", || {
            left.clear();
            for node in self.nodes() {
                // A node that was killed has no processes.
                let processes = self.processes(node).unwrap_or_default();
                let ours = processes.into_iter().filter(|process| process.comm.starts_with(OURS));
                left.extend(ours.map(|process| format!("{node}: {} ({})", process.comm, process.host_pid)));
            }
            Ok(left.is_empty().then_some(()))
        });
        gone.with_context(|| format!("left: {left:?}"))
    }
}
