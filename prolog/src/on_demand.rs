//! The checks on demand, outside of any prolog: `aimaster-prolog check-node NODE ...`, for `aimaster check`, and as root for
//! `aimaster undrain --check`. Of this node by itself, or of all nodes of a job step, on each of which it is started. It prints
//! the report and changes nothing in Slurm.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use cluster::auth::{MOST_KEY_BYTES, SiteKey};
use cluster::events::Events;
use cluster::slurm::config::{self, SlurmConf};
use cluster::slurm::environment::{JobEnv, is_plain_name};
use cluster::slurm::scontrol::Scontrol;
use diag::action::{Decision, JobAction};
use diag::check::{ALL, CheckName, Scope as Measured};
use diag::facts::NodeId;
use diag::policy::{POLICY_FILE, Policy, Scope};
use diag::report::{MeasuredOn, Report, RunId};
use jiff::Timestamp;
use tokio::time::Instant;
use zeroize::Zeroizing;

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
    step: Option<Step>,
    /// Whether the key of this run stands on standard input; else MUNGE says who may join.
    keyed: bool,
}

/// The job step whose nodes are checked together.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Step {
    job_id: u32,
    step_id: u32,
    nodes: Vec<String>,
    me: NodeId,
}

impl Wanted {
    fn parse(arguments: &[String]) -> Result<Self> {
        let [node, rest @ ..] = arguments else {
            bail!(
                "{CHECK_NODE} NODE [--gpus COUNT | --devices LIST] [--checks LIST] [--policy FILE] [--step JOB.STEP --nodes LIST \
                 [--key stdin]]"
            )
        };
        if !is_plain_name(node) {
            bail!("{node:?} is no name of a node");
        }
        let mut wanted = Self {
            node: node.clone(),
            gpus: None,
            only: None,
            policy: POLICY_FILE.into(),
            step: None,
            keyed: false,
        };
        let (mut step, mut nodes) = (None, None);
        for pair in rest.chunks(2) {
            match pair {
                [key, value] if key == "--gpus" => {
                    let count: u32 = value.parse().context("--gpus")?;
                    wanted.gpus = count.checked_sub(1).map(|last| format!("0-{last}"));
                }
                [key, value] if key == "--devices" => wanted.gpus = Some(value.clone()),
                [key, value] if key == "--checks" => wanted.only = Some(named(value)?),
                [key, value] if key == "--policy" => wanted.policy = value.into(),
                [key, value] if key == "--step" => step = Some(value.as_str()),
                [key, value] if key == "--nodes" => nodes = Some(value.as_str()),
                [key, value] if key == "--key" && value == "stdin" => wanted.keyed = true,
                _ => bail!("{} is not understood", pair.join(" ")),
            }
        }
        wanted.step = match (step, nodes) {
            (Some(step), Some(nodes)) => Some(Step::parse(step, nodes, node)?),
            (None, None) => None,
            _ => bail!("--step and --nodes go together"),
        };
        if wanted.step.is_none()
            && let Some(check) = wanted.only.iter().flatten().find(|check| !is_of_single_nodes(**check))
        {
            bail!(
                "{check} takes more than one node: a job checks it (srun -N2 --sanity-check={check} true), or a step \
                 (srun -N2 aimaster check {check})"
            );
        }
        Ok(wanted)
    }
}

impl Step {
    fn parse(step: &str, nodes: &str, node: &str) -> Result<Self> {
        let ids = step.split_once('.').and_then(|(job, step)| Some((job.parse().ok()?, step.parse().ok()?)));
        let (job_id, step_id) = ids.with_context(|| format!("--step {step:?} is no JOB.STEP"))?;
        let nodes: Vec<String> = nodes.split(',').map(str::to_owned).collect();
        if let Some(odd) = nodes.iter().find(|name| !is_plain_name(name)) {
            bail!("--nodes: {odd:?} is no name of a node");
        }
        if nodes.iter().collect::<BTreeSet<_>>().len() < nodes.len() {
            bail!("--nodes: a node stands there twice");
        }
        let me = nodes.iter().position(|name| name == node);
        let me = me.and_then(|me| NodeId::try_from(me).ok()).context("--nodes has not this node")?;
        Ok(Self { job_id, step_id, nodes, me })
    }
}

/// Checks by name.
fn named(list: &str) -> Result<Vec<CheckName>> {
    let one = |name: &str| {
        CheckName::parse(name.trim()).with_context(|| format!("there is no check {:?}", name.trim()))
    };
    list.split(',').map(one).collect()
}

