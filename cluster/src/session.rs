//! After the meeting: answers are gathered to the leader and spread again, and the leader has the last word.
//! Not what the answers mean.
//!
//! Every node makes the same exchanges in the same order, so a step is known by its number. The leader waits for
//! answers until the deadline and not longer; who is missing by then is lost, for good: what it says later is
//! dropped, what the others found is still told to it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use diag::facts::{NodeId, Roster};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tokio_util::bytes::Bytes;
use zeroize::Zeroizing;

use crate::answers;
use crate::gather::{CONCLUDING, Early, Gathered, RESUME_WAIT};
use crate::handshake::{Counters, Identity};
use crate::mesh::{Incoming, Mesh};
use crate::message::Message;
use crate::second_hand::pass_on;

pub use crate::answers::Answers;

/// A node waits this much longer than the leader, who uses its own deadline up and then has to spread the map.
pub const ANSWER_SLACK: Duration = Duration::from_secs(3);
/// After a deadline this much is still read: a node that was stopped finds its messages unread.
pub(crate) const LAST_LOOK: Duration = Duration::from_millis(200);
/// How long a node waits for the deputy's last word where the leader gave none in time: past the deadline the deputy
/// does nothing but speak.
const DEPUTY_WORD: Duration = Duration::from_millis(600);
/// So much it gets also past the deadline: a word that is not sent yet would be lost with the process.
const LEAST_GOODBYE: Duration = Duration::from_millis(300);
/// How long the leader waits until its last word has been read.
const GOODBYE: Duration = Duration::from_secs(2);
/// Longer than any measurement.
const FAR: Duration = Duration::from_secs(3600);

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
    /// The other nodes took this one for dead and follow its deputy.
    #[error("the other nodes follow {leader} by now: this node was silent for too long")]
    Deposed {
        /// Who leads.
        leader: String,
    },
    /// `conclude` was called without a word on the leader.
    #[error("the leader has nothing to conclude with")]
    NothingToSay,
}

/// The nodes that met.
pub struct Session {
    pub(crate) id: Arc<Identity>,
    pub(crate) mesh: Mesh,
    pub(crate) roster: Roster,
    pub(crate) leader: NodeId,
    data_key: Zeroizing<[u8; 32]>,
    pub(crate) step: u64,
    pub(crate) lost: BTreeMap<NodeId, String>,
    conclusion: Option<Bytes>,
    /// The deputy's last word, for a node that follows the leader: it holds only once this node has lost the leader as well.
    pub(crate) deputys_word: Option<Bytes>,
    /// Set when the leader was lost while its last word was awaited.
    leader_lost: bool,
    /// The last map, for nodes that the old leader didn't reach any more.
    pub(crate) finished: Option<(u64, u32, Bytes)>,
    /// Answers to a step that this node has yet to reach, and words to a deputy that still follows.
    pub(crate) early: BTreeMap<NodeId, Early>,
    /// What the leader said while this node measured.
    pub(crate) said: VecDeque<(Message, Bytes)>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("me", &self.id.me).field("step", &self.step).finish_non_exhaustive()
    }
}

fn unreadable(what: &'static str, error: &serde_json::Error) -> SessionError {
    SessionError::Unreadable { what, because: error.to_string() }
}

fn goodbye_until(deadline: Instant) -> Instant {
    let now = Instant::now();
    deadline.clamp(now + LEAST_GOODBYE, now + GOODBYE)
}

