//! Jobs whose leaf switches Slurm knows: a leaf is named and its nodes are not, a node that is alone below its leaf is not
//! drained for what may be the leaf's, and whoever is at fault by itself is named as ever.

use std::collections::BTreeSet;

use crate::simulated::catalogue::{ALL, CAPS, CHECKS, Class, Judged, drained, job, judged};
use crate::simulated::fault::Fault;
use crate::simulated::machine::Machine;
use crate::simulated::{Job, Run};
use diag::check::CheckName::{AllReduce, AllReduce2, GemmFlops, MultiAllReduce2};
use diag::facts::NodeId;
use diag::measurement::Subject;
use diag::verdict::{FaultClass, Finding, Outcome, Status};

/// A job whose leaves have so many nodes.
fn leaves_of(per_leaf: u32, size: u32, seed: u64) -> Job {
    let mut job = job(size, seed).with_topology();
    job.machine = Machine { per_leaf, ..Machine::H200 };
    job
}

fn with_status(run: &Run, status: Status) -> Vec<&Finding> {
    run.verdict.findings.iter().filter(|one| one.status == status).collect()
}

/// The switches that are named.
fn switches(run: &Run) -> BTreeSet<String> {
    let failed = with_status(run, Status::Fail).into_iter();
    failed
        .filter_map(|one| match &one.subject {
            Subject::Switch { name } => {
                assert_eq!(one.class, Some(FaultClass::Fabric));
                Some(name.clone())
            }
            _ => None,
        })
        .collect()
}

#[test]
fn healthy_jobs_pass_whatever_the_leaves_are() {
    for seed in 0..10 {
        for (per_leaf, size) in [(1, 5), (2, 7), (3, 12), (16, 17)] {
            let job = leaves_of(per_leaf, size, seed);
            let run = job.run_with(CHECKS, CAPS);
            assert_eq!(run.verdict.outcome, Outcome::Pass, "seed {seed}: {}", run.verdict.summary);
        }
    }
}

#[test]
fn a_fault_of_each_class_is_named_at_every_place_and_nobody_else() {
    for class in ALL {
        for (per_leaf, size) in [(1, 4), (2, 4), (3, 7)] {
            for place in 0..size {
                let job = class.at(leaves_of(per_leaf, size, u64::from(place)), place, 0.5);
                let run = job.run_with(CHECKS, CAPS);
                let judged = judged(&drained(&job, &run), &class.culprits(&job, place));
                let at =
                    format!("{class:?} at {place} of {size}, {per_leaf} a leaf: {:#?}", run.verdict.summary);
                let sometimes = matches!(class, Class::Intermittent | Class::Begins);
                assert!(judged == Judged::Right || (sometimes && judged == Judged::Undecided), "{at}");
            }
        }
    }
}

// The last row of the table of single faults in docs/trust.md.
#[test]
fn a_node_alone_below_its_leaf_is_not_drained_for_a_spine() {
    for seed in 0..2 {
        for spine in 0..4 {
            let job = Class::Spine.at(job(17, seed), spine, 0.5).with_topology();
            let run = job.run_with(CHECKS, CAPS);
            assert_eq!(drained(&job, &run), BTreeSet::new(), "{}", run.verdict.summary);
        }
    }
}

#[test]
fn a_node_alone_below_its_leaf_is_suspected_for_its_network_and_drained_for_its_gpu() {
    for class in [Class::Network, Class::Port, Class::Leaf] {
        let job = class.at(job(17, 5), 16, 0.5).with_topology();
        let run = job.run_with(CHECKS, CAPS);
        assert_eq!(drained(&job, &run), BTreeSet::new(), "{class:?}: {}", run.verdict.summary);
        assert_eq!(run.verdict.outcome, Outcome::Suspect, "{class:?}: {}", run.verdict.summary);
        let suspects = with_status(&run, Status::Suspect);
        let told = |one: &&Finding| one.subject.nodes() == [16] && one.message.contains("or switch leaf1: ");
        assert!(!suspects.is_empty() && suspects.iter().all(told), "{suspects:#?}");
    }
    let job = Class::SlowGpu.at(job(17, 5), 16, 0.5).with_topology();
    assert_eq!(drained(&job, &job.run_with(CHECKS, CAPS)), [16].into());
}

