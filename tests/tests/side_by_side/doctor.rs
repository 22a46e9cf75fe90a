//! `aimaster doctor` and its like on a real Slurm: nothing is found where all is well, what is planted is found, and what it
//! says to change mends it.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use aimaster_tests::{
    Block, Cluster, Deny, NODE_DIR, Output, SlurmVersion, product, side_by_side, stamp, wait,
};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(60);

/// No profiler plugin is installed on the test cluster.
const POLICY: &str = "runtime.telemetry = false\nhost.seconds_per_check = 0.1\n";

/// What the test cluster has that a site should know.
const NOTES: [&str; 3] = ["return_to_service", "proctrack", "baselines_built_in"];

fn aimaster(cluster: &Cluster, node: &str, arguments: &[&str]) -> Output {
    let done =
        cluster.command(node, [format!("{NODE_DIR}/aimaster")]).args(arguments.to_vec()).run().unwrap();
    eprintln!("---- on {node}: {arguments:?}: {}\n{}{}", done.code(), done.stdout, done.stderr);
    done
}

/// The exit code, and the rules that found a mistake.
fn mistakes(cluster: &Cluster, node: &str, arguments: &[&str]) -> (i32, Vec<String>) {
    let done = aimaster(cluster, node, &[&["doctor", "--json"], arguments].concat());
    let told: Value = serde_json::from_str(&done.stdout).unwrap();
    let findings = told["findings"].as_array().unwrap();
    let is_mistake = |one: &&Value| one["level"] == "mistake";
    let rules = findings.iter().filter(is_mistake).map(|one| one["rule"].as_str().unwrap().to_owned());
    (done.code(), rules.collect())
}

fn found(cluster: &Cluster, node: &str, rules: &[&str]) {
    assert_eq!(mistakes(cluster, node, &[]), (1, rules.iter().map(|rule| (*rule).to_owned()).collect()));
}

fn mode(path: &Path, bits: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(bits)).unwrap();
}

/// Changes slurm.conf of all machines; slurmctld keeps what it has until it is told.
fn replace(cluster: &Cluster, old: &str, new: &str) {
    let path = cluster.base().join("etc/slurm/slurm.conf");
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains(old), "{text}");
    std::fs::write(&path, text.replace(old, new)).unwrap();
}

// A23.
#[test]
fn what_is_planted_is_found_and_what_is_mended_is_found_no_more() {
    let _machine = side_by_side().unwrap();
    let cluster = product::boot(Cluster::builder().nodes(2), POLICY).unwrap();
    // All is well, to root on a node and to a user on the login machine.
    let well = aimaster(&cluster, "n1", &["doctor"]);
    assert_eq!(well.code(), 0);
    for part in
        ["This machine is node n1 of cluster aim", "n2", "All is well.", "for Slurm ", "27000 to 27199"]
    {
        assert!(well.stdout.contains(part), "no {part:?}");
    }
    assert!(well.stdout.lines().count() < 50 && !well.stdout.contains('\x1b'), "one page, no colours");
    let login = cluster.aimaster(["doctor"]).run().unwrap();
    assert!(login.success() && login.stdout.contains("submits jobs"), "{}{}", login.stdout, login.stderr);
    let told = aimaster(&cluster, "n1", &["doctor", "--json"]);
    let told: Value = serde_json::from_str(&told.stdout).unwrap();
    let rules: Vec<&str> =
        told["findings"].as_array().unwrap().iter().map(|one| one["rule"].as_str().unwrap()).collect();
    assert_eq!((rules.as_slice(), &told["outcome"]), (&NOTES[..], &Value::from("PASS")));

    // Files.
    let worker = cluster.base().join("opt/aimaster-worker");
    mode(&worker, 0o700);
    found(&cluster, "n1", &["helper"]);
    mode(&worker, 0o757);
    found(&cluster, "n1", &["helpers_open"]);
    mode(&worker, 0o755);
    let plugin = cluster.base().join("opt/spank_aimaster.so");
    stamp(&plugin, SlurmVersion::parse("slurm 23.11.1").unwrap()).unwrap();
    found(&cluster, "ctl", &["plugin_stamp"]);
    stamp(&plugin, SlurmVersion::installed().unwrap()).unwrap();
    let plugstack = cluster.base().join("etc/slurm/plugstack.conf");
    let line = std::fs::read_to_string(&plugstack).unwrap();
    std::fs::write(&plugstack, line.replace("helpers=", "helper=")).unwrap();
    found(&cluster, "ctl", &["plugstack_arguments"]);
    std::fs::write(&plugstack, "# nothing\n").unwrap();
    found(&cluster, "ctl", &["plugstack_line"]);
    std::fs::write(&plugstack, &line).unwrap();
    cluster.set_policy("engin = 'host'\n").unwrap();
    found(&cluster, "ctl", &["policy"]);
    product::set_policy(&cluster, POLICY).unwrap();
    cluster.exec("n1", ["mkdir", "-p", "-m", "777", "/run/aimaster"]).unwrap().ok().unwrap();
    found(&cluster, "n1", &["run_dir"]);
    cluster.exec("n1", ["rmdir", "/run/aimaster"]).unwrap().ok().unwrap();

    // The network, and munged, without which slurmctld can't be asked either.
    let blocked = cluster.block("n2", Block::ports(27_000..=27_199).deny(Deny::Drop)).unwrap();
    found(&cluster, "n1", &["ports_blocked"]);
    blocked.undo().unwrap();
    cluster.stop_munged("n1").unwrap();
    found(&cluster, "n1", &["controller", "munge"]);
    cluster.start_munged("n1").unwrap();

    // Slurm's own settings.
    replace(&cluster, "PrologEpilogTimeout=60", "PrologEpilogTimeout=50");
    found(&cluster, "n1", &["slurm_conf_differs"]);
    replace(&cluster, "Alloc,DeferBatch,Contain", "Alloc,Contain");
    replace(
        &cluster,
        "MinJobAge=300",
        "MinJobAge=300\nJobRequeue=0\nRequeueExit=1\nProlog=/etc/slurm/prolog.d/*",
    );
    cluster.scontrol(["reconfigure"]).ok().unwrap();
    let rules =
        ["prolog_flags_defer_batch", "prolog_timeout", "job_requeue", "requeue_exit", "prolog_pattern"];
    wait::until(SOON, "slurmctld has the new settings", || {
        let (_, found) = mistakes(&cluster, "n1", &[]);
        Ok((found == rules).then_some(()))
    })
    .unwrap();
}

