//! One fault at every place, two at seeded ones, and how large one must be to be named.

use std::collections::BTreeMap;

use diag::measurement::Subject;
use diag::verdict::{Finding, Status};

use crate::parallel::{cpu_s, each};
use crate::plot::Plot;
use crate::simulated::Job;
use crate::simulated::between::{blamed, checks, slow_between, slow_leaf};
use crate::simulated::catalogue::{ALL, CAPS, CHECKS, Class, Judged, drained, is_told, job, judged};
use crate::simulated::machine::Machine;
use crate::simulated::noise::{Noise, key};

/// Jobs in which a fault is put at every place.
const SIZES: [u32; 7] = [2, 3, 4, 5, 8, 17, 64];

/// The job in which it is put at seeded ones.
const LARGE: u32 = 1024;

/// What is left of the speed of a part: half, but of uplinks less, which only the check of all nodes meets where neighbours are
/// below one leaf, and whose limit half as fast is not below.
fn left(class: Class) -> f64 {
    if class == Class::Uplinks { 0.2 } else { 0.5 }
}

fn of_switch(finding: &Finding) -> bool {
    finding.status == Status::Fail && matches!(finding.subject, Subject::Switch { .. })
}

/// The noise of the job of a seed.
type Scatter = fn(u64) -> Noise;

/// Places of a class in a job: the nodes; of what belongs to a switch, the switches.
fn places(class: Class, size: u32, seeded: u32) -> Vec<u32> {
    let machine = Machine::H200;
    let all = match class {
        // Below one leaf switch nothing tells it from the site.
        Class::Leaf | Class::Uplinks => (0..size).step_by(machine.per_leaf as usize).collect(),
        // One node alone below its leaf: see `lone`.
        Class::Spine if size == 17 => Vec::new(),
        Class::Spine => (0..machine.spines).filter(|_| size > machine.per_leaf).collect(),
        _ => (0..size).collect::<Vec<u32>>(),
    };
    if size < LARGE {
        return all;
    }
    // For the nodes of a job these are the places that they always were.
    let place = |at: u32| {
        all.get(usize::try_from(key(&[0x91ace, u64::from(at)]) % all.len() as u64).unwrap()).copied()
    };
    (0..seeded.min(u32::try_from(all.len()).unwrap())).filter_map(place).collect()
}

/// Faults that are judged in another way where the leaf switches are known.
pub const OF_THE_NETWORK: [Class; 7] =
    [Class::Port, Class::Network, Class::Link, Class::Leaf, Class::Uplinks, Class::Spine, Class::Begins];

