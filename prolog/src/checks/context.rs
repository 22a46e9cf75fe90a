//! What a check may use: the round, this node's place in it, the roster, the policy and the worker. It sends
//! nothing to other nodes; that is the session's part.

use std::net::IpAddr;
use std::time::Duration;

use diag::check::CheckName;
use diag::facts::{Engine, GpuName, Joined, NodeId, Roster};
use diag::gpu_facts::{self, Fact, FactKind};
use diag::measurement::{CheckError, ErrorKind, Measurement, Metric, PartError, Subject};
use diag::policy::Policy;
use diag::round::Round;
use jiff::Timestamp;

use crate::protocol::{Member, Products, Reply, Request, Tag, Target, Trouble, TroubleKind};
use crate::worker_client::{Worker, WorkerError};

/// A check's own limit in windows.
const LIMIT_WINDOWS: u32 = 10;

/// How much later than its limit a worker may answer: the product in hand, a poll interval and a busy
/// machine's scheduler all fit into it.
const ANSWER_GRACE: Duration = Duration::from_secs(3);

/// What one run of a check works with.
pub struct Context<'c> {
    /// What is measured, why, and by which groups.
    pub round: &'c Round,
    /// This node.
    pub me: NodeId,
    /// All nodes.
    pub roster: &'c Roster,
    /// The site's policy.
    pub policy: &'c Policy,
    /// What measures.
    pub worker: &'c mut Worker,
    /// The wall clock.
    pub now: &'c dyn Fn() -> Timestamp,
    /// The check's other result: GPUs of this node that have no number.
    pub parts: Vec<PartError>,
}

/// When something began and ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    pub started_at: Timestamp,
    pub finished_at: Timestamp,
}

/// Most primitives that a check asks for one after another.
const PRIMITIVES: u32 = 2;

/// The longest that a round of a check takes on a node that works.
#[must_use]
pub fn round_limit(policy: &Policy, check: CheckName) -> Duration {
    let torch = Duration::from_secs(policy.time.torch_start_s.into());
    let start = if check == CheckName::PytorchGloo2 { torch } else { Duration::ZERO };
    (limit(policy, check) + ANSWER_GRACE) * PRIMITIVES + start
}

/// Whether the CUDA engine measures a check: the two that are about TCP measure the same on every node.
fn on_gpus(policy: &Policy, check: CheckName) -> bool {
    policy.engine == Engine::Cuda
        && !matches!(check, CheckName::NetworkConnectivity | CheckName::PytorchGloo2)
}

fn window(policy: &Policy, check: CheckName) -> Duration {
    let seconds =
        if on_gpus(policy, check) { policy.cuda.seconds_per_check } else { policy.host.seconds_per_check };
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX / 1000)
}

fn limit(policy: &Policy, check: CheckName) -> Duration {
    let start = if on_gpus(policy, check) { policy.cuda.start_s } else { 0 };
    window(policy, check) * LIMIT_WINDOWS + Duration::from_secs(start.into())
}

