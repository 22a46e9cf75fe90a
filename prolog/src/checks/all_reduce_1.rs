//! `all_reduce_1`: all-reduce over the ranks of one node. The host engine goes over the loopback device.

use std::net::{IpAddr, Ipv4Addr};

use diag::check::{CheckName, CheckSpec};
use diag::facts::NodeFacts;
use diag::measurement::{CheckError, ErrorKind, Measurement, Subject};

use super::all_reduce_2::{ask, numbers};
use super::{Check, Context, Run, Support, host_only, needs_two_ranks};
use crate::protocol::{AllReduced, Tag};

/// The check.
pub(super) struct AllReduce1;

impl Check for AllReduce1 {
    fn spec(&self) -> &'static CheckSpec {
        CheckName::AllReduce1.spec()
    }

    fn supported(&self, facts: &NodeFacts) -> Support {
        match host_only(facts) {
            Support::Yes => needs_two_ranks(facts),
            no => no,
        }
    }

    fn run<'a>(&'a self, cx: &'a mut Context<'_>) -> Run<'a> {
        Box::pin(measure(cx))
    }
}

async fn measure(cx: &mut Context<'_>) -> Result<Vec<Measurement>, CheckError> {
    let mut members = cx.members(&[cx.me])?;
    for member in &mut members {
        // Inside the node: the way must not depend on any network device.
        member.address = IpAddr::V4(Ipv4Addr::LOCALHOST);
    }
    let tag = Tag { round: cx.round.index, group: cx.me };
    let (reduced, span) = ask(cx, tag, members).await?;
    match reduced {
        AllReduced::Measured(busbw) => Ok(numbers(cx, Subject::Node { node: cx.me }, &busbw, span)),
        AllReduced::Unreachable(ways) => {
            let why = ways.first().map_or("", |way| way.why.as_str());
            let message = format!(
                "all_reduce_1: the ranks of {} can't reach each other over loopback: {why}",
                cx.roster.name(cx.me)
            );
            Err(CheckError { kind: ErrorKind::Environment, message })
        }
    }
}
