//! Nodes that a job shares with another one: what is slow there may be slow for the other's sake, so nobody is blamed
//! and nothing is drained.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::time::Duration;

use aimaster_tests::{Cluster, product, side_by_side};

const SOON: Duration = Duration::from_secs(60);

/// Rate of a slow network in kbit/s: a twentieth of the limit.
const SLOW: u64 = 20_000;

// L13.
#[test]
fn a_slow_node_on_which_another_job_runs_is_not_drained() {
    let _machine = side_by_side().unwrap();
    let cluster = product::boot(Cluster::builder().nodes(3), "host.seconds_per_check = 0.2").unwrap();
    let other = cluster.submit("sleep 300", ["-N1", "-n1", "-w", "n2"]).unwrap();
    cluster.wait_state(other, "RUNNING", SOON).unwrap();
    let _slow = cluster.rate("n2", SLOW).unwrap();

    let checked =
        ["-N3", "-n3", "--sanity-check=all_reduce_2", "--sanity-fail-action=drain", "echo", "started"];
    let told = cluster.told(checked).unwrap();
    println!("{told}");
    assert_eq!(told.outcome(), "ERROR", "{told}");
    assert!(told.drained.is_empty() && told.started(), "{told}");
    assert!(told.items("FAIL").is_empty() && told.items("SUSPECT").is_empty(), "{told}");
    assert!(told.message("ERROR").contains(&format!("job {other} runs on n2 too")), "{told}");

    // Alone on it the same job is right about it.
    cluster.scancel([other.to_string()]).ok().unwrap();
    cluster.wait_idle(3, SOON).unwrap();
    let told = cluster.told(checked).unwrap();
    println!("{told}");
    assert_eq!((told.outcome(), told.started()), ("FAIL", true), "{told}");
    let drained = cluster.drained().unwrap();
    assert_eq!(drained.iter().map(|(node, _)| node.as_str()).collect::<Vec<_>>(), ["n2"]);
}
