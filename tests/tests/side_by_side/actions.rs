//! What is done about a fault: the job, the node, and what the user and the admin see of it; by action, by command
//! and by policy. The fault is the slow network of one node.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::time::Duration;

use aimaster_tests::{Cluster, JobId, Record, product, side_by_side};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(60);

/// Rate of a slow network in kbit/s: a twentieth of the limit.
const SLOW: u64 = 20_000;

/// A short window: the fault is gross.
const QUICK: &str = "host.seconds_per_check = 0.2\n";

const CHECK: &str = "--sanity-check=all_reduce_2";

/// The program of all these jobs; it says where it runs.
const PROGRAM: &str = "echo ran on $(hostname)";

/// How a job is submitted.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Command {
    Sbatch,
    Srun,
    Salloc,
}
use Command::{Salloc, Sbatch, Srun};

/// What came of a job, as its user and the admin see it.
#[derive(Debug)]
struct Seen {
    job: JobId,
    /// Exit code of sbatch --wait, srun or salloc.
    code: i32,
    /// What the user reads: the job's output file, or stderr of srun and salloc.
    text: String,
    /// Nodes on which the program ran.
    ran: Vec<String>,
    record: Record,
    drained: Vec<(String, String)>,
    report: Value,
}

/// Runs a job of four nodes to its end.
fn run(cluster: &Cluster, command: Command, more: &[&str]) -> Seen {
    let options = ["-N4", CHECK].into_iter().chain(more.iter().copied());
    let (code, out, err) = match command {
        Sbatch => {
            let script = format!("#!/bin/bash\nsrun bash -c '{PROGRAM}'\n");
            let requeue = more.contains(&REQUEUE);
            // sbatch asks rarely after a while: a job that starts twice would hold up the test.
            let wait = if requeue { "--parsable" } else { "--wait" };
            let done = cluster.sbatch(["--parsable", wait]).args(options).stdin(script).timeout(SOON).run();
            let done = done.unwrap();
            (done.code(), done.text().to_owned(), done.stderr)
        }
        Srun => {
            let done = cluster.srun(options).args(["bash", "-c", PROGRAM]).timeout(SOON).run().unwrap();
            (done.code(), done.stdout, done.stderr)
        }
        Salloc => {
            let done =
                cluster.salloc(options).args(["srun", "bash", "-c", PROGRAM]).timeout(SOON).run().unwrap();
            (done.code(), done.stdout, done.stderr)
        }
    };
    let job = match command {
        Sbatch => JobId(out.parse().unwrap()),
        Srun | Salloc => last_job(cluster),
    };
    let record = cluster.wait_end(job, SOON).unwrap();
    let (out, text) = match command {
        Sbatch => {
            let text = cluster.job_output(job).unwrap();
            (text.clone(), text)
        }
        Srun | Salloc => (out, err),
    };
    let mut ran: Vec<String> =
        out.lines().filter_map(|line| line.strip_prefix("ran on ")).map(str::to_owned).collect();
    ran.sort();
    let drained = cluster.drained().unwrap();
    eprintln!(
        "---- {command:?} {more:?}: job {job} code {code} {} {}",
        record.state(),
        record.get("ExitCode")
    );
    eprintln!("{text}drained {drained:?}\nAdminComment={}", record.get("AdminComment"));
    let check = 1 + record.number("Restarts").unwrap();
    let report = cluster.report(job, check.try_into().unwrap()).unwrap();
    Seen { job, code, text, ran, record, drained, report }
}

fn last_job(cluster: &Cluster) -> JobId {
    let jobs = cluster.jobs("").unwrap();
    JobId(jobs.iter().map(|job| job.number("JobId").unwrap()).max().unwrap().try_into().unwrap())
}

