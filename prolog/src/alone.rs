//! The checks of this node by itself, outside of any job: `aimaster-prolog check-node NODE ...`, for `aimaster check`, and as
//! root for `aimaster undrain --check`. It prints the report and changes nothing in Slurm.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use cluster::events::Events;
use cluster::slurm::config::{self, SlurmConf};
use cluster::slurm::environment::{JobEnv, is_plain_name};
use cluster::slurm::scontrol::Scontrol;
use diag::action::{Decision, JobAction};
use diag::check::{ALL, CheckName, Scope as Measured};
use diag::policy::{POLICY_FILE, Policy, Scope};
use diag::report::{MeasuredOn, Report, RunId};
use jiff::Timestamp;
use tokio::time::Instant;

use crate::assignment::{self, Assignment};
use crate::history::Past;
use crate::suite::{self, Bench, Ended};
use crate::watch::{self, Inquiry};
use crate::{conclusion, meeting};

/// The word that asks for this.
pub const CHECK_NODE: &str = "check-node";

/// What stands on the command line behind the word: the node, then names with values.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Wanted {
    node: String,
    /// The GPUs to measure, as Slurm lists those of a job.
    gpus: Option<String>,
    /// Only these checks.
    only: Option<Vec<CheckName>>,
    policy: PathBuf,
}

impl Wanted {
    fn parse(arguments: &[String]) -> Result<Self> {
        let [node, rest @ ..] = arguments else {
            bail!("{CHECK_NODE} NODE [--gpus COUNT | --devices LIST] [--checks LIST] [--policy FILE]")
        };
        if !is_plain_name(node) {
            bail!("{node:?} is no name of a node");
        }
        let mut wanted = Self { node: node.clone(), gpus: None, only: None, policy: POLICY_FILE.into() };
        for pair in rest.chunks(2) {
            match pair {
                [key, value] if key == "--gpus" => {
                    let count: u32 = value.parse().context("--gpus")?;
                    wanted.gpus = count.checked_sub(1).map(|last| format!("0-{last}"));
                }
                [key, value] if key == "--devices" => wanted.gpus = Some(value.clone()),
                [key, value] if key == "--checks" => wanted.only = Some(named(value)?),
                [key, value] if key == "--policy" => wanted.policy = value.into(),
                _ => bail!("{} is not understood", pair.join(" ")),
            }
        }
        Ok(wanted)
    }
}

/// Checks by name; each must be one that a node by itself can run.
fn named(list: &str) -> Result<Vec<CheckName>> {
    let one = |name: &str| {
        let check = CheckName::parse(name.trim()).with_context(|| format!("there is no check {name:?}"))?;
        if check.spec().scope != Measured::Node {
            bail!("{check} takes more than one node: a job checks it (srun -N2 --sanity-check={check} true)");
        }
        Ok(check)
    };
    list.split(',').map(one).collect()
}

/// Runs them if the command line asks for it, and says how this process ends.
#[must_use]
pub fn check_node(arguments: impl Iterator<Item = String>) -> Option<ExitCode> {
    let arguments: Vec<String> = arguments.collect();
    if arguments.first().map(String::as_str) != Some(CHECK_NODE) {
        return None;
    }
    let report = Wanted::parse(&arguments[1..]).and_then(|wanted| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(run(&wanted))
    });
    let text = report.and_then(|report| Ok(serde_json::to_string(&report)?));
    Some(match text {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("aimaster: the checks of this node: {error:#}");
            ExitCode::FAILURE
        }
    })
}

/// Every check of single nodes that this engine can measure, or those of them that are wanted.
fn checks(policy: &Policy, only: Option<&[CheckName]>) -> Vec<CheckName> {
    let fit = ALL
        .iter()
        .filter(|spec| spec.scope == Measured::Node && spec.engines.contains(&policy.engine))
        .map(|spec| spec.name)
        .filter(|name| only.is_none_or(|only| only.contains(name)));
    fit.collect()
}

/// What is to be done, as if a job that holds the whole node had asked for it.
fn assignment(wanted: &Wanted, mut policy: Policy) -> Result<Assignment> {
    let slurm_conf = std::env::var_os("SLURM_CONF").map(PathBuf::from);
    let conf = SlurmConf::read(&config::locate(slurm_conf.as_deref())?)?;
    let cluster = conf.get("ClusterName").context("slurm.conf names no cluster")?.to_owned();
    policy.scope = Scope::default();
    policy.checks.always = checks(&policy, wanted.only.as_deref());
    let job = JobEnv {
        job_id: 0,
        restart: 0,
        uid: 0,
        gid: None,
        user: None,
        cluster,
        node: wanted.node.clone(),
        nodes: vec![wanted.node.clone()],
        me: 0,
        partition: None,
        constraints: None,
        gpus: wanted.gpus.clone(),
        mps: false,
        slurm_conf,
        het_job_id: None,
    };
    if let Some(why) = crate::engine::nothing_to_measure(policy.engine, &job) {
        bail!("nothing can be measured: {why}");
    }
    assignment::assignment(job, policy, None)?.context("no check can be measured on this engine")
}

