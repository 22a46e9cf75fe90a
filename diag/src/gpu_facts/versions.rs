//! Drivers that differ between the nodes of a job. NCCL's versions are compared when the nodes meet.

use std::collections::BTreeMap;

use super::{Fact, FactKind, Placed};
use crate::facts::NodeId;
use crate::measurement::Subject;

/// N07.
pub(super) fn facts(nodes: &[Placed<'_>]) -> Vec<Fact> {
    let mut by_version: BTreeMap<&str, Vec<(NodeId, &str)>> = BTreeMap::new();
    for (node, name, seen) in nodes {
        // One that doesn't say is another error's matter.
        if let Some(version) = &seen.driver {
            by_version.entry(version).or_default().push((*node, name));
        }
    }
    if by_version.len() < 2 {
        return Vec::new();
    }
    let known: usize = by_version.values().map(Vec::len).sum();
    let usual = by_version.iter().find(|(_, nodes)| 2 * nodes.len() > known);
    let Some((usual, with_it)) = usual else {
        let all: Vec<String> = by_version.iter().map(|(version, nodes)| on(version, nodes)).collect();
        let words = format!("the GPU driver differs between the nodes: {}; make them alike", all.join("; "));
        return vec![Fact::new(FactKind::Error, Subject::Run, words)];
    };
    by_version
        .iter()
        .filter(|(version, _)| *version != usual)
        .flat_map(|(version, nodes)| nodes.iter().map(move |one| (version, one)))
        .map(|(version, (node, name))| {
            let words =
                format!("{name} has GPU driver {version}, while {}; make them alike", on(usual, with_it));
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
