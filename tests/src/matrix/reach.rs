//! Submits a cell's job and brings it into the cell's phase, as far as the product and Slurm show it: by processes,
//! sockets, files and what the job prints; nowhere by a time.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::cell::{Cell, Fault, LEADER, NODES, Phase, Target};
use super::lives::Lives;
use super::site::Site;
use crate::process::Running;
use crate::wait::until;

/// For a job to come into a phase, on a machine that many jobs share.
const SOON: Duration = Duration::from_secs(25);

/// A worker that has used so many ticks (10 ms) of a processor measures; starting and answering takes one or two.
const MEASURES: u64 = 6;

/// Ports of the policy's default.
const PORTS: std::ops::RangeInclusive<u16> = 27_000..=27_199;

/// Rate of a slow network in kbit/s: a twentieth of the limit.
const SLOW: u64 = 20_000;

/// What the program of a job prints first.
pub const STARTED: &str = "program started";

/// What it prints last.
const ENDED: &str = "program ended";

/// What a coordinator writes last, in the run folder.
const GATE: &str = "gate.json";

/// A job on its way.
pub struct Front {
    /// Its name.
    pub name: String,
    /// srun or sbatch.
    pub command: Running,
    batch: bool,
}

impl Front {
    /// Whether the program has started.
    #[must_use]
    pub fn started(&self, site: &Site) -> bool {
        self.output(site).contains(STARTED)
    }

    /// What its user sees: the output of srun, or of sbatch and the job's file.
    #[must_use]
    pub fn output(&self, site: &Site) -> String {
        let lines: Vec<String> = self.command.lines().into_iter().map(|(_, line)| line).collect();
        let mut text = lines.join("\n");
        if self.batch {
            let file = site.cluster.base().join("home/alice").join(format!("{}.out", self.name));
            text.push('\n');
            text += &String::from_utf8_lossy(&fs::read(file).unwrap_or_default());
        }
        text
    }
}

/// What has to hold the job in its phase, before it is submitted. The guards keep a slow network slow.
///
/// # Errors
/// It can't be set up.
pub fn prepare<'s>(site: &'s Site, cell: &Cell) -> Result<Vec<crate::Fault<'s>>> {
    match cell.phase {
        Phase::Facts => site.hold(facts_at(cell), "aimaster-worker")?,
        Phase::Join => site.hold(cell.late(), "aimaster-prolog")?,
        Phase::Act => site.hold(LEADER, "drain")?,
        Phase::Epilog => site.hold(epilog_at(cell), "aimaster-epilog")?,
        Phase::Submit | Phase::Measure | Phase::Launch | Phase::Run => {}
    }
    if matches!(cell.fault, Fault::Clock(_)) {
        site.make_movable(cell.at)?;
    }
    let bad = cell.bad().map(|bad| site.cluster.rate(bad, SLOW)).transpose()?;
    Ok(bad.into_iter().collect())
}

/// The node whose facts, or epilog, are waited for; daemons of the controller's node have none.
fn facts_at(cell: &Cell) -> &'static str {
    if cell.at == "ctl" { LEADER } else { cell.at }
}

fn epilog_at(cell: &Cell) -> &'static str {
    facts_at(cell)
}

/// Submits the job.
///
/// # Errors
/// The command can't be started.
pub fn submit(site: &Site, cell: &Cell, name: &str) -> Result<Front> {
    let acts = cell.phase == Phase::Act;
    let check = if acts { "--sanity-check=all_reduce_2" } else { "--sanity-check=gemm_flops,all_reduce_2" };
    let batch = cell.is_batch();
    let action = match (acts, batch) {
        (false, _) => "retain",
        (true, true) => "requeue",
        (true, false) => "fail",
    };
    let action = format!("--sanity-fail-action={action}");
    let lasts = cell.phase == Phase::Run || cell.target == Target::Step;
    let seconds = if lasts { "2" } else { "0.3" };
    // As on real sites no job runs for ever, whatever Slurm loses of it.
    let mut arguments = vec!["-N3", "-t1", "-J", name, check, &action];
    if cell.target == Target::Agent || cell.at == "n3" {
        arguments.push("--runtime-check");
    }
    let program = format!("echo {STARTED}; sleep {seconds}; echo {ENDED}");
    let output = format!("--output={name}.out");
    let command = if batch {
        let script = format!("#!/bin/sh\n{program}\n");
        arguments.push(&output);
        site.cluster.sbatch(arguments).stdin(script).spawn()
    } else {
        site.cluster.srun(arguments).args(["sh", "-c", &program]).spawn()
    };
    Ok(Front { name: name.to_owned(), command: command.context("the job's command")?, batch })
}