/// Prints how single faults of these classes were judged, `topology`: where Slurm knows the leaf switches; whether nobody was
/// drained who is fine and every node named that can be.
pub fn singles(classes: &[Class], seeded: u32, topology: bool) -> bool {
    let known = if topology { ", leaf switches known" } else { "" };
    println!("\none fault (seed: its place), {} checks, 3 % noise, 1 % outliers{known}", CHECKS.len());
    println!("| fault | jobs | right | undecided | wrong | told | switch named |");
    println!("|---|---|---|---|---|---|---|");
    let mut right = true;
    // Without the topology a node alone below its leaf is not told from the leaf's uplinks: not a fault that can be named.
    for &class in classes.iter().filter(|class| topology || **class != Class::Uplinks) {
        let cases: Vec<(u32, u32)> = SIZES
            .into_iter()
            .chain((seeded > 0).then_some(LARGE))
            .flat_map(|size| places(class, size, seeded).into_iter().map(move |place| (size, place)))
            .collect();
        let results = each(cases.len(), |at| {
            let (size, place) = cases[at];
            let healthy = Job { topology, ..job(size, u64::from(place)) };
            let job = class.at(healthy, place, left(class));
            let run = job.run_with(CHECKS, CAPS);
            let drained = drained(&job, &run);
            let judged = judged(&drained, &class.culprits(&job, place));
            if judged == Judged::Wrong || (judged == Judged::Undecided && class != Class::Intermittent) {
                let findings = run.verdict.findings.iter();
                let blamed = findings.filter(|one| one.status > Status::Error).take(3);
                let words: Vec<&str> = blamed.map(|one| one.message.as_str()).collect();
                println!("  {class:?} at {place} of {size}: {judged:?}: drained {drained:?}; {words:#?}");
            }
            (judged, is_told(&run), run.verdict.findings.iter().any(of_switch))
        });
        let count = |judged: Judged| results.iter().filter(|one| one.0 == judged).count();
        let told = results.iter().filter(|one| one.1).count();
        let named = results.iter().filter(|one| one.2).count();
        let (fine, undecided, wrong) = (count(Judged::Right), count(Judged::Undecided), count(Judged::Wrong));
        println!(
            "| {} | {} | {fine} | {undecided} | {wrong} | {told} | {named} |",
            class.text(),
            results.len()
        );
        // One that is fine in one look and not in the next may be left undecided, but not unsaid.
        let sometimes = matches!(class, Class::Intermittent | Class::Begins);
        right &= wrong == 0 && (undecided == 0 || sometimes);
    }
    let lone = each(8, |at| {
        let (seed, spine) = (at as u64 / 4, u32::try_from(at % 4).unwrap());
        let job = Class::Spine.at(Job { topology, ..job(17, seed) }, spine, 0.5);
        drained(&job, &job.run_with(CHECKS, CAPS)).len()
    });
    right &= !topology || lone.iter().all(|drained| *drained == 0);
    println!(
        "| a spine switch half as fast, 17 nodes, one of them alone below its leaf: nodes drained | {} | | | {} | | |",
        lone.len(),
        lone.iter().sum::<usize>()
    );
    right
}

/// Prints how pairs of faults of different nodes were judged; whether 99 of 100 are right.
pub fn pairs(jobs: usize) -> bool {
    let classes: Vec<Class> = ALL.into_iter().filter(|class| class.is_of_a_node()).collect();
    let results = each(jobs, |seed| {
        let roll = |salt: u64, of: u64| usize::try_from(key(&[0x2fa, seed as u64, salt]) % of).unwrap();
        let size = [6_u32, 8, 17, 64][roll(0, 4)];
        let one = u32::try_from(roll(1, u64::from(size))).unwrap();
        let other = (one + 1 + u32::try_from(roll(2, u64::from(size - 1))).unwrap()) % size;
        let mut job = job(size, seed as u64);
        let mut culprits = std::collections::BTreeSet::new();
        let kinds = [classes[roll(3, classes.len() as u64)], classes[roll(4, classes.len() as u64)]];
        // One that comes and goes may be named or not.
        let sometimes = kinds.contains(&Class::Intermittent);
        for (class, node) in kinds.into_iter().zip([one, other]) {
            job = class.at(job, node, 0.5);
            culprits.extend(class.culprits(&job, node));
        }
        let run = job.run_with(CHECKS, CAPS);
        let drained = drained(&job, &run);
        let judged = judged(&drained, &culprits);
        if judged == Judged::Wrong || (judged == Judged::Undecided && !sometimes) {
            let at = format!("{:?} at {one} and {:?} at {other} of {size}", kinds[0], kinds[1]);
            println!("  {at}: {judged:?}: drained {drained:?}: {}", run.verdict.summary);
        }
        if judged == Judged::Undecided && sometimes { Judged::Right } else { judged }
    });
    let mut counts: BTreeMap<Judged, usize> = BTreeMap::new();
    results.iter().for_each(|judged| *counts.entry(*judged).or_default() += 1);
    println!("\ntwo faults in jobs of 6, 8, 17 and 64 nodes, seeds 0 to {jobs}: {counts:?} of {jobs}");
    let right = counts.get(&Judged::Right).copied().unwrap_or(0);
    100 * right >= 99 * jobs && !counts.contains_key(&Judged::Wrong)
}

/// Jobs with a fault of the network, leaves known or not.
type Jobs = fn(u64, bool) -> Job;

