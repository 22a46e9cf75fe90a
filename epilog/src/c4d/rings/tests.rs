//! Rings as a rank leaves them, and as a hostile one might, held against the rules' own check of a digest.

use std::cell::RefCell;
use std::io;
use std::time::Duration;

use diag::c4d::digest::{Digest, Process, ProcessState, Rank, StepState, StepWait};
use nccl_profiler::ring::{CAPACITY, COMMUNICATORS_AT, FILE_BYTES, Header, Op, RECORD_BYTES, RECORDS_AT};

use super::*;

/// A ring's file in memory.
struct Memory(RefCell<Vec<u8>>);

impl Source for Memory {
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        let bytes = self.0.borrow();
        let from = (offset as usize).min(bytes.len());
        let read = into.len().min(bytes.len() - from);
        into[..read].copy_from_slice(&bytes[from..from + read]);
        Ok(read)
    }
}

impl Memory {
    fn new() -> Self {
        let memory = Self(RefCell::new(vec![0; FILE_BYTES as usize]));
        let counters = [0; nccl_profiler::ring::COUNTERS];
        let header = Header {
            pid: 1,
            nccl_version: 22_809,
            api: 5,
            created_ns: 1,
            mask: 1 << 6,
            written: 0,
            counters,
        };
        memory.put(0, &header.encode());
        memory
    }