/// What must hold for each action: does the program run, is the node drained, what becomes of the report.
fn assert_done(seen: &Seen, command: Command, action: &str) {
    let name = format!("{command:?} {action}: {seen:#?}");
    let requeued = action == "requeue" && command == Sbatch;
    let starts = requeued || matches!(action, "retain" | "drain");
    let nodes: &[&str] = match (starts, requeued) {
        (true, true) => &["n3", "n4", "n5", "n6"],
        (true, false) => &["n1", "n2", "n3", "n4"],
        (false, _) => &[],
    };
    assert_eq!(seen.ran, nodes, "{name}");
    assert_eq!(seen.code == 0, starts, "{name}");
    let state = match (starts, command) {
        (true, _) => "COMPLETED",
        (false, Sbatch) => "FAILED",
        // A task's end does not end an allocation: these are cancelled.
        (false, Srun | Salloc) => "CANCELLED",
    };
    assert_eq!(seen.record.state(), state, "{name}");
    if command == Sbatch {
        assert_eq!(seen.record.get("ExitCode"), if starts { "0:0" } else { "1:0" }, "{name}");
    }
    let drained: Vec<&str> = seen.drained.iter().map(|(node, _)| node.as_str()).collect();
    assert_eq!(drained, if action == "retain" { vec![] } else { vec!["n2"] }, "{name}");
    for (_, reason) in &seen.drained {
        assert!(reason.starts_with("aimaster: all_reduce_2 n2 0.00"), "{name}");
        assert!(reason.ends_with(&format!("<0.05GB/s job={} n=1", seen.job)), "{name}");
    }
    let comment = seen.record.get("AdminComment");
    let part = format!("aimaster{{n=1 outcome=FAIL requeues={}", u32::from(requeued));
    assert!(comment.starts_with(&part), "{name}");
    assert_eq!(comment.contains("drained=n2"), action != "retain", "{name}");
    if requeued {
        assert_eq!(seen.report["outcome"], "PASS", "{name}");
        assert_eq!(seen.report["check_number"], 2, "{name}");
        return;
    }
    let fate = if starts { "the job starts" } else { "the job does not start" };
    for words in ["FAIL after", "n2: all_reduce_2 0.00", "GB/s < 0.05 GB/s", fate] {
        assert!(seen.text.contains(words), "no {words:?} in {name}");
    }
    assert_eq!(seen.text.matches("n2: all_reduce_2").count(), 1, "the finding is told once: {name}");
    assert_eq!(seen.text.contains("leaves service: n2"), action != "retain", "{name}");
    assert_eq!(seen.report["outcome"], "FAIL", "{name}");
    assert_eq!(seen.report["action"], if starts { "start" } else { "end" }, "{name}");
    assert_eq!(seen.report["drained"].as_array().unwrap().len(), drained.len(), "{name}");
    if action == "requeue" {
        assert!(seen.text.contains("not requeued but ends: Slurm can requeue batch jobs only"), "{name}");
    }
}

/// `aimaster report` for the user: text and JSON, and its exit code.
fn assert_report(cluster: &Cluster, seen: &Seen) {
    let job = seen.job.to_string();
    let text = cluster.aimaster(["report", &job]).run().unwrap();
    let json = cluster.aimaster(["report", &job, "--json"]).run().unwrap();
    let outcome = seen.report["outcome"].as_str().unwrap();
    let code = i32::from(outcome == "FAIL");
    assert_eq!((text.code(), json.code()), (code, code), "{} {}", text.stdout, text.stderr);
    assert_eq!(serde_json::from_str::<Value>(&json.stdout).unwrap(), seen.report);
    let mut words = vec![format!("job {job} on aim"), outcome.to_owned(), "TwoNodeCommCheck".to_owned()];
    if outcome == "FAIL" {
        words.extend(["FAIL    n2: all_reduce_2".to_owned(), "limit: baseline host".to_owned()]);
        let drained = !seen.drained.is_empty();
        assert_eq!(text.stdout.contains("drained: n2"), drained, "{}", text.stdout);
    }
    for word in words {
        assert!(text.stdout.contains(&word), "no {word:?} in {}", text.stdout);
    }
}

/// Most calls to Slurm of one job, all of them by the leader, as measured: a healthy job is looked at once, told of its
/// one phase and its verdict with a look before and after; a fault
/// adds the question whose nodes these are and what is done about it; a drain, a second look at all nodes.
fn most_calls(command: Command, action: &str) -> usize {
    match (command, action) {
        (Sbatch, "retain") => 5,
        (Sbatch, "requeue") => 11,
        (Sbatch, _) => 8,
        (Srun | Salloc, "retain") => 7,
        (Srun | Salloc, _) => 12,
    }
}

