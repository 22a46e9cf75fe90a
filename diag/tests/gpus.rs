//! GPUs that are told apart: the bad one is named with its node, its neighbours are not, and limits follow the model,
//! the number of GPUs and the size of the messages.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::net::{IpAddr, Ipv4Addr};

use diag::baseline::Baselines;
use diag::check::CheckName::{self, AllReduce1, GemmFlops};
use diag::conclude::Caps;
use diag::conclude::verdict;
use diag::facts::{Engine, GpuName, Joined, NodeFacts, NodeId, Roster, RosterEntry};
use diag::judge::{Hardware, Suite};
use diag::measurement::{Measurement, Metric, Subject};
use diag::plan;
use diag::round::{NodeOutcome, RoundResult, Step};
use diag::verdict::{Finding, Status, Verdict};
use jiff::Timestamp;

const GPUS: u32 = 4;
const MODEL: &str = "NVIDIA H200";

fn roster(model: &str, nodes: u32, gpus: u32) -> Roster {
    let facts = || NodeFacts {
        version: "1".into(),
        request_digest: String::new(),
        engine: Engine::Cuda,
        address: None,
        rank_ports: vec![1; gpus as usize],
        gpus: (0..gpus).map(|index| GpuName { index, model: model.into() }).collect(),
        libraries: String::new(),
        unable: None,
    };
    let entry = |node: u32| RosterEntry {
        name: format!("n{}", node + 1),
        joined: Some(Joined { facts: facts(), seen_address: IpAddr::V4(Ipv4Addr::LOCALHOST) }),
        absent_because: None,
    };
    Roster { nodes: (0..nodes).map(entry).collect(), leader: 0 }
}

fn number(check: CheckName, metric: Metric, subject: Subject, value: f64) -> Measurement {
    Measurement {
        check,
        metric,
        subject,
        peers: Vec::new(),
        value,
        bytes: (metric == Metric::Busbw).then_some(1 << 30),
        samples: Vec::new(),
        detail: MODEL.into(),
        started_at: Timestamp::UNIX_EPOCH,
        finished_at: Timestamp::UNIX_EPOCH,
    }
}

/// The verdict on a job whose every GPU shows what `seen` gives for node, GPU and round: TFLOP/s and the bits of its
/// product.
fn judged(nodes: u32, seen: impl Fn(NodeId, u32, usize) -> (f64, f64)) -> Verdict {
    judged_of(MODEL, nodes, seen)
}

fn judged_of(model: &str, nodes: u32, seen: impl Fn(NodeId, u32, usize) -> (f64, f64)) -> Verdict {
    let baselines = Baselines::parse(include_str!("../../conf/baselines/h200.toml")).unwrap();
    let suite = Suite {
        checks: vec![GemmFlops],
        unbuilt: Vec::new(),
        engine: Engine::Cuda,
        baselines: vec![baselines],
        hardware: Hardware::default(),
    };
    let roster = roster(model, nodes, GPUS);
    let suite = suite.on(&roster);
    let mut results: Vec<RoundResult> = Vec::new();
    while let Step::Measure(round) = plan::next(&suite, &roster, &results) {
        assert!(results.len() < 10, "{round:?}");
        let outcomes = round
            .participants()
            .into_iter()
            .map(|node| {
                let of_gpu = |index: u32| {
                    let (rate, bits) = seen(node, index, results.len());
                    let subject = Subject::Gpu { node, index };
                    [
                        number(GemmFlops, Metric::Flops, subject.clone(), rate),
                        number(GemmFlops, Metric::Fingerprint, subject, bits),
                    ]
                };
                (node, NodeOutcome::Measured((0..GPUS).flat_map(of_gpu).collect()))
            })
            .collect();
        results.push(RoundResult { round, outcomes });
    }
    let caps = Caps { max_drain_nodes: u32::MAX, max_drain_fraction: 1.0 };
    verdict(&suite, &roster, &results, caps, None)
}

fn failed(verdict: &Verdict) -> Vec<Subject> {
    verdict.findings.iter().filter(|one| one.status == Status::Fail).map(|one| one.subject.clone()).collect()
}

#[test]
fn a_slow_gpu_is_named_at_every_place_and_its_neighbours_pass() {
    for node in 0..3 {
        for index in 0..GPUS {
            let bad = |at: NodeId, gpu: u32| at == node && gpu == index;
            let verdict = judged(3, |at, gpu, _| (if bad(at, gpu) { 500.0 } else { 700.0 }, 7.0));
            assert_eq!(failed(&verdict), [Subject::Gpu { node, index }]);
            let passed = verdict.findings.iter().filter(|one| one.status == Status::Pass).count();
            assert_eq!(passed, 3 * GPUS as usize - 1);
        }
    }
}

#[test]
fn a_gpu_that_computes_other_bits_is_wrong_however_fast_it_is() {
    let verdict = judged(2, |node, gpu, _| (700.0, if (node, gpu) == (1, 2) { 8.0 } else { 7.0 }));
    assert_eq!(failed(&verdict), [Subject::Gpu { node: 1, index: 2 }]);
    let finding = verdict.findings.iter().find(|one| one.status == Status::Fail).unwrap();
    assert!(finding.message.contains("other bits than that of 7 others"), "{}", finding.message);
}

// G06: no limit is known, so they are compared with each other, and what was measured is shown.
#[test]
fn gpus_of_a_model_that_nobody_knows_are_compared_with_each_other() {
    let bad = |node: NodeId, gpu: u32| (node, gpu) == (1, 3);
    let slow = judged_of("NVIDIA X900", 2, |node, gpu, _| (if bad(node, gpu) { 500.0 } else { 700.0 }, 7.0));
    assert_eq!(failed(&slow), [Subject::Gpu { node: 1, index: 3 }]);
    let one = slow.findings.iter().find(|one| one.status == Status::Fail).unwrap();
    assert!(one.limit.as_ref().unwrap().source.contains("median"), "{one:#?}");
    let alike = judged_of("NVIDIA X900", 2, |_, _, _| (0.5, 7.0));
    assert_eq!(alike.findings.iter().filter(|one| one.status == Status::Pass).count(), 2 * GPUS as usize);
    let by_peers = |one: &Finding| one.limit.as_ref().is_some_and(|limit| limit.source.contains("median"));
    assert!(alike.findings.iter().all(|one| one.value == Some(0.5) && by_peers(one)), "{alike:#?}");
}

#[test]
fn slow_moments_of_different_gpus_are_nobodys_fault() {
    // Each round another GPU of the same node is slow.
    let verdict =
        judged(2, |node, gpu, round| (if node == 0 && gpu as usize == round { 500.0 } else { 700.0 }, 7.0));
    assert!(failed(&verdict).is_empty(), "{:#?}", verdict.findings);
    assert!(verdict.findings.iter().all(|one| one.status == Status::Pass));
}

#[test]
fn a_node_with_one_gpu_of_the_job_has_nothing_to_reduce() {
    let suite = Suite {
        checks: vec![AllReduce1],
        unbuilt: Vec::new(),
        engine: Engine::Cuda,
        baselines: Vec::new(),
        hardware: Hardware::default(),
    };
    let roster = roster(MODEL, 2, 1);
    assert_eq!(plan::next(&suite, &roster, &[]), Step::Finished);
    let caps = Caps { max_drain_nodes: 1, max_drain_fraction: 1.0 };
    let verdict = verdict(&suite, &roster, &[], caps, None);
    assert_eq!(verdict.findings.len(), 2);
    assert!(verdict.findings.iter().all(|one| one.status == Status::Skip && one.message.contains("one GPU")));
}
