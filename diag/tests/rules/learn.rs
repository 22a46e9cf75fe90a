//! Limits learned from the reports of simulated jobs, made by the code that makes reports: a healthy part keeps them, one that
//! is half as fast misses them, and what says too little is refused.

use crate::simulated::fault::Fault;
use crate::simulated::machine::{Machine, SIZES};
use crate::simulated::noise::Noise;
use crate::simulated::{Job, NO_CAPS};
use diag::baseline::{Baselines, Conditions};
use diag::baseline_learn::{LEAST_JOBS, LearnError, Learned, learn};
use diag::baseline_lint::lint;
use diag::check::CheckName::{
    self, AllReduce, AllReduce1, AllReduce2, GemmFlops, KernelLaunch, MultiAllReduce2,
};
use diag::conclude::verdict;
use diag::facts::Engine;
use diag::judge::Suite;
use diag::measurement::Metric;
use diag::plan::Settled;
use diag::report::{MeasuredOn, Report, RunId};
use diag::round::{RoundResult, Step};
use diag::verdict::{Outcome, Status};
use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;

const CHECKS: &[CheckName] = &[GemmFlops, KernelLaunch, AllReduce1, AllReduce2, MultiAllReduce2, AllReduce];

fn job(seed: u64, size: u32) -> Job {
    Job::on(Machine::H200, size, Noise { seed, spread: 0.03, sigma: 0.01, outliers: 0.005 })
}

/// The report of a job, as it reads back from its file.
fn report(job: &Job, id: u32) -> Report {
    let run = job.run(CHECKS);
    let number = RunId {
        job_id: id,
        cluster: "c".into(),
        check_number: 1,
        engine: job.machine.engine,
        hardware: MeasuredOn::of(&job.suite(CHECKS)),
    };
    let at = Timestamp::UNIX_EPOCH + SignedDuration::from_hours(i64::from(id));
    let report = Report::new(&number, &job.roster(), &run.verdict, &job.decision(&run), (at, at));
    serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap()
}

fn reports(seed: u64, jobs: u32) -> Vec<Report> {
    (0..jobs).map(|one| report(&job(seed * 1000 + u64::from(one), 4), one + 1)).collect()
}

fn shipped(engine: Engine, gpu: Option<&str>) -> Option<Baselines> {
    assert_eq!((engine, gpu), (Engine::Cuda, Some("NVIDIA H200")));
    Some(Baselines::parse(include_str!("../../../conf/baselines/h200.toml")).unwrap())
}

fn learned(reports: &[Report]) -> Learned {
    let learned = learn(reports, None, shipped).unwrap();
    // As a file of the form that ships.
    let file = Baselines::parse(&learned.baselines.to_toml().unwrap()).unwrap();
    assert_eq!(file, learned.baselines);
    assert_eq!(lint(&file), []);
    for spec in diag::check::ALL {
        let limit = file.limits.iter().any(|limit| limit.check == spec.name);
        assert!(limit != file.none.iter().any(|none| none.check == spec.name), "{}", spec.text);
    }
    learned
}

fn value(file: &Baselines, check: CheckName, metric: Metric, bytes: Option<u64>) -> f64 {
    let at = Conditions { gpus: Some(8), bytes, nvls: Some(false), network: None };
    let limit = file.limit_at(check, metric, &at).unwrap();
    assert!(limit.source.contains("learned"), "{check}: {limit:?}");
    limit.value
}

#[test]
fn a_file_has_what_was_learned_and_keeps_the_rest() {
    let learned = learned(&reports(1, 12));
    let file = &learned.baselines;
    assert_eq!((file.gpu.as_deref(), file.engine), (Some("H200"), Engine::Cuda));
    for (check, metric, bytes, usual) in [
        (GemmFlops, Metric::Flops, None, 700.0),
        (GemmFlops, Metric::Fp8Flops, None, 1330.0),
        (AllReduce1, Metric::Busbw, Some(SIZES[2]), 357.0),
        (AllReduce2, Metric::Busbw, Some(SIZES[0]), 57.6),
        (MultiAllReduce2, Metric::Busbw, Some(SIZES[1]), 36.5),
    ] {
        let share = value(file, check, metric, bytes) / usual;
        assert!((0.8..0.91).contains(&share), "{check} {metric:?} {bytes:?}: {share}");
    }
    let launch = value(file, KernelLaunch, Metric::Launch, None);
    assert!((4.5..6.0).contains(&launch), "{launch}");
    // Nothing is learned of all nodes at once; limits for NVLink multicast stay.
    assert!(
        learned.left_out.iter().any(|line| line.starts_with("all_reduce: what all nodes")),
        "{learned:?}"
    );
    let at = Conditions { gpus: Some(8), bytes: Some(8 << 30), nvls: Some(true), network: None };
    assert!(file.limit_at(AllReduce1, Metric::Busbw, &at).unwrap().source.contains("Azure"));
    assert!(learned.limits < file.limits.len());
    let gemm =
        file.limits.iter().find(|limit| limit.metric == Metric::Fp8Flops && limit.gpus == Some(8)).unwrap();
    for part in [
        "90 % of the median",
        "384 numbers of 12 jobs on 4 nodes, 1970-01-01 to 1970-01-01",
        "scaled MAD",
        "worst",
    ] {
        assert!(gemm.source.contains(part), "{}", gemm.source);
    }
}

