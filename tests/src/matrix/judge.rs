//! What holds after every cell, whatever the fault: written once. It looks and says what is wrong; it repairs only what
//! the next cell needs.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};

use super::cell::{Cell, End, LEADER, NODES, Target};
use super::lives::{Life, Lives};
use super::reach::Front;
use super::site::{DEADLINE, Site, controller_answers};
use crate::fields::Record;
use crate::process::pid_of;
use crate::slurm::JobId;

/// A prolog may outlive its deadline by so much.
const AFTER_DEADLINE: Duration = Duration::from_secs(5);

/// What seeing late adds to a life on a machine that is never idle.
const SLACK: Duration = Duration::from_millis(700);

/// From the end of the fault to a definite end of the job. Slurm waits for a node that is not heard and for a requeue; a
/// job of which it lost the launch ends at its time limit of a minute, which is looked at twice a minute.
const END: Duration = Duration::from_secs(140);

/// From the end of a job to nothing left of it: an agent without an epilog needs some seconds.
const GONE: Duration = Duration::from_secs(25);

/// How often the controller is asked.
const ASK: Duration = Duration::from_millis(250);

/// How long a controller that started anew is asked again for a job that it does not know.
const FORGETS: Duration = Duration::from_secs(3);

/// What was seen of a cell.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// How the job ended.
    pub end: Option<End>,
    /// The longest life of a coordinator or worker.
    pub longest: Duration,
    /// Nodes that Slurm itself drained, with its reason.
    pub slurm_drained: Vec<String>,
    /// Nodes that the product drained.
    pub drained: Vec<String>,
    /// Run folders that were there when nodes were idle again, since Slurm ran no epilog of the job.
    pub unswept: usize,
    /// Processes of the job's slurmstepds that were there then, since Slurm forgot them.
    pub forgotten: usize,
    /// By what the user or admin knows: `user`, `report`, `log`, `Slurm`.
    pub told: &'static str,
    /// What does not hold.
    pub wrong: Vec<String>,
}

/// Waits for the end of the job.
pub fn end_of(site: &Site, front: &mut Front) -> Result<(End, Option<Record>), String> {
    let begun = Instant::now();
    let mut unknown = None;
    let mut last = None;
    while begun.elapsed() < END {
        match site.job_named(&front.name) {
            Some(record) if record.is_finished() => return Ok((kind(site, front, &record), Some(record))),
            Some(record) => (last, unknown) = (Some(record), None),
            None if !controller_answers(&site.cluster) => {}
            None => {
                let since = *unknown.get_or_insert_with(Instant::now);
                let over = front.command.finished().unwrap_or(true);
                if over && since.elapsed() > FORGETS {
                    let queued = front.output(site).contains("Submitted batch job") || last.is_some();
                    return Ok((if queued { End::Forgotten } else { End::Refused }, None));
                }
            }
        }
        sleep(ASK);
    }
    Err(format!("no definite end within {END:?}; its record at last: {last:?}"))
}

fn kind(site: &Site, front: &Front, record: &Record) -> End {
    let completed = record.state() == "COMPLETED";
    let again = record.get("Restarts") != "0";
    match (front.started(site), completed) {
        (true, true) if again => End::RanAgain,
        (true, true) => End::Ran,
        (true, false) => End::BrokenOff,
        (false, _) => End::NotStarted,
    }
}

/// The lives of what must be gone after the deadline.
#[must_use]
pub fn bounded(cell: &Cell, lives: Vec<Life>, spaces: &BTreeMap<String, String>) -> Vec<Life> {
    let frozen = cell.freezes_node().then(|| spaces.get(cell.at)).flatten();
    let counts = |life: &Life| {
        matches!(life.comm.as_str(), "aimaster-prolog" | "aimaster-worker") && Some(&life.namespace) != frozen
    };
    lives.into_iter().filter(counts).collect()
}

