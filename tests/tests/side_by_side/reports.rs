//! Reports on storage of the site's: a folder whose server has gone silent costs two seconds and no verdict, and where
//! root is nobody the job's user owns them. And the numbers for Prometheus beside them.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use aimaster_tests::{Cluster, Running, product, side_by_side, wait};

const SOON: Duration = Duration::from_secs(60);

const POLICY: &str = "host.seconds_per_check = 0.3\n";

const CHECK: &str = "--sanity-check=all_reduce_2";

/// Mounts a file system whose server never answers, as a hard NFS mount does when its server is gone: whoever looks
/// at it waits until it is killed. It lasts as long as this program.
const SILENT: &str = r#"
import ctypes, os, stat, sys, time
device = "/tmp/fuse"
os.mknod(device, 0o600 | stat.S_IFCHR, os.makedev(10, 229))
channel = os.open(device, os.O_RDWR)
options = f"fd={channel},rootmode=40000,user_id=0,group_id=0,allow_other"
libc = ctypes.CDLL(None, use_errno=True)
if libc.mount(b"silent", sys.argv[1].encode(), b"fuse", 0, options.encode()) != 0:
    sys.exit(os.strerror(ctypes.get_errno()))
print("silent", flush=True)
time.sleep(600)
"#;

/// Puts silent storage where a node has its reports.
fn silence(cluster: &Cluster, node: &str, folder: &str) -> Running {
    std::fs::create_dir_all(folder).unwrap();
    let server = cluster.command(node, ["/usr/bin/python3", "-c", SILENT, folder]).spawn().unwrap();
    server.wait_line(|line| line == "silent", SOON).unwrap();
    server
}

fn helpers(cluster: &Cluster, node: &str) -> usize {
    let all = cluster.processes(node).unwrap();
    all.iter().filter(|process| process.comm.starts_with("aimaster")).count()
}

#[test]
fn storage_that_does_not_answer_costs_no_verdict() {
    let _machine = side_by_side().unwrap();
    let cluster = product::boot(Cluster::builder().nodes(3), POLICY).unwrap();
    let folder = product::report_dir(&cluster);
    // All nodes: whoever leads meets it.
    let servers = ["n1", "n2", "n3"].map(|node| silence(&cluster, node, &folder));

    let job = cluster.submit("echo ran", ["-N3", CHECK]).unwrap();
    assert_eq!(cluster.wait_end(job, SOON).unwrap().state(), "COMPLETED");
    let output = cluster.job_output(job).unwrap();
    assert!(output.contains("PASS after") && output.contains("ran"), "{output}");
    assert!(output.contains("not written: it was not written within 2.0 s"), "{output}");
    let logged = |line: &str| line.contains("no report under");
    cluster.wait_syslog("n1", logged, SOON).unwrap();

    // A fault is acted on all the same.
    let slow = cluster.rate("n2", 20_000).unwrap();
    let job = cluster.submit("echo ran", ["-N3", CHECK, "--sanity-fail-action=fail"]).unwrap();
    assert_eq!(cluster.wait_end(job, SOON).unwrap().state(), "FAILED");
    let drained = cluster.drained().unwrap();
    assert_eq!(drained.iter().map(|(node, _)| node.as_str()).collect::<Vec<_>>(), ["n2"]);
    slow.undo().unwrap();

    // What the agent of the runtime check said is lost, and no node waits for it.
    let output = cluster.srun(["-wn1", "--runtime-check", "true"]).ok().unwrap();
    assert!(output.success(), "{output:?}");
    let log = cluster.log_file("slurmd.n1.log");
    wait::until(SOON, "slurmd's log says it", || {
        let log = std::fs::read_to_string(&log)?;
        let late =
            |line: &str| line.contains("the runtime report was not written") && line.contains("within 2.0 s");
        Ok(log.lines().any(late).then_some(()))
    })
    .unwrap();
    let freed = |node: &aimaster_tests::NodeInfo| !node.is("COMPLETING") && !node.is("ALLOCATED");
    cluster.wait_node("n1", "is free", freed, SOON).unwrap();

    for node in ["n1", "n2", "n3"] {
        wait::until(SOON, "no helper is left", || Ok((helpers(&cluster, node) == 0).then_some(()))).unwrap();
    }
    drop(servers);
}

