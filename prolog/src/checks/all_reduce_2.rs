//! `all_reduce_2`: all-reduce over the ranks of two nodes, all pairs of a round at the same time.

use diag::check::{CheckName, CheckSpec};
use diag::facts::NodeFacts;
use diag::measurement::{CheckError, Measurement, Metric, Subject};

use super::context::Span;
use super::{Check, Context, Run, Support, host_only};
use crate::protocol::{AllReduced, Busbw, Member, Reply, Request, Tag};

/// The check.
pub(super) struct AllReduce2;

impl Check for AllReduce2 {
    fn spec(&self) -> &'static CheckSpec {
        CheckName::AllReduce2.spec()
    }

    fn supported(&self, facts: &NodeFacts) -> Support {
        host_only(facts)
    }

    fn run<'a>(&'a self, cx: &'a mut Context<'_>) -> Run<'a> {
        Box::pin(measure(cx))
    }
}

async fn measure(cx: &mut Context<'_>) -> Result<Vec<Measurement>, CheckError> {
    let mut measurements = Vec::new();
    for (tag, group) in cx.groups() {
        let &[a, b] = group.as_slice() else { continue };
        let members = cx.members(&[a, b])?;
        let (reduced, span) = ask(cx, tag, members).await?;
        match reduced {
            AllReduced::Measured(busbw) => {
                measurements.extend(numbers(cx, Subject::Pair { a: a.min(b), b: a.max(b) }, &busbw, span));
            }
            AllReduced::Unreachable(mut ways) => {
                // Two ranks may have met the same way; one number says it.
                ways.dedup_by_key(|way| (way.from, way.to));
                measurements.extend(ways.iter().map(|way| cx.unreachable(way, 0.0, span)));
            }
        }
    }
    Ok(measurements)
}

/// Asks the worker for one all-reduce.
pub(super) async fn ask(
    cx: &mut Context<'_>,
    tag: Tag,
    members: Vec<Member>,
) -> Result<(AllReduced, Span), CheckError> {
    let (window_ms, limit_ms) = (cx.window_ms(), cx.limit_ms());
    let (reply, span) = cx.call(Request::AllReduce { tag, members, window_ms, limit_ms }, limit_ms).await?;
    match reply {
        Reply::AllReduce(reduced) => Ok((reduced, span)),
        other => Err(cx.nonsense(&other)),
    }
}

/// Bandwidth and correctness of `subject`.
pub(super) fn numbers(cx: &Context<'_>, subject: Subject, busbw: &Busbw, span: Span) -> Vec<Measurement> {
    let mut rate = cx.measurement(Metric::Busbw, subject.clone(), busbw.gb_per_s, span);
    rate.samples.clone_from(&busbw.samples);
    rate.detail = if busbw.limited {
        format!("the limit ran out: {} bytes in {:.2} s", busbw.moved_bytes, busbw.seconds)
    } else {
        format!("{} bytes, {} all-reduces in {:.2} s", busbw.bytes, busbw.iterations, busbw.seconds)
    };
    let correct = busbw.right.map(|right| {
        let mut correct = cx.measurement(Metric::Correct, subject, right, span);
        correct.detail = format!("{} sums verified", busbw.iterations);
        correct
    });
    std::iter::once(rate).chain(correct).collect()
}
