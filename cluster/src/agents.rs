//! The link between the agents that watch a job while it runs: from each node to the two that judge, and back. Not what is
//! said, nor who of the two speaks.
//!
//! The first two nodes of the meeting for which there is an address listen on a port of the policy's range; every agent
//! dials both, for as long as the job lives. What travels is the state of a moment, and of two moments the newer one is
//! enough: nothing queues, neither for a peer that reads late nor here. A peer that does not read, or says nothing, is
//! cut; it may come again. Nobody is waited for.

mod proof;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use diag::facts::NodeId;
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_util::bytes::Bytes;
use zeroize::Zeroizing;

use crate::dial::{
    FIRST_PAUSE, FIRST_SWEEP, Target, accept, listen, port_order, raise_file_limit, spread, sweep,
};
use crate::handshake::{Counters, Tally};
use crate::log::LogSink;
use crate::order::Met;
use crate::rendezvous::JobKey;
use crate::wire::WireError;
pub(crate) use proof::heard;
use proof::{Linked, Party};

/// How many nodes judge: one speaks, one stands in for it.
const JUDGES: usize = 2;
/// Longest pause between two tries, doubling up to it: a judge that is gone for good must not be flooded, and one that is
/// back is found within a quarter of a minute.
const LONGEST_PAUSE: Duration = Duration::from_secs(15);
/// A link that held for so long was a right one: after it pauses begin short again.
const STEADY: Duration = Duration::from_secs(10);
/// One try over all ports that are due: 200 ports that are blocked take a second each.
const SWEEP: Duration = Duration::from_secs(240);
/// Both sides speak once a second. One that says nothing for so long is cut; a machine that swaps is slow, not gone.
const SILENCE: Duration = Duration::from_secs(20);
/// One frame's way into the socket: more than that and the peer does not read.
const WRITE: Duration = Duration::from_secs(5);
/// Proved connections that wait to be taken into use.
const WAITING: usize = 64;
/// Lines about connections that are written; a fault that comes again and again is counted only.
const LOGGED_ENDS: u64 = 100;

/// What [`Agents::start`] needs to know.
#[derive(Debug)]
pub struct Config {
    /// Which run of which job.
    pub job: JobKey,
    /// All nodes of the job, in Slurm's order.
    pub nodes: Vec<String>,
    /// This node's place among them.
    pub me: NodeId,
    /// What their meeting brought.
    pub met: Met,
    /// Ports that those who judge may listen on.
    pub ports: RangeInclusive<u16>,
    /// Longest word of a node.
    pub most_from_node_bytes: usize,
    /// Longest word of one that judges.
    pub most_from_judge_bytes: usize,
    /// Where lines for a person go.
    pub log: LogSink,
}

/// What goes out: the newest, and whether it is the last.
#[derive(Clone, Default)]
struct Out {
    body: Bytes,
    last: bool,
}

/// What came in, the newest of each node.
#[derive(Default)]
struct Inbox {
    told: BTreeMap<NodeId, Bytes>,
    said: BTreeMap<NodeId, (Instant, Bytes)>,
    /// Why a judge is not reached.
    unreached: BTreeMap<NodeId, String>,
}

struct Shared {
    party: Arc<Party>,
    inbox: Mutex<Inbox>,
    ends: AtomicU64,
}

/// This node's agent among the others. Dropping it ends all connections.
pub struct Agents {
    shared: Arc<Shared>,
    judges: Vec<NodeId>,
    listens: bool,
    telling: watch::Sender<Out>,
    saying: watch::Sender<Out>,
    dialers: JoinSet<()>,
    _hosts: JoinSet<()>,
}

impl std::fmt::Debug for Agents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Agents").field("judges", &self.judges).finish_non_exhaustive()
    }
}

/// Which nodes judge, the one that speaks first: the first two that joined and can be reached.
#[must_use]
pub fn judges(met: &Met) -> Vec<NodeId> {
    let mut joined = met.joined.clone();
    joined.sort_unstable();
    joined.dedup();
    let reachable = |node: &NodeId| met.addresses.get(node).is_some_and(|known| !known.is_empty());
    joined.into_iter().filter(reachable).take(JUDGES).collect()
}

