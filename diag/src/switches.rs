//! A leaf switch instead of its nodes: where it is known who is below which leaf, nodes that all miss with the rest of the job,
//! and with nobody else or with everybody, are not so many bad nodes and bad links.
//!
//! A leaf is at fault when each of its nodes in the job, two or more, missed with a node below another leaf that is fine
//! elsewhere, none of its nodes was ever fine with one, and all those misses together are no chance. A node with a fault of its
//! own, which misses with a good node below its own leaf too, says nothing of the leaf.

use std::collections::{BTreeMap, BTreeSet};

use crate::facts::NodeId;
use crate::odds::Odds;
use crate::seen::{Missed, Pair, Quantity, Seen, Tally, better_of, in_both};
use crate::topology::{LeafId, Leaves};

/// Nodes below a leaf from which on it can be told from them.
const NODES_TO_TELL: usize = 2;

/// What is known of the leaves of a job.
pub(crate) struct Switches<'l> {
    leaves: &'l Leaves,
    /// Those that can take part, by leaf.
    members: BTreeMap<LeafId, BTreeSet<NodeId>>,
    /// Nodes with a fault of their own.
    bad_themselves: BTreeSet<NodeId>,
    /// Leaves with misses across and nothing fine across.
    suspected: BTreeMap<LeafId, Across>,
    /// Leaves at fault; several in one: which of them, or what joins them, is not known.
    pub(crate) struck: Vec<Vec<LeafId>>,
}

/// What the nodes below a leaf showed with nodes below others.
#[derive(Default)]
struct Across {
    fine: bool,
    /// With whom each missed that is fine elsewhere.
    missed: BTreeMap<NodeId, BTreeSet<NodeId>>,
    /// How many looks that were, and what missed in all of them.
    misses: usize,
    always: Option<Missed>,
    /// The best that any of those misses showed.
    best: BTreeMap<Quantity, f64>,
}

impl Across {
    /// Whether a value is not far beyond the best that was missed across.
    fn of_its_size(&self, seen: &Tally<'_>, quantity: Quantity, value: Option<f64>) -> bool {
        let best = self.best.get(&quantity);
        !value.zip(best).is_some_and(|(value, best)| seen.far_beyond(quantity, value, *best))
    }

    /// Whether a pair did far better than anybody across.
    fn is_outdone(&self, seen: &Tally<'_>, pair: &Seen<'_>) -> bool {
        let far = |(quantity, best): (&Quantity, &f64)| {
            pair.least(*quantity).is_some_and(|value| seen.far_beyond(*quantity, *best, value))
        };
        !self.best.is_empty() && self.best.iter().all(far)
    }
}

impl<'l> Switches<'l> {
    /// What the looks of one channel show of the leaves.
    pub(crate) fn of(leaves: &'l Leaves, nodes: &BTreeSet<NodeId>, seen: &Tally<'_>) -> Self {
        let members = leaves.members(nodes);
        let mut switches = Self {
            leaves,
            members,
            bad_themselves: BTreeSet::new(),
            suspected: BTreeMap::new(),
            struck: Vec::new(),
        };
        if switches.members.len() < 2 {
            return switches;
        }
        let mut fine_with: BTreeMap<NodeId, BTreeSet<Option<LeafId>>> = BTreeMap::new();
        for (&(a, b), _) in seen.pairs.iter().filter(|(_, seen)| seen.fine > 0) {
            fine_with.entry(a).or_default().insert(leaves.get(b));
            fine_with.entry(b).or_default().insert(leaves.get(a));
        }
        let bad_themselves = switches.bad_themselves(seen, &fine_with);
        switches.bad_themselves = bad_themselves;
        switches.look_across(seen, &fine_with);
        let told = |leaf: &LeafId| switches.telling(*leaf).count() >= NODES_TO_TELL;
        let suspected = switches.suspected.iter();
        let cleared: Vec<LeafId> = suspected
            .filter(|(leaf, across)| across.fine || across.missed.is_empty() || !told(leaf))
            .map(|(leaf, _)| *leaf)
            .collect();
        switches.suspected.retain(|leaf, _| !cleared.contains(leaf));
        switches
    }

