//! `gemm_flops`: matrix products on all ranks of the node at once. On the host engine the finished products of
//! a window are counted, because the best single one hides a processor limit; of GPUs each is measured by itself, by
//! its own events.

use diag::check::{CheckName, CheckSpec};
use diag::facts::{Engine, NodeFacts};
use diag::measurement::{CheckError, Measurement, Metric, Subject};

use super::context::Span;
use super::{Check, Context, Run, Support, with_a_rank};
use crate::protocol::{Products, Reply, Request};

/// The check.
pub(super) struct GemmFlops;

impl Check for GemmFlops {
    fn spec(&self) -> &'static CheckSpec {
        CheckName::GemmFlops.spec()
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
    let (reply, span) = cx.call(Request::Product { window_ms, limit_ms, ranks }, limit_ms).await?;
    let Reply::Product(products) = reply else { return Err(cx.nonsense(&reply)) };
    cx.unmeasured(&products.troubles);
    if products.products == 0 && products.troubles.is_empty() {
        return Err(cx.starved("matrix product"));
    }
    if cx.policy.engine == Engine::Cuda {
        let mut measurements = of_gpus(cx, &products, span);
        // Half a window: fp8 products take half the time of the others.
        let request = Request::Fp8Product { window_ms: window_ms.div_ceil(2), limit_ms };
        let (reply, span) = cx.call(request, limit_ms).await?;
        let Reply::Product(fp8) = reply else { return Err(cx.nonsense(&reply)) };
        cx.unmeasured(&fp8.troubles);
        measurements.extend(in_fp8(cx, &fp8, span));
        return Ok(measurements);
    }
    let subject = Subject::Node { node: cx.me };
    let mut flops = cx.measurement(Metric::Flops, subject.clone(), products.tflop_per_s, span);
    flops.detail = format!("{} products by {ranks} ranks in {:.2} s", products.products, products.seconds);
    flops.samples = products.per_rank;
    let correct = cx.measurement(Metric::Correct, subject, products.right, span);
    Ok(vec![flops, correct])
}

/// The same of the products in fp8, of the GPUs that have it.
fn in_fp8(cx: &Context<'_>, products: &Products, span: Span) -> Vec<Measurement> {
    let has_none = |gpu: &Subject| {
        (0..).zip(&products.per_rank).any(|(rank, rate)| *rate == 0.0 && cx.gpu(rank) == *gpu)
    };
    let mut measurements = of_gpus(cx, products, span);
    measurements.retain(|one| !has_none(&one.subject));
    for one in &mut measurements {
        match one.metric {
            Metric::Flops => one.metric = Metric::Fp8Flops,
            Metric::Fingerprint => one.detail.push_str(", fp8"),
            _ if !one.detail.is_empty() => one.detail.insert_str(0, "in fp8 "),
            _ => {}
        }
    }
    measurements
}

/// The rate, the right results and the bits of each GPU's product.
pub(super) fn of_gpus(cx: &Context<'_>, products: &Products, span: Span) -> Vec<Measurement> {
    let mut measurements = Vec::new();
    let measured = |rank: &u32| products.troubles.iter().all(|trouble| trouble.rank != *rank);
    for (rank, rate) in (0..).zip(&products.per_rank).filter(|(rank, _)| measured(rank)) {
        let gpu = cx.gpu(rank);
        let model = cx.gpus().get(rank as usize).map_or("", |gpu| gpu.model.as_str());
        let mut flops = cx.measurement(Metric::Flops, gpu.clone(), *rate, span);
        flops.detail = model.to_owned();
        flops.facts = cx.seen(rank, products);
        let wrong = products.wrong.iter().find(|(at, _)| *at == rank);
        let mut correct =
            cx.measurement(Metric::Correct, gpu.clone(), if wrong.is_some() { 0.0 } else { 1.0 }, span);
        correct.detail = wrong.map(|(_, why)| why.clone()).unwrap_or_default();
        measurements.extend([flops, correct]);
        if let Some(bits) = products.fingerprints.get(rank as usize) {
            // The upper 53 bits are exact in a double.
            let mut print = cx.measurement(Metric::Fingerprint, gpu, (bits >> 11) as f64, span);
            print.detail = format!("{model}, {}", products.library);
            measurements.push(print);
        }
    }
    measurements
}
