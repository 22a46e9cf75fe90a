//! What users' processes may say: memory stays within its bounds, nothing panics, nobody speaks for another.

use diag::c4d::digest::{
    Collective, Comm, Digest, Func, MAX_COMMS, MAX_P2P, MAX_RANKS, MAX_SAMPLES, MAX_STEPS, P2p, ProcessState,
    Rank, Sample, StepWait, Telemetry,
};
use diag::c4d::picture::{BYTES_BESIDE, BYTES_PER_RANK, Picture};
use diag::c4d::settings::Settings;
use diag::c4d::step;
use proptest::prelude::*;

use crate::shapes::{IN, OUT, World, comm, pids, progress, rank, settings};

/// The largest digest that the check lets pass, different for each node and window.
fn fullest(node: u32, number: u64, same_comms: bool) -> Digest {
    let member = |pid: u32, index: u64| {
        let id = if same_comms { index } else { index + 1000 * u64::from(pid / 2) + 1_000_000 * number };
        let mut one = comm(id, node * MAX_RANKS as u32 + pid, 65_536, 2);
        let far = (number + 1, number + 1, number);
        one.age_ms = 1000;
        one.collectives = Func::ALL.map(|func| Collective { func, progress: progress(far, 0) }).into();
        one.p2p = (0..MAX_P2P as u32)
            .map(|peer| P2p {
                peer: peer + number as u32,
                send: true,
                kernel_us: 1,
                progress: progress(far, 0),
            })
            .collect();
        one.samples = (0..MAX_SAMPLES as u64)
            .map(|at| Sample { func: Func::AllReduce, seq: 8 * number + at, bytes: at, kernel_us: 5 })
            .collect();
        let wait = |peer: u32| StepWait {
            peer,
            channel: 0,
            send: true,
            steps: 9,
            gpu_us: 0,
            credit_us: 0,
            wire_us: 0,
            open: None,
        };
        one.steps = (0..MAX_STEPS as u32).map(wait).collect();
        one
    };
    let full = |pid: u32| Rank {
        comms: (0..MAX_COMMS as u64).map(|index| member(pid, index)).collect(),
        ..rank(pid)
    };
    Digest { node, number, ending: false, ranks: (0..MAX_RANKS as u32).map(full).collect() }
}

#[test]
fn memory_stays_within_what_is_stated() {
    for same_comms in [true, false] {
        let mut picture = Picture::new(vec!["n0".into(), "n1".into()]);
        let mut largest = 0;
        for number in 0..6 {
            let digests = [fullest(0, number, same_comms), fullest(1, number, same_comms)];
            digests.iter().for_each(|digest| digest.check().unwrap());
            step(&mut picture, &digests, 10_000 + number * 4000, &Settings::default());
            largest = largest.max(picture.bytes());
        }
        let bound = 2 * MAX_RANKS * BYTES_PER_RANK + BYTES_BESIDE;
        assert!(largest <= bound, "{largest} of {bound} bytes");
        let a_rank = largest / (2 * MAX_RANKS);
        assert!(a_rank > BYTES_PER_RANK / 2, "{a_rank} bytes a rank: the bound says nothing");
    }
}

#[test]
fn processes_that_come_and_go_do_not_pile_up() {
    let mut picture = Picture::new(vec!["n0".into()]);
    let mut sizes = Vec::new();
    for number in 0..300_u32 {
        let mut ranks: Vec<Rank> = (0..MAX_RANKS as u32).map(|pid| rank(number * 1000 + pid)).collect();
        for (at, rank) in ranks.iter_mut().enumerate() {
            rank.comms.push(comm(u64::from(number), at as u32, MAX_RANKS as u32, 1));
        }
        let digest = Digest { node: 0, number: u64::from(number), ending: false, ranks };
        step(&mut picture, &[digest], u64::from(number) * 1000, &Settings::default());
        sizes.push(picture.bytes());
    }
    assert!(sizes[299] <= sizes[10] * 2, "{} after 10, {} after 300", sizes[10], sizes[299]);
}

#[test]
fn a_repeated_digest_changes_nothing_and_a_new_agent_starts_again() {
    let mut picture = Picture::new(vec!["n0".into()]);
    let settings = settings();
    let mut told = |number: u64, pid: u32, now_ms: u64| {
        let digest = Digest { node: 0, number, ending: false, ranks: vec![rank(pid)] };
        step(&mut picture, &[digest], now_ms, &settings);
        picture.coverage(now_ms, 5_000).known
    };
    assert_eq!(told(5, 1, 1000), 1);
    assert_eq!(told(5, 2, 2000), 1, "the same number again");
    assert_eq!(told(4, 2, 3000), 1, "an older one");
    assert_eq!(told(0, 2, 4000), 2, "a new agent counts from 0");
}