#[test]
fn the_job_s_user_owns_the_report_where_the_policy_says_so() {
    let _machine = side_by_side().unwrap();
    let policy = format!("{POLICY}paths.report_owner = 'user'");
    let cluster = product::boot(Cluster::builder().nodes(2), &policy).unwrap();
    let folder = product::report_dir(&cluster);
    std::fs::create_dir_all(&folder).unwrap();

    // What root has to make is said, and the job starts.
    let job = cluster.submit("echo ran", ["-N2", CHECK]).unwrap();
    assert_eq!(cluster.wait_end(job, SOON).unwrap().state(), "COMPLETED");
    let output = cluster.job_output(job).unwrap();
    assert!(output.contains("root must make it, with mode 1777") && output.contains("ran"), "{output}");

    let shared = Path::new(&folder).join("aim");
    std::fs::create_dir(&shared).unwrap();
    std::fs::set_permissions(&shared, PermissionsExt::from_mode(0o1777)).unwrap();
    let job = cluster.submit("echo ran", ["-N2", CHECK]).unwrap();
    assert_eq!(cluster.wait_end(job, SOON).unwrap().state(), "COMPLETED");
    assert_eq!(cluster.report(job, 1).unwrap()["outcome"], "PASS");
    let file = shared.join(format!("{job}/1/report.json")).display().to_string();
    let told = cluster.exec("n1", ["stat", "-c", "%U %G %a", &file]).unwrap().ok().unwrap();
    assert_eq!(told.stdout.trim(), "alice alice 640");
    let shown = cluster.aimaster(["report", &job.to_string()]).run().unwrap();
    assert!(shown.success() && shown.stdout.contains("PASS"), "{}{}", shown.stdout, shown.stderr);

    // The same of what the agent of the runtime check said.
    cluster.srun(["-wn1", "--runtime-check", "true"]).ok().unwrap();
    let job = cluster.last_job().unwrap();
    let file = shared.join(format!("{job}/1/runtime.json")).display().to_string();
    let told = wait::until(SOON, "the runtime report", || {
        let told = cluster.exec("n1", ["stat", "-c", "%U %G %a", &file])?;
        Ok(told.success().then_some(told))
    });
    assert_eq!(told.unwrap().stdout.trim(), "alice alice 640");
}

#[test]
fn numbers_add_up_where_the_policy_wants_them() {
    let _machine = side_by_side().unwrap();
    // Nodes have a /tmp of their own.
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let policy = format!("{POLICY}paths.metrics_dir = '{}'\n", folder.path().display());
    let cluster = product::boot(Cluster::builder().nodes(2), &policy).unwrap();
    let numbers = |file: &str| std::fs::read_to_string(folder.path().join(file)).unwrap_or_default();
    for _ in 0..2 {
        cluster.srun(["-N2", CHECK, "true"]).ok().unwrap();
    }
    // They are there before the job starts.
    let shown = numbers("aimaster.prom");
    for line in [
        "aimaster_checks_total{outcome=\"pass\"} 2.0",
        "aimaster_checks_total{outcome=\"fail\"} 0.0",
        "aimaster_checked_nodes_total 4.0",
        "aimaster_jobs_total{action=\"start\"} 2.0",
        "aimaster_last_check_outcome{outcome=\"pass\"} 1.0",
    ] {
        assert!(shown.lines().any(|own| own == line), "no {line} in {shown}");
    }
    cluster.srun(["-wn1", "--runtime-check", "true"]).ok().unwrap();
    let line = "aimaster_runtime_checks_total{outcome=\"skip\"} 1.0";
    let told = || Ok(numbers("aimaster_runtime.prom").lines().any(|own| own == line).then_some(()));
    wait::until(SOON, "the epilog's numbers", told).unwrap();

    // Without the folder a job runs as ever, and the log says why there are none.
    folder.close().unwrap();
    cluster.srun(["-N2", CHECK, "true"]).ok().unwrap();
    cluster
        .wait_syslog("n1", |line| line.contains("no metrics") && line.contains("paths.metrics_dir"), SOON)
        .unwrap();
}
