//! `kernel_launch`: how long work takes to start once it was asked for. On the host engine a thread's wake-up
//! stands for a kernel's launch.

use diag::check::{CheckName, CheckSpec};
use diag::facts::NodeFacts;
use diag::measurement::{CheckError, Measurement, Metric, Subject};

use super::context::Span;
use super::{Check, Context, Run, Support, with_a_rank};
use crate::protocol::{Reply, Request, WakeUps};

/// The check.
pub(super) struct KernelLaunch;

impl Check for KernelLaunch {
    fn spec(&self) -> &'static CheckSpec {
        CheckName::KernelLaunch.spec()
    }

    fn supported(&self, facts: &NodeFacts) -> Support {
        with_a_rank(facts)
    }

    fn run<'a>(&'a self, cx: &'a mut Context<'_>) -> Run<'a> {
        Box::pin(measure(cx))
    }
}

async fn measure(cx: &mut Context<'_>) -> Result<Vec<Measurement>, CheckError> {
    let (window_ms, limit_ms, ranks) = (cx.window_ms(), cx.limit_ms(), cx.ranks());
    let (reply, span) = cx.call(Request::WakeUp { window_ms, limit_ms, ranks }, limit_ms).await?;
    let Reply::WakeUp(seen) = reply else { return Err(cx.nonsense(&reply)) };
    cx.unmeasured(&seen.troubles);
    if seen.wake_ups == 0 && seen.troubles.is_empty() {
        return Err(cx.starved("wake-up of a thread"));
    }
    if !seen.per_rank.is_empty() {
        return Ok(of_gpus(cx, &seen, span));
    }
    let subject = Subject::Node { node: cx.me };
    let mut median = cx.measurement(Metric::Launch, subject.clone(), seen.median_us, span);
    median.detail = format!("thread wake-up, median of {} on {ranks} ranks", seen.wake_ups);
    median.samples = seen.samples_us;
    let mut tail = cx.measurement(Metric::LaunchTail, subject, seen.tail_us, span);
    tail.detail = format!("thread wake-up, 99th percentile of {}", seen.wake_ups);
    Ok(vec![median, tail])
}

/// The launch call of each GPU, and how long until the host sees the kernel's end.
fn of_gpus(cx: &Context<'_>, seen: &WakeUps, span: Span) -> Vec<Measurement> {
    let mut measurements = Vec::new();
    let measured = (0..).zip(&seen.per_rank).filter_map(|(rank, one)| Some((rank, one.as_ref()?)));
    for (rank, launches) in measured {
        let gpu = cx.gpu(rank);
        let mut call = cx.measurement(Metric::Launch, gpu.clone(), launches.call_us, span);
        call.detail = format!(
            "launch call, median; to the end of the kernel {:.1} µs, 99th percentile {:.1} µs",
            launches.done_us, launches.done_tail_us
        );
        call.samples.clone_from(&launches.samples_us);
        let mut tail = cx.measurement(Metric::LaunchTail, gpu, launches.call_tail_us, span);
        tail.detail = "launch call, 99th percentile".to_owned();
        measurements.extend([call, tail]);
    }
    measurements
}
