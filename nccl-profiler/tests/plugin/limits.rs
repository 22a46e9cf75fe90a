//! More than the tables hold, and many threads at a time.

use std::sync::atomic::{AtomicBool, Ordering};

use nccl_profiler::ring::{CAPACITY, COMMUNICATORS, Counter, Function, LIVE_STEPS, Record};

use crate::agent::{Rank, done, load, tell};
use crate::nccl::{ALL_REDUCE, COMM, Coll, Comm, Handle, LIGHT, ProxyOp};

pub const SCENARIOS: &[(&str, fn())] = &[
    ("many_communicators", many_communicators),
    ("many_ops", many_ops),
    ("many_transfers", many_transfers),
    ("laps", laps),
    ("many_threads", many_threads),
    ("together", together),
    ("no_system_calls", no_system_calls),
    ("vandal", vandal),
];

/// Operations that the plugin's table holds.
const OPS: u64 = 4096;

fn many_communicators() {
    let nccl = load(5);
    let comm = |id| Comm { id, ..COMM };
    let contexts: Vec<Handle> = (0..COMMUNICATORS as u64 + 6).map(|id| nccl.init(comm(id))).collect();
    assert!(contexts[COMMUNICATORS..].iter().all(|context| *context == Handle::NULL));
    assert_eq!(nccl.mask(), LIGHT, "those that have a place keep their telemetry");
    for (number, context) in contexts.iter().enumerate() {
        nccl.run(*context, Coll { sequence: number as u64, ..ALL_REDUCE });
    }
    // Places that come free are taken again.
    for context in &contexts[..3] {
        nccl.finalize(*context);
    }
    for id in 100..103 {
        let context = nccl.init(comm(id));
        assert_ne!(context, Handle::NULL);
        nccl.run(context, Coll { sequence: id, ..ALL_REDUCE });
    }
}

#[test]
fn communicators_beyond_the_table_are_counted_and_the_others_unharmed() {
    let mut ring = Rank::play("many_communicators");
    let records = ring.records();
    let expected: Vec<u64> = (0..COMMUNICATORS as u64).chain(100..103).collect();
    assert_eq!(done(&records), expected);
    let communicators = ring.communicators();
    assert_eq!(communicators.len(), COMMUNICATORS);
    let mut ids: Vec<u64> = communicators.iter().map(|one| one.id).collect();
    ids.sort_unstable();
    assert_eq!(ids, (3..COMMUNICATORS as u64).chain(100..103).collect::<Vec<_>>());
    for one in &communicators {
        assert_eq!(one.generation, if one.id >= 100 { 2 } else { 1 });
        assert_eq!(one.progress(Function::AllReduce).finished, one.id + 1, "a new one begins at nothing");
    }
    ring.counts(&[(Counter::CommunicatorsFull, 6)]);
}

fn many_ops() {
    let nccl = load(5);
    let context = nccl.init(COMM);
    let ops: Vec<Handle> = (0..OPS + 100)
        .map(|sequence| {
            let op = nccl.coll(context, Coll { sequence, channels: 1, ..ALL_REDUCE });
            nccl.stop(op);
            op
        })
        .collect();
    assert_eq!(ops.iter().filter(|op| **op == Handle::NULL).count(), 100);
    for op in &ops[..OPS as usize] {
        nccl.run_channel(context, *op, 0, [10, 20]);
    }
    // There is room again.
    nccl.run(context, Coll { sequence: 9000, ..ALL_REDUCE });
}

#[test]
fn operations_beyond_the_table_are_counted_and_still_enqueued() {
    let mut ring = Rank::play("many_ops");
    let records = ring.records();
    assert!(!records.iter().any(|record| matches!(record, Record::Enqueued { .. })));
    assert_eq!(done(&records), (0..OPS).chain([9000]).collect::<Vec<_>>());
    ring.counts(&[(Counter::OpsFull, 100)]);
    let progress = *ring.communicator().progress(Function::AllReduce);
    assert_eq!((progress.enqueued, progress.finished, progress.running), (9001, 9001, 0));
}

