//! What a technician does first about a part at fault: one line a kind of check and subject.

use crate::check::{CheckName, Phase};
use crate::measurement::{Metric, Subject};
use crate::reason::Ours;
use crate::wording;

/// Kinds of numbers, those with words of their own in a reason first.
const TOLD: [Metric; 6] = [
    Metric::Connect,
    Metric::RoundTrip,
    Metric::LaunchTail,
    Metric::Launch,
    Metric::Retransmits,
    Metric::Fp8Flops,
];

/// In place of a number: the result was wrong.
const WRONG: &str = "wrong result";

/// What a check can find at fault, one of each kind that has steps of its own.
const PARTS: [Subject; 3] =
    [Subject::Gpu { node: 0, index: 0 }, Subject::Rail { node: 0, index: 0 }, Subject::Node { node: 0 }];

/// The kinds of numbers that a check takes.
fn metrics(check: CheckName) -> &'static [Metric] {
    match check {
        CheckName::GemmFlops => &[Metric::Flops, Metric::Fp8Flops, Metric::Correct],
        CheckName::KernelLaunch => &[Metric::Launch, Metric::LaunchTail],
        CheckName::CompCommOverlap => &[Metric::Flops, Metric::Busbw, Metric::Correct],
        CheckName::NetworkConnectivity => {
            &[Metric::Connect, Metric::RoundTrip, Metric::Retransmits, Metric::Reachable]
        }
        _ => &[Metric::Busbw, Metric::Correct],
    }
}

/// All that may be the first thing to do about a fault of this check.
#[must_use]
pub fn steps(check: CheckName) -> Vec<&'static str> {
    let mut steps = Vec::new();
    for metric in metrics(check) {
        for part in &PARTS {
            let step = next_step(check, *metric, part);
            if !steps.contains(&step) {
                steps.push(step);
            }
        }
    }
    steps
}

/// What a technician does first about a node that was drained for this reason; `None`: no check found it.
#[must_use]
pub fn of_reason(reason: &Ours) -> Option<&'static str> {
    let check = CheckName::parse(reason.check())?;
    let told = |metric: &&Metric| reason.what.contains(wording::kind(**metric));
    let metric = if reason.what.contains(WRONG) {
        Metric::Correct
    } else {
        let taken = metrics(check);
        let named = TOLD.iter().filter(|metric| taken.contains(metric)).find(told);
        named.or(taken.first()).copied().unwrap_or(Metric::Busbw)
    };
    let subject = reason.what.split(' ').nth(1).unwrap_or_default();
    let part = match subject.rsplit_once('/') {
        Some((_, part)) if part.starts_with("gpu") => &PARTS[0],
        Some((_, part)) if part.starts_with("rail") => &PARTS[1],
        _ => &PARTS[2],
    };
    Some(next_step(check, metric, part))
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::ALL;

    #[test]
    fn a_reason_leads_to_the_step_of_its_number_and_part() {
        let step = |what: &str| of_reason(&Ours { what: what.into(), job_id: 1, check_number: 1 });
        for (what, word) in [
            ("gemm_flops n2/gpu2 wrong result", "one that computes wrongly is replaced"),
            ("gemm_flops n2/gpu2 300<600TFLOP/s", "a locked clock"),
            ("gemm_flops n2/gpu2 300<600TFLOP/s in fp8", "a locked clock"),
            ("gemm_flops n2 0.1<0.2TFLOP/s", "what else runs on the node"),
            ("network_connectivity n3 5>3% of segments resent", "packets are lost"),
            ("network_connectivity n3 80>50ms round trip", "routes"),
            ("multi_all_reduce_2 n3/rail1 1<2GB/s", "this port"),
            ("all_reduce_2 n3 0.002<0.05GB/s at 64 MiB", "ports and cables"),
        ] {
            assert!(step(what).is_some_and(|step| step.contains(word)), "{what}: {:?}", step(what));
        }
        assert_eq!(step("hardware n2/gpu1: fell off the bus"), None);
        assert_eq!(step("c4d straggler: rank 1 is late"), None);
    }

    #[test]
    fn every_check_has_steps_and_no_two_alike() {
        for spec in ALL {
            let steps = steps(spec.name);
            assert!(!steps.is_empty(), "{}", spec.text);
            assert!(steps.iter().enumerate().all(|(at, one)| !steps[..at].contains(one)), "{steps:?}");
        }
    }
}