// A33, A34, C18, P06: who reads what, and how many calls it takes.
#[test]
fn each_action_for_each_command() {
    let _machine = side_by_side().unwrap();
    let cluster = product::boot(Cluster::builder().nodes(6), "").unwrap();
    // A look at the job while it measures would count too.
    let policy = format!("{QUICK}time.job_poll_s = 4\n{}", cluster.log_slurm_calls().unwrap());
    product::set_policy(&cluster, &policy).unwrap();
    for (command, most) in [(Sbatch, 1), (Srun, 5)] {
        let seen = run(&cluster, command, &[]);
        assert_eq!((seen.report["outcome"].as_str(), seen.code), (Some("PASS"), 0), "{seen:#?}");
        let calls = cluster.slurm_calls().unwrap();
        eprintln!("calls of a healthy {command:?}: {}\n{calls:#?}", calls.len());
        assert!(calls.len() <= most, "{calls:#?}");
        assert_report(&cluster, &seen);
        let event = format!("job={} event=SanityCheckSucceeded", seen.job);
        cluster.wait_syslog("n1", |line| line.contains(&event), SOON).unwrap();
    }
    let _slow = cluster.rate("n2", SLOW).unwrap();
    for command in [Sbatch, Srun, Salloc] {
        for action in ["retain", "drain", "fail", "requeue"] {
            let seen = run(&cluster, command, &[&format!("--sanity-fail-action={action}")]);
            let calls = cluster.slurm_calls().unwrap();
            eprintln!("calls of {command:?} with {action}: {}\n{calls:#?}", calls.len());
            assert_done(&seen, command, action);
            assert_report(&cluster, &seen);
            let at_n1 = calls.iter().filter(|call| call.starts_with("n1 ")).count();
            assert!(at_n1 <= most_calls(command, action), "{calls:#?}");
            let event = format!("job={} event=SanityCheckFailed", seen.job);
            cluster.wait_syslog("n1", |line| line.contains(&event), SOON).unwrap();
            cluster.put_back().unwrap();
        }
    }
}

/// Submits a batch job of three nodes that says where it runs.
fn submit(cluster: &Cluster, more: &[&str]) -> JobId {
    let script = format!("srun bash -c '{PROGRAM}'");
    cluster.submit(&script, ["-N3", CHECK].into_iter().chain(more.iter().copied())).unwrap()
}

fn output_has(cluster: &Cluster, job: JobId, words: &[&str]) {
    let text = cluster.job_output(job).unwrap();
    for word in words {
        assert!(text.contains(word), "no {word:?} in the output of job {job}:\n{text}");
    }
}

const REQUEUE: &str = "--sanity-fail-action=requeue";

