//! What nodes tell over a real link, and what does not fit into it.
use std::net::{IpAddr, Ipv4Addr};
use std::slice;
use std::sync::{Arc, Mutex};

use super::*;
use cluster::log::LogSink;
use cluster::order::{Met, Steps, Telemetry};
use cluster::rendezvous::JobKey;
use diag::c4d::digest::{Comm, MAX_COMMS, MAX_RANKS, MAX_STEPS, Process, ProcessState, Rank, StepWait};
use diag::health::{Action, Class, Part, Turn};
use diag::request::FailAction;

/// For what takes milliseconds on an idle machine.
const SOON: Duration = Duration::from_secs(20);

fn order(job_id: u32, me: NodeId, joined: &[NodeId]) -> Order {
    let here = vec![IpAddr::from(Ipv4Addr::LOCALHOST)];
    Order {
        version: env!("CARGO_PKG_VERSION").into(),
        job: JobKey { cluster: "aim".into(), job_id, restart: 0 },
        uid: 1000,
        gid: None,
        nodes: (0..4).map(|node| format!("n{node}")).collect(),
        me,
        folder: "/run".into(),
        slurm_conf: None,
        steps: Steps { folder: "/var/spool".into(), lasting: true },
        gpus: Vec::new(),
        telemetry: Telemetry::Socket("aimaster-c4d/n/1/0".into()),
        fail_action: FailAction::Retain,
        policy: String::new(),
        met: Some(Met {
            key: [7; 32],
            joined: joined.to_vec(),
            addresses: [(0, here.clone()), (1, here)].into(),
        }),
    }
}

/// Each test has ports of its own.
fn policy(job_id: u32) -> Policy {
    let first = 25_000 + 32 * job_id;
    Policy::parse(&format!("[network]\nport_first = {first}\nport_last = {}", first + 31)).unwrap()
}

fn events() -> Events {
    Events::open(std::path::Path::new("/nowhere"), "test", "n0", 1)
}

fn link(job_id: u32, me: NodeId) -> Link {
    Link::new(&order(job_id, me, &[0, 1, 2]), &policy(job_id), &Settings::default(), &events())
}

fn digest(node: NodeId, number: u64) -> Digest {
    Digest { node, number, ending: false, ranks: Vec::new() }
}

async fn pause() {
    tokio::time::sleep(Duration::from_millis(10)).await;
}

fn broken() -> HealthEvent {
    HealthEvent {
        part: Part::Nic { device: "\"".repeat(64), port: u32::MAX },
        what: "\\".repeat(64),
        class: Class::Network,
        action: Action::Report,
        turn: Turn::Began,
        words: "\"".repeat(400),
        age_ms: u64::MAX,
    }
}

