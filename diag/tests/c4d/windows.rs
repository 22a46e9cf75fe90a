//! Kernels that are recorded for a part of the time, or not on all ranks: what is not told must not look like a hang or a
//! straggler, and what hangs or lags must be named all the same.

use diag::c4d::digest::{Func, P2p};
use diag::c4d::finding::Class;

use crate::faults::Watch;
use crate::job::{Event, Plan, Shape};
use crate::shapes::{World, comm, progress};

/// Kernels are recorded in one second of ten, and never: nothing at all, or windows that the fault does not meet.
const PARTS: [Event; 2] = [Event::Windows { on_ms: 1_000, of_ms: 10_000 }, Event::CallsOnly {}];

/// Each rank has its turn, or every fifth or seventh; in unoptimised code a third of them.
const RANKS: usize = if cfg!(debug_assertions) { 3 } else { 1 };

/// The longest that a hang may take to be named.
const NAMED_MS: u64 = 15_000;

fn begun(events: &[Event], clean_ms: u64) -> Watch {
    let mut plan = Plan::new(Shape::SMALL, 11);
    plan.events.extend(events);
    let mut watch = Watch::new(plan);
    watch.until(clean_ms);
    assert!(watch.said.is_empty(), "{events:?}: {:#?}", watch.said);
    watch
}

fn after(start: &Watch, for_ms: u64, event: Event) -> Watch {
    let mut watch = start.clone();
    watch.job.plan.events.push(event);
    watch.until(start.now_ms + for_ms);
    watch
}

#[test]
fn a_rank_that_stops_while_kernels_are_not_recorded_is_named_in_time() {
    for part in PARTS {
        let start = begun(&[part], 33_000);
        for rank in (0..Shape::SMALL.ranks()).step_by(RANKS) {
            let at_ms = start.now_ms + 700;
            let stops = |watch: &Watch, class: Class| {
                let found_ms = watch.names(class, &[rank]);
                assert!(found_ms - at_ms <= NAMED_MS, "{part:?} {rank}: after {} ms", found_ms - at_ms);
            };
            let hang = after(&start, 20_000, Event::HostHang { rank, at_ms, until_ms: None });
            stops(&hang, Class::NonCommunicationHang);
            stops(&after(&start, 20_000, Event::Crash { rank, at_ms }), Class::NonCommunicationHang);
            stops(&after(&start, 20_000, Event::Pause { rank, at_ms, until_ms: None }), Class::Paused);
        }
    }
}

#[test]
fn who_waits_for_a_rank_that_stopped_is_never_named_without_kernels() {
    // Until after the ceiling, from which on GPUs that spin in a kernel count as doing nothing.
    let start = begun(&[Event::CallsOnly {}], 24_000);
    for rank in (0..Shape::SMALL.ranks()).step_by(9) {
        let at_ms = start.now_ms + 700;
        after(&start, 150_000, Event::HostHang { rank, at_ms, until_ms: None })
            .names(Class::NonCommunicationHang, &[rank]);
    }
}

/// One end of a connection: rank, whether it sends, how far it is.
type End = (usize, bool, (u64, u64, u64));

impl World {
    /// Two ranks of a communicator of so many that send to each other.
    fn pair(mut self, id: u64, ranks: u32, one: End, other: End) -> Self {
        for (end, peer) in [(one, other.0), (other, one.0)] {
            let (at, send, far) = end;
            let mut comm = comm(id, at as u32, ranks, ranks);
            comm.p2p.push(P2p { peer: peer as u32, send, kernel_us: 0, progress: progress(far, 0) });
            self.ranks[at].comms.push(comm);
        }
        self
    }
}

/// Ranks of which only calls are told.
fn blind(mut world: World) -> World {
    world.ranks.iter_mut().for_each(|rank| rank.kernels = false);
    world
}

#[test]
fn calls_alone_tell_who_waits_for_whom() {
    // Rank 0 is behind; 1 waits for it in one communicator, 2 for 1 in another, 3 for 2 by a send.
    let world = World::of(4)
        .collective(1, Func::AllReduce, &[(0, (5, 2, 2)), (1, (6, 2, 2))])
        .collective(2, Func::AllReduce, &[(1, (3, 0, 0)), (2, (5, 0, 0))])
        .pair(3, 4, (2, false, (7, 0, 0)), (3, true, (8, 0, 0)));
    let found = blind(world).found(20);
    let named: Vec<u32> = found.iter().flat_map(|one| &one.suspects).map(|who| who.pid).collect();
    assert_eq!(named, [1000], "{found:#?}");
    assert_eq!(found[0].class, Class::NonCommunicationHang);
    // All have called alike: they stand still, and nobody waits for anybody.
    let level =
        World::of(3).collective(1, Func::AllReduce, &[(0, (5, 2, 2)), (1, (5, 3, 3)), (2, (5, 5, 5))]);
    assert!(blind(level).found(30).is_empty());
    // One told of what it is inside of; whether the others have come is not known.
    let inside =
        World::of(3).collective(1, Func::AllReduce, &[(0, (5, 5, 4)), (1, (5, 3, 3)), (2, (5, 2, 2))]);
    let found = blind(inside).found(30);
    assert_eq!(found.iter().map(|one| one.class).collect::<Vec<_>>(), [Class::Undecided], "{found:#?}");
    // One that tells of kernels waits for one that has not called; who has called and tells nothing is not blamed.
    let mut mixed =
        World::of(3).collective(1, Func::AllReduce, &[(0, (9, 9, 8)), (1, (9, 2, 2)), (2, (8, 2, 2))]);
    mixed.ranks[1].kernels = false;
    mixed.ranks[2].kernels = false;
    let found = mixed.found(20);
    let named: Vec<u32> = found.iter().flat_map(|one| &one.suspects).map(|who| who.pid).collect();
    assert_eq!(named, [1002], "{found:#?}");
}

