//! After the meeting: answers are gathered to the leader and spread again, and the leader has the last word.
//! Not what the answers mean.
//!
//! Every node makes the same exchanges in the same order, so a step is known by its number. The leader waits for
//! answers until the deadline and not longer; who is missing by then is lost, for good: what it says later is
//! dropped, what the others found is still told to it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use diag::facts::{NodeId, Roster};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tokio_util::bytes::Bytes;
use zeroize::Zeroizing;

use crate::handshake::{Counters, Identity};
use crate::mesh::{Incoming, Mesh, all_ended};
use crate::message::Message;

/// A node waits this much longer than the leader, who uses its own deadline up and then has to spread the map.
pub const ANSWER_SLACK: Duration = Duration::from_secs(3);
/// After a deadline this much is still read: a node that was stopped finds its messages unread.
const LAST_LOOK: Duration = Duration::from_millis(200);
/// How long the leader waits until its last word has been read.
const GOODBYE: Duration = Duration::from_secs(2);

/// What became of one node in one exchange.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exchanged<T> {
    /// It answered.
    Answer(T),
    /// It did not, in this exchange or an earlier one.
    Lost {
        /// Why, in words.
        because: String,
    },
}

/// Why a session can't go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// The leader is gone, or silent past the deadline.
    #[error("the leader {leader} was lost: {because}")]
    LeaderLost {
        /// Its name.
        leader: String,
        /// Why, in words.
        because: String,
    },
    /// The leader has ended the session; its word is ready for `conclude`.
    #[error("the leader has ended the session")]
    Concluded,
    /// This node and the leader do different things.
    #[error("the leader is at step {theirs} ({their_tag}), this node at step {step} ({tag})")]
    OutOfStep {
        /// This node's step.
        step: u64,
        /// What it wanted to exchange.
        tag: u32,
        /// The leader's step.
        theirs: u64,
        /// What the leader exchanged.
        their_tag: u32,
    },
    /// Something can't be written or read as JSON.
    #[error("{what} can't be read or written: {because}")]
    Unreadable {
        /// What.
        what: &'static str,
        /// Why, in words.
        because: String,
    },
    /// `conclude` was called without a word on the leader.
    #[error("the leader has nothing to conclude with")]
    NothingToSay,
}

/// The nodes that met.
pub struct Session {
    id: Arc<Identity>,
    mesh: Mesh,
    roster: Roster,
    leader: NodeId,
    data_key: Zeroizing<[u8; 32]>,
    step: u64,
    lost: BTreeMap<NodeId, String>,
    conclusion: Option<Bytes>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("me", &self.id.me).field("step", &self.step).finish_non_exhaustive()
    }
}

/// All answers of a step as they travel.
type Answers<T> = Vec<(NodeId, Exchanged<T>)>;

impl Session {
    pub(crate) fn new(id: Arc<Identity>, mesh: Mesh, roster: Roster, data_key: Zeroizing<[u8; 32]>) -> Self {
        let leader = roster.leader;
        Self { id, mesh, roster, leader, data_key, step: 0, lost: BTreeMap::new(), conclusion: None }
    }

    /// All nodes of the job, and who joined.
    #[must_use]
    pub fn roster(&self) -> &Roster {
        &self.roster
    }

