//! Runs that end early and results that are missing: what is said of them, of few nodes and of a thousand.

use std::collections::BTreeSet;

use crate::simulated::{Job, NO_CAPS, Run, suite};
use diag::action::{Case, decide};
use diag::check::ALL;
use diag::check::CheckName::{self, AllGather2, AllReduce, AllReduce1, AllReduce2, GemmFlops};
use diag::conclude::verdict;
use diag::facts::Engine;
use diag::measurement::Subject;
use diag::policy::Policy;
use diag::report::{MeasuredOn, Report, RunId, phase_line, user_lines};
use diag::request::FailAction;
use diag::round::{NodeOutcome, RoundResult};
use diag::verdict::{FaultClass, Finding, Outcome, Status};
use jiff::Timestamp;
use proptest::prelude::*;

fn all() -> Vec<CheckName> {
    ALL.iter().map(|spec| spec.name).collect()
}

fn report(job: &Job, run: &Run) -> Report {
    let (roster, policy) = (job.roster(), Policy::default());
    let decision = decide(Case {
        fail_action: FailAction::Fail,
        site_checks: &BTreeSet::new(),
        policy: &policy.actions,
        job: None,
        unread: false,
        roster: &roster,
        verdict: &run.verdict,
        job_id: 12,
        check_number: 1,
    });
    let id = RunId {
        job_id: 12,
        cluster: "c".into(),
        check_number: 1,
        engine: Engine::Host,
        hardware: MeasuredOn::default(),
    };
    Report::new(&id, &roster, &run.verdict, &decision, (Timestamp::UNIX_EPOCH, Timestamp::UNIX_EPOCH))
}

// E09: which check it was, in which phase; J15: what never ran has not passed.
#[test]
fn a_run_that_ran_out_of_time_says_where_it_stood() {
    let job = Job::of(4);
    let checks = all();
    let whole = job.run(&checks);
    for rounds in 0..whole.results.len() {
        let run = job.run_until(&checks, rounds, "the time of 60 s ran out");
        let stood = whole.results[rounds].round.check;
        assert!(run.verdict.outcome == Outcome::Fail && run.verdict.timed_out, "{rounds}");
        let of_run = |one: &&Finding| one.subject == Subject::Run && one.status == Status::Fail;
        let ended = run.verdict.findings.iter().find(of_run).unwrap();
        assert_eq!((ended.check, ended.phase), (Some(stood), stood.spec().phase), "{rounds}");
        assert_eq!(ended.class, Some(FaultClass::Timeout));
        let left = checks.iter().filter(|check| **check >= stood).map(ToString::to_string);
        let left = left.collect::<Vec<_>>().join(", ");
        assert_eq!(ended.message, format!("the time of 60 s ran out; not finished: {left}"));
        let later = |one: &&Finding| one.check > Some(stood);
        assert_eq!(run.verdict.findings.iter().find(later), None, "{rounds}");
        assert!(!run.verdict.findings.iter().any(Finding::is_part_fault));
        let lines = user_lines(&report(&job, &run), "here");
        assert!(lines.iter().any(|line| line.contains(&stood.to_string())), "{lines:?}");
    }
}

// E09: the check that hung, and with whom.
#[test]
fn a_node_that_hung_is_told_with_its_check_and_its_partner() {
    for hung in 0..4 {
        let partner = hung ^ 1;
        let (name, other) = (format!("n{}", hung + 1), format!("n{}", partner + 1));
        let stuck = Job { hung: [hung].into(), ..Job::of(4) };
        let lost = Job { lost_at: [(hung, AllReduce2)].into(), ..Job::of(4) };
        for (job, status) in [(stuck, Status::Fail), (lost, Status::Error)] {
            let run = job.run(&[AllReduce2]);
            let told: Vec<&Finding> =
                run.verdict.findings.iter().filter(|one| one.status == status).collect();
            let [one] = told.as_slice() else { panic!("{told:#?}") };
            assert_eq!((one.check, one.phase), (Some(AllReduce2), AllReduce2.spec().phase));
            assert_eq!(one.peers, [partner], "{one:#?}");
            let message = &one.message;
            for words in [&name, &other, "all_reduce_2"] {
                assert!(message.contains(words), "no {words} in {message}");
            }
            let item = &report(&job, &run).items;
            assert!(item.iter().any(|item| item.message == *message && item.peers == [other.clone()]));
        }
    }
    // Alone or together with all it has no partner to name.
    for check in [GemmFlops, AllReduce1, AllReduce] {
        let run = Job { hung: [2].into(), ..Job::of(4) }.run(&[check]);
        let one = run.verdict.findings.iter().find(|one| one.status == Status::Fail).unwrap();
        assert!(one.peers.is_empty() && one.message.contains("n3: "), "{one:#?}");
    }
}

