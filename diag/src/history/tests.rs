//! Tests of what a node keeps, and of the rule where its edges are. How often it is wrong is in `diag/tests/rules/history.rs`.

use jiff::{SignedDuration, Timestamp};

use super::*;
use crate::facts::RosterEntry;
use crate::gpu_facts::Fact;
use crate::round::{Purpose, Round};

fn at(days: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_hours(24 * days)
}

fn setting(driver: &str) -> Setting {
    Setting { driver: driver.into(), ..Setting::default() }
}

fn entry(day: i64, value: f64, driver: &str) -> Entry {
    let job_id = u32::try_from(day).unwrap();
    Entry { at: at(day), job_id, value, with: None, setting: setting(driver) }
}

fn series(values: &[f64]) -> Vec<Entry> {
    (0..).zip(values).map(|(day, value)| entry(day, *value, "580")).collect()
}

fn found(values: &[f64], now: f64) -> Option<Decline> {
    let day = i64::try_from(values.len()).unwrap();
    decline(Metric::Flops, &series(values), &entry(day, now, "580"))
}

#[test]
fn three_jobs_in_a_row_are_a_decline_and_two_are_not() {
    let mut values = vec![100.0; 10];
    values.extend([94.0, 94.5]);
    let decline = found(&values, 93.0).unwrap();
    assert_eq!((decline.earlier, decline.now, decline.jobs), (100.0, 94.0, 10));
    assert_eq!((decline.since, decline.since_job), (at(10), 10));
    assert!(decline.changed.is_empty());
    assert_eq!(decline.recent, RECENT);
    // The one in between, or the last, is fine.
    assert_eq!(found(&values, 96.0), None);
    values[11] = 99.0;
    assert_eq!(found(&values, 93.0), None);
}

#[test]
fn nine_earlier_jobs_or_one_day_are_too_few() {
    let mut values = vec![100.0; 9];
    values.extend([90.0, 90.0]);
    assert_eq!(found(&values, 90.0), None);
    values.insert(0, 100.0);
    assert!(found(&values, 90.0).is_some());
    let day = |minutes: i64| at(1) + SignedDuration::from_mins(minutes);
    let series: Vec<Entry> = (0..)
        .zip(&values)
        .map(|(place, value)| Entry { at: day(place), ..entry(1, *value, "580") })
        .collect();
    let now = |at: Timestamp| Entry { at, ..entry(1, 90.0, "580") };
    assert_eq!(decline(Metric::Flops, &series, &now(day(30))), None);
    assert!(decline(Metric::Flops, &series, &now(at(3))).is_some());
}

#[test]
fn a_part_that_scatters_must_fall_further() {
    let mut values: Vec<f64> = (0..20).map(|one| if one % 2 == 0 { 94.0 } else { 106.0 }).collect();
    values.extend([91.0, 91.0]);
    assert_eq!(found(&values, 91.0), None);
    let far = values.len() - 2;
    values[far..].fill(70.0);
    assert!(found(&values, 70.0).is_some());
    // Less far, but for longer.
    values.truncate(far);
    values.extend([85.0; 3]);
    assert_eq!(found(&values, 85.0), None);
    values.push(85.0);
    assert_eq!(found(&values, 85.0).map(|one| one.recent), Some(5));
}

#[test]
fn of_times_more_is_worse_and_a_quarter_counts() {
    let times = |last: f64| {
        let mut values = vec![10.0; 10];
        values.extend([last, last]);
        decline(Metric::Launch, &series(&values), &entry(12, last, "580"))
    };
    assert_eq!((times(12.0), times(8.0)), (None, None));
    let words = times(13.0).unwrap().words("n1/gpu0", "kernel_launch launch", Metric::Launch);
    assert!(
        words.contains("13 µs in the last 3 jobs, 10 µs in 10 earlier ones, 30 % more since 1970-01-11"),
        "{words}"
    );
}

