//! Who of the nodes that judge speaks, and what of it is news. Pure: whom this node hears is an argument.
//!
//! The first judging node, the head, speaks; the second, its deputy, keeps the same picture in silence and speaks while
//! the head does not judge. Both say to each other what they have told, so that neither tells it again.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hasher as _};

use diag::c4d::finding::Finding;
use diag::facts::NodeId;
use diag::health::HealthEvent;
use serde::Serialize;

/// What a node is among those that judge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The job's only node.
    Alone,
    /// The first, which speaks.
    Head,
    /// The second, which stands in for it.
    Deputy,
}

/// Whom a node hears.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heard {
    /// How many nodes, itself included.
    pub nodes: usize,
    /// How many of them hear that the head judges.
    pub hear_head: usize,
    /// Whether it hears that itself.
    pub head: bool,
}

/// What is to be told.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct News {
    /// What is new.
    pub begun: BTreeSet<u64>,
    /// What was told and is over.
    pub ended: BTreeSet<u64>,
}

/// The voice of one judging node.
#[derive(Debug)]
pub struct Voice {
    role: Role,
    joined: usize,
    speaks: bool,
    told: BTreeSet<u64>,
    other: BTreeSet<u64>,
}

impl Voice {
    /// Of a node in a job of which so many nodes met. Only a job's single node speaks at once.
    #[must_use]
    pub fn new(role: Role, joined: usize) -> Self {
        let speaks = role == Role::Alone;
        Self { role, joined, speaks, told: BTreeSet::new(), other: BTreeSet::new() }
    }

    /// Whether it speaks, by the last [`Voice::decide`].
    #[must_use]
    pub fn speaks(&self) -> bool {
        self.speaks
    }

    /// Decides whether it speaks. `settled`: the others had the time to be heard. Returns whether the job is judged, by
    /// this node or the other one.
    pub fn decide(&mut self, heard: Heard, settled: bool) -> bool {
        // Who hears less than half of the nodes is beside the job, and does not know what the others are told.
        let within = 2 * heard.nodes >= self.joined;
        let others_hear_head = heard.head || 2 * heard.hear_head > heard.nodes;
        self.speaks = match self.role {
            Role::Alone => true,
            Role::Head => within,
            Role::Deputy => within && settled && !others_hear_head,
        };
        self.speaks || (self.role == Role::Deputy && others_hear_head)
    }

    /// What the other judging node has told and still holds.
    pub fn hear(&mut self, told: &BTreeSet<u64>) {
        self.other.clone_from(told);
    }

    /// What of that which holds, and of that which is over, is to be told now.
    pub fn turn(&mut self, holds: &BTreeSet<u64>, over: &BTreeSet<u64>) -> News {
        let mut news = News::default();
        let known = |id: &&u64| self.told.contains(id) || self.other.contains(id);
        if self.speaks {
            news.begun = holds.iter().filter(|id| !known(id)).copied().collect();
            news.ended = over.iter().filter(known).copied().collect();
            self.told.extend(holds);
        } else {
            // What it told while it spoke it takes back itself, unless the other one has taken it up.
            self.told.retain(|id| !self.other.contains(id));
            news.ended = over.intersection(&self.told).copied().collect();
        }
        // What became another one, with other ranks, was told as that.
        self.told.retain(|id| holds.contains(id));
        self.other.retain(|id| !over.contains(id));
        news
    }

    /// What it has told and still holds.
    #[must_use]
    pub fn told(&self) -> &BTreeSet<u64> {
        &self.told
    }
}

/// A finding's number: two nodes that name the same ranks for the same thing have the same one.
#[must_use]
pub fn finding_id(finding: &Finding) -> u64 {
    let ranks: Vec<(NodeId, u32)> = finding.suspects.iter().map(|who| (who.node, who.pid)).collect();
    number(&("finding", finding.class, &finding.subject, ranks, finding.suspects_total))
}