    fn put(&self, at: u64, words: &[u64]) {
        let mut bytes = self.0.borrow_mut();
        for (place, word) in words.iter().enumerate() {
            let at = at as usize + place * 8;
            bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
    }

    /// State (2 lives, 3 has ended), id, ranks, nodes, rank.
    fn communicator(&self, slot: u64, state: u64, id: u64, (ranks, nodes, rank): (u64, u64, u64)) {
        self.put(
            COMMUNICATORS_AT + slot * 1024,
            &[state | 1 << 2, id, ranks | nodes << 32, rank, 1, 0, 0, 0],
        );
    }

    fn progress(&self, slot: u64, function: Function, numbers: [u64; 3], running: u64) {
        let [enqueued, started, finished] = numbers;
        let at = COMMUNICATORS_AT + slot * 1024 + 16 * 8 + function as u64 * 64;
        self.put(at, &[enqueued, started, finished, 0, 0, 0, 4096, running]);
    }

    fn done(&self, index: u64, function: Function, gpu: (u64, u64)) {
        self.record(index, &done(op(function, index, -1), gpu));
    }

    /// The next records.
    fn tell(&self, records: &[Record]) {
        let written = u64::from_le_bytes(self.0.borrow()[64..72].try_into().unwrap());
        (written..).zip(records).for_each(|(index, record)| self.record(index, record));
    }

    fn mask(&self, mask: u64) {
        self.put(56, &[mask]);
    }

    fn record(&self, index: u64, record: &Record) {
        let mut words = record.encode();
        words[0] = index + 1;
        self.put(RECORDS_AT + index % CAPACITY * RECORD_BYTES as u64, &words);
        self.put(64, &[index + 1]);
    }
}

fn op(function: Function, sequence: u64, peer: i32) -> Op {
    Op { communicator: 0, generation: 1, function, sequence, peer }
}

fn enqueued(op: Op) -> Record {
    Record::Enqueued { op, time_ns: 1, bytes: 1000, channels: 1 }
}

fn started(op: Op) -> Record {
    Record::Started { op, time_ns: 1, bytes: 1000, gpu_start_ns: 1 }
}

fn done(op: Op, (gpu_start_ns, gpu_stop_ns): (u64, u64)) -> Record {
    let run_us = (gpu_stop_ns.saturating_sub(gpu_start_ns) / 1000) as u32;
    Record::Done { op, time_ns: 1, bytes: 4096, gpu_start_ns, gpu_stop_ns, wait_us: 1, run_us }
}

fn digest(look: Look) -> Digest {
    let process = Process { state: ProcessState::Running, wchan: String::new(), io_bytes: None };
    let Look { comms, telemetry, kernels } = look;
    let rank = Rank { pid: 7, task: None, gpu: None, process, telemetry, kernels, comms };
    Digest { node: 0, number: 0, ending: false, ranks: vec![rank] }
}

#[test]
fn ages_count_from_the_last_change_by_the_reader_s_own_clock() {
    let memory = Memory::new();
    memory.communicator(0, 2, 0xab, (4, 2, 3));
    memory.progress(0, Function::AllReduce, [5, 5, 4], 1);
    memory.progress(0, Function::Send, [9, 9, 9], 0);
    let mut ring = Ring::open(memory).unwrap();
    let begun = Instant::now();
    ring.look(begun);
    ring.reader.source().progress(0, Function::AllReduce, [6, 5, 4], 1);
    ring.look(begun + Duration::from_secs(2));
    let look = ring.look(begun + Duration::from_secs(5));
    assert_eq!((&look.telemetry, look.kernels, look.comms.len()), (&Telemetry::Ok, true, 1));
    let comm = &look.comms[0];
    assert_eq!((comm.id, comm.rank, comm.nranks, comm.nnodes, comm.age_ms), (0xab, 3, 4, 2, 5000));
    let [only] = comm.collectives.as_slice() else { panic!("{comm:?}") };
    let Progress { enqueued, started, finished, enqueued_age_ms, started_age_ms, finished_age_ms, bytes } =
        only.progress;
    assert_eq!((only.func, enqueued, started, finished, bytes), (Func::AllReduce, 6, 5, 4, 4096));
    assert_eq!((enqueued_age_ms, started_age_ms, finished_age_ms), (3000, 5000, 5000));
    digest(look).check().unwrap();
    // Nothing runs any more: the end was lost, and is no hang.
    ring.reader.source().progress(0, Function::AllReduce, [6, 6, 4], 0);
    let look = ring.look(begun + Duration::from_secs(6));
    assert!(!look.comms[0].collectives[0].progress.is_open());
}

#[test]
fn ranks_sample_the_same_operations_and_lost_records_are_said() {
    let memory = Memory::new();
    memory.communicator(0, 2, 0xab, (4, 2, 3));
    memory.progress(0, Function::AllReduce, [64, 64, 64], 0);
    (0..64).for_each(|index| memory.done(index, Function::AllReduce, (1000, 51_000)));
    let mut ring = Ring::open(memory).unwrap();
    let look = ring.look(Instant::now());
    let samples = &look.comms[0].samples;
    assert_eq!(samples.iter().map(|one| one.seq).collect::<Vec<_>>(), [0, 8, 16, 24, 32, 40, 48, 56]);
    assert!(samples.iter().all(|one| one.kernel_us == 50 && one.bytes == 4096));
    assert_eq!(look.telemetry, Telemetry::Ok);
    // Times that can't be are no samples.
    ring.reader.source().done(64, Function::AllReduce, (9000, 1000));
    ring.reader.source().done(65, Function::AllReduce, (0, 1000));
    assert!(ring.look(Instant::now()).comms[0].samples.is_empty());
    // A whole round and one more: the first of it is gone.
    for index in 66..67 + CAPACITY {
        ring.reader.source().done(index, Function::AllReduce, (1000, 2000));
    }
    let look = ring.look(Instant::now());
    assert_eq!(look.telemetry, Telemetry::Lost { records: 1 });
    digest(look).check().unwrap();
}

#[test]
fn a_communicator_that_ended_is_told_once_and_what_can_t_be_is_left_out() {
    let memory = Memory::new();
    memory.communicator(0, 3, 0xab, (4, 2, 3));
    memory.communicator(1, 2, 0xcd, (4, 2, 4));
    memory.communicator(2, 2, 0, (4, 2, 0));
    memory.communicator(3, 2, 0xef, (2, 3, 0));
    memory.communicator(4, 2, 0xfe, (1 << 31, 1, 0));
    memory.communicator(5, 2, 0xaa, (2, 1, 0));
    memory.communicator(6, 2, 0xaa, (2, 1, 1));
    memory.progress(5, Function::Broadcast, [1, u64::MAX, 7], 1);
    let mut ring = Ring::open(memory).unwrap();
    let look = ring.look(Instant::now());
    assert_eq!(
        look.comms.iter().map(|comm| (comm.id, comm.ended)).collect::<Vec<_>>(),
        [(0xab, true), (0xaa, false)]
    );
    digest(look).check().unwrap();
    let ids: Vec<u64> = ring.look(Instant::now()).comms.iter().map(|comm| comm.id).collect();
    assert_eq!(ids, [0xaa]);
    // Counted back, and no ring at all.
    ring.reader.source().done(0, Function::AllReduce, (1, 2));
    ring.look(Instant::now());
    ring.reader.source().put(64, &[0]);
    assert!(matches!(ring.look(Instant::now()).telemetry, Telemetry::Unavailable { .. }));
    let nothing = Memory::new();
    nothing.put(0, &[0]);
    assert!(Ring::open(nothing).is_err());
}

/// Peer, whether it is sent to, enqueued, started, finished, time in µs.
fn peers(look: &Look) -> Vec<(u32, bool, u64, u64, u64, u32)> {
    let of = |one: &diag::c4d::digest::P2p| {
        let Progress { enqueued, started, finished, .. } = one.progress;
        (one.peer, one.send, enqueued, started, finished, one.kernel_us)
    };
    look.comms[0].p2p.iter().map(of).collect()
}

#[test]
fn sends_and_receives_are_counted_by_peer() {
    let memory = Memory::new();
    memory.communicator(0, 2, 0xab, (4, 2, 3));
    let send = |sequence, peer| op(Function::Send, sequence, peer);
    let receive = |sequence, peer| op(Function::Recv, sequence, peer);
    memory.progress(0, Function::Send, [3, 3, 1], 1);
    memory.progress(0, Function::Recv, [1, 1, 1], 0);
    memory.tell(&[
        enqueued(send(0, 1)),
        enqueued(send(1, 2)),
        enqueued(receive(0, 2)),
        started(send(0, 1)),
        started(send(1, 2)),
        started(receive(0, 2)),
        done(send(0, 1), (1000, 41_000)),
        enqueued(send(2, 1)),
        started(send(2, 1)),
        done(send(2, 1), (1000, 21_000)),
        // A direction that nobody told, a peer that is none, and numbers that go back.
        enqueued(op(Function::SendRecv, 0, 1)),
        enqueued(send(3, 4)),
        enqueued(send(1, 1)),
    ]);
    let mut ring = Ring::open(memory).unwrap();
    let begun = Instant::now();
    let look = ring.look(begun);
    // The end of the receive was lost: nothing runs.
    assert_eq!(peers(&look), [(2, true, 1, 1, 0, 0), (1, true, 2, 2, 2, 60), (2, false, 1, 1, 1, 0)]);
    assert_eq!(look.comms[0].p2p[1].progress.bytes, 2000);
    assert_eq!(look.telemetry, Telemetry::Lost { records: 2 });
    digest(look).check().unwrap();
    ring.reader.source().progress(0, Function::Send, [3, 3, 3], 0);
    ring.reader.source().tell(&[done(send(1, 2), (1000, 3000))]);
    let look = ring.look(begun + Duration::from_secs(3));
    assert_eq!(peers(&look)[0], (2, true, 1, 1, 1, 2));
    assert_eq!(look.comms[0].p2p[0].progress.finished_age_ms, 0);
    assert_eq!(look.comms[0].p2p[0].progress.started_age_ms, 3000);
}

#[test]
fn more_peers_and_operations_than_are_followed_cost_no_more() {
    let memory = Memory::new();
    memory.communicator(0, 2, 0xab, (4096, 512, 3));
    memory.progress(0, Function::Send, [12_000, 0, 0], 0);
    let all: Vec<Record> =
        (0..12_000).map(|sequence| enqueued(op(Function::Send, sequence, sequence as i32 % 1500))).collect();
    memory.tell(&all);
    let mut ring = Ring::open(memory).unwrap();
    let look = ring.look(Instant::now());
    assert_eq!((look.comms[0].p2p.len(), &look.telemetry), (16, &Telemetry::Ok));
    let of = ring.seen.values().map(|seen| &seen.peers);
    assert_eq!(format!("{:?}", Room::of(of)), "Room { ends: 0, in_flight: 0 }");
    digest(look).check().unwrap();
}

#[test]
fn what_began_and_ended_while_nobody_told_of_it_is_not_open_and_not_missing() {
    let memory = Memory::new();
    memory.communicator(0, 2, 0xab, (4, 2, 3));
    memory.progress(0, Function::AllReduce, [5, 5, 5], 0);
    memory.progress(0, Function::Send, [2, 2, 2], 0);
    let send = |sequence| op(Function::Send, sequence, 1);
    let two = [0, 1].map(send);
    memory.tell(&two.map(enqueued));
    memory.tell(&two.map(started));
    memory.tell(&two.map(|one| done(one, (1000, 11_000))));
    let mut ring = Ring::open(memory).unwrap();
    let begun = Instant::now();
    let far = |look: &Look| {
        let Progress { enqueued, started, finished, .. } = look.comms[0].collectives[0].progress;
        (enqueued, started, finished)
    };
    let look = ring.look(begun);
    assert_eq!((look.kernels, far(&look), peers(&look)[0]), (true, (5, 5, 5), (1, true, 2, 2, 2, 20)));
    // Kernels are off: only what is enqueued moves.
    let memory = ring.reader.source();
    memory.mask(6);
    memory.progress(0, Function::AllReduce, [90, 5, 5], 0);
    memory.tell(&[enqueued(send(2)), enqueued(send(3)), enqueued(send(4))]);
    let look = ring.look(begun);
    assert_eq!((look.kernels, far(&look), peers(&look)[0]), (false, (90, 5, 5), (1, true, 5, 2, 2, 0)));
    // They are on again: what was enqueued before is not known to be over, and nothing is told to be known.
    ring.reader.source().mask(70);
    ring.reader.source().progress(0, Function::AllReduce, [92, 5, 5], 0);
    let look = ring.look(begun);
    assert_eq!((look.kernels, far(&look)), (true, (92, 92, 92)), "nothing came since");
    ring.reader.source().progress(0, Function::AllReduce, [93, 5, 5], 0);
    assert!(!ring.look(begun).kernels);
    // One in between that was told: those before it have ended, and it is the one that is open.
    ring.reader.source().progress(0, Function::AllReduce, [93, 91, 90], 1);
    let look = ring.look(begun);
    assert_eq!((look.kernels, far(&look)), (false, (93, 91, 90)));
    ring.reader.source().progress(0, Function::AllReduce, [93, 93, 91], 1);
    let look = ring.look(begun);
    assert_eq!((look.kernels, far(&look)), (true, (93, 93, 91)));
    // Of the sends nothing came since, so that they are no reason to know less.
    assert_eq!(peers(&look)[0], (1, true, 5, 5, 5, 0));
    ring.reader.source().tell(&[enqueued(send(5)), started(send(5)), done(send(5), (1000, 11_000))]);
    let look = ring.look(begun);
    assert_eq!((look.kernels, peers(&look)[0]), (true, (1, true, 6, 6, 6, 10)));
    digest(look).check().unwrap();
}

#[test]
fn sends_that_were_told_stand_for_those_that_were_not() {
    let memory = Memory::new();
    memory.communicator(0, 2, 0xab, (4, 2, 3));
    memory.mask(6);
    let send = |sequence| op(Function::Send, sequence, 1);
    let all: Vec<Record> = (0..90).map(|sequence| enqueued(send(sequence))).collect();
    memory.tell(&all);
    let mut ring = Ring::open(memory).unwrap();
    assert_eq!(peers(&ring.look(Instant::now())), [(1, true, 90, 0, 0, 0)]);
    let told: Vec<Record> = (90..100)
        .flat_map(|at| [enqueued(send(at)), started(send(at)), done(send(at), (1000, 51_000))])
        .collect();
    ring.reader.source().tell(&told);
    assert_eq!(peers(&ring.look(Instant::now())), [(1, true, 100, 100, 100, 100 * 50)]);
}

#[test]
fn waits_of_steps_are_summed_and_what_is_open_longest_is_said() {
    let memory = Memory::new();
    memory.communicator(0, 2, 0xab, (4, 2, 3));
    memory.progress(0, Function::AllReduce, [5, 5, 4], 1);
    let steps = |send, [first_ns, second_ns, third_ns]: [u64; 3]| Record::Steps {
        steps: nccl_profiler::ring::Steps {
            op: op(Function::AllReduce, 4, 2),
            channel: 1,
            send,
            count: 8,
            kib: 64,
            first_ns,
            second_ns,
            third_ns,
        },
        time_ns: 1,
    };
    memory.tell(&[
        steps(true, [1000, 2000, 3_000_000]),
        steps(true, [1000, 2000, 1_000_000]),
        steps(false, [7000, 2000, 1000]),
    ]);
    memory.mask(70 | 24);
    // Two transfers in flight on channel 1 to rank 2, and one to a rank that is none.
    let live = |slot: u64, peer: u64, state: u64, since_ns: u64| {
        let head = 1 << 24 | 1 << 16 | 1 << 8 | state;
        let what = (Function::AllReduce as u64) << 8 | 1 << 16 | peer << 32;
        memory.put(nccl_profiler::ring::LIVE_STEPS_AT + slot * 64, &[head, since_ns, what, 4, 0, 0, 0, 0]);
    };
    live(0, 2, 20, 900);
    live(1, 2, 9, 300);
    live(2, 9, 9, 100);
    let mut ring = Ring::open(memory).unwrap();
    let look = ring.look(Instant::now());
    let wait = |send, steps, gpu_us, credit_us, wire_us, open| StepWait {
        peer: 2,
        channel: 1,
        send,
        steps,
        gpu_us,
        credit_us,
        wire_us,
        open,
    };
    assert_eq!(
        look.comms[0].steps,
        [wait(true, 16, 2, 4, 4000, Some(StepState::Wire)), wait(false, 8, 3, 0, 7, None)]
    );
    digest(look).check().unwrap();
    // The next window has sums of its own, and without the order nothing is looked for.
    ring.reader.source().mask(70);
    assert_eq!(ring.look(Instant::now()).comms[0].steps, []);
}

// What NCCL 2.28.9 told of a graph's replays beside which the program made an all-reduce of the same communicator.
#[test]
fn kernels_that_would_have_run_before_they_were_called_are_not_believed() {
    let memory = Memory::new();
    memory.communicator(0, 2, 0xab, (2, 2, 0));
    memory.progress(0, Function::AllReduce, [1, 1, 1], 0);
    memory.done(0, Function::AllReduce, (1000, 51_000));
    let mut ring = Ring::open(memory).unwrap();
    let begun = Instant::now();
    let look = ring.look(begun);
    assert_eq!((look.kernels, look.comms[0].samples.len()), (true, 1));
    // 72 ms on the GPU, in 1 ms of the host's.
    let replays = |ring: &mut Ring<Memory>, from: u64| {
        let told = (from..from + 2).map(|at| Record::Done {
            op: op(Function::AllReduce, at, -1),
            time_ns: 1,
            bytes: 4096,
            gpu_start_ns: 1_000,
            gpu_stop_ns: 72_592_000,
            wait_us: 900,
            run_us: 100,
        });
        ring.reader.source().tell(&told.collect::<Vec<_>>());
        let made = from + 2;
        ring.reader.source().progress(0, Function::AllReduce, [made, made, made], 0);
        ring.look(begun)
    };
    let far = |look: &Look| {
        let Progress { enqueued, started, finished, .. } = look.comms[0].collectives[0].progress;
        (enqueued, started, finished)
    };
    // Twice may be a clock that was set.
    let look = replays(&mut ring, 1);
    assert_eq!((look.kernels, far(&look), look.comms[0].samples.len()), (true, (3, 3, 3), 0));
    let look = replays(&mut ring, 3);
    assert_eq!((look.kernels, far(&look), look.comms[0].samples.len()), (false, (5, 3, 3), 0));
    assert_eq!(look.telemetry, Telemetry::Ok);
    digest(look).check().unwrap();
    // Nor for ever: what was wrong once is a small part of what comes later.
    let told: Vec<Record> = (5..25).map(|at| done(op(Function::AllReduce, at, -1), (1000, 51_000))).collect();
    ring.reader.source().tell(&told);
    ring.reader.source().progress(0, Function::AllReduce, [25, 25, 25], 0);
    assert!(ring.look(begun).kernels);
}
