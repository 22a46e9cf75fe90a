//! The deputy takes the leader's place, in any phase.
#![allow(clippy::unwrap_used)] // the helpers of tests fail like tests

mod job;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cluster::rendezvous::{MeetError, meet};
use cluster::session::{Exchanged, Session, SessionError};
use diag::facts::NodeId;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use job::*;

/// All maps are equal, node 0 is lost and the others answered.
fn check_without_leader(done: &[(Session, Map)]) {
    let first = done[0].1.as_ref().unwrap();
    for (session, map) in done {
        assert_eq!(map.as_ref().unwrap(), first);
        assert_eq!((session.roster().leader, session.is_leader()), (1, session.me() == 1));
    }
    assert!(matches!(first.get(0).unwrap(), Exchanged::Lost { .. }), "{first:?}");
    assert!(
        first.iter().all(|(node, answer)| node == 0 || *answer == Exchanged::Answer(node * 10)),
        "{first:?}"
    );
}

fn sessions_of<T>(done: Vec<(Session, T)>) -> Vec<Session> {
    done.into_iter().map(|(session, _)| session).collect()
}

#[tokio::test]
async fn a_leader_that_dies_between_or_in_exchanges_is_followed_by_its_deputy() {
    for during in [false, true] {
        let mut sessions = all(&Job::new(19 + u16::from(during), 5)).await;
        tokio::time::sleep(Duration::from_millis(100)).await; // standby connections
        let leader = sessions.remove(0);
        if during {
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(300)).await;
                drop(leader);
            });
        } else {
            drop(leader);
        }
        let begin = Instant::now();
        let done = exchange_all(sessions, 1, 5000).await;
        assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
        check_without_leader(&done);
        let done = exchange_all(sessions_of(done), 2, 5000).await;
        check_without_leader(&done);
        let mut sessions = sessions_of(done);
        let mut deputy = sessions.remove(0);
        let others: Vec<_> = sessions
            .into_iter()
            .map(|mut s| tokio::spawn(async move { s.conclude::<u32>(None, soon(3000)).await }))
            .collect();
        assert_eq!(deputy.conclude(Some(&9), soon(3000)).await.unwrap(), 9);
        for other in others {
            assert_eq!(other.await.unwrap().unwrap(), 9);
        }
    }
}

/// A port that nobody can listen on and that refuses connections.
fn blocked(port: u16) -> tokio::net::TcpSocket {
    let socket = tokio::net::TcpSocket::new_v6().unwrap();
    socket.bind(SocketAddr::new(std::net::Ipv6Addr::UNSPECIFIED.into(), port)).unwrap();
    socket
}

/// A leader and one node that reaches it through a relay only, which can be made to swallow what the leader says.
struct Relayed {
    leader: JoinHandle<Result<Session, MeetError>>,
    node: JoinHandle<Result<Session, MeetError>>,
    swallow: Arc<AtomicBool>,
    _blocked: Vec<tokio::net::TcpSocket>,
}

impl Relayed {
    async fn start(job: &Job, node: NodeId) -> Self {
        let blocked: Vec<_> = (1..8).map(|i| blocked(job.first_port + i)).collect();
        let mut config = job.config(0);
        config.addresses.remove(&1); // one connection only between leader and deputy
        let leader = tokio::spawn(meet(config, facts()));
        tokio::time::sleep(Duration::from_millis(100)).await;
        let swallow = relay(job.first_port + 8, job.first_port).await;
        let mut relayed = job.config(node);
        relayed.ports = job.first_port + 8..=job.first_port + 15;
        let node = tokio::spawn(meet(relayed, facts()));
        tokio::time::sleep(Duration::from_millis(300)).await;
        Self { leader, node, swallow, _blocked: blocked }
    }
}

