//! `network_connectivity`: connect, round trip and lost segments towards the other node of each group. Every
//! node measures the ways that start at it, so both ways of a pair are covered.

use diag::check::{CheckName, CheckSpec};
use diag::facts::NodeFacts;
use diag::measurement::{CheckError, ErrorKind, Measurement, Metric, Subject};
use diag::round::Mode;

use super::context::Span;
use super::{Check, Context, Run, Support, with_a_rank};
use crate::protocol::{
    MAX_SAMPLES, Member, PortResult, Reached, Reply, Request, SegmentSource, Tag, Target, Transferred,
    Unreachable,
};

/// Round trips a port: enough for a median that one late wake-up doesn't move.
const ROUND_TRIPS: u32 = 15;

/// Sent each way in [`Mode::Full`]: some 5 800 segments of 1 448 bytes, so that a loss of 3 % shows as about
/// 170 of them, while bandwidth alone would hide it.
const TRANSFER_BYTES: u64 = 8 << 20;

/// The check.
pub(super) struct NetworkConnectivity;

impl Check for NetworkConnectivity {
    fn spec(&self) -> &'static CheckSpec {
        CheckName::NetworkConnectivity.spec()
    }

    fn supported(&self, facts: &NodeFacts) -> Support {
        with_a_rank(facts)
    }

    fn run<'a>(&'a self, cx: &'a mut Context<'_>) -> Run<'a> {
        Box::pin(measure(cx))
    }
}

async fn measure(cx: &mut Context<'_>) -> Result<Vec<Measurement>, CheckError> {
    let groups = cx.groups();
    let Some(&(tag, _)) = groups.first() else { return Ok(Vec::new()) };
    let mut targets = Vec::new();
    for (_, group) in &groups {
        for &peer in group.iter().filter(|node| **node != cx.me) {
            targets.push(cx.target(peer)?);
        }
    }
    let limit_ms = cx.limit_ms();
    let request = Request::Connect { tag, targets: targets.clone(), round_trips: ROUND_TRIPS, limit_ms };
    let (reply, span) = cx.call(request, limit_ms).await?;
    let Reply::Connect(reached) = reply else { return Err(cx.nonsense(&reply)) };
    let mut measurements = Vec::new();
    let mut not_tried = 0;
    for (target, found) in targets.iter().zip(&reached) {
        match path(cx, target, found, span) {
            Some(numbers) => measurements.extend(numbers),
            None => not_tried += 1,
        }
    }
    if measurements.is_empty() && not_tried > 0 {
        let message = format!("network_connectivity: {limit_ms} ms were over before any peer could be tried");
        return Err(CheckError { kind: ErrorKind::Timeout, message });
    }
    if cx.round.mode == Mode::Full {
        for (target, found) in targets.iter().zip(&reached) {
            let reached = |port: &PortResult| matches!(port, PortResult::Reached { .. });
            if let Some(index) = found.ports.iter().position(reached) {
                measurements.push(transfer(cx, tag, target, index).await?);
            }
        }
    }
    Ok(measurements)
}

/// Connect, round trip and reachability of one way; `None`: its turn never came.
fn path(cx: &Context<'_>, target: &Target, found: &Reached, span: Span) -> Option<Vec<Measurement>> {
    let subject = || Subject::Path { from: cx.me, to: target.node };
    let mut connects = Vec::new();
    let mut trips: Vec<f64> = Vec::new();
    let mut refused = Vec::new();
    for port in &found.ports {
        match port {
            PortResult::Reached { connect_ms, round_trips_ms } => {
                connects.push(*connect_ms);
                trips.extend(round_trips_ms);
            }
            PortResult::Unreachable { port, why } => refused.push((*port, why.as_str())),
            PortResult::NotTried => {}
        }
    }
    let tried = connects.len() + refused.len();
    if tried == 0 {
        return None;
    }
    let mut measurements = Vec::new();
    let slowest = connects.iter().copied().reduce(f64::max);
    if let Some(slowest) = slowest {
        let mut connect = cx.measurement(Metric::Connect, subject(), slowest, span);
        connect.samples = connects.iter().copied().take(MAX_SAMPLES).collect();
        measurements.push(connect);
        trips.sort_by(f64::total_cmp);
        if let Some(median) = trips.get(trips.len() / 2) {
            let mut trip = cx.measurement(Metric::RoundTrip, subject(), *median, span);
            trip.samples = trips.iter().copied().take(MAX_SAMPLES).collect();
            measurements.push(trip);
        }
    }
    let share = connects.len() as f64 / tried as f64;
    measurements.push(reachable(cx, target, &refused, share, span));
    Some(measurements)
}

/// Which of the peer's ports could be reached; the detail names the ones that could not.
fn reachable(
    cx: &Context<'_>,
    target: &Target,
    refused: &[(u16, &str)],
    share: f64,
    span: Span,
) -> Measurement {
    let way = |&(port, why): &(u16, &str)| Unreachable {
        from: cx.me,
        to: target.node,
        address: target.address,
        port,
        why: why.to_owned(),
    };
    let mut refused = refused.iter();
    let Some(first) = refused.next() else {
        return cx.measurement(
            Metric::Reachable,
            Subject::Path { from: cx.me, to: target.node },
            share,
            span,
        );
    };
    let mut measurement = cx.unreachable(&way(first), share, span);
    let more: Vec<String> = refused.map(|(port, why)| format!("; port {port} {why}")).collect();
    measurement.detail.push_str(&more.concat());
    measurement
}

/// The share of segments that had to be sent again towards `target`.
async fn transfer(
    cx: &mut Context<'_>,
    tag: Tag,
    target: &Target,
    index: usize,
) -> Result<Measurement, CheckError> {
    let limit_ms = cx.limit_ms();
    let (peer, rank) = (target.node, u32::try_from(index).unwrap_or(u32::MAX));
    let target = Member { node: peer, rank, address: target.address, port: target.ports[index] };
    let request = Request::Transfer { tag, target, bytes: TRANSFER_BYTES, limit_ms };
    let (reply, span) = cx.call(request, limit_ms).await?;
    match reply {
        Reply::Transfer(Transferred::Sent { bytes, seconds, segments, retransmitted, source }) => {
            let share = retransmitted as f64 / segments.max(1) as f64;
            let subject = Subject::Path { from: cx.me, to: peer };
            let mut measurement = cx.measurement(Metric::Retransmits, subject, share, span);
            measurement.detail = format!(
                "{retransmitted} of {segments} segments sent again, {bytes} bytes in {seconds:.3} s{}",
                match source {
                    SegmentSource::Connection => "",
                    SegmentSource::Namespace => "; counted over all traffic of the node",
                }
            );
            Ok(measurement)
        }
        Reply::Transfer(Transferred::Unreachable(way)) => Ok(cx.unreachable(&way, 0.0, span)),
        other => Err(cx.nonsense(&other)),
    }
}