/// Everything that must hold, once the fault is undone. `bad` keeps the node bad that the job is to act on, until it has
/// ended.
pub fn judge(
    site: &Site,
    cell: &Cell,
    front: &mut Front,
    (lives, since): (&Lives, Instant),
    bad: Vec<crate::Fault<'_>>,
) -> Seen {
    let mut seen = Seen::default();
    let spaces = site.namespaces();
    let names: Vec<String> = spaces.values().cloned().collect();
    let record = match end_of(site, front) {
        Ok((end, record)) => {
            seen.end = Some(end);
            if !cell.ends.contains(&end) {
                let allowed: Vec<String> = cell.ends.iter().map(ToString::to_string).collect();
                seen.wrong.push(format!("the job: {end}; right is: {}", allowed.join(", ")));
            }
            record
        }
        Err(stuck) => {
            seen.wrong.push(stuck);
            None
        }
    };
    drains(site, cell.bad(), &mut seen);
    drop(bad);
    if cell.loses_epilogs() {
        swept(site, lives, &names, &mut seen);
    }
    gone(site, lives, &names, &mut seen);
    lived(&bounded(cell, lives.since(&names, since), &spaces), DEADLINE, &mut seen);
    seen.told = match told(site, front, record.as_ref()) {
        "" if cell.target == Target::Srun => "who did it",
        how => how,
    };
    if seen.told.is_empty() {
        seen.wrong.push("nobody was told anything".into());
    }
    aftermath(site, &mut seen);
    seen
}

/// No prolog outlived its deadline.
pub fn lived(lives: &[Life], deadline: Duration, seen: &mut Seen) {
    seen.longest = lives.iter().map(|life| life.last - life.first).max().unwrap_or_default();
    if seen.longest > deadline + AFTER_DEADLINE + SLACK {
        seen.wrong.push(format!("a prolog took {:?}", seen.longest));
    }
}

/// The nodes serve the next job, and nothing but that is left.
pub fn aftermath(site: &Site, seen: &mut Seen) {
    back(site, seen);
    match site.left() {
        Ok(left) => seen.wrong.extend(left),
        Err(error) => seen.wrong.push(format!("{error:#}")),
    }
}

/// Nobody is drained by us who is not at fault.
pub fn drains(site: &Site, bad: Option<&str>, seen: &mut Seen) {
    match site.cluster.drained() {
        Ok(drained) => {
            for (node, reason) in drained {
                if !reason.starts_with("aimaster") {
                    seen.slurm_drained.push(format!("{node}: {reason}"));
                } else if Some(node.as_str()) == bad {
                    seen.drained.push(node);
                } else {
                    seen.wrong.push(format!("{node} was drained without a fault: {reason}"));
                }
            }
        }
        Err(error) => seen.wrong.push(format!("{error:#}")),
    }
}

/// No process of ours, and nothing in the run folder.
pub fn gone(site: &Site, lives: &Lives, names: &[String], seen: &mut Seen) {
    wait_gone(lives, names, || site.run_folders(), seen);
}

/// Where Slurm may never run the job's epilogs: once that is long ago, what is left goes with the next job on the node.
fn swept(site: &Site, lives: &Lives, names: &[String], seen: &mut Seen) {
    wait_gone(lives, names, Vec::new, seen);
    if let Err(error) = next_job(site, seen) {
        seen.wrong.push(format!("the job whose epilogs remove what is left: {error:#}"));
    }
}

fn next_job(site: &Site, seen: &mut Seen) -> anyhow::Result<()> {
    site.put_back()?;
    for node in site.cluster.nodes() {
        let left = site.cluster.run_folders(node)?;
        seen.unswept += left.len();
        // A job with a slurmstepd is here, also one that a controller forgot until its clock is right. That is not waited for.
        let jobs: Vec<String> =
            left.iter().filter_map(|path| Some(path.file_stem()?.to_str()?.into())).collect();
        for process in site.cluster.processes(node)? {
            if jobs.iter().any(|job| process.cmdline.contains(&format!("slurmstepd: [{job}."))) {
                kill_process(pid_of(process.host_pid)?, Signal::KILL)?;
                seen.forgotten += 1;
            }
        }
        site.cluster.age_runs(node)?;
    }
    let all = format!("-N{}", site.cluster.nodes().len());
    site.cluster.srun([all.as_str(), "true"]).ok().map(drop)
}

