//! One slow rail of one node: `multi_all_reduce_2` names the rail, since it alone measures each by itself.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use aimaster_tests::{Cluster, product, serial};

/// A range whose ports share their upper bits. Ranks take neighbouring ports from an even one on, so that rail 1 has
/// the odd ones.
const POLICY: &str = "network = { port_first = 0x6800, port_last = 0x687f }";
const RAIL_1: u16 = 0x6801;
const RANGE_AND_PARITY: u16 = 0xff81;

/// 20 Mbit/s are 0.0025 GB/s, a twentieth of the floor for a pair.
const SLOW_KBIT: u64 = 20_000;

#[test]
fn a_slow_rail_of_a_node_is_named_with_its_node() {
    let _machine = serial().unwrap();
    let cluster = product::boot(Cluster::builder().nodes(4), POLICY).unwrap();
    for node in ["n1", "n3"] {
        let fault = cluster.rate_ports(node, RAIL_1, RANGE_AND_PARITY, SLOW_KBIT).unwrap();
        let told = cluster.told(["-N4", "--sanity-check=multi_all_reduce_2"]).unwrap();
        println!("{told}");
        fault.undo().unwrap();
        let rail = format!("{node}/rail1");
        assert_eq!(told.outcome(), "FAIL", "{told}");
        assert_eq!(told.items("FAIL"), [["multi_all_reduce_2", "rail", rail.as_str()]], "{told}");
        assert!(told.items("SUSPECT").is_empty() && told.items("ERROR").is_empty(), "{told}");
        assert_eq!(told.drained_names(), [node], "{told}");
        let reason = &told.drained[0].1;
        assert!(reason.starts_with(&format!("aimaster: multi_all_reduce_2 {rail} ")), "{reason}");
        assert!(!told.started(), "{told}");
        cluster.undrain().unwrap();
    }
}
