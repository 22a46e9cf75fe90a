//! `gemm_flops`: matrix products on all ranks of the node at once. On the host engine the finished products of
//! a window are counted, because the best single one hides a processor limit.

use diag::check::{CheckName, CheckSpec};
use diag::facts::NodeFacts;
use diag::measurement::{CheckError, Measurement, Metric, Subject};

use super::{Check, Context, Run, Support, host_only};
use crate::protocol::{Reply, Request};

/// The check.
pub(super) struct GemmFlops;

impl Check for GemmFlops {
    fn spec(&self) -> &'static CheckSpec {
        CheckName::GemmFlops.spec()
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
    let (reply, span) = cx.call(Request::Product { window_ms, limit_ms, ranks }, limit_ms).await?;
    let Reply::Product(products) = reply else { return Err(cx.nonsense(&reply)) };
    if products.products == 0 {
        return Err(cx.starved("matrix product"));
    }
    let subject = Subject::Node { node: cx.me };
    let mut flops = cx.measurement(Metric::Flops, subject.clone(), products.tflop_per_s, span);
    flops.detail = format!("{} products by {ranks} ranks in {:.2} s", products.products, products.seconds);
    flops.samples = products.per_rank;
    let correct = cx.measurement(Metric::Correct, subject, products.right, span);
    Ok(vec![flops, correct])
}
