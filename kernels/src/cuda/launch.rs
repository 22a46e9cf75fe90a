//! How long it takes to launch a kernel that does nothing: host, driver and the way to the GPU. The numbers are
//! samples; which share of them counts is the check's.

use std::time::{Duration, Instant};

use super::{CudaError, Kernels, Limit, Stream};

/// Launches before the first that counts: the driver loads the kernel and clocks rise.
const WARM_UP: usize = 200;

/// The most samples of one call: a second of launches, and a bound on the memory for them.
const MOST: usize = 100_000;

/// Launch times in microseconds, each list in rising order.
#[derive(Debug, Clone, PartialEq)]
pub struct Latencies {
    /// The launch call alone.
    pub call_us: Vec<f64>,
    /// From before the launch call until the kernel is known to be done. The stream is asked without a pause, as
    /// `cuStreamSynchronize` does by default.
    pub done_us: Vec<f64>,
}

/// Launches the null kernel `samples` times, each into an empty stream.
///
/// # Errors
/// No sample or too many, something is of another GPU, or the wait's.
pub fn measure(
    kernels: &Kernels,
    stream: &Stream,
    samples: usize,
    limit: Limit<'_>,
) -> Result<Latencies, CudaError> {
    let context = kernels.context();
    context.owns(stream.context(), "the stream")?;
    if samples == 0 || samples > MOST {
        return Err(context.size_error(format!("{samples} launches; 1 to {MOST} can be measured")));
    }
    stream.wait(limit)?;
    let (mut call_us, mut done_us) = (Vec::with_capacity(samples), Vec::with_capacity(samples));
    for round in 0..WARM_UP + samples {
        let before = Instant::now();
        kernels.launch_null(stream)?;
        let called = before.elapsed();
        stream.wait(limit)?;
        let done = before.elapsed();
        if round >= WARM_UP {
            call_us.push(microseconds(called));
            done_us.push(microseconds(done));
        }
    }
    call_us.sort_by(f64::total_cmp);
    done_us.sort_by(f64::total_cmp);
    Ok(Latencies { call_us, done_us })
}

/// The value below which a share of the samples lies (nearest rank); the samples in rising order.
#[must_use]
pub fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "at most a hundred thousand samples"
    )]
    let rank = (share.clamp(0.0, 1.0) * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

fn microseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_samples_by_nearest_rank() {
        let sorted: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(quantile(&sorted, 0.5), Some(50.0));
        assert_eq!(quantile(&sorted, 0.99), Some(99.0));
        assert_eq!(quantile(&sorted, 1.0), Some(100.0));
        assert_eq!(quantile(&sorted, 0.0), Some(1.0));
        assert_eq!(quantile(&[], 0.5), None);
    }
}
