//! Opening connections: the acceptor of leader and deputy, and the dialers of everybody. Not who is believed: that is a
//! [`Proof`]'s, one of the prologs' meeting and one of the agents.
//!
//! Nothing that an unproved connection sends or holds back can cost more than one slot for a short time.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use diag::facts::NodeId;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::handshake::{HandshakeError, Identity, Tally};
use crate::log::LogSink;
use crate::mesh::Incoming;

/// A whole handshake: a credential of 0.15 ms that the node opens when its munged is idle, and far more when that is busy.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// A listener of ours sends its challenge at once, but for the first time while its munged makes the offer; a stranger on the
/// port costs no more than this.
const CHALLENGE: Duration = Duration::from_secs(2);
/// One TCP connect: a blocked port must not use up the join window.
const CONNECT: Duration = Duration::from_secs(1);
/// Ports of the first sweep; most jobs are alone on their port. Doubles until the whole range is swept.
pub(crate) const FIRST_SWEEP: usize = 4;
/// Pause between sweeps, doubling up to the second: a thousand nodes must not flood a leader that is late.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Unproved connections that may wait besides two for each node of the job.
const SPARE_PENDING: usize = 256;
/// Connections that the kernel holds until they are accepted.
const BACKLOG: u32 = 4096;
/// So many nodes may dial at the same instant: half of what a kernel holds, since many start with another job's nodes.
const AT_ONCE: NodeId = 2048;
/// The others dial one after the other, a little faster than a leader takes them (0.1 ms each): a connection that the kernel has
/// no room for is tried again only after a second.
const BETWEEN_KNOCKS: Duration = Duration::from_micros(80);
/// Rest when the system has no descriptor for a new connection.
const ACCEPT_REST: Duration = Duration::from_millis(50);

/// The order in which ports are tried, by listener and dialers alike: the lower half of the range first, for workers
/// begin in the upper one, and each of their ports that is dialled in vain costs a dialer two seconds.
pub(crate) fn port_order(range: &RangeInclusive<u16>, job_id: u32) -> Vec<u16> {
    let ports: Vec<u16> = range.clone().collect();
    let (lower, upper) = ports.split_at((ports.len() / 2).max(1).min(ports.len()));
    let start = if lower.is_empty() { 0 } else { job_id as usize % lower.len() };
    lower[start..].iter().chain(&lower[..start]).chain(upper).copied().collect()
}

/// How two ends of a fresh connection prove themselves to each other.
pub(crate) trait Proof: Send + Sync + 'static {
    /// A proved connection.
    type Linked: Send + 'static;

    /// The listener's side. The caller bounds its time.
    fn answer(
        &self,
        stream: TcpStream,
        from: IpAddr,
    ) -> impl Future<Output = Result<Self::Linked, HandshakeError>> + Send;

    /// The dialer's side towards `target`. `challenge_within` is short, so that a silent stranger on a port costs little;
    /// the caller bounds the rest.
    fn introduce(
        &self,
        stream: TcpStream,
        target: NodeId,
        challenge_within: Duration,
    ) -> impl Future<Output = Result<Self::Linked, HandshakeError>> + Send;

    /// Whether a hello that was refused for this is worth a line.
    fn is_news(&self, error: &HandshakeError) -> bool;

    /// How many nodes the job has.
    fn nodes(&self) -> usize;

    fn log(&self) -> &LogSink;

    fn tally(&self) -> &Tally;
}

