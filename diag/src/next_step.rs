//! What a technician does first about a part at fault: one line a kind of check and subject.

use crate::check::{CheckName, Phase};
use crate::measurement::{Metric, Subject};

/// For a number of this kind that speaks against `subject`.
pub(crate) fn next_step(check: CheckName, metric: Metric, subject: &Subject) -> &'static str {
    let of_rail = matches!(subject, Subject::Rail { .. } | Subject::PairRail { .. });
    let of_gpu = matches!(subject, Subject::Gpu { .. });
    match (check, metric) {
        (CheckName::GemmFlops, Metric::Correct) if of_gpu => {
            "run dcgmi diag -r 3 on this GPU and read the kernel's log for Xid messages; one that computes wrongly is replaced"
        }
        (_, Metric::Correct) => {
            "data is wrong on its way: read the kernel's log for Xid messages and memory errors, and run dcgmi diag -r 3"
        }
        (CheckName::GemmFlops | CheckName::CompCommOverlap, Metric::Flops | Metric::Fp8Flops) if of_gpu => {
            "nvidia-smi -q -d CLOCK,PERFORMANCE,POWER,TEMPERATURE says what slows it: cooling, power supply, a locked clock"
        }
        (CheckName::GemmFlops | CheckName::CompCommOverlap, Metric::Flops | Metric::Fp8Flops) => {
            "look at what else runs on the node, and at the clocks and cooling of its processors"
        }
        (CheckName::KernelLaunch, _) => {
            "look at the host: what else runs there, the clocks and power saving of its processors, the PCIe link (lspci -vv)"
        }
        (CheckName::AllReduce1 | CheckName::CompCommOverlap, _) => {
            "nvidia-smi nvlink --status and nvidia-smi topo -m, the fabric manager's log, the PCIe links (lspci -vv)"
        }
        (_, Metric::Retransmits) => {
            "packets are lost: look at the cable, the port's counters (ethtool -S) and the MTU"
        }
        (CheckName::NetworkConnectivity, _) => "look at the node's routes, interface and load",
        (CheckName::PytorchGloo2, _) => {
            "look at the interface that the node's name resolves to, its speed (ethtool) and its load"
        }
        _ if of_rail => {
            "look at this port, its cable and the switch's port: ibstat or ethtool, and the error counters"
        }
        _ => match check.spec().phase {
            Phase::AllNodeCommCheck | Phase::TwoNodeCommCheck => {
                "look at the node's ports and cables (ibstat or ethtool, error counters), PCIe links and nvidia_peermem"
            }
            _ => "look at the node's hardware log and the kernel's",
        },
    }
}