#[tokio::test]
async fn nodes_tell_the_two_that_judge_and_know_that_they_are_judged() {
    let mut links: Vec<Link> = (0..3).map(|me| link(1, me)).collect();
    assert_eq!(
        links.iter().map(Link::role).collect::<Vec<_>>(),
        [Some(Role::Head), Some(Role::Deputy), None]
    );
    assert!(links.iter().all(|link| link.joined() == 3));
    let begun = Instant::now();
    let mut number = 0;
    let mut told: Vec<BTreeSet<NodeId>> = vec![BTreeSet::new(); 3];
    let wants = BTreeSet::from([0xab]);
    loop {
        number += 1;
        let now = Instant::now();
        assert!(now.duration_since(begun) < SOON, "{told:?}");
        for (me, link) in links.iter_mut().enumerate() {
            let digest = digest(u32::try_from(me).unwrap(), number);
            let tellings = link.exchange(digest, Vec::new(), me == 0, now);
            told[me].extend(tellings.iter().map(|one| one.digest.node));
        }
        links[0].say(Saying { judged: true, trouble: true, wants_steps: wants.clone(), told: [5].into() });
        links[1].say(Saying { judged: true, ..Saying::default() });
        let all = Heard { nodes: 3, hear_head: 3, head: true };
        let heard = links[..2].iter().all(|link| {
            let heard = link.heard(now);
            heard == all || (heard == Heard { head: false, ..all } && link.role() == Some(Role::Head))
        });
        let guided = links[2].guidance(now).is_some_and(|said| said.trouble && said.wants_steps == wants);
        if heard && guided {
            break;
        }
        pause().await;
    }
    assert_eq!(told[0], [0, 1, 2].into());
    assert_eq!(told[1], [0, 1, 2].into());
    assert_eq!(told[2], [2].into(), "who does not judge hears itself only");
    let now = Instant::now();
    assert_eq!(links[1].other_told(now), Some(&[5].into()));
    assert_eq!((links[0].other_told(now), links[2].other_told(now)), (Some(&[].into()), None));
    // Silence is told by time alone.
    let later = now + Duration::from_millis(Settings::default().silent_ms);
    assert_eq!(links[1].heard(later), Heard { nodes: 0, hear_head: 0, head: false });
    assert!(!links[2].is_judged(later) && links[1].other_told(later).is_none());

    // A node that ends says so, to both, and what broke there.
    let last = broken();
    links.pop().unwrap().goodbye(digest(2, number + 1), vec![last.clone()]).await;
    for (me, link) in links.iter_mut().enumerate() {
        let begun = Instant::now();
        loop {
            assert!(begun.elapsed() < SOON, "the last word was lost");
            let tellings = link.exchange(digest(u32::try_from(me).unwrap(), 0), Vec::new(), true, begun);
            if let Some(said) = tellings.iter().find(|one| one.digest.node == 2 && one.digest.ending) {
                assert_eq!(said.health, slice::from_ref(&last));
                break;
            }
            pause().await;
        }
    }
}

#[tokio::test]
async fn a_node_speaks_for_itself_only() {
    let mut head = link(2, 0);
    let lines: Arc<Mutex<Vec<String>>> = Arc::default();
    let Order { job, nodes, met, .. } = order(2, 2, &[0, 1, 2]);
    let agents = Agents::start(Config {
        job,
        nodes,
        me: 2,
        met: met.unwrap(),
        ports: 25_064..=25_095,
        most_from_node_bytes: MAX_TELLING_BYTES,
        most_from_judge_bytes: MAX_SAYING_BYTES,
        log: LogSink::new(move |line| lines.lock().unwrap().push(line.to_owned())),
    });
    let telling = |node| Telling { digest: digest(node, 1), health: Vec::new() };
    let begun = Instant::now();
    let heard = |body: Vec<u8>, head: &mut Link| {
        agents.tell(body);
        head.exchange(digest(0, 1), Vec::new(), true, Instant::now())
            .into_iter()
            .any(|one| one.digest.node != 0)
    };
    let false_one = serde_json::to_vec(&(telling(1), true)).unwrap();
    while head.refusals == 0 {
        assert!(begun.elapsed() < SOON);
        assert!(!heard(false_one.clone(), &mut head), "node 2 spoke for node 1");
        pause().await;
    }
    let right = serde_json::to_vec(&(telling(2), true)).unwrap();
    while !heard(right.clone(), &mut head) {
        assert!(begun.elapsed() < SOON);
        pause().await;
    }
}

