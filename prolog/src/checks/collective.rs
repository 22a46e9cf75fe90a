//! What the checks that measure a collective between nodes have in common: which ranks form which communicator,
//! and what the numbers are about. The checks themselves are one file each.

use diag::check::{CheckName, CheckSpec, Scope};
use diag::facts::{Engine, NodeFacts, NodeId};
use diag::measurement::{CheckError, ErrorKind, Measurement, Metric, Subject};
use diag::round::{Purpose, Round};

use super::context::Span;
use super::{Check, Context, Run, Support, with_a_rank};
use crate::protocol::{Busbw, Collected, Collective, Member, Reply, Request, Tag, Unreachable};

/// A check that measures one collective.
pub(super) struct CollectiveCheck {
    pub name: CheckName,
    pub collective: Collective,
    /// Rank i of every node forms communicator i, all at the same time; else all ranks form one.
    pub by_rail: bool,
}

impl Check for CollectiveCheck {
    fn spec(&self) -> &'static CheckSpec {
        self.name.spec()
    }

    fn supported(&self, facts: &NodeFacts) -> Support {
        with_a_rank(facts)
    }

    fn run<'a>(&'a self, cx: &'a mut Context<'_>) -> Run<'a> {
        Box::pin(self.measure(cx))
    }
}

impl CollectiveCheck {
    async fn measure(&self, cx: &mut Context<'_>) -> Result<Vec<Measurement>, CheckError> {
        let mut measurements = Vec::new();
        for (tag, group) in cx.groups() {
            if group.len() < 2 {
                let message =
                    format!("{}: one node has nobody to exchange data with; ask for two or more", self.name);
                return Err(CheckError { kind: ErrorKind::Environment, message });
            }
            let members = as_many_each(cx.members(&group)?);
            let communicators = if self.by_rail { rails(&members) } else { vec![members] };
            let (collected, span) = ask(cx, tag, self.collective, communicators).await?;
            let about = About::of(cx.round, &group);
            let mut ways = Vec::new();
            for (rail, collected) in (0..).zip(collected) {
                match collected {
                    Collected::Measured(busbw) => {
                        let subject = about.subject(self.by_rail.then_some(rail));
                        measurements.extend(numbers(cx, subject, (self.collective, &busbw), span));
                    }
                    Collected::Unreachable(met) => ways.extend(met),
                    Collected::Broken(troubles) => cx.unmeasured(&troubles),
                    // The other node gives the error; this one has nothing to show.
                    Collected::PeerBroken => {}
                }
            }
            measurements.extend(unreachable(cx, ways, span));
        }
        Ok(measurements)
    }
}

/// What the numbers of a group are about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum About {
    Pair(NodeId, NodeId),
    Fabric,
}

impl About {
    /// The one rule: two nodes are a pair, except in the first look of a check of all nodes, which is about the
    /// fabric however few nodes are left for it.
    fn of(round: &Round, group: &[NodeId]) -> Self {
        let first_of_all = round.check.spec().scope == Scope::All && round.purpose == Purpose::First;
        match *group {
            [a, b] if !first_of_all => Self::Pair(a.min(b), a.max(b)),
            _ => Self::Fabric,
        }
    }

    fn subject(self, rail: Option<u32>) -> Subject {
        match (self, rail) {
            (Self::Pair(a, b), None) => Subject::Pair { a, b },
            (Self::Pair(a, b), Some(rail)) => Subject::PairRail { a, b, rail },
            (Self::Fabric, None) => Subject::Fabric,
            (Self::Fabric, Some(rail)) => Subject::FabricRail { rail },
        }
    }
}

/// As many ranks of each node as the one with the fewest has: with more on one side the numbers would be about the
/// difference.
fn as_many_each(mut members: Vec<Member>) -> Vec<Member> {
    let mut counts: std::collections::BTreeMap<NodeId, u32> = std::collections::BTreeMap::new();
    for member in &members {
        *counts.entry(member.node).or_default() += 1;
    }
    let fewest = counts.into_values().min().unwrap_or(0);
    members.retain(|member| member.rank < fewest);
    members
}

/// Rank i of every node, for each i that all nodes have.
fn rails(members: &[Member]) -> Vec<Vec<Member>> {
    let of =
        |rank: u32| -> Vec<Member> { members.iter().filter(|member| member.rank == rank).copied().collect() };
    let nodes = of(0).len();
    (0..).map(of).take_while(|rail| !rail.is_empty() && rail.len() == nodes).collect()
}