impl Session {
    pub(crate) fn new(id: Arc<Identity>, mesh: Mesh, roster: Roster, data_key: Zeroizing<[u8; 32]>) -> Self {
        let leader = roster.leader;
        Self {
            id,
            mesh,
            roster,
            leader,
            data_key,
            step: 0,
            lost: BTreeMap::new(),
            conclusion: None,
            deputys_word: None,
            leader_lost: false,
            finished: None,
            early: BTreeMap::new(),
            said: VecDeque::new(),
        }
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

    /// A secret of this run of this job, for connections between workers; made of one that the leader made.
    #[must_use]
    pub fn workers_key(&self) -> Zeroizing<[u8; 32]> {
        Zeroizing::new(blake3::derive_key("aimaster 1 key of a job's workers", &*self.data_key))
    }

    /// The same for the agents that watch the job while it runs. A worker, which is not root, can't tell it from its own.
    #[must_use]
    pub fn agents_key(&self) -> Zeroizing<[u8; 32]> {
        Zeroizing::new(blake3::derive_key("aimaster 1 key of a job's agents", &*self.data_key))
    }

    /// Returns once the leader has had its last word, for a node that does something else meanwhile; never on the
    /// leader itself. That a leader was lost is noticed by the next exchange.
    pub async fn concluded(&mut self) {
        while self.conclusion.is_none() {
            if self.is_leader() {
                return std::future::pending().await;
            }
            match self.mesh.next(Instant::now() + FAR).await {
                Some(Incoming::Message { from, message, payload }) if self.is_of_leader(from, &message) => {
                    match message {
                        Message::Conclusion { .. } => self.conclusion = Some(payload),
                        message => self.said.push_back((message, payload)),
                    }
                }
                Some(other) => self.aside(other),
                None => (),
            }
        }
    }

    /// Hellos so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.id.tally.read()
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
    ) -> Result<Answers<T>, SessionError> {
        self.step += 1;
        let own: Bytes =
            serde_json::to_vec(mine).map_err(|error| unreadable("this node's answer", &error))?.into();
        let map = if self.is_leader() {
            let gathered = self.gather(tag, own, deadline).await?;
            self.publish::<T>(tag, gathered)?
        } else {
            match self.submit(tag, &own, deadline).await {
                Err(SessionError::LeaderLost { leader, because }) if self.may_take_over() => {
                    let lost = SessionError::LeaderLost { leader, because };
                    let gathered = self.take_over(tag, own, deadline, lost).await?;
                    self.publish::<T>(tag, gathered)?
                }
                map => map?,
            }
        };
        self.finished = Some((self.step, tag, map.clone()));
        // The leader reads what it sent, so that all nodes hold the same numbers to the last bit.
        let answers: Answers<T> = answers::read(&map, self.roster.nodes.len()).map_err(|error| {
            SessionError::Unreadable { what: "the answers of all nodes", because: error.to_string() }
        })?;
        // Who leads next must know who was lost.
        for (node, because) in answers.lost() {
            self.lost.entry(node).or_insert_with(|| because.to_owned());
        }
        Ok(answers)
    }

