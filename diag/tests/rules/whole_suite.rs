//! All thirteen checks together: rails, the fabric, and checks that disagree.

use std::collections::BTreeSet;

use crate::simulated::{Job, Run};
use diag::check::CheckName::{self, AllReduce, AllReduce2, MultiAllReduce, MultiAllReduce2};
use diag::check::{ALL, Phase, Scope};
use diag::measurement::Subject;
use diag::verdict::{FaultClass, Finding, Outcome, Status};

fn all() -> Vec<CheckName> {
    ALL.iter().map(|spec| spec.name).collect()
}

fn failed(run: &Run) -> Vec<&Finding> {
    run.verdict.findings.iter().filter(|one| one.status == Status::Fail).collect()
}

#[test]
fn a_healthy_job_passes_all_in_order() {
    for size in [2, 3, 4, 5, 7, 16] {
        let run = Job::of(size).run(&all());
        assert_eq!(run.verdict.outcome, Outcome::Pass, "{size}: {:#?}", run.verdict.findings);
        let order: Vec<CheckName> = run.results.iter().map(|result| result.round.check).collect();
        assert!(order.is_sorted(), "{order:?}");
        let passed: BTreeSet<CheckName> = run.verdict.findings.iter().filter_map(|one| one.check).collect();
        assert_eq!(passed.len(), ALL.len());
    }
}

#[test]
fn one_node_alone_skips_what_needs_others() {
    let run = Job::of(1).run(&all());
    assert_eq!(run.verdict.outcome, Outcome::Pass);
    let skipped = run.verdict.findings.iter().filter(|one| one.status == Status::Skip);
    let skipped: Vec<CheckName> = skipped.filter_map(|one| one.check).collect();
    let between = ALL.iter().filter(|spec| spec.scope != Scope::Node).map(|spec| spec.name);
    assert_eq!(skipped, between.collect::<Vec<_>>());
}

#[test]
fn a_bad_rail_is_named_at_every_position() {
    for check in [MultiAllReduce2, MultiAllReduce] {
        for size in [3, 4, 5, 8] {
            for node in 0..size {
                for rail in 0..2 {
                    let run = Job { slow_rails: [(node, rail)].into(), ..Job::of(size) }.run(&[check]);
                    let subjects: Vec<&Subject> = failed(&run).iter().map(|one| &one.subject).collect();
                    let wanted = Subject::Rail { node, index: rail };
                    assert_eq!(subjects, [&wanted], "{check} {size}: {:#?}", run.verdict.findings);
                    assert!(failed(&run)[0].message.starts_with(&format!("n{}/rail{rail}", node + 1)));
                }
            }
        }
    }
}

#[test]
fn a_node_that_is_bad_on_every_rail_is_named_once_as_a_whole() {
    let run = Job { slow_network: [2].into(), ..Job::of(5) }.run(&[MultiAllReduce2]);
    let subjects: Vec<&Subject> = failed(&run).iter().map(|one| &one.subject).collect();
    assert_eq!(subjects, [&Subject::Node { node: 2 }]);
}

#[test]
fn an_all_node_miss_brings_pairs_and_names_the_node() {
    for size in [3, 4, 7] {
        for bad in 0..size {
            let run = Job { slow_network: [bad].into(), ..Job::of(size) }.run(&[AllReduce]);
            let subjects: Vec<&Subject> = failed(&run).iter().map(|one| &one.subject).collect();
            assert_eq!(subjects, [&Subject::Node { node: bad }], "{size}: {:#?}", run.verdict.findings);
        }
    }
}

#[test]
fn what_only_all_nodes_meet_is_the_fabrics_and_drains_nobody() {
    for check in [AllReduce, MultiAllReduce] {
        let run = Job { slow_fabric: true, ..Job::of(6) }.run(&[check]);
        assert_eq!(run.verdict.outcome, Outcome::Fail);
        for one in failed(&run) {
            assert_eq!(one.class, Some(FaultClass::Fabric), "{one:#?}");
            assert!(one.subject.nodes().is_empty());
        }
    }
    // Two nodes are all there is: nothing tells fabric and nodes apart.
    let run = Job { slow_fabric: true, ..Job::of(2) }.run(&[AllReduce]);
    assert_eq!(run.verdict.outcome, Outcome::Suspect, "{:#?}", run.verdict.findings);
}

