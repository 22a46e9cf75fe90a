//! Starts `aimaster-c4d`, which watches the job while it runs, and leaves for the plugin what lets the job's ranks reach
//! it. The agent outlives this helper; what it does is in `epilog::c4d`.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use cluster::order::{MAX_ANSWER_BYTES, Met, Order, READY, Steps, Telemetry};
use cluster::rendezvous::JobKey;
use cluster::session::Session;
use cluster::slurm::config::{self, SlurmConf};
use cluster::trusted_path;
use diag::facts::NodeId;
use diag::report::printable;
use diag::request::effective::Watch;
use diag::telemetry::{self, LIBRARY, socket_name};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};
use tokio::time::{Instant, timeout};

use crate::assignment::Assignment;
use crate::engine;
use crate::run_folder::RunFolder;

/// The agent's program, beside this one.
const AGENT: &str = "aimaster-c4d";

/// How long it may take to be ready: it opens a few files and stops an agent of an earlier run, if there is one.
const READY_WAIT: Duration = Duration::from_secs(8);

/// How long it may take at least, however little of the request's time is left: it needs some milliseconds.
const READY_AT_LEAST: Duration = Duration::from_millis(500);

/// How long an agent that was given up may take to be gone.
const KILL_WAIT: Duration = Duration::from_millis(200);

/// How long the start of an agent may take, where all of the prolog must be over at `end`.
#[must_use]
pub fn patience(end: Instant) -> Duration {
    READY_WAIT.min(end.saturating_duration_since(Instant::now())).max(READY_AT_LEAST)
}

/// The same with what comes after it, for the plugin.
#[must_use]
pub fn longest(patience: Duration) -> Duration {
    patience + KILL_WAIT
}

/// What the agents need of a meeting.
#[must_use]
pub fn met(session: &Session) -> Met {
    let roster = session.roster();
    let joined = (0..).zip(&roster.nodes).filter(|(_, entry)| entry.joined.is_some());
    let joined: Vec<NodeId> = joined.map(|(node, _)| node).collect();
    let mut addresses: BTreeMap<NodeId, Vec<IpAddr>> = BTreeMap::new();
    for (node, entry) in (0..2).zip(&roster.nodes) {
        let Some(joined) = &entry.joined else { continue };
        let both = [Some(joined.seen_address), joined.address];
        let mut known: Vec<IpAddr> = both.into_iter().flatten().filter(|one| !one.is_unspecified()).collect();
        known.dedup();
        addresses.insert(node, known);
    }
    Met { key: *session.agents_key(), joined, addresses }
}

/// Starts the agent, and returns once it watches, within `patience`.
///
/// # Errors
/// It can't be started, refuses, or is not ready in time; none is left then.
pub async fn start(
    assignment: &Assignment,
    watch: Watch,
    met: Option<Met>,
    patience: Duration,
) -> Result<()> {
    let program = std::env::current_exe().context("where is this program?")?.with_file_name(AGENT);
    let library = program.with_file_name(LIBRARY);
    let telemetry = telemetry_of(assignment, &library)?;
    let folder = RunFolder::of(&assignment.job);
    folder.make().with_context(|| format!("can't make {}", folder.path().display()))?;
    let order = order(assignment, watch, met, &folder, telemetry.clone())?;
    match trusted_path::file_of_now(&program) {
        Ok(_) => {}
        Err(error) => bail!("it runs as root, and {error}"),
    }
    let text = order.text()?;
    let mut agent = Command::new(&program)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| {
            format!("{} can't be started: install it beside the other helpers", program.display())
        })?;
    let answered = timeout(patience, hand_over(&mut agent, &text)).await;
    let answer = answered.unwrap_or_else(|_| bail!("it was not ready within {patience:?}"));
    let told = answer.and_then(|()| match &telemetry {
        Telemetry::Socket(name) => {
            let library = library.to_string_lossy().into_owned();
            let denied = &assignment.policy.runtime.nccl_deny;
            let environment = telemetry::Telemetry::new(name.clone(), library, denied);
            folder
                .write_telemetry(&environment)
                .context("what ranks need to reach it can't be left for the plugin")
        }
        Telemetry::Unavailable { .. } => Ok(()),
    });
    if told.is_err() {
        give_up(agent).await;
    }
    told
}

