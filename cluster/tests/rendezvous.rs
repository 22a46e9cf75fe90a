//! The meeting and the exchanges over real sockets on loopback, with the key file's handshake. Real munged and
//! real nodes are elsewhere.
#![allow(clippy::unwrap_used)] // the helpers of tests fail like tests

mod job;

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cluster::auth::{Authenticator, SiteKey};
use cluster::rendezvous::{MeetError, meet, meet_unless};
use cluster::session::{Exchanged, SessionError};
use diag::facts::{Engine, NodeFacts};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

use job::*;

#[tokio::test]
async fn nodes_join_exchange_and_conclude() {
    let job = Job::new(0, 5);
    let begin = Instant::now();
    let sessions = all(&job).await;
    assert!(begin.elapsed() < Duration::from_secs(2), "nobody waits for the window's end");
    assert!(sessions.iter().all(|s| s.roster() == sessions[0].roster() && s.roster().able().count() == 5));
    assert!(
        sessions.iter().all(|s| s.agents_key() == sessions[0].agents_key() && *s.agents_key() != [0; 32])
    );
    assert_eq!(sessions.iter().filter(|s| s.is_leader()).count(), 1);
    let done = exchange_all(sessions, 3, 2000).await;
    let expected: BTreeMap<_, _> = (0..5).map(|n| (n, Exchanged::Answer(n * 10))).collect();
    let mut tasks = Vec::new();
    for (mut session, map) in done {
        assert_eq!(map.unwrap(), expected);
        tasks.push(tokio::spawn(async move {
            let word = session.is_leader().then(|| "over".to_owned());
            session.conclude(word.as_ref(), soon(3000)).await
        }));
    }
    for task in tasks {
        assert_eq!(task.await.unwrap().unwrap(), "over");
    }
}

// A30: where a batch script starts when the first prolog ends, it starts after the verdict: no prolog ends before that.
// Leader and deputy have two connections with each other, and the word counts whichever of them ends first.
#[tokio::test]
async fn nobody_leaves_before_the_leaders_last_word() {
    let job = Job::new(39, 5);
    let (decided, all_wait) = (Arc::new(AtomicBool::new(false)), Arc::new(tokio::sync::Barrier::new(5)));
    let mut tasks = Vec::new();
    for mut session in all(&job).await {
        let (decided, all_wait) = (Arc::clone(&decided), Arc::clone(&all_wait));
        tasks.push(tokio::spawn(async move {
            all_wait.wait().await;
            let word = session.is_leader().then(|| "over".to_owned());
            if word.is_some() {
                // The others have their turns meanwhile, and what they sent is read.
                for _ in 0..1000 {
                    tokio::task::yield_now().await;
                }
                decided.store(true, Ordering::SeqCst);
            }
            let heard = session.conclude(word.as_ref(), soon(3000)).await;
            (heard.unwrap_or_else(|error| error.to_string()), decided.load(Ordering::SeqCst))
        }));
    }
    for task in tasks {
        assert_eq!(task.await.unwrap(), ("over".to_owned(), true));
    }
}

#[tokio::test]
async fn a_single_node_meets_itself() {
    let mut session = meet(Job::new(1, 1).config(0), facts()).await.unwrap();
    assert_eq!(
        session.exchange(1, &5, soon(100)).await.unwrap(),
        BTreeMap::from([(0, Exchanged::Answer(5))])
    );
    assert_eq!(session.conclude(Some(&1), soon(100)).await.unwrap(), 1);
}

// D05.
#[tokio::test]
async fn a_thousand_nodes_meet_on_one_thread() {
    // Each of them keeps a roster of all: a million entries, which takes unoptimised code half a minute.
    let nodes = if cfg!(debug_assertions) { 256 } else { 1024 };
    let mut job = Job::new(2, nodes);
    job.window = Duration::from_secs(60);
    let begin = Instant::now();
    let sessions = all(&job).await;
    let met = begin.elapsed();
    for (_, map) in exchange_all(sessions, 1, 20_000).await {
        assert_eq!(map.unwrap().len(), nodes as usize);
    }
    eprintln!("met in {met:?}, exchanged in {:?}", begin.elapsed() - met);
    assert!(met < Duration::from_secs(if cfg!(debug_assertions) { 20 } else { 5 }), "{met:?}");
}

