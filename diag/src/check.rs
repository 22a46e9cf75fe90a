//! The registry of checks: one row a check, in the order in which they run. How a check measures is in
//! `prolog/src/checks/`; what is a fault is in [`crate::judge`].

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::facts::Engine;

/// The five phases of a suite, in order. A node that failed one phase sits out the next ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Phase {
    /// The nodes meet and compare what they are.
    CheckInit,
    /// Each GPU or processor by itself.
    DeviceCheck,
    /// The links inside one node.
    SingleNodeCommCheck,
    /// Pairs of nodes.
    TwoNodeCommCheck,
    /// All nodes of the job at once.
    AllNodeCommCheck,
    /// While the job runs: what [`crate::c4d`] finds. No check of this registry.
    RuntimeCheck,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Who takes part in one measurement of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scope {
    /// Every node by itself, all at the same time.
    Node,
    /// Two nodes; all pairs of a round at the same time.
    Pair,
    /// All nodes together.
    All,
}

/// A check by name. The order is the order in which checks run: cheap and local first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckName {
    /// bf16 matrix product per GPU; on the host engine products per second per node.
    GemmFlops,
    /// Launch latency; on the host engine thread wake-up.
    KernelLaunch,
    /// All-reduce inside a node.
    #[serde(rename = "all_reduce_1")]
    AllReduce1,
    /// Products and all-reduce at the same time.
    CompCommOverlap,
    /// Connect, round trip and retransmits between nodes.
    NetworkConnectivity,
    /// PyTorch's Gloo all-reduce between pairs.
    #[serde(rename = "pytorch_gloo_2")]
    PytorchGloo2,
    /// All-reduce between pairs of nodes.
    #[serde(rename = "all_reduce_2")]
    AllReduce2,
    /// All-gather between pairs of nodes.
    #[serde(rename = "all_gather_2")]
    AllGather2,
    /// All-to-all between pairs of nodes.
    #[serde(rename = "all_to_all_2")]
    AllToAll2,
    /// All-reduce of every rail by itself between pairs of nodes.
    #[serde(rename = "multi_all_reduce_2")]
    MultiAllReduce2,
    /// All-reduce over all nodes.
    AllReduce,
    /// All-gather over all nodes.
    AllGather,
    /// All-reduce of every rail by itself over all nodes.
    MultiAllReduce,
}

/// What the registry knows of a check.
#[derive(Debug, Clone, Copy)]
pub struct CheckSpec {
    /// Its name.
    pub name: CheckName,
    /// The spelling used everywhere: option, policy, baseline, report, file name.
    pub text: &'static str,
    /// When it runs.
    pub phase: Phase,
    /// Who takes part.
    pub scope: Scope,
    /// The engines that this build can measure it on. Empty: refused at submission, by name.
    pub engines: &'static [Engine],
    /// One line: what it measures and finds.
    pub doc: &'static str,
}

macro_rules! registry {
    ($($name:ident $text:literal $phase:ident $scope:ident [$($engine:ident)*] $doc:literal;)*) => {
        /// Every check, in the order in which they run.
        pub const ALL: &[CheckSpec] = &[$(CheckSpec {
            name: CheckName::$name,
            text: $text,
            phase: Phase::$phase,
            scope: Scope::$scope,
            engines: &[$(Engine::$engine),*],
            doc: $doc,
        }),*];
    };
}

registry! {
    GemmFlops "gemm_flops" DeviceCheck Node [Host Cuda]
        "matrix product: rate of each device, and the result is right; finds a slow, throttled or wrong device";
    KernelLaunch "kernel_launch" DeviceCheck Node [Host Cuda]
        "time from a launch to its start; finds a slow host, driver or PCIe path";
    AllReduce1 "all_reduce_1" SingleNodeCommCheck Node [Host Cuda]
        "all-reduce inside each node: bus bandwidth, and the sum is right; finds bad links inside a node";
    CompCommOverlap "comp_comm_overlap" SingleNodeCommCheck Node [Host Cuda]
        "products and all-reduce at once; finds contention that only a real load shows";
    NetworkConnectivity "network_connectivity" TwoNodeCommCheck Pair [Host Cuda]
        "connect, round trip and retransmits between nodes; finds blocked ports, wrong routes and packet loss";
    PytorchGloo2 "pytorch_gloo_2" TwoNodeCommCheck Pair [Host Cuda]
        "PyTorch's Gloo all-reduce between pairs; finds host names and interfaces that mislead it";
    AllReduce2 "all_reduce_2" TwoNodeCommCheck Pair [Host Cuda]
        "all-reduce between pairs of nodes: bus bandwidth; finds a slow or dead NIC, cable or switch port";
    AllGather2 "all_gather_2" TwoNodeCommCheck Pair [Host Cuda]
        "all-gather between pairs of nodes: bus bandwidth";
    AllToAll2 "all_to_all_2" TwoNodeCommCheck Pair [Host Cuda]
        "all-to-all between pairs of nodes: bus bandwidth";
    MultiAllReduce2 "multi_all_reduce_2" TwoNodeCommCheck Pair [Host Cuda]
        "all-reduce of every rail by itself between pairs of nodes; finds one bad NIC or rail";
    AllReduce "all_reduce" AllNodeCommCheck All [Host Cuda]
        "all-reduce over all nodes; finds congestion and bad links in the fabric";
    AllGather "all_gather" AllNodeCommCheck All [Host Cuda]
        "all-gather over all nodes";
    MultiAllReduce "multi_all_reduce" AllNodeCommCheck All [Host Cuda]
        "all-reduce of every rail by itself over all nodes";
}

/// What a bare `--sanity-check` runs.
pub const DEFAULT_CHECKS: &[CheckName] =
    &[CheckName::GemmFlops, CheckName::AllReduce1, CheckName::AllReduce2];

impl CheckName {
    /// The registry's row of this check.
    #[must_use]
    pub fn spec(self) -> &'static CheckSpec {
        &ALL[self as usize]
    }

    /// The check that is spelled `text`; letter case does not matter.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        ALL.iter().find(|spec| spec.text.eq_ignore_ascii_case(text)).map(|spec| spec.name)
    }
}

impl fmt::Display for CheckName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.spec().text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stand_in_the_order_of_names_and_phases() {
        for (index, spec) in ALL.iter().enumerate() {
            assert_eq!(spec.name as usize, index, "{}", spec.text);
            assert_eq!(serde_json::to_value(spec.name).unwrap(), spec.text);
        }
        assert!(ALL.is_sorted_by_key(|spec| spec.phase));
    }
}
