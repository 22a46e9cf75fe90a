//! Agents of one run on one machine: who is let in, what is told, and what becomes of those who go.
use std::net::{Ipv4Addr, SocketAddr};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::dial::Proof as _;
use crate::wire::FrameWriter;

/// For everything that takes milliseconds on an idle machine.
const SOON: Duration = Duration::from_secs(20);

/// A run of a job whose nodes are all on this machine.
#[derive(Clone)]
struct Run {
    job: JobKey,
    nodes: u32,
    key: [u8; 32],
    lines: Arc<Mutex<Vec<String>>>,
}

impl Run {
    fn new(job_id: u32, nodes: u32) -> Self {
        let job = JobKey { cluster: "aim".into(), job_id, restart: 0 };
        Self { job, nodes, key: [7; 32], lines: Arc::default() }
    }

    fn ports(&self) -> RangeInclusive<u16> {
        // Each test has its own, beyond those of the meeting's tests.
        let first = 24_000 + 32 * u16::try_from(self.job.job_id).unwrap();
        first..=first + 31
    }

    fn config(&self, me: NodeId) -> Config {
        let lines = Arc::clone(&self.lines);
        let here = vec![IpAddr::from(Ipv4Addr::LOCALHOST)];
        Config {
            job: self.job.clone(),
            nodes: (0..self.nodes).map(|node| format!("n{node}")).collect(),
            me,
            met: Met {
                key: self.key,
                joined: (0..self.nodes).collect(),
                addresses: [(0, here.clone()), (1, here)].into(),
            },
            ports: self.ports(),
            most_from_node_bytes: 1 << 20,
            most_from_judge_bytes: 4 << 20,
            log: LogSink::new(move |line| lines.lock().unwrap().push(line.to_owned())),
        }
    }

    fn start(&self, me: NodeId) -> Agents {
        Agents::start(self.config(me))
    }

    /// What a node that is not in order does by hand.
    fn party(&self, me: NodeId) -> Party {
        let Config { job, nodes, met, most_from_node_bytes, most_from_judge_bytes, log, .. } =
            self.config(me);
        Party {
            job,
            nodes,
            joined: met.joined.clone(),
            me,
            key: Zeroizing::new(met.key),
            most_from_node_bytes,
            most_from_judge_bytes,
            log,
            tally: Tally::default(),
        }
    }

    fn target(&self, node: NodeId) -> Target {
        let address = Ipv4Addr::LOCALHOST.into();
        Target::new(node, address, agents_order(&self.ports(), self.job.job_id), far())
    }

    /// A proved connection, held by the test itself.
    async fn link(&self, me: NodeId, to: NodeId) -> Result<Linked, String> {
        sweep(&mut self.target(to), 32, &self.party(me)).await
    }

    /// Where a judge listens.
    async fn address(&self, node: NodeId) -> SocketAddr {
        let mut target = self.target(node);
        sweep(&mut target, 32, &self.party(self.nodes - 1)).await.map(drop).unwrap();
        SocketAddr::new(target.address, target.ports[0])
    }

    fn said(&self, words: &str) -> usize {
        self.lines.lock().unwrap().iter().filter(|line| line.contains(words)).count()
    }
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < SOON, "not within {SOON:?}: {what}");
        sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until a judge was told just this by these nodes.
async fn until_told(judge: &Agents, wanted: &[(NodeId, &str)]) {
    let mut told = BTreeMap::new();
    until(&format!("{wanted:?}"), || {
        told.extend(judge.told());
        wanted.iter().all(|(node, body)| told.get(node).is_some_and(|one| one == body.as_bytes()))
    })
    .await;
}

fn heard(agents: &Agents, judge: NodeId) -> Option<Vec<u8>> {
    agents.said().get(&judge).map(|(_, body)| body.to_vec())
}