/// Asks the worker for a collective on each communicator.
pub(super) async fn ask(
    cx: &mut Context<'_>,
    tag: Tag,
    collective: Collective,
    communicators: Vec<Vec<Member>>,
) -> Result<(Vec<Collected>, Span), CheckError> {
    let (window_ms, limit_ms, count) = (cx.window_ms(), cx.limit_ms(), communicators.len());
    let request = Request::Collective { tag, collective, communicators, window_ms, limit_ms };
    let (reply, span) = cx.call(request, limit_ms).await?;
    match reply {
        Reply::Collective(collected) if collected.len() == count => Ok((collected, span)),
        other => Err(cx.nonsense(&other)),
    }
}

/// Bandwidth at each size, and correctness, of `subject`.
pub(super) fn numbers(
    cx: &Context<'_>,
    subject: Subject,
    (collective, busbw): (Collective, &Busbw),
    span: Span,
) -> Vec<Measurement> {
    let what = collective.plural();
    let by_size = cx.policy.engine == Engine::Cuda;
    let detail = if busbw.limited {
        format!("the limit ran out: {} bytes in {:.2} s", busbw.moved_bytes, busbw.seconds)
    } else if by_size {
        format!("{} {what} in {:.2} s", busbw.iterations, busbw.seconds)
    } else {
        format!("{} bytes, {} {what} in {:.2} s", busbw.bytes, busbw.iterations, busbw.seconds)
    };
    let rate = |bytes: u64, gb_per_s: f64| {
        let mut rate = cx.measurement(Metric::Busbw, subject.clone(), gb_per_s, span);
        // A collective that gave out belongs to no size.
        rate.bytes = Some(bytes).filter(|bytes| by_size && *bytes > 0);
        rate.detail.clone_from(&detail);
        rate
    };
    let mut largest = rate(busbw.bytes, busbw.gb_per_s);
    largest.samples.clone_from(&busbw.samples);
    let mut numbers: Vec<Measurement> =
        busbw.smaller.iter().map(|(bytes, gb_per_s)| rate(*bytes, *gb_per_s)).collect();
    numbers.push(largest);
    numbers.extend(busbw.right.map(|right| {
        let mut correct = cx.measurement(Metric::Correct, subject.clone(), right, span);
        correct.detail = format!("{} {what} verified", busbw.iterations);
        correct
    }));
    numbers
}

/// Ways that do not work, each once: several ranks may have met the same one.
pub(super) fn unreachable(cx: &Context<'_>, mut ways: Vec<Unreachable>, span: Span) -> Vec<Measurement> {
    ways.sort_by_key(|way| (way.from, way.to, way.port));
    ways.dedup_by_key(|way| (way.from, way.to));
    ways.iter().map(|way| cx.unreachable(way, 0.0, span)).collect()
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use diag::round::Mode;

    use super::*;

    fn about(check: CheckName, purpose: Purpose, group: &[NodeId]) -> About {
        let round = Round { index: 0, check, purpose, mode: Mode::Full, groups: vec![group.to_vec()] };
        About::of(&round, group)
    }

    #[test]
    fn two_nodes_are_a_pair_unless_they_are_all_there_is() {
        for purpose in [Purpose::First, Purpose::Confirm, Purpose::Localise] {
            assert_eq!(about(CheckName::AllReduce2, purpose, &[4, 2]), About::Pair(2, 4));
            assert_eq!(about(CheckName::AllReduce, purpose, &[0, 1, 2]), About::Fabric);
        }
        assert_eq!(about(CheckName::MultiAllReduce, Purpose::First, &[0, 1]), About::Fabric);
        assert_eq!(about(CheckName::AllGather, Purpose::Localise, &[0, 1]), About::Pair(0, 1));
        assert_eq!(about(CheckName::AllGather, Purpose::Confirm, &[0, 1]), About::Pair(0, 1));
    }

    // L11.
    #[test]
    fn a_rail_is_one_rank_of_every_node() {
        let member = |node, rank| Member { node, rank, address: IpAddr::V4(Ipv4Addr::LOCALHOST), port: 1 };
        // Node 2 has one rank more.
        let members = [member(0, 0), member(0, 1), member(2, 0), member(2, 1), member(2, 2)];
        let each: Vec<(u32, u32)> =
            as_many_each(members.to_vec()).iter().map(|member| (member.node, member.rank)).collect();
        assert_eq!(each, [(0, 0), (0, 1), (2, 0), (2, 1)]);
        let rails = rails(&members);
        assert_eq!(rails, [[member(0, 0), member(2, 0)], [member(0, 1), member(2, 1)]]);
    }
}
