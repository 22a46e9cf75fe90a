//! `pytorch_gloo_2`: PyTorch's Gloo all-reduce between two nodes, by the site's python, with the address that
//! Gloo chooses by the node's name. Without torch on both, the project's own ring runs, and the detail says so.

use cluster::trusted_path;
use diag::check::{CheckName, CheckSpec};
use diag::facts::{NodeFacts, NodeId};
use diag::measurement::{CheckError, ErrorKind, Measurement, Subject};

use super::collective::{numbers, unreachable};
use super::{Check, Context, Run, Support, with_a_rank};
use crate::protocol::{Collected, Collective, Gloo, Glooed, Reply, Request};

/// The check.
pub(super) struct PytorchGloo2;

impl Check for PytorchGloo2 {
    fn spec(&self) -> &'static CheckSpec {
        CheckName::PytorchGloo2.spec()
    }

    fn supported(&self, facts: &NodeFacts) -> Support {
        with_a_rank(facts)
    }

    fn run<'a>(&'a self, cx: &'a mut Context<'_>) -> Run<'a> {
        Box::pin(measure(cx))
    }
}

fn environment(message: String) -> CheckError {
    CheckError { kind: ErrorKind::Environment, message: format!("pytorch_gloo_2: {message}") }
}

async fn measure(cx: &mut Context<'_>) -> Result<Vec<Measurement>, CheckError> {
    let path = &cx.policy.paths.python;
    let there = trusted_path::program(path).map_err(|error| environment(format!("paths.python: {error}")))?;
    let python = there.then(|| path.clone());
    let mut measurements = Vec::new();
    for (tag, group) in cx.groups() {
        let &[a, b] = group.as_slice() else { continue };
        let subject = Subject::Pair { a: a.min(b), b: a.max(b) };
        let (limit_ms, start_ms) = (cx.limit_ms(), cx.torch_start_ms());
        let request = Request::Gloo(Gloo {
            tag,
            members: cx.members(&[a.min(b), a.max(b)])?,
            python: python.clone(),
            interface: cx.policy.network.interface.clone(),
            port_first: cx.policy.network.port_first,
            port_last: cx.policy.network.port_last,
            window_ms: cx.window_ms(),
            limit_ms,
            start_ms,
        });
        let (reply, span) = cx.call(request, limit_ms + start_ms).await?;
        let Reply::Gloo(glooed) = reply else { return Err(cx.nonsense(&reply)) };
        match glooed {
            Glooed::Torch { busbw, version, addresses } => {
                let places: Vec<String> = addresses
                    .iter()
                    .map(|(node, address)| format!("{} at {address}", cx.roster.name(*node)))
                    .collect();
                let engine = format!("engine: torch {version} (Gloo: {})", places.join(", "));
                measurements
                    .extend(said(numbers(cx, subject, (Collective::AllReduce, &busbw), span), &engine));
            }
            Glooed::Ring { collected: Collected::Measured(busbw), lacking } => {
                let engine = without_torch(cx, &lacking);
                measurements
                    .extend(said(numbers(cx, subject, (Collective::AllReduce, &busbw), span), &engine));
            }
            Glooed::Ring { collected: Collected::Unreachable(ways), lacking } => {
                let engine = without_torch(cx, &lacking);
                measurements.extend(said(unreachable(cx, ways, span), &engine));
            }
            Glooed::Unreachable(ways) => measurements.extend(unreachable(cx, ways, span)),
            Glooed::Broken { message } => {
                let here = cx.roster.name(cx.me);
                return Err(environment(format!("{here}: {}: {message}", path.display())));
            }
            // No GPU takes part in a ring over TCP.
            Glooed::Ring { collected: Collected::Broken(_), .. } => {}
            // The other node gives the error; this one has nothing to show.
            Glooed::PeerBroken | Glooed::Ring { collected: Collected::PeerBroken, .. } => {}
        }
    }
    Ok(measurements)
}

/// Which nodes have no torch, and why.
fn without_torch(cx: &Context<'_>, lacking: &[(NodeId, String)]) -> String {
    let who: Vec<String> =
        lacking.iter().map(|(node, why)| format!("{}: {why}", cx.roster.name(*node))).collect();
    format!("engine: ring (no torch); {}", who.join("; "))
}

/// The same with the engine in front of what they say already.
fn said(mut measurements: Vec<Measurement>, engine: &str) -> Vec<Measurement> {
    for measurement in &mut measurements {
        measurement.detail = format!("{engine}; {}", measurement.detail);
    }
    measurements
}
