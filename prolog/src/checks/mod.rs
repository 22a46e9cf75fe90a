//! The checks: one file each, and the one list. A check asks the worker for primitives and turns what comes
//! back into measurements; whether a number is good is for [`diag`]'s judge.

mod all_gather;
mod all_gather_2;
mod all_reduce;
mod all_reduce_1;
mod all_reduce_2;
mod all_to_all_2;
mod collective;
mod comp_comm_overlap;
mod context;
mod gemm_flops;
mod kernel_launch;
mod multi_all_reduce;
mod multi_all_reduce_2;
mod network_connectivity;
mod pytorch_gloo_2;

use std::future::Future;
use std::pin::Pin;

use diag::check::{CheckName, CheckSpec};
use diag::facts::{Engine, NodeFacts};
use diag::measurement::{CheckError, Measurement};

pub use context::{Context, round_limit};

/// Whether a check applies to a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Support {
    /// It does.
    Yes,
    /// It does not, and why: a skip, never a pass.
    No(String),
}

/// A check at work; boxed so that checks fit into one list.
pub type Run<'a> = Pin<Box<dyn Future<Output = Result<Vec<Measurement>, CheckError>> + 'a>>;

/// One check.
pub trait Check: Sync {
    /// The registry's row: name, phase, scope, one line of doc.
    fn spec(&self) -> &'static CheckSpec;
    /// Whether it applies to a node with these facts.
    fn supported(&self, facts: &NodeFacts) -> Support;
    /// Measures this node's part of the round. Everything it waits for has a deadline of its own.
    fn run<'a>(&'a self, cx: &'a mut Context<'_>) -> Run<'a>;
}

/// Every check that this build can measure, in registry order.
pub const ALL: &[&dyn Check] = &[
    &gemm_flops::GemmFlops,
    &kernel_launch::KernelLaunch,
    &all_reduce_1::AllReduce1,
    &comp_comm_overlap::CompCommOverlap,
    &network_connectivity::NetworkConnectivity,
    &pytorch_gloo_2::PytorchGloo2,
    &all_reduce_2::CHECK,
    &all_gather_2::CHECK,
    &all_to_all_2::CHECK,
    &multi_all_reduce_2::CHECK,
    &all_reduce::CHECK,
    &all_gather::CHECK,
    &multi_all_reduce::CHECK,
];

/// The check of that name; `None`: this build can't measure it.
#[must_use]
pub fn get(name: CheckName) -> Option<&'static dyn Check> {
    ALL.iter().copied().find(|check| check.spec().name == name)
}

/// A check that both engines do, on a node that has something to measure.
fn with_a_rank(facts: &NodeFacts) -> Support {
    if facts.engine == Engine::Cuda && facts.gpus.is_empty() {
        return Support::No("the job holds no GPU on this node".to_owned());
    }
    Support::Yes
}

/// The same for a check that needs at least two ranks on the node.
fn with_two_ranks(facts: &NodeFacts) -> Support {
    match (with_a_rank(facts), facts.engine) {
        (Support::Yes, Engine::Host) if facts.rank_ports.len() < 2 => {
            Support::No("one rank on this node: nothing to reduce (host.ranks_per_node)".to_owned())
        }
        (Support::Yes, Engine::Cuda) if facts.gpus.len() < 2 => {
            Support::No("one GPU on this node: nothing to reduce".to_owned())
        }
        (support, _) => support,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_registry_is_here_and_the_reverse() {
        let registry: Vec<_> =
            diag::check::ALL.iter().filter(|spec| !spec.engines.is_empty()).map(|spec| spec.name).collect();
        let here: Vec<_> = ALL.iter().map(|check| check.spec().name).collect();
        assert_eq!(registry, here);
        assert!(here.iter().all(|name| get(*name).is_some()));
    }

    #[test]
    fn a_node_without_a_gpu_is_skipped_with_a_reason() {
        let facts = NodeFacts {
            version: String::new(),
            request_digest: String::new(),
            engine: Engine::Cuda,
            address: None,
            rank_ports: vec![1, 2],
            gpus: Vec::new(),
            libraries: String::new(),
            known: diag::gpu_facts::Known::default(),
            unable: None,
        };
        for check in ALL {
            assert!(matches!(check.supported(&facts), Support::No(_)), "{}", check.spec().text);
        }
    }
}