#[test]
fn one_rank_that_records_and_one_that_does_not_are_taken_as_what_they_tell() {
    // One blind among those that record, and one that records among the blind.
    let seeing = 21;
    let all_but_one: Vec<Event> =
        (0..64).filter(|rank| *rank != seeing).map(|rank| Event::BlindRank { rank }).collect();
    for events in [vec![Event::BlindRank { rank: seeing }], all_but_one] {
        let start = begun(&events, 24_000);
        for rank in (0..Shape::SMALL.ranks()).step_by(RANKS) {
            let at_ms = start.now_ms + 700;
            let watch = after(&start, 20_000, Event::HostHang { rank, at_ms, until_ms: None });
            let found_ms = watch.names(Class::NonCommunicationHang, &[rank]);
            assert!(found_ms - at_ms <= NAMED_MS, "{rank}: after {} ms", found_ms - at_ms);
        }
    }
}

#[test]
fn what_hangs_unseen_names_nobody_who_is_well() {
    for part in PARTS {
        let start = begun(&[part], 33_000);
        for rank in (0..Shape::SMALL.ranks()).step_by(5 * RANKS) {
            let at_ms = start.now_ms + 700;
            for event in [Event::GpuHang { rank, at_ms }, Event::StuckLink { rank, at_ms }] {
                let watch = after(&start, 30_000, event);
                for (_, finding) in watch.confirmed() {
                    let mut named = finding.suspects.iter().map(|who| who.pid as usize - 100_000);
                    let next = (rank + 16) % 64;
                    assert!(named.all(|one| one == rank || one == next), "{part:?} {event:?}: {finding:#?}");
                }
            }
        }
    }
}

#[test]
fn what_only_looks_like_a_fault_is_none_while_kernels_come_and_go() {
    let pause = |io, gpu| Event::AllPause { at_ms: 40_000, for_ms: 50_000, io, gpu };
    let works = |rank, io, gpu| Event::OneWorks { rank, at_ms: 40_000, for_ms: 50_000, io, gpu };
    let alike = [
        vec![],
        vec![pause(true, false)],
        vec![pause(false, true)],
        vec![works(0, true, false)],
        vec![works(37, false, true)],
        vec![Event::JobEnds { at_ms: 50_000 }],
    ];
    for part in PARTS {
        for events in &alike {
            let mut plan = Plan::new(Shape::SMALL, 5);
            plan.events.push(part);
            plan.events.extend(events);
            let mut watch = Watch::new(plan);
            watch.until(150_000);
            assert!(watch.said.is_empty(), "{part:?} {events:?}: {:#?}", watch.said);
        }
    }
}

/// Windows as the agent orders them, of a few hundred operations each: the fewest that it ever has in one.
const SAMPLED: Event = Event::Windows { on_ms: 1_000, of_ms: 5_000 };

/// A job with steps of some 50 ms, which the agent would tell of in windows.
fn fast(events: &[Event], clean_ms: u64) -> Watch {
    let mut plan = Plan::new(Shape::SMALL, 11);
    plan.compute_ms = 4.0;
    plan.events.extend(events);
    let mut watch = Watch::new(plan);
    watch.until(clean_ms);
    assert!(watch.said.is_empty(), "{:#?}", watch.said);
    watch
}

#[test]
fn a_rank_that_lags_is_named_from_windows() {
    let parts = [
        (fast(&[], 30_000), "all the time"),
        (fast(&[SAMPLED], 30_000), "1 s of 5 s"),
        (begun(&[PARTS[0]], 60_000), "1 s of 10 s, few operations"),
    ];
    for (start, name) in parts {
        let mut longest_ms = 0;
        for rank in (0..Shape::SMALL.ranks()).step_by(7 * RANKS) {
            let at_ms = start.now_ms + 700;
            let watch = after(&start, 70_000, Event::Slow { rank, at_ms, factor: 1.8 });
            longest_ms = longest_ms.max(watch.names(Class::Straggler, &[rank]) - at_ms);
        }
        println!("{name}: a straggler is named within {longest_ms} ms");
        assert!(longest_ms <= 60_000, "{name}: {longest_ms}");
    }
}

#[test]
fn a_slow_connection_is_named_from_windows() {
    for (events, name) in [(&[][..], "all the time"), (&[SAMPLED], "1 s of 5 s")] {
        let start = fast(events, 40_000);
        let mut longest_ms = 0;
        for rank in (0..Shape::SMALL.ranks()).step_by(7 * RANKS) {
            let at_ms = start.now_ms + 700;
            let event = Event::SlowLink { rank, at_ms, until_ms: None, factor: 60.0 };
            let watch = after(&start, 60_000, event);
            let confirmed = watch.confirmed();
            assert!(!confirmed.is_empty(), "{name} {rank}");
            assert!(confirmed.iter().all(|(_, one)| one.class == Class::CommunicationSlow), "{confirmed:#?}");
            longest_ms = longest_ms.max(confirmed[0].0 - at_ms);
        }
        println!("{name}: a slow connection is named within {longest_ms} ms");
    }
}
