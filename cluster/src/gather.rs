//! The leader's side of an exchange, and how the deputy comes to be the leader when the first one is lost.
//!
//! When the leader is lost, every node hands its current answer to the deputy, with the number of the last step
//! that it finished. The deputy leads from there if it lost the leader as well and more than half of the nodes
//! that were left hand in to it. If the old leader had spread a step's map to some nodes only, that map holds:
//! the deputy fetches it, or gives it to those who lack it, so that no two nodes hold different maps of a step.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use diag::facts::NodeId;
use tokio::time::Instant;
use tokio_util::bytes::Bytes;

use crate::mesh::Incoming;
use crate::message::Message;
use crate::second_hand::pass_on;
use crate::session::{LAST_LOOK, Session, SessionError};

/// How long the deputy waits for the others to find out that the leader is lost: they notice a frozen one at
/// about the same deadline as the deputy does.
pub(crate) const RESUME_WAIT: Duration = Duration::from_secs(3);
/// How long a connection to the deputy may still be under way.
const DEPUTY_LINK: Duration = Duration::from_secs(2);
/// The tag of nodes that wait for the last word; no exchange has it.
pub(crate) const CONCLUDING: u32 = u32::MAX;

/// What a node handed in ahead of this node's own step.
pub(crate) struct Early {
    pub(crate) step: u64,
    pub(crate) tag: u32,
    pub(crate) finished: u64,
    pub(crate) payload: Bytes,
}

/// What a step yields.
pub(crate) enum Gathered {
    /// One result for each node that joined.
    Answers(BTreeMap<NodeId, Result<Bytes, String>>),
    /// The map that the old leader had made.
    Map(Bytes),
}

/// A step under way.
struct Round {
    tag: u32,
    /// The leader that this node takes the place of.
    replaces: Option<NodeId>,
    found: BTreeMap<NodeId, Result<Bytes, String>>,
    open: BTreeSet<NodeId>,
    /// Nodes that handed in to this leader.
    behind: BTreeSet<NodeId>,
    /// Nodes that were asked for the map of this step, which they have.
    asked: BTreeSet<NodeId>,
    /// Nodes that follow another one.
    elsewhere: BTreeMap<NodeId, NodeId>,
    map: Option<Bytes>,
}

impl Session {
    /// One result for each node that joined, by the deadline.
    pub(crate) async fn gather(
        &mut self,
        tag: u32,
        own: Bytes,
        deadline: Instant,
    ) -> Result<Gathered, SessionError> {
        let mut round = self.collect((tag, None), own, deadline).await;
        // While this node slept the others may have turned to the deputy: their words are behind their answers.
        let late = if Instant::now() >= deadline { LAST_LOOK } else { Duration::ZERO };
        while let Some(incoming) = self.mesh.next(Instant::now() + late).await {
            self.take(&mut round, incoming);
        }
        let nodes = round.found.len();
        if let Some(other) = round.elsewhere.values().next().filter(|_| 2 * round.elsewhere.len() > nodes) {
            self.leads(*other);
            return Err(SessionError::Deposed { leader: self.id.name(*other).to_owned() });
        }
        Ok(self.settle(round))
    }

    fn settle(&mut self, round: Round) -> Gathered {
        if let Some(map) = round.map {
            return Gathered::Map(map); // it ended the round early, so nobody is late
        }
        for (node, answer) in &round.found {
            if let Err(because) = answer {
                self.lost.entry(*node).or_insert_with(|| because.clone());
            }
        }
        Gathered::Answers(round.found)
    }

    async fn collect(
        &mut self,
        (tag, replaces): (u32, Option<NodeId>),
        own: Bytes,
        deadline: Instant,
    ) -> Round {
        let mut round = Round {
            tag,
            replaces,
            found: BTreeMap::new(),
            open: BTreeSet::new(),
            behind: BTreeSet::new(),
            asked: BTreeSet::new(),
            elsewhere: BTreeMap::new(),
            map: None,
        };
        for (node, entry) in (0..).zip(&self.roster.nodes) {
            if node == self.id.me {
                round.found.insert(node, Ok(own.clone()));
            } else if let Some(because) = self.lost.get(&node) {
                round.found.insert(node, Err(because.clone()));
            } else if entry.joined.is_some() {
                round.open.insert(node);
            }
        }
        for (node, early) in std::mem::take(&mut self.early) {
            self.resumed(&mut round, node, early);
        }
        while !round.open.is_empty() && round.map.is_none() {
            // Whoever went away earlier may have answered before: that is still in the inbox and counts.
            let gone = round.open.iter().all(|node| !self.mesh.alive(*node));
            let until = if gone { deadline.min(Instant::now() + LAST_LOOK) } else { deadline };
            match self.mesh.next(until).await {
                Some(incoming) => self.take(&mut round, incoming),
                None => break,
            }
        }
        for node in std::mem::take(&mut round.open) {
            let because = if self.mesh.alive(node) {
                "it did not answer by the deadline".to_owned()
            } else {
                format!("its connection ended: {}", self.mesh.why(node))
            };
            round.found.insert(node, Err(because));
        }
        round
    }

