//! How ranks and the agent of their node find each other: what a task's environment holds, and who is let in.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::time::Duration;

use aimaster_tests::c4d::{self, FLAG, library};
use aimaster_tests::{BOB, Cluster, NODE_DIR, side_by_side, wait};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(40);

/// Prints both variables.
const SHOW: &str = "echo \"$NCCL_PROFILER_PLUGIN $AIMASTER_C4D_SOCKET\"";

/// What an agent may do as root: CAP_DAC_READ_SEARCH (2), CAP_SYS_PTRACE (19), CAP_SYSLOG (34), and nothing else.
const KEPT: &str = "0000000400080004";

/// Whether a line of [`SHOW`] is what a watched task sees.
fn is_ours(line: &str) -> bool {
    let Some((profiler, socket)) = line.split_once(' ') else { return false };
    let parts: Vec<&str> = socket.split('/').collect();
    let digits = |text: &str| text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
    profiler == library() && matches!(parts[..], ["aimaster-c4d", "n1", _, random] if digits(random))
}

// O02.
#[test]
fn watched_tasks_get_both_variables_and_a_user_s_own_profiler_stays() {
    let _machine = side_by_side().unwrap();
    let cluster = c4d::boot(Cluster::builder().nodes(1), "").unwrap();
    for export in ["ALL", "NONE", "NIL", "HOME"] {
        let export = format!("--export={export}");
        let output = cluster.srun([FLAG, &export, "/bin/sh", "-c", SHOW]).ok().unwrap();
        assert!(is_ours(output.text()), "{export}: {output:?}");
        let job = cluster.submit(&format!("{SHOW}; srun /bin/sh -c '{SHOW}'"), [FLAG, &export]).unwrap();
        cluster.wait_state(job, "COMPLETED", SOON).unwrap();
        let said = cluster.job_output(job).unwrap();
        assert_eq!(said.lines().filter(|line| is_ours(line)).count(), 2, "{export}: {said}");
    }
    let output = cluster.salloc([FLAG, "srun", "/bin/sh", "-c", SHOW]).ok().unwrap();
    assert!(is_ours(output.text()), "{output:?}");

    // The user's own: nothing of ours, and the agent says why it hears nothing.
    let script = format!("{SHOW}; sleep 300");
    let job = cluster
        .sbatch(["--parsable", FLAG, "-o", "own", "--wrap", &script])
        .env("NCCL_PROFILER_PLUGIN", "inspector")
        .ok()
        .unwrap();
    let job = aimaster_tests::JobId(job.text().parse().unwrap());
    let report = wait::until(SOON, "the agent says why", || {
        let report = cluster.runtime_report("n1", job, 0).unwrap_or(Value::Null);
        Ok((report["telemetry"]["status"] == "UNAVAILABLE").then_some(report))
    })
    .unwrap();
    let because = report["telemetry"]["because"][0].as_str().unwrap();
    assert!(because.contains("NCCL_PROFILER_PLUGIN=inspector"), "{report:#}");
    cluster.scancel([job.to_string()]).ok().unwrap();
    let said = cluster.read_file("n1", "/home/alice/own").unwrap();
    assert_eq!(said.lines().find(|line| line.starts_with("inspector")), Some("inspector "), "{said}");

    // What a job without the check inherits from a watched one goes.
    cluster
        .sbatch(["--parsable", "-W", "-o", "inner", "--wrap", SHOW])
        .env("NCCL_PROFILER_PLUGIN", &library())
        .env("AIMASTER_C4D_SOCKET", "aimaster-c4d/n1/1/0")
        .ok()
        .unwrap();
    assert_eq!(cluster.read_file("n1", "/home/alice/inner").unwrap().trim_end_matches('\n'), " ");
}

