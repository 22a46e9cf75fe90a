//! `comp_comm_overlap`: products and an all-reduce inside the node, each alone and then both at once.

use diag::check::{CheckName, CheckSpec};
use diag::facts::NodeFacts;
use diag::measurement::{CheckError, Measurement, Metric, Subject};

use super::context::Span;
use super::{Check, Context, Run, Support, all_reduce_1, host_with_two_ranks};
use crate::protocol::{Overlap, Overlapped, Reply, Request, Tag};

/// The check.
pub(super) struct CompCommOverlap;

impl Check for CompCommOverlap {
    fn spec(&self) -> &'static CheckSpec {
        CheckName::CompCommOverlap.spec()
    }

    fn supported(&self, facts: &NodeFacts) -> Support {
        host_with_two_ranks(facts)
    }

    fn run<'a>(&'a self, cx: &'a mut Context<'_>) -> Run<'a> {
        Box::pin(measure(cx))
    }
}

async fn measure(cx: &mut Context<'_>) -> Result<Vec<Measurement>, CheckError> {
    let members = all_reduce_1::inside(cx)?;
    let ranks = u32::try_from(members.len()).unwrap_or(u32::MAX);
    let tag = Tag { round: cx.round.index, group: cx.me };
    let (window_ms, limit_ms) = (cx.window_ms(), cx.limit_ms());
    let (reply, alone) = cx.call(Request::Product { window_ms, limit_ms, ranks }, limit_ms).await?;
    let Reply::Product(products_alone) = reply else { return Err(cx.nonsense(&reply)) };
    let (reply, span) = cx.call(Request::Overlap { tag, members, window_ms, limit_ms }, limit_ms).await?;
    let overlap = match reply {
        Reply::Overlap(Overlapped::Measured(overlap)) => overlap,
        Reply::Overlap(Overlapped::Unreachable(ways)) => return Err(all_reduce_1::cut_off(cx, &ways)),
        other => return Err(cx.nonsense(&other)),
    };
    let span = Span { started_at: alone.started_at, ..span };
    let Overlap { busbw_alone, products, busbw } = *overlap;
    if products_alone.products == 0 || products.products == 0 {
        return Err(cx.starved("matrix product"));
    }
    let subject = Subject::Node { node: cx.me };
    let mut flops = cx.measurement(Metric::Flops, subject.clone(), products.tflop_per_s, span);
    flops.detail = format!(
        "{}; {:.4} TFLOP/s alone",
        slow_down("all-reduce", products_alone.tflop_per_s, products.tflop_per_s),
        products_alone.tflop_per_s
    );
    flops.samples = products.per_rank;
    let mut rate = cx.measurement(Metric::Busbw, subject.clone(), busbw.gb_per_s, span);
    rate.detail = format!(
        "{}; {:.3} GB/s alone{}",
        slow_down("products", busbw_alone.gb_per_s, busbw.gb_per_s),
        busbw_alone.gb_per_s,
        if busbw.limited { "; the limit ran out" } else { "" }
    );
    rate.samples = busbw.samples;
    let sums = [busbw_alone.right, busbw.right].into_iter().flatten().fold(1.0, f64::min);
    let multiplied = products_alone.right.min(products.right);
    let mut correct = cx.measurement(Metric::Correct, subject, sums.min(multiplied), span);
    correct.detail =
        format!("share of right products {multiplied}, of right sums {sums}, the worse of alone and at once");
    Ok(vec![flops, rate, correct])
}

/// What `beside` costs, for a person.
fn slow_down(beside: &str, alone: f64, at_once: f64) -> String {
    if at_once > 0.0 {
        format!("{:.2} times slower beside the {beside}", alone / at_once)
    } else {
        format!("nothing done beside the {beside}")
    }
}
