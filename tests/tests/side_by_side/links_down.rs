//! A node's only cable is pulled while its job is checked: at every position, before the nodes have met and half way.
//! The others name it soon and go on; nobody is drained.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::time::Duration;

use aimaster_tests::{Cluster, JobId, Running, product, side_by_side, wait};
use serde_json::Value;

/// Slurm takes longer than the checks to give a node up, as on real sites.
const PATIENT: u32 = 120;

/// Half way means in the second check's first window, on a machine where the pull itself may take seconds.
const POLICY: &str = "host.seconds_per_check = 2.5\ntime.join_s = 5";

const SOON: Duration = Duration::from_secs(60);

const CHECKS: &str = "--sanity-check=gemm_flops,all_reduce_1,all_reduce_2,all_reduce";

/// The report that names `node`. The leader may be the node that is cut off: it reports nobody but itself as present,
/// and what the others report comes after that.
fn report_of(cluster: &Cluster, job: JobId, node: &str) -> Value {
    let mut last = Value::Null;
    let found = wait::until(SOON, format!("a report that names {node}"), || {
        last = cluster.report(job, 1).unwrap_or(Value::Null);
        let items = last["items"].as_array().map_or(&[][..], Vec::as_slice);
        let names = |item: &&Value| item["subject"]["name"] == node && item["status"] == "ERROR";
        Ok(items.iter().find(names).map(|_| ()))
    });
    assert!(found.is_ok(), "{last:#}\n{}", cluster.log_tails());
    last
}

fn pull(cluster: &Cluster, node: &str, when: impl Fn(&Running)) {
    let srun = cluster.srun(["-N4", CHECKS, "echo", "started"]).timeout(SOON * 2).spawn().unwrap();
    when(&srun);
    let down = cluster.link_down(node).unwrap();
    let job = cluster.last_job().unwrap();
    let report = report_of(cluster, job, node);
    assert_eq!(report["outcome"], "ERROR", "{report:#}");
    for item in report["items"].as_array().unwrap() {
        assert!(item["status"] != "FAIL" && item["status"] != "SUSPECT", "{report:#}");
        assert!(item["status"] != "ERROR" || item["subject"]["name"] == node, "{report:#}");
    }
    down.undo().unwrap();
    cluster.scancel([job.to_string()]).run().unwrap();
    drop(srun);
    cluster.wait_end(job, SOON).unwrap();
    assert!(cluster.drained().unwrap().is_empty(), "{:?}", cluster.drained());
    cluster.wait_idle(4, SOON).unwrap();
}

/// Once while the nodes look for each other, and once half way.
fn pulled_twice(node: &str) {
    let _machine = side_by_side().unwrap();
    let cluster = product::boot(Cluster::builder().nodes(4).set("SlurmdTimeout", PATIENT), POLICY).unwrap();
    pull(&cluster, node, |_| {
        wait::until(SOON, "its helper", || {
            let processes = cluster.processes(node)?;
            Ok(processes.iter().any(|one| one.comm.starts_with("aimaster")).then_some(()))
        })
        .unwrap();
    });
    pull(&cluster, node, |srun| {
        srun.wait_line(|line| line.contains("DeviceCheck: PASS"), SOON).unwrap();
    });
    cluster.wait_no_helper(SOON).unwrap();
}

#[test]
fn the_leader_s_cable() {
    pulled_twice("n1");
}

#[test]
fn the_deputy_s_cable() {
    pulled_twice("n2");
}

#[test]
fn the_cable_in_the_middle() {
    pulled_twice("n3");
}

#[test]
fn the_last_cable() {
    pulled_twice("n4");
}
