//! What all jobs together take out of service, what comes back, and whose drains are touched. The faults are real:
//! nodes with a slow network; drains of persons are made with scontrol, as persons make them.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::time::Duration;

use aimaster_tests::{Cluster, JobId, Output, product, side_by_side};
use cluster::slurm::{picture, show};
use diag::drain_memory::Memory;
use diag::reason::Ours;
use serde_json::Value;

const SOON: Duration = Duration::from_secs(60);

/// Rate of a slow network in kbit/s: a twentieth of the limit.
const SLOW: u64 = 20_000;

/// A short window: the fault is gross. One rank a node: with two, on a machine that other tests use too, a good pair may
/// fall below the floor.
const QUICK: &str = "host.seconds_per_check = 0.3\nhost.ranks_per_node = 1\n";

const CHECK: &str = "--sanity-check=all_reduce_2";

fn submit(cluster: &Cluster, nodes: &str, action: &str) -> JobId {
    let action = format!("--sanity-fail-action={action}");
    cluster.submit("echo ran", ["-N3", "-w", nodes, CHECK, &action]).unwrap()
}

fn names(drained: &[(String, String)]) -> Vec<&str> {
    drained.iter().map(|(node, _)| node.as_str()).collect()
}

fn list(report: &Value, field: &str) -> Vec<String> {
    let items = report[field].as_array().map_or(&[][..], Vec::as_slice);
    items.iter().map(|item| item.as_str().unwrap().to_owned()).collect()
}

/// Four jobs of three nodes each, which start together and of which each has one bad node.
const JOBS: [(&str, &str); 4] = [("n[1-3]", "n2"), ("n[4-6]", "n5"), ("n[7-9]", "n8"), ("n[10-12]", "n11")];

// D01, D03: jobs that fail at once drain together what the budget allows, and say what it held back.
#[test]
fn jobs_that_fail_at_once_share_one_budget() {
    let _machine = side_by_side().unwrap();
    let cluster = product::boot(Cluster::builder().nodes(12), "").unwrap();
    let policy = format!("{QUICK}budget.held_nodes = 2\nbudget.held_fraction = 1.0");
    product::set_policy(&cluster, &policy).unwrap();
    for (_, bad) in JOBS {
        cluster.rate(bad, SLOW).unwrap().keep();
    }
    let jobs: Vec<JobId> = JOBS.iter().map(|(nodes, _)| submit(&cluster, nodes, "fail")).collect();
    let mut drained = Vec::new();
    let mut held_back = Vec::new();
    for (job, (_, bad)) in jobs.iter().zip(JOBS) {
        let record = cluster.wait_end(*job, SOON).unwrap();
        let text = cluster.job_output(*job).unwrap();
        // Drained or not, the job is treated as its action says.
        assert_eq!((record.state(), record.get("ExitCode")), ("FAILED", "1:0"), "{text}");
        let report = cluster.report(*job, 1).unwrap();
        assert_eq!(report["outcome"], "FAIL", "{report:#}");
        let comment = record.get("AdminComment");
        match (list(&report, "drained").as_slice(), list(&report, "held_back").as_slice()) {
            ([node], []) if node == bad => {
                assert!(comment.contains(&format!("drained={bad}")), "{comment}");
                assert!(text.contains(&format!("leaves service: {bad}")), "{text}");
                drained.push(bad);
            }
            ([], [node]) if node == bad => {
                assert!(!comment.contains("drained="), "{comment}");
                assert!(text.contains("drain budget") || text.contains("given back"), "{text}");
                assert!(!text.contains("leaves service"), "{text}");
                let event = format!("job={job} event=DrainHeldBack nodes={bad}");
                let leader = cluster.job(*job).unwrap().get("BatchHost").to_owned();
                cluster.wait_syslog(&leader, |line| line.contains(&event), SOON).unwrap();
                held_back.push(bad);
            }
            other => panic!("{other:?} of {bad}: {report:#}"),
        }
    }
    eprintln!("drained {drained:?}, held back {held_back:?}");
    assert_eq!((drained.len(), held_back.len()), (2, 2));
    assert_eq!(names(&cluster.drained().unwrap()).len(), 2);

    // The budget is used up: a job that may start anyway starts, and its node stays in service.
    let (nodes, bad) = *JOBS.iter().find(|(_, bad)| held_back.contains(bad)).unwrap();
    let job = submit(&cluster, nodes, "drain");
    assert_eq!(cluster.wait_end(job, SOON).unwrap().state(), "COMPLETED");
    let report = cluster.report(job, 1).unwrap();
    assert_eq!(list(&report, "held_back"), [bad], "{report:#}");
    assert!(report["errors"].to_string().contains("2 of the 12 nodes of partition main"), "{report:#}");
    let shown = cluster.aimaster(["report", &job.to_string()]).run().unwrap().stdout;
    assert!(shown.contains(&format!("not drained, over the budget: {bad}")), "{shown}");
    assert_eq!(cluster.drained().unwrap().len(), 2);
}

