//! The AIMaster document that users already have, as it stands: thirteen checks on four nodes.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::collections::BTreeSet;
use std::time::Duration;

use aimaster_tests::{Cluster, JobId, product, serial};

/// Thirteen checks with a python that loads torch, on a machine that others use too.
const LONG: Duration = Duration::from_secs(180);

#[test]
fn the_example_document_runs_all_thirteen_checks() {
    let _machine = serial().unwrap();
    let cluster = product::boot(
        Cluster::builder().nodes(4).set("PrologEpilogTimeout", 180),
        "time.max_deadline_s = 150",
    )
    .unwrap();
    let document = include_str!("../../conf/aimaster.json");
    let output =
        cluster.srun(["-N4", &format!("--aimaster={document}"), "hostname"]).timeout(LONG).run().unwrap();
    println!("{}", output.stderr);
    let report = cluster.report(JobId(1), 1).unwrap();
    println!("{report:#}");
    assert!(output.success());
    assert_eq!(report["outcome"], "PASS", "{report:#}");
    let items = report["items"].as_array().unwrap();
    let passed: BTreeSet<&str> = items
        .iter()
        .filter(|item| item["status"] == "PASS")
        .map(|item| item["check"].as_str().unwrap())
        .collect();
    let asked: serde_json::Value = serde_json::from_str(document).unwrap();
    let asked = asked["aimaster"]["sanity_check"]["micro_benchmarks"].as_str().unwrap();
    let asked: BTreeSet<&str> = asked.split(',').collect();
    assert_eq!(asked.len(), 13, "{asked:?}");
    assert_eq!(passed, asked);
    // Phases in order, each with its line.
    let lines = [
        "DeviceCheck: PASS",
        "SingleNodeCommCheck: PASS",
        "TwoNodeCommCheck: PASS",
        "AllNodeCommCheck: PASS",
    ];
    let places: Vec<usize> = lines.iter().map(|line| output.stderr.find(line).unwrap()).collect();
    assert!(places.is_sorted(), "{}", output.stderr);
}