// M13.
#[tokio::test]
async fn an_absent_node_is_named_and_the_others_go_on() {
    let mut job = Job::new(3, 4);
    job.window = Duration::from_millis(700);
    let started: Vec<_> = [0, 1, 3].map(|me| job.start(me)).into();
    let begin = Instant::now();
    for one in started {
        let session = one.await.unwrap().unwrap();
        let entry = &session.roster().nodes[2];
        assert!(entry.joined.is_none() && entry.absent_because.as_ref().unwrap().contains("did not join"));
        assert_eq!(session.roster().leader, 0);
    }
    assert!(begin.elapsed() < Duration::from_secs(2), "the window bounds the wait");
}

#[tokio::test]
async fn a_leader_that_cannot_listen_is_replaced_for_the_meeting() {
    let mut job = Job::new(4, 4);
    job.window = Duration::from_millis(800);
    // The leader finds no free port, the deputy listens elsewhere: on ports that the leader's range lacks.
    let held: Vec<_> = (0..16).map(|i| TcpListener::bind(("::", job.first_port + i)).unwrap()).collect();
    let leader = job.start(0);
    tokio::time::sleep(Duration::from_millis(100)).await;
    drop(held);
    let others: Vec<_> = (1..4).map(|me| job.start(me)).collect();
    let mut sessions = vec![leader.await.unwrap().unwrap()];
    for one in others {
        sessions.push(one.await.unwrap().unwrap());
    }
    assert!(sessions.iter().all(|s| s.roster().leader == 1 && s.roster().able().count() == 4));
    assert!(
        sessions
            .iter()
            .all(|s| s.workers_key() == sessions[1].workers_key() && s.workers_key() != s.agents_key())
    );
    for (_, map) in exchange_all(sessions, 1, 2000).await {
        assert!(map.unwrap().values().all(|answer| matches!(answer, Exchanged::Answer(_))));
    }
}

#[tokio::test]
async fn a_leader_that_never_comes_is_replaced_and_named() {
    let mut job = Job::new(5, 4);
    job.window = Duration::from_millis(300);
    let started: Vec<_> = (1..4).map(|me| job.start(me)).collect();
    for one in started {
        let session = one.await.unwrap().unwrap();
        assert_eq!(session.roster().leader, 1);
        assert!(session.roster().nodes[0].joined.is_none());
    }
}

#[tokio::test]
async fn few_nodes_end_in_time_with_an_error_each() {
    let mut job = Job::new(6, 6);
    job.window = Duration::from_millis(300);
    let mut lonely_leader = job.config(0);
    lonely_leader.addresses.clear();
    let begin = Instant::now();
    // Alone among six, the leader has fewer than half.
    assert!(matches!(meet(lonely_leader, facts()).await, Err(MeetError::TooFew { joined: 1, nodes: 6 })));
    let peer = job.start(4).await.unwrap();
    assert!(matches!(peer, Err(MeetError::NoLeader { .. })), "{peer:?}");
    assert!(begin.elapsed() < Duration::from_secs(8));
}

#[tokio::test]
async fn half_of_the_nodes_is_enough_for_the_leader_only() {
    let mut job = Job::new(7, 2);
    job.window = Duration::from_millis(300);
    assert!(job.start(0).await.unwrap().unwrap().is_leader());
    let deputy = job.start(1).await.unwrap();
    assert!(matches!(deputy, Err(MeetError::NoLeader { .. })), "{deputy:?}");
}

