//! GPUs that are told apart: the bad one is named with its node, its neighbours are not, and limits follow the model,
//! the number of GPUs and the size of the messages.

use std::net::{IpAddr, Ipv4Addr};

use crate::simulated::measure::plain;
use diag::baseline::Baselines;
use diag::check::CheckName::{self, AllReduce, AllReduce1, AllReduce2, GemmFlops};
use diag::conclude::Caps;
use diag::conclude::verdict;
use diag::facts::{Engine, GpuName, Joined, NodeFacts, NodeId, Roster, RosterEntry};
use diag::gpu_facts::Known;
use diag::judge::{Hardware, Suite};
use diag::measurement::{Measurement, Metric, Subject};
use diag::plan;
use diag::round::{NodeOutcome, RoundResult, Step};
use diag::topology::Leaves;
use diag::verdict::{Finding, Status, Verdict};

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
        known: Known::default(),
        unable: None,
    };
    let entry = |node: u32| RosterEntry {
        name: format!("n{}", node + 1).into(),
        joined: Some(Joined::new(facts(), IpAddr::V4(Ipv4Addr::LOCALHOST))),
        absent_because: None,
    };
    Roster { nodes: (0..nodes).map(entry).collect(), leader: 0, leaves: Leaves::default() }
}

fn number(check: CheckName, metric: Metric, subject: Subject, value: f64) -> Measurement {
    Measurement {
        bytes: (metric == Metric::Busbw).then_some(1 << 30),
        samples: Vec::new(),
        detail: MODEL.into(),
        ..plain(check, metric, subject, value)
    }
}

/// The verdict on a job of one check whose every node shows what `seen` gives for it, its group and the round.
fn job(
    check: CheckName,
    nodes: u32,
    gpus: u32,
    seen: impl Fn(NodeId, &[NodeId], usize) -> Vec<Measurement>,
) -> Verdict {
    job_of(MODEL, check, (nodes, gpus), seen)
}

/// The same of GPUs of another model.
fn job_of(
    model: &str,
    check: CheckName,
    (nodes, gpus): (u32, u32),
    seen: impl Fn(NodeId, &[NodeId], usize) -> Vec<Measurement>,
) -> Verdict {
    let baselines = Baselines::parse(include_str!("../../../conf/baselines/h200.toml")).unwrap();
    let suite = Suite {
        checks: vec![check],
        unbuilt: Vec::new(),
        engine: Engine::Cuda,
        baselines: vec![baselines],
        hardware: Hardware::default(),
    };
    let roster = roster(model, nodes, gpus);
    let suite = suite.on(&roster);
    let mut results: Vec<RoundResult> = Vec::new();
    while let Step::Measure(round) = plan::next(&suite, &roster, &results) {
        assert!(results.len() < 20, "{round:?}");
        let mut outcomes = std::collections::BTreeMap::new();
        for group in &round.groups {
            for node in group {
                outcomes.insert(*node, NodeOutcome::Measured(seen(*node, group, results.len())));
            }
        }
        results.push(RoundResult { round, outcomes });
    }
    let caps = Caps { max_drain_nodes: u32::MAX, max_drain_fraction: 1.0 };
    verdict(&suite, &roster, &results, caps, None)
}

/// The verdict on a job whose every GPU shows what `seen` gives for node, GPU and round: TFLOP/s and the bits of its
/// product.
fn judged(nodes: u32, seen: impl Fn(NodeId, u32, usize) -> (f64, f64)) -> Verdict {
    judged_of(MODEL, nodes, seen)
}

/// The same of GPUs of another model.
fn judged_of(model: &str, nodes: u32, seen: impl Fn(NodeId, u32, usize) -> (f64, f64)) -> Verdict {
    job_of(model, GemmFlops, (nodes, GPUS), |node, _, round| {
        let of_gpu = |index: u32| {
            let (rate, bits) = seen(node, index, round);
            let subject = Subject::Gpu { node, index };
            [
                number(GemmFlops, Metric::Flops, subject.clone(), rate),
                number(GemmFlops, Metric::Fingerprint, subject, bits),
            ]
        };
        (0..GPUS).flat_map(of_gpu).collect()
    })
}

/// Messages of a collective on GPUs.
const SIZES: [u64; 3] = [4 << 20, 64 << 20, 1 << 30];