    /// Gathers by leaf what its nodes showed with nodes below others. Misses that are far beyond the best of them are of another
    /// cause: what joins the leaf to others carried more.
    fn look_across(&mut self, seen: &Tally<'_>, fine_with: &BTreeMap<NodeId, BTreeSet<Option<LeafId>>>) {
        let across =
            |pair: Pair| self.leaves.get(pair.0).zip(self.leaves.get(pair.1)).filter(|(a, b)| a != b);
        let sided = seen.pairs.iter().filter_map(|(pair, seen)| Some((*pair, across(*pair)?, seen)));
        let sided: Vec<_> =
            sided.flat_map(|((a, b), (of_a, of_b), seen)| [(a, of_a, b, seen), (b, of_b, a, seen)]).collect();
        let mut suspected: BTreeMap<LeafId, Across> = BTreeMap::new();
        for &(node, leaf, _, seen_of) in &sided {
            let across = suspected.entry(leaf).or_default();
            across.fine |= seen_of.fine > 0;
            if seen_of.fine == 0 && seen_of.miss > 0 && !self.bad_themselves.contains(&node) {
                for (quantity, value) in
                    seen_of.always.keys().filter_map(|one| Some((*one, seen_of.best(*one)?)))
                {
                    let best = across.best.entry(quantity).or_insert(value);
                    *best = better_of(quantity.0, *best, value);
                }
            }
        }
        for (node, leaf, other, seen_of) in sided {
            let Some(across) = suspected.get_mut(&leaf) else { continue };
            // It is fine with somebody else, or does far better there.
            let elsewhere = |one: NodeId| self.leaves.get(one) != Some(leaf);
            let sound = fine_with.get(&other).is_some_and(|with| with.iter().any(|one| *one != Some(leaf)))
                || seen.does_far_better(other, node, elsewhere);
            if seen_of.fine > 0 || seen_of.miss == 0 || !sound || self.bad_themselves.contains(&node) {
                continue;
            }
            let mut own = seen_of.always.clone();
            own.retain(|quantity, _| across.of_its_size(seen, *quantity, seen_of.best(*quantity)));
            if own.is_empty() && !seen_of.always.is_empty() {
                continue;
            }
            across.missed.entry(node).or_default().insert(other);
            across.misses += seen_of.miss;
            let always = across.always.take();
            across.always = Some(always.map_or_else(|| own.clone(), |kept| in_both(&kept, &own)));
        }
        self.suspected = suspected;
    }

    /// Nodes that miss with a node below their own leaf that is fine with somebody, and are fine with nobody there.
    fn bad_themselves(
        &self,
        seen: &Tally<'_>,
        fine_with: &BTreeMap<NodeId, BTreeSet<Option<LeafId>>>,
    ) -> BTreeSet<NodeId> {
        let mut bad = BTreeSet::new();
        for (&(a, b), _) in seen.pairs.iter().filter(|(_, seen)| seen.miss > 0 && seen.fine == 0) {
            if self.leaves.same(a, b) != Some(true) {
                continue;
            }
            let own = self.leaves.get(a);
            let fine_here = |node: &NodeId| fine_with.get(node).is_some_and(|with| with.contains(&own));
            for (one, other) in [(a, b), (b, a)] {
                if fine_with.contains_key(&other) && !fine_here(&one) {
                    bad.insert(one);
                }
            }
        }
        bad
    }

    /// The nodes below a leaf that say something of it.
    fn telling(&self, leaf: LeafId) -> impl Iterator<Item = NodeId> {
        let members = self.members.get(&leaf).into_iter().flatten().copied();
        members.filter(|node| !self.bad_themselves.contains(node))
    }

    /// Whether what a pair missed is what a leaf may be to blame for.
    pub(crate) fn may_explain(&self, (a, b): Pair) -> bool {
        let suspected = |node| self.leaves.get(node).is_some_and(|leaf| self.suspected.contains_key(&leaf));
        self.leaves.same(a, b) == Some(false) && (suspected(a) || suspected(b))
    }

    /// Settles which leaves are at fault.
    pub(crate) fn settle(&mut self, odds: Odds) {
        let all = |leaf: &LeafId, across: &Across| {
            self.telling(*leaf).all(|node| across.missed.contains_key(&node))
        };
        let no_chance =
            |across: &Across| across.always.as_ref().is_some_and(|all| odds.exclude_any(all, across.misses));
        let struck: BTreeMap<LeafId, &Across> = self
            .suspected
            .iter()
            .filter(|(leaf, across)| all(leaf, across) && no_chance(across))
            .map(|(leaf, across)| (*leaf, across))
            .collect();
        // One that missed with nodes below a leaf that is fine is told from it; where there is none they can't be told apart.
        let with_fine = |across: &Across| {
            let others = across.missed.values().flatten().filter_map(|other| self.leaves.get(*other));
            others.into_iter().any(|leaf| !struck.contains_key(&leaf))
        };
        let sure: Vec<Vec<LeafId>> =
            struck.iter().filter(|(_, across)| with_fine(across)).map(|(leaf, _)| vec![*leaf]).collect();
        let unsure: Vec<LeafId> = struck.into_keys().collect();
        self.struck = match (sure.is_empty(), unsure.is_empty()) {
            (false, _) => sure,
            (true, false) => vec![unsure],
            (true, true) => Vec::new(),
        };
    }