fn many_transfers() {
    let nccl = load(5);
    let context = nccl.init(COMM);
    let op = nccl.coll(context, ALL_REDUCE);
    let pid = std::process::id() as i32;
    let start = |peer| nccl.proxy_op(context, op, &ProxyOp { pid, channel: 1, peer, steps: 2, send: true });
    let transfers: Vec<Handle> = (0..LIVE_STEPS as i32 + 10).map(start).collect();
    assert!(transfers[LIVE_STEPS..].iter().all(|one| *one == Handle::NULL));
    for transfer in &transfers {
        for number in 0..2 {
            let step = nccl.proxy_step(context, *transfer, number);
            nccl.state(step, 8, 0);
            nccl.state(step, 9, 2048);
        }
    }
    tell("in flight");
    // Steps that were not stopped, of a transfer that is: they are of nobody.
    let steps: Vec<Handle> = transfers.iter().map(|one| nccl.proxy_step(context, *one, 2)).collect();
    for transfer in &transfers {
        nccl.stop(*transfer);
    }
    for step in steps {
        nccl.stop(step);
    }
}

#[test]
fn transfers_beyond_the_table_are_counted() {
    let mut rank = Rank::start("many_transfers");
    let mut ring = rank.ring();
    assert_eq!(rank.hear(), "in flight");
    let live = ring.reader.live_steps().unwrap();
    assert_eq!(live.len(), LIVE_STEPS);
    let mut peers: Vec<i32> = live.iter().map(|one| one.peer).collect();
    peers.sort_unstable();
    assert_eq!(peers, (0..LIVE_STEPS as i32).collect::<Vec<_>>());
    assert!(
        live.iter().all(|one| (one.state, one.steps, one.done, one.send, one.channel) == (9, 2, 0, true, 1))
    );
    rank.answer();
    rank.finish();
    assert!(ring.reader.live_steps().unwrap().is_empty());
    let steps = ring.records().iter().filter(|record| matches!(record, Record::Steps { .. })).count();
    assert_eq!(steps, LIVE_STEPS);
    ring.counts(&[(Counter::StepsFull, 10), (Counter::Repeated, LIVE_STEPS as u64)]);
}

fn laps() {
    let nccl = load(5);
    let context = nccl.init(COMM);
    for sequence in 0..=CAPACITY {
        nccl.run(context, Coll { sequence, ..ALL_REDUCE });
    }
}

// O11: what was not read in time is counted, and the progress has it all the same.
#[test]
fn a_slow_reader_knows_what_it_lost() {
    let mut ring = Rank::play("laps");
    let total = CAPACITY + 2;
    let (entries, polled) = ring.poll();
    assert_eq!(ring.reader.header().unwrap().written, total);
    assert_eq!((polled.read, polled.lost, polled.odd), (CAPACITY, total - CAPACITY, 0));
    let indices: Vec<u64> = entries.iter().map(|entry| entry.index).collect();
    assert_eq!(indices, (total - CAPACITY..total).collect::<Vec<_>>());
    assert_eq!(ring.communicator().progress(Function::AllReduce).finished, CAPACITY + 1);
}

const THREADS: u64 = 8;
const EACH: u64 = 10_000;

fn many_threads() {
    let nccl = load(5);
    let nccl = &nccl;
    let shared = nccl.init(Comm { id: 99, ..COMM });
    std::thread::scope(|scope| {
        for id in 0..THREADS {
            scope.spawn(move || {
                let context = nccl.init(Comm { id, ..COMM });
                for sequence in 0..EACH {
                    nccl.run(context, Coll { sequence, ..ALL_REDUCE });
                    // One communicator of all, numbers interleaved.
                    nccl.run(shared, Coll { sequence: sequence * THREADS + id, ..ALL_REDUCE });
                }
            });
        }
    });
}

