//! The cluster itself: it boots, runs jobs, shows its files, and goes away without a trace.
//! What faults do is in `cluster_faults.rs` and `cluster_nodes.rs`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use aimaster_tests::{BOB, CTL, Cluster, Install, JobId, Signal, serial, wait};

const SOON: Duration = Duration::from_secs(20);

#[test]
fn four_nodes_run_srun_and_sbatch() {
    let _machine = serial().unwrap();
    let start = Instant::now();
    let cluster = Cluster::builder().nodes(4).gpus(2).boot().unwrap();
    println!("4 nodes up in {:?}", start.elapsed());
    let output = cluster.srun(["-N4", "--gres=gpu:2", "hostname"]).ok().unwrap();
    println!("first srun {:?}", output.elapsed);
    let mut names: Vec<_> = output.stdout.lines().collect();
    names.sort_unstable();
    assert_eq!(names, cluster.nodes());

    let script = "echo on $(hostname) as $(whoami); srun -n1 echo step >&2; exit 3";
    let job = cluster.submit(script, ["-N2", "--comment=a b=c JobState=X", "-J", "two words"]).unwrap();
    let record = cluster.wait_end(job, SOON).unwrap();
    assert_eq!((record.state(), record.get("ExitCode")), ("FAILED", "3:0"));
    assert_eq!(record.get("Comment"), "a b=c JobState=X");
    assert_eq!(record.get("JobName"), "two words");
    let output = cluster.job_output(job).unwrap();
    assert!(output.contains("on n1 as alice") && output.contains("step"), "{output}");

    let task = cluster.submit_as(BOB, "sleep 60", ["--array=1-3"]).unwrap();
    cluster.wait_state(task, "RUNNING", SOON).unwrap();
    assert_eq!(cluster.jobs(task).unwrap().len(), 3);
    assert_eq!(cluster.jobs(format!("{task}_2")).unwrap()[0].get("ArrayTaskId"), "2");
    cluster.scancel([task.to_string()]).ok().unwrap();
    cluster.wait_end(task, SOON).unwrap();
    assert!(cluster.job(JobId(999_999)).is_err());

    let start = Instant::now();
    drop(cluster);
    println!("down in {:?}", start.elapsed());
}

#[test]
fn thirty_two_nodes() {
    let _machine = serial().unwrap();
    let start = Instant::now();
    let cluster = Cluster::builder().nodes(32).boot().unwrap();
    println!("32 nodes up in {:?}", start.elapsed());
    let output = cluster.srun(["-N32", "hostname"]).ok().unwrap();
    assert_eq!(output.stdout.lines().count(), 32);
    let start = Instant::now();
    drop(cluster);
    println!("32 nodes down in {:?}", start.elapsed());
}

#[test]
fn salloc_and_output_that_is_followed() {
    let _machine = serial().unwrap();
    let cluster = Cluster::builder().nodes(2).set("PrologFlags", "Alloc").boot().unwrap();
    assert!(
        cluster
            .scontrol(["show", "config"])
            .ok()
            .unwrap()
            .stdout
            .contains("PrologFlags             = Alloc\n")
    );
    let mut shell = cluster.salloc(["-N2", "bash"]).keep_stdin().spawn().unwrap();
    shell.write_stdin("srun hostname; echo done\n").unwrap();
    shell.wait_line(|line| line == "done", SOON).unwrap();
    shell.close_stdin();
    let output = shell.wait(SOON).unwrap().ok().unwrap();
    assert!(output.stdout.contains("n2\n"), "{}", output.stdout);

    // Ctrl-C reaches srun itself.
    let running = cluster.srun(["bash", "-c", "echo begun; exec sleep 60"]).spawn().unwrap();
    running.wait_line(|line| line == "begun", SOON).unwrap();
    running.signal(Signal::INT).unwrap();
    running.wait_line(|line| line.contains("interrupt"), SOON).unwrap();
    running.signal(Signal::INT).unwrap();
    assert!(!running.wait(SOON).unwrap().success());

    let error = cluster.srun(["sleep", "60"]).timeout(Duration::from_millis(500)).run().unwrap_err();
    assert!(error.to_string().contains("did not end"), "{error:#}");
}

