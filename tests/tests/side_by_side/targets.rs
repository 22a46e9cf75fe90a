//! Actions meet exactly the job that is meant: one task of an array, a heterogeneous job as a whole, and no job that
//! somebody else cancelled or requeued meanwhile. The fault is the slow network of one node.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::time::{Duration, Instant};

use aimaster_tests::{Cluster, JobId, Record, product, side_by_side, wait};

const SOON: Duration = Duration::from_secs(60);

/// A cancelled job's prolog ends within this time.
const PROLOG_END: Duration = Duration::from_secs(5);

/// Rate of a slow network in kbit/s: 0.0025 GB/s, a twentieth of the limit that ships and a quarter of this one.
const SLOW: u64 = 20_000;

/// Three tasks measure at the same time: a healthy pair that does not get a processor now and then stays above this limit.
const LIMIT: &str = "
engine = 'host'
[[limit]]
check = 'all_reduce_2'
metric = 'busbw'
value = 0.01
source = 'four times what the slow network carries'
";

/// Short windows and one rank a node: several jobs measure at the same time, and the fault is gross. Shorter ones miss, now and then,
/// for a healthy pair that did not get a processor.
const QUICK: &str = "[host]\nseconds_per_check = 0.4\nranks_per_node = 1\n";

/// Windows in which a test has time to act.
const LONG: &str = "host.seconds_per_check = 4\n";

const CHECK: &str = "--sanity-check=all_reduce_2";

fn action(name: &str) -> String {
    format!("--sanity-fail-action={name}")
}

/// The tasks of an array, in the order of their indices.
fn tasks(cluster: &Cluster, array: JobId) -> Vec<Record> {
    let mut tasks = cluster.jobs(array).unwrap();
    tasks.sort_by_key(|task| task.number("ArrayTaskId").unwrap_or(u64::MAX));
    tasks
}

/// Submits an array of three tasks of three nodes each and waits until all of them have ended.
fn array(cluster: &Cluster, fail_action: &str) -> Vec<Record> {
    let options = ["-N3", "--exclusive", "--array=0-2", CHECK, &action(fail_action)];
    let array = cluster.submit("echo ran", options).unwrap();
    wait::until(SOON, format!("the tasks of array {array} end"), || {
        let tasks = tasks(cluster, array);
        Ok((tasks.len() == 3 && tasks.iter().all(Record::is_finished)).then_some(tasks))
    })
    .unwrap()
}

fn id(record: &Record) -> JobId {
    JobId(record.number("JobId").unwrap().try_into().unwrap())
}

fn has_arrays_id(task: &Record) -> bool {
    task.get("JobId") == task.get("ArrayJobId")
}

// A17.
#[test]
fn only_the_task_on_the_bad_node_is_acted_on() {
    let _machine = side_by_side().unwrap();
    // Two nodes to spare for the one that is requeued.
    let cluster = product::boot(Cluster::builder().nodes(11), QUICK).unwrap();
    cluster.set_baselines("host", LIMIT).unwrap();
    // Slurm gives the array's own id to the task that starts last: with n8 that is the bad one, with n2 another.
    for (bad, is_the_arrays) in [("n8", true), ("n2", false)] {
        let slow = cluster.rate(bad, SLOW).unwrap();
        for fail_action in ["requeue", "fail"] {
            let tasks = array(&cluster, fail_action);
            let summary: Vec<_> = tasks
                .iter()
                .map(|task| (id(task), task.get("NodeList"), task.state(), task.get("Restarts")))
                .collect();
            let name = format!("{bad} {fail_action}: {summary:?}");
            eprintln!("{name}");
            let hit = |task: &&Record| task.get("AdminComment").contains("outcome=FAIL");
            let hits: Vec<&Record> = tasks.iter().filter(hit).collect();
            assert_eq!(hits.len(), 1, "{name}");
            assert_eq!(has_arrays_id(hits[0]), is_the_arrays, "{name}");
            for task in &tasks {
                let failed = hit(&task) && fail_action == "fail";
                assert_eq!(task.state(), if failed { "FAILED" } else { "COMPLETED" }, "{name}");
                let restarts = u8::from(hit(&task) && fail_action == "requeue");
                assert_eq!(task.get("Restarts"), restarts.to_string(), "{name}");
                let excluded = if restarts == 1 { bad } else { "" };
                assert_eq!(task.get("ExcNodeList"), excluded, "{name}");
                let report = cluster.report(id(task), u32::from(restarts) + 1).unwrap();
                assert_eq!(report["outcome"], if failed { "FAIL" } else { "PASS" }, "{name} {report:#}");
            }
            let drained = cluster.drained().unwrap();
            assert_eq!(drained.len(), 1, "{drained:?}");
            let tag = format!("job={} n=1", id(hits[0]));
            assert!(drained[0].0 == bad && drained[0].1.ends_with(&tag), "{drained:?}");
            cluster.put_back().unwrap();
        }
        slow.undo().unwrap();
    }
}

