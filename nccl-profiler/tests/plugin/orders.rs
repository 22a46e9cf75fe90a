//! What the agent orders, and when the rank obeys.

use nccl_profiler::ring::{Function, Kernels, Order, Record, Steps};

use crate::agent::{Rank, Ring, done, load, tell};
use crate::nccl::{ALL_REDUCE, COMM, Coll, LIGHT, Nccl, ProxyOp};

pub const SCENARIOS: &[(&str, fn())] =
    &[("obey", obey), ("windows", windows), ("numbers", numbers), ("graphs", graphs), ("old", old)];

/// Without KernelCh.
const NO_KERNELS: i32 = 6;
/// With ProxyOp and ProxyStep.
const STEPS: i32 = LIGHT + 24;

/// One operation as NCCL makes it with the mask that was there before it; gives the mask after its start.
fn operation(nccl: &Nccl, context: crate::nccl::Handle, sequence: u64) -> i32 {
    let before = nccl.mask();
    let op = nccl.coll(context, Coll { sequence, ..ALL_REDUCE });
    nccl.stop(op);
    let mask = nccl.mask();
    if before & 8 != 0 {
        let pid = std::process::id() as i32;
        let transfer =
            nccl.proxy_op(context, op, &ProxyOp { pid, channel: 0, peer: 1, steps: 1, send: false });
        let step = nccl.proxy_step(context, transfer, 0);
        nccl.state(step, 10, 0);
        nccl.state(step, 12, 64);
        nccl.stop(step);
        nccl.stop(transfer);
    }
    if before & 64 != 0 {
        nccl.run_channel(context, op, 0, [1, 2]);
        nccl.run_channel(context, op, 1, [1, 2]);
    }
    mask
}

fn obey() {
    let nccl = load(5);
    let context = nccl.init(COMM);
    for sequence in 0..7 {
        tell(&format!("{}", operation(&nccl, context, sequence)));
    }
}

fn says(rank: &mut Rank, mask: i32) {
    assert_eq!(rank.hear(), mask.to_string());
}

fn order(ring: &Ring, number: u16, telemetry: bool, kernels: Kernels, steps_ms: u16) {
    ring.order(Order { number, telemetry, kernels, steps_ms });
}

#[test]
fn an_order_is_obeyed_with_the_next_operation() {
    let mut rank = Rank::start("obey");
    let mut ring = rank.ring();
    says(&mut rank, LIGHT);
    order(&ring, 1, true, Kernels::Off, 0);
    rank.answer();
    says(&mut rank, NO_KERNELS);
    assert_eq!(ring.reader.header().unwrap().mask, NO_KERNELS as u64, "the agent sees that it is obeyed");
    order(&ring, 2, true, Kernels::On, 60_000);
    rank.answer();
    says(&mut rank, STEPS);
    // The same number again is no new order.
    order(&ring, 2, true, Kernels::Off, 0);
    rank.answer();
    says(&mut rank, NO_KERNELS);
    // Bytes that are no order change nothing.
    std::os::unix::fs::FileExt::write_all_at(ring.reader.source(), &[0x55; 8], nccl_profiler::ring::ORDER_AT)
        .unwrap();
    rank.answer();
    says(&mut rank, NO_KERNELS);
    order(&ring, 4, true, Kernels::On, 0);
    rank.answer();
    says(&mut rank, LIGHT);
    order(&ring, 5, false, Kernels::On, 60_000);
    rank.answer();
    says(&mut rank, 0);
    rank.answer();
    rank.finish();
    let records = ring.records();
    // NCCL reads its mask before it tells of an operation.
    assert_eq!(done(&records), [0, 1, 3, 6]);
    let enqueued = ring.communicator().progress(Function::AllReduce).enqueued;
    assert_eq!(enqueued, 7, "what is enqueued is known without KernelCh too");
    let steps: Vec<&Steps> = records
        .iter()
        .filter_map(|record| if let Record::Steps { steps, .. } = record { Some(steps) } else { None })
        .collect();
    let [one] = &steps[..] else { panic!("{steps:?}") };
    assert_eq!((one.op.sequence, one.count, one.send), (3, 1, false));
    ring.counts(&[]);
}