#[test]
fn the_first_two_that_joined_and_have_an_address_judge() {
    let here = vec![IpAddr::from(Ipv4Addr::LOCALHOST)];
    let met = |joined: &[NodeId], known: &[NodeId]| Met {
        key: [0; 32],
        joined: joined.to_vec(),
        addresses: known.iter().map(|node| (*node, here.clone())).chain([(9, Vec::new())]).collect(),
    };
    assert_eq!(judges(&met(&[3, 1, 0, 2], &[0, 1])), [0, 1]);
    assert_eq!(judges(&met(&[1, 2], &[0, 1])), [1]);
    assert_eq!(judges(&met(&[0, 9], &[0])), [0]);
    assert!(judges(&met(&[2], &[0, 1])).is_empty());
}

#[tokio::test]
async fn every_node_tells_both_judges_what_is_newest_and_hears_them() {
    let run = Run::new(1, 5);
    let agents: Vec<Agents> = (0..5).map(|me| run.start(me)).collect();
    assert!(agents[0].listens() && agents[1].listens() && !agents[2].listens());
    for (me, agent) in agents.iter().enumerate() {
        // Nothing of the old one arrives after the new one.
        agent.tell(b"old".to_vec());
        agent.tell(format!("from {me}").into_bytes());
    }
    let others = [(2, "from 2"), (3, "from 3"), (4, "from 4")];
    until_told(&agents[0], &[&others[..], &[(1, "from 1")]].concat()).await;
    until_told(&agents[1], &[&others[..], &[(0, "from 0")]].concat()).await;
    agents[0].say(b"first".to_vec());
    agents[1].say(b"second".to_vec());
    for node in [2, 3, 4] {
        until("both are heard", || {
            let [first, second] = [0, 1].map(|judge| heard(&agents[node], judge));
            first.as_deref() == Some(b"first") && second.as_deref() == Some(b"second")
        })
        .await;
    }
    until("they hear each other", || {
        heard(&agents[0], 1).as_deref() == Some(b"second")
            && heard(&agents[1], 0).as_deref() == Some(b"first")
    })
    .await;
    assert!(agents[0].told().is_empty(), "what was taken is told once");
    assert!(run.lines.lock().unwrap().is_empty(), "{:?}", run.lines);
}

#[tokio::test]
async fn who_has_another_key_or_is_of_another_run_is_not_heard() {
    let run = Run::new(2, 4);
    let head = run.start(0);
    let right = run.start(2);
    // Like this run in everything but the key, so that it comes as far as its proof.
    let forged = Run { key: [8; 32], ..run.clone() }.start(3);
    forged.tell(b"wrong".to_vec());
    right.tell(b"right".to_vec());
    until_told(&head, &[(2, "right")]).await;
    until("the forged one is refused", || run.said("its proof is wrong") > 0).await;
    assert!(head.counters().refused > 0);
    // Another start of the job, another cluster's job of the same number, a node that has not joined.
    let mut later = run.clone();
    later.job.restart = 1;
    let mut elsewhere = run.clone();
    elsewhere.job.cluster = "other".into();
    for (other, words) in [(&later, "claim is for restart"), (&elsewhere, "its proof is wrong")] {
        let error = other.link(3, 0).await.err().unwrap();
        assert!(error.contains("refused") || error.contains("127.0.0.1"), "{error}");
        let mut target = other.target(0);
        target.ports = vec![run.address(0).await.port()];
        let error = sweep(&mut target, 1, &other.party(3)).await.err().unwrap();
        assert!(error.contains(words), "{error}");
    }
    let mut few = run.party(2);
    few.me = 77;
    let mut target = run.target(0);
    target.ports = vec![run.address(0).await.port()];
    let error = sweep(&mut target, 1, &few).await.err().unwrap();
    assert!(error.contains("not another node of this job"), "{error}");
    assert!(head.told().iter().all(|(node, _)| *node == 2));
    // A listener with another key learns nothing and is not told anything.
    let thief = Run { key: [8; 32], ..Run::new(3, 4) }.start(0);
    let honest = Run::new(3, 4);
    let node = honest.start(2);
    node.tell(b"secret".to_vec());
    until("the thief was tried", || node.why(0).is_some_and(|why| why.contains("proof is wrong"))).await;
    assert!(thief.told().is_empty());
}

