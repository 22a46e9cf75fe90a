//! The controller is gone, or silent, when a job's nodes have a verdict: what the policy says happens, in time, and the
//! report is there.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::time::{Duration, Instant};

use aimaster_tests::{CTL, Cluster, JobId, product, side_by_side, wait};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(60);

/// Rate of a slow network in kbit/s: a twentieth of the limit.
const SLOW: u64 = 20_000;

/// Within these seconds of its start a prolog stops trying.
const DEADLINE_S: u64 = 14;

/// After its deadline: telling everybody, and writing the gate, while other tests use the machine.
const GRACE: Duration = Duration::from_secs(10);

fn policy(lost: &str) -> String {
    format!(
        "[host]\nseconds_per_check = 1.8\n[time]\njoin_s = 4\nmax_deadline_s = {DEADLINE_S}\nscontrol_s = 2\n\
         [actions]\non_controller_lost = '{lost}'\n"
    )
}

fn helpers(cluster: &Cluster) -> usize {
    let of = |node: &str| {
        let all = cluster.processes(node).unwrap();
        all.iter().filter(|process| process.comm.starts_with("aimaster")).count()
    };
    cluster.nodes().into_iter().map(of).sum()
}

/// Submits a job of three nodes and waits until it measures on all of them.
fn measuring(cluster: &Cluster, fail_action: &str) -> JobId {
    let action = format!("--sanity-fail-action={fail_action}");
    let job = cluster.submit("echo ran", ["-N3", "--sanity-check=all_reduce_2", &action]).unwrap();
    wait::until(SOON, "the workers run", || Ok((helpers(cluster) >= 6).then_some(()))).unwrap();
    job
}

/// Waits until the helpers have ended, which the deadline bounds.
fn wait_prologs(cluster: &Cluster) {
    let since = Instant::now();
    wait::until(SOON, "the helpers end", || Ok((helpers(cluster) == 0).then_some(()))).unwrap();
    let took = since.elapsed();
    eprintln!("the prologs ended after {took:?}");
    assert!(took < Duration::from_secs(DEADLINE_S) + GRACE, "the prologs took {took:?}");
}

/// The verdict that the nodes have, for a batch job that has no output yet.
fn gate(cluster: &Cluster, node: &str, job: JobId) -> Value {
    let path = format!("/run/aimaster/aim/{node}/{job}.0/gate.json");
    serde_json::from_str(&cluster.read_file(node, &path).unwrap()).unwrap()
}

fn assert_undone(report: &Value) {
    assert_eq!(report["outcome"], "FAIL", "{report:#}");
    assert!(report["drained"].as_array().unwrap().is_empty(), "{report:#}");
    assert!(report["errors"].to_string().contains("the controller"), "{report:#}");
}

// C01, C11, C23, A35.
#[test]
fn a_job_without_a_controller_starts_or_is_held_as_the_policy_says() {
    let _machine = side_by_side().unwrap();
    let cluster = product::boot(Cluster::builder().nodes(4), "").unwrap();
    let _slow = cluster.rate("n2", SLOW).unwrap();
    for (lost, action, starts) in
        [("start", "requeue", true), ("hold", "requeue", false), ("start", "fail", false)]
    {
        product::set_policy(&cluster, &policy(lost)).unwrap();
        let job = measuring(&cluster, action);
        let frozen = cluster.stop_processes(CTL, "slurmctld").unwrap();
        wait_prologs(&cluster);
        let report = cluster.report(job, 1).unwrap();
        assert_undone(&report);
        assert_eq!(report["action"], if starts { "start" } else { "end" }, "{report:#}");
        frozen.undo().unwrap();
        let record = cluster.wait_end(job, SOON).unwrap();
        let output = cluster.job_output(job).unwrap();
        eprintln!("{lost} {action}: {} {}\n{output}", record.state(), record.get("ExitCode"));
        assert_eq!(record.get("Restarts"), "0", "{record:?}");
        assert_eq!(record.state(), if starts { "COMPLETED" } else { "FAILED" }, "{output}");
        assert_eq!(output.lines().any(|line| line == "ran"), starts, "{output}");
        assert!(output.contains("n2: all_reduce_2") && output.contains("the controller"), "{output}");
        assert!(cluster.drained().unwrap().is_empty(), "nobody acts past the deadline");
        cluster.wait_idle(4, SOON).unwrap();
    }

    // A controller that is gone altogether. (Slurm does not start a batch job whose prologs ended meanwhile.)
    product::set_policy(&cluster, &policy("hold")).unwrap();
    let job = measuring(&cluster, "requeue");
    cluster.stop_slurmctld().unwrap();
    wait_prologs(&cluster);
    assert_undone(&cluster.report(job, 1).unwrap());
    for node in ["n1", "n2", "n3"] {
        let gate = gate(&cluster, node, job);
        assert_eq!(gate["start"], false, "{node}: {gate:#}");
        assert!(gate["lines"].to_string().contains("the controller"), "{node}: {gate:#}");
    }
    cluster.start_slurmctld().unwrap();
    assert!(cluster.drained().unwrap().is_empty());
}

#[test]
fn a_controller_that_is_silent_for_some_seconds_is_waited_for() {
    let _machine = side_by_side().unwrap();
    let cluster = product::boot(Cluster::builder().nodes(4), &policy("start")).unwrap();
    let _slow = cluster.rate("n2", SLOW).unwrap();
    let job = measuring(&cluster, "fail");
    let frozen = cluster.stop_processes(CTL, "slurmctld").unwrap();
    // Longer than the checks take: the action meets a silent controller.
    std::thread::sleep(Duration::from_secs(5));
    assert!(helpers(&cluster) > 0, "the action waits for the controller");
    frozen.undo().unwrap();
    wait_prologs(&cluster);
    let record = cluster.wait_end(job, SOON).unwrap();
    let output = cluster.job_output(job).unwrap();
    eprintln!("{output}");
    assert_eq!(record.state(), "FAILED", "{output}");
    let drained = cluster.drained().unwrap();
    assert_eq!(drained.len(), 1, "{drained:?} {:#}", cluster.report(job, 1).unwrap());
    assert!(drained[0].1.starts_with("aimaster: all_reduce_2 n2"), "{drained:?}");
}
