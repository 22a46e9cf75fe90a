//! A slow processor: the node is named wherever it is in the job, sits out what follows, and the others are still
//! measured.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::time::Duration;

use aimaster_tests::{Cluster, Fault, Told, product, serial};

/// A twenty-fifth of one core, where a good node has about two thirds: no limit goes below a tenth of the median, however
/// much the good nodes differ as they take turns.
const SLOW_PERCENT: u32 = 4;

/// On two cores six nodes of two ranks vary by a third in the usual windows of 0.6 s, mostly by a tenth in these.
const WINDOWS: &str = "host.seconds_per_check = 2.0";

/// Helpers end with their run.
const GONE: Duration = Duration::from_secs(5);

fn slow<'c>(cluster: &'c Cluster, nodes: &[&str]) -> Vec<Fault<'c>> {
    nodes.iter().map(|node| cluster.limit_cpu(node, SLOW_PERCENT).unwrap()).collect()
}

/// `culprits` failed gemm_flops and sat out the rest; everybody else passed everything.
fn assert_slow(cluster: &Cluster, told: &Told, culprits: &[&str]) {
    assert_eq!(told.outcome(), "FAIL", "{told}");
    let failed: Vec<[&str; 3]> = culprits.iter().map(|node| ["gemm_flops", "node", *node]).collect();
    assert_eq!(told.items("FAIL"), failed, "{told}");
    assert!(told.items("SUSPECT").is_empty() && told.items("ERROR").is_empty(), "{told}");
    assert_eq!(told.drained_names(), culprits, "{told}");
    for (node, reason) in &told.drained {
        assert!(reason.starts_with(&format!("aimaster: gemm_flops {node} ")), "{reason}\n{told}");
        assert!(reason.ends_with(&format!("TFLOP/s job={} n=1", told.job)), "{reason}\n{told}");
    }
    for check in ["all_reduce_1", "all_reduce_2"] {
        let sat_out: Vec<&str> =
            told.items("SKIP").into_iter().filter(|item| item[0] == check).map(|item| item[2]).collect();
        assert_eq!(sat_out, culprits, "{check}: {told}");
    }
    assert!(told.message("SKIP").contains("it failed gemm_flops"), "{told}");
    let passed = told.items("PASS");
    for node in cluster.nodes().iter().filter(|node| !culprits.contains(node)) {
        let alone = passed.iter().any(|item| item[0] == "all_reduce_1" && item[2] == *node);
        let paired =
            passed.iter().any(|item| item[0] == "all_reduce_2" && item[2].split('-').any(|end| end == *node));
        assert!(alone, "{node}: {told}");
        // With an odd number of nodes left one has no partner.
        assert!(paired || (cluster.nodes().len() - culprits.len()) % 2 == 1, "{node}: {told}");
    }
    for node in culprits {
        assert!(passed.iter().all(|item| item[2].split('-').all(|end| end != *node)), "{node}: {told}");
    }
    assert!(!told.started(), "{told}");
}

#[test]
fn a_slow_processor_is_named_and_sits_out_what_follows() {
    let _machine = serial().unwrap();
    let cluster = product::boot(Cluster::builder().nodes(4), WINDOWS).unwrap();
    for culprit in ["n1", "n3"] {
        let faults = slow(&cluster, &[culprit]);
        let told = cluster.told(["-N4", "--sanity-check"]).unwrap();
        println!("{told}");
        drop(faults);
        assert_slow(&cluster, &told, &[culprit]);
        cluster.undrain().unwrap();
    }
    cluster.wait_no_helper(GONE).unwrap();
}

#[test]
fn two_slow_processors_of_six_are_both_named() {
    let _machine = serial().unwrap();
    let cluster = product::boot(Cluster::builder().nodes(6), WINDOWS).unwrap();
    let faults = slow(&cluster, &["n1", "n4"]);
    let told = cluster.told(["-N6", "--sanity-check"]).unwrap();
    println!("{told}");
    drop(faults);
    assert_slow(&cluster, &told, &["n1", "n4"]);
}
