//! How long a launch takes: the call, and until the host sees the kernel's end. Every GPU at once.

use std::time::Duration;

use kernels::cuda::launch::{measure, quantile};

use super::super::timed::Until;
use super::gpu::{Gpu, limit, words};
use super::product::some;
use super::ranks::Ranks;
use crate::protocol::{Launches, Reply, WakeUps};

/// About how long a launch and its end take: how many fit into a window. The real time only moves the number of
/// samples.
const EXPECTED: Duration = Duration::from_micros(12);

/// Enough for a 99th percentile, and the most that a window is worth.
const SAMPLES: std::ops::RangeInclusive<usize> = 1_000..=20_000;

/// Launches on all GPUs for about `window`.
pub(super) fn run(ranks: &Ranks<Gpu>, window: Duration, until: &Until) -> Reply {
    let fit = (window.as_secs_f64() / EXPECTED.as_secs_f64()) as usize;
    let samples = fit.clamp(*SAMPLES.start(), *SAMPLES.end());
    let until = until.clone();
    let all = until.clone();
    let done = ranks.each(&all, move |_, gpu| {
        let seen = measure(&gpu.kernels, &gpu.stream, samples, limit(&until)).map_err(words)?;
        let at = |sorted: &[f64], share| quantile(sorted, share).ok_or_else(|| "no launch was seen".to_owned());
        Ok::<_, String>(Launches {
            call_us: at(&seen.call_us, 0.5)?,
            call_tail_us: at(&seen.call_us, 0.99)?,
            done_us: at(&seen.done_us, 0.5)?,
            done_tail_us: at(&seen.done_us, 0.99)?,
            samples_us: some(&seen.call_us),
        })
    });
    let mut per_rank = Vec::new();
    for (rank, one) in (0_u32..).zip(done) {
        match one {
            Some(Ok(launches)) => per_rank.push(launches),
            Some(Err(message)) => return Reply::Failed { message },
            None => return Reply::Failed { message: format!("rank {rank}: its GPU did not end a launch") },
        }
    }
    let worst = |of: fn(&Launches) -> f64| per_rank.iter().map(of).fold(0.0, f64::max);
    Reply::WakeUp(WakeUps {
        wake_ups: (samples * per_rank.len()) as u64,
        median_us: worst(|one| one.call_us),
        tail_us: worst(|one| one.call_tail_us),
        samples_us: Vec::new(),
        per_rank,
    })
}
