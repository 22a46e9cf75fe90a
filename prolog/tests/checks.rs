//! The checks with real worker processes, several of which play the nodes of a job on loopback.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails panics")]

mod support;

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::SystemTime;

use diag::check::CheckName;
use diag::facts::{Engine, Joined, NodeFacts, Roster, RosterEntry};
use diag::gpu_facts::Known;
use diag::measurement::{CheckError, ErrorKind, Measurement, Metric, Subject};
use diag::policy::Policy;
use diag::round::{Mode, Purpose, Round};
use diag::topology::Leaves;
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
        let mut job = Self {
            workers: Vec::new(),
            roster: Roster { nodes: Vec::new(), leader: 0, leaves: Leaves::default() },
        };
        for node in 0..nodes {
            let (worker, rank_ports) = joined(node, 2).await;
            job.workers.push(worker);
            let facts = NodeFacts {
                version: String::new(),
                request_digest: String::new(),
                engine: Engine::Host,
                address: None,
                rank_ports,
                gpus: Vec::new(),
                libraries: String::new(),
                known: Known::default(),
                unable: None,
            };
            let seen_address = IpAddr::V4(Ipv4Addr::LOCALHOST);
            job.roster.nodes.push(RosterEntry {
                name: format!("n{node}").into(),
                joined: Some(Joined::new(facts, seen_address)),
                absent_because: None,
            });
        }
        job
    }

    /// One first round on all nodes at the same time.
    async fn measure(&mut self, check: CheckName, mode: Mode, groups: Vec<Vec<u32>>) -> Vec<Outcome> {
        let round = Round { index: 0, check, purpose: Purpose::First, mode, groups };
        self.round(round, policy()).await
    }

    /// A round on all nodes at the same time.
    async fn round(&mut self, round: Round, policy: Policy) -> Vec<Outcome> {
        let check = checks::get(round.check).unwrap();
        let (roster, round, policy) = (&self.roster, &round, &policy);
        let mut running: Vec<Pin<Box<dyn Future<Output = Outcome> + '_>>> = Vec::new();
        for (me, worker) in (0..).zip(&mut self.workers) {
            running.push(Box::pin(async move {
                let mut cx = Context { round, me, roster, policy, worker, now: &now, parts: Vec::new() };
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
        let joined = self.roster.nodes[node].joined.as_mut().unwrap();
        Arc::make_mut(&mut joined.facts).rank_ports[rank] = 1;
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
fn kernel_launch_measures_wake_ups_of_each_node() {
    run(async {
        let mut job = Job::start(2).await;
        let outcomes = job.measure(CheckName::KernelLaunch, Mode::Full, vec![vec![0], vec![1]]).await;
        for (node, outcome) in (0..).zip(outcomes) {
            let measurements = outcome.unwrap();
            let subject = Subject::Node { node };
            let median = find(&measurements, Metric::Launch, &subject);
            println!("n{node}: {} µs, {}", median.value, median.detail);
            assert!(median.value > 0.0 && median.value < 100_000.0);
            assert!(find(&measurements, Metric::LaunchTail, &subject).value >= median.value);
            assert_eq!(measurements.len(), 2);
        }
    });
}

#[test]
fn comp_comm_overlap_says_what_each_costs_the_other() {
    run(async {
        let mut job = Job::start(1).await;
        let outcomes = job.measure(CheckName::CompCommOverlap, Mode::Full, vec![vec![0]]).await;
        let measurements = outcomes[0].as_ref().unwrap();
        let subject = Subject::Node { node: 0 };
        let flops = find(measurements, Metric::Flops, &subject);
        let busbw = find(measurements, Metric::Busbw, &subject);
        println!("{} TFLOP/s: {}; {} GB/s: {}", flops.value, flops.detail, busbw.value, busbw.detail);
        assert!(flops.value > 0.0 && flops.detail.contains("slower beside the all-reduce"));
        assert!(busbw.value > 0.0 && busbw.detail.contains("slower beside the products"));
        assert_eq!(find(measurements, Metric::Correct, &subject).value, 1.0);
        assert_eq!(measurements.len(), 3);
    });
}

#[test]
fn the_other_collectives_measure_pairs_at_the_same_time() {
    run(async {
        let mut job = Job::start(4).await;
        for check in [CheckName::AllGather2, CheckName::AllToAll2] {
            let outcomes = job.measure(check, Mode::Full, vec![vec![0, 1], vec![2, 3]]).await;
            for (node, outcome) in (0..).zip(outcomes) {
                let measurements = outcome.unwrap();
                let subject = Subject::Pair { a: node / 2 * 2, b: node / 2 * 2 + 1 };
                assert!(find(&measurements, Metric::Busbw, &subject).value > 0.0);
                assert_eq!(find(&measurements, Metric::Correct, &subject).value, 1.0);
                assert_eq!(measurements.len(), 2);
            }
        }
    });
}

#[test]
fn rails_are_measured_one_by_one_and_a_blocked_one_is_named() {
    run(async {
        let mut job = Job::start(2).await;
        let rail = |rail| Subject::PairRail { a: 0, b: 1, rail };
        for outcome in job.measure(CheckName::MultiAllReduce2, Mode::Full, vec![vec![0, 1]]).await {
            let measurements = outcome.unwrap();
            for index in [0, 1] {
                assert!(find(&measurements, Metric::Busbw, &rail(index)).value > 0.0);
                assert_eq!(find(&measurements, Metric::Correct, &rail(index)).value, 1.0);
            }
            assert_eq!(measurements.len(), 4);
        }
        job.block(1, 1);
        let mut outcomes = job.measure(CheckName::MultiAllReduce2, Mode::Full, vec![vec![0, 1]]).await;
        let measurements = outcomes.swap_remove(0).unwrap();
        assert_eq!(find(&measurements, Metric::Correct, &rail(0)).value, 1.0);
        let refused = find(&measurements, Metric::Reachable, &Subject::Path { from: 0, to: 1 });
        assert_eq!(refused.detail, "n0 -> n1:1 connection refused (127.0.0.1)");
        assert_eq!(measurements.len(), 3);
    });
}

#[test]
fn sixteen_nodes_form_one_group_and_its_pairs_are_pairs() {
    run(async {
        let mut job = Job::start(16).await;
        let all = || vec![(0..16).collect::<Vec<u32>>()];
        // The test machine has fewer processors than ranks.
        let mut policy = policy();
        policy.host.seconds_per_check = 0.6;
        let round = |index, check, purpose, groups| Round { index, check, purpose, mode: Mode::Full, groups };
        for (index, check) in (0..).zip([CheckName::AllReduce, CheckName::AllGather]) {
            let outcomes = job.round(round(index, check, Purpose::First, all()), policy.clone()).await;
            for outcome in outcomes {
                let measurements = outcome.unwrap();
                let busbw = find(&measurements, Metric::Busbw, &Subject::Fabric);
                assert!(busbw.value > 0.0, "{busbw:?}");
                assert_eq!(find(&measurements, Metric::Correct, &Subject::Fabric).value, 1.0);
            }
        }
        let rails = round(2, CheckName::MultiAllReduce, Purpose::First, all());
        for outcome in job.round(rails, policy.clone()).await {
            let measurements = outcome.unwrap();
            for rail in [0, 1] {
                let subject = Subject::FabricRail { rail };
                assert!(find(&measurements, Metric::Busbw, &subject).value > 0.0);
                assert_eq!(find(&measurements, Metric::Correct, &subject).value, 1.0);
            }
        }
        let pairs: Vec<Vec<u32>> = (0..8).map(|a| vec![a, a + 8]).collect();
        let localise = round(3, CheckName::MultiAllReduce, Purpose::Localise, pairs);
        for (node, outcome) in (0..).zip(job.round(localise, policy).await) {
            let (a, b) = (node % 8, node % 8 + 8);
            let measurements = outcome.unwrap();
            for rail in [0, 1] {
                assert!(find(&measurements, Metric::Busbw, &Subject::PairRail { a, b, rail }).value > 0.0);
            }
        }
    });
}

#[test]
fn a_dead_node_of_all_is_named_by_its_neighbour_in_the_ring() {
    run(async {
        let mut job = Job::start(3).await;
        let pid = job.workers[1].pid().unwrap();
        kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL).unwrap();
        let outcomes = job.measure(CheckName::AllReduce, Mode::Full, vec![vec![0, 1, 2]]).await;
        let measurements = outcomes[0].as_ref().unwrap();
        assert_eq!(find(measurements, Metric::Reachable, &Subject::Path { from: 0, to: 1 }).value, 0.0);
        assert_eq!(outcomes[1].as_ref().unwrap_err().kind, ErrorKind::Worker);
    });
}

#[test]
fn pytorch_gloo_2_says_which_engine_ran() {
    run(async {
        let mut job = Job::start(2).await;
        let subject = Subject::Pair { a: 0, b: 1 };
        let round = |index| Round {
            index,
            check: CheckName::PytorchGloo2,
            purpose: Purpose::First,
            mode: Mode::Full,
            groups: vec![vec![0, 1]],
        };
        let mut policy = policy();
        let torch = std::process::Command::new(&policy.paths.python)
            .args(["-I", "-c", "import torch.distributed"])
            .output()
            .is_ok_and(|output| output.status.success());
        let mut expected = vec![(policy.paths.python.clone(), if torch { "engine: torch " } else { RING })];
        expected.push(("/usr/bin/no-such-python".into(), RING));
        for (index, (python, engine)) in (0..).zip(expected) {
            policy.paths.python = python;
            for outcome in job.round(round(index), policy.clone()).await {
                let measurements = outcome.unwrap();
                let busbw = find(&measurements, Metric::Busbw, &subject);
                println!("{} GB/s, {}", busbw.value, busbw.detail);
                assert!(busbw.value > 0.0 && busbw.detail.starts_with(engine), "{}", busbw.detail);
                assert_eq!(find(&measurements, Metric::Correct, &subject).value, 1.0);
                assert_eq!(measurements.len(), 2);
            }
        }
    });
}

const RING: &str = "engine: ring (no torch); n0: there is no python (paths.python); n1: there is no python";

#[test]
fn pytorch_gloo_2_runs_no_python_that_others_can_change() {
    run(async {
        let mut job = Job::start(2).await;
        let folder = tempfile::Builder::new().tempdir_in("/tmp").unwrap();
        let python = folder.path().join("python3");
        std::fs::copy("/bin/true", &python).unwrap();
        let mut policy = policy();
        policy.paths.python = python;
        let (check, mode, groups) = (CheckName::PytorchGloo2, Mode::Full, vec![vec![0, 1]]);
        let round = Round { index: 0, check, purpose: Purpose::First, mode, groups };
        for outcome in job.round(round, policy).await {
            let error = outcome.unwrap_err();
            assert_eq!(error.kind, ErrorKind::Environment);
            assert!(error.message.contains("/tmp can be changed by others than root"), "{error}");
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
