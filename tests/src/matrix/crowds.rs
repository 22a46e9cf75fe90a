//! Faults that are no single blow: many jobs at once, jobs on the same nodes, a job that is sent back again and again, a
//! leader that wakes up when its time is long over. Each boots a cluster of its own.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use super::judge::{self, Seen};
use super::lives::Lives;
use super::reach::STARTED;
use super::site::Site;
use crate::cluster::Cluster;
use crate::fields::Record;
use crate::slurm::JobId;
use crate::wait::until;

/// One of them.
pub struct Crowd {
    /// In the table.
    pub name: &'static str,
    run: fn(&mut Seen) -> Result<String>,
}

/// All of them.
pub const CROWDS: [Crowd; 6] = [
    Crowd { name: "an array of 500 tasks at once", run: array },
    Crowd { name: "50 jobs start at once on 32 nodes", run: fifty },
    Crowd { name: "jobs share nodes, one loses its coordinator", run: shared },
    Crowd { name: "preempted twice, then a node is slow", run: preempted },
    Crowd { name: "a frozen leader wakes up when the job runs again", run: woken },
    Crowd { name: "without this software: slurmctld is gone when a Prolog ends", run: without },
];

/// For hundreds of jobs on a small machine.
const LONG: Duration = Duration::from_secs(420);

/// For one job.
const SOON: Duration = Duration::from_secs(90);

/// Many prologs share a processor, so they have longer.
const CROWDED: &str = "time = { join_s = 40, max_deadline_s = 60 }\nhost.seconds_per_check = 0.1\n";

/// Their deadline.
const DEADLINE: Duration = Duration::from_secs(60);

/// Rate of a slow network in kbit/s: a twentieth of the limit.
const SLOW: u64 = 20_000;

/// Tasks of the array.
const TASKS: usize = 500;

/// Jobs at once.
const JOBS: usize = 50;

/// Runs the one of this name: what was seen, and what became of its jobs in words.
#[must_use]
pub fn run(name: &str) -> (Seen, String) {
    let mut seen = Seen::default();
    let Some(crowd) = CROWDS.iter().find(|crowd| crowd.name == name) else {
        seen.wrong.push("there is no such crowd".into());
        return (seen, String::new());
    };
    let words = (crowd.run)(&mut seen).unwrap_or_else(|error| {
        seen.wrong.push(format!("{error:#}"));
        "stuck".into()
    });
    (seen, words)
}

/// What holds after a crowd: which node was bad, and which stood still.
fn over(
    site: &Site,
    lives: &Lives,
    (since, deadline): (Instant, Duration),
    (bad, frozen): (Option<&str>, Option<&str>),
    seen: &mut Seen,
) {
    let spaces = site.namespaces();
    let names: Vec<String> = spaces.values().cloned().collect();
    judge::drains(site, bad, seen);
    site.cluster.nodes().iter().for_each(|node| drop(site.cluster.clear(node)));
    judge::gone(site, lives, &names, seen);
    // What stood still could not end in time.
    let moved: Vec<String> =
        spaces.into_iter().filter(|(node, _)| Some(node.as_str()) != frozen).map(|one| one.1).collect();
    let all = lives.since(&moved, since);
    let bounded: Vec<_> = all.into_iter().filter(|life| life.comm == "aimaster-prolog").collect();
    judge::lived(&bounded, deadline, seen);
    judge::aftermath(site, seen);
}

/// Waits until so many jobs have ended, and says how many of them in which state.
fn all_end(site: &Site, count: usize) -> Result<Vec<Record>> {
    let name = "crowd";
    until(LONG, format!("{count} jobs end"), || {
        std::thread::sleep(Duration::from_secs(1));
        let output = site.cluster.scontrol(["show", "job"]).run()?;
        let all = crate::fields::parse(&output.stdout).into_iter().filter(|one| one.get("JobName") == name);
        let all: Vec<Record> = all.collect();
        Ok((all.len() == count && all.iter().all(Record::is_finished)).then_some(all))
    })
}

fn states(records: &[Record], seen: &mut Seen) -> String {
    let good = records.iter().filter(|one| one.state() == "COMPLETED" && one.get("Restarts") == "0").count();
    if good != records.len() {
        seen.wrong.push(format!("{} of {} jobs did not end well", records.len() - good, records.len()));
    }
    format!("{good} of {} ran", records.len())
}