/// A job of two components of three nodes each, both checked.
fn het_script(fail_action: &str) -> String {
    format!(
        "#!/bin/bash\n#SBATCH -N3 {CHECK} {act}\n#SBATCH hetjob\n#SBATCH -N3 {CHECK} {act}\n\
         echo began\nsrun --het-group=0,1 bash -c 'echo ran on $(hostname)'\n",
        act = action(fail_action)
    )
}

#[test]
fn a_heterogeneous_job_is_handled_as_a_whole() {
    let _machine = side_by_side().unwrap();
    let cluster = product::boot(Cluster::builder().nodes(7), QUICK).unwrap();
    cluster.set_baselines("host", LIMIT).unwrap();
    for bad in ["n2", "n5"] {
        let slow = cluster.rate(bad, SLOW).unwrap();
        for fail_action in ["requeue", "fail"] {
            let leader = cluster.submit(&het_script(fail_action), [""; 0]).unwrap();
            let components = wait::until(SOON, format!("job {leader} ends"), || {
                let all = cluster.jobs(leader)?;
                Ok(all.iter().all(Record::is_finished).then_some(all))
            })
            .unwrap();
            let summary: Vec<_> = components
                .iter()
                .map(|one| {
                    (id(one), one.get("NodeList"), one.state(), one.get("Restarts"), one.get("ExcNodeList"))
                })
                .collect();
            let name = format!("{bad} {fail_action}: {summary:?}");
            eprintln!("{name}\n{:?}", cluster.job_output(leader));
            assert_eq!(components.len(), 2, "{name}");
            let drained = cluster.drained().unwrap();
            assert_eq!(drained.iter().map(|(node, _)| node.as_str()).collect::<Vec<_>>(), [bad], "{name}");
            if fail_action == "requeue" {
                for one in &components {
                    assert_eq!((one.state(), one.get("Restarts")), ("COMPLETED", "1"), "{name}");
                    assert!(!one.get("NodeList").split(',').any(|node| node == bad), "{name}");
                }
                let output = cluster.job_output(leader).unwrap();
                assert_eq!(output.matches("ran on").count(), 6, "{output}");
                assert!(!output.contains(&format!("ran on {bad}\n")), "{output}");
            } else if bad == "n2" {
                // The script would run in the first component: its gate ends it, and it with the job.
                assert_eq!(components[0].state(), "FAILED", "{name}");
                assert!(components[1].is_finished(), "{name}");
                let output = cluster.job_output(leader).unwrap();
                assert!(output.contains("n2: all_reduce_2") && !output.contains("began"), "{output}");
            } else {
                // The first component is fine, but its script waits for the second one's verdict.
                assert!(components.iter().all(|one| one.state() == "CANCELLED"), "{name}");
                let output = cluster.job_output(leader).unwrap_or_default();
                assert!(!output.contains("began"), "{output}");
                let report = cluster.report(id(&components[1]), 1).unwrap();
                assert_eq!(report["action"], "end", "{report:#}");
            }
            cluster.put_back().unwrap();
        }
        slow.undo().unwrap();
    }
    // Interactive: neither component's program runs, and the user is told of the node.
    let _slow = cluster.rate("n5", SLOW).unwrap();
    let fail = action("fail");
    let srun = cluster
        .srun([
            "-N3", CHECK, &fail, "bash", "-c", "echo ran", ":", "-N3", CHECK, &fail, "bash", "-c", "echo ran",
        ])
        .timeout(SOON)
        .run()
        .unwrap();
    eprintln!("{}\n{}", srun.stdout, srun.stderr);
    assert!(srun.code() != 0 && !srun.stdout.contains("ran"), "{}\n{}", srun.stdout, srun.stderr);
    assert!(srun.stderr.contains("n5: all_reduce_2"), "{}", srun.stderr);
}