// M06: a node that fails, comes back and fails again is left to a person in the end.
#[test]
fn a_node_that_comes_back_too_often_needs_a_person() {
    let _machine = side_by_side().unwrap();
    let cluster = product::boot(Cluster::builder().nodes(3), "").unwrap();
    product::set_policy(&cluster, &format!("{QUICK}budget.same_node = 2")).unwrap();
    cluster.rate("n2", SLOW).unwrap().keep();
    cluster.scontrol(["update", "nodename=n2", "comment=rack 7, row \"b\""]).ok().unwrap();
    for words in ["", " second time in 24 h"] {
        let job = submit(&cluster, "n[1-3]", "fail");
        cluster.wait_end(job, SOON).unwrap();
        let drained = cluster.drained().unwrap();
        assert_eq!(names(&drained), ["n2"]);
        assert!(drained[0].1.ends_with(&format!("<0.05GB/s{words} job={job} n=1")), "{drained:?}");
        let comment = cluster.node("n2").unwrap().fields["Comment"].clone();
        assert!(comment.starts_with("rack 7, row \"b\" aimaster{drained="), "{comment}");
        assert!(!Memory::of(&comment).contradicts(&drained[0].1), "{comment}");
        // As an admin does it who thinks that it is mended.
        cluster.scontrol(["update", "nodename=n2", "state=resume"]).ok().unwrap();
        cluster.wait_idle(3, SOON).unwrap();
    }
    let job = submit(&cluster, "n[1-3]", "fail");
    assert_eq!(cluster.wait_end(job, SOON).unwrap().state(), "FAILED");
    assert!(cluster.drained().unwrap().is_empty());
    let errors = cluster.report(job, 1).unwrap()["errors"].to_string();
    assert!(errors.contains("it needs a person: this software drained it 2 times in 24 h"), "{errors}");
    let event = format!("job={job} event=NodeNeedsPerson node=n2");
    cluster.wait_syslog("n1", |line| line.contains(&event), SOON).unwrap();
}

/// `aimaster` as root on a node.
fn undrain(cluster: &Cluster, node: &str, arguments: &[&str]) -> Output {
    let done = cluster.command(node, ["/opt/aimaster/aimaster", "undrain"]).args(arguments.to_vec()).run();
    let done = done.unwrap();
    eprintln!("---- on {node}: undrain {arguments:?}: {}\n{}{}", done.code(), done.stdout, done.stderr);
    done
}

fn drain(cluster: &Cluster, node: &str, reason: &str) {
    cluster
        .scontrol(["update", &format!("nodename={node}"), "state=drain", &format!("reason={reason}")])
        .ok()
        .unwrap();
}

fn ours(what: &str) -> String {
    Ours { what: what.into(), job_id: 12, check_number: 1 }.to_string()
}

