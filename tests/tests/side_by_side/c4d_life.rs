//! The agent of the runtime check is there exactly as long as its job, however that starts and ends, and leaves nothing.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::time::Duration;

use aimaster_tests::c4d::{self, FLAG};
use aimaster_tests::{Cluster, JobId, NODE_DIR, Process, Running, Signal, side_by_side, wait};

/// For a job to start, and for agents to be seen.
const SOON: Duration = Duration::from_secs(40);

/// From a job's end to nothing left: the epilog stops the agent and waits for it.
const GONE: Duration = Duration::from_secs(20);

/// An agent that no epilog stops: 4 s without a step, a look a second, and a busy machine.
const BY_ITSELF: Duration = Duration::from_secs(15);

const BOTH: [&str; 2] = ["n1", "n2"];

/// A program that runs until the test ends it.
const LONG: &str = "sleep 300";

fn spawn(cluster: &Cluster, arguments: &[&str]) -> Running {
    cluster.srun(arguments.iter().copied()).timeout(SOON).spawn().unwrap()
}

/// The job that was submitted last, once its agents are there.
fn watched(cluster: &Cluster, nodes: &[&str]) -> (JobId, Vec<Process>) {
    let agents = cluster.wait_agents(nodes, SOON).unwrap();
    (cluster.last_job().unwrap(), agents)
}

fn cancel(cluster: &Cluster, job: JobId) {
    cluster.scancel([job.to_string()]).ok().unwrap();
}

// O15, A05.
#[test]
fn an_agent_lives_as_long_as_its_job_however_that_starts_and_ends() {
    let _machine = side_by_side().unwrap();
    let cluster = c4d::boot(Cluster::builder().nodes(3), "").unwrap();
    // Slurm looks at time limits twice a minute: this one ends while the others are tried.
    let limited = cluster.submit(LONG, ["-wn3", FLAG]).unwrap();
    cluster.wait_agents(&["n3"], SOON).unwrap();
    let target = format!("jobid={limited}");
    cluster.scontrol(["update", &target, "EndTime=now+1"]).ok().unwrap();

    let gone = |what: &str| {
        println!("{what}");
        cluster.wait_no_trace(&BOTH, GONE).unwrap();
    };
    let on = ["-N2", "-wn1,n2", FLAG];

    // A job that ends by itself: srun, salloc, sbatch. Its tasks see the agent.
    let seen = "cat /proc/[0-9]*/comm | grep -c aimaster-c4d";
    let output = cluster.srun(on.into_iter().chain(["sh", "-c", seen])).ok().unwrap();
    assert_eq!(output.stdout, "1\n1\n", "{}", output.stderr);
    gone("srun");
    let output = cluster.salloc(on.into_iter().chain(["srun", "sh", "-c", seen])).ok().unwrap();
    assert_eq!(output.stdout, "1\n1\n", "{}", output.stderr);
    gone("salloc");
    let job = cluster.submit(&format!("srun sh -c '{seen}'"), on).unwrap();
    cluster.wait_state(job, "COMPLETED", SOON).unwrap();
    let said = cluster.job_output(job).unwrap();
    assert_eq!(said.lines().filter(|line| *line == "1").count(), 2, "{said}");
    gone("sbatch");

    // One that is cancelled.
    let srun = spawn(&cluster, &["-N2", "-wn1,n2", FLAG, "sleep", "300"]);
    cancel(&cluster, watched(&cluster, &BOTH).0);
    srun.wait(SOON).unwrap();
    gone("scancel of srun");
    let job = cluster.submit(LONG, on).unwrap();
    watched(&cluster, &BOTH);
    cancel(&cluster, job);
    gone("scancel of sbatch");

    // slurmd comes and goes; the agent stays, and goes with the job.
    let job = cluster.submit(LONG, on).unwrap();
    let before = watched(&cluster, &BOTH).1;
    cluster.restart_slurmd("n1").unwrap();
    cluster.wait_node("n1", "answers again", |node| node.is("ALLOCATED") || node.is("MIXED"), SOON).unwrap();
    assert_eq!(cluster.wait_agents(&BOTH, SOON).unwrap(), before);
    cancel(&cluster, job);
    gone("slurmd restarted");

    // Without a request there is nothing, also where the checks before the start run.
    for flag in ["-v", "--sanity-check=gemm_flops", "--runtime-check=off"] {
        let script = format!("{seen}; env | grep -e AIMASTER_C4D -e NCCL_PROFILER");
        let output = cluster.srun(["-wn1", flag, "sh", "-c", &script]).run().unwrap();
        assert_eq!(output.stdout, "0\n", "{flag}: {}", output.stderr);
    }

    let record = cluster.wait_end(limited, SOON).unwrap();
    assert_eq!(record.state(), "TIMEOUT");
    cluster.wait_no_trace(&["n3"], GONE).unwrap();
    assert!(cluster.drained().unwrap().is_empty());
}