/// Passes everything on, and keeps what the dialer sent.
async fn tap(at: SocketAddr) -> (SocketAddr, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (here, kept) = (listener.local_addr().unwrap(), Arc::new(Mutex::new(Vec::new())));
    let keep = Arc::clone(&kept);
    tokio::spawn(async move {
        let (mut near, mut far) = (listener.accept().await.unwrap().0, TcpStream::connect(at).await.unwrap());
        let (mut near_read, mut near_write) = near.split();
        let (mut far_read, mut far_write) = far.split();
        let forth = async {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = near_read.read(&mut bytes).await {
                keep.lock().unwrap().extend_from_slice(&bytes[..count]);
                far_write.write_all(&bytes[..count]).await.unwrap();
            }
        };
        tokio::select! { () = forth => (), _ = tokio::io::copy(&mut far_read, &mut near_write) => () }
    });
    (here, kept)
}

#[tokio::test]
async fn what_was_recorded_proves_nothing_again() {
    let run = Run::new(4, 3);
    let head = run.start(0);
    let at = run.address(0).await;
    let (tapped, kept) = tap(at).await;
    let stream = TcpStream::connect(tapped).await.unwrap();
    let mut linked = run.party(2).introduce(stream, 0, SOON).await.unwrap();
    linked.writer.send(b"once").await.unwrap();
    until_told(&head, &[(2, "once")]).await;
    let recorded = kept.lock().unwrap().clone();
    let refused = head.counters().refused;
    let mut again = TcpStream::connect(at).await.unwrap();
    again.write_all(&recorded).await.unwrap();
    until("the replay is refused", || head.counters().refused > refused).await;
    assert_eq!(run.said("a replay?"), 1, "{:?}", run.lines);
    assert!(head.told().is_empty());
    // The right one is still there.
    linked.writer.send(b"twice").await.unwrap();
    until_told(&head, &[(2, "twice")]).await;
}

#[tokio::test]
async fn garbage_costs_a_connection_and_a_line() {
    let run = Run::new(5, 4);
    let head = run.start(0);
    let at = run.address(0).await;
    let garbage: [&[u8]; 4] =
        [b"GET / HTTP/1.1\r\n\r\n", &[0xff; 64], &[0, 0, 0, 2, b'{', b'}'], &[0, 0, 0, 0]];
    for bytes in garbage {
        let refused = head.counters().refused;
        let mut stream = TcpStream::connect(at).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        until("it is refused", || head.counters().refused > refused).await;
    }
    assert_eq!(run.said("was refused"), garbage.len(), "{:?}", run.lines);
    // Of a proved node: a frame that is too long, and bytes that are no frame.
    let mut linked = run.link(2, 0).await.unwrap();
    linked.writer.send(&vec![0; (1 << 20) + 1]).await.unwrap();
    until("the long frame ends it", || run.said("the agent on n2: a frame is longer") == 1).await;
    let Linked { writer, .. } = run.link(2, 0).await.unwrap();
    let mut unsealed = FrameWriter::greeting(writer.into_inner());
    unsealed.send(&[1; 100]).await.unwrap();
    until("the false frame ends it", || run.said("the hash of frame 0 is wrong") == 1).await;
    let node = run.start(3);
    node.tell(b"here".to_vec());
    until_told(&head, &[(3, "here")]).await;
}

#[tokio::test]
async fn a_peer_that_does_not_read_is_cut_and_the_others_are_served() {
    let run = Run::new(6, 4);
    let head = run.start(0);
    let node = run.start(3);
    let _frozen = run.link(2, 0).await.unwrap();
    let mut heard_last = Vec::new();
    let begun = Instant::now();
    let mut number = 0u64;
    while run.said("does not read") == 0 {
        assert!(begun.elapsed() < WRITE + SOON, "it was not cut");
        number += 1;
        let mut body = vec![0; 1 << 20];
        body[..8].copy_from_slice(&number.to_be_bytes());
        head.say(body);
        sleep(Duration::from_millis(20)).await;
        heard_last = heard(&node, 0).unwrap_or(heard_last);
    }
    until("the other one hears the newest", || {
        heard(&node, 0).is_some_and(|body| body[..8] == number.to_be_bytes())
    })
    .await;
    assert!(!heard_last.is_empty(), "the other one heard nothing meanwhile");
}

