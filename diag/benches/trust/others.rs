//! Other published rules on the same faults. What they measure is taken from the same simulation; their own programs are not
//! run. Sources, as read in their public repositories in 2026-11:
//!
//! - DLRover, `dlrover/python/master/elastic_training/rdzv_manager.py` (`NetworkCheckRendezvousManager`): two rounds of
//!   pairs, neighbours first, then the fastest with the slowest; each node's time is the better of its two; a straggler
//!   takes longer than twice the median. A pair that an odd node joins has three members.
//! - cluster-health-scanner, `src/health_runner/nccl_runner.py`: random pairs against a fixed limit, then each node that
//!   failed with a randomly chosen one that passed, several of them with the same one if too few passed; who fails twice
//!   has failed, and without a node that passed everybody who failed has.
//! - a fixed limit: whoever is so far below the usual number has failed, of a pair both.

use std::collections::{BTreeMap, BTreeSet};

use diag::check::CheckName::{self, AllReduce1, AllReduce2, GemmFlops};
use diag::facts::NodeId;
use diag::measurement::{Measurement, Metric};
use diag::round::{Mode, Purpose, Round};

use crate::parallel::each;
use crate::simulated::Job;
use crate::simulated::catalogue::{CAPS, CHECKS, Class, Judged, drained, job, judged};
use crate::simulated::machine::SIZES;
use crate::simulated::noise::key;

/// cluster-health-scanner's limit for pairs of H200, GB/s (conf/baselines/h200.toml names it).
const SCANNER_GB_PER_S: f64 = 250.0;

type Rule = fn(&Job) -> BTreeSet<NodeId>;

/// One round of the simulation; `index` keeps its noise apart from that of other rounds.
fn measured(job: &Job, check: CheckName, index: u32, groups: Vec<Vec<NodeId>>) -> Vec<Measurement> {
    let round = Round { index, check, purpose: Purpose::First, mode: Mode::Full, groups };
    let outcomes = job.measured(&round, &[]).into_values();
    outcomes.flat_map(|outcome| outcome.numbers().to_vec()).collect()
}

fn singles(job: &Job) -> Vec<Vec<NodeId>> {
    (0..job.size).map(|node| vec![node]).collect()
}

/// How much longer than usual each node's products take, by its slowest GPU.
fn products(job: &Job, index: u32) -> BTreeMap<NodeId, f64> {
    let mut times: BTreeMap<NodeId, f64> = BTreeMap::new();
    for one in measured(job, GemmFlops, index, singles(job)).iter().filter(|one| one.metric == Metric::Flops)
    {
        let time = job.machine.usual(GemmFlops, Metric::Flops, None) / one.value;
        let slowest = times.entry(one.subject.nodes()[0]).or_insert(time);
        *slowest = slowest.max(time);
    }
    times
}

/// Busbw of each pair at 1 GiB.
fn busbw(job: &Job, index: u32, pairs: &[(NodeId, NodeId)]) -> Vec<f64> {
    let group = |&(a, b): &(NodeId, NodeId)| vec![a.min(b), a.max(b)];
    let of = |pair| {
        let numbers = measured(job, AllReduce2, index, vec![group(pair)]);
        numbers.iter().find(|one| one.bytes == Some(SIZES[2])).map_or(0.0, |one| one.value)
    };
    pairs.iter().map(of).collect()
}

fn dlrover(job: &Job) -> BTreeSet<NodeId> {
    let mut best: BTreeMap<NodeId, f64> = BTreeMap::new();
    for round in 0..2 {
        let mut order: Vec<NodeId> = (0..job.size).collect();
        if round == 1 {
            order.sort_by(|a, b| best[a].total_cmp(&best[b]));
            let half = order.len().div_ceil(2);
            let slow: Vec<NodeId> = order.split_off(half).into_iter().rev().collect();
            let mut mixed: Vec<NodeId> = Vec::new();
            for (at, fast) in order.iter().enumerate() {
                mixed.extend([Some(*fast), slow.get(at).copied()].into_iter().flatten());
            }
            order = mixed;
        }
        let mut groups: Vec<Vec<NodeId>> = order.chunks(2).map(<[NodeId]>::to_vec).collect();
        if groups.len() > 1 && groups.last().is_some_and(|group| group.len() == 1) {
            let odd = groups.pop().unwrap();
            groups.last_mut().unwrap().extend(odd);
        }
        let products = products(job, 2 * round);
        for group in groups {
            let pairs: Vec<(NodeId, NodeId)> = (1..group.len())
                .flat_map(|b| (0..b).map(move |a| (a, b)))
                .map(|(a, b)| (group[a], group[b]))
                .collect();
            let usual = job.machine.usual(AllReduce2, Metric::Busbw, Some(SIZES[2]));
            let slowest = busbw(job, 2 * round + 1, &pairs).into_iter().fold(usual * 2.0, f64::min);
            // Products and collective take as long as each other, and all wait for the slowest.
            let time = group.iter().map(|node| products[node]).fold(0.0, f64::max) + usual / slowest;
            for node in group {
                let kept = best.entry(node).or_insert(time);
                *kept = kept.min(time);
            }
        }
    }
    let mut times: Vec<f64> = best.values().copied().collect();
    times.sort_by(f64::total_cmp);
    let middle = times.len() / 2;
    let median = if times.len().is_multiple_of(2) {
        f64::midpoint(times[middle - 1], times[middle])
    } else {
        times[middle]
    };
    best.into_iter().filter(|(_, time)| *time > 2.0 * median).map(|(node, _)| node).collect()
}

