//! Rings as a rank leaves them, and as a hostile one might, held against the rules' own check of a digest.

use std::cell::RefCell;
use std::io;
use std::time::Duration;

use diag::c4d::digest::{Digest, Process, ProcessState, Rank};
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
        let op = Op { communicator: 0, generation: 1, function, sequence: index, peer: -1 };
        let (gpu_start_ns, gpu_stop_ns) = gpu;
        let record =
            Record::Done { op, time_ns: 1, bytes: 4096, gpu_start_ns, gpu_stop_ns, wait_us: 1, run_us: 1 };
        let mut words = record.encode();
        words[0] = index + 1;
        self.put(RECORDS_AT + index % CAPACITY * RECORD_BYTES as u64, &words);
        self.put(64, &[index + 1]);
    }
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