/// Listens on the first free port, on all addresses.
pub(crate) fn listen(ports: &[u16]) -> io::Result<TcpListener> {
    let mut last = io::Error::new(io::ErrorKind::AddrNotAvailable, "the port range is empty");
    for port in ports {
        match bind(*port) {
            Ok(listener) => return Ok(listener),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Lets this process hold four connections for each node: a daemon's usual soft limit is 1024.
pub(crate) fn raise_file_limit(nodes: usize) {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    let needed = SPARE_PENDING as u64 + 64 + 4 * nodes as u64;
    if limit.current.is_some_and(|current| current < needed) {
        limit.current = Some(limit.maximum.map_or(needed, |most| most.min(needed)));
        // Without it the nodes past the limit are absent, and the acceptor says why.
        let _ = setrlimit(Resource::Nofile, limit);
    }
}

fn bind(port: u16) -> io::Result<TcpListener> {
    let on = |socket: TcpSocket, ip: IpAddr| {
        socket.set_reuseaddr(true)?; // connections of an earlier job may still be fading
        socket.bind(SocketAddr::new(ip, port))?;
        socket.listen(BACKLOG)
    };
    match TcpSocket::new_v6().and_then(|socket| on(socket, Ipv6Addr::UNSPECIFIED.into())) {
        // Machines without IPv6.
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
            on(TcpSocket::new_v4()?, Ipv4Addr::UNSPECIFIED.into())
        }
        other => other,
    }
}

struct Pending {
    from: IpAddr,
    task: AbortHandle,
}

/// Answers hellos until it is aborted.
pub(crate) async fn accept<P: Proof, M: From<P::Linked> + Send + 'static>(
    listener: TcpListener,
    id: Arc<P>,
    inbox: mpsc::Sender<M>,
) {
    let most = SPARE_PENDING + 2 * id.nodes();
    let mut tasks = tokio::task::JoinSet::new(); // aborts what is left when the acceptor goes
    let mut pending: VecDeque<Pending> = VecDeque::new();
    let mut failures: u64 = 0;
    loop {
        let (stream, from) = tokio::select! {
            Some(_) = tasks.join_next() => continue,
            accepted = listener.accept() => match accepted {
                Ok((stream, from)) => (stream, from.ip().to_canonical()),
                Err(error) => {
                    failures += 1;
                    if failures <= LOGGED_REFUSALS {
                        id.log().line(&format!("a connection could not be accepted: {error}"));
                    }
                    sleep(ACCEPT_REST).await;
                    continue;
                }
            },
        };
        if pending.len() >= most {
            pending.retain(|one| !one.task.is_finished());
        }
        if pending.len() >= most {
            evict(&mut pending, id.tally());
        }
        let task = tasks.spawn(receive(stream, from, Arc::clone(&id), inbox.clone()));
        pending.push_back(Pending { from, task });
    }
}

/// Makes room: the oldest connection of whoever holds most of them, so that a flood displaces itself. A flood of many
/// addresses of this machine itself is one, and so is one of an IPv6 /64; where nodes share that, the address with most of them.
fn evict(pending: &mut VecDeque<Pending>, tally: &Tally) {
    let of = |one: &Pending| (host(one.from), one.from);
    let holder = most(pending.iter().map(|one| of(one).0));
    let address = most(pending.iter().map(of).filter(|(host, _)| Some(*host) == holder));
    if let Some(at) = pending.iter().position(|one| Some(of(one)) == address)
        && let Some(oldest) = pending.remove(at)
    {
        oldest.task.abort();
        // Counted, not logged: a flood must not fill the log as well.
        tally.evicted.fetch_add(1, Ordering::Relaxed);
    }
}

/// What comes most often; of several, the one that comes first.
fn most<T: Ord + Copy>(all: impl Iterator<Item = T> + Clone) -> Option<T> {
    let mut counts: BTreeMap<T, usize> = BTreeMap::new();
    all.clone().for_each(|one| *counts.entry(one).or_default() += 1);
    let most = counts.values().max()?;
    all.into_iter().find(|one| counts.get(one) == Some(most))
}

/// Whose connection it is: all of 127.0.0.0/8 is this machine, and a host may use all of an IPv6 /64.
fn host(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(one) if one.is_loopback() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(one) => Ipv6Addr::from_bits(one.to_bits() & !u128::from(u64::MAX)).into(),
        one => one,
    }
}