#[test]
fn too_few_mixed_or_senseless_reports_are_refused() {
    let good = reports(2, 12);
    let error = |reports: &[Report], gpu: Option<&str>| learn(reports, gpu, |_, _| None).unwrap_err();
    assert!(matches!(error(&[], None), LearnError::NothingPassed { reports: 0 }));
    let too_few = error(&good[..LEAST_JOBS - 1], None).to_string();
    assert!(too_few.contains("9 jobs on 4 nodes (needed: 10 jobs, 3 nodes and 20 numbers"), "{too_few}");
    // The same report many times is one.
    let same: Vec<Report> = (0..30).map(|_| good[0].clone()).collect();
    assert!(error(&same, None).to_string().contains("1 jobs on 4 nodes"));
    // One node taught everything.
    let alone: Vec<Report> = (0..12).map(|one| report(&job(one.into(), 1), one + 1)).collect();
    assert!(error(&alone, None).to_string().contains("on 1 nodes"));
    let mut mixed = good.clone();
    mixed[3].engine = Engine::Host;
    let told = error(&mixed, None).to_string();
    assert!(told.contains("several engines (11 of cuda and 1 of host)"), "{told}");
    let mut mixed = good.clone();
    mixed[3].hardware.as_mut().unwrap().gpu = Some("NVIDIA H100 80GB HBM3".into());
    let told = error(&mixed, None).to_string();
    assert!(told.contains("11 of NVIDIA H200") && told.contains("--gpu"), "{told}");
    assert!(learn(&mixed, Some("H200"), shipped).is_ok());
    let told = error(&mixed, Some("B200")).to_string();
    assert!(told.contains("B200") && told.contains("1 of NVIDIA H100 80GB HBM3"), "{told}");
    // Those that did not pass, or are of a version that does not say on what it measured, teach nothing.
    let mut failed = good.clone();
    failed.iter_mut().for_each(|one| one.outcome = Outcome::Fail);
    assert!(matches!(error(&failed, None), LearnError::NothingPassed { reports: 12 }));
    let mut early = good.clone();
    early.iter_mut().for_each(|one| one.hardware = None);
    assert!(matches!(error(&early, None), LearnError::NothingPassed { .. }));
    // Faster than the chip, and half of the parts at half the speed.
    let mut fast = good.clone();
    let rates = |reports: &mut Vec<Report>, factor: &dyn Fn(usize) -> f64| {
        for (place, item) in reports.iter_mut().flat_map(|one| &mut one.items).enumerate() {
            item.rates.iter_mut().for_each(|rate| rate.value *= factor(place));
        }
    };
    rates(&mut fast, &|_| 2.0);
    let learned = learn(&fast, None, |_, _| None).unwrap();
    assert!(
        learned.left_out.iter().any(|line| line.contains("no part can reach it")),
        "{:?}",
        learned.left_out
    );
    assert!(learned.baselines.limits.iter().all(|limit| limit.metric != Metric::Flops));
    let mut wide = good;
    rates(&mut wide, &|place| if place % 2 == 0 { 0.5 } else { 1.0 });
    let learned = learn(&wide, None, |_, _| None).unwrap();
    assert!(learned.left_out.iter().any(|line| line.contains("scatter too much")), "{:?}", learned.left_out);
}

#[test]
fn a_model_that_nobody_knows_gets_a_file_of_its_own_name() {
    let mut reports = reports(3, 12);
    reports.iter_mut().for_each(|one| one.hardware.as_mut().unwrap().gpu = Some("NVIDIA L40S".into()));
    let learned = learn(&reports, None, |_, _| None).unwrap();
    assert_eq!(learned.baselines.gpu.as_deref(), Some("L40S"));
    assert!(lint(&learned.baselines).iter().all(|one| !one.is_error()));
    assert_eq!(Baselines::for_gpu([&learned.baselines], "NVIDIA L40S"), Some(&learned.baselines));
}

/// The job under these limits, in the loop of `prolog/src/suite.rs`: the outcome, and how many failed.
fn judged(file: &Baselines, job: &Job) -> (Outcome, usize) {
    let (roster, mut settled, mut results) = (job.roster(), Settled::default(), Vec::new());
    let suite = Suite { baselines: vec![file.clone()], ..job.suite(&[GemmFlops, AllReduce1]) };
    while let Step::Measure(round) = settled.next(&suite, &roster, &results) {
        let outcomes = job.measured(&round, &results);
        results.push(RoundResult { round, outcomes });
    }
    let verdict = verdict(&suite, &roster, &results, NO_CAPS, None);
    (verdict.outcome, verdict.findings.iter().filter(|one| one.status == Status::Fail).count())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]
    /// On a job of two nodes, where peers say nothing of a node: only the learned limits do.
    #[test]
    fn a_healthy_part_keeps_what_was_learned_and_a_half_as_fast_one_misses(seed in 0..1_000_000_u64) {
        let file = learned(&reports(seed, 12)).baselines;
        for fresh in 0..5 {
            let healthy = job(seed ^ (fresh << 32) ^ 0xffff, 2);
            prop_assert_eq!(judged(&file, &healthy), (Outcome::Pass, 0));
        }
        let gpu = job(seed, 2).with(Fault::Gpu { node: 1, gpu: 5, left: 0.5 });
        let inside = job(seed, 2).with(Fault::Inside { node: 0, left: 0.5 });
        for half in [gpu, inside] {
            let (outcome, faults) = judged(&file, &half);
            prop_assert!(outcome == Outcome::Fail && faults > 0, "{outcome} {faults}");
        }
    }
}
