//! NVLinks that are down on one GPU while those of its like are up. A single GPU tells nothing: how many links are
//! in use is a matter of the board.

use super::reading::{GpuReading, NodeReading};
use super::{Fact, FactKind, called, just_started, subject};
use crate::facts::NodeId;

/// One GPU with its node.
type Placed<'a> = (NodeId, &'a NodeReading, &'a GpuReading);

pub(super) fn facts(nodes: &[(NodeId, &NodeReading)]) -> Vec<Fact> {
    let all: Vec<Placed<'_>> = nodes
        .iter()
        .flat_map(|(node, reading)| reading.gpus.iter().map(move |gpu| (*node, *reading, gpu)))
        .filter(|(_, _, gpu)| gpu.lost.is_none() && !gpu.links.is_empty())
        .collect();
    all.iter().filter_map(|one| of_gpu(one, &all)).collect()
}

fn is_active(gpu: &GpuReading, link: u32) -> bool {
    gpu.links.iter().any(|one| one.link == link && one.active == Some(true))
}

fn of_gpu(one: &Placed<'_>, all: &[Placed<'_>]) -> Option<Fact> {
    let (node, reading, gpu) = *one;
    let others: Vec<&GpuReading> = all
        .iter()
        .map(|(_, _, other)| *other)
        .filter(|other| !std::ptr::eq(*other, gpu) && other.device.name == gpu.device.name)
        .collect();
    let down: Vec<u32> = gpu
        .links
        .iter()
        .filter(|link| link.active == Some(false))
        .map(|link| link.link)
        // More than half of the others: one odd board does not set the rule.
        .filter(|link| 2 * others.iter().filter(|other| is_active(other, *link)).count() > others.len())
        .collect();
    let up = gpu.links.iter().filter(|link| link.active == Some(true)).count();
    if down.is_empty() || (up == 0 && may_lack_a_bridge(gpu)) {
        return None;
    }
    let who = called(&reading.name, gpu);
    let numbers: Vec<String> = down.iter().map(u32::to_string).collect();
    let (kind, then) = if just_started(reading) {
        (FactKind::Error, "the node has just started and may still be training them; check again")
    } else {
        (FactKind::Fault, "reset the GPU; then look at board and NVSwitch")
    };
    let words = format!(
        "{who}: NVLink {} down, {up} of {} up, while the others of its kind have them up; {then}",
        numbers.join(","),
        gpu.links.len()
    );
    Some(Fact::new(kind, subject(node, gpu), words))
}

/// K02: cards for a slot have NVLink only through a bridge that may or may not be there. Boards for NVSwitch carry
/// neither word in their name.
fn may_lack_a_bridge(gpu: &GpuReading) -> bool {
    let name = gpu.device.name.as_deref().unwrap_or_default();
    name.split([' ', '-'])
        .any(|word| matches!(word, "PCIe" | "PCIE" | "NVL" | "RTX" | "A40" | "A30" | "Quadro"))
}
