//! A slow way between the leaf switches is nobody's fault, whatever else misses by chance beside it; and who is slow
//! is named all the same.

use std::collections::{BTreeMap, BTreeSet};

use crate::simulated::between::{blamed, checks, slow_between};
use crate::simulated::catalogue::is_told;
use crate::simulated::fault::{Fault, When};
use crate::simulated::machine::Machine;
use crate::simulated::measure::plain;
use crate::simulated::noise::Noise;
use crate::simulated::{Job, NO_CAPS, Run, suite};
use diag::check::CheckName::{self, AllReduce, AllReduce2, MultiAllReduce, MultiAllReduce2};
use diag::conclude::verdict;
use diag::facts::NodeId;
use diag::measurement::{Measurement, Metric, Subject};
use diag::plan::next;
use diag::round::{NodeOutcome, RoundResult, Step};
use diag::verdict::{FaultClass, Finding, Outcome, Status};

fn failed(run: &Run) -> Vec<&Finding> {
    run.verdict.findings.iter().filter(|one| one.status == Status::Fail).collect()
}

/// What is said, in short.
fn said(run: &Run) -> String {
    let rounds = run.results.iter().map(|one| format!("{:?} {:?}\n", one.round.check, one.round.groups));
    let words = run.verdict.findings.iter().map(|one| format!("{:?}: {}\n", one.status, one.message));
    rounds.chain(words).collect()
}

/// Four nodes below two leaves, as measured: what `way` carries between two on a rail in a round, in GB/s; all nodes together
/// carry what the slowest way does.
fn four(check: CheckName, topology: bool, way: impl Fn(NodeId, NodeId, u32, usize) -> f64) -> Run {
    let machine = Machine { per_leaf: 2, ..Machine::HOST };
    let job = Job::on(machine, 4, Noise::default());
    let job = if topology { job.with_topology() } else { job };
    let (suite, roster) = (suite(&[check]), job.roster());
    let mut results: Vec<RoundResult> = Vec::new();
    while let Step::Measure(round) = next(&suite, &roster, &results) {
        assert!(results.len() < 30, "{round:?}");
        let at = results.len();
        let mut outcomes: BTreeMap<NodeId, NodeOutcome> = BTreeMap::new();
        for group in &round.groups {
            let numbers = |rail: u32| -> Measurement {
                let (subject, value) = match group[..] {
                    [a, b] => (Subject::PairRail { a, b, rail }, way(a, b, rail, at)),
                    _ => {
                        let ring = [(0, 1), (1, 2), (2, 3), (0, 3)].map(|(a, b)| way(a, b, rail, at));
                        (Subject::FabricRail { rail }, ring.into_iter().fold(f64::MAX, f64::min))
                    }
                };
                plain(check, Metric::Busbw, subject, value)
            };
            let numbers: Vec<Measurement> = (0..2).map(numbers).collect();
            outcomes.extend(group.iter().map(|node| (*node, NodeOutcome::Measured(numbers.clone()))));
        }
        results.push(RoundResult { round, outcomes });
    }
    Run { verdict: verdict(&suite, &roster, &results, NO_CAPS, None), results }
}

// As seen on a cluster: n1 and n2 once had 0.145 GB/s with each other, by chance, and 0.002 with everybody beyond the slow
// spine. Both were drained for their rails.
#[test]
fn a_slow_moment_and_a_slow_spine_are_no_two_bad_rails() {
    for check in [MultiAllReduce, MultiAllReduce2] {
        for topology in [false, true] {
            // For good: the rail of n1 or of n2 is slow by itself then.
            for (always, slow) in [(false, 0.145), (true, 0.145), (false, 0.01), (false, 0.003)] {
                let way = |a: NodeId, b: NodeId, rail: u32, round: usize| match (a, b, rail) {
                    (0 | 1, 2 | 3, _) => 0.002,
                    (0, 1, 1) if always || round < 3 => slow,
                    (0, 1, _) => 0.41,
                    _ => 0.38,
                };
                let run = four(check, topology, way);
                let at = format!("{check}, {topology}, {always}, {slow}: {}", said(&run));
                assert_eq!(blamed(&run), BTreeSet::new(), "{at}");
                if check == MultiAllReduce {
                    assert_eq!(run.verdict.outcome, Outcome::Fail, "{at}");
                    let class = |one: &&Finding| {
                        matches!(one.class, Some(FaultClass::Fabric | FaultClass::Link))
                            && !matches!(one.subject, Subject::Node { .. } | Subject::Rail { .. })
                    };
                    assert!(failed(&run).iter().all(class), "{at}");
                    // What is said names ways through the spine only.
                    let ways = |one: &&Finding| !one.message.contains("n1-n2 ");
                    assert!(!failed(&run).is_empty() && failed(&run).iter().all(ways), "{at}");
                }
            }
        }
    }
}

