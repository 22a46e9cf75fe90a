//! What only the traffic of all nodes meets is the fabric's and drains nobody; what all-node checks find of a single
//! node is pinned on it by pair rounds of the same collective.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use aimaster_tests::{Cluster, Told, product, serial};

/// 20 Mbit/s are 0.0025 GB/s, an eighth of the floor for all nodes together.
const SLOW_KBIT: u64 = 20_000;

/// Checks whose items have this status.
fn checks<'a>(told: &'a Told, status: &str) -> Vec<&'a str> {
    let mut checks: Vec<&str> = told.items(status).into_iter().map(|item| item[0]).collect();
    checks.sort_unstable();
    checks.dedup();
    checks
}

#[test]
fn a_slow_spine_is_the_fabrics_and_drains_nobody() {
    let _machine = serial().unwrap();
    let cluster = product::boot(Cluster::builder().nodes(4), "").unwrap();
    // Two leaves, {n1, n2} and {n3, n4}: neighbours meet inside one, a ring of all nodes crosses the spine.
    let spine = [("n1", "n3"), ("n1", "n4"), ("n2", "n3"), ("n2", "n4")]
        .map(|(one, other)| cluster.rate_pair(one, other, SLOW_KBIT).unwrap());
    let told = cluster.told(["-N4", "--sanity-check=all_reduce_2,all_reduce,multi_all_reduce"]).unwrap();
    println!("{told}");
    drop(spine);
    assert_eq!(told.outcome(), "FAIL", "{told}");
    assert_eq!(checks(&told, "FAIL"), ["all_reduce", "multi_all_reduce"], "{told}");
    assert!(told.items("FAIL").iter().all(|item| item[1].starts_with("fabric")), "{told}");
    assert!(told.items("SUSPECT").is_empty() && told.items("ERROR").is_empty(), "{told}");
    assert!(told.drained.is_empty() && !told.started(), "{told}");
    assert!(told.items("PASS").iter().any(|item| item[0] == "all_reduce_2"), "{told}");
    assert!(told.message("FAIL").contains("n1-n4 and n2-n3 are slow as well"), "{told}");
}

#[test]
fn every_collective_names_a_slow_node() {
    let _machine = serial().unwrap();
    let cluster = product::boot(Cluster::builder().nodes(4), "").unwrap();
    let fault = cluster.rate("n3", SLOW_KBIT).unwrap();
    for list in ["all_gather_2,all_to_all_2,multi_all_reduce_2", "all_gather,all_reduce,multi_all_reduce"] {
        let check = format!("--sanity-check={list}");
        let told = cluster.told(["-N4", "--sanity-fail-action=retain", &check]).unwrap();
        println!("{told}");
        assert_eq!(checks(&told, "FAIL"), list.split(',').collect::<Vec<_>>(), "{told}");
        assert!(told.items("FAIL").iter().all(|item| item[1..] == ["node", "n3"]), "{told}");
        assert!(told.items("SUSPECT").is_empty() && told.items("ERROR").is_empty(), "{told}");
        assert!(told.drained.is_empty() && told.started(), "{told}");
    }
    fault.undo().unwrap();
}

#[test]
fn a_bad_link_that_pairs_did_not_meet_and_the_ring_did_is_explained_once() {
    let _machine = serial().unwrap();
    let cluster = product::boot(Cluster::builder().nodes(4), "").unwrap();
    // n2 and n3 are neighbours in the ring of all nodes and no pair of the opening round.
    let fault = cluster.rate_pair("n2", "n3", SLOW_KBIT).unwrap();
    let told = cluster.told(["-N4", "--sanity-check=all_reduce_2,all_reduce,all_gather"]).unwrap();
    println!("{told}");
    fault.undo().unwrap();
    assert_eq!(told.outcome(), "FAIL", "{told}");
    assert!(told.drained.is_empty() && !told.started(), "{told}");
    assert_eq!(
        told.items("FAIL"),
        [["all_reduce", "link", "n2-n3"], ["all_gather", "link", "n2-n3"]],
        "{told}"
    );
    assert!(told.items("SUSPECT").is_empty() && told.items("ERROR").is_empty(), "{told}");
}