fn array(seen: &mut Seen) -> Result<String> {
    let builder =
        Cluster::builder().nodes(8).cpus(16).set("MaxArraySize", 1001).set("PrologEpilogTimeout", 120);
    let site = Site::boot_as(builder, CROWDED)?;
    let (lives, since) = (Lives::watch(), Instant::now());
    let tasks = format!("--array=1-{TASKS}");
    let check = "--sanity-check=gemm_flops";
    site.cluster.submit(
        "true",
        ["-n1", "-J", "crowd", "-o", "/dev/null", &tasks, check, "--sanity-fail-action=drain"],
    )?;
    let words = states(&all_end(&site, TASKS)?, seen);
    over(&site, &lives, (since, DEADLINE), (None, None), seen);
    Ok(words)
}

fn fifty(seen: &mut Seen) -> Result<String> {
    let builder = Cluster::builder().nodes(32).set("PrologEpilogTimeout", 120);
    let site = Site::boot_as(builder, CROWDED)?;
    let (lives, since) = (Lives::watch(), Instant::now());
    site.cluster.scontrol(["update", "PartitionName=main", "State=DOWN"]).ok()?;
    for _ in 0..JOBS {
        let arguments = [
            "-N2",
            "-n2",
            "-J",
            "crowd",
            "-o",
            "/dev/null",
            "--sanity-check=gemm_flops,all_reduce_2",
            "--sanity-fail-action=drain",
        ];
        site.cluster.submit("true", arguments)?;
    }
    site.cluster.scontrol(["update", "PartitionName=main", "State=UP"]).ok()?;
    let words = states(&all_end(&site, JOBS)?, seen);
    over(&site, &lives, (since, DEADLINE), (None, None), seen);
    Ok(words)
}

fn shared(seen: &mut Seen) -> Result<String> {
    let site = Site::boot()?;
    let (lives, since) = (Lives::watch(), Instant::now());
    let check = "--sanity-check=gemm_flops,all_reduce_2";
    let submit = || {
        site.cluster.submit(
            &format!("echo {STARTED}"),
            ["-N3", "-n3", "-w", "n[1-3]", "-J", "crowd", check, "--sanity-fail-action=drain"],
        )
    };
    let jobs = [submit()?, submit()?];
    let mine = |job: JobId| format!("SLURM_JOB_ID={job}\0");
    let victim = until(SOON, "both jobs have a coordinator on n1", || {
        let all = site.cluster.processes("n1")?;
        let of = |job: JobId| {
            all.iter().find(|one| {
                let environment =
                    std::fs::read(format!("/proc/{}/environ", one.host_pid)).unwrap_or_default();
                one.comm == "aimaster-prolog" && String::from_utf8_lossy(&environment).contains(&mine(job))
            })
        };
        Ok(of(jobs[0]).zip(of(jobs[1])).map(|(one, _)| one.host_pid))
    })?;
    rustix::process::kill_process(crate::process::pid_of(victim)?, Signal::KILL)
        .context("its coordinator")?;
    let words = states(&all_end(&site, jobs.len())?, seen);
    let untouched = site.cluster.report(jobs[1], 1)?;
    ensure!(
        untouched["items"].to_string().contains("all_reduce_2")
            && !untouched["summary"].to_string().contains("lost"),
        "the other job's checks suffered: {untouched:#}"
    );
    over(&site, &lives, (since, super::site::DEADLINE), (None, None), seen);
    Ok(words)
}

