//! Who is blamed for what pairs show, meeting by meeting: what must have been seen before a node is, and that a bad one is told by
//! name all the same.

use std::collections::{BTreeMap, BTreeSet};

use crate::simulated::between::blamed;
use crate::simulated::catalogue::CAPS;
use crate::simulated::machine::{Machine, SIZES};
use crate::simulated::measure::plain;
use crate::simulated::noise::Noise;
use crate::simulated::{Job, NO_CAPS, Run};
use diag::check::CheckName::{self, AllReduce2, GemmFlops, MultiAllReduce2};
use diag::conclude::{Caps, verdict};
use diag::facts::{Engine, NodeId, Roster};
use diag::measurement::{Measurement, Metric, Subject};
use diag::plan::next;
use diag::round::{NodeOutcome, RoundResult, Step};
use diag::topology::parse_conf;
use diag::verdict::{FaultClass, Outcome, Status};

/// A job whose pairs show what a test says, GB/s.
struct Ways<'w> {
    machine: Machine,
    size: u32,
    /// What topology.conf says, if anything.
    conf: &'w str,
    checks: &'w [CheckName],
    caps: Caps,
    /// A node whose processor is slow.
    slow: Option<NodeId>,
}

impl<'w> Ways<'w> {
    fn host(size: u32) -> Self {
        let checks = &[AllReduce2];
        Self { machine: Machine::HOST, size, conf: "", checks, caps: NO_CAPS, slow: None }
    }

    fn h200(size: u32) -> Self {
        Self { machine: Machine::H200, ..Self::host(size) }
    }

    fn roster(&self) -> Roster {
        let mut roster = Job::on(self.machine, self.size, Noise::default()).roster();
        let names: Vec<String> = roster.nodes.iter().map(|entry| entry.name.to_string()).collect();
        if !self.conf.is_empty() {
            roster.leaves = parse_conf(self.conf).unwrap().of_job(&names);
        }
        roster
    }

    /// `way`: what two nodes, lower first, show in a round of the suite.
    fn run(&self, way: impl Fn(NodeId, NodeId, usize) -> f64) -> Run {
        let job = Job::on(self.machine, self.size, Noise::default());
        let (suite, roster) = (job.suite(self.checks), self.roster());
        let mut results: Vec<RoundResult> = Vec::new();
        while let Step::Measure(round) = next(&suite, &roster, &results) {
            assert!(results.len() < 60, "{round:?}");
            let mut outcomes: BTreeMap<NodeId, NodeOutcome> = BTreeMap::new();
            for group in &round.groups {
                let numbers = match group[..] {
                    [a, b] => self.pair(round.check, (a, b), way(a, b, results.len())),
                    [node] => {
                        let usual = self.machine.usual(round.check, Metric::Flops, None);
                        let left = if self.slow == Some(node) { 0.1 } else { 1.0 };
                        vec![plain(round.check, Metric::Flops, Subject::Node { node }, usual * left)]
                    }
                    _ => unreachable!("no check of all nodes here"),
                };
                outcomes.extend(group.iter().map(|node| (*node, NodeOutcome::Measured(numbers.clone()))));
            }
            results.push(RoundResult { round, outcomes });
        }
        Run { verdict: verdict(&suite, &roster, &results, self.caps, None), results }
    }

    /// Of GPUs less for small messages in the usual proportion; a collective that gives out belongs to no size.
    fn pair(&self, check: CheckName, (a, b): (NodeId, NodeId), value: f64) -> Vec<Measurement> {
        let number = |subject: Subject| -> Vec<Measurement> {
            if self.machine.engine == Engine::Host || value == 0.0 {
                return vec![plain(check, Metric::Busbw, subject, value)];
            }
            let whole = self.machine.usual(check, Metric::Busbw, Some(SIZES[2]));
            let rate = |bytes: u64| {
                let usual = self.machine.usual(check, Metric::Busbw, Some(bytes));
                Measurement {
                    bytes: Some(bytes),
                    ..plain(check, Metric::Busbw, subject.clone(), value * usual / whole)
                }
            };
            SIZES.into_iter().map(rate).collect()
        };
        match check {
            MultiAllReduce2 => {
                (0..self.machine.rails).flat_map(|rail| number(Subject::PairRail { a, b, rail })).collect()
            }
            _ => number(Subject::Pair { a, b }),
        }
    }
}

