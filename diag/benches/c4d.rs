//! `cargo bench -p diag --bench c4d`: the rules at scale, as a table. Faults at seeded places of a simulated job of 16,384
//! ranks, clean runs with noise, and how long one core takes to judge a window. It ends with an error if a culprit was wrong,
//! anything was found in a clean run, or a window took a second.
//!
//! Arguments (after `--`): places, clean runs. Without: 200 and 1000.
#![allow(clippy::unwrap_used, reason = "a bench may stop at the first surprise")]

#[path = "../tests/c4d/job/mod.rs"]
mod job;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use diag::c4d::digest::Digest;
use diag::c4d::finding::{Class, Finding, State};
use diag::c4d::picture::Picture;
use diag::c4d::settings::Settings;
use diag::c4d::step;
use job::{Event, Job, Plan, Shape, chance};

/// 16,384 ranks on 2,048 nodes.
const LARGE: Shape = Shape { tp: 8, pp: 8, dp: 256, per_node: 8, batches: 1 };

/// A job, what is known of it, and what it cost to know.
#[derive(Clone)]
struct Watch {
    job: Job,
    picture: Picture,
    now_ms: u64,
    said: Vec<(u64, Finding)>,
    longest: Duration,
    total: Duration,
    windows: u32,
}

impl Watch {
    fn new(plan: Plan) -> Self {
        let names = (0..plan.shape.nodes()).map(|node| format!("n{node}")).collect();
        Self {
            job: Job::new(plan),
            picture: Picture::new(names),
            now_ms: 0,
            said: Vec::new(),
            longest: Duration::ZERO,
            total: Duration::ZERO,
            windows: 0,
        }
    }

    fn window(&mut self) -> Vec<Digest> {
        self.now_ms += 1000;
        self.job.advance(self.now_ms);
        let digests = self.job.told(&self.picture.wants_steps());
        let before = Instant::now();
        let changes = step(&mut self.picture, &digests, self.now_ms, &Settings::default());
        let took = before.elapsed();
        self.longest = self.longest.max(took);
        self.total += took;
        self.windows += 1;
        self.said.extend(changes.into_iter().map(|finding| (self.now_ms, finding)));
        digests
    }

    fn until(&mut self, to_ms: u64) {
        while self.now_ms < to_ms {
            self.window();
        }
    }

    /// Runs until something is confirmed with its place.
    fn until_found(&mut self, to_ms: u64) {
        while self.now_ms < to_ms && self.confirmed().all(|(_, one)| one.suspects.is_empty()) {
            self.window();
        }
    }

    fn confirmed(&self) -> impl Iterator<Item = &(u64, Finding)> {
        self.said.iter().filter(|(_, finding)| finding.state == State::Confirmed)
    }

    /// Whether exactly these ranks are named, as that.
    fn names(&self, class: Class, ranks: &[usize]) -> bool {
        let named = |finding: &Finding| {
            let mut named: Vec<usize> =
                finding.suspects.iter().map(|who| who.pid as usize - 100_000).collect();
            named.sort_unstable();
            named
        };
        let mut count = 0;
        let right = self
            .confirmed()
            .inspect(|_| count += 1)
            .all(|(_, one)| one.class == class && named(one) == ranks);
        right && count > 0
    }
}

/// One row of the table: what was done, how often, how often it came out right, how long it took to be found.
struct Row {
    what: &'static str,
    right: u32,
    all: u32,
    found_ms: Vec<u64>,
}

impl Row {
    fn print(&mut self) {
        self.found_ms.sort_unstable();
        let at = |share: usize| self.found_ms.get(self.found_ms.len().saturating_sub(1) * share / 100);
        let seconds =
            |ms: Option<&u64>| ms.map_or("-".to_owned(), |ms| format!("{:.1}", *ms as f64 / 1000.0));
        println!(
            "{:<44} {:>5} of {:>5} right   named after (s): median {:>5}, 90 % {:>5}, longest {:>5}",
            self.what,
            self.right,
            self.all,
            seconds(at(50)),
            seconds(at(90)),
            seconds(at(100))
        );
    }
}

