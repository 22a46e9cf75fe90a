//! Before the first round: the worker is started, this node says what it is, and the nodes meet.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use cluster::auth::{Authenticator, SiteKey};
use cluster::munge::{Munge, MungeError};
use cluster::rendezvous::{JobKey, MeetConfig, meet_unless};
use cluster::session::Session;
use cluster::slurm::address::{AddressError, address_of, own_address};
use cluster::slurm::config::{self, SlurmConf};
use cluster::topology;
use diag::facts::{Engine, GpuName, NodeFacts, NodeId};
use diag::gpu_facts::Known;
use diag::policy::Policy;
use tokio::time::Instant;

use crate::assignment::Assignment;
use crate::engine;
use crate::hardware;
use crate::protocol::DataKey;
use crate::watch::Stopping;
use crate::worker_client::{Options, Worker};
use cluster::events::Events;

/// The worker's program, beside this one.
const WORKER: &str = "aimaster-worker";

/// How long a worker may take to say where it listens, and to take note of the others.
const WORKER_WAIT: Duration = Duration::from_secs(5);

/// How long the resolver may take for one name.
const RESOLVE_WAIT: Duration = Duration::from_secs(5);

/// munged's socket where AuthInfo does not say.
const MUNGE_SOCKET: &str = "/run/munge/munge.socket.2";

/// Starts the worker and tells what this node is. A node that can't measure still meets the others, so that they
/// know why.
pub async fn facts(assignment: &Assignment) -> (Option<Worker>, NodeFacts) {
    let (mut worker, ports) = match worker_beside(assignment).await {
        Ok((worker, ports)) => (Some(worker), Ok(ports)),
        Err(error) => (None, Err(error)),
    };
    let opened = match &mut worker {
        Some(worker) if assignment.policy.engine == Engine::Cuda => Some(worker.open().await),
        _ => None,
    };
    // Nor does a node that can't measure leave out why its GPUs can't be used.
    let mut known = match &mut worker {
        Some(worker) if assignment.policy.engine == Engine::Cuda => hardware::known(assignment, worker).await,
        _ => Known::default(),
    };
    let closed = opened.as_ref().and_then(|opened| opened.as_ref().ok()).map(|opened| {
        known.facts = hardware::with_closed(std::mem::take(&mut known.facts), assignment, opened);
        opened.troubles.len() == opened.gpus.len()
    });
    let address = own(assignment).await;
    let unable = match (&ports, &address, &opened) {
        (Err(error), _, _) => Some(format!("{error:#}")),
        (_, Err(error), _) => Some(format!("its own address is not known: {error}")),
        (_, _, Some(Err(error))) => Some(error.to_string()),
        _ if closed == Some(true) => Some("none of the job's GPUs can be used".to_owned()),
        _ => None,
    };
    let opened = opened.and_then(Result::ok);
    let gpus = opened.iter().flat_map(|opened| &opened.gpus);
    let facts = NodeFacts {
        version: env!("CARGO_PKG_VERSION").into(),
        request_digest: assignment.digest.clone(),
        engine: assignment.policy.engine,
        address: address.ok(),
        rank_ports: ports.unwrap_or_default(),
        gpus: gpus.map(|gpu| GpuName { index: gpu.index, model: gpu.name.clone() }).collect(),
        libraries: opened.as_ref().map_or_else(String::new, |opened| format!("NCCL {}", opened.nccl)),
        known,
        unable,
    };
    (worker, facts)
}

/// The same where nothing is measured.
pub async fn bare_facts(assignment: &Assignment) -> NodeFacts {
    let address = own(assignment).await;
    NodeFacts {
        version: env!("CARGO_PKG_VERSION").into(),
        request_digest: assignment.digest.clone(),
        engine: assignment.policy.engine,
        unable: address.as_ref().err().map(|error| format!("its own address is not known: {error}")),
        address: address.ok(),
        rank_ports: Vec::new(),
        gpus: Vec::new(),
        libraries: String::new(),
        known: Known::default(),
    }
}

/// The address that this node tells the others.
async fn own(assignment: &Assignment) -> Result<IpAddr, AddressError> {
    let conf = slurm_conf(assignment).ok();
    let deadline = Instant::now() + RESOLVE_WAIT;
    let network = &assignment.policy.network;
    own_address(&assignment.job.node, network, conf.as_ref(), Path::new("/proc"), deadline).await
}

async fn worker_beside(assignment: &Assignment) -> Result<(Worker, Vec<u16>)> {
    let beside = std::env::current_exe().context("where is this program?")?.with_file_name(WORKER);
    worker(&beside, assignment).await
}