/// What was measured and is said, in short.
fn said(run: &Run) -> String {
    let rounds = run.results.iter().map(|one| format!("{:?} {:?}\n", one.round.check, one.round.groups));
    let words = run.verdict.findings.iter().map(|one| format!("{:?}: {}\n", one.status, one.message));
    rounds.chain(words).collect()
}

/// Nodes that are suspected by name.
fn suspected(run: &Run) -> BTreeSet<NodeId> {
    let suspects = run.verdict.findings.iter().filter(|one| one.status == Status::Suspect);
    let nodes = suspects.filter(|one| matches!(one.subject, Subject::Node { .. } | Subject::Rail { .. }));
    nodes.flat_map(|one| one.subject.nodes()).collect()
}

fn blames_the_fabric(run: &Run) -> bool {
    run.verdict.findings.iter().any(|one| one.status == Status::Fail && one.class == Some(FaultClass::Fabric))
}

// What a bad part leaves depends on the partner, as where packets are lost: less of a longer way. No way that others use explains
// it, since they are fine with each other.
#[test]
fn a_node_that_is_bad_with_each_quite_differently_is_told_by_name() {
    for bad in 0..4 {
        for near in (0..4).filter(|near| *near != bad) {
            let run = Ways::host(4).run(|a, b, _| match (a, b) {
                _ if a != bad && b != bad => 1.0,
                _ if a == near || b == near => 0.04,
                _ => 0.008,
            });
            let at = format!("{bad} {near}: {}", said(&run));
            assert_eq!(blamed(&run), BTreeSet::new(), "{at}");
            assert_eq!(suspected(&run), [bad].into(), "{at}");
            assert!(!blames_the_fabric(&run), "{at}");
        }
    }
    for bad in 0..9 {
        let near = if bad == 0 { 1 } else { bad - 1 };
        let run = Ways::h200(9).run(|a, b, _| match (a, b) {
            _ if a != bad && b != bad => 360.0,
            _ if a == near || b == near => 160.0,
            _ => 110.0,
        });
        let named: BTreeSet<NodeId> = blamed(&run).union(&suspected(&run)).copied().collect();
        assert_eq!(named, [bad].into(), "{bad}: {}", said(&run));
        assert!(!blames_the_fabric(&run), "{bad}: {}", said(&run));
    }
}

// Its partners are fine with nobody on the other side of the slow way: it is the way.
#[test]
fn a_way_that_is_slow_for_others_too_is_no_suspicion_by_name() {
    // Leaves of two; the link inside the first one is bad too.
    let run = Ways::host(6).run(|a, b, _| match (a, b) {
        (0, 1) => 0.04,
        _ if a / 2 != b / 2 => 0.002,
        _ => 1.0,
    });
    assert_eq!((blamed(&run), suspected(&run)), (BTreeSet::new(), BTreeSet::new()), "{}", said(&run));
}

// How much is left of what no longer works says nothing.
#[test]
fn a_dead_node_is_named_though_some_bytes_came_through_once() {
    for bad in 0..5 {
        for other in (0..5).filter(|other| *other != bad) {
            let run = Ways::host(5).run(|a, b, _| match (a, b) {
                _ if a != bad && b != bad => 1.0,
                _ if a == other || b == other => 0.003,
                _ => 0.0,
            });
            assert_eq!(blamed(&run), [bad].into(), "{bad} {other}: {}", said(&run));
        }
    }
}

/// Below which of two leaves: those of `small`, or the rest.
fn across(small: &[NodeId], a: NodeId, b: NodeId) -> bool {
    small.contains(&a) != small.contains(&b)
}

// The nodes of a leaf stand apart in the job, and nobody knows: seen from everywhere else they look like so many bad nodes.
#[test]
fn two_below_one_leaf_that_stand_apart_in_the_job_are_not_blamed_for_a_slow_way() {
    for (size, small) in [(6, vec![0, 3]), (8, vec![1, 5]), (9, vec![0, 4, 8]), (12, vec![2, 9])] {
        let run = Ways::host(size).run(|a, b, _| if across(&small, a, b) { 0.002 } else { 1.0 });
        assert_eq!(blamed(&run), BTreeSet::new(), "{small:?} of {size}: {}", said(&run));
        let run = Ways::h200(size).run(|a, b, _| if across(&small, a, b) { 180.0 } else { 360.0 });
        assert_eq!(blamed(&run), BTreeSet::new(), "{small:?} of {size}: {}", said(&run));
        // As slow with each other, they are.
        let bad: BTreeSet<NodeId> = small.iter().copied().collect();
        let run =
            Ways::host(size).run(|a, b, _| if bad.contains(&a) || bad.contains(&b) { 0.002 } else { 1.0 });
        assert_eq!(blamed(&run), bad, "{small:?} of {size}: {}", said(&run));
    }
}

