//! Events as they should not come: in the wrong order, twice, of nobody, of somebody else.

use nccl_profiler::ring::{Counter, Function, Record, Steps};

use crate::agent::{Rank, done, load};
use crate::nccl::{ALL_REDUCE, COMM, Coll, Comm, Handle, ProxyOp};

pub const SCENARIOS: &[(&str, fn())] = &[
    ("wild_handles", wild_handles),
    ("repeated", repeated),
    ("after_finalize", after_finalize),
    ("foreign", foreign),
    ("lost_kernels", lost_kernels),
    ("to_itself", to_itself),
    ("odd_descriptors", odd_descriptors),
];

/// Numbers that no plugin gave, each in every kind's dress.
fn wild() -> impl Iterator<Item = Handle> {
    let bases = [0x10_usize, 0xdead_0000, 0x7fff_ffff_fff8, usize::MAX - 7, 1 << 32, 0xffff << 32];
    bases.into_iter().flat_map(|base| (0..8).map(move |kind| Handle(base & !7 | kind)))
}

fn wild_handles() {
    let nccl = load(5);
    let context = nccl.init(COMM);
    for handle in wild() {
        nccl.stop(handle);
        nccl.state(handle, 22, 5);
        nccl.state(handle, 9, 5);
        assert_eq!(nccl.kernel(context, handle, 0, 1), Handle::NULL);
        assert_eq!(nccl.proxy_step(context, handle, 0), Handle::NULL);
        assert_eq!(nccl.coll(handle, ALL_REDUCE), Handle::NULL);
        nccl.finalize(handle);
    }
    nccl.stop(Handle::NULL);
    nccl.state(Handle::NULL, 22, 1);
    nccl.run(context, ALL_REDUCE);
}

#[test]
fn handles_of_nobody_are_counted_and_change_nothing() {
    let mut ring = Rank::play("wild_handles");
    let records = ring.records();
    assert_eq!(done(&records), [0]);
    assert_eq!(records.len(), 2, "begin, and the end of the one operation: {records:?}");
    let communicator = ring.communicator();
    assert!(!communicator.ended);
    assert_eq!(communicator.progress(Function::AllReduce).running, 0);
    assert!(ring.count(Counter::Stale) > 48 * 4);
    for full in [Counter::OpsFull, Counter::StepsFull, Counter::Evicted, Counter::RecordBusy] {
        assert_eq!(ring.count(full), 0);
    }
}

fn repeated() {
    let nccl = load(5);
    let context = nccl.init(COMM);
    let op = nccl.coll(context, Coll { channels: 3, ..ALL_REDUCE });
    nccl.stop(op);
    nccl.stop(op);
    let first = nccl.kernel(context, op, 0, 1000);
    assert_eq!(nccl.kernel(context, op, 0, 10), Handle::NULL, "a channel begins once");
    nccl.stop_channel(first, 2000);
    // A state after the stop, and two more stops: three channels are not done by one.
    nccl.state(first, 22, 900_000);
    nccl.stop(first);
    nccl.stop(first);
    nccl.run_channel(context, op, 1, [1500, 2500]);
    tell_progress(&nccl, context, op);
}

fn tell_progress(nccl: &crate::nccl::Nccl, context: Handle, op: Handle) {
    crate::agent::tell("two of three");
    nccl.run_channel(context, op, 2, [1600, 2600]);
    // The operation is over: whatever comes now is of nobody.
    nccl.stop(op);
    assert_eq!(nccl.kernel(context, op, 3, 1), Handle::NULL);
}

#[test]
fn what_comes_twice_counts_once() {
    let mut rank = Rank::start("repeated");
    let mut ring = rank.ring();
    assert_eq!(rank.hear(), "two of three");
    assert_eq!(done(&ring.records()), [] as [u64; 0]);
    let progress = *ring.communicator().progress(Function::AllReduce);
    assert_eq!((progress.started, progress.finished, progress.running), (1, 0, 0));
    rank.answer();
    rank.finish();
    let (entries, _) = ring.poll();
    let [entry] = &entries[..] else { panic!("{entries:?}") };
    let Record::Done { op, bytes, gpu_start_ns, gpu_stop_ns, .. } = entry.record else { panic!("{entry:?}") };
    assert_eq!((op.sequence, bytes, gpu_start_ns, gpu_stop_ns), (0, 1 << 20, 1000, 2600));
    ring.counts(&[(Counter::Repeated, 4), (Counter::Stale, 1)]);
}

