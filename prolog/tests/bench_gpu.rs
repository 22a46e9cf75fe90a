//! What of `cargo xtask bench gpu` needs no GPU: turns, medians, ratios, what nccl-tests prints, and the start of our side.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

#[path = "../benches/gpu/ours.rs"]
#[allow(dead_code, reason = "what measures needs a GPU")]
mod ours;
#[path = "../benches/gpu/theirs.rs"]
#[allow(dead_code, reason = "what measures needs a GPU")]
mod theirs;
#[path = "../benches/gpu/turns.rs"]
mod turns;

use std::cell::RefCell;

use turns::{Spread, busbw, by_turns, row, table};

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

#[test]
fn sides_take_turns_and_change_who_begins() {
    let order = RefCell::new(String::new());
    let turns = run(by_turns(
        3,
        async || {
            order.borrow_mut().push('o');
            Ok(vec![Some(order.borrow().len() as f64)])
        },
        async || {
            order.borrow_mut().push('t');
            Ok(vec![Some(2.0)])
        },
    ));
    assert_eq!(order.into_inner(), "ottoot");
    // Ours were measurements 1, 4 and 5; each ratio is of one turn.
    let cells = row("product", "TFLOP/s", "torch", &turns, 0);
    assert_eq!(
        cells,
        [
            "product",
            "TFLOP/s",
            "4.00 (1.00 to 5.00)",
            "2.00 (2.00 to 2.00)",
            "2.000 (0.500 to 2.500)",
            "torch"
        ]
    );
}

#[test]
fn a_side_that_can_t_is_asked_once_and_the_other_goes_on() {
    let (mut asked, mut measured) = (0, 0);
    let turns = run(by_turns(
        5,
        async || {
            measured += 1;
            Ok(vec![Some(100.0 + f64::from(measured)), None])
        },
        async || {
            asked += 1;
            Err("there is no torch".to_owned())
        },
    ));
    assert_eq!((asked, measured), (1, 5));
    let cells = row("product", "TFLOP/s", "torch", &turns, 0);
    assert_eq!(cells[2..5], ["103.0 (101.0 to 105.0)", "-", "-"]);
    assert_eq!(cells[5], "torch; theirs, turn 1: there is no torch");
    // A row that a side leaves out, and one that nobody has.
    assert_eq!(row("gone", "", "", &turns, 1)[2..5], ["-", "-", "-"]);
    assert_eq!(row("none", "", "", &turns, 2)[2..5], ["-", "-", "-"]);
    let text = table(&[cells]);
    assert!(text.starts_with("what     unit     ours "), "{text}");
    assert!(text.ends_with("torch; theirs, turn 1: there is no torch\n"), "{text}");
}

#[test]
fn our_side_is_a_worker_that_says_what_it_can_t_open() {
    let error =
        run(ours::Ours::start(&["GPU-00000000-0000-0000-0000-000000000000".to_owned()])).err().unwrap();
    let text = format!("{error:#}");
    // Without a driver it names the driver's library; with one, the GPU that is not there.
    assert!(text.contains("the worker can't: "), "{text}");
    assert!(text.contains("libcuda.so.1") || text.contains("GPU-00000000"), "{text}");
}

#[test]
fn medians_of_even_and_odd_counts() {
    let median = |numbers: &[f64]| Spread::of(numbers.iter().copied()).map(|spread| spread.median);
    assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
    assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), Some(2.5));
    assert_eq!(median(&[]), None);
}

#[test]
fn the_table_of_nccl_tests_is_read_out_of_place() {
    let said = "# nccl-tests version 2.19.6 nccl-headers=22809 nccl-library=22809\n\
        #                                                              out-of-place                       in-place          \n\
        #       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong \n\
        #        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)         \n\
     4194304       1048576     float     sum      -1    35.61  117.78  118.01       0    35.44  118.36  119.02       0\n\
  1073741824     268435456     float    none      -1  3271.5  328.21  328.99       0  3270.9  328.27  329.02       0\n\
        # Out of bounds values : 0 OK\n# Avg bus bandwidth    : 223.1 \n";
    assert_eq!(busbw(said, 4 << 20), Some(118.01));
    assert_eq!(busbw(said, 1 << 30), Some(328.99));
    assert_eq!(busbw(said, 64 << 20), None);
}
