//! How long a launch takes: the call, and until the host sees the kernel's end. Every GPU at once.

use std::time::{Duration, Instant};

use kernels::cuda::launch::{measure, quantile};

use super::super::timed::Until;
use super::gpu::{Gpu, limit, words};
use super::product::some;
use super::ranks::Ranks;
use crate::protocol::{Launches, Reply, WakeUps};

/// Launches between two looks at the clock: enough for a 99th percentile. Alone on a GPU they take some 10 ms, beside
/// another process, with which it takes turns, thirty times as long.
const BATCH: usize = 1_000;

/// The most that a window is worth.
const MOST: usize = 20_000;

/// Launches on all GPUs for about `window`.
pub(super) fn run(ranks: &Ranks<Gpu>, window: Duration, until: &Until) -> Reply {
    let their = until.clone();
    let done = ranks.each(until, move |_, gpu| launches(gpu, window, &their));
    let (mut per_rank, mut seen) = (Vec::new(), 0);
    for (rank, one) in (0_u32..).zip(done) {
        match one {
            Some(Ok((launches, samples))) => {
                per_rank.push(launches);
                seen += samples;
            }
            Some(Err(message)) => return Reply::Failed { message },
            None => return Reply::Failed { message: format!("rank {rank}: its GPU did not end a launch") },
        }
    }
    let worst = |of: fn(&Launches) -> f64| per_rank.iter().map(of).fold(0.0, f64::max);
    Reply::WakeUp(WakeUps {
        wake_ups: seen,
        median_us: worst(|one| one.call_us),
        tail_us: worst(|one| one.call_tail_us),
        samples_us: Vec::new(),
        per_rank,
    })
}

/// Launches on one GPU until the window is over, and how many.
fn launches(gpu: &Gpu, window: Duration, until: &Until) -> Result<(Launches, u64), String> {
    let (begun, mut call, mut done) = (Instant::now(), Vec::new(), Vec::new());
    while call.is_empty() || (begun.elapsed() < window && call.len() < MOST) {
        let seen = measure(&gpu.kernels, &gpu.stream, BATCH, limit(until)).map_err(words)?;
        call.extend(seen.call_us);
        done.extend(seen.done_us);
    }
    call.sort_by(f64::total_cmp);
    done.sort_by(f64::total_cmp);
    let at = |sorted: &[f64], share| quantile(sorted, share).ok_or_else(|| "no launch was seen".to_owned());
    let launches = Launches {
        call_us: at(&call, 0.5)?,
        call_tail_us: at(&call, 0.99)?,
        done_us: at(&done, 0.5)?,
        done_tail_us: at(&done, 0.99)?,
        samples_us: some(&call),
    };
    Ok((launches, call.len() as u64))
}
