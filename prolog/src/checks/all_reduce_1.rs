//! `all_reduce_1`: all-reduce over the ranks of one node. The host engine goes over the loopback device.

use std::net::{IpAddr, Ipv4Addr};

use diag::check::{CheckName, CheckSpec};
use diag::facts::NodeFacts;
use diag::measurement::{CheckError, ErrorKind, Measurement, Subject};

use super::collective::{ask, numbers};
use super::{Check, Context, Run, Support, with_two_ranks};
use crate::protocol::{Collected, Collective, Member, Tag, Unreachable};

/// The check.
pub(super) struct AllReduce1;

impl Check for AllReduce1 {
    fn spec(&self) -> &'static CheckSpec {
        CheckName::AllReduce1.spec()
    }

    fn supported(&self, facts: &NodeFacts) -> Support {
        with_two_ranks(facts)
    }

    fn run<'a>(&'a self, cx: &'a mut Context<'_>) -> Run<'a> {
        Box::pin(measure(cx))
    }
}

async fn measure(cx: &mut Context<'_>) -> Result<Vec<Measurement>, CheckError> {
    let members = inside(cx)?;
    let tag = Tag { round: cx.round.index, group: cx.me };
    let (collected, span) = ask(cx, tag, Collective::AllReduce, vec![members]).await?;
    let mut measurements = Vec::new();
    for collected in collected {
        match collected {
            Collected::Measured(busbw) => {
                let subject = Subject::Node { node: cx.me };
                measurements.extend(numbers(cx, subject, (Collective::AllReduce, &busbw), span));
            }
            Collected::Unreachable(ways) => return Err(cut_off(cx, &ways)),
            Collected::Broken(troubles) => cx.unmeasured(&troubles),
            // There is no other node.
            Collected::PeerBroken => {}
        }
    }
    Ok(measurements)
}

/// This node's ranks, so that they reach each other inside it: the way must not depend on any network device.
pub(super) fn inside(cx: &Context<'_>) -> Result<Vec<Member>, CheckError> {
    let mut members = cx.members(&[cx.me])?;
    for member in &mut members {
        member.address = IpAddr::V4(Ipv4Addr::LOCALHOST);
    }
    Ok(members)
}

/// The ranks of one node don't reach each other, which is no fault of any link.
pub(super) fn cut_off(cx: &Context<'_>, ways: &[Unreachable]) -> CheckError {
    let why = ways.first().map_or("", |way| way.why.as_str());
    let message = format!(
        "{}: the ranks of {} can't reach each other over loopback: {why}",
        cx.round.check,
        cx.roster.name(cx.me)
    );
    CheckError { kind: ErrorKind::Environment, message }
}
