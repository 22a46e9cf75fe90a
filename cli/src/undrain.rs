//! `aimaster undrain`: returns to service what this software drained, and nothing else, where something shows that the
//! node is fine again. Which nodes those are and what shows it is decided in `diag::action::undrain`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use cluster::events::Events;
use cluster::slurm::scontrol::Scontrol;
use cluster::slurm::show::NodePlace;
use diag::action::undrain::{Drained, one_node_can_tell, ours, passed};
use diag::hostlist::expand;
use diag::job::NodeView;
use diag::policy::Policy;
use diag::report::{Report, printable};
use serde::Serialize;
use tokio::time::Instant;

use crate::{config, evidence};

/// How long all calls to Slurm may take together, beside the checks.
const CALLS: Duration = Duration::from_secs(120);

/// This program, in syslog.
const PROCESS: &str = "aimaster";

/// Which nodes, and what shows that they are fine.
#[derive(clap::Args)]
pub struct Arguments {
    /// The nodes, such as n1,n[3-5].
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    nodes: Option<String>,
    /// All nodes that this software drained.
    #[arg(long)]
    all: bool,
    /// Only says what would be done.
    #[arg(long)]
    dry_run: bool,
    /// A job whose checks passed on the nodes after they were drained, by its report.
    #[arg(long, value_name = "JOBID", required_unless_present_any = ["check", "dry_run"])]
    pub after_pass: Option<u32>,
    /// Runs the checks of single nodes now, on the machine that this is called on, as root; only its own node can be
    /// returned by that.
    #[arg(long, conflicts_with = "after_pass")]
    check: bool,
    /// The cluster of that job, where several keep their reports in one place.
    #[arg(long, requires = "after_pass")]
    pub cluster: Option<String>,
    /// Folder of reports, in place of the policy's.
    #[arg(long, requires = "after_pass")]
    pub report_dir: Option<PathBuf>,
    /// What became of each node, as JSON.
    #[arg(long)]
    pub json: bool,
    /// Folder of aimaster-prolog, which runs the checks [default: this program's, else /usr/libexec/aimaster].
    #[arg(long, requires = "check")]
    pub helpers: Option<PathBuf>,
}

/// Returns them. The exit code: 0 all were, 1 some were left alone.
///
/// # Errors
/// If the policy or the report can't be read, or Slurm does not answer.
pub fn undrain(arguments: &Arguments, policy_file: &Path) -> Result<ExitCode> {
    let policy = config::read(policy_file)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let paths = &policy.paths;
    let conf = std::env::var_os("SLURM_CONF").map(PathBuf::from);
    let call = Duration::from_secs(policy.time.scontrol_s.into());
    let scontrol = Scontrol::new(paths.scontrol.clone(), paths.scancel.clone(), conf, call);
    let work = Work { arguments, policy: &policy, policy_file, scontrol };
    let left = runtime.block_on(work.all())?;
    Ok(ExitCode::from(u8::from(left)))
}

/// What became of a node; of a dry run what would.
#[derive(Serialize)]
struct Became {
    node: String,
    returned: bool,
    words: String,
}

/// Of all of them.
#[derive(Serialize)]
struct All<'a> {
    schema: u32,
    dry_run: bool,
    nodes: &'a [Became],
}

struct Work<'a> {
    arguments: &'a Arguments,
    policy: &'a Policy,
    policy_file: &'a Path,
    scontrol: Scontrol,
}

