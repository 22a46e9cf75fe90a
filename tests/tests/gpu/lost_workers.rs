//! Workers that are killed or stopped in each check: the node is named, the deadline kept, and the GPU serves the next job.

use std::time::{Duration, Instant};

use aimaster_tests::{Signal, serial, wait};
use serde_json::Value;

use crate::site::{LONG, Site, items};

/// Windows and limits of the tests that hit a worker: long enough to be hit, short enough to be waited for.
const HIT: &str = "seconds_per_check = 0.6\nstart_s = 2\n[host]\nseconds_per_check = 1.0\n";

/// When a check of the first phase runs, from the start of its worker: after the GPU is open, which takes about a second.
const IN_THE_FIRST_PHASE_MS: [u64; 6] = [900, 1100, 700, 1300, 500, 1600];

/// When one of a later phase runs, from the line that ends the first.
const LATER_MS: [u64; 4] = [0, 0, 100, 200];

/// Hits the worker of n2 with a signal while it measures this check, and says what came of it.
fn hit(site: &Site, nodes_and_gpus: &[&str], check: &str, signal: Signal) -> Value {
    // Of the first phase nothing is seen before it is over.
    let first_phase = matches!(check, "gemm_flops" | "kernel_launch");
    let checks = format!("--sanity-check={}{check}", if first_phase { "" } else { "gemm_flops," });
    let delays = if first_phase { &IN_THE_FIRST_PHASE_MS[..] } else { &LATER_MS };
    for delay_ms in delays {
        let args = [checks.as_str(), "echo", "started"];
        let srun =
            site.cluster.srun(nodes_and_gpus.iter().copied().chain(args)).timeout(LONG).spawn().unwrap();
        if first_phase {
            wait::until(LONG, "the worker of n2", || {
                let processes = site.cluster.processes("n2")?;
                Ok(processes.iter().any(|one| one.comm.starts_with("aimaster-worker")).then_some(()))
            })
            .unwrap();
        } else {
            // PASS or not: nodes that share a GPU may look slow.
            srun.wait_line(|line| line.contains("DeviceCheck:"), LONG).unwrap();
        }
        std::thread::sleep(Duration::from_millis(*delay_ms));
        let struck = Instant::now();
        let hit = site.cluster.signal_processes("n2", "aimaster-worker", signal).unwrap();
        let srun = srun.wait(LONG).unwrap();
        let took = struck.elapsed();
        let report = site.cluster.report(site.cluster.last_job().unwrap(), 1).unwrap();
        site.cluster.wait_idle(site.cluster.nodes().len(), LONG).unwrap();
        // A worker that was early or late had nothing to lose: once more.
        if hit.is_empty() || report["outcome"] == "PASS" {
            continue;
        }
        println!("{check} {signal:?}: {} after {:.1} s", report["outcome"], took.as_secs_f64());
        println!("{}", srun.stderr);
        assert!(took < Duration::from_secs(60), "{took:?}");
        return report;
    }
    panic!("{check} was not hit");
}

/// A worker that is gone is its node's ERROR; one that is silent may be anything, so the run fails and says whose.
fn each_is_hit_in(site: &Site, nodes_and_gpus: &[&str], checks: &[&str]) {
    for check in checks {
        for signal in [Signal::KILL, Signal::STOP] {
            let report = hit(site, nodes_and_gpus, check, signal);
            let named = |item: &Value| item["message"].as_str().is_some_and(|text| text.starts_with("n2: "));
            assert!(items(&report).any(|item| item["status"] != "PASS" && named(item)), "{report:#}");
            assert!(site.cluster.drained().unwrap().is_empty());
        }
    }
    // The GPU serves the next job.
    let srun = site.cluster.srun(nodes_and_gpus.iter().copied().chain(["--sanity-check=gemm_flops", "true"]));
    assert!(srun.timeout(LONG).run().unwrap().success());
    let report = site.cluster.report(site.cluster.last_job().unwrap(), 1).unwrap();
    assert_eq!(report["outcome"], "PASS", "{report:#}");
}

// M13, E06.
#[test]
fn a_worker_that_is_killed_or_stopped_in_a_check_of_nodes_or_pairs_is_named_and_the_gpu_lives_on() {
    let _machine = serial().unwrap();
    let Some(site) = Site::boot() else { return };
    site.set(HIT);
    let checks = [
        "gemm_flops",
        "kernel_launch",
        // network_connectivity is over in milliseconds here: its worker is hit on a slow link, in lost_helpers.rs.
        "pytorch_gloo_2",
        "all_reduce_2",
        "all_gather_2",
        "all_to_all_2",
        "multi_all_reduce_2",
    ];
    each_is_hit_in(&site, &["-N2", "--gres=gpu:1"], &checks);
}

#[test]
fn a_worker_that_is_killed_or_stopped_in_a_check_of_all_nodes_is_named_and_the_gpu_lives_on() {
    let _machine = serial().unwrap();
    let Some(site) = Site::boot() else { return };
    site.set(HIT);
    each_is_hit_in(&site, &["-N2", "--gres=gpu:1"], &["multi_all_reduce", "all_reduce", "all_gather"]);
}

#[test]
fn a_worker_that_is_killed_or_stopped_in_a_check_of_two_gpus_is_named_too() {
    let _machine = serial().unwrap();
    let Some(site) = Site::sharing_gpus(2, &["/dev/nvidia0", "/dev/nvidia1"]) else { return };
    site.set(HIT);
    each_is_hit_in(&site, &["-N2", "--gres=gpu:2"], &["all_reduce_1", "comp_comm_overlap"]);
}
