//! Runs cells: one on a cluster, many on several clusters side by side. A cluster serves cell after cell until one of
//! them harmed it, or its controller lost a job.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::cell::{Cell, End, Fault, Phase, Target};
use super::inject::inject;
use super::judge::{self, Seen, bounded};
use super::lives::Lives;
use super::reach::{self, Front};
use super::site::{DEADLINE, Site};

/// How long a fault holds at least.
const OUTAGE: Duration = Duration::from_secs(2);

/// How long it holds at most while prologs run: a prolog that is longer there has outlived its deadline.
const PROLOGS: Duration = Duration::from_secs(DEADLINE.as_secs() + 12);

/// How often a cell is run whose fault misses: most phases are held open, the others may be over before a busy machine gets
/// to the fault.
const TRIES: u32 = 3;

/// What came of a cell.
#[derive(Clone, Debug)]
pub struct Done {
    /// The cell.
    pub cell: Cell,
    /// What was seen.
    pub seen: Seen,
    /// Why the fault hit nothing at that moment, at the last try.
    pub missed: Option<&'static str>,
    /// How long it took.
    pub took: Duration,
    /// What there is to see where something is wrong.
    pub evidence: String,
}

impl Done {
    fn new(cell: &Cell) -> Self {
        let seen = Seen::default();
        Self { cell: *cell, seen, missed: None, took: Duration::ZERO, evidence: String::new() }
    }
}

/// Runs one cell, once more where the fault missed; `name` is the job's.
pub fn run_cell(site: &Site, cell: &Cell, lives: &Lives, name: &str) -> Done {
    let mut done = run_once(site, cell, lives, name);
    for again in 1..TRIES {
        if done.missed.is_none() || !done.seen.wrong.is_empty() {
            break;
        }
        done = run_once(site, cell, lives, &format!("{name}.{again}"));
    }
    done
}

fn run_once(site: &Site, cell: &Cell, lives: &Lives, name: &str) -> Done {
    let begun = Instant::now();
    let mut front = None;
    let mut done = Done::new(cell);
    if let Err(error) = try_cell(site, cell, lives, name, &mut front, &mut done) {
        done.seen.wrong.push(format!("{error:#}"));
    }
    done.took = begun.elapsed();
    if !done.seen.wrong.is_empty() {
        done.evidence = judge::evidence(site, front.as_ref());
    }
    done
}

fn try_cell(
    site: &Site,
    cell: &Cell,
    lives: &Lives,
    name: &str,
    kept: &mut Option<Front>,
    done: &mut Done,
) -> Result<()> {
    let names: Vec<String> = site.namespaces().into_values().collect();
    let mut before = Seen::default();
    judge::gone(site, lives, &names, &mut before);
    ensure!(before.wrong.is_empty(), "of the job before: {:?}", before.wrong);
    let since = Instant::now();
    site.set_policy(cell)?;
    let guards = reach::prepare(site, cell)?;
    let first = cell.phase == Phase::Submit && cell.target != Target::Srun;
    let early = if first { Some(inject(site, cell, None)?) } else { None };
    let front = kept.insert(reach::submit(site, cell, name)?);
    let injected = match early {
        Some(injected) => Some(injected),
        None if reach::reach(site, cell, front, lives)? => Some(inject(site, cell, Some(front))?),
        None => None,
    };
    done.missed = match &injected {
        None => Some("the phase was over"),
        Some(injected) if injected.hit == 0 => Some("the target had ended"),
        Some(_) => reach::was_past(site, cell).then_some("the phase was over"),
    };
    let missed = cell.missed();
    let judged = if done.missed.is_some() { &missed } else { cell };
    site.release()?;
    if matches!(cell.fault, Fault::State(_) | Fault::Slow(_)) {
        // It holds for all of the job.
        if let Err(stuck) = judge::end_of(site, front) {
            done.seen.wrong.push(stuck);
        }
    } else {
        outlast(site, cell, lives);
    }
    match injected {
        Some(mut injected) => injected.mend(Some(front))?,
        // What is made ready for it goes all the same.
        None if matches!(cell.fault, Fault::Clock(_)) => site.keep_clock(cell.at)?,
        None => {}
    }
    let wrong = std::mem::take(&mut done.seen.wrong);
    done.seen = judge::judge(site, judged, front, (lives, since), guards);
    done.seen.wrong.splice(0..0, wrong);
    lives.forget(&names);
    Ok(())
}

/// Waits until the prologs are over, and a little longer.
fn outlast(site: &Site, cell: &Cell, lives: &Lives) {
    let begun = Instant::now();
    let spaces = site.namespaces();
    let names: Vec<String> = spaces.values().cloned().collect();
    while begun.elapsed() < PROLOGS {
        let there = bounded(cell, lives.now(&names), &spaces);
        if begun.elapsed() >= OUTAGE && there.is_empty() {
            return;
        }
        sleep(super::lives::LOOK);
    }
}

/// Runs all `cells` on `clusters` clusters; `each` hears of every one as it is done.
pub fn run_all(cells: &[Cell], clusters: usize, each: impl Fn(&Done) + Sync) -> Vec<Done> {
    let lives = Lives::watch();
    let queue: Mutex<VecDeque<(usize, Cell)>> = Mutex::new(cells.iter().copied().enumerate().collect());
    let all = Mutex::new(Vec::new());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let work = || {
        let mut site = None;
        while let Some((number, cell)) = next() {
            let done = match site.take().map_or_else(Site::boot, Ok) {
                Ok(here) => {
                    let done = run_cell(&here, &cell, &lives, &format!("cell{number}"));
                    // A controller that forgot a job gives its number to another one, whose prolog slurmd takes for done.
                    let serves = done.seen.wrong.is_empty() && done.seen.end != Some(End::Forgotten);
                    site = serves.then_some(here);
                    done
                }
                Err(error) => {
                    let mut done = Done::new(&cell);
                    done.seen.wrong.push(format!("{error:#}"));
                    done
                }
            };
            each(&done);
            all.lock().unwrap_or_else(PoisonError::into_inner).push((number, done));
        }
    };
    thread::scope(|scope| {
        for _ in 0..clusters.min(cells.len()) {
            scope.spawn(work);
        }
    });
    let mut all = all.into_inner().unwrap_or_else(PoisonError::into_inner);
    all.sort_by_key(|(number, _)| *number);
    all.into_iter().map(|(_, done)| done).collect()
}
