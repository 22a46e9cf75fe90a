//! Other traffic on the ports of a node: it is recognised, named as the cause of slow numbers, and nobody is drained for it.

use std::collections::BTreeSet;

use crate::readings::node;
use crate::simulated::Run;
use crate::simulated::catalogue::{CAPS, drained, job};
use crate::simulated::fault::Fault;
use diag::check::CheckName::{self, AllReduce, AllReduce2, MultiAllReduce2};
use diag::conclude::verdict;
use diag::gpu_facts::reading::Moved;
use diag::gpu_facts::{Compared, Fact, FactKind, Quiet, other_traffic};
use diag::measurement::Subject;
use diag::round::NodeOutcome;
use diag::verdict::{Outcome, Status};

/// 400 Gbit/s for 50 ms.
const ALL: u64 = 2_500_000_000;

/// Port 1 of `mlx5_<n>` for each of these.
fn moved(bytes: &[u64]) -> Vec<Moved> {
    (0..).zip(bytes).map(|(n, bytes)| Moved { device: format!("mlx5_{n}"), port: 1, bytes: *bytes }).collect()
}

fn quiet(first: &[u64], second: &[u64]) -> Quiet {
    Quiet { first: moved(first), second: moved(second), apart_ms: 50 }
}

fn facts(before: &Quiet, after: &Quiet) -> Vec<Fact> {
    other_traffic((2, "n3"), &Compared::from(&node("n3")), &BTreeSet::new(), before, after)
}

#[test]
fn traffic_counts_from_a_twentieth_of_the_ports_rate() {
    let idle = quiet(&[7, 7, 7, 7, 0], &[7, 7, 7, 7, 0]);
    assert_eq!(facts(&idle, &idle), []);
    for (share, told) in [(0, false), (4, false), (6, true), (40, true)] {
        let busy = quiet(&[0, 1000, 0, 0, 0], &[0, 1000 + ALL / 100 * share, 0, 0, 0]);
        for (before, after) in [(&busy, &idle), (&idle, &busy), (&busy, &busy)] {
            let facts = facts(before, after);
            assert_eq!(facts.len(), usize::from(told), "{share} %: {facts:?}");
            for fact in facts {
                assert_eq!(fact.kind, FactKind::Cause);
                assert_eq!(fact.subject, Subject::Nic { node: 2, name: "mlx5_1".into() });
                assert!(fact.words.contains("mlx5_1 port 1 carries other traffic: "), "{}", fact.words);
                assert!(
                    fact.words.contains(&format!("{share} % of its 400 Gbit/s")) || before == &idle,
                    "{}",
                    fact.words
                );
            }
        }
    }
}

// F14: a counter that begins anew, or is not there, is no traffic.
#[test]
fn counters_that_make_no_sense_are_no_traffic() {
    for (first, second) in [
        (&[ALL, ALL][..], &[0, 0][..]),
        (&[], &[ALL, ALL]),
        (&[0, 0], &[]),
        (&[u64::MAX, 0], &[0, u64::MAX / 1_000_000_000_000]),
    ] {
        let odd = quiet(first, second);
        assert_eq!(facts(&odd, &odd), [], "{first:?} {second:?}");
    }
    let at_once = Quiet { apart_ms: 0, ..quiet(&[0], &[ALL]) };
    assert_eq!(facts(&at_once, &at_once), []);
}

#[test]
fn ports_that_the_gpus_do_not_use_say_nothing() {
    let storage = |named: &[&str]| {
        let mut reading = node("n3");
        reading.machine.rdma[3].ports[0].rate_gbit_s = Some(100.0);
        let named = named.iter().map(|name| (*name).to_owned()).collect();
        let busy = quiet(&[0; 4], &[0, 0, 0, ALL / 5]);
        other_traffic((2, "n3"), &Compared::from(&reading), &named, &busy, &busy).len()
    };
    // A slower port is not for the GPUs, unless the policy names it.
    assert_eq!((storage(&[]), storage(&["mlx5_0"]), storage(&["mlx5_3"])), (0, 0, 1));
}

/// The same run where a node sees other traffic in each of its rounds.
fn disturbed(job: &crate::simulated::Job, run: &Run, checks: &[CheckName]) -> Run {
    let busy = quiet(&[0; 4], &[0, ALL / 5, 0, 0]);
    let facts = facts(&busy, &busy);
    let mut results = run.results.clone();
    for outcome in results.iter_mut().filter_map(|result| result.outcomes.get_mut(&2)) {
        if let NodeOutcome::Measured(numbers) = outcome
            && let Some(first) = numbers.first_mut()
        {
            first.facts.extend(facts.clone());
        }
    }
    Run { verdict: verdict(&job.suite(checks), &job.roster(), &results, CAPS, None), results }
}

#[test]
fn a_node_that_other_traffic_slows_is_an_error_that_says_so() {
    for (checks, fault) in [
        (&[AllReduce2][..], Fault::Network { node: 2, left: 0.6 }),
        (&[MultiAllReduce2], Fault::Rail { node: 2, rail: 1, left: 0.6 }),
        (&[AllReduce], Fault::Network { node: 2, left: 0.2 }),
    ] {
        let job = job(6, 3).with(fault);
        let run = job.run_with(checks, CAPS);
        assert_eq!(drained(&job, &run), [2].into(), "without a cause: {}", run.verdict.summary);
        let run = disturbed(&job, &run, checks);
        assert_eq!(drained(&job, &run), BTreeSet::new());
        assert_eq!(run.verdict.outcome, Outcome::Error, "{}", run.verdict.summary);
        let told = |status: Status| {
            run.verdict.findings.iter().filter(|one| one.status == status).collect::<Vec<_>>()
        };
        assert!(told(Status::Fail).is_empty() && told(Status::Suspect).is_empty());
        let words = &told(Status::Error)[0].message;
        assert!(
            words.contains("no fault of a part: n3: mlx5_1 port 1 carries other traffic: 20 %"),
            "{words}"
        );
    }
    // What is slow at another node is not excused by it.
    let job = job(6, 3).with(Fault::Network { node: 4, left: 0.6 });
    let run = disturbed(&job, &job.run_with(&[AllReduce2], CAPS), &[AllReduce2]);
    assert_eq!(drained(&job, &run), [4].into(), "{}", run.verdict.summary);
}