/// Prints what is said of jobs with a slow way between their leaves, or a slow leaf, and slow moments of pairs beside it; whether no
/// node is blamed, whatever the caps. Without the topology a slow leaf is not told from its nodes.
pub fn slow_switches(jobs: usize) -> bool {
    let rows: [(&str, Jobs, &[bool]); 2] =
        [("way between leaf switches", slow_between, &[false, true]), ("leaf switch", slow_leaf, &[true])];
    let mut nobody = true;
    for (what, make, known) in rows {
        for &topology in known {
            nobody &= none_blamed(jobs, what, |seed| make(seed, topology), topology);
        }
    }
    none_blamed(jobs, "leaf switch", |seed| slow_leaf(seed, false), false);
    nobody
}

fn none_blamed(jobs: usize, what: &str, make: impl Fn(u64) -> Job + Sync, topology: bool) -> bool {
    let results = each(jobs, |at| {
        let seed = at as u64;
        let job = make(seed);
        let run = job.run(checks(seed));
        let blamed = blamed(&run);
        if !blamed.is_empty() {
            println!("  seed {seed}, {} nodes: blamed {blamed:?}: {}", job.size, run.verdict.summary);
        }
        (blamed.len(), format!("{:?}", run.verdict.outcome))
    });
    let mut outcomes: BTreeMap<&str, usize> = BTreeMap::new();
    results.iter().for_each(|(_, outcome)| *outcomes.entry(outcome).or_default() += 1);
    let blamed = results.iter().map(|one| one.0).sum::<usize>();
    let with = results.iter().filter(|one| one.0 > 0).count();
    let known = if topology { "known" } else { "not known" };
    println!(
        "\na slow {what}, and slow moments beside it, leaves {known}, seeds 0 to {jobs}: nodes blamed: {blamed}, in {with} jobs; \
         outcomes {outcomes:?}"
    );
    blamed == 0
}

/// How much slower a part is, from what every healthy one may be to half.
const SLOWER: [f64; 9] = [0.05, 0.08, 0.1, 0.12, 0.15, 0.2, 0.25, 0.3, 0.5];

/// Prints which share of faults of a size is named.
pub fn curve(runs: usize) {
    let columns = SLOWER.map(|slower| format!("{:.0} %", 100.0 * slower));
    println!(
        "\nshare of {runs} single faults in jobs of 16 nodes whose node is drained, by how much slower the part is"
    );
    println!("| part | noise | {} | CPU s |", columns.join(" | "));
    println!("|---|---|{}---|", "---|".repeat(columns.len()));
    let still = |seed| Noise { seed, sigma: 0.01, spread: 0.02, outliers: 0.0 };
    let noises: [(&str, Scatter); 2] =
        [("1 %, spread 2 %", still), ("3 %, spread 5 %, outliers 1 %", Noise::acceptance)];
    let mut rows = Vec::new();
    for (what, checks, class) in [
        ("GPU", "gemm_flops", Class::SlowGpu),
        ("NVLink", "all_reduce_1", Class::NvLink),
        ("one port", "multi_all_reduce_2, all_reduce_2", Class::Port),
        ("all ports", "all_reduce_2", Class::Network),
    ] {
        for (name, noise) in noises {
            let begun = cpu_s();
            let shares = SLOWER.map(|slower| {
                let named = each(runs, |seed| {
                    let node = u32::try_from(key(&[7, seed as u64]) % 16).unwrap();
                    let job = Job::on(Machine::H200, 16, noise(seed as u64));
                    let job = class.at(job, node, 1.0 - slower);
                    let run = job.run_with(CHECKS, CAPS);
                    drained(&job, &run).contains(&node)
                });
                100.0 * named.into_iter().filter(|named| *named).count() as f64 / runs as f64
            });
            let words = shares.map(|share| format!("{share:.0} %")).join(" | ");
            println!("| {what} ({checks}) | {name} | {words} | {:.0} |", cpu_s() - begun);
            rows.push((format!("{what}; {name}"), shares.to_vec()));
        }
    }
    let title = "Share of faults whose node is drained, by how much slower the part is";
    let across = ("how much slower the part is", columns.to_vec());
    Plot { title, across, up: ("% of the nodes at fault are drained", 100.0), rows }
        .write("trust-detection.svg");
}