/// Gives it its order and hears whether it is ready.
async fn hand_over(agent: &mut Child, order: &[u8]) -> Result<()> {
    let (stdin, stdout) = (agent.stdin.take(), agent.stdout.take());
    let Some((mut stdin, stdout)) = stdin.zip(stdout) else { bail!("it has no pipes") };
    // One that does not read says why.
    let written = stdin.write_all(order).await;
    drop(stdin);
    let mut said = Vec::new();
    stdout.take(MAX_ANSWER_BYTES).read_to_end(&mut said).await.context("its answer can't be read")?;
    let said = String::from_utf8_lossy(&said);
    match said.trim() {
        READY => written.context("its order can't be written"),
        "" => bail!("it ended without a word"),
        why => bail!("{}", printable(why)),
    }
}

async fn give_up(mut agent: Child) {
    // It may be gone already; one that can't be killed is not waited for.
    _ = agent.start_kill();
    _ = timeout(KILL_WAIT, agent.wait()).await;
}

/// How ranks reach the agent, if they may and can.
fn telemetry_of(assignment: &Assignment, library: &Path) -> Result<Telemetry> {
    let unavailable = |because: String| Ok(Telemetry::Unavailable { because });
    if !assignment.policy.runtime.telemetry {
        return unavailable("the site's policy switches it off (runtime.telemetry)".into());
    }
    match trusted_path::anything(library) {
        Ok(true) => {}
        Ok(false) => {
            return unavailable(format!("{} is missing: install it beside the helpers", library.display()));
        }
        Err(error) => return unavailable(error.to_string()),
    }
    let mut random = [0; 16];
    getrandom::fill(&mut random)
        .map_err(|error| anyhow::anyhow!("no random numbers from the system: {error}"))?;
    let job = &assignment.job;
    Ok(Telemetry::Socket(socket_name(&job.node, job.job_id, u128::from_ne_bytes(random))))
}

fn order(
    assignment: &Assignment,
    watch: Watch,
    met: Option<Met>,
    folder: &RunFolder,
    telemetry: Telemetry,
) -> Result<Order> {
    let job = &assignment.job;
    let path = config::locate(job.slurm_conf.as_deref())?;
    let conf = SlurmConf::read(&path).with_context(|| format!("can't read {}", path.display()))?;
    Ok(Order {
        version: env!("CARGO_PKG_VERSION").into(),
        job: JobKey { cluster: job.cluster.clone(), job_id: job.job_id, restart: job.restart },
        uid: job.uid,
        gid: job.gid,
        nodes: job.nodes.clone(),
        me: job.me,
        folder: folder.path().to_owned(),
        slurm_conf: job.slurm_conf.clone(),
        steps: Steps { folder: spool(&conf, &job.node), lasting: conf.has_extern_steps() },
        telemetry,
        // What can't be read names no GPU; where GPUs are checked, that check says so.
        gpus: engine::gpus(job).unwrap_or_default(),
        fail_action: watch.fail_action,
        policy: assignment.policy.to_toml()?,
        met,
    })
}

/// Where slurmd of this node keeps the sockets of its steps.
pub(crate) fn spool(conf: &SlurmConf, node: &str) -> PathBuf {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    conf.slurmd_spool_dir(node, host.trim())
}

/// How long the nodes of a job for which only the runtime check was asked for may take to meet.
#[must_use]
pub fn meeting_ends(assignment: &Assignment, begun: Instant) -> Instant {
    let join = Duration::from_secs(assignment.policy.time.join_s.into());
    begun
        + (join + cluster::rendezvous::PEER_SLACK).min(Duration::from_secs(assignment.asked.timeout_s.into()))
}
