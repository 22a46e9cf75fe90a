//! Jobs with a slow way between their leaf switches, and slow moments of some pairs beside it.

use std::collections::BTreeSet;

use diag::check::CheckName::{self, AllReduce, AllReduce2, MultiAllReduce, MultiAllReduce2};
use diag::facts::NodeId;

use super::fault::{Fault, When};
use super::machine::Machine;
use super::noise::{Noise, key, uniform};
use super::{Job, Run};

/// Nodes of a job, and how many of them are below each leaf. No node is alone there: without the topology nothing tells it from the
/// leaf.
const SHAPES: [(u32, u32); 11] =
    [(4, 2), (5, 3), (6, 2), (6, 3), (8, 2), (8, 4), (9, 3), (11, 3), (12, 4), (16, 8), (18, 16)];

/// What is left of the speed of the way.
const LEFT: [f64; 8] = [0.85, 0.75, 0.6, 0.5, 0.3, 0.1, 0.02, 0.002];

/// The job of a seed: up to three neighbours, anywhere, have a slow moment.
pub fn slow_between(seed: u64, topology: bool) -> Job {
    let roll = |salt: u64| uniform(key(&[0x591e, seed, salt]));
    let pick = |salt: u64, of: usize| (0..of).rev().find(|at| roll(salt) * of as f64 >= *at as f64).unwrap();
    let (size, per_leaf) = SHAPES[pick(0, SHAPES.len())];
    let (kind, spines) = if roll(1) < 0.5 { (Machine::HOST, 1) } else { (Machine::H200, 4) };
    let machine = Machine { per_leaf, spines, ..kind };
    let mut job = Job::on(machine, size, Noise::acceptance(seed));
    job.topology = topology;
    let left = LEFT[pick(2, LEFT.len())];
    // One of the spines, or all that joins the leaves.
    let all = roll(3) < 0.7;
    for spine in (0..spines).filter(|spine| all || *spine == 0) {
        job.faults.push((Fault::Spine { spine, left }, When::Always));
    }
    for at in 0..pick(4, 4) as u64 {
        let a = u32::try_from(pick(10 + 3 * at, size as usize - 1)).unwrap();
        // A pair that is slow more than once had no slow moment.
        if job.faults.iter().any(|(fault, _)| matches!(fault, Fault::Link { a: other, .. } if *other == a)) {
            continue;
        }
        let left = 0.003 * 200.0_f64.powf(roll(11 + 3 * at));
        // In the opening round of a check of pairs, or those of a check of all nodes.
        let when = if roll(12 + 3 * at) < 0.5 { When::First } else { When::Only(2 + pick(5, 2) as u32) };
        job.faults.push((Fault::Link { a, b: a + 1, left }, when));
    }
    job
}

/// What is measured in the job of a seed.
pub fn checks(seed: u64) -> &'static [CheckName] {
    match seed % 4 {
        0 => &[AllReduce2],
        1 => &[MultiAllReduce2, AllReduce2],
        2 => &[AllReduce],
        _ => &[MultiAllReduce],
    }
}

/// Nodes that any finding blames, whatever the caps.
pub fn blamed(run: &Run) -> BTreeSet<NodeId> {
    let findings = run.verdict.findings.iter().filter(|one| one.is_part_fault());
    findings.flat_map(|one| one.subject.nodes()).collect()
}