fn helpers(cluster: &Cluster) -> Vec<String> {
    let of = |node: &str| {
        let all = cluster.processes(node).unwrap().into_iter();
        all.filter(|process| process.comm.starts_with("aimaster")).map(|one| one.cmdline).collect::<Vec<_>>()
    };
    cluster.nodes().into_iter().flat_map(of).collect()
}

/// Submits a job whose checks take long, and waits until it measures on all of its three nodes.
fn measuring(cluster: &Cluster) -> JobId {
    product::set_policy(cluster, LONG).unwrap();
    let job = cluster.submit("echo ran", ["-N3", CHECK, &action("requeue")]).unwrap();
    wait::until(SOON, "the workers run", || Ok((helpers(cluster).len() >= 6).then_some(()))).unwrap();
    job
}

/// Waits until no helper is left on any node; the time that it may take is the specification's.
fn assert_prologs_end(cluster: &Cluster, since: Instant) {
    wait::until(SOON, "helpers end", || Ok(helpers(cluster).is_empty().then_some(()))).unwrap();
    let took = since.elapsed();
    assert!(took < PROLOG_END, "the prologs took {took:?} to end");
}

// A26.
#[test]
fn a_job_that_somebody_else_ends_is_left_alone() {
    let _machine = side_by_side().unwrap();
    let cluster = product::boot(Cluster::builder().nodes(3), "").unwrap();
    let _slow = cluster.rate("n2", SLOW).unwrap();

    let job = measuring(&cluster);
    let since = Instant::now();
    cluster.scancel([job.to_string()]).ok().unwrap();
    assert_prologs_end(&cluster, since);
    let record = cluster.wait_end(job, SOON).unwrap();
    assert_eq!((record.state(), record.get("Restarts")), ("CANCELLED", "0"), "{record:?}");
    assert_eq!(record.get("AdminComment"), "");
    assert!(cluster.drained().unwrap().is_empty());
    let stopped = |line: &str| line.contains(&format!("job={job} event=SanityCheckStopped"));
    cluster.wait_syslog("n1", stopped, SOON).unwrap();

    // Requeued by an admin: the second start is checked by itself, and its gate is the one that counts.
    let job = measuring(&cluster);
    let since = Instant::now();
    cluster.scontrol(["requeue", &job.to_string()]).ok().unwrap();
    product::set_policy(&cluster, QUICK).unwrap();
    assert_prologs_end(&cluster, since);
    assert!(cluster.drained().unwrap().is_empty());
    let stopped = |line: &str| line.contains(&format!("job={job} event=SanityCheckStopped"));
    cluster.wait_syslog("n1", stopped, SOON).unwrap();
    cluster.clear("n2").unwrap();
    let record = cluster.wait_end(job, SOON).unwrap();
    assert_eq!((record.state(), record.get("Restarts")), ("COMPLETED", "1"), "{record:?}");
    let output = cluster.job_output(job).unwrap();
    assert!(output.contains("PASS after") && output.contains("ran"), "{output}");
    assert!(!output.contains("nothing was decided"), "the first run's gate was read: {output}");
    let report = cluster.report(job, 2).unwrap();
    assert_eq!((&report["check_number"], &report["outcome"]), (&2.into(), &"PASS".into()), "{report:#}");

    // A later begin is no restart.
    let job = cluster.submit("echo ran", ["-N3", "--begin=now+2", CHECK]).unwrap();
    assert_eq!(cluster.wait_end(job, SOON).unwrap().state(), "COMPLETED");
    assert_eq!(cluster.report(job, 1).unwrap()["check_number"], 1);
}

