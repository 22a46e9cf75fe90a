//! Healthy jobs: everything passes, nobody is drained, and the program starts after the verdict on every node.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::time::Duration;

use aimaster_tests::{Cluster, JobId, product, serial, wait};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(60);

/// Prints the node and the time at which the program runs, in seconds.
const STAMP: &str = "echo at $(hostname) $(date +%s.%N)";

fn statuses(report: &Value) -> Vec<(&str, &str, &str)> {
    let items = report["items"].as_array().unwrap().iter();
    items
        .map(|item| {
            (
                item["check"].as_str().unwrap(),
                item["subject"]["name"].as_str().unwrap(),
                item["status"].as_str().unwrap(),
            )
        })
        .collect()
}

/// Node and start of the program on it, from lines that `STAMP` printed.
fn starts(output: &str) -> Vec<(String, f64)> {
    let mut starts: Vec<(String, f64)> = output
        .lines()
        .filter_map(|line| line.strip_prefix("at "))
        .map(|line| {
            let (node, time) = line.split_once(' ').unwrap();
            (node.to_owned(), time.parse().unwrap())
        })
        .collect();
    starts.sort_by(|one, other| one.0.cmp(&other.0));
    starts
}

fn seconds(time: &Value) -> f64 {
    let time: jiff::Timestamp = time.as_str().unwrap().parse().unwrap();
    f64::from(i32::try_from(time.as_second() % 1_000_000).unwrap())
        + f64::from(time.subsec_nanosecond()) / 1e9
}

fn assert_started_after(report: &Value, output: &str, nodes: &[&str]) {
    let verdict = seconds(&report["finished_at"]);
    let starts = starts(output);
    assert_eq!(starts.iter().map(|(node, _)| node.as_str()).collect::<Vec<_>>(), nodes, "{output}");
    for (node, start) in starts {
        let start = start % 1_000_000.0;
        assert!(start > verdict, "{node} started at {start}, the verdict stood at {verdict}");
    }
}

// A10.
#[test]
fn four_nodes_pass_and_the_program_starts_after_the_verdict() {
    let _machine = serial().unwrap();
    let cluster = product::boot(Cluster::builder().nodes(4), "").unwrap();
    let nodes = ["n1", "n2", "n3", "n4"];

    let srun = cluster.srun(["-N4", "--sanity-check", "bash", "-c", STAMP]).timeout(SOON).run().unwrap();
    assert!(srun.success(), "{}\n{}", srun.stderr, cluster.log_tails());
    let report = cluster.report(JobId(1), 1).unwrap();
    assert_eq!(report["outcome"], "PASS", "{report:#}");
    assert_eq!(report["engine"], "host");
    assert_started_after(&report, &srun.stdout, &nodes);
    for (check, items) in [("gemm_flops", 4), ("all_reduce_1", 4), ("all_reduce_2", 2)] {
        let of_check: Vec<_> = statuses(&report).into_iter().filter(|item| item.0 == check).collect();
        assert_eq!(of_check.len(), items, "{report:#}");
        assert!(of_check.iter().all(|item| item.2 == "PASS"), "{of_check:?}");
    }
    // Live lines, a line a phase and the verdict.
    for words in ["DeviceCheck: PASS", "SingleNodeCommCheck: PASS", "TwoNodeCommCheck: PASS", "PASS after"] {
        assert!(srun.stderr.contains(words), "{words}: {}\n{report:#}", srun.stderr);
    }
    assert!(srun.stderr.lines().all(|line| !line.contains("ERROR")), "{}", srun.stderr);

    let script = format!("srun bash -c '{STAMP}'");
    let job = cluster.submit(&script, ["-N4", "--sanity-check"]).unwrap();
    let record = cluster.wait_end(job, SOON).unwrap();
    let output = cluster.job_output(job).unwrap();
    assert_eq!(record.state(), "COMPLETED", "{output}");
    assert_started_after(&cluster.report(job, 1).unwrap(), &output, &nodes);
    assert!(output.contains("PASS after"), "a batch job's output has the verdict: {output}");

    let salloc =
        cluster.salloc(["-N4", "--sanity-check", "srun", "bash", "-c", STAMP]).timeout(SOON).run().unwrap();
    assert!(salloc.success(), "{}", salloc.stderr);
    assert_started_after(&cluster.report(JobId(3), 1).unwrap(), &salloc.stdout, &nodes);
    assert!(salloc.stderr.contains("PASS after"), "{}", salloc.stderr);
    assert!(cluster.drained().unwrap().is_empty());

    for node in nodes {
        wait::until(SOON, format!("{node}: every helper is gone"), || {
            let left = cluster.processes(node)?;
            Ok((!left.iter().any(|process| process.comm.starts_with("aimaster"))).then_some(()))
        })
        .unwrap();
    }
}
