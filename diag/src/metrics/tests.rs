//! What reports add to the numbers, and that they read back.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use serde_json::json;

use super::*;

fn report(outcome: &str, items: &[(&str, &str, f64)]) -> Report {
    let item = |(check, status, value): &(&str, &str, f64)| {
        json!({
            "phase": "DeviceCheck", "check": check, "subject": { "kind": "gpu", "node": "n1", "name": "n1/gpu0" }, "peers": [],
            "status": status, "metric": "flops", "value": value, "unit": "TFLOP/s", "limit": 600.0, "limit_source": "x",
            "median": null, "samples": [], "message": "m", "started_at": null, "finished_at": null,
        })
    };
    let items: Vec<_> = items.iter().map(item).collect();
    let report = json!({
        "schema": 1, "job_id": 7, "cluster": "c", "check_number": 1, "engine": "cuda", "started_at": "2026-11-30T08:00:00Z",
        "finished_at": "2026-11-30T08:00:09.5Z", "outcome": outcome, "summary": "s", "action": "end", "nodes": ["n1", "n2"],
        "items": items, "drained": ["n1"], "errors": [],
    });
    serde_json::from_value(report).unwrap()
}

fn value(tally: &Tally, name: &str, labels: &[&str]) -> Option<f64> {
    let family = BEFORE.iter().chain(RUNTIME).find(|family| family.name == name).unwrap();
    tally.series(family).find(|(own, _)| *own == labels).map(|(_, value)| value)
}

/// As a file has them, without the words about them.
fn written(tally: &Tally, families: &[Family]) -> String {
    let line = |family: &Family, labels: &[String], value: f64| {
        let labels = family.labels.iter().zip(labels).map(|(label, value)| format!("{label}=\"{value}\""));
        let labels = labels.collect::<Vec<_>>().join(",");
        if labels.is_empty() {
            format!("{} {value}\n", family.name)
        } else {
            format!("{}{{{labels}}} {value}\n", family.name)
        }
    };
    let lines = families
        .iter()
        .flat_map(|family| tally.series(family).map(move |(labels, value)| line(family, labels, value)));
    lines.collect()
}

#[test]
fn a_report_counts_once_and_counters_go_on() {
    let fail = report(
        "FAIL",
        &[("gemm_flops", "FAIL", 300.0), ("gemm_flops", "PASS", 660.0), ("evil\"} 1\n", "ERROR", 1.0)],
    );
    let first = Tally::before(&fail);
    assert_eq!(value(&first, "aimaster_checks_total", &["fail"]), Some(1.0));
    assert_eq!(value(&first, "aimaster_checks_total", &["pass"]), Some(0.0));
    assert_eq!(value(&first, "aimaster_findings_total", &["gemm_flops", "fail"]), Some(1.0));
    assert_eq!(value(&first, "aimaster_findings_total", &["other", "error"]), Some(1.0));
    assert_eq!(value(&first, "aimaster_last_check_limit_ratio", &["gemm_flops"]), Some(0.5));
    assert_eq!(value(&first, "aimaster_check_duration_seconds_total", &[]), Some(9.5));
    let second = Tally::before(&report("PASS", &[("gemm_flops", "PASS", 660.0)])).on(&first, BEFORE);
    for (name, labels, expected) in [
        ("aimaster_checks_total", &["fail"][..], 1.0),
        ("aimaster_checks_total", &["pass"], 1.0),
        ("aimaster_check_duration_seconds_total", &[], 19.0),
        ("aimaster_drained_nodes_total", &[], 2.0),
        ("aimaster_jobs_total", &["end"], 2.0),
        ("aimaster_last_check_outcome", &["fail"], 0.0),
        ("aimaster_last_check_outcome", &["pass"], 1.0),
        ("aimaster_last_check_duration_seconds", &[], 9.5),
        ("aimaster_last_check_limit_ratio", &["gemm_flops"], 1.1),
    ] {
        let found = value(&second, name, labels).unwrap();
        assert!((found - expected).abs() < 1e-9, "{name}{labels:?}: {found}");
    }
    // A check that the last one did not have has no last number.
    assert_eq!(value(&second, "aimaster_last_check_limit_ratio", &["other"]), None);
    assert_eq!(Tally::read(&written(&second, BEFORE), BEFORE), second);
}

#[test]
fn what_ran_counts_where_it_was_spoken() {
    let at = Timestamp::UNIX_EPOCH + SignedDuration::from_secs(60);
    let mut one = RuntimeReport::new("c", 7, 1, "n1", Timestamp::UNIX_EPOCH);
    one.blind = vec!["x".into(); 3];
    one.finished = Some(crate::runtime_report::Finished { at, because: "x".into() });
    let quiet = Tally::runtime(&one);
    assert_eq!(value(&quiet, "aimaster_runtime_checks_total", &["skip"]), None);
    // What an agent found itself is its own, whoever spoke for the job.
    assert_eq!(value(&quiet, "aimaster_runtime_last_outcome", &["skip"]), Some(1.0));
    assert_eq!(value(&quiet, "aimaster_runtime_last_outcome", &["fail"]), Some(0.0));
    assert_eq!(value(&quiet, "aimaster_runtime_blind_total", &[]), Some(3.0));
    assert_eq!(value(&quiet, "aimaster_runtime_last_timestamp_seconds", &[]), Some(60.0));
    one.spoke = true;
    let spoke = Tally::runtime(&one);
    assert_eq!(value(&spoke, "aimaster_runtime_checks_total", &["skip"]), Some(1.0));
    assert_eq!(Tally::read(&written(&spoke, RUNTIME), RUNTIME), spoke);
}

#[test]
fn names_keep_the_conventions() {
    let all: Vec<&Family> = BEFORE.iter().chain(RUNTIME).collect();
    let names: BTreeSet<&str> = all.iter().map(|family| family.name).collect();
    assert_eq!(names.len(), all.len(), "each name once: two files of a node must not share one");
    for family in all {
        let name = family.name;
        assert!(
            name.starts_with(PREFIX) && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'),
            "{name}"
        );
        assert_eq!(name.ends_with("_total"), family.kind == Kind::Counter, "{name}");
        assert!(!family.help.is_empty() && !family.help.ends_with('.') && family.help.is_ascii(), "{name}");
        assert!(
            !["job", "node", "user", "cluster"].iter().any(|label| family.labels.contains(label)),
            "{name}"
        );
    }
}

proptest! {
    #[test]
    fn any_file_is_read_and_what_is_read_is_one_of_ours(text in "(aimaster_[a-z_]{0,20}|aimaster_checks_total\\{outcome=\"[a-z\"}]{0,6}\"\\} [0-9e+-NaInf]{0,6}|.{0,30}|\n){0,20}") {
        let tally = Tally::read(&text, BEFORE);
        let shown = written(&tally, BEFORE);
        prop_assert_eq!(Tally::read(&shown, BEFORE), tally);
    }
}