fn preempted(seen: &mut Seen) -> Result<String> {
    let builder = Cluster::builder()
        .nodes(4)
        .set("PreemptType", "preempt/partition_prio")
        .set("PreemptMode", "REQUEUE")
        .line("PartitionName=first Nodes=ALL PriorityTier=10 MaxTime=INFINITE State=UP");
    let site = Site::boot_as(builder, "")?;
    let (lives, since) = (Lives::watch(), Instant::now());
    let arguments =
        ["-N3", "-J", "crowd", "--sanity-check=all_reduce_2", "--sanity-fail-action=requeue", "--exclusive"];
    let job = site.cluster.submit(&format!("echo {STARTED}; sleep 30"), arguments)?;
    for turn in 0..2 {
        site.cluster.wait_job(
            job,
            "its prologs or its program run",
            |one| {
                ["CONFIGURING", "RUNNING"].contains(&one.state()) && one.get("Restarts") == turn.to_string()
            },
            SOON,
        )?;
        site.cluster.srun(["-p", "first", "-N4", "--exclusive", "true"]).timeout(SOON).ok()?;
    }
    site.cluster.wait_job(job, "was preempted twice", |one| one.get("Restarts") == "2", SOON)?;
    let slow = site.cluster.rate("n2", SLOW)?;
    let ended = site.cluster.wait_job(
        job,
        "runs without the slow node",
        |one| one.state() == "RUNNING" && !one.get("NodeList").is_empty() && one.get("ExcNodeList") == "n2",
        SOON,
    );
    let ended = ended.context("after two preemptions a requeue of ours is the first")?;
    site.cluster.scancel([job.to_string()]).ok()?;
    site.cluster.wait_end(job, SOON)?;
    slow.keep();
    over(&site, &lives, (since, super::site::DEADLINE), (Some("n2"), None), seen);
    Ok(format!("it ran again at start {}", ended.number("Restarts")? + 1))
}

fn woken(seen: &mut Seen) -> Result<String> {
    let builder = Cluster::builder()
        .nodes(6)
        .set("SlurmdTimeout", 8)
        .set("MessageTimeout", 5)
        .set("PrologEpilogTimeout", 60);
    let site = Site::boot_as(builder, "")?;
    let (lives, since) = (Lives::watch(), Instant::now());
    let slow = site.cluster.rate("n3", SLOW)?;
    site.hold("n1", "drain")?;
    let arguments = ["-N3", "-J", "crowd", "--sanity-check=all_reduce_2", "--sanity-fail-action=requeue"];
    let job = site.cluster.submit(&format!("echo {STARTED}; sleep 15"), arguments)?;
    let about_to = site.run_file("n1", "at.drain")?;
    until(SOON, "the leader is about to drain", || Ok(about_to.exists().then_some(())))?;
    let frozen = site.cluster.stop_processes("n1", "")?;
    site.release()?;
    let again = |one: &Record| one.state() == "RUNNING" && one.get("Restarts") != "0";
    site.cluster.wait_job(job, "runs again elsewhere", again, SOON)?;
    until(SOON, "its program runs", || {
        Ok(site.cluster.job_output(job).unwrap_or_default().contains(STARTED).then_some(()))
    })?;
    // (A start in between that met the slow node anew was sent back once more.)
    let before = site.cluster.job(job)?;
    frozen.undo()?;
    let after = site.cluster.wait_end(job, SOON)?;
    if after.state() != "COMPLETED" || after.get("Restarts") != before.get("Restarts") {
        seen.wrong.push(format!("the leader that woke up touched the job: {before:?} {after:?}"));
    }
    slow.keep();
    over(&site, &lives, (since, super::site::DEADLINE), (Some("n3"), Some("n1")), seen);
    Ok(format!("left alone at start {}", after.number("Restarts")? + 1))
}

/// What Slurm itself does with a batch job whose prologs end while the controller is gone: nothing of ours is there. The
/// cells of slurmctld end alike.
fn without(seen: &mut Seen) -> Result<String> {
    let builder = Cluster::builder().nodes(3).set("Prolog", "/etc/slurm/prolog").set("BatchStartTimeout", 20);
    let cluster = builder.boot()?;
    let path = cluster.base().join("etc/slurm/prolog");
    super::site::write_program(&path, "#!/bin/sh\n/bin/sleep 4\n")?;
    let job = cluster.submit(&format!("echo {STARTED}"), ["-N3", "-t1", "-J", "crowd"])?;
    until(SOON, "the prologs run", || {
        let all = cluster.processes("n1")?;
        Ok(all.iter().any(|one| one.cmdline.contains("/etc/slurm/prolog")).then_some(()))
    })?;
    cluster.stop_slurmctld()?;
    until(SOON, "the prologs are over", || {
        let all = cluster.processes("n1")?;
        Ok(all.iter().all(|one| !one.cmdline.contains("/etc/slurm/prolog")).then_some(()))
    })?;
    std::thread::sleep(Duration::from_secs(1));
    cluster.start_slurmctld()?;
    let record = cluster.wait_end(job, LONG)?;
    let ran = cluster.job_output(job).unwrap_or_default().contains(STARTED);
    if ran {
        seen.wrong.push("it ran: then the cells of slurmctld have no excuse".into());
    }
    Ok(format!("{} without its program", record.state()))
}