// C05, C06, C07, C09, C25.
#[test]
fn undrain_returns_what_is_ours_and_passed_and_nothing_else() {
    let _machine = side_by_side().unwrap();
    let cluster = product::boot(Cluster::builder().nodes(6), QUICK).unwrap();
    let slow = cluster.rate("n2", SLOW).unwrap();
    let job = submit(&cluster, "n[1-3]", "fail");
    cluster.wait_end(job, SOON).unwrap();
    slow.undo().unwrap();
    drain(&cluster, "n3", "fan 3 is loud");
    drain(&cluster, "n4", &format!("{}; a new one is ordered", ours("gemm_flops n4 5<10TFLOP/s")));
    drain(&cluster, "n5", &ours("gemm_flops n5 5<10TFLOP/s"));
    let before = cluster.drained().unwrap();
    assert_eq!(names(&before), ["n2", "n3", "n4", "n5"]);

    // What would be done changes nothing; without evidence there is nothing to do.
    let dry = undrain(&cluster, "ctl", &["n[1-6],n9", "--dry-run"]);
    assert_eq!(dry.code(), 1);
    for line in [
        "n1: left alone: it is not drained: it is IDLE",
        "n2: would be returned: if --after-pass or --check",
        "n3: left alone: somebody else drained it: reason \"fan 3 is loud\"",
        "n4: left alone: somebody added to the reason",
        "n5: would be returned",
        "n9: left alone: n9: Slurm shows no such node",
    ] {
        assert!(dry.stdout.contains(line), "no {line:?}");
    }
    assert_eq!(undrain(&cluster, "ctl", &["n5"]).code(), 2);
    assert_eq!(undrain(&cluster, "ctl", &["--after-pass", "1"]).code(), 2);
    assert_eq!(undrain(&cluster, "ctl", &["--all", "--after-pass", "4000"]).code(), 2);

    // A check on the node itself, which only it can run; what took two nodes is not shown by one.
    assert_eq!(undrain(&cluster, "n5", &["n5", "--check", "--dry-run"]).code(), 0);
    assert_eq!(cluster.drained().unwrap(), before);
    let elsewhere = undrain(&cluster, "n1", &["n5", "--check"]);
    assert!(elsewhere.code() == 1 && elsewhere.stdout.contains("must be called on it"));
    let pair = undrain(&cluster, "n2", &["--all", "--check"]);
    assert!(pair.code() == 1 && pair.stdout.contains("all_reduce_2, which takes more than one node"));
    // Slurm tells the second of the drain: what began within it may have begun before.
    std::thread::sleep(Duration::from_secs(1));
    let checked = undrain(&cluster, "n5", &["n5", "--check"]);
    assert!(checked.code() == 0 && checked.stdout.contains("n5: returned to service: PASS of gemm_flops"));
    cluster.wait_syslog("n5", |line| line.contains("event=NodeReturned node=n5"), SOON).unwrap();
    assert_eq!(names(&cluster.drained().unwrap()), ["n2", "n3", "n4"]);

    // The report of a job: one that began before the drain shows nothing.
    let first = undrain(&cluster, "ctl", &["n2", "--after-pass", &job.to_string()]);
    assert!(first.code() == 1 && first.stdout.contains("not after the drain"));
    later_report(&cluster, job, "4001", "FAIL");
    assert!(undrain(&cluster, "ctl", &["n2", "--after-pass", "4001"]).stdout.contains("says FAIL"));
    later_report(&cluster, job, "4002", "PASS");
    let passed = undrain(&cluster, "ctl", &["--all", "--after-pass", "4002"]);
    assert!(passed.stdout.contains("n2: returned to service: PASS of all_reduce_2"));
    assert!(passed.stdout.contains("n4: left alone") && !passed.stdout.contains("n3"));
    assert_eq!(passed.code(), 1);
    let left = cluster.drained().unwrap();
    assert_eq!(left, before[1..3], "a person's reasons stay");
    // What is remembered of the node stays: it may come back too often.
    assert_eq!(Memory::of(&cluster.node("n2").unwrap().fields["Comment"]).drained.len(), 1);
}

/// The report of a job again, as that of a later job in which all that was measured had this outcome.
fn later_report(cluster: &Cluster, job: JobId, copy: &str, status: &str) {
    let mut report = cluster.report(job, 1).unwrap();
    for item in report["items"].as_array_mut().unwrap() {
        item["status"] = status.into();
    }
    let later = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(5);
    report["started_at"] = later.to_string().into();
    report["job_id"] = copy.parse::<u32>().unwrap().into();
    let folder = std::path::Path::new(&product::report_dir(cluster)).join("aim").join(copy).join("1");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("report.json"), report.to_string()).unwrap();
}

