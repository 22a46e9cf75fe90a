//! Small pictures by hand: who is inside of what, and what follows. Each is told twice a window apart and more.

use std::collections::BTreeSet;

use diag::c4d::digest::{
    Collective, Comm, Digest, Func, Gpu, P2p, Process, ProcessState, Progress, Rank, StepState, StepWait,
    Telemetry,
};
use diag::c4d::finding::{Class, Finding, State};
use diag::c4d::matrix::Delay;
use diag::c4d::picture::Picture;
use diag::c4d::settings::Settings;
use diag::c4d::step;
use diag::measurement::Subject;

/// How far a rank is: called, begun, ended.
pub type Far = (u64, u64, u64);

pub fn progress(far: Far, age_ms: u64) -> Progress {
    Progress {
        enqueued: far.0,
        started: far.1,
        finished: far.2,
        enqueued_age_ms: age_ms,
        started_age_ms: age_ms,
        finished_age_ms: age_ms,
        bytes: 1024,
    }
}

pub fn comm(id: u64, rank: u32, nranks: u32, nnodes: u32) -> Comm {
    Comm {
        id,
        name: String::new(),
        rank,
        nranks,
        nnodes,
        age_ms: 600_000,
        ended: false,
        collectives: Vec::new(),
        p2p: Vec::new(),
        samples: Vec::new(),
        steps: Vec::new(),
    }
}

pub fn rank(pid: u32) -> Rank {
    Rank {
        pid,
        task: None,
        gpu: Some(Gpu { index: 0, uuid: String::new(), busy_percent: Some(0) }),
        process: Process { state: ProcessState::Sleeping, wchan: String::new(), io_bytes: None },
        telemetry: Telemetry::Ok,
        kernels: true,
        comms: Vec::new(),
    }
}

/// A job of one rank a node; its communicators are told alike in every window.
pub struct World {
    pub ranks: Vec<Rank>,
    silent: BTreeSet<usize>,
}

impl World {
    pub fn of(count: usize) -> Self {
        Self { ranks: (0..count).map(|at| rank(1000 + at as u32)).collect(), silent: BTreeSet::new() }
    }

    /// A communicator in which each of these ranks is so far with a function.
    pub fn collective(mut self, id: u64, func: Func, ranks: &[(usize, Far)]) -> Self {
        for (place, (at, far)) in ranks.iter().enumerate() {
            let comms = &mut self.ranks[*at].comms;
            if comms.iter().all(|comm| comm.id != id) {
                comms.push(comm(id, place as u32, ranks.len() as u32, ranks.len() as u32));
            }
            let comm = comms.iter_mut().find(|comm| comm.id == id).unwrap();
            comm.collectives.push(Collective { func, progress: progress(*far, 0) });
        }
        self
    }

    fn digests(&self, second: u64, still_ms: u64) -> Vec<Digest> {
        let mut digests = Vec::new();
        for (at, rank) in self.ranks.iter().enumerate().filter(|(at, _)| !self.silent.contains(at)) {
            let mut rank = rank.clone();
            for comm in &mut rank.comms {
                let all = comm.collectives.iter_mut().map(|one| &mut one.progress);
                for one in all.chain(comm.p2p.iter_mut().map(|one| &mut one.progress)) {
                    *one = Progress {
                        enqueued_age_ms: still_ms,
                        started_age_ms: still_ms,
                        finished_age_ms: still_ms,
                        ..*one
                    };
                }
            }
            digests.push(Digest { node: at as u32, number: second, ending: false, ranks: vec![rank] });
        }
        digests
    }

    /// Stands still for so many seconds; what is found.
    fn still(&self, seconds: u64) -> (Picture, Vec<Finding>) {
        let mut picture = Picture::new((0..self.ranks.len()).map(|at| format!("n{at}")).collect());
        let mut said = Vec::new();
        // What was long ago is not what stopped it: the communicators have a past of short gaps.
        for second in 1..=seconds {
            let digests = self.digests(second, second * 1000);
            said.extend(step(&mut picture, &digests, 1_000_000 + second * 1000, &settings()));
        }
        (picture, said)
    }

