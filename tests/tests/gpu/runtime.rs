//! The check while the job runs, on real NCCL: two nodes that share a GPU train together, and a fault is named by its
//! class and its node within the time that is promised, while a job without one is left in peace.

use std::time::{Duration, Instant};

use aimaster_tests::c4d::FLAG;
use aimaster_tests::{JobId, Running, serial, wait};
use serde_json::Value;

use crate::site::{LONG, Site};

const TRAINING: &str = include_str!("training.py");

/// Where the nodes see it.
const SCRIPT: &str = "/home/alice/training.py";

/// From the moment when something stops until it is named, at the default floor.
const NAMED: Duration = Duration::from_secs(15);

/// The same for slowness: two windows of times, and what is left of the one in which it began.
const NAMED_SLOW: Duration = Duration::from_secs(45);

/// A clean job lasts so long.
const CLEAN: Duration = Duration::from_secs(300);
const CLEAN_GRAPHS: Duration = Duration::from_secs(60);

/// Starts training on both nodes; `None`, with a word, where there is no torch.
fn train(site: &Site, fault: &str, seconds: u64) -> Option<Running> {
    let Ok(python) = std::env::var("AIMASTER_PYTHON") else {
        eprintln!("skipped: AIMASTER_PYTHON names no python with torch");
        return None;
    };
    for node in site.cluster.nodes() {
        site.cluster.write_file(node, SCRIPT, TRAINING).unwrap();
    }
    let seconds = seconds.to_string();
    let args = ["-N2", "--ntasks-per-node=1", "--gres=gpu:1", FLAG, &python, SCRIPT, fault, &seconds];
    let srun = site.cluster.srun(args).env("MASTER_ADDR", "n1").timeout(CLEAN + LONG).spawn().unwrap();
    Some(srun)
}

fn runtime(site: &Site, job: JobId) -> Value {
    site.cluster.runtime_report("n1", job, 0).unwrap_or(Value::Null)
}

/// The finding that the fault leads to, and how long it took.
fn named(site: &Site, fault: &str, within: Duration) -> Option<Value> {
    let srun = train(site, fault, LONG.as_secs())?;
    srun.wait_line(|line| line == "fault", LONG).unwrap();
    let begun = Instant::now();
    let job = site.cluster.last_job().unwrap();
    let found = wait::until(LONG, "a finding", || {
        let report = runtime(site, job);
        Ok(report["findings"].as_array().and_then(|all| all.first()).cloned())
    });
    let took = begun.elapsed();
    let report = runtime(site, job);
    site.cluster.scancel([job.to_string()]).ok().unwrap();
    // A stopped process hears the job's end only when it goes on; Slurm sees to that.
    let said = srun.wait(LONG).unwrap();
    site.cluster.wait_idle(2, LONG).unwrap();
    let finding = found.unwrap_or_else(|error| panic!("{error:#}\n{report:#}\n{}", said.stderr));
    println!("{fault}: {} after {:.1} s: {}", finding["class"], took.as_secs_f64(), finding["message"]);
    assert!(took < within, "{fault}: {took:?}\n{report:#}");
    assert_eq!(report["telemetry"]["status"], "OK", "{report:#}");
    assert!(site.cluster.drained().unwrap().is_empty(), "telemetry alone drains nobody");
    Some(finding)
}

/// The rank on n2, and no other.
fn assert_second_node(finding: &Value) {
    let suspects = finding["suspects"].as_array().unwrap();
    assert!(!suspects.is_empty() && suspects.iter().all(|who| who["node"] == 1), "{finding:#}");
}

// O10.
#[test]
fn a_rank_that_stops_is_named_with_its_class() {
    let _machine = serial().unwrap();
    let Some(site) = Site::boot() else { return };
    for (fault, class) in [("waits", "non_communication_hang"), ("before", "paused"), ("inside", "paused")] {
        let Some(finding) = named(&site, fault, NAMED) else { return };
        assert_eq!(finding["class"], class, "{fault}: {finding:#}");
        assert_second_node(&finding);
    }
}

#[test]
fn a_rank_that_stops_between_replays_of_a_graph_is_named() {
    let _machine = serial().unwrap();
    let Some(site) = Site::boot() else { return };
    let Some(finding) = named(&site, "graph_waits", NAMED) else { return };
    assert_eq!(finding["class"], "non_communication_hang", "{finding:#}");
    assert_second_node(&finding);
}

#[test]
fn a_rank_that_skips_a_collective_is_a_deadlock() {
    let _machine = serial().unwrap();
    let Some(site) = Site::boot() else { return };
    let Some(finding) = named(&site, "skips", NAMED) else { return };
    assert_eq!(finding["class"], "deadlock", "{finding:#}");
}

#[test]
fn a_rank_that_is_late_at_every_step_is_a_straggler() {
    let _machine = serial().unwrap();
    let Some(site) = Site::boot() else { return };
    let Some(finding) = named(&site, "late", NAMED_SLOW) else { return };
    assert_eq!(finding["class"], "straggler", "{finding:#}");
    assert_second_node(&finding);
}

/// A job without a fault, for so long.
fn assert_nothing_found(kind: &str, time: Duration) {
    let _machine = serial().unwrap();
    let Some(site) = Site::boot() else { return };
    let Some(mut srun) = train(&site, kind, time.as_secs()) else { return };
    srun.wait_line(|line| line == "steady", LONG).unwrap();
    let job = site.cluster.last_job().unwrap();
    let mut last = Value::Null;
    while !srun.finished().unwrap() {
        let report = runtime(&site, job);
        if !report.is_null() {
            last = report;
        }
        std::thread::sleep(Duration::from_secs(1));
    }
    assert!(srun.wait(LONG).unwrap().success());
    println!("{kind}: {last:#}");
    assert_eq!((&last["telemetry"]["status"], &last["judged"]), (&"OK".into(), &true.into()), "{last:#}");
    for list in ["findings", "withdrawn", "errors"] {
        assert_eq!(last[list].as_array().map(Vec::len), Some(0), "{kind}: {list} in {last:#}");
    }
}

#[test]
fn nothing_is_found_in_a_clean_job() {
    assert_nothing_found("clean", CLEAN);
}

#[test]
fn nothing_is_found_in_a_clean_job_of_graphs() {
    assert_nothing_found("graph_clean", CLEAN_GRAPHS);
}