#[test]
fn many_threads_lose_nothing_that_is_not_counted() {
    let rank = Rank::start("many_threads");
    let mut ring = rank.ring();
    let stop = AtomicBool::new(false);
    let (mut read, mut lost) = (0, 0);
    let mut last = std::collections::HashMap::<u8, u64>::new();
    let mut dones = 0;
    std::thread::scope(|scope| {
        let stop = &stop;
        scope.spawn(move || {
            rank.finish();
            stop.store(true, Ordering::Release);
        });
        // The last records of all may be waited for once.
        let mut empty = 0;
        while empty < 2 {
            let over = stop.load(Ordering::Acquire);
            let (entries, polled) = ring.poll();
            read += polled.read;
            lost += polled.lost;
            assert_eq!(polled.odd, 0);
            for entry in entries {
                let Record::Done { op, bytes, gpu_start_ns, gpu_stop_ns, .. } = entry.record else {
                    continue;
                };
                assert_eq!((bytes, gpu_start_ns, gpu_stop_ns), (1 << 20, 1000, 3000), "records are whole");
                dones += 1;
                // A thread's own communicator ends its operations in their order.
                if op.communicator != 0 {
                    let before = last.insert(op.communicator, op.sequence);
                    assert!(before.is_none_or(|before| before < op.sequence), "{before:?} {op:?}");
                }
            }
            empty = if over && polled.read == 0 && polled.lost == 0 { empty + 1 } else { 0 };
        }
    });
    let header = ring.reader.header().unwrap();
    assert_eq!(header.written, 1 + THREADS + THREADS * EACH * 2);
    assert_eq!(read + lost, header.written);
    assert!(dones > 0);
    ring.counts(&[(Counter::RecordBusy, ring.count(Counter::RecordBusy))]);
    // Whatever was lost of the records, the progress is whole.
    let communicators = ring.communicators();
    assert_eq!(communicators.len() as u64, THREADS + 1);
    for one in communicators {
        let all = if one.id == 99 { THREADS * EACH } else { EACH };
        let progress = one.progress(Function::AllReduce);
        assert_eq!(
            (progress.enqueued, progress.started, progress.finished, progress.running),
            (all, all, all, 0)
        );
    }
}

fn together() {
    let nccl = load(5);
    let nccl = &nccl;
    let barrier = &std::sync::Barrier::new(THREADS as usize);
    std::thread::scope(|scope| {
        for id in 0..THREADS {
            scope.spawn(move || {
                barrier.wait();
                let context = nccl.init(Comm { id, ..COMM });
                assert_ne!(context, Handle::NULL);
                nccl.run(context, Coll { sequence: id, ..ALL_REDUCE });
            });
        }
    });
    assert_eq!(nccl.mask(), LIGHT);
}

// One process with a GPU a thread begins all its communicators at a time.
#[test]
fn threads_that_begin_together_share_one_ring() {
    for _ in 0..5 {
        let mut ring = Rank::play("together");
        let mut numbers = done(&ring.records());
        numbers.sort_unstable();
        assert_eq!(numbers, (0..THREADS).collect::<Vec<_>>());
        assert_eq!(ring.communicators().len() as u64, THREADS);
        ring.counts(&[]);
    }
}

/// From here on the calling thread may end and ask for the time, which is a system call only where the kernel's page can't tell it.
/// Anything else ends the process.
fn forbid_system_calls() {
    let statement = |code: u32, k: u32, jt: u8| libc::sock_filter { code: code as u16, jt, jf: 0, k };
    let equals = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let mut filter = [
        // The number stands first in what the filter sees.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        statement(equals, libc::SYS_exit as u32, 2),
        statement(equals, libc::SYS_clock_gettime as u32, 1),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_KILL_PROCESS, 0),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program lives until the call returns; the thread makes no other call afterwards.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
    }
}

