//! What becomes of a job once its prolog has run, or failed to: the launch gate, the helper's deadline, and the
//! epilog, on a real Slurm with a stand-in for the helper.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a step that fails is the test's failure")]

use std::time::Duration;

use aimaster_tests::plugin::{POLICY, set_mode};
use aimaster_tests::{Cluster, NODE_DIR, Output, plugin, side_by_side};

/// Long enough for any job here but those whose helper is slow on purpose.
const WAIT: Duration = Duration::from_secs(40);

const FLAG: &str = "--sanity-check=gemm_flops";

/// What the stand-in's closed gate says.
const CLOSED: &str = "FAIL gemm_flops n1 gpu3 412<620TFLOP/s";

/// What its open gate says.
const OPEN: &str = "PASS 1 node in 1 s";

/// What a job without a verdict is told.
const UNCHECKED: &str = "aimaster: ERROR: n1 was not checked: ";

fn srun(cluster: &Cluster) -> Output {
    cluster.srun([FLAG, "-n2", "echo", "task ran"]).run().unwrap()
}

/// No job of these tests may cost a node.
fn nodes_are_fine(cluster: &Cluster) {
    let reasons = cluster.sinfo(["-h", "-R"]).ok().unwrap();
    assert!(reasons.stdout.is_empty(), "{}", reasons.stdout);
}

// C15: and no job is held for it.
#[test]
fn a_closed_gate_ends_every_task_with_the_verdict() {
    let _machine = side_by_side().unwrap();
    // A01: a site's own prolog that succeeds hides nothing.
    let builder = Cluster::builder().nodes(2).set("Prolog", "/bin/true");
    let cluster = plugin::cluster_of(builder, "optional", &format!("helpers={NODE_DIR}")).unwrap();
    for node in ["n1", "n2"] {
        set_mode(&cluster, node, "closed").unwrap();
    }
    let output = cluster.srun([FLAG, "-N2", "-n4", "echo", "task ran"]).run().unwrap();
    assert_eq!(output.code(), 1);
    assert!(output.stdout.is_empty(), "{}", output.stdout);
    // Once a node, whatever the number of tasks.
    assert_eq!(output.stderr.matches(CLOSED).count(), 2, "{}", output.stderr);

    // A user's word about the node, the cluster or the request leads nowhere else.
    let lies = cluster.srun([FLAG, "echo", "task ran"]).env("SLURMD_NODENAME", "n9");
    let lies = lies.env("SLURM_CLUSTER_NAME", "other").env("SLURM_RESTART_COUNT", "7");
    let output = lies.run().unwrap();
    assert!(output.code() == 1 && output.stderr.contains(CLOSED), "{}", output.stderr);

    let job = cluster.submit("echo task ran; srun echo step ran", [FLAG]).unwrap();
    let record = cluster.wait_end(job, WAIT).unwrap();
    assert_eq!((record.state(), record.get("ExitCode")), ("FAILED", "1:0"));
    assert_eq!(cluster.job_output(job).unwrap(), format!("aimaster: {CLOSED}\n"));

    let output = cluster.salloc([FLAG, "-N1", "srun", "echo", "task ran"]).run().unwrap();
    assert!(
        output.code() == 1 && output.stdout.is_empty() && output.stderr.contains(CLOSED),
        "{}",
        output.stderr
    );
    nodes_are_fine(&cluster);
}

#[test]
fn an_open_gate_shows_in_a_batch_job_s_output_once() {
    let _machine = side_by_side().unwrap();
    let cluster = plugin::cluster("required", 1).unwrap();
    let job = cluster.submit("echo script; srun -n2 echo step", [FLAG, "-n2"]).unwrap();
    cluster.wait_state(job, "COMPLETED", WAIT).unwrap();
    assert_eq!(cluster.job_output(job).unwrap(), format!("aimaster: {OPEN}\nscript\nstep\nstep\n"));
    let output = srun(&cluster);
    assert!(output.success() && !output.stderr.contains("aimaster: "), "{}", output.stderr);
}

