//! Our own parts that are missing, killed or stopped, and nodes that vanish: ERROR with the node named, nobody is
//! drained by us, the job starts or ends by `on_error`, and nothing of ours is left anywhere.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::time::Duration;

use aimaster_tests::{Cluster, Running, Signal, Told, product, side_by_side, wait};

/// Long enough that a fault of the test falls into a check.
const WINDOWS: &str = "host.seconds_per_check = 2.5";

/// The same for a job that must not start after an ERROR.
const STRICT: &str = "host.seconds_per_check = 2.5\nactions.on_error = 'fail'";

/// For an srun with checks to say something.
const SOON: Duration = Duration::from_secs(40);

/// From the end of a job to idle nodes.
const IDLE: Duration = Duration::from_secs(20);

/// Helpers end with their run; a stopped one is killed by the plugin after its own deadline.
const GONE: Duration = Duration::from_secs(60);

/// More than one window follows the line that a test waits for: on a busy machine the line comes late.
const CHECKS: &str = "--sanity-check=gemm_flops,all_reduce_2,all_reduce";

/// Starts srun on four nodes and waits until the first phase is over and the second one runs.
fn midway(cluster: &Cluster) -> Running {
    let srun = cluster.srun(["-N4", CHECKS, "echo", "started"]).timeout(SOON).spawn().unwrap();
    srun.wait_line(|line| line.contains("DeviceCheck: PASS"), SOON).unwrap();
    srun
}

fn told(cluster: &Cluster, srun: Running) -> Told {
    let told = cluster.told_of(srun.wait(Duration::from_secs(90)).unwrap()).unwrap();
    println!("{told}");
    told
}

/// ERROR that names `node` and nobody else; the job started or not.
fn assert_error(told: &Told, node: &str, started: bool) {
    assert_eq!(told.outcome(), "ERROR", "{told}");
    let named: Vec<&str> = told.items("ERROR").into_iter().map(|item| item[2]).collect();
    assert!(!named.is_empty() && named.iter().all(|name| *name == node), "{named:?}: {told}");
    assert_nobody_blamed(told, started);
    assert!(told.srun.stderr.contains(&format!("ERROR {node}")), "{told}");
}

fn assert_nobody_blamed(told: &Told, started: bool) {
    assert!(told.drained.is_empty(), "{told}");
    assert!(told.items("FAIL").is_empty() && told.items("SUSPECT").is_empty(), "{told}");
    assert_eq!((told.started(), told.srun.success()), (started, started), "{told}");
}

// M13, and E06 as far as signals go.
#[test]
fn a_helper_or_worker_that_is_killed_is_an_error_of_its_node() {
    let _machine = side_by_side().unwrap();
    let cluster = product::boot(Cluster::builder().nodes(4), WINDOWS).unwrap();
    // A coordinator: its node is lost to the others, who go on.
    let srun = midway(&cluster);
    assert_eq!(cluster.signal_processes("n3", "aimaster-prolog", Signal::KILL).unwrap().len(), 1);
    let said = told(&cluster, srun);
    assert_error(&said, "n3", true);
    cluster.wait_idle(4, IDLE).unwrap();
    // A worker: its coordinator says so itself.
    let srun = midway(&cluster);
    assert_eq!(cluster.signal_processes("n3", "aimaster-worker", Signal::KILL).unwrap().len(), 1);
    let said = told(&cluster, srun);
    assert_error(&said, "n3", true);
    assert!(said.message("ERROR").contains("signal"), "{said}");
    cluster.wait_idle(4, IDLE).unwrap();
    // The same where ERROR ends the job.
    product::set_policy(&cluster, STRICT).unwrap();
    let srun = midway(&cluster);
    cluster.signal_processes("n2", "aimaster-prolog", Signal::KILL).unwrap();
    assert_error(&told(&cluster, srun), "n2", false);
    cluster.wait_no_helper(GONE).unwrap();
}

/// Every phase, with the line that ends the one before it.
const PHASES: [(&str, Option<&str>); 5] = [
    ("CheckInit", None),
    ("DeviceCheck", None),
    ("SingleNodeCommCheck", Some("DeviceCheck: PASS")),
    ("TwoNodeCommCheck", Some("SingleNodeCommCheck: PASS")),
    ("AllNodeCommCheck", Some("TwoNodeCommCheck: PASS")),
];

fn the_leader_is_killed_in(phases: &[(&str, Option<&str>)]) {
    let _machine = side_by_side().unwrap();
    let cluster = product::boot(Cluster::builder().nodes(4), WINDOWS).unwrap();
    for (place, &(phase, after)) in phases.iter().enumerate() {
        let started = place % 2 == 0;
        product::set_policy(&cluster, if started { WINDOWS } else { STRICT }).unwrap();
        let checks = "--sanity-check=gemm_flops,all_reduce_1,all_reduce_2,all_reduce,all_gather";
        let srun = cluster.srun(["-N4", checks, "echo", "started"]).timeout(SOON).spawn().unwrap();
        match after {
            Some(line) => drop(srun.wait_line(|said| said.contains(line), SOON).unwrap()),
            None => {
                let ours = if phase == "CheckInit" { "aimaster-prolog" } else { "aimaster-worker" };
                wait::until(SOON, ours, || {
                    let processes = cluster.processes("n1")?;
                    Ok(processes.iter().any(|one| one.comm.starts_with(ours)).then_some(()))
                })
                .unwrap();
            }
        }
        cluster.signal_processes("n1", "aimaster-prolog", Signal::KILL).unwrap();
        let said = told(&cluster, srun);
        println!("killed in {phase}");
        assert_error(&said, "n1", started);
        cluster.wait_idle(4, IDLE).unwrap();
    }
    cluster.wait_no_helper(GONE).unwrap();
}

