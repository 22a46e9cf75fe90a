//! A job on a simulated cluster under the very plan, judge, conclude and action of the prolog, in the loop of
//! `prolog/src/suite.rs`: what each check would measure, given what is broken and how healthy numbers scatter.
//!
//! [`machine`] is what the nodes are, [`noise`] how healthy ones differ, [`fault`] what can be broken, [`measure`] what the
//! checks show of all that. The sets of nodes in [`Job`] are short for faults on the host engine.
#![allow(dead_code, clippy::unwrap_used, reason = "the bench uses its part of the simulation")]

pub mod between;
pub mod catalogue;
pub mod fault;
pub mod machine;
pub mod measure;
pub mod noise;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use diag::action::{Case, Decision, decide};
use diag::baseline::Baselines;
use diag::check::CheckName;
use diag::conclude::{Caps, verdict};
use diag::facts::{Engine, GpuName, Joined, NodeFacts, NodeId, Roster, RosterEntry};
use diag::gpu_facts::Known;
use diag::judge::{Hardware, Suite};
use diag::measurement::{CheckError, ErrorKind, Measurement, Metric, Subject};
use diag::plan::Settled;
use diag::policy::Policy;
use diag::request::FailAction;
use diag::round::{Mode, NodeOutcome, Round, RoundResult, Step};
use diag::topology::{Leaves, parse_conf};
use diag::verdict::Verdict;
use fault::{Fault, Now, When};
use machine::Machine;
use measure::{Bench, plain};
use noise::Noise;

/// Caps wide enough to see what is named, whatever may be drained.
pub const NO_CAPS: Caps = Caps { max_drain_nodes: u32::MAX, max_drain_fraction: 1.0 };

#[derive(Debug, Clone)]
pub struct Job {
    pub size: u32,
    pub machine: Machine,
    pub noise: Noise,
    /// Whether Slurm knows who is below which leaf switch.
    pub topology: bool,
    /// What is broken, and when it shows.
    pub faults: Vec<(Fault, When)>,
    /// Nodes that are lost from a round of the suite on.
    pub lost_from: BTreeMap<NodeId, u32>,
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

/// What is left of the speed of a slow network or processor, where a test only says that it is slow.
const SLOW_NETWORK: f64 = 0.002;
const SLOW_PROCESSOR: f64 = 0.1;
const SLOW_HOST: f64 = 0.001;

impl Default for Job {
    fn default() -> Self {
        Self::of(1)
    }
}

impl Job {
    /// Healthy nodes of the host engine that differ by some per cent.
    pub fn of(size: u32) -> Self {
        let noise = Noise { spread: 0.08, ..Noise::default() };
        Self::on(Machine::HOST, size, noise)
    }

    pub fn on(machine: Machine, size: u32, noise: Noise) -> Self {
        Self {
            size,
            machine,
            noise,
            topology: false,
            faults: Vec::new(),
            lost_from: BTreeMap::new(),
            slow_network: BTreeSet::new(),
            slow_processor: BTreeSet::new(),
            wrong: BTreeSet::new(),
            slow_links: BTreeSet::new(),
            blocked: BTreeSet::new(),
            slow_rails: BTreeSet::new(),
            slow_fabric: false,
            lossy: BTreeSet::new(),
            lost_at: BTreeMap::new(),
            errors: BTreeSet::new(),
            absent: BTreeSet::new(),
            once: BTreeSet::new(),
            odd: BTreeMap::new(),
            mute: BTreeSet::new(),
            hung: BTreeSet::new(),
            all_show: None,
        }
    }

    /// The same job with a fault that always shows.
    #[must_use]
    pub fn with(mut self, fault: Fault) -> Self {
        self.faults.push((fault, When::Always));
        self
    }

