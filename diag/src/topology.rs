//! Which switch a node's cables lead to: what Slurm's `topology.conf` and `topology.yaml` say of the leaves of the network,
//! read as text, and of a job's nodes. Only who is below which leaf is kept: what joins the leaves to each other is not
//! needed to tell a node from its switch.
//!
//! A block of the block topology is a leaf too: nodes that are closer to each other than to any other.

mod conf;
mod yaml;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::facts::NodeId;
use crate::hostlist::{MAX_NAMES, expand};

pub use self::conf::parse as parse_conf;
pub use self::yaml::parse as parse_yaml;

/// Longest text of either file: Slurm's bound of 65,536 nodes, each with a line of its own.
pub const MAX_BYTES: usize = 8 << 20;

/// Most mistakes that are told: more say no more.
const MOST_MISTAKES: usize = 64;

/// Longest name of a switch: what [`crate::hostlist`] allows a name.
const MAX_NAME_BYTES: usize = crate::hostlist::MAX_NAME_BYTES;

/// What is wrong with a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong there, and what would be right.
    pub words: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.words)
    }
}

/// What a leaf is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeafKind {
    /// A switch that nodes are joined to.
    #[default]
    Switch,
    /// A block.
    Block,
}

/// The leaves of a site: one set of them a topology of the file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Topology {
    forms: Vec<Form>,
}

/// One of the topologies of a site.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Form {
    kind: LeafKind,
    /// Whether it is the cluster's default.
    default: bool,
    leaves: Vec<String>,
    of: BTreeMap<String, usize>,
}

impl Topology {
    /// The leaves of these nodes. Of several topologies the one that knows most of them; of those that know as many
    /// a tree, which says how they are wired, then the cluster's default, then the first.
    #[must_use]
    pub fn of_job(&self, nodes: &[String]) -> Leaves {
        let known = |form: &&Form| nodes.iter().filter(|name| form.of.contains_key(*name)).count();
        let rank = |form: &&Form| (known(form), form.kind == LeafKind::Switch, form.default);
        // `max_by_key` would give the last of several.
        let best = self.forms.iter().rev().max_by_key(rank);
        best.filter(|form| known(form) > 0).map_or_else(Leaves::default, |form| form.of_job(nodes))
    }
}

impl Form {
    fn of_job(&self, nodes: &[String]) -> Leaves {
        let mut leaves = Leaves { kind: self.kind, ..Leaves::default() };
        let mut numbers: BTreeMap<usize, LeafId> = BTreeMap::new();
        for name in nodes {
            let leaf = self.of.get(name).map(|at| {
                *numbers.entry(*at).or_insert_with(|| {
                    leaves.names.push(self.leaves[*at].clone());
                    LeafId::try_from(leaves.names.len() - 1).unwrap_or(LeafId::MAX)
                })
            });
            leaves.of.push(leaf);
        }
        leaves
    }
}

/// A leaf among those of a job.
pub type LeafId = u32;

/// The leaves that the nodes of a job are below; empty where nobody knows.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Leaves {
    /// What they are.
    pub kind: LeafKind,
    /// Their names.
    pub names: Vec<String>,
    /// Of each node its leaf; `None`, or no entry: not known.
    pub of: Vec<Option<LeafId>>,
}

impl Leaves {
    /// The leaf of a node.
    #[must_use]
    pub fn get(&self, node: NodeId) -> Option<LeafId> {
        self.of.get(node as usize).copied().flatten().filter(|leaf| (*leaf as usize) < self.names.len())
    }

    /// Whether two nodes are below one leaf; `None`: not known.
    #[must_use]
    pub fn same(&self, a: NodeId, b: NodeId) -> Option<bool> {
        Some(self.get(a)? == self.get(b)?)
    }

    /// The name of a leaf.
    #[must_use]
    pub fn name(&self, leaf: LeafId) -> &str {
        self.names.get(leaf as usize).map_or("-", String::as_str)
    }

    /// A leaf as a person calls it.
    #[must_use]
    pub fn called(&self, leaf: LeafId) -> String {
        match self.kind {
            LeafKind::Switch => format!("switch {}", self.name(leaf)),
            LeafKind::Block => format!("block {}", self.name(leaf)),
        }
    }