fn after_finalize() {
    let nccl = load(5);
    let context = nccl.init(COMM);
    let op = nccl.coll(context, ALL_REDUCE);
    nccl.stop(op);
    let kernel = nccl.kernel(context, op, 0, 1);
    let pid = std::process::id() as i32;
    let transfer = nccl.proxy_op(context, op, &ProxyOp { pid, channel: 0, peer: 1, steps: 4, send: true });
    nccl.finalize(context);
    // All that can still come.
    nccl.stop_channel(kernel, 9);
    let late = nccl.kernel(context, op, 1, 1);
    nccl.stop_channel(late, 9);
    assert_eq!(nccl.coll(context, ALL_REDUCE), Handle::NULL);
    assert_eq!(nccl.p2p(context, c"Send", 1, 0, 1), Handle::NULL);
    assert_eq!(nccl.proxy_step(context, transfer, 0), Handle::NULL);
    nccl.stop(transfer);
    nccl.finalize(context);
    // The slot's next user is not touched by it.
    let next = nccl.init(Comm { id: 7, ..COMM });
    assert_ne!(next, context);
    for old in [op, kernel, late, transfer, context] {
        nccl.stop(old);
    }
    nccl.run(next, Coll { sequence: 5, ..ALL_REDUCE });
}

#[test]
fn events_after_the_end_belong_to_nobody() {
    let mut ring = Rank::play("after_finalize");
    let records = ring.records();
    assert_eq!(done(&records), [5], "{records:?}");
    let communicators = ring.communicators();
    let [old, new] = &communicators[..] else { panic!("{communicators:?}") };
    assert!(old.ended && !new.ended && new.id == 7);
    assert_eq!(
        (old.progress(Function::AllReduce).started, old.progress(Function::AllReduce).finished),
        (1, 0)
    );
    assert_eq!(new.progress(Function::AllReduce).finished, 6);
    assert_eq!(new.progress(Function::AllReduce).enqueued, 6);
    assert!(ring.reader.live_steps().unwrap().is_empty());
    assert!(!records.iter().any(|record| matches!(record, Record::Steps { .. })));
    let ends: Vec<_> = records.iter().filter(|record| matches!(record, Record::CommEnd { .. })).collect();
    assert_eq!(ends.len(), 1);
}

fn foreign() {
    let nccl = load(5);
    let context = nccl.init(COMM);
    let op = nccl.coll(context, ALL_REDUCE);
    nccl.stop(op);
    let mine = std::process::id() as i32;
    let what = |pid| ProxyOp { pid, channel: 3, peer: 2, steps: 4, send: false };
    // Of another process: neither its context nor its parent may be looked at, whatever they look like.
    for handle in wild() {
        assert_eq!(nccl.proxy_op(handle, handle, &what(mine + 1)), Handle::NULL);
    }
    assert_eq!(nccl.proxy_op(context, op, &what(mine + 1)), Handle::NULL);
    // Its steps have no part then.
    assert_eq!(nccl.proxy_step(context, Handle::NULL, 0), Handle::NULL);
    // Of this one, with a parent that it never had.
    let transfer = nccl.proxy_op(context, Handle(0xdead_0003), &what(mine));
    let step = nccl.proxy_step(context, transfer, 0);
    nccl.state(step, 10, 0);
    nccl.state(step, 11, 4096);
    nccl.stop(step);
    nccl.stop(transfer);
}

#[test]
fn what_is_of_another_process_is_never_followed() {
    let mut ring = Rank::play("foreign");
    let records = ring.records();
    let steps: Vec<Steps> = records
        .iter()
        .filter_map(|record| if let Record::Steps { steps, .. } = record { Some(*steps) } else { None })
        .collect();
    let [one] = &steps[..] else { panic!("{steps:?}") };
    assert_eq!((one.op.sequence, one.op.peer, one.channel, one.send), (Steps::NO_SEQUENCE, 2, 3, false));
    assert_eq!((one.count, one.kib), (1, 4));
    ring.counts(&[(Counter::Foreign, 49)]);
}

// Up to 2.30 NCCL can lose a KernelCh event.
fn lost_kernels() {
    let nccl = load(5);
    let context = nccl.init(COMM);
    for sequence in 0..LOSSY {
        let op = nccl.coll(context, Coll { sequence, ..ALL_REDUCE });
        nccl.stop(op);
        nccl.run_channel(context, op, 0, [1, 2]);
        // Of every second one a channel is never heard of.
        if sequence % 2 == 1 {
            nccl.run_channel(context, op, 1, [1, 2]);
        }
        if sequence % 4000 == 3999 {
            crate::agent::tell("read");
        }
    }
    // And of the last one a stop.
    let op = nccl.coll(context, Coll { sequence: LOSSY, ..ALL_REDUCE });
    nccl.stop(op);
    nccl.run_channel(context, op, 1, [1, 2]);
}

