//! Registration of the GPUs with the NVLink fabric: the fabric manager on one node, IMEX between nodes.

use super::reading::{Fabric, FabricState, GpuReading, NodeReading};
use super::{Fact, FactKind, called, just_started, subject};
use crate::facts::NodeId;
use crate::measurement::Subject;

/// One question of NVML's health mask: two bits that mean 1 yes, 2 no, 0 not known.
const YES: u32 = 1;
const TWO_BITS: u32 = 3;
const SHIFT_DEGRADED: u32 = 0;
const SHIFT_ROUTE_RECOVERY: u32 = 2;
const SHIFT_ROUTE_UNHEALTHY: u32 = 4;
const SHIFT_ACCESS_RECOVERY: u32 = 6;
/// Four bits: what is wrong with the configuration, 0 not known and 1 nothing.
const SHIFT_CONFIGURATION: u32 = 8;
const FOUR_BITS: u32 = 15;
const TOO_FEW_LINKS: u32 = 5;

/// NVML's sums of the mask.
const NOT_HEALTHY: u32 = 2;
const LIMITED: u32 = 3;

pub(super) fn facts(node: NodeId, reading: &NodeReading) -> Vec<Fact> {
    let with_fabric = || {
        reading.gpus.iter().filter_map(|gpu| {
            let fabric = gpu.fabric.as_ref().filter(|fabric| fabric.state != FabricState::NotSupported)?;
            Some((gpu, fabric))
        })
    };
    let done = with_fabric().any(|(_, fabric)| fabric.state == FabricState::Completed);
    let mut facts = Vec::new();
    let mut waiting = Vec::new();
    for (gpu, fabric) in with_fabric() {
        let who = called(&reading.name, gpu);
        match fabric.state {
            FabricState::Completed => facts.extend(completed(node, &who, gpu, fabric)),
            // K07, K01: a registration takes seconds, after a start minutes; one that others have finished is stuck.
            _ if done && !just_started(reading) => {
                let words = format!(
                    "{who}: registration with the NVLink fabric is {}, other GPUs of the node have finished it; reset the GPU",
                    state(fabric.state)
                );
                facts.push(Fact::new(FactKind::Fault, subject(node, gpu), words));
            }
            waits => waiting.push(format!("{} {}", super::number(&gpu.device), state(waits))),
        }
    }
    if !waiting.is_empty() {
        // K06: the fabric manager is the node's, not a GPU's.
        let words = format!(
            "{}: the NVLink fabric is not ready (GPU {}); see systemctl status nvidia-fabricmanager",
            reading.name,
            waiting.join(", ")
        );
        facts.push(Fact::new(FactKind::Error, Subject::Node { node }, words));
    }
    facts.extend(imex(node, reading));
    facts
}

fn state(state: FabricState) -> String {
    match state {
        FabricState::NotSupported => "not supported".to_owned(),
        FabricState::NotStarted => "not started".to_owned(),
        FabricState::InProgress => "in progress".to_owned(),
        FabricState::Completed => "completed".to_owned(),
        FabricState::Other(number) => format!("in state {number}"),
    }
}

/// What a finished registration came to. K05.
fn completed(node: NodeId, who: &str, gpu: &GpuReading, fabric: &Fabric) -> Vec<Fact> {
    let fact = |kind, words: String| Fact::new(kind, subject(node, gpu), format!("{who}: {words}"));
    let (code, text) = &fabric.status;
    if *code != 0 {
        let words = format!("registration with the NVLink fabric failed: {text} (NVML {code})");
        return vec![fact(FactKind::Fault, words)];
    }
    let mask = fabric.health_mask.unwrap_or_default();
    let says = |shift: u32| (mask >> shift) & TWO_BITS == YES;
    let mut facts = Vec::new();
    if says(SHIFT_DEGRADED) {
        facts.push(fact(
            FactKind::Fault,
            "the NVLink fabric gives it less bandwidth than it should".to_owned(),
        ));
    }
    if says(SHIFT_ROUTE_UNHEALTHY) {
        facts.push(fact(FactKind::Fault, "its routes through the NVLink fabric are not healthy".to_owned()));
    }
    for (shift, what) in [(SHIFT_ROUTE_RECOVERY, "routes"), (SHIFT_ACCESS_RECOVERY, "access")] {
        if says(shift) {
            let words =
                format!("its {what} through the NVLink fabric is being recovered; check again when done");
            facts.push(fact(FactKind::Error, words));
        }
    }
    match (mask >> SHIFT_CONFIGURATION) & FOUR_BITS {
        0 | 1 => (),
        TOO_FEW_LINKS => {
            facts.push(fact(FactKind::Fault, "too few NVLinks for the fabric are up".to_owned()));
        }
        other => {
            let what = match other {
                2 => "a wrong system GUID".to_owned(),
                3 => "a wrong serial number of the chassis".to_owned(),
                4 => "no partition".to_owned(),
                6 => "firmware of the GPU that does not fit".to_owned(),
                number => format!("mistake {number}, which has no name here"),
            };
            facts.push(fact(FactKind::Error, format!("the NVLink fabric is set up with {what}")));
        }
    }
    if facts.is_empty() {
        match fabric.health_summary {
            Some(NOT_HEALTHY) => {
                facts.push(fact(FactKind::Fault, "the NVLink fabric calls it not healthy".to_owned()));
            }
            Some(LIMITED) => {
                facts.push(fact(FactKind::Cause, "the NVLink fabric gives it limited capacity".to_owned()));
            }
            _ => (),
        }
    }
    facts
}

/// K03: without IMEX, GPUs of several nodes don't reach each other by NVLink, or slowly.
fn imex(node: NodeId, reading: &NodeReading) -> Option<Fact> {
    let spans_nodes = |gpu: &GpuReading| {
        gpu.fabric
            .as_ref()
            .is_some_and(|fabric| fabric.state == FabricState::Completed && fabric.cluster_uuid.is_some())
    };
    let imex = reading.machine.imex.filter(|_| reading.gpus.iter().any(spans_nodes))?;
    let missing = match (imex.channels > 0, imex.daemon) {
        (true, true) => return None,
        (true, false) => "nvidia-imex does not run",
        (false, true) => "there is no IMEX channel",
        (false, false) => "nvidia-imex does not run and there is no IMEX channel",
    };
    let words = format!("{}: {missing}: NVLink between nodes is slow or not there", reading.name);
    Some(Fact::new(FactKind::Cause, Subject::Node { node }, words))
}