    pub fn found(&self, seconds: u64) -> Vec<Finding> {
        self.still(seconds).1
    }
}

/// The birth of a hand-made communicator is its longest gap; without that memory the floor holds.
pub fn settings() -> Settings {
    Settings { ceiling_ms: 10_000, ..Settings::default() }
}

pub fn pids(finding: &Finding) -> Vec<u32> {
    finding.suspects.iter().map(|who| who.pid - 1000).collect()
}

pub const IN: Far = (10, 10, 9);
pub const OUT: Far = (9, 9, 9);
const CALLED: Far = (10, 9, 9);

// O10: which ranks have not come.
#[test]
fn ranks_that_have_not_come_are_listed() {
    let world =
        World::of(5).collective(7, Func::AllReduce, &[(0, IN), (1, IN), (2, OUT), (3, IN), (4, CALLED)]);
    let found = world.found(20);
    let mut named: Vec<Vec<u32>> = found.iter().map(pids).collect();
    named.sort();
    assert_eq!(named, [vec![2], vec![4]]);
    let of = |rank: u32| found.iter().find(|one| pids(one) == [rank]).unwrap().evidence[0].clone();
    assert!(of(2).contains("its program has not called the operation"), "{}", of(2));
    assert!(of(4).contains("its program has called the operation, its GPU has not begun it"), "{}", of(4));
}

// O09: the few that are ahead and the many that lag are both named.
#[test]
fn a_minority_ahead_is_named_beside_the_majority_that_lags() {
    let ranks: Vec<(usize, Far)> =
        (0..12).map(|at| (at, if at == 3 || at == 8 { IN } else { OUT })).collect();
    let found = World::of(12).collective(7, Func::AllReduce, &ranks).found(20);
    assert_eq!(found.len(), 1, "{found:#?}");
    let finding = &found[0];
    assert_eq!((finding.class, &finding.subject), (Class::NonCommunicationHang, &Subject::Run));
    assert_eq!(finding.suspects_total, 10);
    assert!(finding.message.starts_with("10 ranks have not come to AllReduce 9"), "{}", finding.message);
    let both = "only 2 ranks have: rank 3 (n3, GPU 0, process 1003) and rank 8 (n8, GPU 0, process 1008)";
    assert!(finding.message.contains(both), "{}", finding.message);
    assert!(finding.confidence < 0.6);
}

#[test]
fn in_communicators_that_overlap_the_root_is_named_and_no_victim() {
    // 5 hangs. 4 waits for it in a pair, 3 for 4 in another one, 0 to 2 for 3 in one of four, all for 5 in the whole.
    let world = World::of(6)
        .collective(1, Func::AllReduce, &[(4, IN), (5, OUT)])
        .collective(2, Func::AllGather, &[(3, IN), (4, OUT)])
        .collective(3, Func::ReduceScatter, &[(0, IN), (1, IN), (2, IN), (3, OUT)]);
    let found = world.found(20);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!(pids(&found[0]), [5]);
    // A rank that is inside of an operation of its own keeps nothing from moving: idle communicators are no hang.
    let idle = World::of(4).collective(1, Func::AllReduce, &[(0, OUT), (1, OUT), (2, OUT), (3, OUT)]);
    assert!(idle.found(300).is_empty());
}