#[test]
fn a_change_in_between_explains_it_and_is_said() {
    let mut before = series(&[100.0; 12]);
    before.extend((12..14).map(|day| entry(day, 90.0, "590")));
    let changed = decline(Metric::Flops, &before, &entry(14, 90.0, "590")).unwrap();
    assert_eq!(changed.changed, ["driver 580 -> 590"]);
    let words = changed.words("n1/gpu3", "gemm_flops", Metric::Flops);
    assert!(words.contains("not what it was") && words.contains("driver 580 -> 590"), "{words}");
    assert!(!words.contains("declining"), "{words}");
    // Also where some of the earlier ones are from after the change.
    before.extend((14..18).map(|day| entry(day, 90.0, "590")));
    let changed = decline(Metric::Flops, &before, &entry(18, 90.0, "590")).unwrap();
    assert_eq!(changed.changed, ["driver 580 -> 590"]);
    // What is not known is no change.
    let unknown = decline(Metric::Flops, &series(&[100.0, 90.0]), &entry(3, 90.0, "")).map(|one| one.changed);
    assert_eq!(unknown, None);
    let mut before = series(&[100.0; 12]);
    before.extend([entry(12, 90.0, ""), entry(13, 90.0, "")]);
    assert!(decline(Metric::Flops, &before, &entry(14, 90.0, "")).unwrap().changed.is_empty());
}

#[test]
fn one_partner_in_all_of_them_is_named() {
    let with =
        |day: i64, value: f64, name: &str| Entry { with: Some(name.into()), ..entry(day, value, "580") };
    let mut before: Vec<Entry> = (0..10).map(|day| with(day, 100.0, "n9")).collect();
    before.extend([with(10, 90.0, "n2"), with(11, 90.0, "n2")]);
    let found = |name: &str| decline(Metric::Busbw, &before, &with(12, 90.0, name)).unwrap();
    assert_eq!(found("n2").always_with.as_deref(), Some("n2"));
    assert!(found("n2").words("n1", "all_reduce_2", Metric::Busbw).contains("either of the two"));
    assert_eq!(found("n3").always_with, None);
}

#[test]
fn a_series_keeps_its_first_and_its_last_entries() {
    let mut kept = Vec::new();
    for day in 0..200 {
        add(&mut kept, entry(day, 1.0, "580"));
    }
    let days: Vec<u32> = kept.iter().map(|one| one.job_id).collect();
    assert_eq!(days.len(), MOST_ENTRIES);
    assert!(
        days[..FIRST].iter().copied().eq(0..24) && days[FIRST..].iter().copied().eq(160..200),
        "{days:?}"
    );
    // An entry from a clock that was set back stands where it belongs.
    add(&mut kept, entry(5, 2.0, "580"));
    assert!(kept.is_sorted_by_key(|one| one.at));
}

#[test]
fn ten_jobs_on_a_new_driver_are_a_new_beginning() {
    let mut kept = Vec::new();
    for day in 0..30 {
        add(&mut kept, entry(day, 1.0, "580"));
    }
    for day in 30..39 {
        add(&mut kept, entry(day, 1.0, "590"));
        assert!(kept.len() > 30);
    }
    add(&mut kept, entry(39, 1.0, "590"));
    assert!(kept.len() == LEAST && kept.iter().all(|one| one.setting.driver == "590"));
}

fn roster(nodes: usize) -> Roster {
    let entry =
        |name: usize| RosterEntry { name: format!("n{name}").into(), joined: None, absent_because: None };
    Roster { nodes: (0..nodes).map(entry).collect(), leader: 0, leaves: crate::topology::Leaves::default() }
}

fn here(me: NodeId) -> Here {
    Here {
        me,
        engine: Engine::Cuda,
        uuids: [(3, "GPU-x".to_owned())].into(),
        alone: Some(true),
        ranks: 8,
        nvls: false,
        setting: setting("580"),
        clocks: [(3, "1980 MHz".to_owned()), (4, "1200 MHz".to_owned())].into(),
        caused: BTreeSet::new(),
    }
}

fn measured(subject: Subject, metric: Metric, value: f64) -> Measurement {
    Measurement {
        check: CheckName::GemmFlops,
        metric,
        subject,
        peers: Vec::new(),
        value,
        bytes: None,
        samples: Vec::new(),
        detail: String::new(),
        facts: Vec::new(),
        started_at: at(1),
        finished_at: at(1),
    }
}