// C03, C05, C14, C15, C17.
#[test]
fn a_requeued_job_keeps_what_is_the_user_s_and_the_admin_s() {
    let _machine = side_by_side().unwrap();
    let cluster = product::boot(Cluster::builder().nodes(7), "").unwrap();
    // Long enough for an admin to act while it measures.
    product::set_policy(&cluster, "host.seconds_per_check = 0.8\nactions.max_requeues = 1").unwrap();
    let _slow = cluster.rate("n2", SLOW).unwrap();
    // The one that comes in for n2.
    let slow_too = cluster.rate("n4", SLOW).unwrap();

    let job = submit(&cluster, &["--exclude=n7", "--comment=my run {3}", REQUEUE]);
    let target = format!("JobId={job}");
    cluster.scontrol(["update", &target, "AdminComment=ticket 7 {a=b}"]).ok().unwrap();
    let back = |record: &Record| record.state() == "PENDING" && record.get("ExcNodeList").contains("n2");
    let record = cluster.wait_job(job, "is back in the queue", back, SOON).unwrap();
    assert_eq!(record.get("ExcNodeList"), "n7,n2", "the user's and ours");
    assert!(!record.get("Reason").contains("Held"), "{record:?}");
    assert_ne!(record.get("Priority"), "0", "a job with priority 0 is held");
    let reasons = cluster.sinfo(["-R"]).ok().unwrap().stdout;
    assert!(reasons.contains("aimaster: all_reduc") && reasons.contains("n2"), "{reasons}");
    let whole = cluster.sinfo(["-h", "-R", "-o", "%N %E"]).ok().unwrap().stdout;
    assert!(whole.contains("n2 aimaster: all_reduce_2 n2 0.00"), "{whole}");

    // The second start has a bad node too, and max_requeues is 1.
    let record = cluster.wait_end(job, SOON).unwrap();
    assert_eq!((record.state(), record.get("ExitCode")), ("FAILED", "1:0"), "{record:?}");
    output_has(&cluster, job, &["not requeued but ends: it was requeued 1 times", "n4: all_reduce_2"]);
    assert_eq!(record.get("Comment"), "my run {3}");
    let comment = record.get("AdminComment");
    assert_eq!(comment, "ticket 7 {a=b} aimaster{n=2 outcome=FAIL requeues=1 drained=n4}");
    let drained = cluster.drained().unwrap();
    assert_eq!(drained.iter().map(|(node, _)| node.as_str()).collect::<Vec<_>>(), ["n2", "n4"]);
    assert_eq!(cluster.report(job, 1).unwrap()["action"], "requeue");
    assert_eq!(cluster.report(job, 2).unwrap()["action"], "end");
    slow_too.undo().unwrap();
    cluster.put_back().unwrap();

    // The admin is quicker: his reason stays, the job goes elsewhere all the same.
    let job = submit(&cluster, &[REQUEUE]);
    cluster.wait_job(job, "has nodes", |record| record.get("NodeList").contains("n["), SOON).unwrap();
    let why = "reason=fan 3 is loud";
    cluster.scontrol(["update", "nodename=n2", "state=drain", why]).ok().unwrap();
    let record = cluster.wait_end(job, SOON).unwrap();
    assert_eq!((record.state(), record.get("Restarts")), ("COMPLETED", "1"), "{record:?}");
    assert_eq!(cluster.drained().unwrap(), [("n2".to_owned(), "fan 3 is loud".to_owned())]);
    let first = cluster.report(job, 1).unwrap();
    assert_eq!(first["outcome"], "FAIL", "{first:#}");
    assert!(first["drained"].as_array().unwrap().is_empty(), "{first:#}");
    assert!(first["errors"].to_string().contains("fan 3 is loud"), "{first:#}");
    cluster.put_back().unwrap();

    for (option, words) in [("--no-requeue", "--no-requeue"), ("-wn2", "asks for n2 by name")] {
        let job = submit(&cluster, &[option, REQUEUE]);
        let record = cluster.wait_end(job, SOON).unwrap();
        assert_eq!((record.state(), record.get("Restarts")), ("FAILED", "0"), "{record:?}");
        output_has(&cluster, job, &["the job is not requeued but ends:", words, "n2: all_reduce_2"]);
        assert_eq!(cluster.drained().unwrap().len(), 1);
        cluster.put_back().unwrap();
    }
}

/// What a job under a policy shows: outcome, whether the program ran, and nodes that were drained.
#[derive(Debug, PartialEq)]
struct Came<'a>(&'a str, bool, Vec<String>);

fn under<'a>(cluster: &Cluster, policy: &str, options: &[&str], outcome: &'a str) -> (Came<'a>, Seen) {
    product::set_policy(cluster, &format!("{QUICK}{policy}")).unwrap();
    let seen = run(cluster, Srun, options);
    assert_eq!(seen.report["outcome"], outcome, "{policy}: {seen:#?}");
    let drained = seen.drained.iter().map(|(node, _)| node.clone()).collect();
    cluster.put_back().unwrap();
    (Came(outcome, !seen.ran.is_empty(), drained), seen)
}