#[test]
fn a_send_that_nobody_receives() {
    let pair = |peer: u32, send: bool, far: Far| P2p { peer, send, kernel_us: 0, progress: progress(far, 0) };
    let job = |receiver: Far, lost: bool| {
        let mut world = World::of(2);
        if lost {
            world.ranks[1].telemetry = Telemetry::Lost { records: 3 };
        }
        for (at, peer) in [(0, pair(1, true, IN)), (1, pair(0, false, receiver))] {
            let mut one = comm(9, at as u32, 2, 2);
            one.p2p.push(peer);
            world.ranks[at].comms.push(one);
        }
        world.found(20)
    };
    let missing = job(OUT, false);
    assert_eq!((missing.len(), pids(&missing[0])), (1, vec![1]));
    assert!(missing[0].message.contains("send 9 from rank 0 to rank 1"), "{}", missing[0].message);
    let stuck = job(IN, false);
    assert_eq!(stuck.len(), 1);
    assert_eq!(
        (stuck[0].class, &stuck[0].subject),
        (Class::CommunicationHang, &Subject::Path { from: 0, to: 1 })
    );
    // The receiver's agent missed three of them: its count is no longer the sender's, that it is inside still counts.
    let stuck = job((7, 7, 6), true);
    assert_eq!(stuck.len(), 1);
    assert_eq!(
        (stuck[0].class, &stuck[0].subject),
        (Class::CommunicationHang, &Subject::Path { from: 0, to: 1 })
    );
    let missing = job((6, 6, 6), true);
    assert_eq!((missing.len(), pids(&missing[0])), (1, vec![1]));
    assert!(missing[0].confidence < 0.5, "{}", missing[0].confidence);
}

#[test]
fn in_an_all_to_all_of_sends_only_the_rank_that_did_not_come_is_named() {
    let mut world = World::of(4);
    for at in 0..4_u32 {
        let mut one = comm(9, at, 4, 4);
        let far = if at == 3 { OUT } else { IN };
        for peer in (0..4).filter(|peer| *peer != at) {
            for send in [true, false] {
                one.p2p.push(P2p { peer, send, kernel_us: 0, progress: progress(far, 0) });
            }
        }
        world.ranks[at as usize].comms.push(one);
    }
    let found = world.found(30);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!((found[0].class, pids(&found[0])), (Class::NonCommunicationHang, vec![3]));
}

#[test]
fn ranks_that_wait_for_each_other_are_a_circle() {
    let world = World::of(3).collective(1, Func::AllReduce, &[(0, IN), (1, OUT), (2, OUT)]).collective(
        1,
        Func::AllGather,
        &[(0, OUT), (1, IN), (2, IN)],
    );
    let found = world.found(20);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!((found[0].class, pids(&found[0])), (Class::Deadlock, vec![0, 1, 2]));
    assert!(found[0].message.contains("wait for each other"), "{}", found[0].message);
}

#[test]
fn where_a_stuck_transport_is_known_by_who_waits_for_the_network() {
    let all: Vec<(usize, Far)> = (0..4).map(|at| (at, IN)).collect();
    let mut world = World::of(4).collective(7, Func::AllReduce, &all);
    let stuck = |hot: &[(usize, usize)], world: &mut World| {
        for at in 0..4 {
            let step = |to: usize| StepWait {
                peer: to as u32,
                channel: 0,
                send: true,
                steps: 0,
                gpu_us: 0,
                credit_us: 0,
                wire_us: 0,
                open: Some(if hot.contains(&(at, to)) { StepState::Wire } else { StepState::Credit }),
            };
            world.ranks[at].comms[0].steps = (0..4).filter(|to| *to != at).map(step).collect();
        }
        let found = world.found(20);
        assert!(found.iter().all(|one| one.class == Class::CommunicationHang), "{found:#?}");
        found.last().unwrap().clone()
    };
    assert_eq!(stuck(&[(2, 3)], &mut world).subject, Subject::Path { from: 2, to: 3 });
    let sender = stuck(&[(2, 0), (2, 1), (2, 3)], &mut world);
    assert_eq!(sender.subject, Subject::Node { node: 2 });
    assert!(sender.message.contains("everything that n2 sends is stuck"), "{}", sender.message);
    let receiver = stuck(&[(0, 1), (2, 1), (3, 1)], &mut world);
    assert_eq!(receiver.subject, Subject::Node { node: 1 });
    assert!(receiver.message.contains("everything that n1 receives is stuck"), "{}", receiver.message);
    assert_eq!(stuck(&[], &mut world).subject, Subject::Fabric, "all wait, nobody for the network");
}

