//! The checks with real worker processes, several of which play the nodes of a job on loopback.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails panics")]

mod support;

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::task::Poll;
use std::time::SystemTime;

use diag::check::CheckName;
use diag::facts::{Engine, Joined, NodeFacts, Roster, RosterEntry};
use diag::measurement::{CheckError, ErrorKind, Measurement, Metric, Subject};
use diag::policy::Policy;
use diag::round::{Mode, Purpose, Round};
use jiff::Timestamp;
use prolog::checks::{self, Context};
use prolog::worker_client::Worker;
use rustix::process::{Pid, Signal, kill_process};
use support::{joined, run};

type Outcome = Result<Vec<Measurement>, CheckError>;

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    Timestamp::from_millisecond(i64::try_from(since.as_millis()).unwrap()).unwrap()
}

fn policy() -> Policy {
    let mut policy = Policy { engine: Engine::Host, ..Policy::default() };
    policy.host.seconds_per_check = 0.2;
    policy
}

struct Job {
    workers: Vec<Worker>,
    roster: Roster,
}

impl Job {
    async fn start(nodes: u32) -> Self {
        let mut job = Self { workers: Vec::new(), roster: Roster { nodes: Vec::new(), leader: 0 } };
        for node in 0..nodes {
            let (worker, rank_ports) = joined(node, 2).await;
            job.workers.push(worker);
            let facts = NodeFacts {
                version: String::new(),
                request_digest: String::new(),
                engine: Engine::Host,
                address: None,
                rank_ports,
                unable: None,
            };
            let seen_address = IpAddr::V4(Ipv4Addr::LOCALHOST);
            job.roster.nodes.push(RosterEntry {
                name: format!("n{node}"),
                joined: Some(Joined { facts, seen_address }),
                absent_because: None,
            });
        }
        job
    }

    /// One round on all nodes at the same time.
    async fn measure(&mut self, check: CheckName, mode: Mode, groups: Vec<Vec<u32>>) -> Vec<Outcome> {
        let round = Round { index: 0, check, purpose: Purpose::First, mode, groups };
        let (policy, check) = (policy(), checks::get(check).unwrap());
        let (roster, round, policy) = (&self.roster, &round, &policy);
        let mut running: Vec<Pin<Box<dyn Future<Output = Outcome> + '_>>> = Vec::new();
        for (me, worker) in (0..).zip(&mut self.workers) {
            running.push(Box::pin(async move {
                let mut cx = Context { round, me, roster, policy, worker, now: &now };
                check.run(&mut cx).await
            }));
        }
        let mut done: Vec<Option<Outcome>> = running.iter().map(|_| None).collect();
        std::future::poll_fn(|cx| {
            for (future, done) in running.iter_mut().zip(&mut done) {
                if done.is_none()
                    && let Poll::Ready(outcome) = future.as_mut().poll(cx)
                {
                    *done = Some(outcome);
                }
            }
            if done.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        done.into_iter().flatten().collect()
    }

    fn block(&mut self, node: usize, rank: usize) {
        // Nothing listens on port 1.
        self.roster.nodes[node].joined.as_mut().unwrap().facts.rank_ports[rank] = 1;
    }
}

fn find<'m>(measurements: &'m [Measurement], metric: Metric, subject: &Subject) -> &'m Measurement {
    let mut found = measurements.iter().filter(|one| one.metric == metric && one.subject == *subject);
    let one = found.next().unwrap_or_else(|| panic!("no {metric:?} of {subject:?} in {measurements:?}"));
    assert!(found.next().is_none(), "two {metric:?} of {subject:?}");
    assert!(one.samples.len() <= 32 && one.started_at <= one.finished_at);
    one
}

#[test]
fn gemm_flops_measures_each_node() {
    run(async {
        let mut job = Job::start(2).await;
        let outcomes = job.measure(CheckName::GemmFlops, Mode::Full, vec![vec![0], vec![1]]).await;
        for (node, outcome) in (0..).zip(outcomes) {
            let measurements = outcome.unwrap();
            let subject = Subject::Node { node };
            assert!(find(&measurements, Metric::Flops, &subject).value > 0.0);
            assert_eq!(find(&measurements, Metric::Correct, &subject).value, 1.0);
            assert_eq!(measurements.len(), 2);
        }
    });
}

#[test]
fn all_reduce_1_measures_inside_each_node() {
    run(async {
        let mut job = Job::start(2).await;
        let outcomes = job.measure(CheckName::AllReduce1, Mode::Full, vec![vec![0], vec![1]]).await;
        for (node, outcome) in (0..).zip(outcomes) {
            let measurements = outcome.unwrap();
            let subject = Subject::Node { node };
            assert!(find(&measurements, Metric::Busbw, &subject).value > 0.0);
            assert_eq!(find(&measurements, Metric::Correct, &subject).value, 1.0);
        }
    });
}