    /// Whether this node leads.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.leader == self.id.me
    }

    /// This node.
    #[must_use]
    pub fn me(&self) -> NodeId {
        self.id.me
    }

    /// A secret of this run of this job, made by the leader, for connections between workers.
    #[must_use]
    pub fn data_key(&self) -> &[u8; 32] {
        &self.data_key
    }

    /// Hellos so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.id.tally.read()
    }

    /// Completes when the leader's connections have ended; never on the leader. For `select!` while measuring.
    pub fn leader_gone(&self) -> impl Future<Output = ()> + Send + 'static {
        let endings = (!self.is_leader()).then(|| self.mesh.endings(self.leader));
        async move {
            match endings {
                Some(endings) => all_ended(endings).await,
                None => std::future::pending().await,
            }
        }
    }

    /// Gathers one answer of each node that joined and gives the same map to all of them. Every node calls it
    /// with the same tags in the same order; the leader waits until `deadline`, the others [`ANSWER_SLACK`] more.
    ///
    /// # Errors
    /// The leader is lost or has ended the session, or the nodes do different things.
    pub async fn exchange<T: Serialize + DeserializeOwned>(
        &mut self,
        tag: u32,
        mine: &T,
        deadline: Instant,
    ) -> Result<BTreeMap<NodeId, Exchanged<T>>, SessionError> {
        self.step += 1;
        let unreadable =
            |what, error: serde_json::Error| SessionError::Unreadable { what, because: error.to_string() };
        let own = serde_json::to_vec(mine).map_err(|error| unreadable("this node's answer", error))?;
        let map = if self.is_leader() {
            let mut answers: Answers<T> = Vec::new();
            for (node, answer) in self.gather(tag, own.into(), deadline).await {
                answers.push((node, self.read(node, answer)));
            }
            let map = serde_json::to_vec(&answers).map_err(|error| unreadable("the answers", error))?;
            self.spread(&Message::Answers { step: self.step, tag }, &map);
            map.into()
        } else {
            self.submit(tag, &own, deadline).await?
        };
        // The leader reads what it sent, so that all nodes hold the same numbers to the last bit.
        let answers: Answers<T> =
            serde_json::from_slice(&map).map_err(|error| unreadable("the answers of all nodes", error))?;
        Ok(answers.into_iter().collect())
    }

    /// An answer as the leader understands it; a node whose answer makes no sense is lost.
    fn read<T: DeserializeOwned>(&mut self, node: NodeId, answer: Result<Bytes, String>) -> Exchanged<T> {
        let read = answer.and_then(|bytes| {
            serde_json::from_slice(&bytes).map_err(|error| format!("its answer can't be read: {error}"))
        });
        match read {
            Ok(value) => Exchanged::Answer(value),
            Err(because) => {
                if node != self.id.me {
                    self.lost.entry(node).or_insert_with(|| because.clone());
                }
                Exchanged::Lost { because }
            }
        }
    }

    /// The leader's side: one result for each node that joined.
    async fn gather(
        &mut self,
        tag: u32,
        own: Bytes,
        deadline: Instant,
    ) -> BTreeMap<NodeId, Result<Bytes, String>> {
        let mut found: BTreeMap<NodeId, Result<Bytes, String>> = BTreeMap::new();
        let mut open = BTreeSet::new();
        for (node, entry) in (0..).zip(&self.roster.nodes) {
            if node == self.id.me {
                found.insert(node, Ok(own.clone()));
            } else if let Some(because) = self.lost.get(&node) {
                found.insert(node, Err(because.clone()));
            } else if entry.joined.is_some() {
                open.insert(node);
            }
        }
        // Whoever went away between exchanges is noticed here, before anything is awaited; what it had sent
        // before is still in the inbox and counts.
        let mut gone: BTreeSet<NodeId> =
            open.iter().copied().filter(|node| !self.mesh.alive(*node)).collect();
        while !open.is_empty() {
            let until =
                if gone.is_superset(&open) { deadline.min(Instant::now() + LAST_LOOK) } else { deadline };
            match self.mesh.next(until).await {
                Some(Incoming::Message { from, message: Message::Answer { step, tag: theirs }, payload })
                    if step >= self.step && open.contains(&from) =>
                {
                    open.remove(&from);
                    let fits = step == self.step && theirs == tag;
                    let because =
                        || format!("it is at step {step} ({theirs}), the leader at {} ({tag})", self.step);
                    found.insert(from, if fits { Ok(payload) } else { Err(because()) });
                }
                Some(Incoming::Closed { from }) if !self.mesh.alive(from) => {
                    // Its messages came before its end.
                    gone.remove(&from);
                    if open.remove(&from) {
                        found.insert(from, Err(format!("its connection ended: {}", self.mesh.why(from))));
                    }
                }
                Some(other) => self.aside(other),
                None => break,
            }
        }
        for node in open {
            let because = if self.mesh.alive(node) {
                "it did not answer by the deadline".to_owned()
            } else {
                format!("its connection ended: {}", self.mesh.why(node))
            };
            found.insert(node, Err(because));
        }
        for (node, answer) in &found {
            if let Err(because) = answer {
                self.lost.entry(*node).or_insert_with(|| because.clone());
            }
        }
        found
    }

    /// To every node that joined, also the lost ones, so that one that wakes up again knows where the others are.
    fn spread(&mut self, message: &Message, payload: &[u8]) {
        let Ok(body) = crate::message::encode(message, payload) else { return };
        for node in 0..u32::try_from(self.roster.nodes.len()).unwrap_or(u32::MAX) {
            if node != self.id.me && self.mesh.alive(node) && !self.mesh.post(node, &body) {
                self.id.log.line(&format!("{}: {}", self.id.name(node), self.mesh.why(node)));
            }
        }
    }

    /// The other nodes' side: hand in an answer, wait for all of them.
    async fn submit(&mut self, tag: u32, own: &[u8], deadline: Instant) -> Result<Bytes, SessionError> {
        if self.conclusion.is_some() {
            return Err(SessionError::Concluded);
        }
        self.mesh.send(self.leader, &Message::Answer { step: self.step, tag }, own);
        loop {
            match self.hear_leader(deadline).await? {
                (Message::Answers { step, tag: theirs }, payload) if step == self.step && theirs == tag => {
                    return Ok(payload);
                }
                (Message::Answers { step, tag: their_tag }, _) if step >= self.step => {
                    return Err(SessionError::OutOfStep { step: self.step, tag, theirs: step, their_tag });
                }
                (Message::Conclusion, payload) => {
                    self.conclusion = Some(payload);
                    return Err(SessionError::Concluded);
                }
                _ => (),
            }
        }
    }

    /// The leader's next message. What it sent before its connection ended still counts.
    async fn hear_leader(&mut self, deadline: Instant) -> Result<(Message, Bytes), SessionError> {
        let lost = |session: &Self, because: String| SessionError::LeaderLost {
            leader: session.id.name(session.leader).to_owned(),
            because,
        };
        let mut until = deadline + ANSWER_SLACK;
        loop {
            if !self.mesh.alive(self.leader) {
                until = until.min(Instant::now() + LAST_LOOK);
            }
            let next = match self.mesh.next(until).await {
                None => self.mesh.next(Instant::now() + LAST_LOOK).await,
                next => next,
            };
            match next {
                Some(Incoming::Message { from, message, payload }) if from == self.leader => {
                    return Ok((message, payload));
                }
                Some(Incoming::Closed { from }) if from == self.leader && !self.mesh.alive(from) => {
                    return Err(lost(self, self.mesh.why(from)));
                }
                Some(other) => self.aside(other),
                None if self.mesh.alive(self.leader) => {
                    return Err(lost(self, "connected, but silent past the deadline".to_owned()));
                }
                None => return Err(lost(self, self.mesh.why(self.leader))),
            }
        }
    }

    /// What arrives beside the current step.
    fn aside(&mut self, incoming: Incoming) {
        match incoming {
            Incoming::Linked(established) => {
                self.mesh.add(*established);
            }
            Incoming::Message { from, message: Message::Roster(_), .. } if from != self.leader => {
                self.mesh.send(from, &Message::Follows { leader: self.leader }, &[]);
            }
            // Late answers of lost nodes, votes that are settled: no effect.
            Incoming::Message { .. } | Incoming::Closed { .. } => (),
        }
    }

    /// The leader's last word, given with `Some` there and awaited with `None` elsewhere. The leader may give it
    /// at any time; it returns when the others have read it, at the latest after two seconds.
    ///
    /// # Errors
    /// The leader is lost before it spoke, or its word can't be read.
    pub async fn conclude<T: Serialize + DeserializeOwned>(
        &mut self,
        word: Option<&T>,
        deadline: Instant,
    ) -> Result<T, SessionError> {
        let unreadable = |error: serde_json::Error| SessionError::Unreadable {
            what: "the leader's last word",
            because: error.to_string(),
        };
        let bytes: Bytes = if self.is_leader() {
            let bytes = serde_json::to_vec(word.ok_or(SessionError::NothingToSay)?).map_err(unreadable)?;
            self.spread(&Message::Conclusion, &bytes);
            self.mesh.goodbye(Instant::now() + GOODBYE).await;
            bytes.into()
        } else {
            loop {
                if let Some(bytes) = self.conclusion.take() {
                    break bytes;
                }
                if let (Message::Conclusion, payload) = self.hear_leader(deadline).await? {
                    self.conclusion = Some(payload);
                }
            }
        };
        serde_json::from_slice(&bytes).map_err(unreadable)
    }
}
