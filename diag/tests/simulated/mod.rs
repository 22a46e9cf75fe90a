//! A job on simulated nodes under the very plan and judge of the prolog: what each check would measure, given
//! which nodes, links and paths are broken.
#![allow(dead_code, clippy::unwrap_used, reason = "each test file uses its part of the simulation")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use diag::baseline::Baselines;
use diag::check::{CheckName, Scope};
use diag::conclude::{Caps, verdict};
use diag::facts::{Engine, Joined, NodeFacts, NodeId, Roster, RosterEntry};
use diag::gpu_facts::Known;
use diag::judge::{Hardware, Suite};
use diag::measurement::{CheckError, ErrorKind, Measurement, Metric, Subject};
use diag::plan;
use diag::round::{Mode, NodeOutcome, Purpose, Round, RoundResult, Step};
use diag::verdict::Verdict;
use jiff::Timestamp;

/// Caps wide enough to see what is named, whatever may be drained.
pub const NO_CAPS: Caps = Caps { max_drain_nodes: u32::MAX, max_drain_fraction: 1.0 };

#[derive(Debug, Clone, Default)]
pub struct Job {
    pub size: u32,
    /// Nodes whose network is slow.
    pub slow_network: BTreeSet<NodeId>,
    /// Nodes whose processor is slow.
    pub slow_processor: BTreeSet<NodeId>,
    /// Nodes that compute wrongly.
    pub wrong: BTreeSet<NodeId>,
    /// Pairs that are slow with each other, lower first.
    pub slow_links: BTreeSet<(NodeId, NodeId)>,
    /// Ways on which no connection comes up.
    pub blocked: BTreeSet<(NodeId, NodeId)>,
    /// Rails of nodes that are slow.
    pub slow_rails: BTreeSet<(NodeId, u32)>,
    /// Whether traffic of all nodes at once is slow, whatever the nodes are.
    pub slow_fabric: bool,
    /// Nodes that lose packets.
    pub lossy: BTreeSet<NodeId>,
    /// Nodes that are lost at the first round of a check.
    pub lost_at: BTreeMap<NodeId, CheckName>,
    /// Nodes whose worker can't work.
    pub errors: BTreeSet<NodeId>,
    /// Nodes that never join.
    pub absent: BTreeSet<NodeId>,
    /// Nodes that are slow the first time only, in any check.
    pub once: BTreeSet<NodeId>,
    /// Nodes whose every speed is this number, whatever the truth is.
    pub odd: BTreeMap<NodeId, f64>,
    /// Nodes that answer with no number at all.
    pub mute: BTreeSet<NodeId>,
    /// Nodes whose worker never answers.
    pub hung: BTreeSet<NodeId>,
    /// What every number of one kind is, on all nodes.
    pub all_show: Option<(Metric, f64)>,
}

#[derive(Debug)]
pub struct Run {
    pub verdict: Verdict,
    pub results: Vec<RoundResult>,
}

impl Job {
    pub fn of(size: u32) -> Self {
        Self { size, ..Self::default() }
    }

    pub fn roster(&self) -> Roster {
        let nodes = (0..self.size)
            .map(|node| RosterEntry {
                name: format!("n{}", node + 1),
                joined: (!self.absent.contains(&node)).then(|| Joined {
                    facts: NodeFacts {
                        version: "1".into(),
                        request_digest: String::new(),
                        engine: Engine::Host,
                        address: None,
                        rank_ports: vec![1, 2],
                        gpus: Vec::new(),
                        libraries: String::new(),
                        known: Known::default(),
                        unable: None,
                    },
                    seen_address: IpAddr::V4(Ipv4Addr::LOCALHOST),
                }),
                absent_because: self.absent.contains(&node).then(|| "did not join within 10 s".into()),
            })
            .collect();
        Roster { nodes, leader: 0 }
    }

    pub fn run(&self, checks: &[CheckName]) -> Run {
        self.run_with(checks, NO_CAPS)
    }

    pub fn run_with(&self, checks: &[CheckName], caps: Caps) -> Run {
        let results = self.rounds(checks, usize::MAX);
        Run { verdict: verdict(&suite(checks), &self.roster(), &results, caps, None), results }
    }