#[test]
fn a_rail_that_is_slow_with_everybody_is_named() {
    for bad in 0..4 {
        let way = |a: NodeId, b: NodeId, rail: u32, _: usize| match (a, b, rail) {
            _ if rail == 1 && (a == bad || b == bad) => 0.002,
            _ => 0.4,
        };
        for check in [MultiAllReduce, MultiAllReduce2] {
            let run = four(check, false, way);
            let subjects: Vec<&Subject> = failed(&run).iter().map(|one| &one.subject).collect();
            assert_eq!(subjects, [&Subject::Rail { node: bad, index: 1 }], "{check}: {}", said(&run));
        }
    }
}

#[test]
fn a_slow_spine_blames_nobody_whatever_misses_by_chance_beside_it() {
    let mut wrong = Vec::new();
    let mut named = 0;
    for seed in 0..SEEDS {
        for topology in [false, true] {
            let job = slow_between(seed, topology);
            let checks = checks(seed);
            let run = job.run(checks);
            let nodes = blamed(&run);
            if !nodes.is_empty() {
                let faults: Vec<&(Fault, When)> = job.faults.iter().collect();
                let at = format!("{seed} {topology} {} of {}: {nodes:?}", job.size, job.machine.per_leaf);
                wrong.push(format!("{at} {faults:?}\n{}", said(&run)));
            }
            named += usize::from(run.verdict.outcome == Outcome::Fail);
        }
    }
    assert!(wrong.is_empty(), "{} of {}: {}", wrong.len(), 2 * SEEDS, wrong.join("\n"));
    // Pairs that never cross the spine do not show it.
    assert!(4 * named > SEEDS as usize, "{named}");
}

/// Jobs of this test: some seconds, optimised or not.
const SEEDS: u64 = if cfg!(debug_assertions) { 150 } else { 400 };

// Slower than the spine, at every place: the spine is no excuse.
#[test]
fn a_node_that_is_slower_than_the_spine_is_named_beside_it() {
    let noise = |seed| Noise { seed, spread: 0.02, sigma: 0.01, outliers: 0.0 };
    for (kind, spines) in [(Machine::HOST, 1), (Machine::H200, 4)] {
        for (size, per_leaf) in [(6, 3), (9, 3), (8, 4)] {
            for bad in 0..size {
                for list in [&[AllReduce2][..], &[MultiAllReduce2], &[MultiAllReduce]] {
                    let machine = Machine { per_leaf, spines, ..kind };
                    let mut job = Job::on(machine, size, noise(u64::from(bad)));
                    job.faults.push((Fault::Network { node: bad, left: 0.01 }, When::Always));
                    let spine = |spine| (Fault::Spine { spine, left: 0.4 }, When::Always);
                    job.faults.extend((0..spines).map(spine));
                    let run = job.run(list);
                    assert_eq!(blamed(&run), [bad].into(), "{list:?} {bad} of {size}: {}", said(&run));
                }
            }
        }
    }
}

// One that comes and goes has good moments: it is named or not, told in any case, and its partners are not blamed.
#[test]
fn a_network_that_comes_and_goes_is_told_and_blames_nobody_else() {
    let mut named = 0;
    for seed in 0..60 {
        let bad = u32::try_from(seed % 6).unwrap();
        let mut job = Job::on(Machine::H200, 6, Noise::acceptance(seed));
        job.faults.push((Fault::Network { node: bad, left: 0.2 }, When::Share(0.6)));
        let run = job.run(&[AllReduce2, MultiAllReduce2, AllReduce]);
        assert!(blamed(&run).is_subset(&[bad].into()), "{seed}: {}", said(&run));
        let missed = run.results.iter().any(|result| {
            let shows = When::Share(0.6).now(&job.noise, (result.round.index, false), 0);
            shows && result.round.participants().contains(&bad)
        });
        assert!(!missed || is_told(&run), "{seed}: {}", said(&run));
        named += blamed(&run).len();
    }
    assert!(named < 60, "{named}");
}
