//! `aimaster check`: the checks of single nodes on this machine, or all checks on the nodes of a job step, now, by whoever wants
//! to know. `aimaster-prolog` runs them as it does for `undrain --check`; what they find changes nothing in Slurm.

#[cfg(feature = "mpi")]
mod exchange;
mod step;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use cluster::slurm::environment::is_plain_name;
use cluster::slurm::scontrol::Scontrol;
use diag::facts::Engine;
use diag::policy::Policy;
use tokio::time::Instant;

use crate::{config, evidence, report};
use step::Part;

/// What says that this runs inside a job.
const JOB: &str = "SLURM_JOB_ID";

/// The job's GPUs as its processes see them.
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// Beyond the time in which the nodes must have met: how long MPI's own start may take.
#[cfg(feature = "mpi")]
const MPI_START: Duration = Duration::from_secs(30);

/// Which checks, and how.
#[derive(clap::Args)]
pub struct Arguments {
    /// Checks, separated by commas [default: all that the nodes can run].
    #[arg(value_name = "CHECKS")]
    checks: Option<String>,
    /// The report as JSON.
    #[arg(long)]
    json: bool,
    /// Measures although jobs run on this node: they are disturbed, and disturb.
    #[arg(long)]
    beside_jobs: bool,
    /// GPUs to measure, such as 0,2-3 [default: inside a job its own, else all].
    #[arg(long, value_name = "LIST")]
    gpus: Option<String>,
    /// Folder of aimaster-prolog, which runs the checks [default: this program's, else /usr/libexec/aimaster].
    #[arg(long)]
    helpers: Option<PathBuf>,
}

/// Runs them and shows the report. The exit code is the outcome.
///
/// # Errors
/// They can't be run.
pub fn run(arguments: &Arguments, policy_file: &Path) -> Result<ExitCode> {
    let policy = config::read(policy_file)?;
    let node = node();
    if !is_plain_name(&node) {
        bail!("this machine's name, {node:?}, is no name of a node");
    }
    let part = part(&node, &policy)?;
    if part == Part::Idle {
        // Another task of this step measures this node.
        return Ok(ExitCode::SUCCESS);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let found = runtime.block_on(checked(arguments, policy_file, &policy, (&node, &part)))?;
    // All nodes of a step come to the same report; once is enough.
    if matches!(&part, Part::Of(step) if !step.is_first(&node)) {
        return Ok(ExitCode::from(report::code_of(found.outcome)));
    }
    let shown = if arguments.json {
        serde_json::to_string_pretty(&found)? + "\n"
    } else {
        report::coloured(&found.text())
    };
    // A reader that went away, such as `head`, is no error.
    _ = std::io::stdout().write_all(shown.as_bytes());
    Ok(ExitCode::from(report::code_of(found.outcome)))
}

/// What this process is to do: MPI says where the others are, else Slurm does.
fn part(node: &str, policy: &Policy) -> Result<Part> {
    let get = |name: &str| std::env::var(name).ok();
    #[cfg(feature = "mpi")]
    if exchange::is_task(get) {
        let within = Duration::from_secs(policy.time.join_s.into()) + MPI_START;
        return Ok(step::of_tasks(get, &exchange::exchange(node, within)?));
    }
    #[cfg(not(feature = "mpi"))]
    let _ = policy;
    step::of_slurm(get, node)
}

async fn checked(
    arguments: &Arguments,
    policy_file: &Path,
    policy: &Policy,
    (node, part): (&str, &Part),
) -> Result<diag::report::Report> {
    if !arguments.beside_jobs && std::env::var_os(JOB).is_none() && is_busy(node, policy).await {
        bail!(
            "jobs run on {node}: they would be measured, and disturbed; run this inside a job (srun -w {node} aimaster check), or say \
             --beside-jobs"
        );
    }
    let mut command = evidence::helper(arguments.helpers.as_deref())?;
    command.arg(node).arg("--policy").arg(policy_file);
    let mut key = None;
    if let Part::Of(step) = part {
        command.arg("--step").arg(&step.id).arg("--nodes").arg(step.nodes.join(","));
        key = step.key.as_ref();
    }
    if key.is_some() {
        command.args(["--key", "stdin"]);
    }
    if let Some(checks) = &arguments.checks {
        command.arg("--checks").arg(checks);
    }
    if policy.engine == Engine::Cuda {
        let own = std::env::var(VISIBLE).ok().filter(|list| !list.is_empty());
        match arguments.gpus.clone().or(own) {
            Some(list) => command.arg("--devices").arg(list),
            None => command.arg("--gpus").arg(crate::doctor::gpu_devices().to_string()),
        };
    }
    evidence::report_of(command, policy, key).await
}

/// The node's name: Slurm's word inside a job, else the machine's.
fn node() -> String {
    let host = || {
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        name.trim().split('.').next().unwrap_or_default().to_owned()
    };
    std::env::var("SLURMD_NODENAME").ok().filter(|name| !name.is_empty()).unwrap_or_else(host)
}

/// Whether Slurm says that jobs are on it. A machine that Slurm does not know, or a controller that does not answer, says no.
async fn is_busy(node: &str, policy: &Policy) -> bool {
    let conf = std::env::var_os("SLURM_CONF").map(PathBuf::from);
    let call = Duration::from_secs(policy.time.scontrol_s.into());
    let scontrol = Scontrol::new(policy.paths.scontrol.clone(), policy.paths.scancel.clone(), conf, call);
    scontrol.node_place(node, Instant::now() + call).await.is_ok_and(|place| place.busy)
}