#[test]
fn only_a_nodes_own_numbers_are_kept() {
    let roster = roster(5);
    let part = |subject: Subject, metric: Metric, value: f64| {
        here(1)
            .key(&roster, &measured(subject, metric, value))
            .map(|(key, with)| (key.part, key.like.nodes, with))
    };
    let gpu = |node, index| Subject::Gpu { node, index };
    let own = |part: &str| Some((part.to_owned(), 1, None));
    assert_eq!(part(gpu(1, 3), Metric::Flops, 1.0), own("GPU-x"));
    assert_eq!(part(gpu(1, 5), Metric::Flops, 1.0), own("gpu5"));
    assert_eq!(part(Subject::Node { node: 1 }, Metric::Launch, 1.0), own("node"));
    let way = |part: &str, with: &str| Some((part.to_owned(), 8, Some(with.to_owned())));
    assert_eq!(part(Subject::Pair { a: 1, b: 4 }, Metric::Busbw, 1.0), way("node", "n4"));
    assert_eq!(part(Subject::PairRail { a: 0, b: 1, rail: 2 }, Metric::Busbw, 1.0), way("rail2", "n0"));
    for (subject, metric, value) in [
        (gpu(2, 3), Metric::Flops, 1.0),
        (Subject::Pair { a: 0, b: 2 }, Metric::Busbw, 1.0),
        (Subject::Fabric, Metric::Busbw, 1.0),
        (gpu(1, 3), Metric::Correct, 1.0),
        (gpu(1, 3), Metric::LaunchTail, 1.0),
        (gpu(1, 3), Metric::Flops, 0.0),
        (gpu(1, 3), Metric::Flops, f64::NAN),
    ] {
        assert_eq!(part(subject.clone(), metric, value), None, "{subject:?} {metric:?} {value}");
    }
    // What a cause explains says nothing about the part.
    let words = "clocks are locked".to_owned();
    let cause = Fact { subject: gpu(1, 3), kind: FactKind::Cause, words };
    let caused = Measurement { facts: vec![cause], ..measured(gpu(1, 3), Metric::Flops, 1.0) };
    assert_eq!(here(1).key(&roster, &caused), None);
    let known = Here { caused: [gpu(1, 3)].into(), ..here(1) };
    let kept = |subject: Subject| known.key(&roster, &measured(subject, Metric::Flops, 1.0)).is_some();
    assert_eq!((kept(gpu(1, 3)), kept(gpu(1, 4)), kept(Subject::Node { node: 1 })), (false, true, false));
}

#[test]
fn a_number_of_several_windows_is_kept_once() {
    let gpu = Subject::Gpu { node: 1, index: 3 };
    let result = |value: f64| {
        let round = Round {
            index: 0,
            check: CheckName::GemmFlops,
            purpose: Purpose::First,
            mode: Mode::Full,
            groups: vec![vec![0], vec![1]],
        };
        let other = Subject::Gpu { node: 0, index: 3 };
        let own = NodeOutcome::Measured(vec![measured(gpu.clone(), Metric::Flops, value)]);
        let others = NodeOutcome::Measured(vec![measured(other, Metric::Flops, 1.0)]);
        RoundResult { round, outcomes: [(0, others), (1, own)].into() }
    };
    let kept = here(1).entries(&roster(2), &[result(3.0), result(1.0), result(2.0)], 7);
    let [(key, entry)] = kept.as_slice() else { panic!("{kept:?}") };
    assert_eq!((key.part.as_str(), entry.value, entry.job_id), ("GPU-x", 2.0, 7));
    assert_eq!(entry.setting.clocks, "1980 MHz");
    // So are the numbers of a node some of whose parts have none.
    let mut partly = result(4.0);
    let numbers = vec![measured(gpu, Metric::Flops, 4.0)];
    partly.outcomes.insert(1, NodeOutcome::Partly { numbers, parts: Vec::new() });
    assert_eq!(here(1).entries(&roster(2), &[partly], 7).len(), 1);
    assert_eq!(here(1).setting_of(&Subject::Node { node: 1 }).clocks, "1200 MHz; 1980 MHz");
}

#[test]
fn what_disturbs_the_network_leaves_out_all_numbers_of_the_round() {
    let round = Round {
        index: 0,
        check: CheckName::MultiAllReduce2,
        purpose: Purpose::First,
        mode: Mode::Full,
        groups: vec![vec![0, 1]],
    };
    let rail = |rail| measured(Subject::PairRail { a: 0, b: 1, rail }, Metric::Busbw, 1.0);
    let kept = |facts: Vec<Fact>| {
        let numbers = vec![Measurement { facts, ..rail(0) }, rail(1)];
        let told = is_disturbed(&numbers);
        let outcomes = [(1, NodeOutcome::Measured(numbers))].into();
        let result = RoundResult { round: round.clone(), outcomes };
        (told, here(1).entries(&roster(2), &[result], 7).len())
    };
    let port = |kind| {
        let subject = Subject::Nic { node: 1, name: "mlx5_0".into() };
        vec![Fact { subject, kind, words: "other traffic".into() }]
    };
    assert_eq!((kept(Vec::new()), kept(port(FactKind::Note))), ((false, 2), (false, 2)));
    assert_eq!(kept(port(FactKind::Cause)), (true, 0));
}