async fn receive<P: Proof, M: From<P::Linked>>(
    stream: TcpStream,
    from: IpAddr,
    id: Arc<P>,
    inbox: mpsc::Sender<M>,
) {
    let late = Err(HandshakeError::Late { what: "complete hello" });
    match timeout(HANDSHAKE, id.answer(stream, from)).await.unwrap_or(late) {
        Ok(linked) => {
            id.tally().accepted.fetch_add(1, Ordering::Relaxed);
            // Fails only if the meeting is over.
            let _ = inbox.send(linked.into()).await;
        }
        Err(error) => {
            let count = id.tally().refused.fetch_add(1, Ordering::Relaxed);
            if count < LOGGED_REFUSALS && id.is_news(&error) {
                id.log().line(&format!("a hello from {from} was refused: {}", crate::chain(&error)));
            }
        }
    }
}

/// Refusals, and connections that could not be accepted, that are logged one by one; a flood is counted only.
const LOGGED_REFUSALS: u64 = 100;

/// Where to dial.
pub(crate) struct Target {
    pub(crate) node: NodeId,
    pub(crate) address: IpAddr,
    pub(crate) ports: Vec<u16>,
    pub(crate) until: Instant,
    /// The likeliest port was silent once, and is still that: its listener's munged may be slow to make the first offer.
    waited: bool,
}

impl Target {
    pub(crate) fn new(node: NodeId, address: IpAddr, ports: Vec<u16>, until: Instant) -> Self {
        Self { node, address, ports, until, waited: false }
    }

    /// A port that answered rightly is the first to be tried from now on, one that did not the last.
    fn learn(&mut self, port: u16, right: bool) {
        self.ports.retain(|known| *known != port);
        let at = if right { 0 } else { self.ports.len() };
        self.ports.insert(at, port);
    }
}