#[test]
fn a_requeued_job_starts_with_a_new_agent() {
    let _machine = side_by_side().unwrap();
    let cluster = c4d::boot(Cluster::builder().nodes(1), "").unwrap();
    let job = cluster.submit(LONG, ["--requeue", FLAG]).unwrap();
    let (_, first) = watched(&cluster, &["n1"]);
    // It writes once it is on its way.
    let kept = |restart| {
        wait::until(SOON, "its report", || Ok(cluster.runtime_report("n1", job, restart).ok())).unwrap()
    };
    let report = kept(0);
    assert_eq!(report["check_number"], 1, "{report:#}");
    cluster.scontrol(["requeue", &job.to_string()]).ok().unwrap();
    let second = wait::until(SOON, "another agent", || {
        let agents = cluster.agents("n1")?;
        Ok((!agents.is_empty() && agents != first).then_some(agents))
    })
    .unwrap();
    assert_eq!(second.len(), 1, "{second:?}");
    let report = kept(1);
    assert_eq!(report["check_number"], 2, "{report:#}");
    assert!(cluster.runtime_report("n1", job, 0).is_err(), "the first run's folder is left");
    cancel(&cluster, job);
    cluster.wait_no_trace(&["n1"], GONE).unwrap();
}

#[test]
fn a_node_that_dies_takes_its_agent_along_and_the_others_agents_go_with_the_job() {
    let _machine = side_by_side().unwrap();
    let cluster = c4d::boot(Cluster::builder().nodes(2).set("SlurmdTimeout", 5), "").unwrap();
    let job = cluster.submit(LONG, ["-N2", "--no-requeue", FLAG]).unwrap();
    watched(&cluster, &BOTH);
    cluster.kill_node("n2").unwrap();
    cluster.wait_job(job, "NODE_FAIL", |record| record.is_finished(), Duration::from_secs(60)).unwrap();
    cluster.wait_no_trace(&["n1"], GONE).unwrap();
}

// O15, B10, C25.
#[test]
fn an_agent_ends_without_an_epilog_and_a_frozen_one_holds_no_node() {
    let _machine = side_by_side().unwrap();
    let cluster = c4d::boot(Cluster::builder().nodes(1), "").unwrap();
    // Frozen: the epilog kills it.
    let job = cluster.submit(LONG, [FLAG]).unwrap();
    watched(&cluster, &["n1"]);
    cluster.signal_processes("n1", c4d::AGENT, Signal::STOP).unwrap();
    cancel(&cluster, job);
    cluster.wait_no_trace(&["n1"], GONE).unwrap();
    cluster.wait_idle(1, GONE).unwrap();

    // Killed: the job goes on.
    let job = cluster.submit("sleep 2", [FLAG]).unwrap();
    watched(&cluster, &["n1"]);
    cluster.signal_processes("n1", c4d::AGENT, Signal::KILL).unwrap();
    cluster.wait_state(job, "COMPLETED", SOON).unwrap();
    cluster.wait_no_trace(&["n1"], GONE).unwrap();

    // No epilog: it ends when the steps are gone.
    let helper = cluster.remove_helper("n1", "aimaster-epilog").unwrap();
    let job = cluster.submit(LONG, [FLAG]).unwrap();
    wait::until(SOON, "the agent sees a step", || {
        let report = cluster.runtime_report("n1", job, 0).unwrap_or_default();
        Ok(report["first_step_at"].is_string().then_some(()))
    })
    .unwrap();
    cancel(&cluster, job);
    wait::until(BY_ITSELF, "the agent ends by itself", || Ok(cluster.agents("n1")?.is_empty().then_some(())))
        .unwrap();
    let report = cluster.runtime_report("n1", job, 0).unwrap();
    assert!(report["finished"]["because"].as_str().unwrap().contains("no step"), "{report:#}");
    helper.undo().unwrap();
    what_had_no_epilog_goes_with_a_later_job(&cluster, job);

    // Nor is one started that can't be, and the job is told.
    let helper = cluster.remove_helper("n1", c4d::AGENT).unwrap();
    let output = cluster.srun([FLAG, "echo", "ran"]).ok().unwrap();
    let told = format!("{NODE_DIR}/{} can't be started", c4d::AGENT);
    assert!(output.stdout == "ran\n" && output.stderr.contains(&told), "{}", output.stderr);
    helper.undo().unwrap();
}