fn wait_gone(lives: &Lives, names: &[String], folders: impl Fn() -> Vec<PathBuf>, seen: &mut Seen) {
    let begun = Instant::now();
    loop {
        let mut left: Vec<String> =
            lives.now(names).iter().map(|life| format!("{} ({})", life.comm, life.pid)).collect();
        left.extend(folders().iter().map(|path| path.display().to_string()));
        if left.is_empty() {
            return;
        }
        if begun.elapsed() > GONE {
            return seen.wrong.push(format!("left: {}", left.join(", ")));
        }
        sleep(ASK);
    }
}

/// Where it is written what happened; empty: nowhere.
fn told(site: &Site, front: &Front, record: Option<&Record>) -> &'static str {
    let output = front.output(site);
    if output.contains("aimaster: ") {
        return "user";
    }
    if let Some(id) = record.and_then(|record| record.number("JobId").ok()) {
        let report = format!("reports/aim/{id}");
        if site.cluster.base().join(report).exists() {
            return "report";
        }
        let mark = format!("job={id} ");
        if site.cluster.nodes().iter().any(|node| site.cluster.syslog(node).contains(&mark)) {
            return "log";
        }
    }
    let slurm_s = ["srun: ", "sbatch: ", "slurmstepd: ", "Submitted batch job"];
    if slurm_s.iter().any(|words| output.contains(words)) { "Slurm" } else { "" }
}

/// All nodes come back by themselves, but for drained ones, and a new job on the same nodes passes.
fn back(site: &Site, seen: &mut Seen) {
    if let Err(error) = site.put_back() {
        return seen.wrong.push(format!("stuck: {error:#}\n{}", nodes(site)));
    }
    let name = "afterwards";
    let arguments = ["-N3", "-w", "n[1-3]", "-J", name, "--sanity-check=all_reduce_2", "echo", "again"];
    let srun = match site.cluster.srun(arguments).run() {
        Ok(output) => output,
        Err(error) => return seen.wrong.push(format!("the job afterwards: {error:#}")),
    };
    let report = site.job_named(name).and_then(|record| {
        let id = JobId(record.number("JobId").ok()?.try_into().ok()?);
        site.cluster.report(id, 1).ok()
    });
    let outcome = report.as_ref().and_then(|report| report["outcome"].as_str()).unwrap_or("no report");
    if srun.stdout.matches("again").count() != NODES.len() || outcome != "PASS" {
        let said = format!("{outcome}, exit code {}\n{}{}", srun.code(), srun.stdout, srun.stderr);
        seen.wrong.push(format!("the job afterwards: {said}"));
    }
    if let Err(error) = site.wait_idle() {
        seen.wrong.push(format!("stuck after the job afterwards: {error:#}\n{}", nodes(site)));
    }
}

fn nodes(site: &Site) -> String {
    site.cluster.sinfo(["-N", "-l"]).run().map(|output| output.stdout).unwrap_or_default()
}

/// What there is to see of a cell that went wrong.
#[must_use]
pub fn evidence(site: &Site, front: Option<&Front>) -> String {
    let mut text = String::new();
    if let Some(front) = front {
        let record = site.job_named(&front.name);
        text += &format!("record: {record:?}\nthe user sees:\n{}\n", front.output(site));
    }
    text += &format!("{}\n{}\n", nodes(site), site.cluster.log_tails());
    text += &format!("leader: {LEADER}\n");
    text
}