    /// All that is broken.
    fn broken(&self) -> Vec<(Fault, When)> {
        let network = |node: NodeId| Fault::Network { node, left: SLOW_NETWORK };
        let processor = |node: NodeId| {
            [
                Fault::Gpu { node, gpu: 0, left: SLOW_PROCESSOR },
                Fault::Inside { node, left: SLOW_PROCESSOR },
                Fault::Host { node, left: SLOW_HOST },
            ]
        };
        let mut always: Vec<Fault> = self.slow_network.iter().map(|node| network(*node)).collect();
        always.extend(self.slow_processor.iter().flat_map(|node| processor(*node)));
        always.extend(self.wrong.iter().map(|node| Fault::Wrong { node: *node, gpu: 0 }));
        always.extend(self.slow_links.iter().map(|&(a, b)| Fault::Link { a, b, left: SLOW_NETWORK }));
        let rail = |&(node, rail): &(NodeId, u32)| Fault::Rail { node, rail, left: SLOW_NETWORK };
        always.extend(self.slow_rails.iter().map(rail));
        always.extend(self.slow_fabric.then_some(Fault::Fabric { left: SLOW_NETWORK }));
        let once = self.once.iter().flat_map(|node| processor(*node).into_iter().chain([network(*node)]));
        let first = once.map(|fault| (fault, When::First));
        let always = always.into_iter().map(|fault| (fault, When::Always));
        self.faults.iter().copied().chain(always).chain(first).collect()
    }

    pub fn roster(&self) -> Roster {
        let gpus = |index: u32| GpuName { index, model: "NVIDIA H200".into() };
        let gpus: Vec<GpuName> = match self.machine.engine {
            Engine::Cuda => (0..self.machine.gpus).map(gpus).collect(),
            Engine::Host => Vec::new(),
        };
        let nodes = (0..self.size)
            .map(|node| RosterEntry {
                name: format!("n{}", node + 1).into(),
                joined: (!self.absent.contains(&node)).then(|| {
                    let facts = NodeFacts {
                        version: "1".into(),
                        request_digest: String::new(),
                        engine: self.machine.engine,
                        address: None,
                        rank_ports: vec![1, 2],
                        gpus: gpus.clone(),
                        libraries: String::new(),
                        known: Known::default(),
                        unable: None,
                    };
                    Joined::new(facts, IpAddr::V4(Ipv4Addr::LOCALHOST))
                }),
                absent_because: self.absent.contains(&node).then(|| "did not join within 10 s".into()),
            })
            .collect();
        Roster { nodes, leader: 0, leaves: self.leaves() }
    }

    /// What topology.conf says: leaf 0 is `leaf0`.
    fn leaves(&self) -> Leaves {
        if !self.topology {
            return Leaves::default();
        }
        let mut conf = String::new();
        let leaves: BTreeSet<u32> = (0..self.size).map(|node| self.machine.leaf(node)).collect();
        for leaf in leaves {
            let below = (0..self.size).filter(|node| self.machine.leaf(*node) == leaf);
            let names: Vec<String> = below.map(|node| format!("n{}", node + 1)).collect();
            conf.push_str(&format!("SwitchName=leaf{leaf} Nodes={}\n", names.join(",")));
        }
        let nodes: Vec<String> = (1..=self.size).map(|node| format!("n{node}")).collect();
        parse_conf(&conf).unwrap().of_job(&nodes)
    }

    /// The same job where Slurm knows who is below which leaf switch.
    #[must_use]
    pub fn with_topology(self) -> Self {
        Self { topology: true, ..self }
    }

    /// The checks by the limits of the machine, on the nodes that met.
    pub fn suite(&self, checks: &[CheckName]) -> Suite {
        match self.machine.engine {
            Engine::Host => suite(checks),
            Engine::Cuda => {
                let baselines = vec![h200()];
                Suite { engine: Engine::Cuda, baselines, ..suite(checks) }.on(&self.roster())
            }
        }
    }

    pub fn run(&self, checks: &[CheckName]) -> Run {
        self.run_with(checks, NO_CAPS)
    }

    pub fn run_with(&self, checks: &[CheckName], caps: Caps) -> Run {
        let results = self.rounds(checks, usize::MAX);
        Run { verdict: verdict(&self.suite(checks), &self.roster(), &results, caps, None), results }
    }

    /// The run, stopped after some rounds because of `why`.
    pub fn run_until(&self, checks: &[CheckName], rounds: usize, why: &str) -> Run {
        let results = self.rounds(checks, rounds);
        Run { verdict: verdict(&self.suite(checks), &self.roster(), &results, NO_CAPS, Some(why)), results }
    }

    /// What is done about it where the site checks every job by the built-in policy.
    pub fn decision(&self, run: &Run) -> Decision {
        decide(Case {
            fail_action: FailAction::Fail,
            site_checks: &run.results.iter().map(|result| result.round.check).collect(),
            policy: &Policy::default().actions,
            job: None,
            unread: false,
            roster: &self.roster(),
            verdict: &run.verdict,
            job_id: 12,
            check_number: 1,
        })
    }