#[test]
fn all_reduce_2_measures_pairs_at_the_same_time() {
    run(async {
        let mut job = Job::start(4).await;
        let outcomes = job.measure(CheckName::AllReduce2, Mode::Full, vec![vec![0, 1], vec![2, 3]]).await;
        for (node, outcome) in (0..).zip(outcomes) {
            let measurements = outcome.unwrap();
            let subject = Subject::Pair { a: node / 2 * 2, b: node / 2 * 2 + 1 };
            let busbw = find(&measurements, Metric::Busbw, &subject);
            println!("n{node}: {} GB/s, {}", busbw.value, busbw.detail);
            assert!(busbw.value > 0.0);
            assert_eq!(busbw.peers, [node ^ 1]);
            assert_eq!(find(&measurements, Metric::Correct, &subject).value, 1.0);
        }
    });
}

#[test]
fn all_reduce_2_names_the_port_that_refused() {
    run(async {
        let mut job = Job::start(2).await;
        job.block(1, 0);
        let mut outcomes = job.measure(CheckName::AllReduce2, Mode::Full, vec![vec![0, 1]]).await;
        let measurements = outcomes.swap_remove(0).unwrap();
        let refused = find(&measurements, Metric::Reachable, &Subject::Path { from: 0, to: 1 });
        assert_eq!(refused.value, 0.0);
        assert_eq!(refused.detail, "n0 -> n1:1 connection refused (127.0.0.1)");
        assert_eq!(measurements.len(), 1);
    });
}

#[test]
fn network_connectivity_measures_both_ways_and_lost_segments() {
    run(async {
        let mut job = Job::start(2).await;
        let outcomes = job.measure(CheckName::NetworkConnectivity, Mode::Full, vec![vec![0, 1]]).await;
        for (me, outcome) in (0..).zip(outcomes) {
            let measurements = outcome.unwrap();
            let path = Subject::Path { from: me, to: 1 - me };
            assert!(find(&measurements, Metric::Connect, &path).value < 1000.0);
            assert!(find(&measurements, Metric::RoundTrip, &path).value > 0.0);
            assert_eq!(find(&measurements, Metric::Reachable, &path).value, 1.0);
            let lost = find(&measurements, Metric::Retransmits, &path);
            println!("n{me}: {}", lost.detail);
            assert!(lost.value < 0.1, "{}", lost.detail);
            assert!(lost.detail.contains("8388608 bytes"), "{}", lost.detail);
            assert!(!lost.detail.contains("all traffic"), "{}", lost.detail);
            assert_eq!(lost.peers, [1 - me]);
            assert_eq!(measurements.len(), 4);
        }
    });
}

#[test]
fn reach_covers_every_group_of_a_node_and_names_what_is_blocked() {
    run(async {
        let mut job = Job::start(3).await;
        job.block(2, 1);
        let groups = vec![vec![0, 1], vec![0, 2]];
        let mut outcomes = job.measure(CheckName::NetworkConnectivity, Mode::Reach, groups).await;
        let last = outcomes.pop().unwrap().unwrap();
        assert_eq!(find(&last, Metric::Reachable, &Subject::Path { from: 2, to: 0 }).value, 1.0);
        let head = outcomes.swap_remove(0).unwrap();
        assert_eq!(find(&head, Metric::Reachable, &Subject::Path { from: 0, to: 1 }).value, 1.0);
        let blocked = find(&head, Metric::Reachable, &Subject::Path { from: 0, to: 2 });
        assert_eq!(blocked.value, 0.5);
        assert_eq!(blocked.detail, "n0 -> n2:1 connection refused (127.0.0.1)");
        assert!(head.iter().all(|one| one.metric != Metric::Retransmits));
    });
}

#[test]
fn a_dead_worker_is_this_nodes_own_trouble_and_the_peer_is_not_made_to_wait() {
    run(async {
        let mut job = Job::start(2).await;
        let pid = job.workers[1].pid().unwrap();
        kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL).unwrap();
        let began = std::time::Instant::now();
        let outcomes = job.measure(CheckName::AllReduce2, Mode::Full, vec![vec![0, 1]]).await;
        let error = outcomes[1].as_ref().unwrap_err();
        assert_eq!(error.kind, ErrorKind::Worker, "{error}");
        assert!(error.message.contains("all_reduce_2: the worker ended"), "{error}");
        let measurements = outcomes[0].as_ref().unwrap();
        assert_eq!(find(measurements, Metric::Reachable, &Subject::Path { from: 0, to: 1 }).value, 0.0);
        assert!(began.elapsed().as_secs_f64() < 2.5, "{:?}", began.elapsed());
    });
}

#[test]
fn a_frozen_worker_runs_into_the_limit() {
    run(async {
        let mut job = Job::start(1).await;
        let pid = job.workers[0].pid().unwrap();
        kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::STOP).unwrap();
        let outcomes = job.measure(CheckName::GemmFlops, Mode::Full, vec![vec![0]]).await;
        assert_eq!(outcomes[0].as_ref().unwrap_err().kind, ErrorKind::Timeout);
        let again = job.measure(CheckName::GemmFlops, Mode::Full, vec![vec![0]]).await;
        assert!(again[0].is_ok(), "{again:?}");
    });
}