#[tokio::test]
async fn a_map_that_reached_only_some_nodes_holds_for_all() {
    // Once the deputy misses it, once another node: it reaches the leader through the relay on port 8 only.
    for (test, misses) in [(21, 1), (22, 3)] {
        let job = Job::new(test, 4);
        let relayed = Relayed::start(&job, misses).await;
        let others: Vec<_> = (1..4).filter(|me| *me != misses).map(|me| job.start(me)).collect();
        let mut leader = relayed.leader.await.unwrap().unwrap();
        let mut sessions = vec![relayed.node.await.unwrap().unwrap()];
        for one in others {
            sessions.push(one.await.unwrap().unwrap());
        }
        sessions.sort_by_key(Session::me);
        tokio::time::sleep(Duration::from_millis(800)).await; // standby connections
        relayed.swallow.store(true, Ordering::Relaxed);
        let first = tokio::spawn(async move {
            let mut tasks = Vec::new();
            for mut session in sessions {
                tasks.push(tokio::spawn(async move {
                    let mine = session.me() * 10;
                    let map = session.exchange(1, &mine, soon(3000)).await;
                    let next = session.exchange(2, &mine, soon(3000)).await;
                    (session, map, next)
                }));
            }
            let mut done = Vec::new();
            for task in tasks {
                done.push(task.await.unwrap());
            }
            done
        });
        let map = leader.exchange(1, &0, soon(3000)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
        drop(leader);
        let mut second = Vec::new();
        for (session, one, two) in first.await.unwrap() {
            assert_eq!(one.unwrap(), map, "node {}", session.me());
            second.push((session, two));
        }
        assert!(map.values().all(|answer| matches!(answer, Exchanged::Answer(_))));
        check_without_leader(&second);
    }
}

#[tokio::test]
async fn a_leader_that_dies_while_it_hands_out_its_roster_leaves_nobody_without() {
    let job = Job::new(29, 4);
    let relayed = Relayed::start(&job, 1).await;
    // The deputy has joined, and the roster won't reach it.
    relayed.swallow.store(true, Ordering::Relaxed);
    let others: Vec<_> = (2..4).map(|me| job.start(me)).collect();
    let leader = relayed.leader.await.unwrap().unwrap();
    let mut sessions = Vec::new();
    for one in others {
        sessions.push(one.await.unwrap().unwrap());
    }
    drop(leader);
    let begin = Instant::now();
    // Those who have it measure first and look for the leader when they hand in.
    let others = tokio::spawn(exchange_all(sessions, 1, 5000));
    let mut deputy = relayed.node.await.unwrap().unwrap();
    let map = deputy.exchange(1, &10, soon(5000)).await;
    assert!(begin.elapsed() < Duration::from_secs(4), "{:?}", begin.elapsed());
    let mut done = vec![(deputy, map)];
    done.extend(others.await.unwrap());
    check_without_leader(&done);
}

#[tokio::test]
async fn a_leader_that_sleeps_is_deposed_and_finds_out() {
    let mut sessions = all(&Job::new(23, 4)).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let mut leader = sessions.remove(0);
    let begin = Instant::now();
    let done = exchange_all(sessions, 1, 200).await;
    check_without_leader(&done);
    assert!(begin.elapsed() < Duration::from_secs(8), "{:?}", begin.elapsed());
    let woken = leader.exchange(1, &0, soon(1000)).await;
    assert!(matches!(woken, Err(SessionError::Deposed { .. })), "{woken:?}");
    assert!(!leader.is_leader());
    // It has no word in what the others do, and hears theirs.
    let woken = tokio::spawn(async move { leader.conclude(Some(&1), soon(5000)).await });
    let done = exchange_all(sessions_of(done), 2, 2000).await;
    check_without_leader(&done);
    let mut heard: Vec<JoinHandle<Result<u32, SessionError>>> = vec![woken];
    for (mut session, _) in done {
        let word = session.is_leader().then_some(9);
        heard.push(tokio::spawn(async move { session.conclude(word.as_ref(), soon(3000)).await }));
    }
    for one in heard {
        assert_eq!(one.await.unwrap().unwrap(), 9);
    }
}

#[tokio::test]
async fn a_deputy_that_only_lost_its_own_way_does_not_speak_for_the_job() {
    let job = Job::new(33, 4);
    let relayed = Relayed::start(&job, 1).await;
    let others: Vec<_> = (2..4).map(|me| job.start(me)).collect();
    let mut leader = relayed.leader.await.unwrap().unwrap();
    let mut deputy = relayed.node.await.unwrap().unwrap();
    let mut sessions = Vec::new();
    for one in others {
        sessions.push(one.await.unwrap().unwrap());
    }
    tokio::time::sleep(Duration::from_millis(800)).await; // standby connections
    relayed.swallow.store(true, Ordering::Relaxed);
    let deputys = tokio::spawn(async move {
        let lost = deputy.exchange(1, &10, soon(300)).await;
        assert!(matches!(lost, Err(SessionError::LeaderLost { .. })), "{lost:?}");
        let lost = deputy.conclude::<u32>(None, soon(100)).await;
        assert!(matches!(lost, Err(SessionError::LeaderLost { .. })), "{lost:?}");
        deputy.conclude(Some(&9), soon(1000)).await
    });
    assert_eq!(leader.exchange(1, &0, soon(1000)).await.unwrap().iter().count(), 4);
    let done = exchange_all(sessions, 1, 1000).await;
    assert!(done.iter().all(|(_, map)| map.is_ok()));
    let waiting: Vec<_> = sessions_of(done)
        .into_iter()
        .map(|mut s| tokio::spawn(async move { s.conclude::<u32>(None, soon(20_000)).await }))
        .collect();
    assert_eq!(deputys.await.unwrap().unwrap(), 9);
    assert_eq!(leader.conclude(Some(&4), soon(3000)).await.unwrap(), 4);
    for one in waiting {
        assert_eq!(one.await.unwrap().unwrap(), 4);
    }
}

#[tokio::test]
async fn the_deputy_s_word_holds_for_a_node_that_loses_the_leader_later() {
    let mut sessions = all(&Job::new(34, 4)).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let sleeping = sessions.remove(0);
    let mut deputy = sessions.remove(0);
    let others: Vec<_> = sessions
        .into_iter()
        .map(|mut s| tokio::spawn(async move { s.conclude::<u32>(None, soon(2500)).await }))
        .collect();
    assert!(matches!(deputy.conclude::<u32>(None, soon(200)).await, Err(SessionError::LeaderLost { .. })));
    assert_eq!(deputy.conclude(Some(&4), soon(1000)).await.unwrap(), 4);
    for other in others {
        assert_eq!(other.await.unwrap().unwrap(), 4);
    }
    drop(sleeping);
}

#[tokio::test]
async fn a_leader_lost_before_its_last_word_leaves_it_to_the_deputy() {
    let mut sessions = all(&Job::new(24, 4)).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    drop(sessions.remove(0));
    let mut deputy = sessions.remove(0);
    let others: Vec<_> = sessions
        .into_iter()
        .map(|mut s| tokio::spawn(async move { s.conclude::<u32>(None, soon(3000)).await }))
        .collect();
    assert!(matches!(deputy.conclude::<u32>(None, soon(3000)).await, Err(SessionError::LeaderLost { .. })));
    assert_eq!(deputy.conclude(Some(&4), soon(3000)).await.unwrap(), 4);
    for other in others {
        assert_eq!(other.await.unwrap().unwrap(), 4);
    }
}

#[tokio::test]
async fn a_deputy_that_only_lost_its_own_way_does_not_lead() {
    let mut sessions = all(&Job::new(25, 2)).await;
    drop(sessions.remove(0));
    let lost = sessions.remove(0).exchange(1, &10, soon(300)).await;
    assert!(matches!(lost, Err(SessionError::LeaderLost { .. })), "{lost:?}");
}
