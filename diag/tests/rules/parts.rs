//! A GPU that has no number: it is told of by itself, the others of its node and of the job are judged as ever.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use crate::simulated::measure::plain;
use diag::check::CheckName::{self, AllReduce, AllReduce1, AllReduce2, GemmFlops, MultiAllReduce2};
use diag::conclude::{Caps, verdict};
use diag::facts::{Engine, GpuName, Joined, NodeFacts, NodeId, Roster, RosterEntry};
use diag::gpu_facts::{Fact, FactKind, Known};
use diag::judge::{Hardware, Suite};
use diag::measurement::{CheckError, ErrorKind, Measurement, Metric, PartError, Subject};
use diag::plan;
use diag::round::{NodeOutcome, Round, RoundResult, Step};
use diag::verdict::{FaultClass, Finding, Outcome, Status, Verdict};

const GPUS: u32 = 2;

const WORDS: &str = "GPU-1 at 0000:b1:00.0: cuStreamQuery: CUDA_ERROR_LAUNCH_FAILED (719), no text";

fn gpu(node: NodeId, index: u32) -> Subject {
    Subject::Gpu { node, index }
}

fn number(check: CheckName, metric: Metric, subject: Subject, value: f64) -> Measurement {
    Measurement { samples: Vec::new(), ..plain(check, metric, subject, value) }
}

/// What a healthy node shows in a round of one of the checks here.
fn healthy(round: &Round, group: &[NodeId], me: NodeId) -> Vec<Measurement> {
    let check = round.check;
    match (check, group) {
        (GemmFlops, _) => {
            (0..GPUS).map(|index| number(check, Metric::Flops, gpu(me, index), 700.0)).collect()
        }
        (MultiAllReduce2, &[a, b]) => (0..GPUS)
            .map(|rail| number(check, Metric::Busbw, Subject::PairRail { a, b, rail }, 40.0))
            .collect(),
        (_, &[a, b]) => vec![number(check, Metric::Busbw, Subject::Pair { a, b }, 40.0)],
        (_, [_]) => vec![number(check, Metric::Busbw, Subject::Node { node: me }, 300.0)],
        _ => vec![number(check, Metric::Busbw, Subject::Fabric, 40.0)],
    }
}

/// A node with a GPU that has no number, and what the others of it show.
fn partly(part: Subject, kind: ErrorKind, numbers: Vec<Measurement>) -> NodeOutcome {
    let error = CheckError { kind, message: WORDS.to_owned() };
    let numbers = numbers.into_iter().filter(|one| one.subject != part).collect();
    NodeOutcome::Partly { numbers, parts: vec![PartError { part, error }] }
}

fn roster(nodes: u32, facts: &[Fact]) -> Roster {
    let entry = |node: u32| {
        let own = facts.iter().filter(|fact| fact.subject.nodes() == [node]).cloned();
        let facts = NodeFacts {
            version: "1".into(),
            request_digest: String::new(),
            engine: Engine::Cuda,
            address: None,
            rank_ports: vec![1; GPUS as usize],
            gpus: (0..GPUS).map(|index| GpuName { index, model: "A".into() }).collect(),
            libraries: String::new(),
            known: Known { facts: own.collect(), ..Known::default() },
            unable: None,
        };
        RosterEntry {
            name: format!("n{node}").into(),
            joined: Some(Joined::new(facts, IpAddr::V4(Ipv4Addr::LOCALHOST))),
            absent_because: None,
        }
    };
    Roster { nodes: (0..nodes).map(entry).collect(), leader: 0, leaves: diag::topology::Leaves::default() }
}