    /// The run, stopped after some rounds because of `why`.
    pub fn run_until(&self, checks: &[CheckName], rounds: usize, why: &str) -> Run {
        let results = self.rounds(checks, rounds);
        Run { verdict: verdict(&suite(checks), &self.roster(), &results, NO_CAPS, Some(why)), results }
    }

    fn rounds(&self, checks: &[CheckName], most: usize) -> Vec<RoundResult> {
        let suite = suite(checks);
        let roster = self.roster();
        let mut results: Vec<RoundResult> = Vec::new();
        while results.len() < most
            && let Step::Measure(round) = plan::next(&suite, &roster, &results)
        {
            assert!(results.len() < 100, "the plan never ends: {round:?}");
            assert_eq!(round.index as usize, results.len());
            self.assert_nobody_twice(&round);
            let outcomes = round
                .participants()
                .into_iter()
                .map(|node| (node, self.measure(node, &round, &results)))
                .collect();
            results.push(RoundResult { round, outcomes });
        }
        results
    }

    // M03, M10: a good node never serves two suspects at once, and no node is in two pairs.
    fn assert_nobody_twice(&self, round: &Round) {
        let members: usize = round.groups.iter().map(Vec::len).sum();
        assert!(
            round.mode == Mode::Reach || members == round.participants().len(),
            "a node is in two groups: {round:?}"
        );
        assert!(round.participants().iter().all(|node| !self.absent.contains(node)));
    }

    fn measure(&self, node: NodeId, round: &Round, before: &[RoundResult]) -> NodeOutcome {
        if self.lost_at.get(&node) == Some(&round.check) {
            return NodeOutcome::Lost { because: "its connection ended".into() };
        }
        if self.errors.contains(&node) {
            let message = "the worker did not start".into();
            return NodeOutcome::Error(CheckError { kind: ErrorKind::Worker, message });
        }
        if self.hung.contains(&node) {
            let message = format!("{}: the worker did not answer within 6000 ms", round.check);
            return NodeOutcome::Error(CheckError { kind: ErrorKind::Timeout, message });
        }
        if self.mute.contains(&node) {
            return NodeOutcome::Measured(Vec::new());
        }
        let first = before.iter().all(|result| result.round.check != round.check);
        let mut numbers = Vec::new();
        for group in round.groups_of(node) {
            match *group {
                _ if round.check.spec().scope == Scope::All && round.purpose != Purpose::Localise => {
                    numbers.extend(self.together(group, round.check, first));
                }
                [one] => numbers.extend(self.alone(one, round.check, first)),
                [a, b] => numbers.extend(self.pair(node, (a, b), round, first)),
                _ => unreachable!("groups of one or two"),
            }
        }
        for one in &mut numbers {
            if let Some(value) = self.odd.get(&node)
                && matches!(one.metric, Metric::Flops | Metric::Busbw)
            {
                one.value = *value;
            }
            if let Some((metric, value)) = self.all_show
                && one.metric == metric
            {
                one.value = value;
            }
        }
        NodeOutcome::Measured(numbers)
    }

    fn alone(&self, node: NodeId, check: CheckName, first: bool) -> Vec<Measurement> {
        if check == CheckName::KernelLaunch {
            let launch = if self.slow_processor.contains(&node) { 50_000.0 } else { 60.0 };
            let subject = Subject::Node { node };
            return vec![
                number(check, Metric::Launch, subject.clone(), launch),
                number(check, Metric::LaunchTail, subject, launch * 2.0),
            ];
        }
        let (metric, healthy) = match check {
            CheckName::GemmFlops | CheckName::CompCommOverlap => (Metric::Flops, 0.04),
            _ => (Metric::Busbw, 1.0),
        };
        let slow = self.slow_processor.contains(&node) || (first && self.once.contains(&node));
        // A spread of a few per cent, different from node to node.
        let spread = 1.0 + f64::from(node % 7) / 100.0;
        let value = healthy * spread * if slow { 0.1 } else { 1.0 };
        let right = if self.wrong.contains(&node) { 0.5 } else { 1.0 };
        let subject = Subject::Node { node };
        vec![number(check, metric, subject.clone(), value), number(check, Metric::Correct, subject, right)]
    }

