//! Thousands of jobs that ask for nothing, and hundreds with the default checks, half of them watched while they run: what
//! do they leave on the nodes, and what do the daemons hold that live through all of them? slurmd holds the plugin; the
//! others are what it talks to. Prints a table and fails if something leaks.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use aimaster_tests::traces::{self, Held, Traces, held, traces};
use aimaster_tests::{CTL, Cluster, JobId, product, side_by_side, wait};
use anyhow::{Context, Result, ensure};

/// Jobs of one array: Slurm's own bound is 1001.
const ARRAY: u32 = 1000;

/// Nodes; each suite runs on all of them.
const NODES: usize = 4;

/// A suite, or an array, on a machine with nothing to spare.
const LONG: Duration = Duration::from_secs(900);

/// How long what a job leaves may take to go: an epilog and an agent that ends.
const SOON: Duration = Duration::from_secs(60);

/// MinJobAge of 2 s, and the purge that comes after it.
const FORGOTTEN: Duration = Duration::from_secs(8);

/// Short windows: what is looked at is what stays, not what is measured. On a machine that does much else healthy nodes look
/// slow, and jobs start all the same.
const POLICY: &str =
    "host.seconds_per_check = 0.2\nactions.on_environment = 'start'\nactions.on_suspect = 'start'";

/// How much a daemon's memory may grow for each job once it is warm. A message or record of a job that was kept would be
/// more; the C library's arenas and Slurm's own lists breathe by less.
const MOST_GROWTH_BYTES: u64 = 256;

/// What may always come and go of a daemon's memory: a thread's arena.
const BREATH_KIB: u64 = 2048;

/// Descriptors that a daemon may have open for a moment: a connection that is being answered.
const BREATH_DESCRIPTORS: usize = 3;

/// The daemons that live through everything, and where.
const DAEMONS: [(&str, &str); 6] = [
    ("n1", "slurmd"),
    ("n2", "slurmd"),
    ("n3", "slurmd"),
    ("n4", "slurmd"),
    (CTL, "slurmctld"),
    ("n1", "munged"),
];

/// A job of an array: a line if the helper left it a gate.
const TASK: &str = "#!/bin/sh
[ -d /run/aimaster/aim/$SLURMD_NODENAME/$SLURM_JOB_ID.0 ] && echo ran >>$HOME/ran
";

type All = BTreeMap<(&'static str, &'static str), Held>;

fn main() -> Result<()> {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u32>().with_context(|| text.clone()));
    let plain = numbers.next().transpose()?.unwrap_or(10_000);
    let suites = numbers.next().transpose()?.unwrap_or(200);
    let builder = Cluster::builder().nodes(NODES).cpus(8);
    // Jobs go to the node with the least to do, so that all nodes have as many.
    let builder = builder.set("SelectTypeParameters", "CR_Core,CR_LLN");
    // What is over must not count as held, and logs of ten thousand jobs help nobody.
    let builder = builder.set("MinJobAge", 2).set("SlurmctldDebug", "error").set("SlurmdDebug", "error");
    let cluster = {
        let _machine = side_by_side()?;
        product::boot(builder, POLICY)?
    };
    let mut table = Table::default();
    table.stage(&cluster, "jobs without a request", plain, |count| arrays(&cluster, count))?;
    let outcomes = RefCell::default();
    let checked = |count| (0..count).try_for_each(|run| suite(&cluster, run, &outcomes));
    table.stage(&cluster, "default suites on 4 nodes", suites, checked)?;
    table.print();
    let outcomes = outcomes.into_inner();
    println!("\noutcomes of the suites: {outcomes:?}");
    // What could not be measured leaves nothing behind either, and shows nothing.
    let measured = |name: &&String| ["PASS", "FAIL", "SUSPECT", "ENVIRONMENT"].contains(&name.as_str());
    let measured: u32 = outcomes.keys().filter(measured).map(|name| outcomes[name]).sum();
    ensure!(10 * measured >= 9 * suites, "only {measured} of {suites} suites measured anything");
    let drained = cluster.drained()?;
    ensure!(drained.is_empty(), "nodes were drained: {drained:?}");
    ensure!(table.leaks.is_empty(), "{}", table.leaks.join("\n"));
    Ok(())
}

/// Runs jobs that ask for nothing, and sees that the helper ran for each.
fn arrays(cluster: &Cluster, count: u32) -> Result<()> {
    let mut left = count;
    while left > 0 {
        let _machine = side_by_side()?;
        let now = left.min(ARRAY);
        left -= now;
        let _ = cluster.exec(CTL, ["rm", "-f", "/home/alice/ran"])?;
        let array = format!("--array=1-{now}");
        cluster.submit(TASK, [&array, "-o", "/dev/null", "-D", "/home/alice"])?;
        wait::until(LONG, "the jobs are over", || {
            std::thread::sleep(Duration::from_secs(1));
            Ok(cluster.squeue(["-h"]).ok()?.stdout.trim().is_empty().then_some(()))
        })?;
        let ran = cluster.read_file(CTL, "/home/alice/ran")?.lines().count();
        ensure!(ran == now as usize, "the helper ran for {ran} of {now} jobs");
    }
    Ok(())
}