    fn rounds(&self, checks: &[CheckName], most: usize) -> Vec<RoundResult> {
        let (suite, roster) = (self.suite(checks), self.roster());
        let mut results: Vec<RoundResult> = Vec::new();
        let mut settled = Settled::default();
        while results.len() < most
            && let Step::Measure(round) = settled.next(&suite, &roster, &results)
        {
            assert!(results.len() < 200, "the plan never ends: {round:?}");
            assert_eq!(round.index as usize, results.len());
            self.assert_nobody_twice(&round);
            let outcomes = self.measured(&round, &results);
            results.push(RoundResult { round, outcomes });
        }
        results
    }

    /// What everybody brings back from a round.
    pub fn measured(&self, round: &Round, before: &[RoundResult]) -> BTreeMap<NodeId, NodeOutcome> {
        let first = before.iter().all(|result| result.round.check != round.check);
        let broken = self.broken().into_iter().enumerate();
        let shows = |(place, (fault, when)): (usize, (Fault, When))| {
            when.now(&self.noise, (round.index, first), place).then_some(fault)
        };
        let now = Now(broken.filter_map(shows).collect());
        let bench = Bench { machine: &self.machine, noise: &self.noise, now: &now, round };
        let mut numbers: BTreeMap<NodeId, Vec<Measurement>> = BTreeMap::new();
        let whole = round.groups.iter().map(|group| (group, bench.group(group[0], group)));
        let paths = round.check == CheckName::NetworkConnectivity;
        for (group, seen) in whole {
            for (place, &node) in group.iter().enumerate() {
                // Both sides of a pair hold the same numbers; of many, one copy is enough to judge.
                let own = match group.len() {
                    2 if place == 1 && paths => bench.group(node, group),
                    1 | 2 => seen.clone(),
                    _ if place == 0 => seen.clone(),
                    _ => Vec::new(),
                };
                numbers.entry(node).or_default().extend(self.as_seen(node, group, round, own));
            }
        }
        numbers.into_iter().map(|(node, numbers)| (node, self.outcome(node, round, numbers))).collect()
    }

    // A good node never serves two suspects at once, and no node is in two pairs: each run of a simulated job shows it.
    fn assert_nobody_twice(&self, round: &Round) {
        let members: usize = round.groups.iter().map(Vec::len).sum();
        assert!(
            round.mode == Mode::Reach || members == round.participants().len(),
            "a node is in two groups: {round:?}"
        );
        assert!(round.participants().iter().all(|node| !self.absent.contains(node)));
    }

    fn outcome(&self, node: NodeId, round: &Round, mut numbers: Vec<Measurement>) -> NodeOutcome {
        let gone = self.lost_from.get(&node).is_some_and(|from| round.index >= *from);
        if gone || self.lost_at.get(&node) == Some(&round.check) {
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

    /// What a node sees of a pair of which a way is blocked, or loses packets.
    fn as_seen(
        &self,
        me: NodeId,
        group: &[NodeId],
        round: &Round,
        mut numbers: Vec<Measurement>,
    ) -> Vec<Measurement> {
        let &[a, b] = group else { return numbers };
        let check = round.check;
        let other = if me == a { b } else { a };
        if self.blocked.contains(&(me, other)) {
            let mut blocked = plain(check, Metric::Reachable, Subject::Path { from: me, to: other }, 0.0);
            blocked.detail = format!("n{} -> n{}:45100 connection refused", me + 1, other + 1);
            return vec![blocked];
        }
        if self.blocked.contains(&(other, me)) && check != CheckName::NetworkConnectivity {
            return Vec::new();
        }
        if self.lossy.contains(&a) || self.lossy.contains(&b) {
            let lost = numbers.iter_mut().filter(|one| one.metric == Metric::Retransmits);
            lost.for_each(|one| one.value = 0.05);
        }
        numbers
    }
}

/// The limits for H200 with those between nodes for any number of ports: what a site writes down that knows its own.
fn h200() -> Baselines {
    let mut file = Baselines::parse(include_str!("../../../../conf/baselines/h200.toml")).unwrap();
    file.limits.iter_mut().for_each(|limit| limit.network = None);
    file
}

pub fn suite(checks: &[CheckName]) -> Suite {
    let baselines = Baselines::parse(include_str!("../../../../conf/baselines/host.toml")).unwrap();
    Suite {
        checks: checks.to_vec(),
        unbuilt: Vec::new(),
        engine: Engine::Host,
        baselines: vec![baselines],
        hardware: Hardware::default(),
    }
}