/// Waits until the job is in the phase; `false`: it is past it, and nobody looked while it was there.
///
/// # Errors
/// It never came there: what was seen instead.
pub fn reach(site: &Site, cell: &Cell, front: &Front, lives: &Lives) -> Result<bool> {
    let what = format!("{}: the phase", cell.name());
    let spaces = site.namespaces();
    let reached = until(SOON, what, || {
        let there = lives_of(lives, &spaces);
        let at = |node: &str, comm: &str| there.iter().any(|(on, name, _)| on == node && name == comm);
        let here = match cell.phase {
            Phase::Submit => true,
            Phase::Facts => at(facts_at(cell), "aimaster-worker"),
            Phase::Join => at(cell.late(), "aimaster-prolog") && connected(site, LEADER)?,
            Phase::Measure => NODES.iter().all(|node| {
                there
                    .iter()
                    .any(|(on, comm, pid)| on == node && comm == "aimaster-worker" && ticks(*pid) >= MEASURES)
            }),
            Phase::Act => site.run_file(LEADER, "at.drain")?.exists(),
            Phase::Launch if cell.target == Target::Step => {
                site.cluster.processes(cell.at)?.iter().any(super::inject::is_step)
            }
            Phase::Launch => site.run_folders().iter().any(|folder| folder.join(GATE).exists()),
            Phase::Run => front.started(site),
            Phase::Epilog => at(epilog_at(cell), "aimaster-epilog"),
        };
        Ok(if is_past(site, cell, front) { Some(false) } else { here.then_some(true) })
    });
    let here = match reached {
        Ok(here) => here,
        Err(error) => {
            let there = lives_of(lives, &spaces);
            bail!("{error:#}; processes {there:?}; the user sees:\n{}", front.output(site));
        }
    };
    if !here {
        return Ok(false);
    }
    if cell.target == Target::Agent && cell.phase != Phase::Launch {
        site.cluster.wait_agents(&[cell.at], SOON).context("its agent")?;
    }
    Ok(true)
}

/// Whether the phase is over. Those that a gate holds open are not; where a node is to be found at fault, none may be found.
fn is_past(site: &Site, cell: &Cell, front: &Front) -> bool {
    match cell.phase {
        Phase::Submit | Phase::Facts | Phase::Join | Phase::Epilog => false,
        Phase::Measure => site.run_folders().iter().any(|folder| folder.join(GATE).exists()),
        Phase::Act => front.started(site),
        Phase::Launch | Phase::Run => front.output(site).contains(ENDED),
    }
}

/// Whether a coordinator that was just hit had already done all it had to do.
#[must_use]
pub fn was_past(site: &Site, cell: &Cell) -> bool {
    let folders = site.cluster.run_folders(cell.at).unwrap_or_default();
    let done = folders.iter().any(|folder| folder.join(GATE).exists());
    (cell.target, cell.phase) == (Target::Coordinator, Phase::Measure) && done
}

/// Node, name and id of the product's processes now.
fn lives_of(
    lives: &Lives,
    spaces: &std::collections::BTreeMap<String, String>,
) -> Vec<(String, String, u32)> {
    let names: Vec<String> = spaces.values().cloned().collect();
    let node_of = |space: &str| spaces.iter().find(|(_, one)| *one == space).map(|(node, _)| node.clone());
    let now = lives.now(&names).into_iter();
    now.filter_map(|life| Some((node_of(&life.namespace)?, life.comm, life.pid))).collect()
}

/// Whether somebody has met this node: a connection to one of its ports of the range.
fn connected(site: &Site, node: &str) -> Result<bool> {
    let init = site.cluster.find(node)?.init()?;
    // A socket for both kinds of addresses stands in the second table.
    let tables = ["tcp", "tcp6"].map(|name| fs::read_to_string(format!("/proc/{init}/net/{name}")));
    let tables = tables.map(Result::unwrap_or_default);
    Ok(tables.iter().flat_map(|table| table.lines().skip(1)).any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let port = fields.get(1).and_then(|address| address.rsplit_once(':'));
        let port = port.and_then(|(_, port)| u16::from_str_radix(port, 16).ok()).unwrap_or(0);
        // State 01 is ESTABLISHED.
        fields.get(3) == Some(&"01") && PORTS.contains(&port)
    }))
}

/// Processor time of a process, in ticks.
fn ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let Some((_, rest)) = stat.rsplit_once(')') else { return 0 };
    // utime and stime are fields 14 and 15; the name, field 2, may hold anything.
    rest.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum()
}