/// The verdict on a job; `shows` may say otherwise than what a healthy node would.
fn job(
    nodes: u32,
    checks: &[CheckName],
    facts: &[Fact],
    shows: impl Fn(NodeId, &[NodeId], &Round, Vec<Measurement>) -> NodeOutcome,
) -> (Verdict, Vec<RoundResult>) {
    let suite = Suite {
        checks: checks.to_vec(),
        unbuilt: Vec::new(),
        engine: Engine::Cuda,
        baselines: Vec::new(),
        hardware: Hardware::default(),
    };
    let roster = roster(nodes, facts);
    let suite = suite.on(&roster);
    let mut results: Vec<RoundResult> = Vec::new();
    while let Step::Measure(round) = plan::next(&suite, &roster, &results) {
        assert!(results.len() < 30, "{round:?}");
        let mut outcomes = BTreeMap::new();
        for group in &round.groups {
            for node in group {
                outcomes.insert(*node, shows(*node, group, &round, healthy(&round, group, *node)));
            }
        }
        results.push(RoundResult { round, outcomes });
    }
    let caps = Caps { max_drain_nodes: u32::MAX, max_drain_fraction: 1.0 };
    (verdict(&suite, &roster, &results, caps, None), results)
}

fn found<'v>(verdict: &'v Verdict, check: CheckName, subject: &Subject) -> Vec<&'v Finding> {
    verdict.findings.iter().filter(|one| one.check == Some(check) && one.subject == *subject).collect()
}

/// That these are all the findings that speak against somebody or something.
fn only(verdict: &Verdict, expected: &[(CheckName, Subject, Status)]) {
    let bad = verdict.findings.iter().filter(|one| !matches!(one.status, Status::Pass | Status::Skip));
    let bad: Vec<(CheckName, Subject, Status)> =
        bad.map(|one| (one.check.unwrap(), one.subject.clone(), one.status)).collect();
    assert_eq!(bad, expected, "{:#?}", verdict.findings);
}

#[test]
fn an_error_of_one_gpu_is_its_own_and_its_node_sits_out_what_needs_all_of_them() {
    let (verdict, results) = job(3, &[GemmFlops, AllReduce1, AllReduce2], &[], |me, _, _, numbers| {
        if me == 1 { partly(gpu(1, 1), ErrorKind::Worker, numbers) } else { NodeOutcome::Measured(numbers) }
    });
    only(&verdict, &[(GemmFlops, gpu(1, 1), Status::Error)]);
    let error = found(&verdict, GemmFlops, &gpu(1, 1));
    assert_eq!(error[0].message, format!("n1/gpu1: {WORDS}"));
    for fine in [gpu(0, 0), gpu(0, 1), gpu(1, 0), gpu(2, 0), gpu(2, 1)] {
        assert_eq!(found(&verdict, GemmFlops, &fine)[0].status, Status::Pass);
    }
    for check in [AllReduce1, AllReduce2] {
        let skipped = found(&verdict, check, &Subject::Node { node: 1 });
        assert_eq!(skipped[0].status, Status::Skip);
        assert!(skipped[0].message.contains("sat out: it failed gemm_flops"), "{}", skipped[0].message);
    }
    assert_eq!(found(&verdict, AllReduce2, &Subject::Pair { a: 0, b: 2 })[0].status, Status::Pass);
    assert_eq!((verdict.outcome, results.len()), (Outcome::Error, 3));
}

#[test]
fn what_the_driver_calls_broken_is_a_fault_and_silence_fails_the_run_and_drains_nobody() {
    for (kind, class) in [(ErrorKind::Broken, FaultClass::Part), (ErrorKind::Timeout, FaultClass::Timeout)] {
        let (verdict, _) = job(3, &[GemmFlops], &[], |me, _, _, numbers| {
            if me == 2 { partly(gpu(2, 0), kind, numbers) } else { NodeOutcome::Measured(numbers) }
        });
        only(&verdict, &[(GemmFlops, gpu(2, 0), Status::Fail)]);
        let finding = found(&verdict, GemmFlops, &gpu(2, 0))[0];
        assert_eq!((finding.class, finding.is_part_fault()), (Some(class), kind == ErrorKind::Broken));
        assert_eq!(verdict.outcome, Outcome::Fail);
    }
}