#[test]
fn what_can_t_be_is_refused() {
    let event = broken();
    let read = |health: Vec<HealthEvent>, node| {
        let body = serde_json::to_vec(&(Telling { digest: digest(1, 0), health }, false)).unwrap();
        Telling::parse(node, &body).map(|_| body.len())
    };
    // The largest that an agent makes fits beside the largest digest.
    let bytes = read(vec![event.clone(); MAX_HEALTH], 1).unwrap();
    assert!(bytes + MAX_DIGEST_BYTES <= MAX_TELLING_BYTES, "{bytes}");
    assert_eq!(read(vec![event.clone(); MAX_HEALTH + 1], 1), Err(WordError::TooMany(MAX_HEALTH + 1)));
    let long = HealthEvent { words: "x".repeat(401), ..event.clone() };
    assert_eq!(read(vec![long], 1), Err(WordError::Unsound));
    assert_eq!(read(vec![event], 2), Err(WordError::OtherNode(1)));
    assert!(matches!(Telling::parse(1, b"{}"), Err(WordError::Unreadable(_))));
    let full: BTreeSet<u64> = (0..MAX_SAID as u64).map(|id| u64::MAX - id).collect();
    let saying = Saying { wants_steps: full.clone(), told: full.clone(), ..Saying::default() };
    let body = serde_json::to_vec(&saying).unwrap();
    assert!(body.len() <= MAX_SAYING_BYTES, "{}", body.len());
    assert_eq!(Saying::parse(&body), Ok(saying.clone()));
    let long = Saying { told: full.into_iter().chain([1]).collect(), ..saying };
    assert_eq!(Saying::parse(&serde_json::to_vec(&long).unwrap()), Err(WordError::TooLong));
}

#[test]
fn a_digest_that_is_too_large_is_told_without_its_extras_or_without_what_ranks_do() {
    let step = StepWait {
        peer: 1,
        channel: 1,
        send: true,
        steps: u32::MAX,
        gpu_us: 1 << 36,
        credit_us: 1 << 36,
        wire_us: 1 << 36,
        open: None,
    };
    let full = |comms: u64, steps: usize, name: &str| -> Digest {
        let comm = |id| Comm {
            id: u64::MAX - id,
            name: name.repeat(32),
            rank: 0,
            nranks: 2,
            nnodes: 2,
            age_ms: 1,
            ended: false,
            collectives: Vec::new(),
            p2p: Vec::new(),
            samples: Vec::new(),
            steps: vec![step; steps],
        };
        let rank = |pid| Rank {
            pid,
            task: None,
            gpu: None,
            process: Process { state: ProcessState::Running, wchan: String::new(), io_bytes: None },
            telemetry: DigestTelemetry::Ok,
            kernels: true,
            comms: (0..comms).map(comm).collect(),
        };
        let ranks = (1..=u32::try_from(MAX_RANKS).unwrap()).map(rank).collect();
        Digest { node: 1, number: 1, ending: false, ranks }
    };
    let small = full(1, 1, "");
    assert_eq!(fitting(small.clone()), small);
    let comms = MAX_COMMS as u64;
    let without_extras = fitting(full(comms, MAX_STEPS, ""));
    assert_eq!(without_extras, full(comms, 0, ""));
    let bare = fitting(full(comms, MAX_STEPS, "name of a communicator "));
    assert!(serde_json::to_vec(&bare).unwrap().len() <= MAX_DIGEST_BYTES);
    let silent = |rank: &Rank| matches!(rank.telemetry, DigestTelemetry::Unavailable { .. });
    assert!(bare.ranks.len() == MAX_RANKS && bare.ranks.iter().all(silent));
    bare.check().unwrap();
}

#[tokio::test]
async fn who_did_not_meet_or_is_alone_says_so() {
    let mut alone = order(3, 0, &[0]);
    alone.nodes.truncate(1);
    let links = [alone, Order { met: None, ..order(3, 0, &[0]) }, order(3, 2, &[2])]
        .map(|order| Link::new(&order, &policy(3), &Settings::default(), &events()));
    assert_eq!(links.each_ref().map(Link::role), [Some(Role::Alone), None, None]);
    let nodes: Vec<String> = vec!["n0".into(), "n1".into()];
    assert_eq!(links[1].why(&nodes), "the nodes of the job did not meet");
    assert_eq!(links[2].why(&nodes), "no node of the job can be reached");
    assert!(links.iter().all(|link| !link.is_judged(Instant::now())));
}
