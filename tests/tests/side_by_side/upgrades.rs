//! Plugin and helpers are replaced by another build, upwards and downwards, while jobs wait, are checked and run; and nodes
//! of one job have different ones. Nobody is blamed, nothing is left, and what does not fit is said.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::time::Duration;

use aimaster_tests::c4d::{self, FLAG};
use aimaster_tests::other_build::{Build, OTHER_VARIABLE, OTHER_VERSION, VERSION};
use aimaster_tests::{Cluster, JobId, NODE_DIR, Told, side_by_side, wait};

const SOON: Duration = Duration::from_secs(60);

/// From a job's end to nothing left.
const GONE: Duration = Duration::from_secs(20);

/// Long enough that the exchange falls into a check.
const WINDOWS: &str = "host.seconds_per_check = 1.5\n";

const CHECKS: &str = "--sanity-check=gemm_flops,all_reduce_2";

const NODES: [&str; 3] = ["n1", "n2", "n3"];

/// Runs until it is told to end, and has a step after that.
const PATIENT: &str = "until [ -e go ]; do sleep 0.1; done; rm go; srun echo step";

fn let_go(cluster: &Cluster) {
    std::fs::write(cluster.base().join("home/alice/go"), "").unwrap();
}

fn replace(cluster: &Cluster, build: &Build) {
    build.replace(&cluster.base().join("opt")).unwrap();
}

fn nobody_is_blamed(cluster: &Cluster, what: &str) {
    assert!(cluster.drained().unwrap().is_empty(), "{what}");
    cluster.wait_idle(NODES.len(), GONE).unwrap();
}

/// A job whose agents, gate and request are of one build and whose end is of the other.
fn a_running_job_ends_well(cluster: &Cluster, to: &Build, what: &str) {
    // It waits in the queue during the exchange: the request is of the old build, all else of the new one.
    let waiting = cluster.submit("echo started", ["-N3", "--hold", CHECKS]).unwrap();
    let job = cluster.submit(PATIENT, ["-N3", CHECKS, FLAG]).unwrap();
    cluster.wait_agents(&NODES, SOON).unwrap();
    cluster.wait_state(job, "RUNNING", SOON).unwrap();
    replace(cluster, to);
    let_go(cluster);
    let record = cluster.wait_end(job, SOON).unwrap();
    let output = cluster.job_output(job).unwrap();
    println!("{what}: {output}");
    assert_eq!(record.state(), "COMPLETED", "{what}: {output}");
    assert_eq!(output.lines().filter(|line| *line == "step").count(), 3, "{what}: {output}");
    // The new epilog ended the old agents, kept what they said, and removed the run folders.
    cluster.wait_no_trace(&NODES, GONE).unwrap();
    let kept = runtime_report(cluster, job);
    assert!(kept["finished"].is_object(), "{what}: {kept:#}");
    nobody_is_blamed(cluster, what);

    cluster.scontrol(["release", &waiting.to_string()]).ok().unwrap();
    cluster.wait_state(waiting, "COMPLETED", SOON).unwrap();
    let report = cluster.report(waiting, 1).unwrap();
    assert_eq!(report["outcome"], "PASS", "{what}: {report:#}");
    nobody_is_blamed(cluster, what);
}

/// What the epilog kept of the runtime check.
fn runtime_report(cluster: &Cluster, job: JobId) -> serde_json::Value {
    let folder = cluster.base().join("reports/aim").join(job.to_string()).join("1");
    let text = wait::until(SOON, "the kept report of the runtime check", || {
        Ok(std::fs::read_to_string(folder.join("runtime.json")).ok())
    });
    serde_json::from_str(&text.unwrap()).unwrap()
}

/// A prolog that is under way goes on with the files that it has; the plugin that reads its gate is of the other build.
fn a_prolog_under_way_ends_well(cluster: &Cluster, to: &Build, what: &str) {
    let srun = cluster.srun(["-N3", CHECKS, "echo", "started"]).timeout(SOON).spawn().unwrap();
    srun.wait_line(|line| line.contains("DeviceCheck: PASS"), SOON).unwrap();
    replace(cluster, to);
    let said = cluster.told_of(srun.wait(SOON).unwrap()).unwrap();
    println!("{what}: {said}");
    assert_eq!((said.outcome(), said.started()), ("PASS", true), "{what}: {said}");
    nobody_is_blamed(cluster, what);
}