fn no_system_calls() {
    static DONE: AtomicBool = AtomicBool::new(false);
    let nccl: &'static _ = Box::leak(Box::new(load(5)));
    let context = nccl.init(COMM);
    let pid = std::process::id() as i32;
    std::thread::spawn(move || {
        forbid_system_calls();
        for sequence in 0..1000 {
            let op = nccl.coll(context, Coll { sequence, ..ALL_REDUCE });
            nccl.stop(op);
            let transfer =
                nccl.proxy_op(context, op, &ProxyOp { pid, channel: 0, peer: 1, steps: 1, send: true });
            let step = nccl.proxy_step(context, transfer, 0);
            nccl.state(step, 8, 0);
            nccl.stop(step);
            nccl.stop(transfer);
            nccl.run_channel(context, op, 0, [1, 2]);
            nccl.run_channel(context, op, 1, [1, 2]);
            nccl.stop(Handle(0xdead_0000));
        }
        DONE.store(true, Ordering::Release);
        // SAFETY: ends this thread and nothing else.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
    });
    while !DONE.load(Ordering::Acquire) {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

#[test]
fn no_event_costs_a_system_call() {
    let mut ring = Rank::play("no_system_calls");
    assert_eq!(done(&ring.records()), (0..1000).collect::<Vec<_>>());
    ring.counts(&[(Counter::Stale, 1000)]);
}

fn vandal() {
    let nccl = load(5);
    let nccl = &nccl;
    nccl.init(COMM);
    tell("ready");
    let began = std::time::Instant::now();
    let pid = std::process::id() as i32;
    std::thread::scope(|scope| {
        for id in 0..2 {
            scope.spawn(move || {
                while began.elapsed() < std::time::Duration::from_secs(1) {
                    let context = nccl.init(Comm { id, ..COMM });
                    for sequence in 0..500 {
                        let op = nccl.coll(context, Coll { sequence, ..ALL_REDUCE });
                        nccl.stop(op);
                        let what = ProxyOp { pid, channel: 0, peer: 1, steps: 1, send: true };
                        let transfer = nccl.proxy_op(context, op, &what);
                        let step = nccl.proxy_step(context, transfer, 0);
                        nccl.state(step, 8, 0);
                        nccl.stop(step);
                        nccl.stop(transfer);
                        nccl.run_channel(context, op, 0, [1, 2]);
                    }
                    nccl.finalize(context);
                }
            });
        }
    });
    tell("alive");
}

// Whoever writes into the ring harms the telemetry and nothing else.
#[test]
fn a_ring_that_somebody_scribbles_on_harms_no_rank() {
    let mut rank = Rank::start("vandal");
    let mut ring = rank.ring();
    assert_eq!(rank.hear(), "ready");
    let stop = &AtomicBool::new(false);
    let file = ring.reader.source().try_clone().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut seed = 88_172_645_463_325_252_u64;
            let mut bytes = vec![0; 4096];
            while !stop.load(Ordering::Acquire) {
                for word in bytes.chunks_exact_mut(8) {
                    seed ^= seed << 13;
                    seed ^= seed >> 7;
                    seed ^= seed << 17;
                    word.copy_from_slice(&seed.to_le_bytes());
                }
                let at = seed % nccl_profiler::ring::FILE_BYTES / 4096 * 4096;
                std::os::unix::fs::FileExt::write_all_at(&file, &bytes, at).unwrap();
            }
        });
        rank.answer();
        let heard = rank.hear();
        // The reader too: it may refuse, and what it takes stays within its bounds.
        for _ in 0..20 {
            let mut entries = Vec::new();
            let _ = ring.reader.poll(u64::MAX, &mut entries);
            assert!(entries.len() as u64 <= CAPACITY);
            assert!(ring.reader.communicators().unwrap().len() <= COMMUNICATORS);
            assert!(ring.reader.live_steps().unwrap().len() <= LIVE_STEPS);
        }
        stop.store(true, Ordering::Release);
        assert_eq!(heard, "alive");
    });
    rank.answer();
    rank.finish();
    assert!(ring.reader.header().is_err(), "it is no ring any more");
}