// M11: a slow pair, and its node, are told when their phase is over, not when all is.
#[test]
fn a_phase_that_is_over_says_who_is_slow_while_the_next_is_measured() {
    let checks = [GemmFlops, AllReduce2, AllReduce];
    let nodes = Job { slow_network: [2].into(), ..Job::of(4) };
    let pair = Job { slow_links: [(0, 1)].into(), ..Job::of(4) };
    for (job, who) in [(nodes, "(1 FAIL): n3"), (pair, "(1 FAIL): n1 - n2")] {
        let whole = job.run(&checks);
        let of_pairs = whole.results.iter().take_while(|result| result.round.check <= AllReduce2).count();
        assert!(of_pairs < whole.results.len(), "something is left to measure");
        let so_far = whole.results[..of_pairs].to_vec();
        let verdict = verdict(&job.suite(&checks), &job.roster(), &so_far, NO_CAPS, None);
        let line = phase_line(&verdict, AllReduce2.spec().phase).unwrap();
        assert!(line.starts_with("TwoNodeCommCheck: FAIL all_reduce_2 ") && line.ends_with(who), "{line}");
        let line = phase_line(&verdict, GemmFlops.spec().phase).unwrap();
        assert_eq!(line, "DeviceCheck: PASS gemm_flops");
    }
}

// D05, and A33: each with its name, however many.
#[test]
fn each_missing_result_of_a_thousand_nodes_is_named() {
    let job = Job {
        absent: (0..1000).step_by(97).collect(),
        lost_at: (1..1000).step_by(211).map(|node| (node, AllGather2)).collect(),
        errors: (2..1000).step_by(333).collect(),
        ..Job::of(1000)
    };
    let run = job.run(&[AllGather2]);
    assert_eq!(run.verdict.outcome, Outcome::Error, "{}", run.verdict.summary);
    let missing: BTreeSet<u32> =
        job.absent.iter().chain(job.lost_at.keys()).chain(&job.errors).copied().collect();
    let report = report(&job, &run);
    let told: Vec<_> = report.items.iter().filter(|item| item.status == Status::Error).collect();
    let names: BTreeSet<String> = missing.iter().map(|node| format!("n{}", node + 1)).collect();
    assert_eq!(told.iter().map(|item| item.subject.name.clone()).collect::<BTreeSet<_>>(), names);
    assert_eq!(told.len(), names.len(), "each once");
    assert!(told.iter().all(|item| item.message.contains(&item.subject.name)));
    // Everybody else has a result.
    let passed = run.verdict.findings.iter().filter(|one| one.status == Status::Pass);
    let measured: BTreeSet<u32> = passed.flat_map(|one| one.subject.nodes()).collect();
    assert_eq!(measured.len(), 1000 - missing.len());
    // A screen does not hold all of them; it says how many more there are.
    let lines = user_lines(&report, "here");
    assert!(lines.len() < 14, "{}", lines.len());
    assert!(
        lines.iter().any(|line| *line == format!("{} more in the report", names.len() - 8)),
        "{lines:#?}"
    );
}

/// The same results as another node may hold them: through JSON, and what each node brought in another order.
fn elsewhere(results: &[RoundResult]) -> Vec<RoundResult> {
    let text = serde_json::to_string(results).unwrap();
    let mut results: Vec<RoundResult> = serde_json::from_str(&text).unwrap();
    for outcome in results.iter_mut().flat_map(|result| result.outcomes.values_mut()) {
        if let NodeOutcome::Measured(numbers) = outcome {
            numbers.reverse();
        }
    }
    results
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    // F15: a deputy that takes over tells what the leader would have told.
    #[test]
    fn the_same_results_give_the_same_report_to_the_byte(
        size in 1_u32..12,
        slow_network in proptest::collection::btree_set(0_u32..12, 0..3),
        slow_processor in proptest::collection::btree_set(0_u32..12, 0..2),
        slow_rails in proptest::collection::btree_set((0_u32..12, 0_u32..2), 0..2),
        lossy in proptest::collection::btree_set(0_u32..12, 0..2),
        blocked in proptest::collection::btree_set((0_u32..12, 0_u32..12), 0..3),
        absent in proptest::collection::btree_set(1_u32..12, 0..2),
        hung in proptest::collection::btree_set(0_u32..12, 0..2),
        once in proptest::collection::btree_set(0_u32..12, 0..2),
    ) {
        let job = Job {
            slow_network, slow_processor, slow_rails, lossy, blocked, absent, hung, once, ..Job::of(size)
        };
        let run = job.run(&all());
        let results = elsewhere(&run.results);
        let verdict = verdict(&suite(&all()), &job.roster(), &results, NO_CAPS, None);
        let again = Run { verdict, results };
        let [one, other] = [&run, &again].map(|run| serde_json::to_string(&report(&job, run)).unwrap());
        prop_assert_eq!(one, other);
    }
}
