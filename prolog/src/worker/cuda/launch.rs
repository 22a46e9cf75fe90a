//! How long a launch takes: the call, and until the host sees the kernel's end. Every GPU at once.

use std::time::{Duration, Instant};

use kernels::cuda::launch::{measure, quantile};

use super::super::timed::Until;
use super::doing::Flaw;
use super::gpu::{Gpu, limit};
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
    let done = ranks.each(until, move |_, gpu, until| launches(gpu, window, until));
    let (mut per_rank, mut troubles, mut seen) = (Vec::new(), Vec::new(), 0);
    for (rank, one) in done.into_iter().enumerate() {
        match one.and_then(|one| one) {
            Ok((launches, samples)) => {
                per_rank.push(Some(launches));
                seen += samples;
            }
            Err(flaw) => {
                per_rank.push(None);
                troubles.push(flaw.of(rank));
            }
        }
    }
    let worst = |of: fn(&Launches) -> f64| per_rank.iter().flatten().map(of).fold(0.0, f64::max);
    Reply::WakeUp(WakeUps {
        wake_ups: seen,
        median_us: worst(|one| one.call_us),
        tail_us: worst(|one| one.call_tail_us),
        samples_us: Vec::new(),
        per_rank,
        troubles,
    })
}

/// Launches on one GPU until the window is over, and how many.
fn launches(gpu: &Gpu, window: Duration, until: &Until) -> Result<(Launches, u64), Flaw> {
    gpu.doing.at("launches of an empty kernel");
    let (begun, mut call, mut done) = (Instant::now(), Vec::new(), Vec::new());
    while call.is_empty() || (begun.elapsed() < window && call.len() < MOST) {
        let seen = measure(&gpu.kernels, &gpu.stream, BATCH, limit(until))?;
        call.extend(seen.call_us);
        done.extend(seen.done_us);
    }
    call.sort_by(f64::total_cmp);
    done.sort_by(f64::total_cmp);
    let at =
        |sorted: &[f64], share| quantile(sorted, share).ok_or_else(|| Flaw::failed("no launch was seen"));
    let launches = Launches {
        call_us: at(&call, 0.5)?,
        call_tail_us: at(&call, 0.99)?,
        done_us: at(&done, 0.5)?,
        done_tail_us: at(&done, 0.99)?,
        samples_us: some(&call),
    };
    Ok((launches, call.len() as u64))
}
