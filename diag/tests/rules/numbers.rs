//! Numbers at the edges: what is no number, what lies on either side of a limit, and what there is nobody to compare
//! with.

use std::collections::BTreeSet;

use crate::simulated::{Job, Run};
use diag::baseline::Baselines;
use diag::check::ALL;
use diag::check::CheckName::{self, AllReduce1, AllReduce2, GemmFlops};
use diag::facts::NodeId;
use diag::measurement::Metric;
use diag::verdict::{Finding, Outcome, Status};

fn with_status(run: &Run, status: Status) -> Vec<&Finding> {
    run.verdict.findings.iter().filter(|one| one.status == status).collect()
}

fn nodes(findings: &[&Finding]) -> BTreeSet<NodeId> {
    findings.iter().flat_map(|one| one.subject.nodes()).collect()
}

/// ERROR of this node, a fault of nobody.
fn assert_error_of(node: NodeId, run: &Run, name: &str) {
    assert_eq!(run.verdict.outcome, Outcome::Error, "{name}: {:#?}", run.verdict.findings);
    let errors = with_status(run, Status::Error);
    assert_eq!(nodes(&errors), [node].into(), "{name}: {errors:#?}");
    assert!(with_status(run, Status::Fail).is_empty() && with_status(run, Status::Suspect).is_empty());
}

// F10, F13, and M01: it is the one that measured it, not the first of the pair.
#[test]
fn what_is_no_number_is_an_error_of_the_node_that_measured_it() {
    for size in [2, 3, 5] {
        for node in 0..size {
            for (check, value) in [
                (GemmFlops, f64::NAN),
                (GemmFlops, f64::INFINITY),
                (GemmFlops, -1.0),
                (GemmFlops, 0.0),
                (AllReduce1, f64::NAN),
                (AllReduce1, -1.0),
                (AllReduce2, f64::NAN),
                (AllReduce2, -1.0),
            ] {
                let run = Job { odd: [(node, value)].into(), ..Job::of(size) }.run(&[check]);
                assert_error_of(node, &run, &format!("{check} {value} on {node} of {size}"));
            }
        }
    }
}

// F13, J15: a check that measured nothing has not passed.
#[test]
fn no_number_at_all_is_an_error() {
    for check in [GemmFlops, AllReduce1] {
        for node in 0..3 {
            let run = Job { mute: [node].into(), ..Job::of(3) }.run(&[check]);
            assert_error_of(node, &run, &format!("{check} on {node}"));
        }
    }
    for size in [2, 5] {
        let everybody = || (0..size).collect();
        for spec in ALL {
            let run = Job { mute: everybody(), ..Job::of(size) }.run(&[spec.name]);
            assert_eq!(run.verdict.outcome, Outcome::Error, "{}: {:#?}", spec.name, run.verdict.findings);
            assert!(with_status(&run, Status::Pass).is_empty(), "{}", spec.name);
        }
    }
}

fn shown_by_all(check: CheckName, metric: Metric, value: f64) -> Run {
    Job { all_show: Some((metric, value)), ..Job::of(4) }.run(&[check])
}

// C02, F07: each check tells good from bad, and not the other way round.
#[test]
fn numbers_on_either_side_of_each_limit_are_told_apart() {
    let baselines = Baselines::parse(include_str!("../../../conf/baselines/host.toml")).unwrap();
    let shipped = baselines.limits.iter().map(|limit| (limit.check, limit.metric, limit.value));
    // Right results and ports that can be reached need no file.
    let others = [CheckName::NetworkConnectivity, CheckName::KernelLaunch];
    let right = ALL.iter().map(|spec| spec.name).filter(|check| !others.contains(check));
    let right = right.map(|check| (check, Metric::Correct, 1.0));
    let reached = [(CheckName::NetworkConnectivity, Metric::Reachable, 1.0)];
    let mut seen = BTreeSet::new();
    for (check, metric, limit) in shipped.chain(right).chain(reached) {
        seen.insert(check);
        let (good, bad) = if metric.higher_is_better() { (1.0, 0.99) } else { (1.0, 1.01) };
        let fine = shown_by_all(check, metric, limit * good);
        assert_eq!(fine.verdict.outcome, Outcome::Pass, "{check} {metric:?}: {:#?}", fine.verdict.findings);
        let missed = shown_by_all(check, metric, limit * bad);
        let outcome = missed.verdict.outcome;
        assert!(matches!(outcome, Outcome::Fail | Outcome::Environment), "{check} {metric:?}: {outcome}");
        assert!(with_status(&missed, Status::Error).is_empty(), "{check} {metric:?}");
    }
    assert_eq!(seen.len(), ALL.len(), "a check that nothing can fail");
}

// G11: a median of two is no yardstick.
#[test]
fn without_a_third_node_nobody_is_slow_by_comparison() {
    for check in [GemmFlops, AllReduce1] {
        for bad in 0..2 {
            let two = Job { slow_processor: [bad].into(), ..Job::of(2) }.run(&[check]);
            assert_eq!(two.verdict.outcome, Outcome::Pass, "{check}: {:#?}", two.verdict.findings);
            let three = Job { slow_processor: [bad].into(), ..Job::of(3) }.run(&[check]);
            assert_eq!(nodes(&with_status(&three, Status::Fail)), [bad].into(), "{check}");
        }
    }
}