// A13, A14: six in a row, under a required line; a prolog that failed would have the job held.
#[test]
fn a_helper_that_fails_costs_neither_the_job_nor_the_node() {
    let _machine = side_by_side().unwrap();
    let cluster = plugin::cluster("required", 1).unwrap();
    // Mode, whether the user is told, and how long the start may take: the handshake's 10 s; the helper's own
    // deadline of 1 s, 1 s of grace and half a second from SIGTERM to SIGKILL.
    for (mode, told, least_s, most_s) in [
        ("nothing", true, 0, 5),
        ("crash", true, 0, 5),
        ("link", true, 0, 5),
        ("mute", true, 10, 14),
        ("hang", true, 2, 6),
        ("slow", false, 11, 15),
    ] {
        set_mode(&cluster, "n1", mode).unwrap();
        let output = srun(&cluster);
        let took = output.elapsed.as_secs();
        assert_eq!(output.stdout, "task ran\ntask ran\n", "{mode}: {}", output.stderr);
        assert_eq!(output.stderr.matches(UNCHECKED).count(), usize::from(told), "{mode}: {}", output.stderr);
        assert!((least_s..=most_s).contains(&took), "{mode}: {took} s");
        assert!(
            cluster.processes("n1").unwrap().iter().all(|p| !p.cmdline.contains("aimaster-prolog")),
            "{mode}"
        );
    }
    let log = std::fs::read_to_string(cluster.log_file("slurmd.n1.log")).unwrap();
    for part in ["was killed by signal 11", "did not say its deadline", "missed its own deadline"] {
        assert!(log.contains(part), "no {part:?} in slurmd's log");
    }
    nodes_are_fine(&cluster);
}

// B06, B11, and B05: a site's own checks need nothing from the submission.
#[test]
fn without_a_verdict_the_policy_decides_and_only_for_jobs_that_were_to_be_checked() {
    let _machine = side_by_side().unwrap();
    let cluster = plugin::cluster("optional", 1).unwrap();
    let _gone = cluster.remove_helper("n1", "aimaster-prolog").unwrap();
    cluster.set_policy(&format!("{POLICY}[actions]\non_error = \"fail\"\n")).unwrap();

    let output = srun(&cluster);
    assert!(output.code() == 1 && output.stdout.is_empty(), "{}", output.stderr);
    assert!(output.stderr.contains("/opt/aimaster/aimaster-prolog left no verdict"), "{}", output.stderr);
    let job = cluster.submit("echo script", [FLAG]).unwrap();
    assert_eq!(cluster.wait_end(job, WAIT).unwrap().state(), "FAILED");
    let log = std::fs::read_to_string(cluster.log_file("slurmd.n1.log")).unwrap();
    assert!(log.contains("/opt/aimaster/aimaster-prolog can't be started: No such file"), "{log}");

    // Nobody asked, or the user said off.
    for flag in ["-n1", "--sanity-check=off"] {
        let output = cluster.srun([flag, "echo", "task ran"]).ok().unwrap();
        assert!(!output.stderr.contains(UNCHECKED), "{}", output.stderr);
    }
    // Nobody asked, but the site wants every job checked.
    cluster
        .set_policy(&format!("{POLICY}[actions]\non_error = \"fail\"\n[checks]\nalways = [\"gemm_flops\"]\n"))
        .unwrap();
    let output = cluster.srun(["echo", "task ran"]).run().unwrap();
    assert!(output.code() == 1 && output.stderr.contains(UNCHECKED), "{}", output.stderr);
    nodes_are_fine(&cluster);
}

/// All of them at once: as many as two nodes have processors.
const TASKS: u32 = 64;