#[test]
fn a_job_that_is_suspended_meanwhile_is_checked_and_starts_when_it_is_resumed() {
    let _machine = side_by_side().unwrap();
    let cluster = product::boot(Cluster::builder().nodes(2), LONG).unwrap();
    let job = cluster.submit("echo ran", ["-N2", CHECK]).unwrap();
    wait::until(SOON, "its prologs run", || {
        let record = cluster.job(job)?;
        Ok(["CONFIGURING", "RUNNING"].contains(&record.state()).then_some(()))
    })
    .unwrap();
    cluster.scontrol(["suspend".to_owned(), job.to_string()]).ok().unwrap();
    // Long enough for the leader to look at the job.
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(cluster.report(job, 1).unwrap()["outcome"], "PASS");
    // Slurm may start the script of a job that it suspended before there was a step to stop; then it has ended by now.
    let resumed = cluster.scontrol(["resume".to_owned(), job.to_string()]).run().unwrap();
    assert!(resumed.success() || resumed.stderr.contains("completed"), "{}", resumed.stderr);
    let record = cluster.wait_end(job, SOON).unwrap();
    assert_eq!(record.state(), "COMPLETED", "{}", cluster.job_output(job).unwrap());

    // A09: a new configuration while the prologs run loses neither of them.
    product::set_policy(&cluster, "host.seconds_per_check = 2").unwrap();
    let job = cluster.submit("echo ran", ["-N2", CHECK]).unwrap();
    wait::until(SOON, "the workers run", || Ok((helpers(&cluster).len() >= 4).then_some(()))).unwrap();
    cluster.scontrol(["reconfigure"]).ok().unwrap();
    let record = cluster.wait_end(job, SOON).unwrap();
    let output = cluster.job_output(job).unwrap();
    assert_eq!((record.state(), record.get("Restarts")), ("COMPLETED", "0"), "{output}");
    assert!(output.contains("PASS after") && output.contains("ran"), "{output}");
    cluster.wait_idle(2, SOON).unwrap();
    assert!(cluster.drained().unwrap().is_empty());
}

/// The record of such a job can't be believed; squeue tells enough to act, but not how often it was requeued.
#[test]
fn a_job_that_hides_behind_its_name_is_acted_on() {
    let _machine = side_by_side().unwrap();
    let cluster = product::boot(Cluster::builder().nodes(3), QUICK).unwrap();
    cluster.set_baselines("host", LIMIT).unwrap();
    let _slow = cluster.rate("n2", SLOW).unwrap();
    let name = "--job-name=x\n   JobState=RUNNING Reason=None\n   NodeList=n7";
    let job = cluster.submit("echo ran", ["-N3", name, CHECK, &action("requeue")]).unwrap();
    let report = wait::until(SOON, "the report is written", || Ok(cluster.report(job, 1).ok())).unwrap();
    let drained = cluster.drained().unwrap();
    assert_eq!(drained.iter().map(|(node, _)| node.as_str()).collect::<Vec<_>>(), ["n2"], "{report:#}");
    assert!(report["outcome"] == "FAIL" && report["action"] == "end", "{report:#}");
    let text = report.to_string();
    assert!(text.contains("imitates Slurm's output") && !text.contains("could not be asked"), "{report:#}");
    cluster.put_back().unwrap();
    assert!(!cluster.job_output(job).unwrap_or_default().contains("ran"));
}