    /// All nodes at once are as slow as the slowest of them.
    fn together(&self, group: &[NodeId], check: CheckName, first: bool) -> Vec<Measurement> {
        let slow = self.slow_fabric
            || group
                .iter()
                .any(|node| self.slow_network.contains(node) || (first && self.once.contains(node)))
            || group.windows(2).any(|pair| self.slow_links.contains(&(pair[0], pair[1])))
            || (group.first().zip(group.last()).is_some_and(|(a, b)| self.slow_links.contains(&(*a, *b))));
        let on_rail = |rail: u32| group.iter().any(|node| self.slow_rails.contains(&(*node, rail)));
        let subjects = if rails(check) {
            (0..2).map(|rail| (Subject::FabricRail { rail }, slow || on_rail(rail))).collect()
        } else {
            vec![(Subject::Fabric, slow)]
        };
        subjects
            .into_iter()
            .flat_map(|(subject, slow)| {
                let value = if slow { 0.001 } else { 0.3 };
                [
                    number(check, Metric::Busbw, subject.clone(), value),
                    number(check, Metric::Correct, subject, 1.0),
                ]
            })
            .collect()
    }

    fn pair(&self, me: NodeId, (a, b): (NodeId, NodeId), round: &Round, first: bool) -> Vec<Measurement> {
        let check = round.check;
        let other = if me == a { b } else { a };
        let slow =
            [a, b].iter().any(|node| self.slow_network.contains(node) || (first && self.once.contains(node)))
                || self.slow_links.contains(&(a, b));
        let path = Subject::Path { from: me, to: other };
        if self.blocked.contains(&(me, other)) {
            let mut blocked = number(check, Metric::Reachable, path, 0.0);
            blocked.detail = format!("n{} -> n{}:45100 connection refused", me + 1, other + 1);
            return vec![blocked];
        }
        if self.blocked.contains(&(other, me)) && check != CheckName::NetworkConnectivity {
            return Vec::new();
        }
        if check == CheckName::NetworkConnectivity {
            let lossy = self.lossy.contains(&a) || self.lossy.contains(&b);
            let mut numbers = vec![
                number(check, Metric::Connect, path.clone(), 1.0),
                number(check, Metric::RoundTrip, path.clone(), 0.1),
                number(check, Metric::Reachable, path.clone(), 1.0),
            ];
            if round.mode == Mode::Full {
                let share = if lossy { 0.05 } else { 0.001 };
                numbers.push(number(check, Metric::Retransmits, path, share));
            }
            return numbers;
        }
        let healthy = 1.0 + f64::from((a + b) % 5) / 50.0;
        let value = if slow { 0.002 } else { healthy };
        if rails(check) {
            return (0..2)
                .flat_map(|rail| {
                    let bad = slow || [a, b].iter().any(|node| self.slow_rails.contains(&(*node, rail)));
                    let subject = Subject::PairRail { a, b, rail };
                    let value = if bad { 0.002 } else { healthy };
                    [
                        number(check, Metric::Busbw, subject.clone(), value),
                        number(check, Metric::Correct, subject, 1.0),
                    ]
                })
                .collect();
        }
        let subject = Subject::Pair { a, b };
        vec![
            number(check, Metric::Busbw, subject.clone(), value),
            number(check, Metric::Correct, subject, 1.0),
        ]
    }
}

fn rails(check: CheckName) -> bool {
    matches!(check, CheckName::MultiAllReduce2 | CheckName::MultiAllReduce)
}

pub fn suite(checks: &[CheckName]) -> Suite {
    let baselines = Baselines::parse(include_str!("../../../conf/baselines/host.toml")).unwrap();
    Suite {
        checks: checks.to_vec(),
        unbuilt: Vec::new(),
        engine: Engine::Host,
        baselines: vec![baselines],
        hardware: Hardware::default(),
    }
}

fn number(check: CheckName, metric: Metric, subject: Subject, value: f64) -> Measurement {
    Measurement {
        check,
        metric,
        subject,
        peers: Vec::new(),
        value,
        bytes: None,
        samples: vec![value],
        detail: String::new(),
        facts: Vec::new(),
        started_at: Timestamp::UNIX_EPOCH,
        finished_at: Timestamp::UNIX_EPOCH,
    }
}
