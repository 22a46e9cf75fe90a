//! What a group of nodes showed in one round: its numbers, each with the limit that it was held against. A look alone is
//! never a fault: [`crate::localise`] puts looks together. How they come about is in [`crate::judge`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

use crate::facts::NodeId;
use crate::gpu_facts::{Fact, FactKind};
use crate::measurement::{CheckError, Metric, Subject};
use crate::round::{Mode, Purpose};
use crate::verdict::Limit;

/// What one group of nodes showed in one round.
#[derive(Debug, Clone, PartialEq)]
pub struct Look {
    /// The nodes that were measured together.
    pub group: Vec<NodeId>,
    /// Index of the round.
    pub round: u32,
    /// Why the round was run.
    pub purpose: Purpose,
    /// How it was measured; looks of different modes say different things.
    pub mode: Mode,
    /// What it amounts to.
    pub sight: Sight,
    /// Every number of the group, judged.
    pub evidence: Vec<Evidence>,
}

/// What a look amounts to.
#[derive(Debug, Clone, PartialEq)]
pub enum Sight {
    /// All numbers are fine.
    Fine,
    /// At least one number misses its limit.
    Miss,
    /// A node of the group could not do its work.
    Error(NodeId, CheckError),
    /// A node of the group was lost.
    Lost(NodeId, String),
}

/// One number with the limit that it was held against.
#[derive(Debug, Clone, PartialEq)]
pub struct Evidence {
    /// The quantity.
    pub metric: Metric,
    /// Size of the messages, where numbers of several sizes are told apart.
    pub bytes: Option<u64>,
    /// What it is about.
    pub subject: Subject,
    /// The number; of two sides that measured the same thing, the worse one.
    pub value: f64,
    /// The limit that it misses, else the one nearest to it; like numbers share it.
    pub limit: Option<Arc<Limit>>,
    /// Median of the other like subjects in the round.
    pub median: Option<f64>,
    /// Whether it misses the limit, or the part showed a fault while it was taken.
    pub miss: bool,
    /// Whether it differs from what should be alike, and which of them is right is not known.
    pub tied: bool,
    /// What a person should know.
    pub detail: Arc<str>,
    /// What its subject showed of itself meanwhile.
    pub facts: Vec<Fact>,
    /// When it began.
    pub started_at: Timestamp,
    /// When it ended.
    pub finished_at: Timestamp,
}

/// What the same number of another window has the same: only such ones confirm each other. Two GPUs that each had a slow
/// moment are not one that is slow, and neither are two sizes.
pub type Number = (Subject, Metric, Option<u64>);

impl Evidence {
    /// What it has in common with the same number of another window.
    #[must_use]
    pub fn number(&self) -> Number {
        (self.subject.clone(), self.metric, self.bytes)
    }

    /// The faults that its subject showed.
    pub fn faults(&self) -> impl Iterator<Item = &str> {
        self.facts.iter().filter(|fact| fact.kind == FactKind::Fault).map(|fact| fact.words.as_str())
    }
}

impl Look {
    /// The numbers that miss their limit.
    pub fn misses(&self) -> impl Iterator<Item = &Evidence> {
        self.evidence.iter().filter(|one| one.miss)
    }

    /// All of it.
    #[must_use]
    pub fn whole(&self) -> View<'_> {
        self.view(self.evidence.iter().collect())
    }

    /// The numbers of one rail, and those that belong to no rail.
    #[must_use]
    pub fn on_rail(&self, rail: u32) -> View<'_> {
        let ours = |one: &&Evidence| one.subject.rail().is_none_or(|other| other == rail);
        self.view(self.evidence.iter().filter(ours).collect())
    }

    /// The look part by part of its node: its GPUs where they are told apart, and the node as a whole.
    #[must_use]
    pub fn by_part(&self, node: NodeId) -> BTreeMap<Subject, View<'_>> {
        let mut parts: BTreeMap<Option<u32>, Vec<&Evidence>> = BTreeMap::new();
        for one in &self.evidence {
            let gpu = if let Subject::Gpu { index, .. } = one.subject { Some(index) } else { None };
            parts.entry(gpu).or_default().push(one);
        }
        let part = |gpu: Option<u32>| match gpu {
            Some(index) => Subject::Gpu { node, index },
            None => Subject::Node { node },
        };
        parts.into_iter().map(|(gpu, evidence)| (part(gpu), self.view(evidence))).collect()
    }

    /// What it says of a part that it has no number of.
    #[must_use]
    pub fn of_none(&self) -> View<'_> {
        self.view(Vec::new())
    }

    fn view<'l>(&'l self, evidence: Vec<&'l Evidence>) -> View<'l> {
        let shows = match self.sight {
            Sight::Error(..) | Sight::Lost(..) => Shows::Nothing,
            Sight::Fine | Sight::Miss if evidence.iter().any(|one| one.miss) => Shows::Miss,
            Sight::Fine | Sight::Miss => Shows::Fine,
        };
        View { group: &self.group, round: self.round, shows, evidence }
    }
}

/// A look, or what it says of one part or rail.
#[derive(Debug, Clone, PartialEq)]
pub struct View<'l> {
    /// The nodes that were measured together.
    pub group: &'l [NodeId],
    /// Index of the round.
    pub round: u32,
    /// What these numbers amount to.
    pub shows: Shows,
    /// The numbers.
    pub evidence: Vec<&'l Evidence>,
}

/// What the numbers of a view amount to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shows {
    /// All of them are fine.
    Fine,
    /// At least one misses its limit.
    Miss,
    /// A node of the group was lost or could not do its work.
    Nothing,
}

impl<'l> View<'l> {
    /// The numbers that miss their limit.
    pub fn misses(&self) -> impl Iterator<Item = &'l Evidence> + '_ {
        self.evidence.iter().copied().filter(|one| one.miss)
    }

    /// The same view of one of its numbers, as a miss.
    #[must_use]
    pub fn of_one(&self, one: &'l Evidence) -> Self {
        Self { shows: Shows::Miss, evidence: vec![one], ..self.clone() }
    }
}

/// The numbers that miss in each of these views.
#[must_use]
pub fn always_missed(views: &[&View<'_>]) -> BTreeSet<Number> {
    let mut missed = views.iter().map(|view| view.misses().map(Evidence::number).collect::<BTreeSet<_>>());
    let first = missed.next().unwrap_or_default();
    missed.fold(first, |kept, other| &kept & &other)
}