/// One number of a collective for each size.
fn sized(check: CheckName, subject: &Subject, rates: [f64; 3]) -> Vec<Measurement> {
    let of_size = |(bytes, rate)| {
        let bytes = Some(bytes);
        Measurement { bytes, ..number(check, Metric::Busbw, subject.clone(), rate) }
    };
    SIZES.into_iter().zip(rates).map(of_size).collect()
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

#[test]
fn two_gpus_that_differ_are_suspects_and_one_seen_to_be_wrong_has_no_vote() {
    let at = |metric, node, value| number(GemmFlops, metric, Subject::Gpu { node, index: 0 }, value);
    let shown = |node: NodeId, right: [f64; 2]| {
        vec![
            at(Metric::Flops, node, 700.0),
            at(Metric::Correct, node, right[node as usize]),
            at(Metric::Fingerprint, node, f64::from(node)),
        ]
    };
    let tied = job(GemmFlops, 2, 1, |node, _, _| shown(node, [1.0, 1.0]));
    assert!(tied.findings.iter().all(|one| one.status == Status::Suspect), "{:#?}", tied.findings);
    assert_eq!(tied.findings.len(), 2);
    assert!(
        tied.findings[0].message.contains("one of them computes wrongly"),
        "{}",
        tied.findings[0].message
    );
    let told = job(GemmFlops, 2, 1, |node, _, _| shown(node, [1.0, 0.0]));
    assert_eq!(failed(&told), [Subject::Gpu { node: 1, index: 0 }]);
    assert_eq!(told.findings[0].status, Status::Pass);
}

#[test]
fn fp8_is_a_number_of_its_own_beside_bf16() {
    let at = |metric, node, value, detail: &str| Measurement {
        detail: detail.into(),
        ..number(GemmFlops, metric, Subject::Gpu { node, index: 0 }, value)
    };
    let verdict = job(GemmFlops, 4, 1, |node, _, _| {
        let (rate, bits) = match node {
            1 => (600.0, 7.0),
            2 => (1300.0, 8.0),
            _ => (1310.0, 7.0),
        };
        vec![
            at(Metric::Flops, node, 700.0, MODEL),
            at(Metric::Fingerprint, node, 5.0, MODEL),
            at(Metric::Fp8Flops, node, rate, MODEL),
            at(Metric::Fingerprint, node, bits, "NVIDIA H200, fp8"),
        ]
    });
    let gpu = |node| Subject::Gpu { node, index: 0 };
    assert_eq!(failed(&verdict), [gpu(1), gpu(2)]);
    let slow = verdict.findings.iter().find(|one| one.subject == gpu(1)).unwrap();
    assert!(slow.message.contains("600 TFLOP/s in fp8 <"), "{}", slow.message);
    assert_eq!((slow.metric, slow.rates.len()), (Some(Metric::Fp8Flops), 2));
    let wrong = verdict.findings.iter().find(|one| one.subject == gpu(2)).unwrap();
    assert!(wrong.message.contains("other bits") && wrong.message.contains("fp8"), "{}", wrong.message);
}

#[test]
fn each_size_is_held_against_its_own_limit_and_named() {
    let node = |node| Subject::Node { node };
    for (rates, words) in [
        ([52.0, 267.0, 90.0], "90 GB/s at 1 GiB < 110 GB/s"),
        ([52.0, 60.0, 330.0], "60 GB/s at 64 MiB < 90 GB/s"),
        ([9.0, 267.0, 330.0], "9 GB/s at 4 MiB < 17 GB/s"),
    ] {
        let verdict = job(AllReduce1, 1, 2, |at, _, _| sized(AllReduce1, &node(at), rates));
        assert_eq!(failed(&verdict), [node(0)]);
        let finding = &verdict.findings[0];
        assert!(finding.message.contains(words), "{}", finding.message);
        let shown: Vec<(Option<u64>, f64)> = finding.rates.iter().map(|one| (one.bytes, one.value)).collect();
        assert_eq!(shown, SIZES.into_iter().map(Some).zip(rates).collect::<Vec<_>>());
        assert_eq!(finding.rates.iter().filter(|one| one.miss).count(), 1);
    }
    let fine = job(AllReduce1, 1, 2, |at, _, _| sized(AllReduce1, &node(at), [52.0, 267.0, 330.0]));
    assert_eq!(fine.findings[0].status, Status::Pass);
}

#[test]
fn misses_at_different_sizes_do_not_confirm_each_other() {
    // In each window another size is slow.
    let shown = |round: usize| {
        let mut rates = [52.0, 267.0, 330.0];
        rates[round % 3] = 5.0;
        rates
    };
    let verdict =
        job(AllReduce1, 1, 2, |at, _, round| sized(AllReduce1, &Subject::Node { node: at }, shown(round)));
    assert!(failed(&verdict).is_empty(), "{:#?}", verdict.findings);
    let once = job(AllReduce, 4, 1, |_, group, round| {
        let mut rates = [10.0, 20.0, 30.0];
        rates[round % 3] = if round < 2 { 0.0 } else { rates[round % 3] };
        assert_eq!(group.len(), 4, "no pair is looked at");
        sized(AllReduce, &Subject::Fabric, rates)
    });
    assert!(once.findings.iter().all(|one| one.status == Status::Pass), "{:#?}", once.findings);
}

#[test]
fn a_pair_that_is_slow_at_one_size_is_compared_at_that_size() {
    // Node 5's way is slow with everybody, and only large messages show it.
    let seen = |_: NodeId, group: &[NodeId], _: usize| {
        let (a, b) = (group[0].min(group[1]), group[0].max(group[1]));
        let large = if group.contains(&5) { 20.0 } else { 45.0 };
        sized(AllReduce2, &Subject::Pair { a, b }, [9.0, 30.0, large])
    };
    let verdict = job(AllReduce2, 6, 1, seen);
    assert_eq!(failed(&verdict), [Subject::Node { node: 5 }]);
    let message = &verdict.findings.iter().find(|one| one.status == Status::Fail).unwrap().message;
    assert!(message.contains("20 GB/s at 1 GiB <") && message.contains("peers"), "{message}");
}

// F17.
#[test]
fn silence_between_gpus_is_a_miss_without_any_limit() {
    let silent = |node: NodeId, _: &[NodeId], _: usize| {
        let one =
            number(AllReduce1, Metric::Busbw, Subject::Node { node }, if node == 0 { 0.0 } else { 300.0 });
        vec![Measurement { bytes: None, ..one }]
    };
    assert_eq!(failed(&job(AllReduce1, 2, 3, silent)), [Subject::Node { node: 0 }]);
}

// F17: a miss of each pair and no warning; it takes more than one look.
#[test]
fn collectives_that_give_out_with_one_node_are_its_fault() {
    let seen = |silent: bool, group: &[NodeId]| {
        let (a, b) = (group[0].min(group[1]), group[0].max(group[1]));
        let rate = if silent { 0.0 } else { 45.0 };
        let one = number(AllReduce2, Metric::Busbw, Subject::Pair { a, b }, rate);
        vec![Measurement { bytes: one.bytes.filter(|_| !silent), ..one }]
    };
    for bad in 0..4 {
        let verdict = job(AllReduce2, 4, 1, |_, group, _| seen(group.contains(&bad), group));
        assert_eq!(failed(&verdict), [Subject::Node { node: bad }], "{:#?}", verdict.findings);
        let verdict =
            job(AllReduce2, 4, 1, |_, group, round| seen(round == 0 && group.contains(&bad), group));
        assert!(failed(&verdict).is_empty(), "{:#?}", verdict.findings);
    }
}

// G09: cards in slots reach each other as their slots are wired, and no limit of a board says how fast that is.
#[test]
fn cards_without_nvswitch_are_not_held_against_limits_of_a_board() {
    let node = |node| Subject::Node { node };
    let of = |model, rates| job_of(model, AllReduce1, (1, 2), |at, _, _| sized(AllReduce1, &node(at), rates));
    let across_sockets = [5.0, 11.0, 12.0];
    for model in ["NVIDIA H200 NVL", "NVIDIA H100 PCIe"] {
        let verdict = of(model, across_sockets);
        assert!(failed(&verdict).is_empty(), "{model}: {:#?}", verdict.findings);
    }
    assert_eq!(failed(&of(MODEL, across_sockets)), [node(0)]);
    // What does not work at all is a miss on any of them.
    assert_eq!(failed(&of("NVIDIA H200 NVL", [0.0; 3])), [node(0)]);
}