    /// Whether a node is below a leaf that is at fault.
    pub(crate) fn is_struck(&self, node: NodeId) -> bool {
        self.leaves.get(node).is_some_and(|leaf| self.struck.iter().flatten().any(|one| *one == leaf))
    }

    /// Whether a leaf at fault explains what a pair shows, so that it says nothing of its nodes: pairs across, and those below
    /// the leaf where nobody is fine with anybody.
    pub(crate) fn explains(&self, (a, b): Pair, seen: &Tally<'_>) -> bool {
        if self.leaves.same(a, b) == Some(false) {
            return self.is_struck(a) || self.is_struck(b);
        }
        let here = |pair: &Pair| {
            self.leaves.get(pair.0) == self.leaves.get(a) && self.leaves.same(pair.0, pair.1) == Some(true)
        };
        let outdone = |one: &Seen<'_>| {
            let leaf = self.leaves.get(a).and_then(|leaf| self.suspected.get(&leaf));
            leaf.is_some_and(|across| across.is_outdone(seen, one))
        };
        // What is far better below the leaf than across is not the leaf's.
        self.is_struck(a)
            && !seen.pairs.iter().any(|(pair, seen)| here(pair) && (seen.fine > 0 || outdone(seen)))
    }

    /// Who else takes part below a node's leaf, where it is known and there are others.
    pub(crate) fn mates(&self, node: NodeId) -> Option<BTreeSet<NodeId>> {
        let leaf = self.leaves.get(node).filter(|_| self.members.len() > 1)?;
        let mut mates = self.members.get(&leaf)?.clone();
        mates.remove(&node);
        Some(mates)
    }

    /// Whether two nodes are below one leaf; `None`: not known.
    pub(crate) fn same(&self, a: NodeId, b: NodeId) -> Option<bool> {
        self.leaves.same(a, b)
    }

    /// Whether a meeting of two nodes would say something of them: not across a leaf that is at fault.
    pub(crate) fn may_meet(&self, a: NodeId, b: NodeId) -> bool {
        self.leaves.same(a, b) != Some(false) || (!self.is_struck(a) && !self.is_struck(b))
    }

    /// Whether no other node that takes part is below the node's leaf, and some are below others: then node and leaf are one to
    /// whoever measures.
    pub(crate) fn is_alone(&self, node: NodeId) -> bool {
        let leaf = self.leaves.get(node);
        self.members.len() > 1
            && leaf.and_then(|leaf| self.members.get(&leaf)).is_some_and(|nodes| nodes.len() == 1)
    }

    /// Who should meet a good node below another leaf, so that it is known whether a leaf is at fault: first the one that
    /// missed, then all of its leaf. `busy` nodes meet somebody else, `met` says who has met.
    pub(crate) fn meetings(
        &self,
        good: &BTreeSet<NodeId>,
        met: impl Fn(Pair) -> bool,
        busy: &mut BTreeSet<NodeId>,
    ) -> Vec<Pair> {
        let mut meetings = Vec::new();
        let at_fault = |leaf: &LeafId| self.struck.iter().flatten().any(|one| one == leaf);
        for (leaf, across) in self.suspected.iter().filter(|(leaf, _)| !at_fault(leaf)) {
            let first =
                across.missed.len() == 1 && across.missed.values().all(|others| others.len() < NODES_TO_TELL);
            let missed = |node: &NodeId| across.missed.contains_key(node);
            let all = self.telling(*leaf).all(|node| missed(&node));
            let who =
                self.telling(*leaf).filter(|node| if first { missed(node) } else { all || !missed(node) });
            // Where all leaves are under suspicion, one that this one has not missed with yet tells the most.
            let missed_with: BTreeSet<LeafId> =
                across.missed.values().flatten().filter_map(|other| self.leaves.get(*other)).collect();
            let clear = |other: LeafId| !self.suspected.contains_key(&other);
            let open = |other: LeafId| other != *leaf && !missed_with.contains(&other);
            for node in who.filter(|node| !busy.contains(node)).collect::<Vec<_>>() {
                let pair = |other: NodeId| (node.min(other), node.max(other));
                let free = |other: &&NodeId| !busy.contains(other) && !met(pair(**other));
                let below = |wanted: &dyn Fn(LeafId) -> bool| {
                    let fits = |other: &&NodeId| free(other) && self.leaves.get(**other).is_some_and(wanted);
                    good.iter().find(fits).copied()
                };
                if let Some(other) = below(&clear).or_else(|| below(&open)) {
                    busy.extend([node, other]);
                    meetings.push(pair(other));
                }
            }
        }
        meetings
    }
}
