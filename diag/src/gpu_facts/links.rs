//! NVLinks that are down on one GPU while those of its like are up. A single GPU tells nothing: how many links are
//! in use is a matter of the board.

use std::collections::BTreeMap;

use super::compared::Links;
use super::{Fact, FactKind, Placed};
use crate::measurement::Subject;

/// How many GPUs of a model there are, and how many have each link up.
struct Alike {
    gpus: usize,
    up: [usize; u64::BITS as usize],
}

pub(super) fn facts(nodes: &[Placed<'_>]) -> Vec<Fact> {
    let mut alike: BTreeMap<&str, Alike> = BTreeMap::new();
    for gpu in nodes.iter().flat_map(|(_, _, seen)| &seen.gpus) {
        let like = alike.entry(&gpu.model).or_insert(Alike { gpus: 0, up: [0; u64::BITS as usize] });
        like.gpus += 1;
        like.up.iter_mut().enumerate().for_each(|(link, up)| *up += usize::from(gpu.up >> link & 1 == 1));
    }
    let mut facts = Vec::new();
    for one in nodes {
        for gpu in &one.2.gpus {
            facts.extend(alike.get(gpu.model.as_str()).and_then(|like| of_gpu(one, gpu, like)));
        }
    }
    facts
}

fn of_gpu(&(node, name, seen): &Placed<'_>, gpu: &Links, like: &Alike) -> Option<Fact> {
    // More than half of the others: one odd board does not set the rule. A link that is down here is not counted.
    let missing = |link: &usize| gpu.down >> link & 1 == 1 && 2 * like.up[*link] > like.gpus - 1;
    let down: Vec<String> = (0..like.up.len()).filter(missing).map(|link| link.to_string()).collect();
    let up = gpu.up.count_ones();
    if down.is_empty() || (up == 0 && may_lack_a_bridge(&gpu.model)) {
        return None;
    }
    let (kind, then) = if seen.just_started {
        (FactKind::Error, "the node has just started and may still be training them; check again")
    } else {
        (FactKind::Fault, "reset the GPU; then look at board and NVSwitch")
    };
    let words = format!(
        "{name} GPU {}: NVLink {} down, {up} of {} up, while the others of its kind have them up; {then}",
        gpu.gpu,
        down.join(","),
        (gpu.up | gpu.down).count_ones()
    );
    Some(Fact::new(kind, Subject::Gpu { node, index: gpu.gpu }, words))
}

/// K02: cards for a slot have NVLink only through a bridge that may or may not be there. Boards for NVSwitch carry
/// neither word in their name.
fn may_lack_a_bridge(model: &str) -> bool {
    model
        .split([' ', '-'])
        .any(|word| matches!(word, "PCIe" | "PCIE" | "NVL" | "RTX" | "A40" | "A30" | "Quadro"))
}