/// Connects to the leader or the deputy, again whenever the connection ends, until its time is over.
pub(crate) async fn dial(mut target: Target, id: Arc<Identity>, inbox: mpsc::Sender<Incoming>) {
    let (mut width, mut pause) = (FIRST_SWEEP, FIRST_PAUSE);
    sleep(BETWEEN_KNOCKS * id.me.saturating_sub(AT_ONCE)).await;
    while Instant::now() < target.until {
        let heard = sweep(&mut target, width, &*id).await;
        match heard {
            Ok(established) => {
                let mut ending = established.ending.subscribe();
                if inbox.send(Incoming::Linked(Box::new(established))).await.is_err() {
                    return;
                }
                // An error means that the connection was dropped, which is an end too.
                let _ = ending.wait_for(Option::is_some).await;
            }
            Err(because) => {
                // Said only if the meeting fails: a node that starts a little later is nothing to report.
                id.not_reached(target.node, &because);
            }
        }
        sleep(pause + spread(id.me, pause)).await;
        width = (width * 2).min(target.ports.len());
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Up to half a pause more, by node, so that nodes that started together don't knock together.
pub(crate) fn spread(node: NodeId, pause: Duration) -> Duration {
    pause * (node % 16) / 32
}

/// Tries the first `width` ports once.
pub(crate) async fn sweep<P: Proof>(target: &mut Target, width: usize, id: &P) -> Result<P::Linked, String> {
    let mut because = "no port to try".to_owned();
    for port in target.ports.iter().copied().take(width).collect::<Vec<_>>() {
        if Instant::now() >= target.until {
            break;
        }
        let at = SocketAddr::new(target.address, port);
        match timeout(CONNECT, TcpStream::connect(at)).await {
            Err(_) => because = format!("{at}: no answer within {CONNECT:?} (is the port blocked?)"),
            Ok(Err(error)) => because = format!("{at}: {error}"),
            Ok(Ok(stream)) => {
                let late = Err(HandshakeError::Late { what: "welcome" });
                let introduced = timeout(HANDSHAKE, id.introduce(stream, target.node, CHALLENGE)).await;
                match introduced.unwrap_or(late) {
                    Ok(linked) => {
                        target.learn(port, true);
                        return Ok(linked);
                    }
                    Err(error) => {
                        because = format!("{at}: {}", crate::chain(&error));
                        let is_first = target.ports.first() == Some(&port);
                        if is_first && matches!(error, HandshakeError::Late { .. }) && !target.waited {
                            target.waited = true;
                        } else {
                            target.learn(port, false);
                        }
                    }
                }
            }
        }
    }
    Err(because)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_flood_from_many_addresses_of_one_host_displaces_itself() {
        let flood: Vec<IpAddr> = (1..=3).map(|last| IpAddr::from([127, 0, 0, last])).collect();
        let v6: Vec<IpAddr> = ["fd00::1", "fd00::2", "fd00::3"].map(|text| text.parse().unwrap()).into();
        let honest: Vec<IpAddr> =
            vec![[172, 16, 0, 1].into(), [172, 16, 0, 2].into(), "fd00:0:0:1::1".parse().unwrap()];
        for flood in [flood, v6] {
            let tally = Tally::default();
            let pending = |from: &IpAddr| Pending {
                from: *from,
                task: tokio::spawn(std::future::pending::<()>()).abort_handle(),
            };
            let mut all: VecDeque<Pending> = honest.iter().chain(&flood).map(pending).collect();
            evict(&mut all, &tally);
            evict(&mut all, &tally);
            let left: Vec<IpAddr> = all.iter().map(|one| one.from).collect();
            assert_eq!(left[..3], honest[..], "{left:?}");
            // One each: the oldest of all goes.
            evict(&mut all, &tally);
            assert_eq!((all.len(), all[0].from), (3, honest[1]));
        }
    }

    #[tokio::test]
    async fn where_nodes_share_an_ipv6_network_one_address_displaces_itself() {
        let [first, flood, last] = ["fd00::1", "fd00::2", "fd00::3"].map(|text| text.parse().unwrap());
        let pending =
            |from: IpAddr| Pending { from, task: tokio::spawn(std::future::pending::<()>()).abort_handle() };
        let mut all: VecDeque<Pending> = [first, flood, flood, flood, last].map(pending).into();
        evict(&mut all, &Tally::default());
        evict(&mut all, &Tally::default());
        assert_eq!(all.iter().map(|one| one.from).collect::<Vec<_>>(), [first, flood, last]);
    }

    /// Its listeners never send a challenge.
    struct Silent(LogSink, Tally);

    impl Proof for Silent {
        type Linked = ();

        async fn answer(&self, _: TcpStream, _: IpAddr) -> Result<(), HandshakeError> {
            Ok(())
        }

        async fn introduce(&self, _: TcpStream, _: NodeId, _: Duration) -> Result<(), HandshakeError> {
            Err(HandshakeError::Late { what: "challenge" })
        }

        fn is_news(&self, _: &HandshakeError) -> bool {
            false
        }

        fn nodes(&self) -> usize {
            2
        }

        fn log(&self) -> &LogSink {
            &self.0
        }

        fn tally(&self) -> &Tally {
            &self.1
        }
    }

    #[tokio::test]
    async fn the_likeliest_port_may_be_silent_once() {
        let listening = [(); 2].map(|()| std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
        let [first, other] = [0, 1].map(|at: usize| listening[at].local_addr().unwrap().port());
        let until = Instant::now() + HANDSHAKE;
        let mut target = Target::new(0, Ipv4Addr::LOCALHOST.into(), vec![first, other], until);
        let silent = Silent(LogSink::new(|_| ()), Tally::default());
        sweep(&mut target, 1, &silent).await.unwrap_err();
        assert_eq!(target.ports, [first, other]);
        sweep(&mut target, 1, &silent).await.unwrap_err();
        assert_eq!(target.ports, [other, first]);
    }
}