#[test]
fn machines_that_differ_are_told_apart() {
    let _machine = side_by_side().unwrap();
    let cluster = product::boot(Cluster::builder().nodes(1), POLICY).unwrap();
    let login = cluster.aimaster(["doctor", "--json"]).ok().unwrap().stdout;
    cluster.write_file("n1", "/run/login.json", &login).unwrap();
    let against = ["--against", "/run/login.json"];
    assert_eq!(mistakes(&cluster, "n1", &against), (0, Vec::new()));
    let own = product::policy_text(&cluster, &format!("{POLICY}time.join_s = 7")).unwrap();
    let other = cluster.set_node_policy("n1", &own).unwrap();
    assert_eq!(mistakes(&cluster, "n1", &against), (1, vec!["machines_differ".to_owned()]));

    // Where the values are from, and what they mean.
    let config = aimaster(&cluster, "n1", &["config"]);
    assert!(config.success() && config.stdout.contains("join_s = 7  # /etc/aimaster/aimaster.toml:"));
    let told: Value = serde_json::from_str(&aimaster(&cluster, "n1", &["config", "--json"]).stdout).unwrap();
    assert_eq!(told["values"]["time.join_s"]["origin"], "file");
    assert_eq!(told["values"]["time.scontrol_s"]["origin"], "default");
    other.undo().unwrap();

    // The checks of one node, by a user, and by one who asks for what it can't do.
    let aimaster = format!("{NODE_DIR}/aimaster");
    let run = |arguments: &[&str]| {
        let whole: Vec<&str> = std::iter::once(aimaster.as_str()).chain(arguments.iter().copied()).collect();
        let done = cluster.exec_as("n1", aimaster_tests::ALICE, whole).unwrap();
        eprintln!("---- on n1, as a user: {arguments:?}: {}\n{}{}", done.code(), done.stdout, done.stderr);
        done
    };
    let shown = run(&["check", "kernel_launch"]);
    assert!(shown.success() && shown.stdout.contains("PASS"), "{shown:?}");
    let checked = run(&["check", "gemm_flops,kernel_launch", "--json"]);
    assert_eq!(checked.code(), 0, "{checked:?}");
    let report: Value = serde_json::from_str(&checked.stdout).unwrap();
    assert_eq!((report["outcome"].as_str(), report["nodes"][0].as_str()), (Some("PASS"), Some("n1")));
    let between = run(&["check", "all_reduce_2"]);
    assert!(between.code() == 2 && between.stderr.contains("takes more than one node"), "{between:?}");
    let sleeping = cluster.srun(["-w", "n1", "sleep", "60"]).spawn().unwrap();
    cluster.wait_node("n1", "has a job", |node| node.is("ALLOCATED") || node.is("MIXED"), SOON).unwrap();
    let beside = run(&["check"]);
    assert!(beside.code() == 2 && beside.stderr.contains("--beside-jobs"), "{beside:?}");
    drop(sleeping);
}
