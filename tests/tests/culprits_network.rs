//! Slow and lossy networks: the node or the link at fault is named, wherever it is in the job, and nobody else is
//! touched. These jobs wait for slow networks most of their time (all in turn keep two cores busy for a fifth of it), so they run
//! beside each other.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop at the first surprise")]

use aimaster_tests::{Cluster, Told, product, side_by_side};

/// 20 Mbit/s are 0.0025 GB/s, a twentieth of the floor for a pair.
const SLOW_KBIT: u64 = 20_000;

/// 10 %: three times the limit for segments sent again.
const LOSS_PERMILLE: u32 = 100;

const PAIRS: &str = "--sanity-check=all_reduce_2";

/// Half the usual windows: what is slow here is far below the floor.
const QUICK: &str = "host.seconds_per_check = 0.3";

/// Exactly these nodes are at fault: in the report, by drains with a reason that can be read, and in every word
/// that the user saw.
fn assert_culprits(cluster: &Cluster, told: &Told, check: &str, culprits: &[&str]) {
    assert_eq!(told.outcome(), "FAIL", "{told}");
    let expected: Vec<[&str; 3]> = culprits.iter().map(|node| [check, "node", *node]).collect();
    assert_eq!(told.items("FAIL"), expected, "{told}");
    assert!(told.items("SUSPECT").is_empty() && told.items("ERROR").is_empty(), "{told}");
    assert_eq!(told.drained_names(), culprits, "{told}");
    assert!(!told.started() && !told.srun.success(), "{told}");
    let tail = format!("job={} n=1", told.job);
    for (node, reason) in &told.drained {
        // scontrol show node and sinfo -R: check, node, number with limit and unit, job.
        let head = format!("aimaster: {check} {node} ");
        let number = reason.strip_prefix(&head).and_then(|rest| rest.strip_suffix(&tail));
        assert!(number.is_some_and(|number| number.contains(['<', '>'])), "{reason}\n{told}");
        assert!(!reason.contains('\n'), "{reason}\n{told}");
        assert!(cluster.node(node).unwrap().reason_by.unwrap().starts_with("root@"), "{told}");
    }
    for node in culprits {
        assert!(told.srun.stderr.contains(&format!("FAIL {node}: {check} ")), "{told}");
    }
    assert!(told.srun.stderr.contains(&format!("leaves service: {}", culprits.join(", "))), "{told}");
}

/// The item of a node that is at fault has the number, the limit with its source, and the partners.
fn assert_evidence(told: &Told, unit: &str, partners: usize) {
    let items = told.report["items"].as_array().unwrap();
    for item in items.iter().filter(|item| item["status"] == "FAIL") {
        let (value, limit) = (item["value"].as_f64().unwrap(), item["limit"].as_f64().unwrap());
        assert_eq!(item["unit"], unit, "{item:#}");
        assert!(if unit == "GB/s" { value < limit } else { value > limit }, "{item:#}");
        assert!(item["limit_source"].as_str().unwrap().len() > 10, "{item:#}");
        assert!(item["peers"].as_array().unwrap().len() >= partners, "{item:#}");
        assert!(item["samples"].as_array().unwrap().len() >= partners, "{item:#}");
    }
}

fn assert_nobody_drained_and_started(told: &Told, outcome: &str) {
    assert_eq!(told.outcome(), outcome, "{told}");
    assert!(told.drained.is_empty(), "{told}");
    assert_eq!(told.sinfo.lines().count(), 1, "{told}");
    assert!(told.started() && told.srun.success(), "{told}");
}

// M01, P06.
#[test]
fn a_slow_node_is_named_at_every_position() {
    let _machine = side_by_side().unwrap();
    let cluster = product::boot(Cluster::builder().nodes(4), QUICK).unwrap();
    for node in ["n1", "n2", "n3", "n4"] {
        let fault = cluster.rate(node, SLOW_KBIT).unwrap();
        let told = cluster.told(["-N4", PAIRS]).unwrap();
        println!("{told}");
        fault.undo().unwrap();
        assert_culprits(&cluster, &told, "all_reduce_2", &[node]);
        assert_evidence(&told, "GB/s", 2);
        cluster.undrain().unwrap();
    }
    cluster.wait_no_helper(std::time::Duration::from_secs(5)).unwrap();
}

// M02, M07.
#[test]
fn two_nodes_can_t_be_told_apart_and_a_bad_link_is_no_node() {
    let _machine = side_by_side().unwrap();
    let cluster = product::boot(Cluster::builder().nodes(4), QUICK).unwrap();

    // One bad side of two: nobody can say which, so the job starts (on_suspect).
    let fault = cluster.rate("n2", SLOW_KBIT).unwrap();
    let told = cluster.told(["-N2", "-w", "n1,n2", PAIRS]).unwrap();
    println!("{told}");
    fault.undo().unwrap();
    assert_nobody_drained_and_started(&told, "SUSPECT");
    assert_eq!(told.items("SUSPECT"), [["all_reduce_2", "pair", "n1-n2"]], "{told}");
    assert!(told.items("FAIL").is_empty(), "{told}");

    // A pair that meets in round 1: the link, and no drain; the job fails as asked.
    let fault = cluster.rate_pair("n1", "n2", SLOW_KBIT).unwrap();
    let told = cluster.told(["-N4", PAIRS]).unwrap();
    println!("{told}");
    assert_eq!((told.outcome(), told.started()), ("FAIL", false), "{told}");
    assert_eq!(told.items("FAIL"), [["all_reduce_2", "link", "n1-n2"]], "{told}");
    assert!(told.drained.is_empty() && told.items("SUSPECT").is_empty(), "{told}");
    assert!(told.message("FAIL").contains("n1 - n2"), "{told}");
    fault.undo().unwrap();
    cluster.wait_idle(4, std::time::Duration::from_secs(20)).unwrap();
}