fn scanner(job: &Job) -> BTreeSet<NodeId> {
    let shuffled = |nodes: Vec<NodeId>, salt: u64| -> Vec<NodeId> {
        let mut nodes = nodes;
        nodes.sort_by_key(|node| key(&[job.noise.seed, salt, u64::from(*node)]));
        nodes
    };
    let order = shuffled((0..job.size).collect(), 1);
    let mut pairs: Vec<(NodeId, NodeId)> = order.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
    if !order.len().is_multiple_of(2) && order.len() > 1 {
        pairs.push((order[order.len() - 1], order[0]));
    }
    let (mut passed, mut failed) = (BTreeSet::new(), BTreeSet::new());
    for ((a, b), rate) in pairs.iter().zip(busbw(job, 0, &pairs)) {
        if rate < SCANNER_GB_PER_S { failed.extend([*a, *b]) } else { passed.extend([*a, *b]) }
    }
    failed.retain(|node| !passed.contains(node));
    if passed.is_empty() {
        return failed;
    }
    let partners = shuffled(passed.into_iter().collect(), 2);
    let again: Vec<(NodeId, NodeId)> = failed.into_iter().zip(partners.into_iter().cycle()).collect();
    let rates = busbw(job, 1, &again);
    again
        .into_iter()
        .zip(rates)
        .filter(|(_, rate)| *rate < SCANNER_GB_PER_S)
        .map(|((node, _), _)| node)
        .collect()
}

/// Whoever is below this share of the usual number.
fn fixed(job: &Job, share: f64) -> BTreeSet<NodeId> {
    let pairs: Vec<Vec<NodeId>> =
        (0..job.size).step_by(2).map(|a| vec![a, a + 1]).filter(|pair| pair[1] < job.size).collect();
    let rounds = [(GemmFlops, singles(job)), (AllReduce1, singles(job)), (AllReduce2, pairs)];
    let numbers = (0..).zip(rounds).flat_map(|(index, (check, groups))| measured(job, check, index, groups));
    numbers
        .filter(|one| one.metric.is_rate() && one.bytes.is_none_or(|bytes| bytes == SIZES[2]))
        .filter(|one| one.value < share * job.machine.usual(one.check, one.metric, one.bytes))
        .flat_map(|one| one.subject.nodes())
        .collect()
}

fn ours(job: &Job) -> BTreeSet<NodeId> {
    drained(job, &job.run_with(CHECKS, CAPS))
}

const RULES: [(&str, Rule); 5] = [
    ("ours", ours),
    ("two rounds, 2 x median (DLRover)", dlrover),
    ("second pass, 250 GB/s (cluster-health-scanner)", scanner),
    ("fixed limit, 5 %", |job| fixed(job, 0.95)),
    ("fixed limit, 10 %", |job| fixed(job, 0.9)),
];

/// Prints what each rule makes of healthy jobs and of single faults at every place.
pub fn table() {
    let sizes = [2_u32, 3, 4, 5, 8, 17, 64];
    let places = || sizes.into_iter().flat_map(|size| (0..size).map(move |place| (size, place)));
    let classes = [Class::SlowGpu, Class::NvLink, Class::Port, Class::Network, Class::Link];
    println!("\nthe same jobs by other rules: right, undecided, wrong (a node named that is fine)");
    println!("| rule | healthy | {} | the same, a tenth as fast |", classes.map(Class::text).join(" | "));
    println!("|---|---|{}---|", "---|".repeat(classes.len()));
    for (name, rule) in RULES {
        let count = |of: &[(Option<Class>, f64)]| {
            let cases: Vec<(u32, u32, Option<Class>, f64)> = of
                .iter()
                .flat_map(|&(class, left)| places().map(move |(size, place)| (size, place, class, left)))
                .collect();
            let results = each(cases.len(), |at| {
                let (size, place, class, left) = cases[at];
                let healthy = job(size, u64::from(place));
                let Some(class) = class else { return judged(&rule(&healthy), &BTreeSet::new()) };
                let culprits = class.culprits(&healthy, place);
                judged(&rule(&class.at(healthy, place, left)), &culprits)
            });
            let of = |judged: Judged| results.iter().filter(|one| **one == judged).count();
            format!("{}, {}, {}", of(Judged::Right), of(Judged::Undecided), of(Judged::Wrong))
        };
        let columns: Vec<String> = classes.iter().map(|class| count(&[(Some(*class), 0.5)])).collect();
        let severe: Vec<(Option<Class>, f64)> = classes.iter().map(|class| (Some(*class), 0.1)).collect();
        println!("| {name} | {} | {} | {} |", count(&[(None, 1.0)]), columns.join(" | "), count(&severe));
    }
}
