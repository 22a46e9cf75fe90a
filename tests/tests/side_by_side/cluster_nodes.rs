//! Nodes, daemons and processes that are killed, stopped and started again.

use std::time::Duration;

use aimaster_tests::{Cluster, Signal, side_by_side};

const SOON: Duration = Duration::from_secs(20);

#[test]
fn a_killed_node_goes_away_and_comes_back() {
    let _machine = side_by_side().unwrap();
    let cluster = Cluster::builder().nodes(3).set("SlurmdTimeout", 5).boot().unwrap();
    let job = cluster.submit("sleep 300", ["-N2", "-w", "n1,n2"]).unwrap();
    cluster.wait_state(job, "RUNNING", SOON).unwrap();
    let own = cluster.set_node_policy("n2", "own = true\n").unwrap();
    let block = cluster.block("n2", aimaster_tests::Block::ports(50_000..=50_001)).unwrap();
    cluster.kill_node("n2").unwrap();
    assert!(cluster.exec("n2", ["true"]).unwrap_err().to_string().contains("n2 is down"));
    let ping = cluster.exec("n1", ["bash", "-c", "timeout 1 bash -c ': </dev/tcp/n2/6818'"]).unwrap();
    assert!(!ping.success());
    let info = cluster.wait_node("n2", "down", |n| n.is("DOWN"), Duration::from_secs(60)).unwrap();
    println!("the controller says {:?} {:?}", info.state, info.reason);
    assert_eq!(info.reason.as_deref(), Some("Not responding"));

    cluster.start_node("n2").unwrap();
    cluster.wait_node("n2", "back", |n| !n.is("DOWN") && !n.is("NOT_RESPONDING"), SOON).unwrap();
    assert!(cluster.exec("n2", ["iptables", "-S"]).unwrap().stdout.contains("50000:50001"));
    assert_eq!(cluster.read_file("n2", "/etc/aimaster/aimaster.toml").unwrap(), "own = true\n");
    block.undo().unwrap();
    own.undo().unwrap();
    assert!(cluster.read_file("n2", "/etc/aimaster/aimaster.toml").is_err());
    cluster.scancel([job.to_string()]).ok().unwrap();
    cluster.wait_idle(3, SOON).unwrap();
    assert_eq!(cluster.srun(["-N3", "hostname"]).ok().unwrap().stdout.lines().count(), 3);
}

#[test]
fn daemons_are_stopped_and_started() {
    let _machine = side_by_side().unwrap();
    let cluster = Cluster::builder().nodes(2).boot().unwrap();
    let job = cluster.submit("srun sleep 300", ["-N2"]).unwrap();
    cluster.wait_state(job, "RUNNING", SOON).unwrap();
    cluster.restart_slurmd("n1").unwrap();
    assert!(cluster.processes("n1").unwrap().iter().any(|p| p.comm == "slurmd"));
    assert_eq!(cluster.job(job).unwrap().state(), "RUNNING");

    cluster.stop_slurmctld().unwrap();
    assert!(!cluster.listens("ctl", 6817).unwrap());
    cluster.start_slurmctld().unwrap();
    assert_eq!(cluster.wait_state(job, "RUNNING", SOON).unwrap().get("NodeList"), "n[1-2]");
    cluster.scancel([job.to_string()]).ok().unwrap();
    cluster.wait_end(job, SOON).unwrap();

    cluster.stop_munged("n2").unwrap();
    assert!(!cluster.exec("n2", ["munge", "-n"]).unwrap().success());
    assert!(cluster.exec("n1", ["munge", "-n"]).unwrap().success());
    cluster.start_munged("n2").unwrap();
    assert!(cluster.exec("n2", ["munge", "-n"]).unwrap().success());
    assert_eq!(cluster.srun(["-N2", "hostname"]).ok().unwrap().stdout.lines().count(), 2);
}

#[test]
fn processes_are_stopped_and_killed_by_name() {
    let _machine = side_by_side().unwrap();
    let cluster = Cluster::builder().nodes(2).boot().unwrap();
    let sleepers = |node: &str| {
        let all = cluster.processes(node).unwrap();
        all.into_iter().filter(|p| p.comm == "sleep" && p.cmdline.ends_with(" 123")).collect::<Vec<_>>()
    };
    let running = cluster.srun(["-N2", "--kill-on-bad-exit", "sleep", "123"]).spawn().unwrap();
    aimaster_tests::wait::until(SOON, "both sleep", || {
        Ok((sleepers("n1").len() == 1 && sleepers("n2").len() == 1).then_some(()))
    })
    .unwrap();
    let state = |node: &str| {
        let pid = sleepers(node)[0].host_pid;
        let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        text.lines().find(|l| l.starts_with("State:")).unwrap().to_owned()
    };
    let stopped = cluster.stop_processes("n1", "sleep 123").unwrap();
    let states = (state("n1"), state("n2"));
    assert!(states.0.contains("stopped") && !states.1.contains("stopped"), "{states:?}");
    stopped.undo().unwrap();
    aimaster_tests::wait::until(SOON, "it goes on", || Ok((!state("n1").contains("stopped")).then_some(())))
        .unwrap();
    assert!(cluster.stop_processes("n1", "no such process").is_err());

    let hit = cluster.signal_processes("n2", "sleep 123", Signal::KILL).unwrap();
    assert_eq!(hit.len(), 1);
    let output = running.wait(SOON * 2).unwrap();
    assert!(output.stderr.contains("n2: task 1: Killed"), "{}", output.stderr);
}