fn windows() {
    let nccl = load(5);
    let context = nccl.init(COMM);
    tell("ready");
    let mut sequence = 0;
    let mut until = |wanted: i32| {
        let began = std::time::Instant::now();
        while operation(&nccl, context, sequence) != wanted {
            assert!(began.elapsed() < std::time::Duration::from_secs(30), "{} is not {wanted}", nccl.mask());
            sequence += 1;
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    };
    until(STEPS);
    // Both windows end by themselves.
    until(NO_KERNELS);
    tell("over");
    // And begin again with a new order.
    until(LIGHT);
    until(NO_KERNELS);
}

fn numbers() {
    let nccl = load(5);
    let context = nccl.init(COMM);
    operation(&nccl, context, 0);
    tell("ready");
    // The order is seen with the first; numbers that are multiples of four begin a window.
    let masks: Vec<i32> = (1..=6).map(|sequence| operation(&nccl, context, sequence)).collect();
    tell(&format!("{masks:?}"));
    // The window ends by time, and a number that is none does not begin another one.
    std::thread::sleep(std::time::Duration::from_millis(400));
    let masks: Vec<i32> = (7..=9).map(|sequence| operation(&nccl, context, sequence)).collect();
    tell(&format!("{masks:?}"));
}

// All ranks count alike, so that they look at the same operations.
#[test]
fn a_window_begins_with_a_number_that_all_ranks_have() {
    let mut rank = Rank::start("numbers");
    let mut ring = rank.ring();
    assert_eq!(rank.hear(), "ready");
    order(&ring, 1, true, Kernels::Every { shift: 2, ms: 300 }, 0);
    rank.answer();
    assert_eq!(rank.hear(), format!("{:?}", [NO_KERNELS, NO_KERNELS, NO_KERNELS, LIGHT, LIGHT, LIGHT]));
    rank.answer();
    assert_eq!(rank.hear(), format!("{:?}", [NO_KERNELS, LIGHT, LIGHT]));
    rank.answer();
    rank.finish();
    let records = ring.records();
    // The mask counts that NCCL read before it told of the operation.
    assert_eq!(done(&records), [0, 1, 5, 6, 7, 9]);
    let progress = *ring.communicator().progress(Function::AllReduce);
    assert_eq!((progress.enqueued, progress.started, progress.finished, progress.running), (10, 10, 10, 0));
    ring.counts(&[]);
}

fn graphs() {
    let nccl = load(5);
    let context = nccl.init(COMM);
    operation(&nccl, context, 0);
    tell("ready");
    let group = |captured: u8| {
        let handle =
            nccl.start(context, 1 << 8, crate::nccl::Handle::NULL, |event| event.put(24, &[captured]));
        assert_eq!(handle, crate::nccl::Handle::NULL);
        nccl.mask()
    };
    let masks = [operation(&nccl, context, 1), group(0), group(1), operation(&nccl, context, 2), group(0)];
    tell(&format!("{masks:?}"));
    tell(&format!("{}", operation(&nccl, context, 3)));
}

// All replays of a graph have what its capture had: ranks must not differ in that.
#[test]
fn kernels_stay_on_from_the_first_capture_of_a_graph() {
    let mut rank = Rank::start("graphs");
    let ring = rank.ring();
    assert_eq!(rank.hear(), "ready");
    order(&ring, 1, true, Kernels::Off, 0);
    rank.answer();
    assert_eq!(rank.hear(), format!("{:?}", [NO_KERNELS, NO_KERNELS, LIGHT, LIGHT, LIGHT]));
    assert_eq!(ring.reader.header().unwrap().mask, LIGHT as u64);
    order(&ring, 2, true, Kernels::Every { shift: 9, ms: 20 }, 0);
    rank.answer();
    assert_eq!(rank.hear(), LIGHT.to_string());
    rank.answer();
    rank.finish();
}

fn old() {
    let nccl = load(4);
    let context = nccl.init(COMM);
    operation(&nccl, context, 0);
    tell("ready");
    tell(&format!("{}", operation(&nccl, context, 1)));
}

#[test]
fn kernels_stay_on_where_nobody_tells_of_graphs() {
    let mut rank = Rank::start("old");
    let ring = rank.ring();
    assert_eq!(rank.hear(), "ready");
    order(&ring, 1, true, Kernels::Off, 0);
    rank.answer();
    assert_eq!(rank.hear(), LIGHT.to_string());
    rank.answer();
    rank.finish();
}

// An agent that died must not leave a costly mask behind.
#[test]
fn a_window_ends_without_the_agent() {
    let mut rank = Rank::start("windows");
    let ring = rank.ring();
    assert_eq!(rank.hear(), "ready");
    order(&ring, 1, true, Kernels::For(300), 200);
    rank.answer();
    assert_eq!(rank.hear(), "over");
    assert_eq!(ring.reader.header().unwrap().mask, NO_KERNELS as u64);
    order(&ring, 2, true, Kernels::For(300), 0);
    rank.answer();
    rank.finish();
}
