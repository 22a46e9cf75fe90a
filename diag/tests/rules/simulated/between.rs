//! Jobs with a slow way between their leaf switches, or a slow leaf, and slow moments of some pairs beside it.

use std::collections::BTreeSet;

use diag::check::CheckName::{self, AllReduce, AllReduce2, MultiAllReduce, MultiAllReduce2};
use diag::facts::NodeId;

use super::fault::{Fault, When};
use super::machine::Machine;
use super::noise::{Noise, key, uniform};
use super::{Job, Run};

/// Nodes of a job, and how many of them are below each leaf; in some jobs two nodes, anywhere, have a leaf of their own. No node is alone there: without the topology nothing tells it from the
/// leaf.
const SHAPES: [(u32, u32); 11] =
    [(4, 2), (5, 3), (6, 2), (6, 3), (8, 2), (8, 4), (9, 3), (11, 3), (12, 4), (16, 8), (18, 16)];

/// What is left of the speed of the way.
const LEFT: [f64; 8] = [0.85, 0.75, 0.6, 0.5, 0.3, 0.1, 0.02, 0.002];

/// What a seed gives.
struct Dice(u64);

impl Dice {
    /// From 0 to below 1.
    fn roll(&self, salt: u64) -> f64 {
        uniform(key(&[0x591e, self.0, salt]))
    }

    fn pick(&self, salt: u64, of: usize) -> usize {
        (0..of).rev().find(|at| self.roll(salt) * of as f64 >= *at as f64).unwrap()
    }

    fn node(&self, salt: u64, of: u32) -> NodeId {
        u32::try_from(self.pick(salt, of as usize)).unwrap()
    }
}

/// The job of a seed with a slow way between its leaves.
pub fn slow_between(seed: u64, topology: bool) -> Job {
    let dice = Dice(seed);
    let mut job = of_leaves(&dice, topology);
    let (size, left) = (job.size, LEFT[dice.pick(2, LEFT.len())]);
    let two = (dice.node(30, size), dice.node(31, size));
    // Nobody is left alone below the leaf that they would be below.
    let rest = |leaf: u32| {
        let below =
            (0..size).filter(|node| job.machine.leaf(*node) == leaf && ![two.0, two.1].contains(node));
        below.count() != 1
    };
    // One of the spines, or all that joins the leaves.
    let all = dice.roll(3) < 0.7 || job.machine.spines == 1;
    // Where some ways are fast, one of the two may have met those only: see docs/trust.md.
    if all && dice.roll(32) < 0.25 && two.0 != two.1 && (0..size).all(|node| rest(job.machine.leaf(node))) {
        job.machine.apart = Some(two);
    }
    for spine in (0..job.machine.spines).filter(|spine| all || *spine == 0) {
        job.faults.push((Fault::Spine { spine, left }, When::Always));
    }
    with_slow_moments(job, &dice)
}

/// The job of a seed with a slow leaf, in some from a round on.
pub fn slow_leaf(seed: u64, topology: bool) -> Job {
    let dice = Dice(seed);
    let mut job = of_leaves(&dice, topology);
    let leaf = job.machine.leaf(dice.node(40, job.size));
    let when = if dice.roll(41) < 0.5 { When::Always } else { When::From(1 + dice.node(42, 5)) };
    job.faults.push((Fault::Leaf { leaf, left: LEFT[dice.pick(2, LEFT.len())] }, when));
    with_slow_moments(job, &dice)
}

fn of_leaves(dice: &Dice, topology: bool) -> Job {
    let (size, per_leaf) = SHAPES[dice.pick(0, SHAPES.len())];
    let (kind, spines) = if dice.roll(1) < 0.5 { (Machine::HOST, 1) } else { (Machine::H200, 4) };
    let machine = Machine { per_leaf, spines, ..kind };
    Job { topology, ..Job::on(machine, size, Noise::acceptance(dice.0)) }
}

/// Up to three neighbours, anywhere, have a slow moment.
fn with_slow_moments(mut job: Job, dice: &Dice) -> Job {
    for at in 0..dice.pick(4, 4) as u64 {
        let a = dice.node(10 + 3 * at, job.size - 1);
        // A pair that is slow more than once had no slow moment.
        if job.faults.iter().any(|(fault, _)| matches!(fault, Fault::Link { a: other, .. } if *other == a)) {
            continue;
        }
        let left = 0.003 * 200.0_f64.powf(dice.roll(11 + 3 * at));
        // In the opening round of a check of pairs, or those of a check of all nodes.
        let when = if dice.roll(12 + 3 * at) < 0.5 { When::First } else { When::Only(2 + dice.node(5, 2)) };
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
