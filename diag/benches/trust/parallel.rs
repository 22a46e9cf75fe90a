//! Many runs on the processors that there are, and the processor time that they take: on a busy machine the clock on the
//! wall says nothing.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// What each of the first `count` numbers gives, in their order.
pub fn each<T: Send>(count: usize, one: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let (next, all) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(count)));
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(count.max(1));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= count {
                        return;
                    }
                    let result = one(at);
                    all.lock().unwrap().push((at, result));
                }
            });
        }
    });
    let mut all = all.into_inner().unwrap();
    all.sort_unstable_by_key(|(at, _)| *at);
    all.into_iter().map(|(_, result)| result).collect()
}

/// Processor time of this thread.
pub fn mine() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}

/// Processor seconds of the whole program.
pub fn cpu_s() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap();
    // The name in brackets may hold anything; user and system time are the 12th and 13th fields after it, in 1/100 s.
    let fields: Vec<&str> = text.rsplit(')').next().unwrap().split_whitespace().collect();
    [11, 12].into_iter().map(|at| fields[at].parse::<f64>().unwrap()).sum::<f64>() / 100.0
}
