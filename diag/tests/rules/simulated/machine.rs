//! What the nodes are and how they are joined, and what each check shows of healthy ones.

use diag::check::CheckName;
use diag::facts::{Engine, NodeId};
use diag::measurement::Metric;

use super::noise::key;

/// Nodes of one kind, their leaf and spine switches.
#[derive(Debug, Clone, Copy)]
pub struct Machine {
    pub engine: Engine,
    /// GPUs of a node, or ranks of the host engine.
    pub gpus: u32,
    /// Ports of a node, one a rail; GPU i uses rail i.
    pub rails: u32,
    /// Nodes of the job below one leaf switch.
    pub per_leaf: u32,
    /// Two nodes below a leaf of their own, wherever they stand in the job.
    pub apart: Option<(NodeId, NodeId)>,
    /// Spine switches; each pair of nodes below different leaves has a way over one of them, a rail.
    pub spines: u32,
}

/// Sizes of messages that the checks of GPUs measure.
pub const SIZES: [u64; 3] = [4 << 20, 64 << 20, 1 << 30];

impl Machine {
    /// Two ranks and no switches to speak of.
    pub const HOST: Self =
        Self { engine: Engine::Host, gpus: 2, rails: 2, per_leaf: u32::MAX, apart: None, spines: 1 };

    /// Eight H200 and eight ports of 400 Gbit/s a node.
    pub const H200: Self =
        Self { engine: Engine::Cuda, gpus: 8, rails: 8, per_leaf: 16, apart: None, spines: 4 };

    pub fn leaf(&self, node: NodeId) -> u32 {
        match self.apart {
            Some((a, b)) if node == a || node == b => 0,
            Some(_) => 1 + node / self.per_leaf,
            None => node / self.per_leaf,
        }
    }

    /// Over which spine two nodes reach each other on a rail; `None`: below one leaf.
    pub fn spine(&self, a: NodeId, b: NodeId, rail: u32) -> Option<u32> {
        let (a, b) = (a.min(b), a.max(b));
        (self.leaf(a) != self.leaf(b)).then(|| {
            let hash = key(&[0x59, u64::from(a), u64::from(b), u64::from(rail)]);
            u32::try_from(hash % u64::from(self.spines)).unwrap()
        })
    }

    /// Sizes that a collective is measured at; `None`: sizes are not told apart.
    pub fn sizes(&self, check: CheckName) -> &'static [Option<u64>] {
        const ALL: [Option<u64>; 3] = [Some(SIZES[0]), Some(SIZES[1]), Some(SIZES[2])];
        match self.engine {
            Engine::Cuda if check != CheckName::PytorchGloo2 => &ALL,
            Engine::Cuda | Engine::Host => &[None],
        }
    }

    /// What a healthy node, pair or job shows.
    pub fn usual(&self, check: CheckName, metric: Metric, bytes: Option<u64>) -> f64 {
        match self.engine {
            Engine::Host => usual_of_host(check, metric),
            Engine::Cuda => usual_of_h200(check, metric, bytes),
        }
    }
}

fn usual_of_host(check: CheckName, metric: Metric) -> f64 {
    match (check, metric) {
        (_, Metric::Launch) => 60.0,
        (_, Metric::LaunchTail) => 120.0,
        (_, Metric::Flops) => 0.04,
        (CheckName::AllReduce | CheckName::AllGather | CheckName::MultiAllReduce, _) => 0.3,
        _ => 1.0,
    }
}

/// bf16 and fp8 products, launches and all_reduce_1 as measured on H200 (docs/gpus.md; of eight GPUs 97 % of 368 GB/s, see
/// conf/baselines/h200.toml); between nodes 90 % of what eight ports of 400 Gbit/s carry at 1 GiB, and less of smaller
/// messages in the same proportion as inside a node.
fn usual_of_h200(check: CheckName, metric: Metric, bytes: Option<u64>) -> f64 {
    let by_size = match bytes {
        Some(bytes) if bytes <= SIZES[0] => 0.16,
        Some(bytes) if bytes <= SIZES[1] => 0.81,
        _ => 1.0,
    };
    match (check, metric) {
        (_, Metric::Launch) => 3.2,
        (_, Metric::LaunchTail) => 6.1,
        (CheckName::CompCommOverlap, Metric::Flops) => 600.0,
        (_, Metric::Flops) => 700.0,
        (_, Metric::Fp8Flops) => 1330.0,
        (CheckName::AllReduce1 | CheckName::CompCommOverlap, _) => 357.0 * by_size,
        (CheckName::PytorchGloo2, _) => 2.0,
        (CheckName::AllToAll2, _) => 86.0 * by_size,
        (CheckName::MultiAllReduce2 | CheckName::MultiAllReduce, _) => 45.0 * by_size,
        _ => 360.0 * by_size,
    }
}