fn is_of_single_nodes(check: CheckName) -> bool {
    check.spec().scope == Measured::Node
}

/// The key that the nodes of a step have in common: one line of hexadecimal digits.
fn key(input: impl Read) -> Result<SiteKey> {
    let mut line = Zeroizing::new(String::new());
    input.take(2 * MOST_KEY_BYTES + 1).read_to_string(&mut line).context("the key on standard input")?;
    SiteKey::from_hex(&line).context("what stands on standard input is no key: 64 hexadecimal digits or more")
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

/// Every check that this engine can measure on one node, or on several, or those of them that are wanted.
fn checks(policy: &Policy, several: bool, only: Option<&[CheckName]>) -> Vec<CheckName> {
    let fit = ALL
        .iter()
        .filter(|spec| several || spec.scope == Measured::Node)
        .filter(|spec| spec.engines.contains(&policy.engine))
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
    policy.checks.always = checks(&policy, wanted.step.is_some(), wanted.only.as_deref());
    let step = wanted.step.as_ref();
    let job = JobEnv {
        job_id: step.map_or(0, |step| step.job_id),
        // Steps of one job have each a meeting of their own.
        restart: step.map_or(0, |step| step.step_id),
        uid: 0,
        gid: None,
        user: None,
        cluster,
        node: wanted.node.clone(),
        nodes: step.map_or_else(|| vec![wanted.node.clone()], |step| step.nodes.clone()),
        me: step.map_or(0, |step| step.me),
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
    let key = wanted.keyed.then(|| key(std::io::stdin())).transpose()?;
    let assignment = assignment(wanted, assignment::policy(&wanted.policy)?)?;
    let Assignment { job, policy, .. } = &assignment;
    let deadline = Instant::now() + Duration::from_secs(policy.time.max_deadline_s.into());
    let events = Events::open(&policy.paths.syslog, "aimaster-prolog", &job.node, job.job_id);
    let call = Duration::from_secs(policy.time.scontrol_s.into());
    let paths = &policy.paths;
    let scontrol = Scontrol::new(paths.scontrol.clone(), paths.scancel.clone(), job.slurm_conf.clone(), call);
    // Whether the job lives is Slurm's business: it ends its steps.
    let leading = Arc::new(AtomicBool::new(false));
    let inquiry = Inquiry { scontrol: Arc::new(scontrol), every: call, leading };
    let (mut stopping, task) = watch::start(deadline, job, inquiry, &events);
    let (mut worker, facts) = meeting::facts(&assignment).await;
    let mut session = match meeting::session(&assignment, key, &facts, &events, &mut stopping).await {
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
        job_id: assignment.job.job_id,
        cluster: assignment.job.cluster.clone(),
        check_number: 0,
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
            "n1 --step 7.0",
            "n1 --nodes n1,n2",
            "n1 --step 7 --nodes n1,n2",
            "n1 --step 7.0 --nodes n2,n3",
            "n1 --step 7.0 --nodes n1,n1",
            "n1 --step 7.0 --nodes n1,../x",
            "n1 --step 7.0 --nodes n1,n2 --key file",
        ] {
            assert!(parsed(odd).is_err(), "{odd}");
        }
        assert_eq!(check_node(["--policy".to_owned()].into_iter()), None);
        let step = parsed("n2 --step 7.3 --nodes n1,n2 --checks all_reduce_2 --key stdin").unwrap();
        assert_eq!(step.only, Some(vec![CheckName::AllReduce2]));
        let nodes = vec!["n1".to_owned(), "n2".to_owned()];
        assert_eq!(step.step, Some(Step { job_id: 7, step_id: 3, nodes, me: 1 }));
        assert!(step.keyed);
    }

    #[test]
    fn a_key_is_long_and_of_digits() {
        assert!(key("0f".repeat(32).as_bytes()).is_ok());
        let long = "0f".repeat(1 << 20);
        for odd in ["", "0f", &"0g".repeat(32), &long] {
            assert!(key(odd.as_bytes()).is_err(), "{}", odd.len());
        }
    }

    #[test]
    fn only_checks_of_single_nodes_are_run() {
        let names = checks(&Policy::default(), false, None)
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(" ");
        assert_eq!(names, "gemm_flops kernel_launch all_reduce_1 comp_comm_overlap");
        let one = [CheckName::KernelLaunch, CheckName::AllReduce2];
        assert_eq!(checks(&Policy::default(), false, Some(&one)), [CheckName::KernelLaunch]);
        assert_eq!(checks(&Policy::default(), true, Some(&one)), one);
    }
}
