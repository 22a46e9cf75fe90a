//! Blocked ports: a fault of the configuration is named from source to destination with the port, and no node is
//! blamed for it.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::time::Duration;

use aimaster_tests::{Block, Cluster, Deny, Told, product, side_by_side};

/// The whole range of the product's default policy.
const PORTS: std::ops::RangeInclusive<u16> = 27_000..=27_199;

/// From the end of a job to idle nodes.
const IDLE: Duration = Duration::from_secs(20);

/// Ways into `node` are blocked: FAIL of class config, each way with its port, nobody drained.
fn assert_blocked(told: &Told, check: &str, node: &str) {
    assert_eq!(told.outcome(), "FAIL", "{told}");
    assert!(told.drained.is_empty() && !told.started(), "{told}");
    assert!(told.items("ERROR").is_empty() && told.items("SUSPECT").is_empty(), "{told}");
    let failed = told.items("FAIL");
    assert!(!failed.is_empty(), "{told}");
    for [by, kind, name] in failed {
        assert_eq!(by, check, "{told}");
        // A way, not a node; the node behind the firewall is one end of each.
        assert!(kind == "path", "{kind} {name}: {told}");
        assert!(name.ends_with(&format!("->{node}")), "{name}: {told}");
    }
    let way = format!("-> {node}:27");
    assert!(told.message("FAIL").contains(&way), "{way}: {told}");
    assert!(told.srun.stderr.contains(&way), "{way}: {told}");
    assert!(told.srun.stderr.contains("open the port range"), "says what to do: {told}");
}

fn blocked(cluster: &Cluster, node: &str, deny: Deny, checks: &str) -> Told {
    let fault = cluster.block(node, Block::ports(PORTS).deny(deny)).unwrap();
    let told = cluster.told(["-N4", checks]).unwrap();
    println!("{node} {deny:?} {checks}\n{told}");
    fault.undo().unwrap();
    cluster.wait_idle(4, IDLE).unwrap();
    told
}

// N02.
#[test]
fn a_port_range_that_a_worker_node_rejects_or_drops_is_named() {
    let _machine = side_by_side().unwrap();
    let cluster = product::boot(Cluster::builder().nodes(4), "").unwrap();
    for deny in [Deny::Reject, Deny::Drop] {
        for (option, check) in [
            ("--sanity-check", "all_reduce_2"),
            ("--sanity-check=network_connectivity", "network_connectivity"),
        ] {
            let told = blocked(&cluster, "n3", deny, option);
            assert_blocked(&told, check, "n3");
        }
    }
    cluster.wait_no_helper(Duration::from_secs(5)).unwrap();
}

// N02.
#[test]
fn one_direction_of_one_pair_is_named_with_its_port() {
    let _machine = side_by_side().unwrap();
    let cluster = product::boot(Cluster::builder().nodes(4), "").unwrap();
    // The head of the job meets everybody: only it can't reach n4.
    let block = Block::ports(PORTS).deny(Deny::Reject).from("n1");
    let fault = cluster.block("n4", block).unwrap();
    let told = cluster.told(["-N4", "--sanity-check=network_connectivity"]).unwrap();
    println!("{told}");
    fault.undo().unwrap();
    assert_blocked(&told, "network_connectivity", "n4");
    assert_eq!(told.items("FAIL"), [["network_connectivity", "path", "n1->n4"]], "{told}");
    cluster.wait_idle(4, IDLE).unwrap();
}

#[test]
fn a_leader_or_deputy_behind_a_firewall_does_not_keep_the_nodes_from_meeting() {
    let _machine = side_by_side().unwrap();
    let cluster = product::boot(Cluster::builder().nodes(4), "time.join_s = 4").unwrap();
    for node in ["n1", "n2"] {
        for deny in [Deny::Reject, Deny::Drop] {
            let told = blocked(&cluster, node, deny, "--sanity-check=network_connectivity");
            assert_blocked(&told, "network_connectivity", node);
        }
    }
    let told = blocked(&cluster, "n1", Deny::Drop, "--sanity-check");
    assert_blocked(&told, "all_reduce_2", "n1");
    cluster.wait_no_helper(Duration::from_secs(5)).unwrap();
}

// A29.
#[test]
fn where_prologs_can_t_meet_each_node_is_checked_by_itself_and_nobody_waits() {
    let _machine = side_by_side().unwrap();
    for (flags, why) in [("DeferBatch", "lacks Alloc"), ("Alloc,Serial", "has Serial")] {
        let cluster =
            product::boot(Cluster::builder().nodes(2).set("PrologFlags", flags), "time.join_s = 30").unwrap();
        let told =
            cluster.told(["-N2", "--sanity-check=gemm_flops,all_reduce_2", "echo", "started"]).unwrap();
        println!("{told}");
        assert!(told.started() && told.drained.is_empty(), "{told}");
        assert_eq!(told.outcome(), "PASS", "{told}");
        assert_eq!(told.report["nodes"].as_array().map(Vec::len), Some(1), "{told}");
        assert_eq!(
            told.items("SKIP").iter().map(|item| item[0]).collect::<Vec<_>>(),
            ["all_reduce_2"],
            "{told}"
        );
        assert!(told.srun.stderr.contains(why), "{told}");
    }
}