#[test]
fn every_node_has_its_own_view_of_the_machine() {
    let _machine = serial().unwrap();
    let shown = tempfile::tempdir().unwrap();
    fs::write(shown.path().join("file"), "from outside").unwrap();
    let cluster = Cluster::builder()
        .nodes(2)
        .gpus(1)
        .policy("a = 1\n")
        .show(shown.path())
        .install(Install::new().program(env!("CARGO_BIN_EXE_netprobe")))
        .boot()
        .unwrap();
    // Private: /tmp, /run, /var/spool, /etc, /var/lib, /var/log, /opt, /dev/shm, processes, network.
    for dir in ["/tmp", "/run", "/var/spool", "/etc", "/var/lib", "/var/log", "/opt", "/dev/shm"] {
        let file = format!("{dir}/aimaster-test-file");
        cluster.write_file("n1", &file, "n1").unwrap();
        assert_eq!(cluster.read_file("n1", &file).unwrap(), "n1");
        assert!(cluster.read_file("n2", &file).is_err(), "{dir} is shared");
        assert!(!Path::new(&file).exists(), "{dir} is this machine's");
    }
    let text =
        |argv: &[&str]| cluster.exec("n1", argv.iter().copied()).unwrap().ok().unwrap().text().to_owned();
    assert_eq!(text(&["ls", "/sys/class/net"]).split_whitespace().collect::<Vec<_>>(), ["eth0", "lo"]);
    assert_eq!(text(&["cat", "/dev/null", "/dev/fakegpu0"]), "");
    assert_eq!(text(&["getent", "hosts", "n2"]), "10.77.0.12      n2");
    let processes = cluster.processes("n1").unwrap();
    assert!(processes.iter().any(|p| p.comm == "slurmd" && p.cmdline == "slurmd -N n1"), "{processes:?}");
    assert!(!processes.iter().any(|p| p.cmdline.contains("-N n2")), "{processes:?}");

    // Shared: /home of the cluster; shown: a folder of this machine, read-only.
    cluster.exec_as("n1", "alice", ["touch", "mine"]).unwrap().ok().unwrap();
    cluster.read_file("n2", "/home/alice/mine").unwrap();
    let file = shown.path().join("file").display().to_string();
    assert_eq!(cluster.read_file("n2", &file).unwrap(), "from outside");
    assert!(cluster.write_file("n2", &file, "x").is_err());

    // The policy: shared, and one node's own.
    let policy = |node: &str| cluster.read_file(node, "/etc/aimaster/aimaster.toml").unwrap();
    assert_eq!((policy(CTL).as_str(), policy("n2").as_str()), ("a = 1\n", "a = 1\n"));
    let own = cluster.set_node_policy("n2", "b = 2\n").unwrap();
    cluster.set_policy("a = 3\n").unwrap();
    assert_eq!((policy("n1").as_str(), policy("n2").as_str()), ("a = 3\n", "b = 2\n"));
    own.undo().unwrap();
    assert_eq!(policy("n2"), "a = 3\n");

    // The system log.
    cluster.exec("n2", ["logger", "-t", "aimaster", "hello"]).unwrap().ok().unwrap();
    cluster.wait_syslog("n2", |line| line.ends_with("aimaster: hello"), SOON).unwrap();
    assert!(!cluster.syslog("n1").contains("hello"));

    // What is installed belongs to root, and one node can miss it.
    let stat = |node: &str| cluster.exec(node, ["stat", "-c", "%U %a", "/opt/aimaster/netprobe"]).unwrap();
    assert_eq!(stat("n1").text(), "root 755");
    let missing = cluster.remove_helper("n2", "netprobe").unwrap();
    assert!(stat("n1").success() && !stat("n2").success());
    missing.keep();
    cluster.clear("n2").unwrap();
    assert!(stat("n2").success());
}