    /// Those of these nodes that are below each leaf.
    #[must_use]
    pub fn members(&self, nodes: &BTreeSet<NodeId>) -> BTreeMap<LeafId, BTreeSet<NodeId>> {
        let mut members: BTreeMap<LeafId, BTreeSet<NodeId>> = BTreeMap::new();
        for node in nodes {
            if let Some(leaf) = self.get(*node) {
                members.entry(leaf).or_default().insert(*node);
            }
        }
        members
    }
}

/// One topology while it is read.
#[derive(Default)]
struct Draft {
    form: Form,
    /// Every switch or block with the line that names it.
    named: BTreeMap<String, usize>,
    /// Switches that others say are below them.
    children: Vec<(usize, String)>,
    names: usize,
}

impl Draft {
    /// Takes a switch or block: what is below it is said by one of the two lists.
    fn take(
        &mut self,
        (line, name): (usize, &str),
        nodes: Option<&str>,
        children: Option<&str>,
        mistakes: &mut Mistakes,
    ) {
        if name.is_empty() || name.len() > MAX_NAME_BYTES {
            return mistakes.add(line, format!("a name has 1 to {MAX_NAME_BYTES} bytes"));
        }
        if let Some(before) = self.named.insert(name.to_owned(), line) {
            mistakes.add(line, format!("{name} stands in line {before} too: names are given once"));
        }
        match (nodes, children) {
            (Some(_), Some(_)) => mistakes.add(line, format!("{name} has nodes and switches: one of them")),
            (None, None) => mistakes.add(line, format!("{name} has neither nodes nor switches")),
            (Some(nodes), None) => {
                let leaf = self.form.leaves.len();
                self.form.leaves.push(name.to_owned());
                for node in self.list((line, name), nodes, mistakes) {
                    if let Some(other) =
                        self.form.of.insert(node.clone(), leaf).filter(|other| *other != leaf)
                    {
                        let other = &self.form.leaves[other];
                        mistakes
                            .add(line, format!("node {node} is below {other} and {name}: one leaf a node"));
                    }
                }
            }
            (None, Some(children)) => {
                let children = self.list((line, name), children, mistakes);
                self.children.extend(children.into_iter().map(|child| (line, child)));
            }
        }
    }

    /// The names of a list, as far as there is room for them.
    fn list(&mut self, (line, of): (usize, &str), text: &str, mistakes: &mut Mistakes) -> Vec<String> {
        if self.names > MAX_NAMES {
            return Vec::new();
        }
        match expand(text) {
            Ok(names) => {
                self.names += names.len();
                if self.names > MAX_NAMES {
                    mistakes
                        .add(line, format!("more than {MAX_NAMES} names up to here: no cluster has as many"));
                    return Vec::new();
                }
                names
            }
            Err(error) => {
                mistakes.add(line, format!("{of}: {error}"));
                Vec::new()
            }
        }
    }

    fn done(self, mistakes: &mut Mistakes) -> Form {
        for (line, child) in &self.children {
            if !self.named.contains_key(child) {
                mistakes.add(*line, format!("there is no switch {child}"));
            }
        }
        self.form
    }
}

/// Mistakes found so far.
#[derive(Default)]
struct Mistakes(Vec<Mistake>);

impl Mistakes {
    fn add(&mut self, line: usize, words: String) {
        // Foreign text: what is shown of it is short and has no control characters.
        let words: String = crate::plain::printable(&words).chars().take(300).collect();
        if self.0.len() < MOST_MISTAKES {
            self.0.push(Mistake { line, words });
        }
    }

    fn or(self, forms: Vec<Form>) -> Result<Topology, Vec<Mistake>> {
        if self.0.is_empty() { Ok(Topology { forms }) } else { Err(self.0) }
    }
}

/// Whether a text is short enough to be read.
fn check_length(text: &str) -> Result<(), Vec<Mistake>> {
    if text.len() <= MAX_BYTES {
        return Ok(());
    }
    Err(vec![Mistake {
        line: 1,
        words: format!("the file has {} bytes, at most {MAX_BYTES} are read", text.len()),
    }])
}

#[cfg(test)]
mod tests;