/// Half of them stay behind: more than the table holds.
const LOSSY: u64 = 12_000;

#[test]
fn lost_events_do_not_fill_the_table_and_do_not_look_like_a_hang() {
    let mut rank = Rank::start("lost_kernels");
    let mut ring = rank.ring();
    let mut records = Vec::new();
    for _ in 0..LOSSY / 4000 {
        assert_eq!(rank.hear(), "read");
        records.extend(ring.poll().0.into_iter().map(|entry| entry.record));
        rank.answer();
    }
    rank.finish();
    let done = done(&records);
    assert_eq!(done.len() as u64, LOSSY / 2);
    assert!(done.into_iter().eq((0..LOSSY / 2).map(|number| number * 2 + 1)));
    assert!(ring.count(Counter::Evicted) > 1000);
    ring.counts(&[(Counter::Evicted, ring.count(Counter::Evicted))]);
    let progress = *ring.communicator().progress(Function::AllReduce);
    assert_eq!((progress.enqueued, progress.started, progress.finished), (LOSSY + 1, LOSSY + 1, LOSSY));
    assert_eq!(progress.running, 0, "begun and not finished, but nothing runs: an event was lost");
}

// A copy to oneself has no kernel of NCCL's; waiting for its end would be a hang that is none.
fn to_itself() {
    let nccl = load(5);
    let context = nccl.init(COMM);
    assert_eq!(nccl.p2p(context, c"Send", 10, COMM.rank, 1), Handle::NULL);
    assert_eq!(nccl.p2p(context, c"Recv", 10, COMM.rank, 1), Handle::NULL);
    let send = nccl.p2p(context, c"Send", 10, 0, 1);
    nccl.stop(send);
    nccl.run_channel(context, send, 7, [10, 30]);
    let alone = nccl.init(Comm { ranks: 1, rank: 0, nodes: 1, ..COMM });
    assert_eq!(nccl.coll(alone, ALL_REDUCE), Handle::NULL);
}

#[test]
fn what_a_rank_does_with_itself_is_not_told() {
    let mut ring = Rank::play("to_itself");
    let records = ring.records();
    let [.., Record::Done { op, bytes, .. }, Record::CommInit { .. }] = &records[..] else {
        panic!("{records:?}")
    };
    assert_eq!((op.function, op.sequence, op.peer, *bytes), (Function::Send, 0, 0, 40));
    let progress = *ring.communicators()[0].progress(Function::Send);
    assert_eq!((progress.enqueued, progress.started, progress.finished), (1, 1, 1));
    assert_eq!(ring.communicators()[1].progress(Function::AllReduce).enqueued, 0);
    ring.counts(&[]);
}

fn odd_descriptors() {
    let nccl = load(6);
    let context = nccl.init(COMM);
    for bit in (7..64).chain([5]) {
        assert_eq!(nccl.start(context, 1 << bit, Handle(1), |_| {}), Handle::NULL, "bit {bit}");
    }
    assert_eq!(nccl.start(context, 0, Handle(1), |_| {}), Handle::NULL);
    assert_eq!(nccl.start(context, 70, Handle(1), |_| {}), Handle::NULL);
    // Names that are null, channels beyond all bounds.
    let op = nccl.start(context, 2, Handle::NULL, |descriptor| {
        descriptor.put(56, &usize::MAX.to_le_bytes());
        descriptor.put(80, &[255]);
    });
    assert_ne!(op, Handle::NULL);
    assert_eq!(nccl.kernel(context, op, 64, 1), Handle::NULL);
    assert_eq!(nccl.kernel(context, op, 255, 1), Handle::NULL);
    for channel in 0..64 {
        nccl.run_channel(context, op, channel, [5, 6]);
    }
    nccl.state(op, i32::MAX, 1);
    nccl.state(op, -1, 1);
}

#[test]
fn odd_descriptors_stay_within_bounds() {
    let mut ring = Rank::play("odd_descriptors");
    let records = ring.records();
    let Some(Record::Enqueued { op, bytes, channels, .. }) = records.get(1) else { panic!("{records:?}") };
    assert_eq!((op.function, *bytes, *channels), (Function::Other, u64::MAX, 255));
    assert_eq!(done(&records), [] as [u64; 0], "255 channels never end");
    assert_eq!(ring.communicator().progress(Function::Other).running, 0);
    ring.counts(&[(Counter::Repeated, 2)]);
}
