//! What the checks would measure in a round: the usual numbers, by noise and faults. An all-reduce is as fast as its slowest
//! member.

use diag::check::{CheckName, Scope};
use diag::facts::{Engine, NodeId};
use diag::measurement::{Measurement, Metric, Subject};
use diag::round::{Mode, Purpose, Round};
use jiff::Timestamp;

use super::fault::Now;
use super::machine::Machine;
use super::noise::{Noise, key};

/// One round on one node.
pub struct Bench<'b> {
    pub machine: &'b Machine,
    pub noise: &'b Noise,
    pub now: &'b Now,
    pub round: &'b Round,
}

/// Where in a node or job a part is, for its hash.
const NOWHERE: u64 = u64::MAX;

impl Bench<'_> {
    /// What a group that `me` is in brings.
    pub fn group(&self, me: NodeId, group: &[NodeId]) -> Vec<Measurement> {
        let scope = self.round.check.spec().scope;
        match *group {
            _ if scope == Scope::All && self.round.purpose != Purpose::Localise => self.together(group),
            [one] => self.alone(one),
            [a, b] if self.round.check == CheckName::NetworkConnectivity => self.path(me, (a, b)),
            [a, b] => self.pair((a, b)),
            _ => unreachable!("groups of one or two"),
        }
    }

    /// A number with noise: `left` is what faults leave of the usual one.
    fn number(&self, metric: Metric, subject: Subject, (bytes, left): (Option<u64>, f64)) -> Measurement {
        let (check, place) = (self.round.check, place(&subject));
        let part = key(&[place, metric as u64]);
        let number =
            key(&[place, metric as u64, bytes.unwrap_or(0), check as u64, u64::from(self.round.index)]);
        let share = left * self.noise.share(part, number);
        let share = if metric.higher_is_better() { share } else { 1.0 / share };
        let value = self.machine.usual(check, metric, bytes) * share;
        Measurement { bytes, ..plain(check, metric, subject, value) }
    }

    fn correct(&self, subject: Subject, right: f64) -> Measurement {
        plain(self.round.check, Metric::Correct, subject, right)
    }

    /// Busbw at each size, and that the sums are right.
    fn collective(&self, subject: &Subject, left: f64) -> Vec<Measurement> {
        let sizes = self.machine.sizes(self.round.check).iter();
        let rates = sizes.map(|bytes| self.number(Metric::Busbw, subject.clone(), (*bytes, left)));
        rates.chain([self.correct(subject.clone(), 1.0)]).collect()
    }

    fn alone(&self, node: NodeId) -> Vec<Measurement> {
        let (whole, gpus) = (Subject::Node { node }, self.machine.gpus);
        match self.round.check {
            CheckName::KernelLaunch => [Metric::Launch, Metric::LaunchTail]
                .map(|metric| self.number(metric, whole.clone(), (None, self.now.host(node))))
                .into(),
            CheckName::AllReduce1 => {
                let right = self.machine.engine == Engine::Cuda || !self.now.wrong(node, 0);
                let mut numbers = self.collective(&whole, self.now.inside(node));
                numbers.iter_mut().filter(|_| !right).for_each(|one| {
                    one.value = if one.metric == Metric::Correct { 0.5 } else { one.value };
                });
                numbers
            }
            check if self.machine.engine == Engine::Cuda => {
                let mut numbers: Vec<Measurement> =
                    (0..gpus).flat_map(|gpu| self.products(check, node, gpu)).collect();
                if check == CheckName::CompCommOverlap {
                    numbers.push(self.number(Metric::Busbw, whole, (None, self.now.inside(node))));
                }
                numbers
            }
            _ => {
                let right = if self.now.wrong(node, 0) { 0.5 } else { 1.0 };
                let left = self.now.compute(node, 0);
                vec![self.number(Metric::Flops, whole.clone(), (None, left)), self.correct(whole, right)]
            }
        }
    }

    fn products(&self, check: CheckName, node: NodeId, index: u32) -> Vec<Measurement> {
        let gpu = || Subject::Gpu { node, index };
        let left = self.now.compute(node, index);
        // Elements are looked at one by one: a wrong bit is seen in the bits of the whole product.
        let mut numbers = vec![self.number(Metric::Flops, gpu(), (None, left)), self.correct(gpu(), 1.0)];
        if check == CheckName::GemmFlops {
            numbers.push(self.number(Metric::Fp8Flops, gpu(), (None, left)));
            let bits = if self.now.wrong(node, index) { 8.0 } else { 7.0 };
            for product in ["NVIDIA H200, bf16", "NVIDIA H200, fp8"] {
                let mut print = plain(check, Metric::Fingerprint, gpu(), bits);
                print.detail.push_str(product);
                numbers.push(print);
            }
        }
        numbers
    }

    /// All nodes at once.
    fn together(&self, group: &[NodeId]) -> Vec<Measurement> {
        if by_rail(self.round.check) {
            let rails = (0..self.machine.rails).map(|rail| {
                let left = self.now.ring(self.machine, group, Some(rail));
                self.collective(&Subject::FabricRail { rail }, left)
            });
            return rails.flatten().collect();
        }
        self.collective(&Subject::Fabric, self.over_rails(|rail| self.now.ring(self.machine, group, rail)))
    }

    fn pair(&self, (a, b): (NodeId, NodeId)) -> Vec<Measurement> {
        if by_rail(self.round.check) {
            let rails = (0..self.machine.rails).map(|rail| {
                let left = self.now.way(self.machine, (a, b), Some(rail));
                self.collective(&Subject::PairRail { a, b, rail }, left)
            });
            return rails.flatten().collect();
        }
        let left = self.over_rails(|rail| self.now.way(self.machine, (a, b), rail));
        self.collective(&Subject::Pair { a, b }, left)
    }

    /// NCCL gives each rail the same share of the bytes, so that the slowest one decides; the host engine's ranks take one
    /// way.
    fn over_rails(&self, left: impl Fn(Option<u32>) -> f64) -> f64 {
        match self.machine.engine {
            Engine::Cuda => (0..self.machine.rails).map(|rail| left(Some(rail))).fold(1.0, f64::min),
            Engine::Host => left(None),
        }
    }

    fn path(&self, me: NodeId, (a, b): (NodeId, NodeId)) -> Vec<Measurement> {
        let check = self.round.check;
        let path = || Subject::Path { from: me, to: if me == a { b } else { a } };
        let mut numbers = vec![
            plain(check, Metric::Connect, path(), 1.0),
            plain(check, Metric::RoundTrip, path(), 0.1),
            plain(check, Metric::Reachable, path(), 1.0),
        ];
        if self.round.mode == Mode::Full {
            numbers.push(plain(check, Metric::Retransmits, path(), 0.001));
        }
        numbers
    }
}

fn by_rail(check: CheckName) -> bool {
    matches!(check, CheckName::MultiAllReduce2 | CheckName::MultiAllReduce)
}

fn place(subject: &Subject) -> u64 {
    let (a, b, c) = match *subject {
        Subject::Node { node } => (u64::from(node), NOWHERE, 0),
        Subject::Gpu { node, index } => (u64::from(node), NOWHERE, 1 + u64::from(index)),
        Subject::Pair { a, b } => (u64::from(a), u64::from(b), 0),
        Subject::PairRail { a, b, rail } => (u64::from(a), u64::from(b), 1 + u64::from(rail)),
        Subject::FabricRail { rail } => (NOWHERE, NOWHERE, 1 + u64::from(rail)),
        _ => (NOWHERE, NOWHERE, 0),
    };
    key(&[a, b, c])
}

pub fn plain(check: CheckName, metric: Metric, subject: Subject, value: f64) -> Measurement {
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