#[tokio::test]
async fn garbage_floods_and_silence_do_not_keep_real_nodes_out() {
    let job = Job::new(8, 3);
    let leader = job.start(0);
    tokio::time::sleep(Duration::from_millis(50)).await;
    let at = SocketAddr::new(HOME, job.first_port);
    let mut silent = Vec::new();
    for i in 0..600 {
        let mut stream = TcpStream::connect(at).await.unwrap();
        match i % 3 {
            0 => stream.write_all(&[0xff; 64]).await.unwrap(),
            1 => stream.write_all(b"\0\0\0\x05hello").await.unwrap(),
            _ => (),
        }
        silent.push(stream);
    }
    let begin = Instant::now();
    let others = [job.start(1), job.start(2)];
    for one in others {
        one.await.unwrap().unwrap();
    }
    let leader = leader.await.unwrap().unwrap();
    assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
    assert!(leader.counters().refused >= 300, "{:?}", leader.counters());
    assert!(job.said("longer than the limit") && job.said("hello can't be read"));
}

#[tokio::test]
async fn another_jobs_or_sites_or_restarts_hello_is_refused_and_logged() {
    let mut job = Job::new(9, 3);
    job.window = Duration::from_millis(1500);
    let leader = job.start(0);
    let deputy = job.start(1);
    let mut other_job = job.config(2);
    other_job.job.job_id += 16; // the same ports
    let mut other_restart = job.config(2);
    other_restart.job.restart = 1;
    let mut other_site = job.config(2);
    other_site.auth = Authenticator::Key(SiteKey::from_secret(&[8; 64]));
    let strangers = [other_job, other_restart, other_site].map(|mut config| {
        config.join_window = Duration::from_millis(300);
        tokio::spawn(meet(config, facts()))
    });
    for stranger in strangers {
        assert!(matches!(stranger.await.unwrap(), Err(MeetError::NoLeader { .. })));
    }
    let leader = leader.await.unwrap().unwrap();
    deputy.await.unwrap().unwrap();
    assert!(leader.roster().nodes[2].joined.is_none());
    assert!(job.said("its claim is for job") && job.said("its claim is for restart"));
    assert!(job.said("not made with the same key"));
}

async fn frame(stream: &mut TcpStream) -> Vec<u8> {
    let length = stream.read_u32().await.unwrap();
    let mut body = vec![0; length as usize];
    stream.read_exact(&mut body).await.unwrap();
    body
}

async fn put(stream: &mut TcpStream, body: &[u8]) {
    stream.write_u32(u32::try_from(body.len()).unwrap()).await.unwrap();
    stream.write_all(body).await.unwrap();
}