#[test]
fn the_deputy_goes_on_without_a_leader_that_is_killed_before_pairs_meet() {
    the_leader_is_killed_in(&PHASES[..3]);
}

#[test]
fn the_deputy_goes_on_without_a_leader_that_is_killed_while_nodes_measure_together() {
    the_leader_is_killed_in(&PHASES[3..]);
}

#[test]
fn a_helper_or_worker_that_is_stopped_holds_nobody_up_for_ever() {
    let _machine = side_by_side().unwrap();
    let policy = "host.seconds_per_check = 4.0\ntime.max_deadline_s = 24";
    let cluster = product::boot(Cluster::builder().nodes(4), policy).unwrap();
    for process in ["aimaster-worker", "aimaster-prolog"] {
        let srun = midway(&cluster);
        let stopped = cluster.stop_processes("n3", process).unwrap();
        let said = told(&cluster, srun);
        assert!(said.drained.is_empty(), "{said}");
        assert!(said.srun.stderr.contains("n3"), "{said}");
        drop(stopped);
        cluster.wait_idle(4, SOON).unwrap();
    }
    cluster.wait_no_helper(GONE).unwrap();
}

// Its transfers are too short to be hit but over a slow link.
#[test]
fn a_worker_that_is_lost_in_network_connectivity_is_named() {
    let _machine = side_by_side().unwrap();
    let cluster = product::boot(Cluster::builder().nodes(3), "time.max_deadline_s = 12").unwrap();
    let _slow = cluster.rate("n3", 20_000).unwrap();
    for signal in [Signal::KILL, Signal::STOP] {
        let checks = "--sanity-check=gemm_flops,network_connectivity";
        let srun = cluster.srun(["-N3", checks, "echo", "started"]).timeout(SOON).spawn().unwrap();
        srun.wait_line(|line| line.contains("DeviceCheck: PASS"), SOON).unwrap();
        assert_eq!(cluster.signal_processes("n3", "aimaster-worker", signal).unwrap().len(), 1);
        let said = told(&cluster, srun);
        assert!(said.drained.is_empty(), "{said}");
        // On a busy machine its partner may meet its silence first.
        let named = ["n3: network_connectivity", "n3 was lost during network_connectivity"];
        assert!(named.iter().any(|words| said.srun.stderr.contains(words)), "{said}");
        if signal == Signal::KILL {
            assert_error(&said, "n3", true);
        }
        cluster.wait_idle(3, SOON).unwrap();
    }
    cluster.wait_no_helper(GONE).unwrap();
}

// B06, B11, G02, M13.
#[test]
fn a_node_that_does_not_join_is_named() {
    let _machine = side_by_side().unwrap();
    let cluster = product::boot(Cluster::builder().nodes(4), "time.join_s = 4").unwrap();
    // The helper is missing: on a worker node, on the leader.
    for node in ["n3", "n1"] {
        let missing = cluster.remove_helper(node, "aimaster-prolog").unwrap();
        let said = cluster.told(["-N4", CHECKS]).unwrap();
        println!("{said}");
        assert_error(&said, node, true);
        missing.undo().unwrap();
        cluster.wait_idle(4, IDLE).unwrap();
    }
    // A helper that hangs.
    let own = cluster.own_folder("n4", aimaster_tests::NODE_DIR).unwrap();
    let script = "#!/bin/sh\nexec sleep 60\n";
    std::fs::write(cluster.own_path("n4", aimaster_tests::NODE_DIR).unwrap().join("aimaster-prolog"), script)
        .unwrap();
    let said = cluster.told(["-N4", CHECKS]).unwrap();
    println!("{said}");
    assert_error(&said, "n4", true);
    own.undo().unwrap();
    cluster.wait_idle(4, SOON).unwrap();
    cluster.wait_no_helper(GONE).unwrap();
}

// M13.
#[test]
fn a_node_that_dies_midway_is_named_and_left_to_slurm() {
    let _machine = side_by_side().unwrap();
    // As on real sites Slurm takes longer than a round of ours to give a node up.
    let builder = Cluster::builder().nodes(4).set("SlurmdTimeout", 60);
    let cluster = product::boot(builder, WINDOWS).unwrap();
    let srun = midway(&cluster);
    cluster.kill_node("n4").unwrap();
    let job = cluster.last_job().unwrap();
    // srun waits until Slurm itself gives the node up (DOWN, "Not responding"); the report does not.
    let report = wait::until(SOON, "a report", || Ok(cluster.report(job, 1).ok())).unwrap();
    println!("{report:#}\n{:?}", srun.lines());
    assert_eq!(report["outcome"], "ERROR", "{report:#}");
    let items = report["items"].as_array().unwrap();
    for item in items.iter().filter(|item| item["status"] == "ERROR") {
        assert_eq!(item["subject"]["name"], "n4", "{report:#}");
    }
    assert!(items.iter().all(|item| item["status"] != "FAIL"), "{report:#}");
    for node in ["n1", "n2", "n3", "n4"] {
        assert!(!cluster.node(node).unwrap().is("DRAIN"), "{node}");
    }
}