async fn run(wanted: &Wanted) -> Result<Report> {
    let begun = Timestamp::now();
    let assignment = assignment(wanted, assignment::policy(&wanted.policy)?)?;
    let Assignment { job, policy, .. } = &assignment;
    let deadline = Instant::now() + Duration::from_secs(policy.time.max_deadline_s.into());
    let events = Events::open(&policy.paths.syslog, "aimaster-prolog", &job.node, job.job_id);
    let call = Duration::from_secs(policy.time.scontrol_s.into());
    let paths = &policy.paths;
    let scontrol = Scontrol::new(paths.scontrol.clone(), paths.scancel.clone(), job.slurm_conf.clone(), call);
    // There is no job to ask about.
    let leading = Arc::new(AtomicBool::new(false));
    let inquiry = Inquiry { scontrol: Arc::new(scontrol), every: call, leading };
    let (mut stopping, task) = watch::start(deadline, job, inquiry, &events);
    let (mut worker, facts) = meeting::facts(&assignment).await;
    let mut session = match meeting::session(&assignment, &facts, &events, &mut stopping).await {
        Ok(session) => session,
        Err(error) => {
            meeting::dismiss(worker, &events).await;
            return Err(error);
        }
    };
    let assignment = assignment.on(session.roster());
    meeting::introduce(&mut worker, &session, &events).await;
    let mut past = Past::none();
    let mut bench = Bench::new(&assignment, &facts, worker.as_mut(), &mut past, deadline);
    let (results, ended) = suite::run(&mut bench, &mut session, &mut stopping, |_, _, _| ()).await;
    task.abort();
    meeting::dismiss(worker, &events).await;
    let stopped = match ended {
        Ended::Finished => None,
        Ended::Stopped(stop) => Some(stop.to_string()),
        Ended::Session(error) => Some(error.to_string()),
    };
    let verdict = conclusion::verdict(&assignment, &session, &results, stopped.as_deref());
    let id = RunId {
        job_id: 0,
        cluster: assignment.job.cluster.clone(),
        check_number: 1,
        engine: assignment.policy.engine,
        hardware: MeasuredOn::of(&assignment.suite),
    };
    let nothing = Decision { job: JobAction::Start, drains: Vec::new(), comment: None, notes: Vec::new() };
    Ok(Report::new(&id, session.roster(), &verdict, &nothing, (begun, Timestamp::now())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Wanted> {
        Wanted::parse(&text.split(' ').filter(|word| !word.is_empty()).map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn the_command_line_names_a_node() {
        let whole = parsed("n1 --gpus 8 --policy /x").unwrap();
        assert_eq!((whole.node.as_str(), whole.gpus.as_deref()), ("n1", Some("0-7")));
        assert_eq!((whole.policy, whole.only), (PathBuf::from("/x"), None));
        let some = parsed("n1 --gpus 0 --devices 1,3 --checks gemm_flops,kernel_launch").unwrap();
        assert_eq!(some.gpus.as_deref(), Some("1,3"));
        assert_eq!(some.only, Some(vec![CheckName::GemmFlops, CheckName::KernelLaunch]));
        assert_eq!(parsed("n1 --gpus 0").unwrap().gpus, None);
        for odd in [
            "",
            "--gpus 8",
            "n1 --gpus",
            "n1 --gpus x",
            "n1 --other 1",
            "../x",
            "n1 --checks x",
            "n1 --checks all_reduce_2",
        ] {
            assert!(parsed(odd).is_err(), "{odd}");
        }
        assert_eq!(check_node(["--policy".to_owned()].into_iter()), None);
    }

    #[test]
    fn only_checks_of_single_nodes_are_run() {
        let names =
            checks(&Policy::default(), None).iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        assert_eq!(names, "gemm_flops kernel_launch all_reduce_1 comp_comm_overlap");
        let one = [CheckName::KernelLaunch, CheckName::AllReduce2];
        assert_eq!(checks(&Policy::default(), Some(&one)), [CheckName::KernelLaunch]);
    }
}