#[test]
fn the_worst_delays_are_shown_and_stay_when_nothing_is_told_any_more() {
    let all: Vec<(usize, Far)> = (0..4).map(|at| (at, IN)).collect();
    let mut world = World::of(4).collective(7, Func::AllReduce, &all);
    for at in 0..4 {
        let step = |to: usize| {
            let (steps, wire_us, open) = match (at, to) {
                (0, 1) => (0, 0, Some(StepState::Wire)),
                (2, 3) => (10, 9000, None),
                _ => (10, 100 + to as u64, None),
            };
            StepWait {
                peer: to as u32,
                channel: 0,
                send: true,
                steps,
                gpu_us: 0,
                credit_us: 0,
                wire_us,
                open,
            }
        };
        world.ranks[at].comms[0].steps = (0..4).filter(|to| *to != at).map(step).collect();
    }
    let (mut picture, _) = world.still(20);
    let shown = picture.delays().to_vec();
    let ends: Vec<(u32, u32, bool)> =
        shown.iter().take(2).map(|one| (one.from.node, one.to.node, one.open)).collect();
    assert_eq!(ends, [(0, 1, true), (2, 3, false)], "{shown:#?}");
    assert_eq!((shown.len(), shown[1].mean_us, shown[1].comm, shown[1].from.rank), (12, 900, 7, Some(2)));
    for rank in &mut world.ranks {
        rank.comms[0].steps.clear();
    }
    for second in 21..=60 {
        step(&mut picture, &world.digests(second, 0), 1_000_000 + second * 1000, &settings());
    }
    // The last window in which steps were told had a second less, or more.
    let of =
        |list: &[Delay]| list.iter().map(|one| (one.from.node, one.to.node, one.mean_us)).collect::<Vec<_>>();
    assert_eq!(of(picture.delays()), of(&shown));
}

#[test]
fn an_ended_communicator_is_no_hang() {
    let mut world = World::of(3).collective(7, Func::AllReduce, &[(0, IN), (1, IN), (2, OUT)]);
    world.ranks[2].comms[0].ended = true;
    assert!(world.found(60).is_empty());
}

// O06: what is old and not heard again is not held for ever.
#[test]
fn a_finding_of_which_nothing_is_heard_expires() {
    let mut world = World::of(3).collective(7, Func::AllReduce, &[(0, IN), (1, IN), (2, OUT)]);
    let (mut picture, said) = world.still(20);
    assert_eq!((said.len(), picture.standing().count()), (1, 1));
    world.silent = (0..3).collect();
    let mut later = Vec::new();
    for second in 21..=100 {
        later.extend(step(&mut picture, &world.digests(second, 0), 1_000_000 + second * 1000, &settings()));
    }
    assert_eq!(later.len(), 1, "{later:#?}");
    assert_eq!(later[0].state, State::Withdrawn { because: "nothing was heard of it for too long".into() });
    assert_eq!(picture.standing().count(), 0);
}

#[test]
fn what_is_not_seen_is_told_as_unknown() {
    let mut world = World::of(3).collective(7, Func::AllReduce, &[(0, OUT), (1, OUT), (2, OUT)]);
    world.ranks[1].telemetry = Telemetry::Unavailable { why: "a profiler of the user's own".into() };
    world.silent.insert(2);
    let (picture, _) = world.still(3);
    let coverage = picture.coverage(1_003_000, 5_000);
    assert_eq!((coverage.known, coverage.unknown), (1, 2), "{coverage:?}");
    let all = coverage.gaps.join("; ");
    assert!(all.contains("n2: nothing was heard of it"), "{all}");
    assert!(all.contains("n1: process 1001: no telemetry: a profiler of the user's own"), "{all}");
    let nothing = Picture::new(vec!["n0".into()]).coverage(0, 5_000);
    assert_eq!((nothing.known, nothing.unknown, nothing.gaps.len()), (0, 0, 1));
}

#[test]
fn a_digest_that_breaks_its_bounds_leaves_its_node_unknown() {
    let mut world = World::of(2).collective(7, Func::AllReduce, &[(0, OUT), (1, OUT)]);
    world.ranks[1].comms[0].nranks = 0;
    let (picture, _) = world.still(2);
    let coverage = picture.coverage(1_002_000, 5_000);
    assert!(
        coverage.gaps[0].starts_with("n1: its digest was refused: communicator 7"),
        "{:?}",
        coverage.gaps
    );
}
