//! Every class of fault at every place of a simulated job of 64 ranks: the right rank is named, nobody else, in time.

use diag::c4d::finding::{Class, Finding, State};
use diag::c4d::picture::Picture;
use diag::c4d::settings::Settings;
use diag::c4d::step;

use crate::job::{Event, Job, Plan, Shape};

/// A job that is watched.
#[derive(Clone)]
pub struct Watch {
    pub job: Job,
    pub picture: Picture,
    pub settings: Settings,
    pub now_ms: u64,
    pub said: Vec<(u64, Finding)>,
}

impl Watch {
    pub fn new(plan: Plan) -> Self {
        let names = (0..plan.shape.nodes()).map(|node| format!("n{node}")).collect();
        let (settings, picture) = (Settings::default(), Picture::new(names));
        Self { job: Job::new(plan), picture, settings, now_ms: 0, said: Vec::new() }
    }

    pub fn until(&mut self, to_ms: u64) {
        while self.now_ms < to_ms {
            self.now_ms += 1000;
            self.job.advance(self.now_ms);
            let digests = self.job.told(&self.picture.wants_steps());
            // The judging node's clock is another one.
            let now_ms = self.now_ms + 7_000_000;
            for finding in step(&mut self.picture, &digests, now_ms, &self.settings) {
                self.said.push((self.now_ms, finding));
            }
        }
    }

    pub fn confirmed(&self) -> Vec<&(u64, Finding)> {
        self.said.iter().filter(|(_, finding)| finding.state == State::Confirmed).collect()
    }

    /// Exactly one thing was found, of that class, and it names these ranks of the job; when.
    pub fn names(&self, class: Class, ranks: &[usize]) -> u64 {
        let confirmed = self.confirmed();
        let all: Vec<_> = confirmed
            .iter()
            .map(|(at, one)| format!("{at}: {} {:?} {}", one.class, one.subject, one.message))
            .collect();
        assert!(!confirmed.is_empty(), "nothing found: {:?}", self.job.plan.events);
        for (_, finding) in &confirmed {
            assert_eq!(finding.class, class, "{all:#?} {:?}", self.job.plan.events);
            let mut named: Vec<usize> =
                finding.suspects.iter().map(|who| who.pid as usize - 100_000).collect();
            named.sort_unstable();
            assert_eq!(named, ranks, "{all:#?} {:?}", self.job.plan.events);
        }
        confirmed[0].0
    }
}

/// Clean start that all faults share: 24 s, or 40 s for slowness, which is held against what was before.
fn begun(clean_ms: u64) -> Watch {
    let mut watch = Watch::new(Plan::new(Shape::SMALL, 11));
    watch.until(clean_ms);
    assert!(watch.said.is_empty(), "{:#?}", watch.said);
    watch
}

fn at_every_place(
    start: &Watch,
    for_ms: u64,
    event: impl Fn(usize, u64) -> Event,
    check: impl Fn(&Watch, usize, u64),
) {
    for rank in 0..Shape::SMALL.ranks() {
        let mut watch = start.clone();
        let at_ms = watch.now_ms + 700;
        watch.job.plan.events.push(event(rank, at_ms));
        watch.until(start.now_ms + for_ms);
        check(&watch, rank, at_ms);
    }
}

/// The longest that a hang may take to be named, at the default floor.
const NAMED_MS: u64 = 15_000;

#[test]
fn a_rank_whose_program_stops() {
    let start = begun(24_000);
    at_every_place(
        &start,
        20_000,
        |rank, at_ms| Event::HostHang { rank, at_ms, until_ms: None },
        |watch, rank, at_ms| {
            let found_ms = watch.names(Class::NonCommunicationHang, &[rank]);
            assert!(found_ms - at_ms <= NAMED_MS, "rank {rank} was named after {} ms", found_ms - at_ms);
        },
    );
}

#[test]
fn a_rank_whose_gpu_stops() {
    let mut start = begun(24_000);
    start.settings.ceiling_ms = 20_000;
    at_every_place(
        &start,
        27_000,
        |rank, at_ms| Event::GpuHang { rank, at_ms },
        |watch, rank, at_ms| {
            // A GPU that runs something is given until the ceiling.
            let found_ms = watch.names(Class::NonCommunicationHang, &[rank]);
            assert!(found_ms - at_ms <= watch.settings.ceiling_ms + 5_000);
            let finding = &watch.confirmed()[0].1;
            assert!(finding.evidence[0].contains("its GPU has not begun it"), "{:?}", finding.evidence);
        },
    );
}

