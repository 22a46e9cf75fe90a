//! `[budget]`: what all jobs together may take out of service. The caps of one verdict are in `[actions]`.

use serde::Serialize;

use crate::drain_memory::MOST_REMEMBERED;
use crate::fields::Section;
use crate::policy::slots::{read_integer, read_number};
use crate::request::mistake::Mistakes;

/// `[budget]`. Nodes are counted in each partition that a node is in.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Budget {
    /// Most nodes of a partition that this software holds drained (default 32).
    pub held_nodes: u32,
    /// The same as a share of the partition, rounded up, at least one (default 0.34: what one verdict may take of a job
    /// on the whole partition); the smaller of both holds.
    pub held_fraction: f64,
    /// Most nodes of a partition that this software drains in a window (default 8).
    pub new_nodes: u32,
    /// That window (default 3600).
    pub new_window_s: u32,
    /// How often it drains the same node in a window, before a person has to look (default 3).
    pub same_node: u32,
    /// That window (default 86400).
    pub same_node_window_s: u32,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            held_nodes: 32,
            held_fraction: 0.34,
            new_nodes: 8,
            new_window_s: 3600,
            same_node: 3,
            same_node_window_s: 86_400,
        }
    }
}

impl Budget {
    /// Most nodes of a partition of this size that may be held.
    #[must_use]
    pub fn most_held(&self, size: usize) -> usize {
        let size = u32::try_from(size).unwrap_or(u32::MAX);
        let share = (f64::from(size) * self.held_fraction).ceil().max(1.0);
        // Counting up avoids a float-to-integer cast.
        (1..=self.held_nodes).take_while(|count| f64::from(*count) <= share).count()
    }
}

pub(super) fn read(section: &mut Section<'_>, budget: &mut Budget, m: &mut Mistakes) {
    // A month: what is longer ago says nothing about a node's present state.
    const LONGEST_S: u32 = 31 * 86_400;
    read_integer(section, "held_nodes", 0..=65_536, &mut budget.held_nodes, m);
    let share = (|share| share > 0.0 && share <= 1.0, "a number above 0, at most 1");
    read_number(section, "held_fraction", share, &mut budget.held_fraction, m);
    read_integer(section, "new_nodes", 0..=65_536, &mut budget.new_nodes, m);
    read_integer(section, "new_window_s", 60..=LONGEST_S, &mut budget.new_window_s, m);
    read_integer(section, "same_node", 1..=MOST_REMEMBERED, &mut budget.same_node, m);
    read_integer(section, "same_node_window_s", 60..=LONGEST_S, &mut budget.same_node_window_s, m);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;

    #[test]
    fn the_smaller_bound_holds_and_it_is_at_least_one_node() {
        let budget = Budget { held_nodes: 5, held_fraction: 0.25, ..Budget::default() };
        let most = |size| budget.most_held(size);
        assert_eq!([1, 4, 5, 8, 9, 20, 21, 1000].map(most), [1, 1, 2, 2, 3, 5, 5, 5]);
        assert_eq!(Budget { held_nodes: 0, ..budget }.most_held(8), 0);
    }

    #[test]
    fn slips_are_refused_by_name() {
        for (text, path) in [
            ("held_nodes = -1", "budget.held_nodes"),
            ("held_fraction = 0.0", "budget.held_fraction"),
            ("new_window_s = 59", "budget.new_window_s"),
            ("same_node = 0", "budget.same_node"),
            ("same_node = 17", "budget.same_node"),
            ("same_nodes = 3", "same_node"),
        ] {
            let mistakes = Policy::parse(&format!("[budget]\n{text}")).unwrap_err();
            assert!(mistakes.len() == 1 && mistakes[0].to_string().contains(path), "{text}: {mistakes:?}");
        }
    }
}
