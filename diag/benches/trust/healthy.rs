//! Healthy jobs: nobody may be drained.

use std::collections::BTreeMap;

use diag::verdict::{Outcome, Status};

use crate::parallel::{cpu_s, each};
use crate::simulated::catalogue::{CAPS, CHECKS, drained, job};
use crate::simulated::noise::{key, uniform};

/// Nodes of a job: from 2 to 1,024, as many jobs from n to 2n as from 2n to 4n.
pub fn size(seed: u64) -> u32 {
    let size = 2.0 * 512.0_f64.powf(uniform(key(&[0x512e, seed])));
    (2..=1024).rev().find(|n| f64::from(*n) <= size).unwrap_or(2)
}

/// Prints how these jobs came out; whether nobody was drained.
pub fn table(from: u64, jobs: usize) -> bool {
    let begun = cpu_s();
    let results = each(jobs, |at| {
        let seed = from + at as u64;
        let job = job(size(seed), seed);
        let run = job.run_with(CHECKS, CAPS);
        if run.verdict.outcome != Outcome::Pass {
            println!("  seed {seed}, {} nodes: {}", job.size, run.verdict.summary);
            let findings = run.verdict.findings.iter();
            findings.filter(|one| one.status > Status::Skip).take(3).for_each(|one| println!("    {one:?}"));
        }
        let outcomes = run.results.iter().flat_map(|result| result.outcomes.values());
        let numbers: usize = outcomes.map(|outcome| outcome.numbers().len()).sum();
        (job.size as usize, numbers, drained(&job, &run).len(), run.verdict.outcome.to_string())
    });
    let (mut nodes, mut numbers, mut drains) = (0, 0, 0);
    let mut outcomes: BTreeMap<String, usize> = BTreeMap::new();
    for (size, measured, drained, outcome) in results {
        (nodes, numbers, drains) = (nodes + size, numbers + measured, drains + drained);
        *outcomes.entry(outcome).or_default() += 1;
    }
    println!(
        "\nhealthy jobs of 2 to 1,024 nodes, seeds {from} to {}: {jobs} with {nodes} nodes and {numbers} numbers; nodes drained: \
         {drains}; outcomes {outcomes:?}; {:.0} CPU s",
        from + jobs as u64,
        cpu_s() - begun
    );
    drains == 0
}
