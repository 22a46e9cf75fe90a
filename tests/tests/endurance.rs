//! Many clean jobs in a row leave nothing behind, and a helper is tidy while it runs.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::time::Duration;

use aimaster_tests::traces::{added, traces};
use aimaster_tests::{Cluster, JobId, product, serial, wait};

const SOON: Duration = Duration::from_secs(60);

const JOBS: u32 = 30;

/// The shortest windows that still measure: what is tested is what stays, not what is measured.
const POLICY: &str = "host.seconds_per_check = 0.1";

/// Starts the job `job` in one of three ways and waits for its end.
fn run_job(cluster: &Cluster, job: u32) {
    let size = format!("-N{}", job % 4 + 1);
    match job % 3 {
        0 => {
            let id = cluster.submit("srun hostname", [&size, "--sanity-check"]).unwrap();
            let record = cluster.wait_end(id, SOON).unwrap();
            assert_eq!(record.state(), "COMPLETED", "{}", cluster.job_output(id).unwrap());
        }
        1 => drop(cluster.srun([&size, "--sanity-check", "hostname"]).timeout(SOON).ok().unwrap()),
        _ => drop(cluster.salloc([&size, "--sanity-check", "srun", "hostname"]).timeout(SOON).ok().unwrap()),
    }
    let report = cluster.report(JobId(job), 1).unwrap();
    assert_eq!(report["outcome"], "PASS", "{report:#}");
    assert_eq!(report["errors"].as_array().unwrap().len(), 0, "{report:#}");
}

// E14, A27.
#[test]
fn thirty_jobs_in_a_row_leave_nothing_behind() {
    let _machine = serial().unwrap();
    let cluster = product::boot(Cluster::builder().nodes(4), POLICY).unwrap();
    // What Slurm itself leaves after its first job is no trace of ours.
    cluster.srun(["-N4", "hostname"]).ok().unwrap();
    cluster.wait_idle(4, SOON).unwrap();
    let before = traces(&cluster).unwrap();

    for job in 2..2 + JOBS {
        run_job(&cluster, job);
    }
    assert!(cluster.drained().unwrap().is_empty());

    cluster.wait_idle(4, SOON).unwrap();
    let mut left = Vec::new();
    let clean = wait::until(Duration::from_secs(5), "the nodes are as before", || {
        left = added(&before, &traces(&cluster)?);
        Ok(left.is_empty().then_some(()))
    });
    assert!(clean.is_ok(), "{left:#?}");

    // A clean job is one line in the leader's log, an event, and none in the others'.
    let mut events = 0;
    for node in cluster.nodes() {
        let log = std::fs::read_to_string(cluster.log_file(&format!("syslog.{node}"))).unwrap();
        for line in log.lines().filter(|line| line.contains("aimaster")) {
            assert!(line.contains("event=SanityCheckSucceeded"), "{node}: {line}");
            events += 1;
        }
    }
    assert_eq!(events, JOBS);
}

/// Words that would pass for an event of ours if they reached the log as they are.
const FORGED: &str =
    "x\n<28>Nov 29 12:00:00 n1 aimaster-prolog[1]: job=1 event=SanityCheckForged outcome=FAIL";

/// Memory of the coordinator of a small job, far above what it takes; a leak or a preallocated buffer of the largest
/// frame would show.
const MOST_KIB: u64 = 48 * 1024;

/// What a descriptor of the helper may be: nothing that slurmstepd had open.
fn is_own(target: &str) -> bool {
    ["pipe:", "socket:", "anon_inode:", "/dev/null"].iter().any(|kind| target.starts_with(kind))
}

// A05.
#[test]
fn a_helper_is_tidy_while_it_runs_and_no_user_writes_its_log() {
    let _machine = serial().unwrap();
    let cluster = product::boot(Cluster::builder().nodes(2), "host.seconds_per_check = 1.5").unwrap();
    let args = ["-N2", "--sanity-check", "-J", FORGED, "--comment", FORGED, "hostname"];
    let job = cluster.srun(args).env("SLURM_JOB_PARTITION", FORGED).spawn().unwrap();
    let ours = |node: &str| -> Vec<_> {
        let processes = cluster.processes(node).unwrap();
        processes.into_iter().filter(|process| process.comm.starts_with("aimaster")).collect()
    };
    wait::until(SOON, "workers on both nodes", || {
        Ok(["n1", "n2"].iter().all(|node| ours(node).len() >= 2).then_some(()))
    })
    .unwrap();
    // Past the meeting, when all that stays open is open.
    std::thread::sleep(Duration::from_secs(1));
    for process in ["n1", "n2"].into_iter().flat_map(ours) {
        let proc = std::path::PathBuf::from(format!("/proc/{}", process.host_pid));
        let status = std::fs::read_to_string(proc.join("status")).unwrap();
        let field =
            |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
        assert!(!field("State:").starts_with('Z'), "{process:?}");
        let resident: u64 = field("VmRSS:").split(' ').next().unwrap().parse().unwrap();
        let open: Vec<String> = std::fs::read_dir(proc.join("fd"))
            .unwrap()
            .flatten()
            .filter_map(|entry| std::fs::read_link(entry.path()).ok())
            .map(|target| target.display().to_string())
            .collect();
        eprintln!("{}: {resident} KiB, umask {}, {} descriptors", process.comm, field("Umask:"), open.len());
        assert!(open.iter().all(|target| is_own(target)), "{}: {open:?}", process.comm);
        assert!(process.comm != "aimaster-prolog" || resident < MOST_KIB, "{resident} KiB");
        // Nothing that we make may be written by others.
        assert!(u32::from_str_radix(&field("Umask:"), 8).unwrap() & 0o022 == 0o022, "{}", field("Umask:"));
    }
    job.wait(SOON).unwrap().ok().unwrap();
    for node in cluster.nodes() {
        let log = std::fs::read_to_string(cluster.log_file(&format!("syslog.{node}"))).unwrap();
        assert!(!log.contains("SanityCheckForged"), "{log}");
    }
}