/// Processes, mounts, namespaces, control groups and folders that carry the cluster's name.
fn traces(id: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        if !entry.file_name().to_string_lossy().starts_with(|c: char| c.is_ascii_digit()) {
            continue;
        }
        for file in ["environ", "cmdline", "mountinfo", "cgroup"] {
            let text = fs::read(entry.path().join(file)).unwrap_or_default();
            if String::from_utf8_lossy(&text).contains(id) {
                found.push(format!("{}/{file}", entry.path().display()));
            }
        }
    }
    for dir in ["/sys/fs/cgroup", "/sys/fs/cgroup/cpu", "/var/tmp", "/run/netns"] {
        let path = Path::new(dir).join(id);
        found.extend(path.exists().then(|| path.display().to_string()));
    }
    found
}

/// The network namespaces of the cluster's processes (`Some(id)`) or of all.
fn network_namespaces(id: Option<&str>) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let file = |name: &str| fs::read(entry.path().join(name)).unwrap_or_default();
        let says = |name: &str| id.is_none_or(|id| String::from_utf8_lossy(&file(name)).contains(id));
        if entry.file_name() != "self" && (says("environ") || says("cgroup")) {
            found.extend(fs::read_link(entry.path().join("ns/net")));
        }
    }
    // What starts the nodes has the name in its environment too, but lives outside.
    if id.is_some() {
        found.retain(|ns| Some(ns) != fs::read_link("/proc/self/ns/net").ok().as_ref());
    }
    found
}

#[test]
fn a_dropped_cluster_leaves_no_trace() {
    let _machine = serial().unwrap();
    let cluster = Cluster::builder().nodes(2).boot().unwrap();
    let id = cluster.id().to_owned();
    let job = cluster.submit("sleep 60 & sleep 60", ["-N2"]).unwrap();
    cluster.wait_state(job, "RUNNING", SOON).unwrap();
    let namespaces = network_namespaces(Some(&id));
    assert!(!traces(&id).is_empty() && namespaces.len() == 4, "{namespaces:?}");
    drop(cluster);
    assert_eq!(traces(&id), Vec::<String>::new());
    assert!(namespaces.is_disjoint(&network_namespaces(None)));
}

#[test]
fn two_clusters_side_by_side() {
    let _machine = serial().unwrap();
    let one = Cluster::builder().nodes(2).boot().unwrap();
    let two = Cluster::builder().nodes(3).boot().unwrap();
    assert_ne!(one.id(), two.id());
    assert_eq!(one.srun(["-N2", "hostname"]).ok().unwrap().stdout.lines().count(), 2);
    assert_eq!(two.srun(["-N3", "hostname"]).ok().unwrap().stdout.lines().count(), 3);
    let down = one.link_down("n1").unwrap();
    assert_eq!(two.srun(["-N3", "hostname"]).ok().unwrap().stdout.lines().count(), 3);
    down.undo().unwrap();
    drop(one);
    assert_eq!(two.srun(["-N3", "hostname"]).ok().unwrap().stdout.lines().count(), 3);
}

/// Not a test by itself: a cluster that [`a_killed_test_leaves_no_process`] kills.
#[test]
#[ignore = "started by a_killed_test_leaves_no_process"]
fn boots_and_waits_to_be_killed() {
    let cluster = Cluster::builder().nodes(2).boot().unwrap();
    println!("cluster {}", cluster.id());
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn a_killed_test_leaves_no_process_and_the_next_boot_sweeps() {
    let _machine = serial().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "boots_and_waits_to_be_killed", "--ignored", "--nocapture"]);
    let victim = aimaster_tests::Running::start(child, "a test", None, false).unwrap();
    let line = victim.wait_line(|line| line.contains("cluster aimaster-"), SOON).unwrap();
    let id = line.rsplit(' ').next().unwrap().to_owned();
    let namespaces = network_namespaces(Some(&id));
    assert!(traces(&id).len() > 5 && namespaces.len() == 4, "{namespaces:?}");
    victim.signal(Signal::KILL).unwrap();
    victim.wait(SOON).unwrap();
    let processes = |id: &str| traces(id).into_iter().filter(|t| t.starts_with("/proc/")).count();
    wait::until(SOON, "its processes end", || Ok((processes(&id) == 0).then_some(()))).unwrap();
    assert!(namespaces.is_disjoint(&network_namespaces(None)));
    drop(Cluster::builder().nodes(1).boot().unwrap());
    assert_eq!(traces(&id), Vec::<String>::new());
}
