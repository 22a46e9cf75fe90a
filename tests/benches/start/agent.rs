//! The agent of one node beside eight ranks, each with NCCL's plugin as it ships and a thousand collectives a second: its share of
//! a core and the most memory that it had, as the kernel says.

use std::time::{Duration, Instant};

use aimaster_tests::c4d::{self, FLAG};
use aimaster_tests::{Cluster, NODE_DIR, product, target_dir, wait};
use anyhow::{Context, Result, ensure};

const RANKS: u64 = 8;
const PER_SECOND: u64 = 1_000;

/// Until all ranks have handed over their rings.
const SOON: Duration = Duration::from_secs(60);

/// Before it is measured: the start is not the steady state.
const SETTLE: Duration = Duration::from_secs(15);

pub fn bench(window: Duration) -> Result<()> {
    let install = crate::install()?.program(target_dir()?.join("examples/busy"));
    let builder = Cluster::builder().nodes(1).cpus(8);
    let cluster = product::boot_with(builder, install, "host.seconds_per_check = 0.2")?;
    c4d::put_library(&cluster, &target_dir()?.join("../plugin"))?;
    let seconds = (SOON + SETTLE + window).as_secs().to_string();
    let (busy, tasks) = (format!("{NODE_DIR}/busy"), format!("-n{RANKS}"));
    let arguments = ["-N1", &tasks, FLAG, &busy, &PER_SECOND.to_string(), &seconds];
    let srun = cluster.srun(arguments).timeout(SOON + SETTLE + window + SOON).spawn()?;
    let agent = cluster.wait_agents(&["n1"], SOON)?.remove(0).host_pid;
    let job = cluster.last_job()?;
    wait::until(SOON, "all ranks are heard", || {
        let report = cluster.runtime_report("n1", job, 0).unwrap_or_default();
        Ok((report["telemetry"]["ranks"] == RANKS).then_some(()))
    })?;
    std::thread::sleep(SETTLE);
    let (before, begun) = (on_processor(agent)?, Instant::now());
    std::thread::sleep(window);
    let (used, took) = (on_processor(agent)? - before, begun.elapsed().as_secs_f64());
    let status = std::fs::read_to_string(format!("/proc/{agent}/status"))?;
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("VmHWM")?.trim();
    let report = cluster.runtime_report("n1", job, 0)?;
    ensure!(report["telemetry"]["ranks"] == RANKS, "ranks were lost: {report:#}");
    println!(
        "\naimaster-c4d beside {RANKS} ranks with {PER_SECOND} collectives a second each, {took:.0} s: {:.3} % of a core, \
         at most {most} of memory; telemetry {}",
        used / took * 100.0,
        report["telemetry"]["status"]
    );
    cluster.scancel([job.to_string()]).ok()?;
    srun.wait(SOON)?;
    Ok(())
}

/// Seconds that a process's threads were on a processor: of the scheduler, since ticks are coarse beside what is looked for.
fn on_processor(pid: u32) -> Result<f64> {
    let mut ns = 0;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = std::fs::read_to_string(thread?.path().join("schedstat"))?;
        let first = text.split_whitespace().next().context("schedstat is empty")?;
        ns += first.parse::<u64>()?;
    }
    Ok(Duration::from_nanos(ns).as_secs_f64())
}
