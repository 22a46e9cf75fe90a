//! Does what a cell says, and undoes it. What it undoes is the fault only; the cluster's state afterwards is `judge`'s.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Signal, kill_process};

use super::cell::{Cell, Fault, State, Target};
use super::reach::Front;
use super::site::{Site, wait_controller};
use crate::conf::{CTL, SLURMCTLD_PORT};
use crate::process::pid_of;
use crate::procs::Process;
use crate::shaping::{Block, Deny};

/// How long a command of an admin may take while the controller is in trouble.
const COMMAND: Duration = Duration::from_secs(30);

/// A fault that holds.
pub struct Injected<'s> {
    site: &'s Site,
    cell: Cell,
    stopped: Vec<Process>,
    guards: Vec<crate::Fault<'s>>,
    mended: bool,
    /// How many processes were hit; 0: it came too late.
    pub hit: usize,
}

/// Makes the cell's fault.
///
/// # Errors
/// It can't be made.
pub fn inject<'s>(site: &'s Site, cell: &Cell, front: Option<&Front>) -> Result<Injected<'s>> {
    let mut made =
        Injected { site, cell: *cell, stopped: Vec::new(), guards: Vec::new(), mended: false, hit: 1 };
    let cluster = &site.cluster;
    match cell.fault {
        Fault::Kill | Fault::Stop | Fault::Term if cell.target == Target::Node => made.node()?,
        Fault::Kill => made.signal(front, Signal::KILL)?,
        Fault::Term => made.signal(front, Signal::TERM)?,
        Fault::Stop => made.signal(front, Signal::STOP)?,
        Fault::Cancel | Fault::Requeue => {
            let name = front.map(|front| front.name.as_str()).unwrap_or_default();
            let job = site.job_named(name).with_context(|| format!("no job {name}"))?;
            let id = job.get("JobId").to_owned();
            let command = if cell.fault == Fault::Cancel {
                cluster.scancel([id])
            } else {
                cluster.scontrol(["requeue".to_owned(), id])
            };
            // A job that has ended meanwhile can't be requeued.
            made.hit = usize::from(command.timeout(COMMAND).run()?.success());
        }
        Fault::Reconfigure => drop(cluster.scontrol(["reconfigure"]).timeout(COMMAND).ok()?),
        Fault::State(State { make, .. }) => site.script(cell.at, make)?,
        Fault::Slow(seconds) => {
            for node in cluster.nodes() {
                fs::write(site.run_file(node, "delay")?, format!("/bin/sleep {seconds}\n"))?;
            }
        }
        Fault::Clock(seconds) => site.move_clock(cell.at, seconds)?,
        Fault::Cut => {
            for node in cluster.nodes() {
                let block = Block::ports(SLURMCTLD_PORT..=SLURMCTLD_PORT).deny(Deny::Drop).from(node);
                made.guards.push(cluster.block(CTL, block)?);
            }
        }
    }
    Ok(made)
}

/// Whether this is the slurmstepd of a step of the job's own.
pub fn is_step(process: &Process) -> bool {
    process.cmdline.contains("slurmstepd: [") && !process.cmdline.contains(".extern")
}

impl Injected<'_> {
    fn signal(&mut self, front: Option<&Front>, signal: Signal) -> Result<()> {
        if self.cell.target == Target::Srun {
            if let Some(front) = front {
                front.command.signal(signal)?;
            }
            return Ok(());
        }
        let is_it: fn(&Process) -> bool = match self.cell.target {
            Target::Host => |p| p.cmdline.contains("spank prolog"),
            Target::Coordinator => |p| p.comm == "aimaster-prolog",
            Target::Worker => |p| p.comm == "aimaster-worker",
            Target::Step => is_step,
            Target::Agent => |p| p.comm == crate::c4d::AGENT,
            Target::EpilogHelper => |p| p.comm == "aimaster-epilog",
            Target::Slurmd => |p| p.comm == "slurmd",
            Target::Slurmctld => |p| p.comm == "slurmctld",
            Target::Munged => |p| p.comm == "munged",
            Target::Srun | Target::Node | Target::Job => |_| false,
        };
        let all = self.site.cluster.processes(self.cell.at)?;
        let hit: Vec<Process> = all.into_iter().filter(is_it).collect();
        self.hit = 0;
        for process in &hit {
            self.hit += usize::from(kill_process(pid_of(process.host_pid)?, signal).is_ok());
        }
        if signal == Signal::STOP {
            self.stopped = hit;
        }
        Ok(())
    }

    /// Power cut, freeze, or shutdown of a node.
    fn node(&mut self) -> Result<()> {
        let cluster = &self.site.cluster;
        match self.cell.fault {
            Fault::Stop => {
                self.stopped = cluster.processes(self.cell.at)?;
                for process in &self.stopped {
                    // One that has ended meanwhile needs no signal.
                    let _ = kill_process(pid_of(process.host_pid)?, Signal::STOP);
                }
            }
            Fault::Term => {
                for process in cluster.processes(self.cell.at)? {
                    let _ = kill_process(pid_of(process.host_pid)?, Signal::TERM);
                }
                cluster.kill_node(self.cell.at)?;
            }
            _ => cluster.kill_node(self.cell.at)?,
        }
        Ok(())
    }

    /// Undoes it: what was stopped goes on, what was ended is started again.
    ///
    /// # Errors
    /// It can't be undone.
    pub fn mend(&mut self, front: Option<&Front>) -> Result<()> {
        if std::mem::replace(&mut self.mended, true) {
            return Ok(());
        }
        let (site, cluster, at) = (self.site, &self.site.cluster, self.cell.at);
        for process in self.stopped.drain(..) {
            let _ = kill_process(pid_of(process.host_pid)?, Signal::CONT);
        }
        self.guards.clear();
        let gone = matches!(self.cell.fault, Fault::Kill | Fault::Term);
        match (self.cell.target, self.cell.fault) {
            (Target::Srun, Fault::Stop) => {
                if let Some(front) = front {
                    // It may be gone.
                    let _ = front.command.signal(Signal::CONT);
                }
            }
            (Target::Node, Fault::Kill | Fault::Term) => cluster.start_node(at)?,
            (Target::Slurmd, _) if gone => {
                // One that was asked to end may still wait for its prologs.
                cluster.stop_slurmd(at)?;
                cluster.start_slurmd(at)?;
            }
            (Target::Munged, _) if gone => {
                cluster.stop_munged(at)?;
                cluster.start_munged(at)?;
            }
            (Target::Slurmctld, Fault::Kill | Fault::Term) => {
                cluster.stop_slurmctld()?;
                cluster.start_slurmctld()?;
            }
            (_, Fault::State(State { mend, .. })) => site.script(at, mend)?,
            (_, Fault::Clock(_)) => site.mend_clock(at)?,
            (_, Fault::Slow(_)) => {
                for node in cluster.nodes() {
                    fs::remove_file(site.run_file(node, "delay")?)?;
                }
            }
            _ => {}
        }
        wait_controller(cluster)
    }
}