/// A kind of fault: what it is called, the fault at a place, how it must be named, how long it may take.
type Kind = (&'static str, fn(usize, u64) -> Event, fn(usize) -> (Class, Vec<usize>), u64);

/// A rank and the next one in its data parallel ring.
fn link(rank: usize) -> Vec<usize> {
    let next = (rank + LARGE.tp * LARGE.pp) % LARGE.ranks();
    vec![rank.min(next), rank.max(next)]
}

const KINDS: [Kind; 6] = [
    (
        "16,384 ranks: a rank's program stops",
        |rank, at_ms| Event::HostHang { rank, at_ms, until_ms: None },
        |rank| (Class::NonCommunicationHang, vec![rank]),
        30_000,
    ),
    (
        "16,384 ranks: a process ends",
        |rank, at_ms| Event::Crash { rank, at_ms },
        |rank| (Class::NonCommunicationHang, vec![rank]),
        30_000,
    ),
    (
        "16,384 ranks: a node is lost",
        |rank, at_ms| Event::NodeLost { node: rank / 8, at_ms },
        |rank| (Class::NonCommunicationHang, (rank / 8 * 8..rank / 8 * 8 + 8).collect()),
        30_000,
    ),
    (
        "16,384 ranks: a rank computes 2.5 times as long",
        |rank, at_ms| Event::Slow { rank, at_ms, factor: 2.5 },
        |rank| (Class::Straggler, vec![rank]),
        45_000,
    ),
    (
        "16,384 ranks: a connection is stuck",
        |rank, at_ms| Event::StuckLink { rank, at_ms },
        |rank| (Class::CommunicationHang, link(rank)),
        30_000,
    ),
    (
        "16,384 ranks: a connection is slow",
        |rank, at_ms| Event::SlowLink { rank, at_ms, until_ms: None, factor: 200.0 },
        |rank| (Class::CommunicationSlow, link(rank)),
        45_000,
    ),
];

fn large(places: usize, all_right: &mut bool) {
    let mut start = Watch::new(Plan { compute_ms: 60.0, ..Plan::new(LARGE, 5) });
    start.until(23_000);
    let digests = start.window();
    let bytes: Vec<Vec<u8>> = digests.iter().map(|one| serde_json::to_vec(one).unwrap()).collect();
    let sum: usize = bytes.iter().map(Vec::len).sum();
    let before = Instant::now();
    let read = bytes.iter().filter(|bytes| Digest::parse(bytes).is_ok()).count();
    let reading = before.elapsed();
    println!(
        "16,384 ranks on 2,048 nodes: a digest has {} bytes a rank; {read} digests are read in {:.0} ms; the picture holds \
         {:.1} MiB, {} bytes a rank",
        sum / LARGE.ranks(),
        reading.as_secs_f64() * 1000.0,
        start.picture.bytes() as f64 / f64::from(1 << 20),
        start.picture.bytes() / LARGE.ranks()
    );
    assert!(start.said.is_empty(), "{:#?}", start.said);
    let (mut longest, mut total, mut windows) = (start.longest, start.total, start.windows);
    for (at, (what, event, named, for_ms)) in KINDS.into_iter().enumerate() {
        let mut row = Row { what, right: 0, all: 0, found_ms: Vec::new() };
        // All kinds together make the number of places.
        for place in (at..places).step_by(KINDS.len()) {
            let rank = (chance(99, place as u64, 1) * LARGE.ranks() as f64) as usize;
            let at_ms = start.now_ms + 700;
            let mut watch = start.clone();
            watch.job.plan.events.push(event(rank, at_ms));
            watch.until_found(at_ms + for_ms);
            // What comes after the first one would be wrong as well.
            watch.until(watch.now_ms + 3_000);
            let (class, ranks) = named(rank);
            let last = watch.confirmed().last().cloned();
            // Until the network's steps are recorded a transport is named without its place.
            watch.said.retain(|(_, one)| class != one.class || !one.suspects.is_empty());
            let right = watch.names(class, &ranks);
            if !right {
                let last = last.map(|(at, one)| (at, one.class, one.message));
                println!("  wrong at rank {rank}: {last:?}");
            }
            row.all += 1;
            row.right += u32::from(right);
            row.found_ms.extend(watch.confirmed().next().map(|(found_ms, _)| found_ms - at_ms));
            (longest, total) = (longest.max(watch.longest), total + watch.total - start.total);
            windows += watch.windows - start.windows;
        }
        *all_right &= row.right == row.all;
        row.print();
    }
    println!(
        "16,384 ranks: judging a window takes {:.0} ms on average, {:.0} ms at most ({windows} windows)",
        total.as_secs_f64() * 1000.0 / f64::from(windows),
        longest.as_secs_f64() * 1000.0
    );
    *all_right &= longest < Duration::from_secs(1);
}

fn clean(runs: u64, all_right: &mut bool) {
    let mut row =
        Row { what: "64 ranks, 90 s, noise: nothing is found", right: 0, all: 0, found_ms: Vec::new() };
    for seed in 0..runs {
        let roll = |salt: u64| chance(seed, salt, 77);
        let plan = Plan {
            jitter: 0.25 * roll(1),
            compute_ms: 30.0 + 400.0 * roll(2),
            first_step: 1.0 + 60.0 * roll(3),
            uneven: 0.4 * roll(4),
            late_digests: 0.3 * roll(5),
            ..Plan::new(Shape::SMALL, seed)
        };
        let mut watch = Watch::new(plan);
        watch.until(90_000);
        row.all += 1;
        row.right += u32::from(watch.said.is_empty());
        if let Some((at, one)) = watch.said.first() {
            println!("  seed {seed}: at {at} ms {}: {}", one.class, one.message);
        }
    }
    *all_right &= row.right == row.all;
    row.print();
}

fn main() -> ExitCode {
    // `cargo test --all-targets` starts benches too, without this flag: it has no hour for them.
    if std::env::args().all(|word| word != "--bench") {
        return ExitCode::SUCCESS;
    }
    let mut numbers = std::env::args().filter_map(|word| word.parse().ok());
    let places = numbers.next().unwrap_or(200);
    let runs = numbers.next().unwrap_or(1000);
    let mut all_right = true;
    large(usize::try_from(places).unwrap(), &mut all_right);
    clean(runs, &mut all_right);
    if all_right { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
