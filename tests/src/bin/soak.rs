//! Healthy jobs with all thirteen checks while compilers load the machine: no run may find a fault. Prints a line a
//! run and fails if one of them was no PASS.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use aimaster_tests::{Cluster, JobId, Signal, product};
use anyhow::{Context, Result, bail};
use rustix::process::{Pid, kill_process_group};

/// A run on a machine with nothing to spare.
const LONG: Duration = Duration::from_secs(240);

/// How often a build that has ended is started anew.
const LOOK: Duration = Duration::from_millis(200);

fn main() -> Result<()> {
    let runs: u32 = match std::env::args().nth(1) {
        Some(runs) => runs.parse().with_context(|| format!("number of runs: {runs}"))?,
        None => 10,
    };
    let over = AtomicBool::new(false);
    let (faults, builds) = std::thread::scope(|scope| {
        let load = scope.spawn(|| load(&over));
        let faults = soak(runs);
        over.store(true, Ordering::Relaxed);
        let builds = load.join().unwrap_or_else(|_| bail!("the load hit a bug (panic)"));
        (faults, builds)
    });
    let (faults, builds) = (faults?, builds?);
    println!("{faults} of {runs} runs were no PASS; {builds} builds were started beside them");
    if faults > 0 {
        bail!("a healthy node was found at fault, or a check could not be done");
    }
    Ok(())
}

/// How many of the runs were no PASS.
fn soak(runs: u32) -> Result<u32> {
    let builder = Cluster::builder().nodes(4).set("PrologEpilogTimeout", 240);
    let cluster = product::boot(builder, "time.max_deadline_s = 200")?;
    let document = format!("--aimaster={}", include_str!("../../../conf/aimaster.json"));
    let mut faults = 0;
    for run in 1..=runs {
        let begun = Instant::now();
        cluster.srun(["-N4", &document, "hostname"]).timeout(LONG).run()?;
        let report = cluster.report(JobId(run), 1)?;
        let outcome = report["outcome"].as_str().unwrap_or("no outcome");
        println!("run {run:>3}  {outcome:<5}  {:>5.1} s", begun.elapsed().as_secs_f64());
        if outcome != "PASS" {
            faults += 1;
            println!("{report:#}");
        }
    }
    Ok(faults)
}

/// Builds this project from nothing, again and again; gives how many builds were started.
fn load(over: &AtomicBool) -> Result<u32> {
    let folder = tempfile::tempdir().context("a folder for the builds")?;
    let mut builds = 0;
    while !over.load(Ordering::Relaxed) {
        let target = folder.path().join(builds.to_string());
        let mut build = build(&target)?;
        builds += 1;
        while build.try_wait()?.is_none() {
            if over.load(Ordering::Relaxed) {
                // With its compilers; they may have ended this moment.
                let group = Pid::from_raw(i32::try_from(build.id())?).context("the id of a process")?;
                let _ = kill_process_group(group, Signal::KILL);
                build.wait()?;
            }
            std::thread::sleep(LOOK);
        }
        std::fs::remove_dir_all(&target).context("the folder of a build")?;
    }
    Ok(builds)
}

fn build(target: &PathBuf) -> Result<Child> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "--workspace", "--all-targets", "--target-dir"]).arg(target);
    command.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    command.process_group(0).stdout(Stdio::null()).stderr(Stdio::null()).spawn().context("can't start cargo")
}