/// With the runtime check the prolog starts an agent of the other version at its end: that one refuses, and the job starts
/// without it.
fn an_agent_of_another_version_is_refused_in_clear_words(cluster: &Cluster, to: &Build, versions: [&str; 2]) {
    let srun = cluster.srun(["-N3", CHECKS, FLAG, "echo", "started"]).timeout(SOON).spawn().unwrap();
    srun.wait_line(|line| line.contains("DeviceCheck: PASS"), SOON).unwrap();
    replace(cluster, to);
    let said = cluster.told_of(srun.wait(SOON).unwrap()).unwrap();
    println!("{said}");
    assert_eq!((said.outcome(), said.started()), ("PASS", true), "{said}");
    let [from, to] = versions;
    let words = format!("aimaster-prolog is of version {from}, this is {to}: install the same one");
    assert!(said.srun.stderr.contains(&words), "no {words:?} in {said}");
    cluster.wait_no_trace(&NODES, GONE).unwrap();
    nobody_is_blamed(cluster, "an agent of another version");
}

#[test]
fn plugin_and_helpers_are_replaced_under_running_jobs() {
    let _machine = side_by_side().unwrap();
    let cluster = c4d::boot(Cluster::builder().nodes(3), WINDOWS).unwrap();
    let (this, other) = (Build::this(&cluster).unwrap(), Build::other(&cluster).unwrap());
    for (to, what) in [(&other, "to the other"), (&this, "back")] {
        a_running_job_ends_well(&cluster, to, what);
    }
    a_prolog_under_way_ends_well(&cluster, &other, "to the other");
    if std::env::var_os(OTHER_VARIABLE).is_none() {
        an_agent_of_another_version_is_refused_in_clear_words(&cluster, &this, [OTHER_VERSION, VERSION]);
    }
    replace(&cluster, &this);
    // slurmd too is started anew, as after an upgrade of a node.
    for node in NODES {
        cluster.restart_slurmd(node).unwrap();
    }
    cluster.wait_idle(3, GONE).unwrap();
    let said = cluster.told(["-N3", CHECKS]).unwrap();
    assert_eq!((said.outcome(), said.started()), ("PASS", true), "{said}");
}

/// ERROR that names these nodes and nobody else, and why; the job starts.
fn assert_mixed(told: &Told, nodes: &[&str], why: &str) {
    assert_eq!(told.outcome(), "ERROR", "{told}");
    let mut named: Vec<&str> = told.items("ERROR").into_iter().map(|item| item[2]).collect();
    named.sort_unstable();
    named.dedup();
    assert_eq!(named, nodes, "{told}");
    assert!(told.items("FAIL").is_empty() && told.items("SUSPECT").is_empty(), "{told}");
    assert!(told.drained.is_empty() && told.started(), "{told}");
    assert!(told.message("ERROR").contains(why), "no {why:?} in {told}");
}

// N07.
#[test]
fn nodes_of_a_job_with_different_versions_are_an_error_that_names_both() {
    let _machine = side_by_side().unwrap();
    let cluster = c4d::boot(Cluster::builder().nodes(3), "time.join_s = 4\n").unwrap();
    let other = Build::other(&cluster).unwrap();
    for (odd, misfits) in [("n3", &["n3"][..]), ("n1", &["n2", "n3"])] {
        let own = cluster.own_folder(odd, NODE_DIR).unwrap();
        other.replace(&cluster.own_path(odd, NODE_DIR).unwrap()).unwrap();
        let said = cluster.told(["-N3", CHECKS]).unwrap();
        println!("{odd}: {said}");
        let (theirs, leaders) = if odd == "n1" { (VERSION, OTHER_VERSION) } else { (OTHER_VERSION, VERSION) };
        let why = format!("it runs version {theirs}, the leader runs {leaders}: install the same one");
        if std::env::var_os(OTHER_VARIABLE).is_none() {
            assert_mixed(&said, misfits, &why);
        } else {
            assert!(said.drained.is_empty() && said.items("FAIL").is_empty() && said.started(), "{said}");
        }

        // Each node is watched by its own agent, whose end nothing hinders.
        let job = cluster.submit("sleep 300", ["-N3", FLAG]).unwrap();
        cluster.wait_agents(&NODES, SOON).unwrap();
        cluster.scancel([job.to_string()]).ok().unwrap();
        cluster.wait_no_trace(&NODES, GONE).unwrap();
        nobody_is_blamed(&cluster, odd);
        own.undo().unwrap();
    }
}
