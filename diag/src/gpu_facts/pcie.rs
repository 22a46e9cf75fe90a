//! PCIe links below what their two ends can do, along the whole way to the processor. A new card in an old slot is no
//! fault; a link that trained lower than both of its ends can is one, wherever it lies.

use super::reading::{NodeReading, PcieNode, PciePath};
use super::{Fact, FactKind, called, subject};
use crate::facts::NodeId;
use crate::measurement::Subject;

/// Two generations differ by 2.5 GT/s or more; a smaller difference than this is rounding.
const SAME_GT_S: f64 = 0.5;

/// What is known while nothing runs. An idle GPU lowers the speed of its own link, and of that only.
pub(super) fn at_rest(node: NodeId, reading: &NodeReading) -> Vec<Fact> {
    let path_of = |address: &Option<String>| {
        let address = address.as_ref()?;
        reading.machine.paths.iter().find(|path| path.address == *address)
    };
    let mut facts = Vec::new();
    for gpu in &reading.gpus {
        if let Some(path) = path_of(&gpu.device.pci) {
            facts.extend(of_path(&subject(node, gpu), &called(&reading.name, gpu), path, Own::Resting));
        }
    }
    // J01: a device of which no port is up is not in use.
    let in_use = reading
        .machine
        .rdma
        .iter()
        .filter(|device| device.ports.iter().any(|port| port.state.as_deref() == Some("ACTIVE")));
    for device in in_use {
        if let Some(path) = path_of(&device.pci) {
            let nic = Subject::Nic { node, name: device.name.clone() };
            let who = format!("{} {}", reading.name, device.name);
            facts.extend(of_path(&nic, &who, path, Own::Counts));
        }
    }
    facts
}

/// What is known while a GPU works: now its own link counts too. `who` is what the words begin with.
#[must_use]
pub fn path_under_load(subject: &Subject, who: &str, path: &PciePath) -> Vec<Fact> {
    of_path(subject, who, path, Own::Counts)
}

/// Whether the speed of the device's own link says anything.
#[derive(Clone, Copy, PartialEq)]
enum Own {
    Counts,
    Resting,
}

/// J14.
fn of_path(subject: &Subject, who: &str, path: &PciePath, own: Own) -> Vec<Fact> {
    let mut facts = Vec::new();
    for (at, link) in path.nodes.chunks(2).enumerate() {
        let (Some(lower), Some(upper)) = (link.first(), link.get(1).or(link.first())) else { continue };
        let place = if at == 0 { "its PCIe link" } else { "the PCIe link above it" };
        let ends = if lower.address == upper.address {
            lower.address.clone()
        } else {
            format!("{} to {}", upper.address, lower.address)
        };
        let speed = speeds(lower, upper).filter(|_| at > 0 || own == Own::Counts);
        if let Some((now, most)) = speed {
            let words =
                format!("{who}: {place} ({ends}) runs at {now} GT/s, both ends can do {most}; {NEXT}");
            facts.push(Fact::new(FactKind::Fault, subject.clone(), words));
        }
        if let Some((now, most)) = widths(lower, upper) {
            let words = format!("{who}: {place} ({ends}) has {now} lanes, both ends can do {most}; {NEXT}");
            facts.push(Fact::new(FactKind::Fault, subject.clone(), words));
        }
    }
    facts
}

/// What helps.
const NEXT: &str = "seat the card again, then look at slot and riser";

/// Speed now and the most that both ends can do, if it is below.
fn speeds(lower: &PcieNode, upper: &PcieNode) -> Option<(f64, f64)> {
    let now = lower.speed_gt_s.or(upper.speed_gt_s)?;
    let most = lower.speed_max_gt_s?.min(upper.speed_max_gt_s?);
    (now + SAME_GT_S < most).then_some((now, most))
}

fn widths(lower: &PcieNode, upper: &PcieNode) -> Option<(u32, u32)> {
    let now = lower.width.or(upper.width)?;
    let most = lower.width_max?.min(upper.width_max?);
    (now < most).then_some((now, most))
}
