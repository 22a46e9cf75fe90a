//! Healthy jobs: nobody may be drained.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use diag::check::CheckName;
use diag::check::CheckName::{AllReduce, AllReduce1, AllReduce2, GemmFlops, KernelLaunch, MultiAllReduce2};
use diag::conclude::Caps;
use diag::verdict::{Outcome, Status};

use crate::simulated::Job;
use crate::simulated::machine::Machine;
use crate::simulated::noise::{Noise, key, uniform};

pub const CHECKS: &[CheckName] =
    &[GemmFlops, KernelLaunch, AllReduce1, AllReduce2, MultiAllReduce2, AllReduce];

pub const CAPS: Caps = Caps { max_drain_nodes: 4, max_drain_fraction: 0.34 };

/// Nodes of a job: from 2 to 1,024, as many jobs from n to 2n as from 2n to 4n.
pub fn size(seed: u64) -> u32 {
    let at = uniform(key(&[0x512e, seed]));
    let size = 2.0 * 512.0_f64.powf(at);
    (2..=1024).rev().find(|n| f64::from(*n) <= size).unwrap_or(2)
}

#[derive(Default)]
struct Tally {
    jobs: u64,
    nodes: u64,
    numbers: u64,
    drains: u64,
    outcomes: BTreeMap<String, u64>,
    shown: u32,
}

pub fn healthy(jobs: u64) -> bool {
    let (next, tally) = (AtomicU64::new(0), Mutex::new(Tally::default()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= jobs {
                        return;
                    }
                    one(seed, &tally);
                }
            });
        }
    });
    let tally = tally.into_inner().unwrap();
    println!(
        "healthy jobs: {} of 2 to 1,024 nodes ({} nodes, {} numbers): {} nodes drained; {:?}; {:.0} s",
        tally.jobs,
        tally.nodes,
        tally.numbers,
        tally.drains,
        tally.outcomes,
        begun.elapsed().as_secs_f64()
    );
    tally.drains == 0
}

fn one(seed: u64, tally: &Mutex<Tally>) {
    let job = Job::on(Machine::H200, size(seed), Noise::acceptance(seed));
    let run = job.run_with(CHECKS, CAPS);
    let decision = job.decision(&run);
    let mut tally = tally.lock().unwrap();
    tally.jobs += 1;
    tally.nodes += u64::from(job.size);
    tally.numbers += run
        .results
        .iter()
        .flat_map(|result| result.outcomes.values())
        .map(|outcome| match outcome {
            diag::round::NodeOutcome::Measured(numbers) => numbers.len() as u64,
            _ => 0,
        })
        .sum::<u64>();
    tally.drains += decision.drains.len() as u64;
    *tally.outcomes.entry(run.verdict.outcome.to_string()).or_default() += 1;
    if run.verdict.outcome != Outcome::Pass && tally.shown < 20 {
        tally.shown += 1;
        println!("  seed {seed}, {} nodes, {} rounds: {}", job.size, run.results.len(), run.verdict.summary);
        for one in run.verdict.findings.iter().filter(|one| !matches!(one.status, Status::Pass)).take(3) {
            println!("    {:?} {:?} {}", one.status, one.class, one.message);
        }
    }
}
