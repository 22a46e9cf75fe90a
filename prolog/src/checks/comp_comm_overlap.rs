//! `comp_comm_overlap`: products and an all-reduce inside the node, each alone and then both at once.

use diag::check::{CheckName, CheckSpec};
use diag::facts::{Engine, NodeFacts};
use diag::measurement::{CheckError, Measurement, Metric, Subject};

use super::context::Span;
use super::{Check, Context, Run, Support, all_reduce_1, gemm_flops, with_two_ranks};
use crate::protocol::{Busbw, Overlap, Overlapped, Products, Reply, Request, Tag};

/// The check.
pub(super) struct CompCommOverlap;

impl Check for CompCommOverlap {
    fn spec(&self) -> &'static CheckSpec {
        CheckName::CompCommOverlap.spec()
    }

    fn supported(&self, facts: &NodeFacts) -> Support {
        with_two_ranks(facts)
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
    if !products_alone.troubles.is_empty() {
        // An all-reduce lacks those GPUs.
        cx.unmeasured(&products_alone.troubles);
        return Ok(Vec::new());
    }
    let (reply, span) = cx.call(Request::Overlap { tag, members, window_ms, limit_ms }, limit_ms).await?;
    let overlap = match reply {
        Reply::Overlap(Overlapped::Measured(overlap)) => overlap,
        Reply::Overlap(Overlapped::Broken(troubles)) => {
            cx.unmeasured(&troubles);
            return Ok(Vec::new());
        }
        Reply::Overlap(Overlapped::Unreachable(ways)) => return Err(all_reduce_1::cut_off(cx, &ways)),
        other => return Err(cx.nonsense(&other)),
    };
    let span = Span { started_at: alone.started_at, ..span };
    let Overlap { busbw_alone, products, busbw } = *overlap;
    if products_alone.products == 0 || products.products == 0 {
        return Err(cx.starved("matrix product"));
    }
    let subject = Subject::Node { node: cx.me };
    if cx.policy.engine == Engine::Cuda {
        let mut measurements = of_gpus(cx, (&products_alone, &products), span);
        measurements.push(rate(cx, subject.clone(), &busbw_alone, &busbw, span));
        let sums = [busbw_alone.right, busbw.right].into_iter().flatten().fold(1.0, f64::min);
        measurements.push(cx.measurement(Metric::Correct, subject, sums, span));
        return Ok(measurements);
    }
    let mut flops = cx.measurement(Metric::Flops, subject.clone(), products.tflop_per_s, span);
    flops.detail = format!(
        "{}; {:.4} TFLOP/s alone",
        slow_down("all-reduce", products_alone.tflop_per_s, products.tflop_per_s),
        products_alone.tflop_per_s
    );
    flops.samples = products.per_rank;
    let rate = rate(cx, subject.clone(), &busbw_alone, &busbw, span);
    let sums = [busbw_alone.right, busbw.right].into_iter().flatten().fold(1.0, f64::min);
    let multiplied = products_alone.right.min(products.right);
    let mut correct = cx.measurement(Metric::Correct, subject, sums.min(multiplied), span);
    correct.detail =
        format!("share of right products {multiplied}, of right sums {sums}, the worse of alone and at once");
    Ok(vec![flops, rate, correct])
}

fn rate(cx: &Context<'_>, subject: Subject, alone: &Busbw, at_once: &Busbw, span: Span) -> Measurement {
    let mut rate = cx.measurement(Metric::Busbw, subject, at_once.gb_per_s, span);
    rate.detail = format!(
        "{}; {:.3} GB/s alone{}",
        slow_down("products", alone.gb_per_s, at_once.gb_per_s),
        alone.gb_per_s,
        if at_once.limited { "; the limit ran out" } else { "" }
    );
    rate.samples.clone_from(&at_once.samples);
    rate
}

/// The products of each GPU beside the all-reduce.
fn of_gpus(cx: &Context<'_>, (alone, at_once): (&Products, &Products), span: Span) -> Vec<Measurement> {
    // What was wrong alone is wrong.
    let at_once = Products {
        wrong: alone.wrong.clone(),
        fingerprints: alone.fingerprints.clone(),
        library: alone.library.clone(),
        ..at_once.clone()
    };
    let mut measurements = gemm_flops::of_gpus(cx, &at_once, span);
    let rates = measurements.iter_mut().filter(|one| one.metric == Metric::Flops);
    for (one, alone) in rates.zip(&alone.per_rank) {
        one.detail = format!("{}; {alone:.1} TFLOP/s alone", slow_down("all-reduce", *alone, one.value));
    }
    measurements
}

/// What `beside` costs, for a person.
fn slow_down(beside: &str, alone: f64, at_once: f64) -> String {
    if at_once > 0.0 {
        format!("{:.2} times slower beside the {beside}", alone / at_once)
    } else {
        format!("nothing done beside the {beside}")
    }
}