    /// Makes one map of what was gathered and gives it to everybody.
    fn publish<T: Serialize + DeserializeOwned>(
        &mut self,
        tag: u32,
        gathered: Gathered,
    ) -> Result<Bytes, SessionError> {
        let map: Bytes = match gathered {
            Gathered::Map(map) => map,
            Gathered::Answers(found) => {
                let read = found.into_iter().map(|(node, answer)| (node, self.read::<T>(node, answer)));
                answers::write(read).map_err(|error| unreadable("the answers", &error))?.into()
            }
        };
        self.spread(&Message::Answers { step: self.step, tag }, &map);
        Ok(map)
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

    /// To every node that joined, also the lost ones, so that one that wakes up again knows where the others are.
    fn spread(&mut self, message: &Message, payload: &[u8]) {
        let Ok(body) = crate::message::encode(message, payload) else { return };
        let body = body.into();
        for node in 0..u32::try_from(self.roster.nodes.len()).unwrap_or(u32::MAX) {
            if node != self.id.me && self.mesh.alive(node) && !self.mesh.post(node, &body) {
                self.id.log.line(&format!("{}: {}", self.id.name(node), self.mesh.why(node)));
            }
        }
    }

    /// The other nodes' side: hand in an answer, wait for all of them. If the leader is lost the deputy is asked.
    async fn submit(&mut self, tag: u32, own: &[u8], deadline: Instant) -> Result<Bytes, SessionError> {
        if self.conclusion.is_none() {
            self.mesh.send(self.leader, &Message::Answer { step: self.step, tag }, own);
        }
        let mut deadline = deadline;
        loop {
            if self.conclusion.is_some() {
                return Err(SessionError::Concluded);
            }
            let next = match self.next_of_leader(deadline + ANSWER_SLACK).await {
                Err(lost) => {
                    if !self.resume(tag, own).await {
                        return Err(lost);
                    }
                    deadline = deadline.max(Instant::now()) + RESUME_WAIT;
                    continue;
                }
                Ok(next) => next,
            };
            match next {
                (Message::Answers { step, tag: theirs }, payload) if step == self.step && theirs == tag => {
                    return Ok(payload);
                }
                (Message::Answers { step, tag: their_tag }, _) if step >= self.step => {
                    return Err(SessionError::OutOfStep { step: self.step, tag, theirs: step, their_tag });
                }
                (Message::Fetch { step }, _) => self.hand_over(step),
                (Message::Conclusion { .. }, payload) => self.conclusion = Some(payload),
                _ => (),
            }
        }
    }

    /// Whether this is the leader's word, or its last one as the deputy passes it on. A last word of whoever led before, or of a
    /// deputy that lost only its own way to the leader, is not.
    fn is_of_leader(&self, from: NodeId, message: &Message) -> bool {
        match message {
            Message::Conclusion { of } => *of == self.leader && from <= 1,
            Message::Resume { .. } => false,
            _ => from == self.leader,
        }
    }

    /// The leader's next message, or its last word as the deputy passes it on. What it sent before its connection ended still counts.
    async fn next_of_leader(&mut self, mut until: Instant) -> Result<(Message, Bytes), SessionError> {
        let lost = |session: &Self, because: String| SessionError::LeaderLost {
            leader: session.id.name(session.leader).to_owned(),
            because,
        };
        if let Some(said) = self.said.pop_front() {
            return Ok(said);
        }
        loop {
            if !self.mesh.alive(self.leader) {
                until = until.min(Instant::now() + LAST_LOOK);
            }
            let next = match self.mesh.next(until).await {
                None => self.mesh.next(Instant::now() + LAST_LOOK).await,
                next => next,
            };
            match next {
                Some(Incoming::Message { from, message, payload }) if self.is_of_leader(from, &message) => {
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
    pub(crate) fn aside(&mut self, incoming: Incoming) {
        match incoming {
            Incoming::Linked(established) => {
                let linked = self.mesh.add(*established).map(|(peer, _)| peer);
                // A deputy that was not reached when the roster came must know of it, should the leader go.
                if let Some(peer) = linked.filter(|peer| *peer <= 1 && *peer != self.leader) {
                    let roster = pass_on(&self.roster, self.id.me);
                    self.mesh.send(peer, &Message::Follows { leader: self.leader, roster }, &[]);
                }
            }
            Incoming::Message { from, message: Message::Roster(_), .. } if from != self.leader => {
                let roster = pass_on(&self.roster, self.id.me);
                self.mesh.send(from, &Message::Follows { leader: self.leader, roster }, &[]);
            }
            Incoming::Message { from, message: Message::Resume { step, tag, finished }, payload } => {
                self.early.insert(from, Early { step, tag, finished, payload });
            }
            Incoming::Message { from: 1, message: Message::Conclusion { of: 1 }, payload }
                if self.leader == 0 && self.id.me > 1 =>
            {
                self.deputys_word = Some(payload);
            }
            // Late answers of lost nodes, votes that are settled: no effect.
            Incoming::Message { .. } | Incoming::Closed { .. } => (),
        }
    }

    /// The leader's last word, given with `Some` there and awaited with `None` elsewhere. The leader may give it
    /// at any time; it returns when the others have read it, at the latest after two seconds and
    /// hardly past `deadline`. The others wait until `deadline`, and a moment more for the deputy if the leader is lost.
    ///
    /// # Errors
    /// The leader is lost before it spoke, or its word can't be read. On the deputy that is its cue: it looks at
    /// what was done, does what is left, and calls this again with a word of its own, which the others await.
    pub async fn conclude<T: Serialize + DeserializeOwned>(
        &mut self,
        word: Option<&T>,
        mut deadline: Instant,
    ) -> Result<T, SessionError> {
        let what = "the leader's last word";
        if word.is_some() && self.leader_lost && self.may_take_over() {
            self.leads(self.id.me);
        }
        let bytes: Bytes = if self.is_leader() {
            let word = word.ok_or(SessionError::NothingToSay)?;
            let bytes = serde_json::to_vec(word).map_err(|error| unreadable(what, &error))?;
            self.spread(&Message::Conclusion { of: self.id.me }, &bytes);
            self.mesh.goodbye(goodbye_until(deadline)).await;
            bytes.into()
        } else {
            loop {
                if let Some(bytes) = self.conclusion.take() {
                    if self.may_take_over() {
                        // The leader's way to others may be worse than its way to the deputy, and all must do the same.
                        self.spread(&Message::Conclusion { of: self.leader }, &bytes);
                        self.mesh.goodbye(goodbye_until(deadline)).await;
                    }
                    break bytes;
                }
                match self.next_of_leader(deadline).await {
                    Ok((Message::Conclusion { .. }, payload)) => self.conclusion = Some(payload),
                    Ok((Message::Fetch { step }, _)) => self.hand_over(step),
                    Ok(_) => (),
                    // The deputy may have the last word now.
                    Err(lost) => {
                        self.leader_lost = true;
                        self.step += 1;
                        if !self.resume(CONCLUDING, &[]).await {
                            return Err(lost);
                        }
                        deadline = deadline.max(Instant::now() + DEPUTY_WORD);
                    }
                }
            }
        };
        serde_json::from_slice(&bytes).map_err(|error| unreadable(what, &error))
    }
}