impl Agents {
    /// Listens, if this node judges, and dials those that do. It needs a runtime around it.
    #[must_use]
    pub fn start(config: Config) -> Self {
        let Config { job, nodes, me, met, ports, most_from_node_bytes, most_from_judge_bytes, log } = config;
        let judges = judges(&met);
        let ports = agents_order(&ports, job.job_id);
        let shared = Arc::new(Shared {
            party: Arc::new(Party {
                job,
                nodes,
                joined: met.joined.clone(),
                me,
                key: Zeroizing::new(met.key),
                most_from_node_bytes,
                most_from_judge_bytes,
                log,
                tally: Tally::default(),
            }),
            inbox: Mutex::default(),
            ends: AtomicU64::new(0),
        });
        let (telling, saying) = (watch::Sender::default(), watch::Sender::default());
        let (mut dialers, mut hosts) = (JoinSet::new(), JoinSet::new());
        let listens = judges.contains(&me) && host(&shared, &ports, &saying, &mut hosts);
        for node in judges.iter().filter(|node| **node != me) {
            let addresses = met.addresses.get(node).cloned().unwrap_or_default();
            dialers.spawn(dial(Arc::clone(&shared), *node, addresses, ports.clone(), telling.subscribe()));
        }
        Self { shared, judges, listens, telling, saying, dialers, _hosts: hosts }
    }

    /// Which nodes judge.
    #[must_use]
    pub fn judges(&self) -> &[NodeId] {
        &self.judges
    }

    /// Whether this node is one of them, and others can come to it.
    #[must_use]
    pub fn listens(&self) -> bool {
        self.listens
    }

    /// What those that judge are told next, instead of what they were to be told before.
    pub fn tell(&self, body: Vec<u8>) {
        self.telling.send_replace(Out { body: body.into(), last: false });
    }

    /// What this node says to all that come to it, instead of what it said before.
    pub fn say(&self, body: Vec<u8>) {
        self.saying.send_replace(Out { body: body.into(), last: false });
    }

    /// What nodes told since the last time that this was asked, the newest of each.
    #[must_use]
    pub fn told(&self) -> Vec<(NodeId, Bytes)> {
        std::mem::take(&mut self.shared.inbox().told).into_iter().collect()
    }

    /// What those that judge said last, and when.
    #[must_use]
    pub fn said(&self) -> BTreeMap<NodeId, (Instant, Bytes)> {
        self.shared.inbox().said.clone()
    }

    /// Why a judge was not reached at the last try.
    #[must_use]
    pub fn why(&self, judge: NodeId) -> Option<String> {
        self.shared.inbox().unreached.get(&judge).cloned()
    }

    /// How many hellos were taken and refused here.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.shared.party.tally.read()
    }

    /// Tells a last word, and returns when those that judge have read it or are not there, at the latest after `within`.
    pub async fn goodbye(mut self, body: Vec<u8>, within: Duration) {
        self.telling.send_replace(Out { body: body.into(), last: true });
        // At the deadline the rest is given up: those peers are frozen.
        let _ = timeout(within, async { while self.dialers.join_next().await.is_some() {} }).await;
    }
}

/// The order of the agents' ports: a quarter of the range behind that of the job's meeting, whose leader may still listen.
fn agents_order(range: &RangeInclusive<u16>, job_id: u32) -> Vec<u16> {
    let behind = u32::try_from(range.len() / 4).unwrap_or_default();
    port_order(range, job_id.wrapping_add(behind))
}

impl Shared {
    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        // Whoever panicked while it held the lock left whole values.
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection has ended; whether somebody should look, its reason says.
    fn ended(&self, peer: NodeId, because: Option<String>) {
        let Some(because) = because else { return };
        if self.ends.fetch_add(1, Ordering::Relaxed) < LOGGED_ENDS {
            let party = &self.party;
            party.log.line(&format!("the connection with the agent on {}: {because}", party.name(peer)));
        }
    }
}

/// Listens and serves whoever comes. False: there is no port.
fn host(shared: &Arc<Shared>, ports: &[u16], saying: &watch::Sender<Out>, hosts: &mut JoinSet<()>) -> bool {
    raise_file_limit(shared.party.nodes.len());
    let listener = match listen(ports) {
        Ok(listener) => listener,
        Err(error) => {
            shared.party.log.line(&format!("no port is free for the other agents to come to: {error}"));
            return false;
        }
    };
    let (door, came) = mpsc::channel::<Linked>(WAITING);
    hosts.spawn(accept(listener, Arc::clone(&shared.party), door));
    hosts.spawn(serve(Arc::clone(shared), came, saying.subscribe()));
    true
}