// The mate of a dead node has nobody else on its side of the slow way, and what it shows with the dead one is the dead one's.
#[test]
fn the_mate_of_a_bad_node_is_not_blamed_for_a_slow_way() {
    let conf = "SwitchName=a Nodes=n[1-2]\nSwitchName=b Nodes=n[3-4]\nSwitchName=c Nodes=n[5-6]";
    for bad in 0..6 {
        for conf in ["", conf] {
            let run = Ways { conf, ..Ways::host(6) }.run(|a, b, _| match (a, b) {
                _ if a == bad || b == bad => 0.002,
                _ if a / 2 != b / 2 => 0.02,
                _ => 1.0,
            });
            assert!(blamed(&run).is_subset(&[bad].into()), "{bad} {conf}: {}", said(&run));
            assert!(conf.is_empty() || !run.verdict.findings.is_empty());
        }
    }
}

#[test]
fn a_node_with_two_bad_ways_meets_a_third_partner_before_it_is_blamed() {
    for size in [4, 5, 6] {
        for one in 0..size {
            for other in (0..size).filter(|other| *other != one) {
                for third in (0..size).filter(|third| ![one, other].contains(third)) {
                    let bad = |a, b| {
                        [(one, other), (one, third)].map(|(a, b)| (a.min(b), a.max(b))).contains(&(a, b))
                    };
                    let run = Ways::host(size).run(|a, b, _| if bad(a, b) { 0.002 } else { 1.0 });
                    assert_eq!(blamed(&run), BTreeSet::new(), "{one} {other} {third}: {}", said(&run));
                }
            }
        }
    }
}

// A collective that gives out has no size: it misses all of them.
#[test]
fn a_node_with_which_a_collective_gave_out_is_named_by_what_it_does_with_others() {
    for bad in 0..6 {
        for dead in (0..6).filter(|dead| *dead != bad) {
            let run = Ways::h200(6).run(|a, b, _| match (a, b) {
                _ if a != bad && b != bad => 360.0,
                _ if a == dead || b == dead => 0.0,
                _ => 3.0,
            });
            assert_eq!(blamed(&run), [bad].into(), "{bad} {dead}: {}", said(&run));
        }
    }
}

// One that is bad by itself is drained, however many are suspected beside it for what lies between nodes.
#[test]
fn suspects_of_the_network_do_not_keep_a_slow_processor_in_service() {
    let way = |a: NodeId, b: NodeId, _: usize| match (a, b) {
        (0..4, 11..) | (2, 3) | (0, 1) => 0.04,
        (0..4, _) => 0.008,
        _ => 1.0,
    };
    let ways = Ways { checks: &[GemmFlops, AllReduce2], caps: CAPS, slow: Some(12), ..Ways::host(13) };
    let run = ways.run(way);
    assert_eq!(run.verdict.outcome, Outcome::Fail, "{}", said(&run));
    assert_eq!(blamed(&run), [12].into(), "{}", said(&run));
    assert_eq!(suspected(&run), [0, 1, 2, 3].into(), "{}", said(&run));
}

// What a node was blamed for with all that takes is not gone through again by the next check.
#[test]
fn a_second_check_of_pairs_is_shorter_where_the_first_is_sure() {
    let ways = Ways { checks: &[AllReduce2, MultiAllReduce2], ..Ways::h200(16) };
    for bad in [0, 7, 15] {
        let run = ways.run(|a, b, _| if a == bad || b == bad { 180.0 } else { 360.0 });
        assert_eq!(blamed(&run), [bad].into(), "{}", said(&run));
        let rounds = |check| run.results.iter().filter(|one| one.round.check == check).count();
        assert!(rounds(MultiAllReduce2) < rounds(AllReduce2), "{}", said(&run));
        // Both name it.
        let named =
            |check| run.verdict.findings.iter().any(|one| one.check == Some(check) && one.is_part_fault());
        assert!(named(AllReduce2) && named(MultiAllReduce2), "{}", said(&run));
    }
}
