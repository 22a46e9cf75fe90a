//! Versions that differ between the nodes of a job: NCCL deadlocks or fails in ways that name nobody.

use std::collections::BTreeMap;

use super::reading::NodeReading;
use super::{Fact, FactKind};
use crate::facts::NodeId;
use crate::measurement::Subject;

/// N07, L11.
pub(super) fn facts(nodes: &[(NodeId, &NodeReading)]) -> Vec<Fact> {
    let driver = |one: &NodeReading| one.driver_version.clone();
    let nccl = |one: &NodeReading| one.nccl_version.clone();
    let mut facts = compare(nodes, "GPU driver", driver);
    facts.extend(compare(nodes, "NCCL", nccl));
    facts
}

fn compare(
    nodes: &[(NodeId, &NodeReading)],
    what: &str,
    version: impl Fn(&NodeReading) -> Option<String>,
) -> Vec<Fact> {
    let mut by_version: BTreeMap<String, Vec<(NodeId, &str)>> = BTreeMap::new();
    for (node, reading) in nodes {
        // One that doesn't say is another error's matter.
        if let Some(version) = version(reading) {
            by_version.entry(version).or_default().push((*node, &reading.name));
        }
    }
    if by_version.len() < 2 {
        return Vec::new();
    }
    let known: usize = by_version.values().map(Vec::len).sum();
    let usual = by_version.iter().find(|(_, nodes)| 2 * nodes.len() > known);
    let Some((usual, with_it)) = usual else {
        let all: Vec<String> = by_version.iter().map(|(version, nodes)| on(version, nodes)).collect();
        let words = format!("{what} differs between the nodes: {}; make them alike", all.join("; "));
        return vec![Fact::new(FactKind::Error, Subject::Run, words)];
    };
    by_version
        .iter()
        .filter(|(version, _)| *version != usual)
        .flat_map(|(version, nodes)| nodes.iter().map(move |one| (version, one)))
        .map(|(version, (node, name))| {
            let words = format!("{name} has {what} {version}, while {}; make them alike", on(usual, with_it));
            Fact::new(FactKind::Error, Subject::Node { node: *node }, words)
        })
        .collect()
}

/// `580.159 on n1, n2 and 14 more`.
fn on(version: &str, nodes: &[(NodeId, &str)]) -> String {
    /// Names that a line has room for.
    const MOST_NAMES: usize = 4;
    let names: Vec<&str> = nodes.iter().take(MOST_NAMES).map(|(_, name)| *name).collect();
    match nodes.len().saturating_sub(MOST_NAMES) {
        0 => format!("{version} on {}", names.join(", ")),
        more => format!("{version} on {} and {more} more", names.join(", ")),
    }
}
