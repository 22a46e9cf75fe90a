//! Trouble inside one node: each of the checks of single nodes finds the fault that the others don't see.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use aimaster_tests::{Cluster, Told, product, serial};

/// A tenth of one core: far below the half of the median that makes an outlier.
const SLOW_PERCENT: u32 = 10;

/// Loops that leave every other process its turn, but use up what the node may have of a processor.
const GREEDY: &str = "for i in 1 2 3 4; do nice -n 19 sh -c 'while :; do :; done' & done; wait";

/// `node` failed `check` and nothing else failed anywhere; the job started, as asked by `retain`.
fn assert_only(told: &Told, check: &str, node: &str) {
    println!("{told}");
    assert_eq!(told.outcome(), "FAIL", "{told}");
    assert_eq!(told.items("FAIL"), [[check, "node", node]], "{told}");
    assert!(told.items("SUSPECT").is_empty() && told.items("ERROR").is_empty(), "{told}");
    assert!(told.drained.is_empty() && told.started(), "{told}");
}

fn told(cluster: &Cluster, checks: &str) -> Told {
    cluster.told(["-N4", "--sanity-fail-action=retain", &format!("--sanity-check={checks}")]).unwrap()
}

#[test]
fn threads_that_wake_up_late_fail_kernel_launch() {
    let _machine = serial().unwrap();
    let cluster = product::boot(Cluster::builder().nodes(4), "").unwrap();
    let limit = cluster.limit_cpu("n2", SLOW_PERCENT).unwrap();
    let mut greedy = cluster.command("n2", ["sh", "-c", GREEDY]).spawn().unwrap();
    assert_only(&told(&cluster, "kernel_launch"), "kernel_launch", "n2");
    greedy.kill();
    limit.undo().unwrap();
}

#[test]
fn a_slow_way_between_the_ranks_of_a_node_fails_all_reduce_1() {
    let _machine = serial().unwrap();
    let cluster = product::boot(Cluster::builder().nodes(4), "").unwrap();
    let slow = [
        "tc", "qdisc", "add", "dev", "lo", "root", "tbf", "rate", "20mbit", "burst", "256k", "latency",
        "50ms",
    ];
    cluster.exec("n4", slow).unwrap().ok().unwrap();
    assert_only(&told(&cluster, "gemm_flops,all_reduce_1,all_reduce_2"), "all_reduce_1", "n4");
}

/// Bytes that the loopback device of a process's network has carried.
fn carried(network: &PathBuf) -> u64 {
    let text = std::fs::read_to_string(network).unwrap_or_default();
    let line = text.lines().find_map(|line| line.trim().strip_prefix("lo:"));
    line.and_then(|fields| fields.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// While this much crosses the loopback device between two looks, the ranks are talking; slowed they still say more.
const BUSY_BYTES: u64 = 20_000;
const LOOK: Duration = Duration::from_millis(20);
/// So long the processor stays slow after the last word: longer than a window.
const HOLD: Duration = Duration::from_secs(2);
/// So slow that it is below a tenth of the others, which is the limit where they take turns on two cores and differ much.
const VERY_SLOW_PERCENT: u32 = 2;
/// The nodes take turns on two cores, and the limit follows their spread: a run in which the slow one is not far below the
/// others proves nothing.
const TRIES: usize = 4;
const WINDOWS: &str = "host.seconds_per_check = 1.5";

/// The nodes go before everything else on this machine; this thread must see them in time all the same.
fn first_in_line() {
    let thread = std::fs::read_link("/proc/thread-self").unwrap();
    let thread = thread.file_name().unwrap();
    let chrt = std::process::Command::new("chrt").args(["--fifo", "--pid", "10"]).arg(thread).status();
    assert!(chrt.unwrap().success(), "chrt");
}

#[test]
fn a_processor_that_is_slow_only_beside_the_network_fails_comp_comm_overlap() {
    let _machine = serial().unwrap();
    let cluster = product::boot(Cluster::builder().nodes(4), WINDOWS).unwrap();
    let daemon = cluster.processes("n3").unwrap().into_iter().find(|one| one.comm == "slurmd").unwrap();
    let network = PathBuf::from(format!("/proc/{}/net/dev", daemon.host_pid));
    let over = AtomicBool::new(false);
    let said = std::thread::scope(|scope| {
        scope.spawn(|| {
            first_in_line();
            let (mut limit, mut before, mut last) = (None, carried(&network), None::<Instant>);
            while !over.load(Ordering::Relaxed) {
                sleep(LOOK);
                let now = carried(&network);
                if now - before > BUSY_BYTES {
                    last = Some(Instant::now());
                }
                before = now;
                match last.is_some_and(|last| last.elapsed() < HOLD) {
                    true if limit.is_none() => {
                        limit = Some(cluster.limit_cpu("n3", VERY_SLOW_PERCENT).unwrap())
                    }
                    false => limit = None,
                    true => (),
                }
            }
        });
        let mut runs = (0..TRIES).map(|_| told(&cluster, "gemm_flops,comp_comm_overlap"));
        let said = runs.find(|said| said.outcome() != "PASS");
        over.store(true, Ordering::Relaxed);
        said
    });
    assert_only(&said.expect("found in one of the runs"), "comp_comm_overlap", "n3");
}