#[test]
fn one_bad_link_of_the_ring_is_named_and_several_are_what_they_share() {
    for (a, b) in [(0, 1), (1, 2), (2, 3), (4, 5), (0, 5)] {
        let run = Job { slow_links: [(a, b)].into(), ..Job::of(6) }.run(&[AllReduce]);
        let subjects: Vec<&Subject> = failed(&run).iter().map(|one| &one.subject).collect();
        assert_eq!(subjects, [&Subject::Link { a, b }], "{:#?}", run.verdict.findings);
    }
    // Two leaves of three nodes: what crosses the spine is slow.
    let run = Job { slow_links: [(2, 3), (0, 5)].into(), ..Job::of(6) }.run(&[AllReduce]);
    let spine = failed(&run);
    assert_eq!((spine.len(), spine[0].class), (1, Some(FaultClass::Fabric)), "{:#?}", run.verdict.findings);
    assert!(spine[0].message.contains("n1-n6 and n3-n4 are slow as well"), "{}", spine[0].message);
}

#[test]
fn every_edge_of_the_ring_is_looked_at_with_odd_numbers_too() {
    for size in [3, 4, 5, 7] {
        for a in 0..size {
            let b = (a + 1) % size;
            let (a, b) = (a.min(b), a.max(b));
            let run = Job { slow_links: [(a, b)].into(), ..Job::of(size) }.run(&[AllReduce]);
            let subjects: Vec<&Subject> = failed(&run).into_iter().map(|one| &one.subject).collect();
            assert_eq!(subjects, [&Subject::Link { a, b }], "{a}-{b} of {size}: {:#?}", run.results);
        }
    }
}

#[test]
fn a_single_slow_moment_of_all_nodes_is_no_fault() {
    let run = Job { once: [1].into(), ..Job::of(4) }.run(&[AllReduce]);
    assert_eq!(run.verdict.outcome, Outcome::Pass);
    assert_eq!(run.results.len(), 2);
}

#[test]
fn a_lost_or_broken_node_does_not_keep_the_others_from_measuring_together() {
    let lost = Job { lost_at: [(1, AllReduce)].into(), ..Job::of(5) }.run(&[AllReduce]);
    assert_eq!(lost.verdict.outcome, Outcome::Error);
    let broken = Job { errors: [1].into(), ..Job::of(5) }.run(&[AllReduce]);
    for run in [lost, broken] {
        let fine = run
            .verdict
            .findings
            .iter()
            .any(|one| one.status == Status::Pass && one.subject == Subject::Fabric);
        assert!(fine, "{:#?}", run.verdict.findings);
    }
}

#[test]
fn checks_that_disagree_are_one_explained_verdict() {
    // The rail is slow only where each rail is measured by itself.
    let run = Job { slow_rails: [(1, 0)].into(), ..Job::of(4) }.run(&[AllReduce2, MultiAllReduce2]);
    let failed = failed(&run);
    assert_eq!(failed.len(), 1);
    assert!(failed[0].message.ends_with("; fine in all_reduce_2"), "{}", failed[0].message);
}

#[test]
fn a_bad_node_is_named_once_a_check_and_sits_out_later_phases() {
    let run = Job { slow_network: [3].into(), ..Job::of(6) }.run(&all());
    let nodes: BTreeSet<_> = failed(&run).iter().flat_map(|one| one.subject.nodes()).collect();
    assert_eq!(nodes, [3].into());
    let all_node =
        run.results.iter().filter(|result| result.round.check.spec().phase == Phase::AllNodeCommCheck);
    assert!(
        all_node.clone().count() == ALL.iter().filter(|spec| spec.phase == Phase::AllNodeCommCheck).count()
            && all_node.clone().all(|result| !result.round.participants().contains(&3))
    );
}