impl Context<'_> {
    /// One window of this round's check, ms.
    pub(super) fn window_ms(&self) -> u64 {
        u64::try_from(window(self.policy, self.round.check).as_millis()).unwrap_or(u64::MAX).max(1)
    }

    /// A check's own limit, ms.
    pub(super) fn limit_ms(&self) -> u64 {
        u64::try_from(limit(self.policy, self.round.check).as_millis()).unwrap_or(u64::MAX).max(1)
    }

    /// How many ranks this node has.
    pub(super) fn ranks(&self) -> u32 {
        match self.policy.engine {
            Engine::Host => self.policy.host.ranks_per_node,
            Engine::Cuda => u32::try_from(self.gpus().len()).unwrap_or(u32::MAX),
        }
    }

    /// This node's GPUs, rank by rank; none on the host engine.
    pub(super) fn gpus(&self) -> &[GpuName] {
        let entry = self.roster.nodes.get(self.me as usize);
        entry.and_then(|entry| entry.joined.as_ref()).map_or(&[], |joined| &joined.facts.gpus)
    }

    /// The GPU that is this node's rank `rank`.
    pub(super) fn gpu(&self, rank: u32) -> Subject {
        let index = self.gpus().get(rank as usize).map_or(rank, |gpu| gpu.index);
        Subject::Gpu { node: self.me, index }
    }

    /// What was seen of a rank's GPU while it multiplied, beside what was read of it at rest.
    pub(super) fn seen(&self, rank: u32, products: &Products) -> Vec<Fact> {
        let Subject::Gpu { node, index } = self.gpu(rank) else { return Vec::new() };
        let before = self
            .worker
            .reading()
            .and_then(|reading| reading.gpus.iter().find(|gpu| gpu_facts::number(&gpu.device) == index));
        let (Some(before), Some(load)) = (before, products.loads.get(rank as usize)) else {
            return Vec::new();
        };
        gpu_facts::bounded(gpu_facts::under_load(node, self.roster.name(node), before, load))
    }

    /// Takes down the ranks whose GPU did not do its part. What is wrong with a GPU since before the first round is told
    /// already.
    pub(super) fn unmeasured(&mut self, troubles: &[Trouble]) {
        let known = self.roster.nodes.get(self.me as usize).and_then(|entry| entry.joined.as_ref());
        let known = known.map_or(&[][..], |joined| &joined.facts.known.facts);
        let out = |part: &Subject| {
            let kinds = [FactKind::Fault, FactKind::Unusable];
            known.iter().any(|fact| fact.subject == *part && kinds.contains(&fact.kind))
        };
        for trouble in troubles {
            let part = self.gpu(trouble.rank);
            if out(&part) {
                continue;
            }
            let kind = match trouble.kind {
                TroubleKind::Failed => ErrorKind::Worker,
                TroubleKind::Silent => ErrorKind::Timeout,
                TroubleKind::Broken => ErrorKind::Broken,
            };
            let message = format!("{}: {}", self.round.check, trouble.message);
            self.parts.push(PartError { part, error: CheckError { kind, message } });
        }
    }

    /// How long torch may take to start, ms.
    pub(super) fn torch_start_ms(&self) -> u64 {
        u64::from(self.policy.time.torch_start_s) * 1000
    }

    /// Asks the worker, which has until `limit_ms`.
    pub(super) async fn call(
        &mut self,
        request: Request,
        limit_ms: u64,
    ) -> Result<(Reply, Span), CheckError> {
        let started_at = (self.now)();
        let deadline = Duration::from_millis(limit_ms) + ANSWER_GRACE;
        let reply = self.worker.call(request, deadline).await.map_err(|error| self.error(&error))?;
        Ok((reply, Span { started_at, finished_at: (self.now)() }))
    }

    /// The groups of this round that this node is in, with their tags.
    pub(super) fn groups(&self) -> Vec<(Tag, Vec<NodeId>)> {
        (0..)
            .zip(&self.round.groups)
            .filter(|(_, group)| group.contains(&self.me))
            .map(|(index, group)| (Tag { round: self.round.index, group: index }, group.clone()))
            .collect()
    }

    /// Where the ranks of `node` listen. The policy's word on addresses wins over the node's own, and that over
    /// the address that the leader saw, which is a loopback address for the leader itself.
    pub(super) fn target(&self, node: NodeId) -> Result<Target, CheckError> {
        let (name, joined) = self.joined(node)?;
        let configured: Option<IpAddr> = self.policy.network.addresses.get(name).copied();
        let address = configured.or(joined.address).unwrap_or(joined.seen_address);
        Ok(Target { node, address, ports: joined.facts.rank_ports.clone() })
    }

    /// All ranks of `nodes` in ring order.
    pub(super) fn members(&self, nodes: &[NodeId]) -> Result<Vec<Member>, CheckError> {
        let mut members = Vec::new();
        for &node in nodes {
            let target = self.target(node)?;
            members.extend((0..).zip(target.ports).map(|(rank, port)| Member {
                node,
                rank,
                address: target.address,
                port,
            }));
        }
        Ok(members)
    }

    fn joined(&self, node: NodeId) -> Result<(&str, &Joined), CheckError> {
        self.roster
            .nodes
            .get(node as usize)
            .and_then(|entry| Some((&*entry.name, entry.joined.as_ref()?)))
            .ok_or_else(|| CheckError {
                kind: ErrorKind::Environment,
                message: format!("{}: the round asks for node {node}, which did not join", self.round.check),
            })
    }

    /// A measurement of this round's check.
    pub(super) fn measurement(
        &self,
        metric: Metric,
        subject: Subject,
        value: f64,
        span: Span,
    ) -> Measurement {
        let peers = subject.nodes().into_iter().filter(|node| *node != self.me).collect();
        Measurement {
            check: self.round.check,
            metric,
            subject,
            peers,
            value,
            bytes: None,
            samples: Vec::new(),
            detail: String::new(),
            facts: Vec::new(),
            started_at: span.started_at,
            finished_at: span.finished_at,
        }
    }

    /// One way between two nodes that does not work.
    pub(super) fn unreachable(
        &self,
        way: &crate::protocol::Unreachable,
        share: f64,
        span: Span,
    ) -> Measurement {
        let (from, to) = (self.roster.name(way.from), self.roster.name(way.to));
        let subject = Subject::Path { from: way.from, to: way.to };
        Measurement {
            detail: format!("{from} -> {to}:{} {} ({})", way.port, way.why, way.address),
            ..self.measurement(Metric::Reachable, subject, share, span)
        }
    }

    /// Nothing of what was asked for, such as a `matrix product`, was done within the limit.
    pub(super) fn starved(&self, what: &str) -> CheckError {
        let message = format!(
            "{}: no {what} was done within {} ms; see what else takes the processors of {}",
            self.round.check,
            self.limit_ms(),
            self.roster.name(self.me)
        );
        CheckError { kind: ErrorKind::Timeout, message }
    }

    /// The worker answered something else than was asked.
    pub(super) fn nonsense(&self, reply: &Reply) -> CheckError {
        let message = match reply {
            Reply::Failed { message } => format!("{}: {message}", self.round.check),
            other => format!("{}: the worker answered {other:?} to something else", self.round.check),
        };
        CheckError { kind: ErrorKind::Worker, message }
    }

    fn error(&self, error: &WorkerError) -> CheckError {
        let kind = match error {
            WorkerError::Timeout { .. } => ErrorKind::Timeout,
            _ => ErrorKind::Worker,
        };
        let mut message = format!("{}: {error}", self.round.check);
        let mut source = std::error::Error::source(error);
        while let Some(inner) = source {
            message.push_str(": ");
            message.push_str(&inner.to_string());
            source = inner.source();
        }
        CheckError { kind, message }
    }
}
