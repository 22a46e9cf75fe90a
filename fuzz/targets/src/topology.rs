//! Slurm's files on the wiring of the network.

use diag::topology::{Mistake, Topology, parse_conf, parse_yaml};

use crate::holds;

/// Most mistakes that are told of a file.
const MOST_MISTAKES: usize = 64;
/// Longest line about one: 300 characters and the line's number.
const MOST_BYTES: usize = 4 * 300 + 40;

/// Both readers take any text; leaves are of the nodes that were asked for.
pub fn run(data: &[u8]) {
    let text = holds::text(data);
    for parse in [parse_conf, parse_yaml] as [fn(&str) -> Result<Topology, Vec<Mistake>>; 2] {
        let read = parse(&text);
        assert_eq!(read, parse(&text));
        match read {
            Ok(topology) => leaves(&topology),
            Err(list) => {
                assert!(!list.is_empty() && list.len() <= MOST_MISTAKES);
                let lines = text.lines().count().max(1);
                for mistake in list {
                    assert!((1..=lines).contains(&mistake.line), "{mistake} of {lines} lines");
                    holds::line(&mistake.to_string(), MOST_BYTES);
                }
            }
        }
    }
}

fn leaves(topology: &Topology) {
    let nodes: Vec<String> = (0..12).map(|number| format!("n{number}")).collect();
    let leaves = topology.of_job(&nodes);
    assert!(leaves.of.is_empty() || leaves.of.len() == nodes.len());
    assert!(leaves.names.len() <= nodes.len());
    let all = (0..).take(nodes.len()).collect();
    let members = leaves.members(&all);
    // Each leaf of the answer has a node, or it would not be there.
    assert_eq!(members.len(), leaves.names.len());
    for (leaf, below) in members {
        assert!(!leaves.name(leaf).is_empty() && !below.is_empty());
        assert!(below.iter().all(|node| leaves.get(*node) == Some(leaf)));
    }
}