/// Starts `program` as the worker of this node; where its ranks listen.
///
/// # Errors
/// If the job's GPUs or the policy's libraries can't be used, or the worker does not start.
pub async fn worker(program: &Path, assignment: &Assignment) -> Result<(Worker, Vec<u16>)> {
    let policy = &assignment.policy;
    let options = Options {
        user: policy.paths.worker_user.clone(),
        ranks: engine::ranks(assignment),
        port_first: policy.network.port_first,
        port_last: policy.network.port_last,
        job_id: assignment.job.job_id,
        devices: engine::devices(assignment)?,
        environment: engine::environment(assignment),
    };
    let mut worker = Worker::spawn(program, options)?;
    let ports = worker.hello(WORKER_WAIT).await?.to_vec();
    if let Some(look) = hardware::look(assignment)? {
        worker.look(look)?;
    }
    Ok((worker, ports))
}

/// Meets the other nodes of the job, unless something stops the run. Who may join is MUNGE's word, or a key's where there is one.
///
/// # Errors
/// If this node can't prove who it is, or no leader was found.
pub async fn session(
    assignment: &Assignment,
    key: Option<SiteKey>,
    facts: &NodeFacts,
    events: &Events,
    stopping: &mut Stopping,
) -> Result<Session> {
    let Assignment { job, policy, .. } = assignment;
    let path = config::locate(job.slurm_conf.as_deref())?;
    let conf = slurm_conf(assignment)?;
    let auth = match key {
        Some(key) => Authenticator::Key(key),
        // Slurm's prologs run as SlurmdUser on every node, and so does this one.
        None => Authenticator::Munge {
            munge: munge(policy, &conf)?,
            trusted: rustix::process::geteuid().as_raw(),
        },
    };
    let mut addresses = BTreeMap::new();
    for (node, name) in (0..2).zip(&job.nodes) {
        let within = Instant::now() + RESOLVE_WAIT;
        match address_of(name, &policy.network, Some(&conf), within).await {
            Ok(address) => _ = addresses.insert(node, address),
            Err(error) => events.log(&format!("{name}: {error}")),
        }
    }
    // Those that may lead read it.
    let (leaves, why) = if job.me <= 1 && job.nodes.len() > 1 {
        topology::leaves(&path, &job.nodes)
    } else {
        Default::default()
    };
    why.iter().for_each(|line| events.log(line));
    let config = MeetConfig {
        job: JobKey { cluster: job.cluster.clone(), job_id: job.job_id, restart: job.restart },
        nodes: job.nodes.iter().map(|name| name.as_str().into()).collect(),
        me: job.me,
        addresses,
        ports: policy.network.port_first..=policy.network.port_last,
        leaves,
        join_window: Duration::from_secs(policy.time.join_s.into()),
        auth,
        log: events.sink(),
    };
    let stop = async { stopping.stopped().await.to_string() };
    meet_unless(config, facts.clone(), stop).await.context("the nodes did not meet")
}

/// The site's MUNGE; munged is not asked yet.
///
/// # Errors
/// Its library can't be loaded.
pub fn munge(policy: &Policy, conf: &SlurmConf) -> Result<Munge, MungeError> {
    let named = Some(policy.paths.munge_socket.clone()).filter(|path| !path.as_os_str().is_empty());
    let socket = named.or_else(|| conf.munge_socket()).unwrap_or_else(|| MUNGE_SOCKET.into());
    Munge::open(&policy.paths.libmunge, &socket)
}

/// Gives the worker the key and the place that the meeting brought.
pub async fn introduce(worker: &mut Option<Worker>, session: &Session, events: &Events) {
    let Some(present) = worker else { return };
    let me: NodeId = session.me();
    let key = DataKey(*session.workers_key());
    if let Err(error) = present.join(me, key, WORKER_WAIT).await {
        events.log(&format!("the worker did not take note of the meeting: {error}"));
    }
}

/// Ends the worker.
pub async fn dismiss(worker: Option<Worker>, events: &Events) {
    let Some(worker) = worker else { return };
    if let Err(error) = worker.stop().await {
        events.log(&format!("the worker did not end: {error}"));
    }
}

fn slurm_conf(assignment: &Assignment) -> Result<SlurmConf> {
    let path = config::locate(assignment.job.slurm_conf.as_deref())?;
    SlurmConf::read(&path).with_context(|| format!("can't read {}", path.display()))
}
