//! What a verdict costs: rounds and transfers by the size of the job, and one core's time to judge.

use std::collections::BTreeMap;
use std::time::Duration;

use diag::check::Scope;
use diag::conclude::verdict;
use diag::plan::Settled;
use diag::round::{RoundResult, Step};

use crate::parallel::mine;
use crate::plot::Plot;
use crate::simulated::Job;
use crate::simulated::catalogue::{CAPS, CHECKS, job};
use crate::simulated::fault::Fault;
use crate::simulated::machine::Machine;
use crate::simulated::noise::Noise;

const SIZES: [u32; 6] = [2, 4, 16, 64, 256, 1024];

/// One job with its costs.
struct Cost {
    rounds: usize,
    /// Rounds of pairs.
    meetings: usize,
    /// Transfers between nodes that a node takes part in: on average, and the busiest one.
    transfers: (f64, usize),
    /// All steps of the plan together, and the longest.
    planning: (Duration, Duration),
    concluding: Duration,
}

fn cost(job: &Job) -> Cost {
    let (suite, roster) = (job.suite(CHECKS), job.roster());
    let mut results: Vec<RoundResult> = Vec::new();
    let mut settled = Settled::default();
    let mut planning = (Duration::ZERO, Duration::ZERO);
    let mut transfers = vec![0; job.size as usize];
    loop {
        let begun = mine();
        let step = settled.next(&suite, &roster, &results);
        let took = mine() - begun;
        planning = (planning.0 + took, planning.1.max(took));
        let Step::Measure(round) = step else { break };
        for node in round.groups.iter().filter(|group| group.len() > 1).flatten() {
            transfers[*node as usize] += 1;
        }
        let outcomes = job.measured(&round, &results);
        results.push(RoundResult { round, outcomes });
    }
    let begun = mine();
    let found = verdict(&suite, &roster, &results, CAPS, None);
    let concluding = mine() - begun;
    assert!(!found.findings.is_empty());
    let pairs = results.iter().filter(|result| result.round.check.spec().scope == Scope::Pair);
    let (sum, most) = (transfers.iter().sum::<usize>(), transfers.iter().max().copied().unwrap_or(0));
    Cost {
        rounds: results.len(),
        meetings: pairs.count(),
        transfers: (sum as f64 / f64::from(job.size), most),
        planning,
        concluding,
    }
}

/// Prints the table; whether no step of the plan, on which all nodes wait, takes 200 ms.
pub fn table() -> bool {
    let names: Vec<&str> = CHECKS.iter().map(|check| check.spec().text).collect();
    println!("\ncost of {}, seed 1", names.join(", "));
    println!(
        "| nodes | job | rounds | of pairs | transfers a node | busiest | planning, CPU ms | longest step | verdict, CPU ms |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let mut in_time = true;
    let mut rows: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for size in SIZES {
        let quiet = Noise { seed: 1, sigma: 0.01, spread: 0.05, outliers: 0.0 };
        let still = Job::on(Machine::H200, size, quiet);
        let noisy = job(size, 1);
        let bad = noisy.clone().with(Fault::Network { node: size / 2, left: 0.5 });
        for (what, job) in [("1 % noise", still), ("3 % noise, outliers", noisy), ("and a slow node", bad)] {
            let cost = cost(&job);
            let ms = |time: Duration| time.as_secs_f64() * 1000.0;
            println!(
                "| {size} | {what} | {} | {} | {:.1} | {} | {:.0} | {:.0} | {:.0} |",
                cost.rounds,
                cost.meetings,
                cost.transfers.0,
                cost.transfers.1,
                ms(cost.planning.0),
                ms(cost.planning.1),
                ms(cost.concluding)
            );
            in_time &= cost.planning.1 < Duration::from_millis(200);
            rows.entry(format!("rounds; {what}")).or_default().push(cost.rounds as f64);
            rows.entry(format!("transfers a node; {what}")).or_default().push(cost.transfers.0);
        }
    }
    let title = "Rounds of all checks, and transfers that a node takes part in, by the size of the job";
    let across = ("nodes of the job, 8 GPUs each", SIZES.map(|size| size.to_string()).to_vec());
    Plot { title, across, up: ("rounds; transfers", 20.0), rows: rows.into_iter().collect() }
        .write("trust-cost.svg");
    in_time
}