// C22: what the real Slurm makes of a reason, and that it is read back to the letter.
#[test]
fn reasons_come_back_from_slurm_to_the_letter() {
    let _machine = side_by_side().unwrap();
    let cluster = Cluster::builder().nodes(2).boot().unwrap();
    let long = ours(&"x".repeat(400));
    let very_long = "y".repeat(8000);
    let reasons = [
        ours("all_reduce_2 n1 0.002<0.05GB/s").as_str(),
        &ours("gemm_flops n1 50<90% of the others, 3 windows"),
        &ours("hardware n1/gpu1: \"GPU has fallen off the bus\", Xid 79"),
        &ours("c4d straggler: rank 1 is late; a=b, c='d' [confidence 80 %] {x} $HOME `id` \\n %s %%"),
        &ours("kernel_launch n1 12.5>10µs – ½ größer ✓"),
        &long,
        "fan 3 is loud",
        "two  spaces, and one at the end ",
        "a \"quoted\" word",
        "looks like [root@2026-01-01T00:00:00]",
        "a=b State=IDLE Reason=none",
        "none",
        &very_long,
    ]
    .map(str::to_owned);
    for reason in &reasons {
        cluster.scontrol(["update", "nodename=n1", "state=drain", &format!("reason={reason}")]).ok().unwrap();
        let shown = cluster.scontrol(["show", "node", "n1"]).env("TZ", "UTC0").ok().unwrap().stdout;
        let view = show::node(&shown, "n1").unwrap();
        assert_eq!(&view.reason, reason, "{shown}");
        let now = jiff::Timestamp::now().as_second();
        assert!((now - view.reason_at.unwrap().as_second()).abs() < 60, "{shown}");
        let said = cluster.sinfo(picture::arguments()).env("TZ", "UTC0").ok().unwrap().stdout;
        let seen = picture::picture(&said).unwrap().node("n1").unwrap();
        // sinfo's own word where there is none.
        let wanted = if reason == "none" { "" } else { reason };
        assert_eq!((seen.reason.as_str(), seen.reason_at), (wanted, view.reason_at), "{said:?}");
        assert_eq!(seen.state, view.state, "{said:?}");
        assert_eq!(Ours::parse(&seen.reason).is_some(), reason.starts_with("aimaster: "), "{reason}");
        let list = cluster.sinfo(["-h", "-R", "-o", "%E"]).ok().unwrap().stdout;
        assert_eq!(list.strip_suffix('\n').unwrap(), reason, "sinfo -R");
    }
    // A person's reason of two lines is read as a person's.
    cluster.scontrol(["update", "nodename=n1", "state=drain", "reason=two\nlines"]).ok().unwrap();
    let shown = cluster.scontrol(["show", "node", "n1"]).env("TZ", "UTC0").ok().unwrap().stdout;
    let said = cluster.sinfo(picture::arguments()).env("TZ", "UTC0").ok().unwrap().stdout;
    eprintln!("{shown}\n{said:?}");
    assert!(Ours::parse(&show::node(&shown, "n1").unwrap().reason).is_none());
    assert!(picture::picture(&said).unwrap().node("n1").unwrap().reason.starts_with("two"), "{said:?}");
    // Comments: set with the drain in one call, kept by undrain, and cleared by an empty one.
    let comment = "rack 7, \"b\" aimaster{drained=2026-11-30T11:24:12Z sum=1a2b3c4d}";
    let both = ["update", "nodename=n1", "state=drain", "reason=x", &format!("comment={comment}")];
    cluster.scontrol(both).ok().unwrap();
    cluster.scontrol(["update", "nodename=n1", "state=undrain"]).ok().unwrap();
    let node = || {
        let said = cluster.sinfo(picture::arguments()).env("TZ", "UTC0").ok().unwrap().stdout;
        picture::picture(&said).unwrap().node("n1").unwrap()
    };
    let after = node();
    assert_eq!((after.comment.as_str(), after.state.contains("DRAIN")), (comment, false));
    cluster.stop_slurmctld().unwrap();
    cluster.start_slurmctld().unwrap();
    cluster.wait_idle(2, SOON).unwrap();
    assert_eq!(node().comment, comment, "it outlives the controller");
    cluster.scontrol(["update", "nodename=n1", "comment="]).ok().unwrap();
    assert_eq!(node().comment, "");
}