#[tokio::test]
async fn a_recorded_hello_opens_nothing_here_or_elsewhere() {
    // Node 2 is told that the leader lives where this test listens; its hello is recorded.
    let mut job = Job::new(10, 4);
    job.window = Duration::from_millis(2500);
    let (leader, deputy) = (job.start(0), job.start(1));
    tokio::time::sleep(Duration::from_millis(200)).await;
    let trap = tokio::net::TcpListener::bind((HOME, 0)).await.unwrap();
    let port = trap.local_addr().unwrap().port();
    let mut fooled = job.config(2);
    fooled.ports = port..=port;
    fooled.addresses.remove(&1);
    fooled.join_window = Duration::from_millis(100);
    let fooled = tokio::spawn(meet(fooled, facts()));
    let (mut victim, _) = trap.accept().await.unwrap();
    let mut real = TcpStream::connect((HOME, job.first_port)).await.unwrap();
    let challenge = frame(&mut real).await;
    put(&mut victim, &challenge).await;
    let hello = frame(&mut victim).await;
    // To the same node on a new connection, and to the deputy, on the next port.
    for port in [job.first_port, job.first_port + 1] {
        let mut again = TcpStream::connect((HOME, port)).await.unwrap();
        frame(&mut again).await;
        put(&mut again, &hello).await;
        let answer = String::from_utf8(frame(&mut again).await).unwrap();
        assert!(answer.contains("refused"), "{answer}");
    }
    assert!(job.said("does not answer this connection's challenge") && job.said("its claim is for role"));
    fooled.abort();
    drop((victim, real));
    let leader = leader.await.unwrap().unwrap();
    assert!(leader.roster().nodes[2].joined.is_none() && leader.counters().refused >= 1);
    deputy.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_forged_frame_ends_that_connection_only() {
    let job = Job::new(11, 3);
    // A relay between node 2 and the leader flips a bit late in the stream.
    let trap = tokio::net::TcpListener::bind((HOME, 0)).await.unwrap();
    let port = trap.local_addr().unwrap().port();
    let (leader, deputy) = (job.start(0), job.start(1));
    let mut relayed = job.config(2);
    relayed.ports = port..=port;
    relayed.addresses.remove(&1);
    let relayed = tokio::spawn(meet(relayed, facts()));
    let (victim, _) = trap.accept().await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let real = TcpStream::connect((HOME, job.first_port)).await.unwrap();
    let (mut from_leader, mut to_leader) = real.into_split();
    let (mut from_victim, mut to_victim) = victim.into_split();
    tokio::spawn(async move { tokio::io::copy(&mut from_leader, &mut to_victim).await });
    let flip = Arc::new(AtomicBool::new(false));
    let flips = Arc::clone(&flip);
    tokio::spawn(async move {
        let mut bytes = [0; 4096];
        while let Ok(n @ 1..) = from_victim.read(&mut bytes).await {
            if flips.load(Ordering::Relaxed) {
                bytes[n - 1] ^= 1;
            }
            to_leader.write_all(&bytes[..n]).await.unwrap();
        }
    });
    let sessions =
        vec![leader.await.unwrap().unwrap(), deputy.await.unwrap().unwrap(), relayed.await.unwrap().unwrap()];
    flip.store(true, Ordering::Relaxed);
    let begin = Instant::now();
    let done = exchange_all(sessions, 1, 5000).await;
    let map = done[0].1.as_ref().unwrap();
    assert_eq!(done[1].1.as_ref().unwrap(), map);
    assert!(
        matches!(map.get(2).unwrap(), Exchanged::Lost { because } if because.contains("hash of frame")),
        "{map:?}"
    );
    assert!(matches!(done[2].1, Err(SessionError::LeaderLost { .. })));
    // The one that was cut off still looks for the deputy, which it never reached.
    assert!(begin.elapsed() < Duration::from_secs(3));
}

#[tokio::test]
async fn a_killed_peer_is_lost_at_once_and_for_good() {
    let mut sessions = all(&Job::new(12, 4)).await;
    drop(sessions.remove(2));
    let begin = Instant::now();
    let done = exchange_all(sessions, 1, 5000).await;
    for (_, map) in &done {
        let map = map.as_ref().unwrap();
        assert!(
            matches!(map.get(2).unwrap(), Exchanged::Lost { .. })
                && *map.get(3).unwrap() == Exchanged::Answer(30)
        );
    }
    for (_, map) in exchange_all(done.into_iter().map(|(s, _)| s).collect(), 2, 5000).await {
        assert!(matches!(map.unwrap().get(2).unwrap(), Exchanged::Lost { .. }));
    }
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
}

// M05, M13: the late answer of one round is none of the next.
#[tokio::test]
async fn a_frozen_peer_is_lost_at_the_deadline_and_its_late_answer_is_dropped() {
    let mut sessions = all(&Job::new(13, 4)).await;
    let mut frozen = sessions.remove(2);
    let begin = Instant::now();
    let done = exchange_all(sessions, 1, 400).await;
    assert!(begin.elapsed() < Duration::from_millis(1500));
    let map = done[0].1.clone().unwrap();
    assert!(matches!(map.get(2).unwrap(), Exchanged::Lost { because } if because.contains("deadline")));
    // It wakes up, is told what the others found, and stays lost.
    assert_eq!(frozen.exchange(1, &20, soon(0)).await.unwrap(), map);
    let mut sessions: Vec<_> = done.into_iter().map(|(s, _)| s).collect();
    sessions.push(frozen);
    let done = exchange_all(sessions, 2, 2000).await;
    let maps: Vec<_> = done.iter().map(|(_, map)| map.clone().unwrap()).collect();
    assert!(maps.iter().all(|map| *map == maps[0] && matches!(map.get(2).unwrap(), Exchanged::Lost { .. })));
    assert_eq!(maps[0].values().filter(|v| matches!(v, Exchanged::Answer(_))).count(), 3);
}

#[tokio::test]
async fn an_answer_of_another_type_loses_its_node_only() {
    let mut sessions = all(&Job::new(14, 3)).await;
    let mut odd = sessions.remove(2);
    let odd = tokio::spawn(async move { odd.exchange(1, &"words".to_owned(), soon(2000)).await.map(|_| ()) });
    for (_, map) in exchange_all(sessions, 1, 2000).await {
        assert!(
            matches!(map.unwrap().get(2).unwrap(), Exchanged::Lost { because } if because.contains("can't be read"))
        );
    }
    assert!(matches!(odd.await.unwrap(), Err(SessionError::Unreadable { .. })));
}

#[tokio::test]
async fn the_leader_may_conclude_while_others_exchange() {
    let mut sessions = all(&Job::new(16, 3)).await;
    let mut leader = sessions.remove(0);
    let others = tokio::spawn(exchange_all(sessions, 1, 5000));
    leader.conclude(Some(&7), soon(1000)).await.unwrap();
    for (mut session, map) in others.await.unwrap() {
        assert_eq!(map.unwrap_err(), SessionError::Concluded);
        assert_eq!(session.conclude::<u32>(None, soon(1000)).await.unwrap(), 7);
    }
}

// N07.
#[tokio::test]
async fn other_versions_and_requests_are_marked_with_both() {
    let odd_ones = [
        (NodeFacts { version: "2".into(), ..facts() }, ["version 2", "runs 1"]),
        (NodeFacts { engine: Engine::Cuda, ..facts() }, ["engine cuda", "with host"]),
        (NodeFacts { request_digest: "e".into(), ..facts() }, ["digest e", "leader's d"]),
        (NodeFacts { libraries: "NCCL 2.27.3".into(), ..facts() }, ["NCCL 2.27.3", "NCCL 2.28.9"]),
    ];
    for (test, (other, words)) in (27..).zip(odd_ones) {
        let job = Job::new(test, 3);
        let (leader, deputy) = (job.start(0), job.start(1));
        let odd = meet(job.config(2), other).await.unwrap();
        let entry = &odd.roster().nodes[2];
        let because = entry.absent_because.as_ref().unwrap();
        assert!(entry.joined.is_some() && words.iter().all(|word| because.contains(word)), "{because}");
        leader.await.unwrap().unwrap();
        deputy.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_second_hello_of_a_living_node_has_no_effect() {
    let mut job = Job::new(18, 4);
    job.window = Duration::from_millis(1500);
    let started = [job.start(0), job.start(1), job.start(2)];
    tokio::time::sleep(Duration::from_millis(300)).await;
    let mut twin = job.config(2);
    twin.join_window = Duration::from_millis(100);
    let mut twin_facts = facts();
    twin_facts.rank_ports = vec![9];
    let twin = tokio::spawn(meet(twin, twin_facts));
    for one in started {
        let session = one.await.unwrap().unwrap();
        assert_eq!(session.roster().nodes[2].joined.as_ref().unwrap().facts.rank_ports, [1, 2]);
    }
    assert!(job.said("a second hello of n2"));
    assert!(twin.await.unwrap().is_err());
}

/// A relay from one port to another that goes dumb towards its clients when told to.
#[tokio::test]
async fn a_meeting_that_is_called_off_sends_everybody_home_at_once() {
    // Node 2 never comes, so the others wait for the end of the window, until the leader is told to stop.
    let job = Job::new(26, 4);
    let (stop, stopped) = tokio::sync::oneshot::channel::<String>();
    let leader = tokio::spawn(meet_unless(job.config(0), facts(), async { stopped.await.unwrap() }));
    let others: Vec<_> = [1, 3].map(|me| job.start(me)).into();
    tokio::time::sleep(Duration::from_millis(500)).await;
    stop.send("the job was cancelled".to_owned()).unwrap();
    for task in others.into_iter().chain([leader]) {
        let done = tokio::time::timeout(Duration::from_secs(5), task).await.unwrap().unwrap();
        assert!(matches!(done, Err(MeetError::Dismissed { because }) if because == "the job was cancelled"));
    }
}