/// An event's number. One that weighs more than it did is another one.
#[must_use]
pub fn event_id(node: NodeId, event: &HealthEvent, worse: bool) -> u64 {
    number(&("event", node, &event.part, &event.what, worse))
}

/// All agents of a run are of one version, and so is this hash.
fn number(what: &impl Serialize) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(&serde_json::to_vec(what).unwrap_or_default());
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(nodes: usize, hear_head: usize, head: bool) -> Heard {
        Heard { nodes, hear_head, head }
    }

    fn set<const N: usize>(ids: [u64; N]) -> BTreeSet<u64> {
        ids.into()
    }

    #[test]
    fn the_head_speaks_and_the_deputy_where_the_head_is_not_heard() {
        let mut head = Voice::new(Role::Head, 5);
        let mut deputy = Voice::new(Role::Deputy, 5);
        let decide = |voice: &mut Voice, heard: Heard| (voice.decide(heard, true), voice.speaks());
        assert_eq!(decide(&mut head, heard(5, 5, true)), (true, true));
        assert_eq!(decide(&mut deputy, heard(5, 5, true)), (true, false));
        // Only the way between the two is broken.
        assert_eq!(decide(&mut deputy, heard(4, 3, false)), (true, false));
        // The head is gone, then back.
        assert_eq!(decide(&mut deputy, heard(4, 0, false)), (true, true));
        assert_eq!(decide(&mut deputy, heard(5, 1, true)), (true, false));
        // Either is cut off from the others.
        assert_eq!(decide(&mut head, heard(2, 1, false)), (false, false));
        assert_eq!(decide(&mut deputy, heard(1, 0, false)), (false, false));
        // Nobody had the time to be heard.
        assert!(!deputy.decide(heard(4, 0, false), false) && !deputy.speaks());
        // Of two nodes one is left.
        assert_eq!(decide(&mut Voice::new(Role::Deputy, 2), heard(1, 0, false)), (true, true));
        assert_eq!(decide(&mut Voice::new(Role::Alone, 1), heard(1, 1, false)), (true, true));
    }

    #[test]
    fn nothing_is_told_twice_and_what_was_told_is_taken_back() {
        let mut deputy = Voice::new(Role::Deputy, 4);
        let (none, gone, here) = (set([]), heard(3, 0, false), heard(4, 4, true));
        deputy.decide(here, true);
        deputy.hear(&set([1]));
        assert_eq!(deputy.turn(&set([1]), &none), News::default());
        // It takes over: 1 was told, 2 was not.
        deputy.decide(gone, true);
        assert_eq!(deputy.turn(&set([1, 2]), &none), News { begun: set([2]), ended: none.clone() });
        assert_eq!(deputy.turn(&set([1, 2]), &none), News::default());
        assert_eq!(deputy.told(), &set([1, 2]));
        assert_eq!(deputy.turn(&set([2]), &set([1])), News { begun: none.clone(), ended: set([1]) });
        // What comes again is told again.
        assert_eq!(deputy.turn(&set([1, 2]), &none).begun, set([1]));
        // The head is back and knows of 2 only: the deputy takes 1 back, and the head 2.
        deputy.decide(here, true);
        deputy.hear(&set([2]));
        assert_eq!(deputy.turn(&set([1]), &set([2])), News::default());
        assert_eq!(deputy.turn(&none, &set([1])), News { begun: none.clone(), ended: set([1]) });

        // The head that is back takes up what was told meanwhile.
        let mut head = Voice::new(Role::Head, 4);
        head.decide(here, true);
        head.hear(&set([1, 2]));
        assert_eq!(head.turn(&set([1, 3]), &none).begun, set([3]));
        assert_eq!(head.turn(&set([3]), &set([1])).ended, set([1]));
        // What became another finding is not over.
        assert_eq!(head.turn(&set([4]), &none), News { begun: set([4]), ended: none });
        assert_eq!(head.told(), &set([4]));
    }
}