/// Runs one job with the default checks; every second one is watched while it runs.
fn suite(cluster: &Cluster, run: u32, outcomes: &RefCell<BTreeMap<String, u32>>) -> Result<()> {
    let _machine = side_by_side()?;
    let mut arguments = vec!["-N4", "--sanity-check", "--sanity-fail-action=retain"];
    let watched = run % 2 == 1;
    if watched {
        arguments.push("--runtime-check");
    }
    arguments.extend(["sh", "-c", "echo $SLURM_JOB_ID"]);
    let output = cluster.srun(arguments).timeout(LONG).ok()?;
    let job = output.stdout.lines().next().unwrap_or_default();
    let job = JobId(job.parse().with_context(|| format!("{output:?}"))?);
    let report = cluster.report(job, 1)?;
    let outcome = report["outcome"].as_str().unwrap_or("none").to_owned();
    *outcomes.borrow_mut().entry(outcome).or_default() += 1;
    if watched {
        let kept =
            std::path::Path::new(&product::report_dir(cluster)).join(format!("aim/{job}/1/runtime.json"));
        wait::until(SOON, "the agent's report is kept", || Ok(kept.exists().then_some(())))?;
    }
    Ok(())
}

#[derive(Default)]
struct Table {
    rows: Vec<[String; 5]>,
    leaks: Vec<String>,
}

impl Table {
    /// Warms up, looks, runs the rest, and looks again.
    fn stage(
        &mut self,
        cluster: &Cluster,
        what: &str,
        count: u32,
        run: impl Fn(u32) -> Result<()>,
    ) -> Result<()> {
        let begun = Instant::now();
        // The first ones warm the daemons up: lists, arenas and caches get their size, and each node its folders.
        cluster.srun(["-N4", "true"]).timeout(LONG).ok()?;
        let warm = count.div_ceil(5);
        let rest = count - warm;
        run(warm)?;
        settle(cluster, None)?;
        let (daemons, nodes) = (daemons_now(cluster)?, traces(cluster)?);
        eprintln!("{what}: {warm} of {count} after {} s", begun.elapsed().as_secs());
        run(rest)?;
        settle(cluster, Some(&nodes))?;
        let (daemons_after, nodes_after) = (daemons_now(cluster)?, traces(cluster)?);
        eprintln!("{what}: {count} of {count} after {} s", begun.elapsed().as_secs());
        let what = format!("{what}: {warm} and {rest} more");
        self.nodes(&what, &nodes, &nodes_after);
        for (one, before) in &daemons {
            self.daemon(&what, *one, rest, *before, daemons_after[one]);
        }
        Ok(())
    }

    fn nodes(&mut self, what: &str, before: &Traces, after: &Traces) {
        let left = traces::added(before, after);
        for kind in ["file", "process", "socket", "mount", "ipc", "lock"] {
            let count = |all: &Traces| {
                all.values().flatten().filter(|line| line.starts_with(kind)).count().to_string()
            };
            let leaked = left.iter().any(|line| line.contains(&format!(": {kind} ")));
            self.row(what, &format!("{kind}, all nodes"), [count(before), count(after)], leaked);
        }
        self.leaks.extend(left.into_iter().map(|line| format!("{what}: left on {line}")));
    }

    fn daemon(&mut self, what: &str, (node, comm): (&str, &str), jobs: u32, before: Held, after: Held) {
        // slurmctld loads nothing of ours, and keeps each job for a while: its memory says how quick the machine is.
        if comm != "slurmctld" {
            self.memory(what, (node, comm), jobs, before, after);
        }
        let more = after.descriptors > before.descriptors + BREATH_DESCRIPTORS;
        let numbers = [before.descriptors.to_string(), after.descriptors.to_string()];
        self.row(what, &format!("{comm} of {node}: descriptors"), numbers, more);
        if more {
            self.leaks.push(format!("{what}: {comm} of {node} has more descriptors open"));
        }
    }

    fn memory(&mut self, what: &str, (node, comm): (&str, &str), jobs: u32, before: Held, after: Held) {
        let grown = after.memory_kib.saturating_sub(before.memory_kib);
        let most = BREATH_KIB + u64::from(jobs) * MOST_GROWTH_BYTES / 1024;
        let numbers = [before.memory_kib.to_string(), after.memory_kib.to_string()];
        self.row(what, &format!("{comm} of {node}: memory, KiB"), numbers, grown > most);
        if grown > most {
            self.leaks.push(format!("{what}: {comm} of {node} grew by {grown} KiB; {most} KiB are usual"));
        }
    }

    fn row(&mut self, what: &str, of: &str, [before, after]: [String; 2], leaked: bool) {
        let verdict = if leaked { "LEAK" } else { "no leak" };
        self.rows.push([what.to_owned(), of.to_owned(), before, after, verdict.to_owned()]);
    }

    fn print(&self) {
        println!("| jobs | what | after the first | at the end | |");
        println!("|---|---|---|---|---|");
        for row in &self.rows {
            println!("| {} |", row.join(" | "));
        }
    }
}

fn daemons_now(cluster: &Cluster) -> Result<All> {
    DAEMONS.into_iter().map(|one @ (node, comm)| Ok((one, held(cluster, node, comm)?))).collect()
}

/// Waits until all nodes are idle, what jobs left is gone, if it goes, and Slurm has forgotten what is over.
fn settle(cluster: &Cluster, before: Option<&Traces>) -> Result<()> {
    cluster.wait_idle(NODES, LONG)?;
    if let Some(before) = before {
        // What is still there then is shown by who looks next.
        let gone = || Ok(traces::added(before, &traces(cluster)?).is_empty().then_some(()));
        let _ = wait::until(SOON, "the nodes are as before", gone);
    }
    std::thread::sleep(FORGOTTEN);
    Ok(())
}