/// One connection a node: a newer one is proved as well, and takes the place of one that the other side gave up.
async fn serve(shared: Arc<Shared>, mut came: mpsc::Receiver<Linked>, saying: watch::Receiver<Out>) {
    let mut links = JoinSet::new();
    let mut by_node: BTreeMap<NodeId, AbortHandle> = BTreeMap::new();
    loop {
        let linked = tokio::select! {
            Some(_) = links.join_next() => continue,
            linked = came.recv() => match linked {
                Some(linked) => linked,
                None => return,
            },
        };
        let (peer, shared, mut saying) = (linked.peer, Arc::clone(&shared), saying.clone());
        let handle = links.spawn(async move {
            let because =
                carry(linked, &mut saying, |body| drop(shared.inbox().told.insert(peer, body))).await;
            shared.ended(peer, because);
        });
        if let Some(older) = by_node.insert(peer, handle) {
            older.abort();
        }
    }
}

/// Keeps a link to one that judges, until the last word is told.
async fn dial(
    shared: Arc<Shared>,
    judge: NodeId,
    addresses: Vec<IpAddr>,
    ports: Vec<u16>,
    mut telling: watch::Receiver<Out>,
) {
    let (mut width, mut pause) = (FIRST_SWEEP, FIRST_PAUSE);
    let target = |address| Target::new(judge, address, ports.clone(), far());
    let mut targets: Vec<Target> = addresses.into_iter().map(target).collect();
    let mut over = telling.clone();
    loop {
        let linked = tokio::select! {
            linked = reach(&shared, &mut targets, width) => linked,
            _ = over.wait_for(|out| out.last) => return,
        };
        let mut held = Duration::ZERO;
        match linked {
            Ok(linked) => {
                shared.inbox().unreached.remove(&judge);
                let began = Instant::now();
                let because = carry(linked, &mut telling, |body| {
                    shared.inbox().said.insert(judge, (Instant::now(), body));
                })
                .await;
                held = began.elapsed();
                shared.ended(judge, because);
            }
            Err(because) => drop(shared.inbox().unreached.insert(judge, because)),
        }
        if held >= STEADY {
            (width, pause) = (FIRST_SWEEP, FIRST_PAUSE);
        }
        tokio::select! {
            () = sleep(pause + spread(shared.party.me, pause)) => (),
            _ = over.wait_for(|out| out.last) => return,
        }
        width = (width * 2).min(ports.len());
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn far() -> tokio::time::Instant {
    tokio::time::Instant::now() + SWEEP
}

/// Tries all addresses of a node once.
async fn reach(shared: &Shared, targets: &mut [Target], width: usize) -> Result<Linked, String> {
    let mut because = "no address of it is known".to_owned();
    for target in targets {
        target.until = far();
        match sweep(target, width, &*shared.party).await {
            Ok(linked) => return Ok(linked),
            Err(error) => because = error,
        }
    }
    Err(because)
}

/// Carries what is newest out and what comes in, until the connection ends. Why, if somebody should look; that a peer is
/// gone is no news, for every job ends.
async fn carry(
    linked: Linked,
    out: &mut watch::Receiver<Out>,
    mut deliver: impl FnMut(Bytes),
) -> Option<String> {
    let Linked { mut reader, mut writer, .. } = linked;
    let read = async {
        loop {
            match timeout(SILENCE, reader.next()).await {
                Ok(Ok(body)) => deliver(body),
                Ok(Err(WireError::Closed | WireError::Io(_))) => return None,
                Ok(Err(error)) => return Some(crate::chain(&error)),
                Err(_) => return Some(format!("it said nothing for {SILENCE:?}")),
            }
        }
    };
    let write = async {
        loop {
            let Out { body, last } = out.borrow_and_update().clone();
            if !body.is_empty() {
                match timeout(WRITE, writer.send(&body)).await {
                    Ok(Ok(())) => (),
                    Ok(Err(_)) => return None,
                    Err(_) => return Some("it does not read what it is sent".to_owned()),
                }
            }
            if last {
                // The peer ends it when it has read this: who ends with unread bytes takes his last word back.
                writer.finish().await;
                std::future::pending::<()>().await;
            }
            if out.changed().await.is_err() {
                return None;
            }
        }
    };
    tokio::select! {
        because = read => because,
        because = write => because,
    }
}

#[cfg(test)]
mod tests;