// D01, B05.
#[test]
fn a_policy_bounds_what_is_done() {
    let _machine = side_by_side().unwrap();
    let extra = "PartitionName=checked Nodes=ALL MaxTime=INFINITE State=UP";
    let cluster = product::boot(Cluster::builder().nodes(6).line(extra), "").unwrap();
    let _slow = cluster.rate("n2", SLOW).unwrap();
    let n2 = || vec!["n2".to_owned()];

    let (came, _) = under(&cluster, "actions.drain_on = ['requeue']", &[], "FAIL");
    assert_eq!(came, Came("FAIL", false, vec![]));
    let user = "actions.drain_on_user_request = false";
    let (came, _) = under(&cluster, user, &[], "FAIL");
    assert_eq!(came, Came("FAIL", false, vec![]));
    let site = "actions.drain_on_user_request = false\nchecks.always = ['all_reduce_2']";
    let (came, _) = under(&cluster, site, &[], "FAIL");
    assert_eq!(came, Came("FAIL", false, n2()));
    let (came, _) = under(&cluster, "actions.fail_action = 'drain'", &[], "FAIL");
    assert_eq!(came, Came("FAIL", true, n2()));

    // More bad nodes than one verdict may drain.
    let slow_too = cluster.rate("n5", SLOW).unwrap();
    let capped = "actions.max_drain_nodes = 1";
    let (came, seen) = under(&cluster, capped, &["-N6"], "ENVIRONMENT");
    assert_eq!(came, Came("ENVIRONMENT", false, vec![]));
    assert!(seen.text.contains("2 of 6 nodes fail, more than the 1"), "{}", seen.text);
    let lenient = format!("{capped}\nactions.on_environment = 'start'");
    let (came, _) = under(&cluster, &lenient, &["-N6"], "ENVIRONMENT");
    assert_eq!(came, Came("ENVIRONMENT", true, vec![]));
    let (came, _) = under(&cluster, "actions.max_drain_fraction = 0.1", &["-N6"], "ENVIRONMENT");
    assert_eq!(came, Came("ENVIRONMENT", false, vec![]));
    slow_too.undo().unwrap();

    let always = "checks.always = ['all_reduce_2']";
    product::set_policy(&cluster, &format!("{QUICK}{always}")).unwrap();
    let plain = cluster.srun(["-wn[1-4]", "true"]).run().unwrap();
    assert_eq!(plain.code(), 1, "{}", plain.stderr);
    assert!(plain.stderr.contains("n2: all_reduce_2"), "{}", plain.stderr);
    cluster.put_back().unwrap();
    let off = cluster.srun(["-wn[1-4]", "--sanity-check=off", "true"]).run().unwrap();
    assert!(off.success() && !off.stderr.contains("aimaster"), "{}", off.stderr);
    assert!(cluster.drained().unwrap().is_empty());

    let jobs = last_job(&cluster);
    product::set_policy(&cluster, &format!("{QUICK}{always}\nchecks.users_may_switch_off = false")).unwrap();
    let off = cluster.srun(["-wn[1-4]", "--sanity-check=off", "true"]).run().unwrap();
    assert!(off.code() != 0 && off.stderr.contains("this site does not allow off"), "{}", off.stderr);
    product::set_policy(&cluster, &format!("{QUICK}actions.allowed = ['retain', 'fail']")).unwrap();
    let drain = cluster.srun(["-wn[1-4]", CHECK, "--sanity-fail-action=drain", "true"]).run().unwrap();
    assert!(drain.code() != 0 && drain.stderr.contains("drain"), "{}", drain.stderr);
    eprintln!("{}{}", off.stderr, drain.stderr);
    assert_eq!(last_job(&cluster), jobs, "nothing was queued");

    let scoped = format!("{QUICK}{always}\nscope.partitions = ['checked']");
    product::set_policy(&cluster, &scoped).unwrap();
    let main = cluster.srun(["-wn[1-4]", "true"]).run().unwrap();
    assert!(main.success() && !main.stderr.contains("aimaster"), "{}", main.stderr);
    cluster.put_back().unwrap();
    let checked = cluster.srun(["-wn[1-4]", "-pchecked", "true"]).run().unwrap();
    assert!(checked.code() == 1 && checked.stderr.contains("n2: all_reduce_2"), "{}", checked.stderr);
    cluster.put_back().unwrap();
    let job = submit(&cluster, &[]);
    assert_eq!(cluster.wait_end(job, SOON).unwrap().state(), "COMPLETED");
    output_has(&cluster, job, &["SKIP: nothing was checked"]);
}