#[test]
fn a_slow_leaf_is_named_and_its_nodes_are_not() {
    for (per_leaf, size) in [(16, 64), (2, 8), (3, 9), (5, 20)] {
        for leaf in 0..size / per_leaf {
            let job = leaves_of(per_leaf, size, u64::from(leaf)).with(Fault::Leaf { leaf, left: 0.5 });
            let run = job.run_with(&[GemmFlops, AllReduce2, MultiAllReduce2], CAPS);
            let at = format!("leaf {leaf}, {per_leaf} of {size}: {}", run.verdict.summary);
            assert_eq!(switches(&run), [format!("leaf{leaf}")].into(), "{at}");
            assert_eq!((drained(&job, &run), run.verdict.outcome), (BTreeSet::new(), Outcome::Fail), "{at}");
            let blamed = run.verdict.findings.iter().filter(|one| one.status > Status::Error);
            assert!(blamed.into_iter().all(|one| one.subject.nodes().is_empty()), "{at}");
        }
    }
}

#[test]
fn the_uplinks_of_a_leaf_are_told_from_its_nodes_and_links() {
    // Neighbours of the opening round are below one leaf, but for an odd one: all nodes together show it then.
    for (per_leaf, size, checks, left) in [
        (16, 64, &[AllReduce][..], 0.2),
        (4, 12, &[AllReduce], 0.2),
        (3, 12, &[AllReduce2], 0.5),
        (3, 9, &[MultiAllReduce2], 0.5),
    ] {
        for leaf in 0..size / per_leaf {
            let job = leaves_of(per_leaf, size, u64::from(leaf)).with(Fault::Uplinks { leaf, left });
            let run = job.run_with(checks, CAPS);
            let at = format!("leaf {leaf}, {per_leaf} of {size}, {checks:?}: {:#?}", run.verdict.summary);
            assert_eq!(switches(&run), [format!("leaf{leaf}")].into(), "{at}");
            assert_eq!((drained(&job, &run), run.verdict.outcome), (BTreeSet::new(), Outcome::Fail), "{at}");
            let words = &with_status(&run, Status::Fail)[0].message;
            assert!(words.contains(&format!("all {per_leaf} nodes of the job below it missed")), "{words}");
        }
    }
}

#[test]
fn of_two_leaves_alone_neither_is_blamed() {
    for seed in 0..4 {
        let job = leaves_of(3, 6, seed).with(Fault::Uplinks { leaf: 0, left: 0.5 });
        let run = job.run_with(&[AllReduce2, AllReduce], CAPS);
        assert_eq!((drained(&job, &run), switches(&run)), (BTreeSet::new(), BTreeSet::new()));
        assert_eq!(run.verdict.outcome, Outcome::Fail, "{}", run.verdict.summary);
    }
}

#[test]
fn a_bad_node_below_a_bad_leaf_and_one_elsewhere_are_still_named() {
    let elsewhere = Fault::Network { node: 2, left: 0.5 };
    let here = Fault::Network { node: 9, left: 0.2 };
    let uplinks = Fault::Uplinks { leaf: 2, left: 0.5 };
    let job = leaves_of(4, 20, 3).with(uplinks).with(elsewhere).with(here);
    let run = job.run_with(&[AllReduce2, AllReduce], CAPS);
    assert_eq!(drained(&job, &run), [2, 9].into(), "{:#?}", run.verdict.summary);
}

#[test]
fn a_slow_gpu_is_named_beside_a_slow_leaf() {
    let job = leaves_of(4, 16, 8).with(Fault::Leaf { leaf: 1, left: 0.5 });
    let job = job.with(Fault::Gpu { node: 13, gpu: 2, left: 0.5 });
    let run = job.run_with(CHECKS, CAPS);
    assert_eq!((drained(&job, &run), switches(&run)), ([13].into(), ["leaf1".to_owned()].into()));
}

// Who meets whom: one that is fine below its own leaf, and one below another.
#[test]
fn a_suspect_meets_a_good_node_of_its_own_leaf_and_one_of_another() {
    for size in [8, 12, 16] {
        for bad in 0..size {
            let job = leaves_of(4, size, u64::from(bad)).with(Fault::Network { node: bad, left: 0.5 });
            let run = job.run_with(&[AllReduce2], CAPS);
            assert_eq!(drained(&job, &run), [bad].into(), "{}", run.verdict.summary);
            let groups = run.results.iter().flat_map(|result| &result.round.groups);
            let met: BTreeSet<NodeId> = groups
                .filter(|group| group.contains(&bad))
                .flatten()
                .copied()
                .filter(|node| *node != bad)
                .collect();
            let own = met.iter().filter(|node| job.machine.leaf(**node) == job.machine.leaf(bad)).count();
            assert!(own > 0 && own < met.len(), "{bad} of {size} met {met:?}");
        }
    }
}

#[test]
fn one_leaf_for_all_is_as_if_none_were_known() {
    for seed in 0..12 {
        let job = job(12, seed).with(Fault::Network { node: 5, left: 0.5 });
        let checks = [AllReduce2, MultiAllReduce2];
        assert_eq!(job.run_with(&checks, CAPS).results, job.with_topology().run_with(&checks, CAPS).results);
    }
}