#[test]
fn two_bad_nodes_of_six_are_both_named() {
    let _machine = side_by_side().unwrap();
    let cluster = product::boot(Cluster::builder().nodes(6), QUICK).unwrap();
    // Neighbours, who meet each other first; and nodes of different pairs, the first of the job among them.
    for culprits in [["n3", "n4"], ["n1", "n6"]] {
        let faults = culprits.map(|node| cluster.rate(node, SLOW_KBIT).unwrap());
        let told = cluster.told(["-N6", PAIRS]).unwrap();
        println!("{told}");
        drop(faults);
        assert_culprits(&cluster, &told, "all_reduce_2", &culprits);
        assert_evidence(&told, "GB/s", 2);
        cluster.undrain().unwrap();
    }

    // A bad link that shows in a later round only: n3 is slow, so that n4 has to meet somebody else, who is n2.
    let faults = (cluster.rate("n3", SLOW_KBIT).unwrap(), cluster.rate_pair("n2", "n4", SLOW_KBIT).unwrap());
    let told = cluster.told(["-N6", PAIRS]).unwrap();
    println!("{told}");
    drop(faults);
    let mut failed = told.items("FAIL");
    failed.sort_unstable();
    assert_eq!(failed, [["all_reduce_2", "link", "n2-n4"], ["all_reduce_2", "node", "n3"]], "{told}");
    assert_eq!(told.drained_names(), ["n3"], "{told}");
    assert!(told.items("SUSPECT").is_empty(), "{told}");
}

#[test]
fn a_node_that_loses_packets_is_named() {
    let _machine = side_by_side().unwrap();
    let cluster = product::boot(Cluster::builder().nodes(4), QUICK).unwrap();
    for node in ["n1", "n3"] {
        let fault = cluster.loss(node, LOSS_PERMILLE).unwrap();
        let told = cluster.told(["-N4", "--sanity-check=network_connectivity"]).unwrap();
        println!("{told}");
        fault.undo().unwrap();
        assert_culprits(&cluster, &told, "network_connectivity", &[node]);
        cluster.undrain().unwrap();
    }
}

// Slurm's topology.conf says who is below which leaf switch; nothing in the cluster itself need use it.
#[test]
fn a_leaf_switch_is_named_instead_of_its_nodes_and_a_lone_node_is_not_drained() {
    let _machine = side_by_side().unwrap();
    let cluster = product::boot(Cluster::builder().nodes(6), QUICK).unwrap();
    let wiring = "SwitchName=s1 Nodes=n[1-3]\nSwitchName=s2 Nodes=n[4-5]\nSwitchName=s3 Nodes=n6\nSwitchName=top Switches=s[1-3]\n";
    std::fs::write(cluster.base().join("etc/slurm/topology.conf"), wiring).unwrap();

    // Both nodes below s2 are slow with everybody: one switch, not two nodes.
    let faults = ["n4", "n5"].map(|node| cluster.rate(node, SLOW_KBIT).unwrap());
    let told = cluster.told(["-N6", PAIRS]).unwrap();
    println!("{told}");
    drop(faults);
    assert_eq!((told.outcome(), told.started()), ("FAIL", false), "{told}");
    assert_eq!(told.items("FAIL"), [["all_reduce_2", "switch", "s2"]], "{told}");
    assert!(told.drained.is_empty() && told.items("SUSPECT").is_empty(), "{told}");

    // What is slow with n6 may as well be s3.
    let fault = cluster.rate("n6", SLOW_KBIT).unwrap();
    let told = cluster.told(["-N6", PAIRS]).unwrap();
    println!("{told}");
    fault.undo().unwrap();
    assert_nobody_drained_and_started(&told, "SUSPECT");
    assert_eq!(told.items("SUSPECT"), [["all_reduce_2", "node", "n6"]], "{told}");
    assert!(told.message("SUSPECT").contains("n6 or switch s3: "), "{told}");

    // A file with mistakes is as none: a lone node is named, as one with others below its leaf is with a file.
    std::fs::write(cluster.base().join("etc/slurm/topology.conf"), "SwitchName=s1 Nodes=n[1-\n").unwrap();
    let fault = cluster.rate("n6", SLOW_KBIT).unwrap();
    let told = cluster.told(["-N6", PAIRS]).unwrap();
    println!("{told}");
    fault.undo().unwrap();
    assert_culprits(&cluster, &told, "all_reduce_2", &["n6"]);
}