// A03: so many prologs at a time, each with the plugin and a helper, keep no slurmd from answering.
#[test]
fn a_burst_of_tasks_costs_no_node() {
    let _machine = side_by_side().unwrap();
    let builder = Cluster::builder().nodes(2).cpus(TASKS / 2);
    let cluster = plugin::cluster_of(builder, "required", &format!("helpers={NODE_DIR}")).unwrap();
    let array = format!("--array=1-{TASKS}");
    let job = cluster.submit("true", [FLAG, "-n1", "-o", "/dev/null", &array]).unwrap();
    let tasks = aimaster_tests::wait::until(WAIT * 2, "the array ends", || {
        let tasks = cluster.jobs(job)?;
        let all = tasks.len() == TASKS as usize && tasks.iter().all(|task| task.is_finished());
        Ok(all.then_some(tasks))
    })
    .unwrap();
    let odd: Vec<_> = tasks.iter().filter(|task| task.state() != "COMPLETED").collect();
    assert!(odd.is_empty(), "{odd:#?}");
    let again = |task: &&aimaster_tests::Record| task.get("Restarts") != "0";
    assert_eq!(tasks.iter().filter(again).count(), 0, "a task was sent back");
    cluster.wait_idle(2, WAIT).unwrap();
    nodes_are_fine(&cluster);
}

#[test]
fn the_epilog_removes_the_job_s_run_folder() {
    let _machine = side_by_side().unwrap();
    let cluster = plugin::cluster("optional", 1).unwrap();
    let list = "ls /run/aimaster/*/n1";
    let output = cluster.srun([FLAG, "sh", "-c", list]).ok().unwrap();
    assert_eq!(output.stdout, "1.0\n", "the run folder is not where it should be: {}", output.stderr);
    aimaster_tests::wait::until(WAIT, "the run folder is gone", || {
        let left = cluster.exec("n1", ["sh", "-c", list])?.ok()?;
        Ok(left.stdout.is_empty().then_some(()))
    })
    .unwrap();

    // B10, C25: an epilog that can't do its work is a line in slurmd's log, and no node is lost to it.
    let _own = cluster.own_folder("n1", NODE_DIR).unwrap();
    for (script, complaint) in [
        ("rm $0", "can't be started: No such file"),
        ("echo >$0; chmod 644 $0", "can't be started: Permission denied"),
        ("printf '#!/bin/sh\\nexit 3\\n' >$0; chmod 755 $0", "ended with exit code 3"),
        ("printf '#!/bin/sh\\nkill -9 $$\\n' >$0", "was killed by signal 9"),
    ] {
        let epilog = format!("{NODE_DIR}/aimaster-epilog");
        cluster.exec("n1", ["sh", "-c", script, &epilog]).unwrap().ok().unwrap();
        cluster.srun([FLAG, "true"]).ok().unwrap();
        let line = format!("aimaster-epilog {complaint}");
        aimaster_tests::wait::until(WAIT, format!("slurmd's log has {line:?}"), || {
            let log = std::fs::read_to_string(cluster.log_file("slurmd.n1.log"))?;
            Ok(log.contains(&line).then_some(()))
        })
        .unwrap();
        cluster.wait_idle(1, WAIT).unwrap();
    }
    nodes_are_fine(&cluster);
}

// B07: all that the plugin does in slurmd itself is to read its arguments.
#[test]
fn a_site_can_start_the_helpers_itself_and_wrong_arguments_are_named() {
    let _machine = side_by_side().unwrap();
    let cluster = plugin::cluster_with("required", 1, "prolog=off helpr=/x").unwrap();
    cluster.srun(["true"]).ok().unwrap();
    let seen = cluster.exec("n1", ["sh", "-c", "ls /tmp/seen.* /run/aimaster"]).unwrap();
    assert!(!seen.success() && seen.stdout.is_empty(), "the helper ran: {}", seen.stdout);
    let log = std::fs::read_to_string(cluster.log_file("slurmd.n1.log")).unwrap();
    assert!(log.contains("argument \"helpr=/x\" is unknown"), "{log}");
}
