//! Runs cells: one on a cluster, many on several clusters side by side. A cluster serves cell after cell until one of
//! them harmed it.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::cell::{Cell, Fault, Phase, Target};
use super::inject::inject;
use super::judge::{self, Seen, bounded};
use super::lives::Lives;
use super::reach::{self, Front};
use super::site::{DEADLINE, Site};

/// How long a fault holds at least.
const OUTAGE: Duration = Duration::from_secs(2);

/// How long it holds at most while prologs run: a prolog that is longer there has outlived its deadline.
const PROLOGS: Duration = Duration::from_secs(DEADLINE.as_secs() + 12);

/// What came of a cell.
#[derive(Clone, Debug)]
pub struct Done {
    /// The cell.
    pub cell: Cell,
    /// What was seen.
    pub seen: Seen,
    /// Whether the fault hit nobody, since its target was gone already.
    pub too_late: bool,
    /// How long it took.
    pub took: Duration,
    /// What there is to see where something is wrong.
    pub evidence: String,
}

/// Runs one cell.
pub fn run_cell(site: &Site, cell: &Cell, lives: &Lives, number: usize) -> Done {
    let begun = Instant::now();
    let mut front = None;
    let mut done = Done {
        cell: *cell,
        seen: Seen::default(),
        too_late: false,
        took: Duration::ZERO,
        evidence: String::new(),
    };
    if let Err(error) = try_cell(site, cell, lives, number, &mut front, &mut done) {
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
    number: usize,
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
    let name = format!("cell{number}");
    let first = cell.phase == Phase::Submit && cell.target != Target::Srun;
    let early = if first { Some(inject(site, cell, None)?) } else { None };
    let front = kept.insert(reach::submit(site, cell, &name)?);
    let mut injected = match early {
        Some(injected) => injected,
        None => {
            reach::reach(site, cell, front, lives)?;
            inject(site, cell, Some(front))?
        }
    };
    done.too_late = injected.hit == 0;
    site.release()?;
    if matches!(cell.fault, Fault::State(_) | Fault::Slow(_)) {
        // It holds for all of the job.
        if let Err(stuck) = judge::end_of(site, front) {
            done.seen.wrong.push(stuck);
        }
    } else {
        outlast(site, cell, lives);
    }
    injected.mend(Some(front))?;
    let wrong = std::mem::take(&mut done.seen.wrong);
    done.seen = judge::judge(site, cell, front, (lives, since), guards);
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
                    let done = run_cell(&here, &cell, &lives, number);
                    site = done.seen.wrong.is_empty().then_some(here);
                    done
                }
                Err(error) => {
                    let seen = Seen { wrong: vec![format!("{error:#}")], ..Seen::default() };
                    Done { cell, seen, too_late: false, took: Duration::ZERO, evidence: String::new() }
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