    fn take(&mut self, round: &mut Round, incoming: Incoming) {
        match incoming {
            Incoming::Message { from, message: Message::Answer { step, tag }, payload }
                if step >= self.step && round.open.remove(&from) =>
            {
                let fits = step == self.step && tag == round.tag;
                let answer = if fits { Ok(payload) } else { Err(self.out_of_step(step, tag, round.tag)) };
                round.behind.insert(from);
                round.found.insert(from, answer);
            }
            Incoming::Message { from, message: Message::Resume { step, tag, finished }, payload } => {
                self.resumed(round, from, Early { step, tag, finished, payload });
            }
            Incoming::Message { from, message: Message::Answers { step, tag }, payload }
                if step == self.step && tag == round.tag && round.asked.contains(&from) =>
            {
                round.map = Some(payload);
            }
            // That a node followed the old leader, before it was lost, says nothing.
            Incoming::Message { from, message: Message::Follows { leader, .. }, .. }
                if round.replaces != Some(leader) =>
            {
                round.elsewhere.insert(from, leader);
                if round.open.remove(&from) {
                    round.found.insert(from, Err(format!("it follows {}", self.id.name(leader))));
                }
            }
            Incoming::Closed { from } if !self.mesh.alive(from) => {
                // Its messages came before its end.
                if round.open.remove(&from) {
                    round.found.insert(from, Err(format!("its connection ended: {}", self.mesh.why(from))));
                }
            }
            other => self.aside(other),
        }
    }

    fn out_of_step(&self, step: u64, tag: u32, own_tag: u32) -> String {
        format!("it is at step {step} ({tag}), the leader at {} ({own_tag})", self.step)
    }

    /// A node that lost its leader hands in.
    fn resumed(&mut self, round: &mut Round, from: NodeId, early: Early) {
        if !round.open.contains(&from) {
            return;
        }
        round.behind.insert(from);
        if early.finished == self.step {
            // It has this step's map already; its answer is to the next one.
            self.mesh.send(from, &Message::Fetch { step: self.step }, &[]);
            round.asked.insert(from);
            self.early.insert(from, early);
        } else if early.step == self.step && early.tag == round.tag {
            round.open.remove(&from);
            round.found.insert(from, Ok(early.payload));
        } else if early.step + 1 == self.step {
            // It lacks the last map, and answers to this step when it has it.
            self.hand_over_to(from, early.step);
        } else {
            round.open.remove(&from);
            let because = self.out_of_step(early.step, early.tag, round.tag);
            round.found.insert(from, Err(because));
        }
    }

    /// Gives the current leader a finished map that it asks for.
    pub(crate) fn hand_over(&mut self, step: u64) {
        self.hand_over_to(self.leader, step);
    }

    fn hand_over_to(&mut self, node: NodeId, wanted: u64) {
        if let Some((step, tag, map)) = self.finished.clone().filter(|(step, ..)| *step == wanted) {
            self.mesh.send(node, &Message::Answers { step, tag }, &map);
        }
    }

    /// Whether this node is the deputy of the current leader, and not lost itself.
    #[must_use]
    pub fn may_take_over(&self) -> bool {
        self.leader == 0 && self.id.me == 1 && !self.lost.contains_key(&1)
    }

    /// From now on `node` leads; the old leader is told, in case it only slept.
    pub(crate) fn leads(&mut self, node: NodeId) {
        let old = self.leader;
        self.mesh.send(old, &Message::Follows { leader: node, roster: None }, &[]);
        self.id.log.line(&format!("{} leads instead of {}", self.id.name(node), self.id.name(old)));
        self.leader = node;
        self.roster.leader = node;
        self.said.clear();
    }

    /// A node that lost its leader hands in to the deputy. False: there is none to hand in to.
    pub(crate) async fn resume(&mut self, tag: u32, own: &[u8]) -> bool {
        let deputy = 1;
        let joined = self.roster.nodes.get(1).is_some_and(|entry| entry.joined.is_some());
        if self.leader != 0 || self.id.me <= deputy || !joined {
            return false;
        }
        if let Some(word) = self.deputys_word.take() {
            self.leads(deputy);
            self.said.push_back((Message::Conclusion { of: deputy }, word));
            return true;
        }
        // A leader that dies at the very start may be gone before the deputy was reached.
        let patience = Instant::now() + DEPUTY_LINK;
        while !self.mesh.alive(deputy) {
            match self.mesh.next(patience).await {
                Some(incoming) => self.aside(incoming),
                None => return false,
            }
        }
        if let Some(roster) = pass_on(&self.roster, self.id.me).filter(|_| self.finished.is_none()) {
            self.mesh.send(deputy, &Message::Orphaned { leader: self.leader, roster }, &[]);
        }
        self.leads(deputy);
        let finished = self.finished.as_ref().map_or(0, |(step, ..)| *step);
        self.mesh.send(deputy, &Message::Resume { step: self.step, tag, finished }, own)
    }

    /// The deputy gathers the current step, if enough nodes come to it.
    pub(crate) async fn take_over(
        &mut self,
        tag: u32,
        own: Bytes,
        deadline: Instant,
        lost: SessionError,
    ) -> Result<Gathered, SessionError> {
        let old = self.leader;
        let because = match &lost {
            SessionError::LeaderLost { because, .. } => because.clone(),
            other => other.to_string(),
        };
        self.lost.insert(old, because);
        let before = self.roster.nodes.iter().filter(|entry| entry.joined.is_some()).count();
        // The old leader counts: it may live and only the link to it be broken.
        let entitled = before - (self.lost.len() - 1).min(before);
        let round = self.collect((tag, Some(old)), own, deadline.max(Instant::now() + RESUME_WAIT)).await;
        if 2 * (round.behind.len() + 1) <= entitled {
            self.lost.remove(&old);
            return Err(lost);
        }
        self.leads(self.id.me);
        Ok(self.settle(round))
    }
}
