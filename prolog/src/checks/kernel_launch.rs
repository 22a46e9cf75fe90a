//! `kernel_launch`: how long work takes to start once it was asked for. On the host engine a thread's wake-up
//! stands for a kernel's launch.

use diag::check::{CheckName, CheckSpec};
use diag::facts::NodeFacts;
use diag::measurement::{CheckError, Measurement, Metric, Subject};

use super::{Check, Context, Run, Support, host_only};
use crate::protocol::{Reply, Request};

/// The check.
pub(super) struct KernelLaunch;

impl Check for KernelLaunch {
    fn spec(&self) -> &'static CheckSpec {
        CheckName::KernelLaunch.spec()
    }

    fn supported(&self, facts: &NodeFacts) -> Support {
        host_only(facts)
    }

    fn run<'a>(&'a self, cx: &'a mut Context<'_>) -> Run<'a> {
        Box::pin(measure(cx))
    }
}

async fn measure(cx: &mut Context<'_>) -> Result<Vec<Measurement>, CheckError> {
    let (window_ms, limit_ms, ranks) = (cx.window_ms(), cx.limit_ms(), cx.policy.host.ranks_per_node);
    let (reply, span) = cx.call(Request::WakeUp { window_ms, limit_ms, ranks }, limit_ms).await?;
    let Reply::WakeUp(seen) = reply else { return Err(cx.nonsense(&reply)) };
    if seen.wake_ups == 0 {
        return Err(cx.starved("wake-up of a thread"));
    }
    let subject = Subject::Node { node: cx.me };
    let mut median = cx.measurement(Metric::Launch, subject.clone(), seen.median_us, span);
    median.detail = format!("thread wake-up, median of {} on {ranks} ranks", seen.wake_ups);
    median.samples = seen.samples_us;
    let mut tail = cx.measurement(Metric::LaunchTail, subject, seen.tail_us, span);
    tail.detail = format!("thread wake-up, 99th percentile of {}", seen.wake_ups);
    Ok(vec![median, tail])
}
