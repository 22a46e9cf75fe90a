//! Jobs of any size: one node, odd numbers, and more nodes than this machine has cores for.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use aimaster_tests::{Cluster, Told, product, serial};

/// On two cores sixteen nodes take turns: their windows must be long against a turn.
const POLICY: &str = "host.seconds_per_check = 1.5";

fn healthy(cluster: &Cluster, size: &str, checks: &str) -> Told {
    let told = cluster.told([size, checks]).unwrap();
    println!("{told}");
    assert_eq!(told.outcome(), "PASS", "{told}");
    assert!(told.started() && told.drained.is_empty(), "{told}");
    told
}

#[test]
fn one_node_skips_what_takes_two() {
    let _machine = serial().unwrap();
    let cluster = product::boot(Cluster::builder().nodes(1), "").unwrap();
    let told = healthy(&cluster, "-N1", "--sanity-check=all");
    let of = |status: &str| -> Vec<&str> { told.items(status).into_iter().map(|item| item[0]).collect() };
    assert_eq!(of("PASS"), ["gemm_flops", "kernel_launch", "all_reduce_1", "comp_comm_overlap"], "{told}");
    assert_eq!(of("SKIP").len(), 9, "{told}");
    assert!(told.message("SKIP").contains("one node only"), "{told}");
}

// M10.
#[test]
fn odd_numbers_of_nodes_leave_nobody_out() {
    let _machine = serial().unwrap();
    let cluster = product::boot(Cluster::builder().nodes(7), "").unwrap();
    let checks =
        "--sanity-check=network_connectivity,all_reduce_2,all_gather_2,multi_all_reduce_2,all_reduce";
    for size in ["-N3", "-N5", "-N7"] {
        healthy(&cluster, size, checks);
    }
}

#[test]
fn sixteen_nodes_pass_and_a_slow_one_of_them_is_named() {
    let _machine = serial().unwrap();
    let cluster = product::boot(Cluster::builder().nodes(16), POLICY).unwrap();
    healthy(&cluster, "-N16", "--sanity-check=gemm_flops,network_connectivity,all_reduce_2,all_reduce");
    let fault = cluster.rate("n11", 10_000).unwrap();
    let told = cluster.told(["-N16", "--sanity-check=all_reduce_2"]).unwrap();
    println!("{told}");
    fault.undo().unwrap();
    assert_eq!(told.items("FAIL"), [["all_reduce_2", "node", "n11"]], "{told}");
    assert_eq!(told.drained_names(), ["n11"], "{told}");
}