#[test]
fn a_process_that_claims_the_rank_of_another_one_is_left_out() {
    let mut world = World::of(4).collective(7, Func::AllReduce, &[(0, IN), (1, IN), (2, OUT)]);
    // It says that it is rank 2 and inside, as if nobody were missing; another one says that there are 9 ranks.
    let mut liar = comm(7, 2, 3, 3);
    liar.collectives.push(Collective { func: Func::AllReduce, progress: progress(IN, 0) });
    world.ranks[3].comms.push(liar.clone());
    let found = world.found(20);
    assert_eq!((found.len(), pids(&found[0])), (1, vec![2]), "{found:#?}");
    world.ranks[3].comms[0] = Comm { nranks: 9, rank: 5, ..liar };
    let found = world.found(20);
    assert_eq!((found.len(), pids(&found[0])), (1, vec![2]), "{found:#?}");
    assert_eq!(found[0].compared, (3, 3));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Processes, communicators and ranks that come, go and contradict each other leave a picture that holds together.
    #[test]
    fn no_coming_and_going_upsets_the_picture(
        told in proptest::collection::vec((0u32..3, 0u64..3, 0u32..4, 1u32..5, 0u64..20_000, 0u8..12), 300),
    ) {
        let mut picture = Picture::new((0..3).map(|at| format!("n{at}")).collect());
        for (at, window) in told.chunks(6).enumerate() {
            let mut digests = Vec::new();
            for (node, (pid, id, place, nranks, age_ms, odd)) in window.iter().enumerate() {
                let mut one = rank(*pid);
                for id in [*id, id + 1] {
                    let mut told = comm(id, place % nranks, *nranks, 1);
                    (told.age_ms, told.ended) = (*age_ms, *odd == 0);
                    let far = (at as u64 / 3 + 1, at as u64 / 3 + 1, at as u64 / 3);
                    told.collectives.push(Collective { func: Func::AllReduce, progress: progress(far, *age_ms) });
                    told.samples.push(Sample { func: Func::AllReduce, seq: at as u64, bytes: 1, kernel_us: *pid });
                    one.comms.push(told);
                }
                one.process.state = if *odd == 1 { ProcessState::Gone } else { ProcessState::Running };
                if *odd == 2 {
                    one.telemetry = Telemetry::Unavailable { why: String::new() };
                }
                let number = if *odd == 3 { 0 } else { at as u64 };
                digests.push(Digest { node: node as u32 % 3, number, ending: false, ranks: vec![one] });
            }
            step(&mut picture, &digests, at as u64 * 7_000, &Settings::default());
            let coverage = picture.coverage(at as u64 * 7_000, 5_000);
            prop_assert!(coverage.known <= 9 && coverage.unknown <= 13);
            prop_assert!(picture.bytes() < 1 << 20);
        }
    }

    /// Whatever a user's processes make of their numbers, nothing panics, and findings stay few and short.
    #[test]
    fn no_digest_upsets_the_rules(
        far in proptest::collection::vec((0u64..4, 0u64..4, 0u64..4, 0u64..30_000, any::<bool>()), 24),
        states in proptest::collection::vec(0usize..6, 6),
        times in proptest::collection::vec(0u32..u32::MAX, 24),
    ) {
        let all = [
            ProcessState::Running, ProcessState::Sleeping, ProcessState::Blocked, ProcessState::Stopped,
            ProcessState::Zombie, ProcessState::Gone,
        ];
        let mut picture = Picture::new((0..6).map(|at| format!("n{at}")).collect());
        for second in 0..40_u64 {
            let mut digests = Vec::new();
            for node in 0..6_usize {
                let mut one = rank(1);
                one.process.state = all[states[node]];
                one.kernels = times[node] % 5 > 0;
                for at in 0..4 {
                    let (a, b, c, age, odd) = far[node * 4 + at];
                    let mut counts = [a, b, c];
                    counts.sort_unstable();
                    let moving = if odd { second / 8 } else { 0 };
                    let far = (counts[2] + moving, counts[1] + moving, counts[0] + moving);
                    let mut comm = comm(at as u64 % 3, node as u32, 6, 6);
                    comm.age_ms = age;
                    comm.collectives.push(Collective { func: Func::ALL[at], progress: progress(far, age) });
                    let peer = (node as u32 + at as u32) % 6;
                    comm.p2p.push(P2p { peer, send: odd, kernel_us: times[at], progress: progress(far, age) });
                    let kernel_us = times[(node * 4 + at + second as usize) % 24];
                    comm.samples.push(Sample { func: Func::AllReduce, seq: second, bytes: 8, kernel_us });
                    if at < 3 {
                        one.comms.push(comm);
                    }
                }
                digests.push(Digest { node: node as u32, number: second, ending: false, ranks: vec![one] });
            }
            let changes = step(&mut picture, &digests, second * 1000, &settings());
            prop_assert!(changes.len() <= 64);
            for one in &changes {
                prop_assert!((0.0..=1.0).contains(&one.confidence));
                prop_assert!(one.message.len() < 4_000 && !one.message.contains('\n'));
                prop_assert!(one.since_ms <= second * 1000);
            }
        }
    }
}