#[tokio::test]
async fn a_judge_that_starts_again_is_found_again() {
    let run = Run::new(7, 3);
    let head = run.start(0);
    let node = run.start(2);
    node.tell(b"first".to_vec());
    until_told(&head, &[(2, "first")]).await;
    drop(head);
    node.tell(b"to nobody".to_vec());
    // It comes back elsewhere: its port is somebody else's by now.
    let first = agents_order(&run.ports(), 7)[0];
    until("the old listener is gone", || std::net::TcpListener::bind(("0.0.0.0", first)).is_ok()).await;
    let _taken = std::net::TcpListener::bind(("0.0.0.0", first)).unwrap();
    let head = run.start(0);
    node.tell(b"second".to_vec());
    until_told(&head, &[(2, "second")]).await;
    head.say(b"again".to_vec());
    until("it is heard", || heard(&node, 0).as_deref() == Some(b"again")).await;
}

#[tokio::test]
async fn a_newer_connection_of_a_node_takes_the_place_of_its_older_one() {
    let run = Run::new(8, 3);
    let head = run.start(0);
    let mut older = run.link(2, 0).await.unwrap();
    let mut newer = run.link(2, 0).await.unwrap();
    newer.writer.send(b"newer").await.unwrap();
    until_told(&head, &[(2, "newer")]).await;
    let ended = timeout(SOON, older.reader.next()).await.expect("the older one was left open");
    assert!(ended.is_err());
}

#[tokio::test]
async fn an_absent_judge_keeps_nobody_waiting() {
    let run = Run::new(9, 3);
    let head = run.start(0);
    let node = run.start(2);
    node.tell(b"here".to_vec());
    until_told(&head, &[(2, "here")]).await;
    until("why is known", || node.why(1).is_some()).await;
    assert_eq!(node.why(0), None);
    // The last word comes to the one that is there, and the other one is not waited for.
    let begun = Instant::now();
    node.goodbye(b"over".to_vec(), SOON).await;
    assert!(begun.elapsed() < SOON / 2, "{:?}", begun.elapsed());
    until_told(&head, &[(2, "over")]).await;
}

#[tokio::test]
async fn a_frozen_judge_holds_a_last_word_up_for_no_longer_than_it_may() {
    let run = Run::new(10, 3);
    // It takes connections, as a kernel does for a process that is stopped, and says nothing.
    let _frozen = std::net::TcpListener::bind(("0.0.0.0", agents_order(&run.ports(), 10)[0])).unwrap();
    let node = run.start(2);
    node.tell(b"here".to_vec());
    sleep(Duration::from_millis(100)).await;
    let begun = Instant::now();
    node.goodbye(b"over".to_vec(), Duration::from_millis(300)).await;
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn sixty_four_nodes_come_through_a_flood_of_connections_that_say_nothing() {
    let run = Run::new(11, 64);
    let head = run.start(0);
    let at = run.address(0).await;
    // More than may wait: the oldest of them make room.
    let mut flood = Vec::new();
    for _ in 0..600 {
        flood.push(TcpStream::connect(at).await.unwrap());
    }
    let nodes: Vec<(NodeId, Agents)> = (2..64).map(|me| (me, run.start(me))).collect();
    for (me, node) in &nodes {
        node.tell(format!("from {me}").into_bytes());
    }
    let bodies: Vec<(NodeId, String)> = nodes.iter().map(|(me, _)| (*me, format!("from {me}"))).collect();
    let wanted: Vec<(NodeId, &str)> = bodies.iter().map(|(me, body)| (*me, body.as_str())).collect();
    until_told(&head, &wanted).await;
    assert!(head.counters().evicted > 0, "{:?}", head.counters());
    assert!(run.lines.lock().unwrap().len() <= 100, "a flood fills the log");
}