#[test]
fn a_gpu_that_had_its_number_before_it_failed_is_told_of_once() {
    // n0's other GPU is slow, so that all are measured again.
    let (verdict, _) = job(4, &[GemmFlops], &[], |me, _, round, mut numbers| {
        if me == 0 {
            numbers[1].value = 100.0;
        }
        if me == 3 && round.index > 0 {
            return partly(gpu(3, 0), ErrorKind::Worker, numbers);
        }
        NodeOutcome::Measured(numbers)
    });
    only(&verdict, &[(GemmFlops, gpu(3, 0), Status::Error), (GemmFlops, gpu(0, 1), Status::Fail)]);
    assert_eq!(found(&verdict, GemmFlops, &gpu(3, 0)).len(), 1);
    assert_eq!(found(&verdict, GemmFlops, &gpu(3, 1))[0].status, Status::Pass);
}

#[test]
fn an_error_of_one_product_hides_no_slow_other_one() {
    let error = CheckError { kind: ErrorKind::Worker, message: WORDS.to_owned() };
    for (value, fails) in [(100.0, true), (690.0, false)] {
        let (verdict, _) = job(4, &[GemmFlops], &[], |me, _, _, mut numbers| {
            if me != 2 {
                return NodeOutcome::Measured(numbers);
            }
            // bf16 has its number, fp8 has none.
            numbers[1].value = value;
            let parts = vec![PartError { part: gpu(2, 1), error: error.clone() }];
            NodeOutcome::Partly { numbers, parts }
        });
        let slow = fails.then_some((GemmFlops, gpu(2, 1), Status::Fail));
        let expected: Vec<_> = [(GemmFlops, gpu(2, 1), Status::Error)].into_iter().chain(slow).collect();
        only(&verdict, &expected);
    }
}

#[test]
fn a_collective_that_a_gpu_breaks_speaks_against_no_peer() {
    for check in [AllReduce2, MultiAllReduce2, AllReduce] {
        for bad in 0..5 {
            let (verdict, _) = job(5, &[check], &[], |me, group, _, mut numbers| {
                if me == bad {
                    return partly(gpu(bad, 1), ErrorKind::Worker, Vec::new());
                }
                if group.contains(&bad) {
                    // Its peers saw the collective give out.
                    numbers.iter_mut().for_each(|one| one.value = 0.0);
                }
                NodeOutcome::Measured(numbers)
            });
            only(&verdict, &[(check, gpu(bad, 1), Status::Error)]);
            let message = &found(&verdict, check, &gpu(bad, 1))[0].message;
            assert!(message.starts_with(&format!("n{bad}/gpu1: {WORDS}")), "{message}");
            assert!(verdict.findings.iter().any(|one| one.status == Status::Pass), "{check}: {verdict:#?}");
        }
    }
}

#[test]
fn a_gpu_that_can_t_be_opened_is_an_error_and_its_node_has_no_collectives() {
    let words = "n1 GPU 1: it can't be opened: no answer".to_owned();
    let facts = [Fact::new(FactKind::Unusable, gpu(1, 1), words)];
    let (verdict, _) = job(3, &[GemmFlops, AllReduce2], &facts, |me, group, _, mut numbers| {
        assert!(group.len() == 1 || !group.contains(&1), "its node is in {group:?}");
        numbers.retain(|one| me != 1 || one.subject != gpu(1, 1));
        NodeOutcome::Measured(numbers)
    });
    let bad: Vec<&Finding> = verdict.findings.iter().filter(|one| one.status > Status::Skip).collect();
    let bad: Vec<(&Subject, Option<CheckName>)> =
        bad.iter().filter(|one| one.status != Status::Pass).map(|one| (&one.subject, one.check)).collect();
    assert_eq!(bad, [(&gpu(1, 1), None)], "{:#?}", verdict.findings);
    assert_eq!(found(&verdict, GemmFlops, &gpu(1, 0))[0].status, Status::Pass);
    let skipped = found(&verdict, AllReduce2, &Subject::Node { node: 1 });
    assert!(skipped[0].message.contains("sat out: it failed before the first check"), "{skipped:?}");
}