// O01.
#[test]
fn the_site_can_switch_telemetry_or_all_of_it_off() {
    let _machine = side_by_side().unwrap();
    let cluster = c4d::boot(Cluster::builder().nodes(1), "runtime.telemetry = false").unwrap();
    // What a task's environment says, and what root finds in the run's folder meanwhile.
    let seen = || {
        let show = format!("{SHOW}; ls /run/aimaster/aim/n1/$SLURM_JOB_ID.0 || echo closed; exec sleep 600");
        let job = cluster.srun([FLAG, "/bin/sh", "-c", &show]).timeout(SOON).spawn().unwrap();
        // Only root reads what the helper and the agent say: it may name what a job does.
        job.wait_line(|line| line == "closed", SOON).unwrap();
        let files = cluster.exec("n1", ["sh", "-c", "ls /run/aimaster/aim/n1/*"]).unwrap().ok().unwrap();
        let files: Vec<String> = files.stdout.lines().map(str::to_owned).collect();
        cluster.scancel([cluster.last_job().unwrap().to_string()]).ok().unwrap();
        (job.wait(SOON).unwrap(), files)
    };
    let (output, files) = seen();
    assert_eq!(output.stdout.lines().collect::<Vec<_>>(), [" ", "closed"], "{output:?}");
    assert!(output.stderr.contains("Permission denied"), "{output:?}");
    assert_eq!(files, ["c4d.lock", "gate.json", "keep.json", "run.json", "runtime.json"], "{output:?}");
    cluster.wait_idle(1, SOON).unwrap();

    aimaster_tests::product::set_policy(&cluster, "runtime.enabled = false").unwrap();
    let (output, files) = seen();
    assert_eq!(output.stdout.lines().collect::<Vec<_>>(), [" ", "closed"], "{output:?}");
    assert_eq!(files, ["gate.json", "run.json"], "{output:?}");
    assert!(output.stderr.contains("switched the runtime check off"), "{}", output.stderr);
    cluster.wait_idle(1, SOON).unwrap();

    aimaster_tests::product::set_policy(&cluster, "runtime.always = true").unwrap();
    let output = cluster.srun(["/bin/sh", "-c", SHOW]).ok().unwrap();
    assert!(is_ours(output.text()), "{output:?}");
}

#[test]
fn only_the_job_s_own_processes_with_a_right_ring_are_let_in() {
    let _machine = side_by_side().unwrap();
    let cluster = c4d::boot(Cluster::builder().nodes(1), "").unwrap();
    let rank = format!("{NODE_DIR}/rank");
    let script = format!("echo $AIMASTER_C4D_SOCKET; {rank} $AIMASTER_C4D_SOCKET ring 300");
    let srun = cluster.srun([FLAG, "/bin/sh", "-c", &script]).timeout(SOON).spawn().unwrap();
    let socket = srun.wait_line(|line| line.starts_with("aimaster-c4d/"), SOON).unwrap();
    let agents = cluster.wait_agents(&["n1"], SOON).unwrap();
    let status = std::fs::read_to_string(format!("/proc/{}/status", agents[0].host_pid)).unwrap();
    let field =
        |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    for sets in ["CapEff:", "CapPrm:"] {
        assert_eq!(field(sets), KEPT, "{status}");
    }
    assert_eq!((field("NoNewPrivs:").as_str(), field("CapInh:").trim_matches('0')), ("1", ""), "{status}");
    let job = cluster.last_job().unwrap();
    let telemetry = |ranks: u64, refused: u64| {
        let mut last = Value::Null;
        let found = wait::until(SOON, "the agent's count", || {
            last = cluster.runtime_report("n1", job, 0)?["telemetry"].clone();
            Ok((last["ranks"] == ranks && last["refused"] == refused).then_some(last.clone()))
        });
        found.unwrap_or_else(|_| panic!("{ranks} ranks, {refused} refused: {last:#}"))
    };
    assert_eq!(telemetry(1, 0)["status"], "OK");

    // Another user, and root: both with a right ring.
    cluster.exec_as("n1", BOB, [&rank, &socket, "ring"]).unwrap().ok().unwrap();
    cluster.exec("n1", [&rank, &socket, "ring"]).unwrap().ok().unwrap();
    telemetry(1, 2);
    // The job's user, with something else.
    for kind in ["short", "open", "file", "words"] {
        cluster.exec_as("n1", aimaster_tests::ALICE, [&rank, &socket, kind]).unwrap().ok().unwrap();
    }
    telemetry(1, 6);
    cluster.exec_as("n1", aimaster_tests::ALICE, [&rank, &socket, "ring"]).unwrap().ok().unwrap();
    telemetry(2, 6);
    let log = cluster.syslog("n1");
    for line in ["the job of uid", "has 4096 bytes", "not sealed", "no memfd", "a hello has 40 bytes"] {
        assert!(log.contains(line), "no {line:?} in {log}");
    }
    cluster.scancel([job.to_string()]).ok().unwrap();
    srun.wait(SOON).unwrap();
    cluster.wait_no_trace(&["n1"], SOON).unwrap();
}