impl Work<'_> {
    /// Whether some were left alone.
    async fn all(&self) -> Result<bool> {
        let picture = self.scontrol.picture(Instant::now() + CALLS).await.context("can't ask Slurm")?;
        let held = picture.held();
        let names: Vec<String> = match &self.arguments.nodes {
            Some(list) => expand(list)?.into_iter().collect::<BTreeSet<_>>().into_iter().collect(),
            None => held.iter().map(|node| (*node).to_owned()).collect(),
        };
        if names.is_empty() && !self.arguments.json {
            println!("no node is drained by this software");
            return Ok(false);
        }
        let report = match self.arguments.after_pass {
            Some(job) => Some(evidence::of_job(job, self.arguments, &self.policy.paths)?),
            None => None,
        };
        let mut left = 0;
        let mut told = Vec::new();
        for name in &names {
            let view = picture.node(name).with_context(|| format!("{name}: Slurm shows no such node"));
            let done = match &view {
                Ok(view) => self.one(view, report.as_ref()).await,
                Err(error) => Err(format!("{error:#}")),
            };
            left += usize::from(done.is_err());
            let (word, text) = match &done {
                Ok(words) if self.arguments.dry_run => ("would be returned", words),
                Ok(words) => ("returned to service", words),
                Err(words) => ("left alone", words),
            };
            if self.arguments.json {
                told.push(Became { node: name.clone(), returned: done.is_ok(), words: text.clone() });
            } else {
                println!("{name}: {word}: {}", printable(text));
            }
        }
        if self.arguments.json {
            let dry_run = self.arguments.dry_run;
            println!("{}", serde_json::to_string_pretty(&All { schema: 1, dry_run, nodes: &told })?);
        }
        if left > 0 {
            eprintln!("aimaster: {left} of {} nodes were left alone", names.len());
        }
        Ok(left > 0)
    }

    /// One node: what was done, or why not.
    async fn one(&self, view: &NodeView, report: Option<&Report>) -> Result<String, String> {
        let node = view.name.as_str();
        let drained = ours(view)?;
        let shown = match report {
            Some(report) => passed(report, node, &drained, self.place(node).await?.gpus)?,
            None if !self.arguments.check => "if --after-pass or --check shows that it is fine".to_owned(),
            None => {
                one_node_can_tell(&drained)?;
                let gpus = self.here(node).await?;
                if self.arguments.dry_run {
                    return Ok("if its checks pass".to_owned());
                }
                let report = evidence::of_check(node, gpus, self.arguments, (self.policy_file, self.policy));
                passed(&report.await?, node, &drained, gpus)?
            }
        };
        if self.arguments.dry_run {
            return Ok(shown);
        }
        self.give_back(node, &drained).await?;
        let events = Events::open(&self.policy.paths.syslog, PROCESS, node, drained.reason.job_id);
        events.event(
            &format!(
                "event=NodeReturned node={node} reason={:?} because={shown:?}",
                drained.reason.to_string()
            ),
            false,
        );
        Ok(shown)
    }

    async fn place(&self, node: &str) -> Result<NodePlace, String> {
        let place = self.scontrol.node_place(node, Instant::now() + CALLS).await;
        place.map_err(|error| format!("can't ask Slurm: {}", cluster::chain(&error)))
    }

    /// Whether the node is this machine, and is free; how many GPUs Slurm says it has.
    async fn here(&self, node: &str) -> Result<u32, String> {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let place = self.place(node).await?;
        let short = |name: &str| name.trim().split('.').next().unwrap_or_default().to_owned();
        if short(&host) != short(&place.host) {
            return Err(format!(
                "--check must be called on it: it is {}, this is {}",
                place.host,
                host.trim()
            ));
        }
        if !rustix::process::geteuid().is_root() {
            return Err("--check must be called as root".to_owned());
        }
        if place.busy {
            return Err("jobs are still on it: they would be measured, and disturbed".to_owned());
        }
        Ok(place.gpus)
    }

    /// Looks once more, since an admin may have been there meanwhile, and returns it.
    async fn give_back(&self, node: &str, drained: &Drained) -> Result<(), String> {
        let until = Instant::now() + CALLS;
        let names = [node.to_owned()];
        let look = async || {
            let seen = self.scontrol.show_nodes(&names, until).await;
            let seen = seen.map_err(|error| format!("can't ask Slurm: {}", cluster::chain(&error)))?;
            seen.into_iter().next().ok_or_else(|| "Slurm shows no such node".to_owned())
        };
        let now = ours(&look().await?)?;
        if now != *drained {
            return Err(format!("it was drained anew meanwhile, at {}: {}", now.at, now.reason));
        }
        let done = self.scontrol.undrain(&names, None, until).await;
        done.map_err(|error| format!("Slurm did not take it back: {}", cluster::chain(&error)))?;
        let after = look().await?;
        if after.state.contains("DRAIN") {
            return Err(format!("somebody drained it again at once: reason {:?}", after.reason));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