#[test]
fn a_process_that_ends() {
    let start = begun(24_000);
    at_every_place(
        &start,
        20_000,
        |rank, at_ms| Event::Crash { rank, at_ms },
        |watch, rank, at_ms| {
            let found_ms = watch.names(Class::NonCommunicationHang, &[rank]);
            assert!(found_ms - at_ms <= NAMED_MS, "rank {rank} was named after {} ms", found_ms - at_ms);
            assert!(watch.confirmed()[0].1.message.contains("has ended"));
        },
    );
}

#[test]
fn a_process_that_is_stopped_is_no_hang() {
    let start = begun(24_000);
    at_every_place(
        &start,
        20_000,
        |rank, at_ms| Event::Pause { rank, at_ms, until_ms: None },
        |watch, rank, _| {
            watch.names(Class::Paused, &[rank]);
        },
    );
}

#[test]
fn a_node_that_is_lost() {
    let start = begun(24_000);
    let shape = Shape::SMALL;
    for node in 0..shape.nodes() {
        let mut watch = start.clone();
        watch.job.plan.events.push(Event::NodeLost { node, at_ms: 24_700 });
        watch.until(45_000);
        let ranks: Vec<usize> = (node * shape.per_node..(node + 1) * shape.per_node).collect();
        watch.names(Class::NonCommunicationHang, &ranks);
        assert!(watch.confirmed()[0].1.message.contains("nothing was heard of it"));
    }
}

#[test]
fn a_connection_that_is_stuck() {
    let start = begun(24_000);
    at_every_place(
        &start,
        22_000,
        |rank, at_ms| Event::StuckLink { rank, at_ms },
        |watch, rank, _| {
            let shape = watch.job.plan.shape;
            let next = (rank + shape.tp * shape.pp) % shape.ranks();
            let mut ends = [rank, next];
            ends.sort_unstable();
            let last = watch.confirmed().last().unwrap().1.clone();
            assert!(watch.confirmed().iter().all(|(_, one)| one.class == Class::CommunicationHang));
            let named: Vec<usize> = last.suspects.iter().map(|who| who.pid as usize - 100_000).collect();
            assert_eq!(named, ends, "{last:#?}");
        },
    );
}

#[test]
fn a_rank_that_lags() {
    let start = begun(40_000);
    at_every_place(
        &start,
        32_000,
        |rank, at_ms| Event::Slow { rank, at_ms, factor: 1.6 },
        |watch, rank, _| {
            watch.names(Class::Straggler, &[rank]);
        },
    );
}

#[test]
fn a_node_that_lags() {
    let start = begun(40_000);
    let shape = Shape::SMALL;
    for node in 0..shape.nodes() {
        let mut watch = start.clone();
        watch.job.plan.events.push(Event::SlowNode { node, at_ms: 40_700, factor: 1.6 });
        watch.until(72_000);
        let confirmed = watch.confirmed();
        assert!(!confirmed.is_empty(), "node {node}");
        for (_, one) in confirmed {
            assert_eq!(one.class, Class::Straggler);
            let mut ranks = one.suspects.iter().map(|who| who.pid as usize - 100_000);
            assert!(
                ranks.all(|rank| rank / shape.per_node == node),
                "{node}: {} {:?}",
                one.message,
                one.evidence
            );
        }
    }
}

#[test]
fn a_connection_that_is_slow() {
    let start = begun(40_000);
    at_every_place(
        &start,
        42_000,
        |rank, at_ms| Event::SlowLink { rank, at_ms, until_ms: None, factor: 200.0 },
        |watch, rank, _| {
            let shape = watch.job.plan.shape;
            let next = (rank + shape.tp * shape.pp) % shape.ranks();
            let mut ends = [rank, next];
            ends.sort_unstable();
            let confirmed = watch.confirmed();
            assert!(!confirmed.is_empty(), "rank {rank}");
            assert!(confirmed.iter().all(|(_, one)| one.class == Class::CommunicationSlow), "{confirmed:#?}");
            let last = &confirmed.last().unwrap().1;
            let named: Vec<usize> = last.suspects.iter().map(|who| who.pid as usize - 100_000).collect();
            assert_eq!(named, ends, "{last:#?}");
        },
    );
}

#[test]
fn a_connection_of_a_pipeline_that_is_slow() {
    let start = begun(40_000);
    let shape = Shape::SMALL;
    for rank in (0..shape.ranks()).filter(|rank| shape.stage(*rank) + 1 < shape.pp).step_by(5) {
        let mut watch = start.clone();
        watch.job.plan.events.push(Event::SlowPipe { rank, at_ms: 40_700, factor: 100.0 });
        watch.until(90_000);
        watch.names(Class::CommunicationSlow, &[rank, rank + shape.tp]);
    }
}