/// `over` has ended and left its run folder; another job comes, stays, and a third one's epilog looks.
fn what_had_no_epilog_goes_with_a_later_job(cluster: &Cluster, over: JobId) {
    let folders = || {
        let all = cluster.run_folders("n1").unwrap();
        let mut names: Vec<String> =
            all.iter().map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    };
    let later = || {
        cluster.srun(["-n1", "true"]).ok().unwrap();
        let last = format!("{}.0", cluster.last_job().unwrap());
        wait::until(GONE, "its own epilog", || Ok((!folders().contains(&last)).then_some(()))).unwrap();
    };
    let name = |job: JobId| format!("{job}.0");
    later();
    assert_eq!(folders(), [name(over)], "it ended a moment ago");
    let here = cluster.submit(LONG, ["-n1"]).unwrap();
    cluster.wait_state(here, "RUNNING", SOON).unwrap();
    wait::until(SOON, "its folder", || Ok(folders().contains(&name(here)).then_some(()))).unwrap();
    cluster.age_runs("n1").unwrap();
    later();
    wait::until(GONE, "the old one goes", || Ok((folders() == [name(here)]).then_some(()))).unwrap();
    let line = format!("removed run folder {}", name(over));
    wait::until(GONE, "slurmd's log has it", || {
        let log = std::fs::read_to_string(cluster.log_file("slurmd.n1.log"))?;
        Ok(log.contains(&line).then_some(()))
    })
    .unwrap();
    cancel(cluster, here);
    cluster.wait_no_trace(&["n1"], GONE).unwrap();
}

/// Jobs in a row.
const JOBS: u32 = 100;

// E14, O14.
#[test]
fn a_hundred_short_jobs_leave_nothing_behind() {
    let _machine = side_by_side().unwrap();
    let cluster = c4d::boot(Cluster::builder().nodes(2).cpus(8), "").unwrap();
    let array = format!("--array=1-{JOBS}");
    let job = cluster.submit("true", [FLAG, "-n1", "-o", "/dev/null", &array]).unwrap();
    let tasks = wait::until(SOON * 3, "the array ends", || {
        let tasks = cluster.jobs(job)?;
        Ok((tasks.len() == JOBS as usize && tasks.iter().all(|task| task.is_finished())).then_some(tasks))
    })
    .unwrap();
    let odd: Vec<_> = tasks.iter().filter(|task| task.state() != "COMPLETED").collect();
    assert!(odd.is_empty(), "{odd:#?}");
    cluster.wait_no_trace(&BOTH, GONE).unwrap();
    cluster.wait_idle(2, GONE).unwrap();
    // None was killed, none ended by itself.
    for node in BOTH {
        let log = std::fs::read_to_string(cluster.log_file(&format!("slurmd.{node}.log"))).unwrap();
        assert!(!log.contains("did not end by itself"), "{log}");
        // Nothing is said but that no rank told anything.
        let said = cluster.syslog(node);
        let odd =
            said.lines().find(|line| line.contains("aimaster") && !line.contains("RuntimeCheckSkipped"));
        assert_eq!(odd, None);
    }
}
