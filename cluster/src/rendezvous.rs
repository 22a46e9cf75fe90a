//! The meeting: who leads, who is there. Not what the nodes do afterwards.
//!
//! The first node of the list leads, the next is its deputy; everybody dials both. When all nodes are there
//! nobody waits. When the window ends before that, leader and deputy settle by their link who has more nodes;
//! without a link the leader needs half of the nodes and the deputy more than half, as votes of nodes that follow
//! nobody else, so that two can't lead. All windows are counted from the earliest start that anybody knows of.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use diag::facts::{Joined, NodeFacts, NodeId, Roster, RosterEntry};
use diag::topology::Leaves;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use zeroize::Zeroizing;

use crate::auth::{Authenticator, random};
use crate::dial::{Target, accept, dial, listen, port_order, raise_file_limit};
use crate::handshake::{Established, Identity, Tally, places};
use crate::log::LogSink;
use crate::mesh::{Incoming, Mesh};
use crate::message::Message;
use crate::offer::Offers;
use crate::roster::WireRoster;
use crate::second_hand::{Offered, pass_on};
use crate::session::Session;

pub use crate::meet_error::MeetError;

/// How long the leader waits for its deputy's word on who leads: one round trip and a busy machine.
const LINK_ANSWER: Duration = Duration::from_millis(1500);
/// The deputy decides alone this long after its window, so that a leader that lives has decided first.
const DEPUTY_SLACK: Duration = Duration::from_millis(2500);
/// How long votes are awaited where leader and deputy could not talk.
const VOTES: Duration = Duration::from_millis(1000);
/// A node gives up this long after its window: after the deputy's decision and its votes.
pub const PEER_SLACK: Duration = Duration::from_secs(5);

/// Which run of which job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobKey {
    /// Name of the cluster.
    pub cluster: String,
    /// The job's own id.
    pub job_id: u32,
    /// How often it was restarted.
    pub restart: u32,
}

/// What [`meet`] needs to know.
#[derive(Debug, Clone)]
pub struct MeetConfig {
    /// Which run of which job.
    pub job: JobKey,
    /// All nodes of the job, in Slurm's order.
    pub nodes: Arc<[Arc<str>]>,
    /// This node's place among them.
    pub me: NodeId,
    /// Addresses of node 0 and node 1, as far as they were found.
    pub addresses: BTreeMap<NodeId, IpAddr>,
    /// Ports that leader and deputy may listen on.
    pub ports: RangeInclusive<u16>,
    /// Below which leaf switch each node is, as far as this node knows: what counts if it leads.
    pub leaves: Leaves,
    /// How long nodes wait for each other.
    pub join_window: Duration,
    /// How nodes prove themselves.
    pub auth: Authenticator,
    /// Where lines for a person go.
    pub log: LogSink,
}

/// Meets the other nodes of the job.
///
/// # Errors
/// There was no meeting that this node is part of; see [`MeetError`].
pub async fn meet(config: MeetConfig, facts: NodeFacts) -> Result<Session, MeetError> {
    meet_unless(config, facts, std::future::pending()).await
}

/// Meets the other nodes of the job, unless `stop` completes first, with the reason: then leader and deputy send
/// the nodes home that have joined them, which need not wait for the end of their windows.
///
/// # Errors
/// There was no meeting that this node is part of; see [`MeetError`].
pub async fn meet_unless(
    config: MeetConfig,
    facts: NodeFacts,
    stop: impl Future<Output = String>,
) -> Result<Session, MeetError> {
    let MeetConfig { job, nodes, me, addresses, ports, leaves, join_window, auth, log } = config;
    crate::message::check_nodes(&nodes, me).map_err(MeetError::Config)?;
    crate::message::check_facts(&facts).map_err(MeetError::Config)?;
    let data_key = if me <= 1 { Some(Zeroizing::new(random()?)) } else { None };
    // Each of the two begins at a port of its own: on one machine nobody knocks at the other one first.
    let first = job.job_id;
    let order = |node: NodeId| port_order(&ports, first.wrapping_add(node));
    let id = Arc::new(Identity {
        job,
        places: places(me, &nodes),
        nodes,
        me,
        auth,
        offers: Offers::default(),
        facts,
        began: std::time::Instant::now(),
        data_key,
        log,
        tally: Tally::default(),
        unreached: Mutex::default(),
        over: AtomicBool::new(false),
    });
    let mut mesh = Mesh::new(Arc::clone(&id));
    let give_up = Instant::now() + join_window + PEER_SLACK;
    if me <= 1 && id.nodes.len() > 1 {
        raise_file_limit(id.nodes.len());
        match listen(&order(me)) {
            Ok(listener) => {
                mesh.helpers.spawn(accept(listener, Arc::clone(&id), mesh.inbox()));
                // Before anybody knocks: a munged that has just started takes its time.
                let offering = Arc::clone(&id);
                mesh.helpers.spawn(async move { _ = offering.offers.current(&offering).await });
            }
            // The other one may still lead.
            Err(error) => id.log.line(&format!(
                "no port from {} to {} is free to listen on: {error}",
                ports.start(),
                ports.end()
            )),
        }
    }
    for node in (0..=1).filter(|node| *node != me && (*node as usize) < id.nodes.len()) {
        let Some(address) = addresses.get(&node).copied() else {
            id.not_reached(node, "its address is not known");
            id.log.line(&format!("no address of {} is known", id.name(node)));
            continue;
        };
        let target = Target::new(node, address, order(node), give_up);
        mesh.helpers.spawn(dial(target, Arc::clone(&id), mesh.inbox()));
    }
    let own_address = id.facts.address.or_else(|| addresses.get(&me).copied());
    let meeting = Meeting {
        window_end: Instant::now() + join_window,
        window: join_window,
        stage: Stage::Gathering,
        joined: BTreeMap::new(),
        like: None,
        left: BTreeMap::new(),
        elsewhere: BTreeSet::new(),
        offered: Offered::default(),
        kept: Vec::new(),
        give_up,
        own_address: own_address.unwrap_or(Ipv4Addr::UNSPECIFIED.into()),
        leaves,
        id,
        mesh,
    };
    meeting.run(stop).await
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Nodes join.
    Gathering,
    /// The leader has asked its deputy.
    Asked(Instant),
    /// Somebody else leads; its roster is due.
    Following(Instant),
}

struct Meeting {
    id: Arc<Identity>,
    mesh: Mesh,
    window: Duration,
    window_end: Instant,
    give_up: Instant,
    stage: Stage,
    joined: BTreeMap<NodeId, Joined>,
    /// Facts of the last one that joined.
    like: Option<Arc<NodeFacts>>,
    /// Nodes that had joined, and why they are gone.
    left: BTreeMap<NodeId, String>,
    /// Nodes that follow another leader.
    elsewhere: BTreeSet<NodeId>,
    offered: Offered,
    /// What came early, for the session.
    kept: Vec<Incoming>,
    own_address: IpAddr,
    /// What this node's roster says of switches.
    leaves: Leaves,
}

/// What a turn of the meeting leads to.
enum Turn {
    Wait,
    /// `agreed`: nobody else can lead.
    Lead {
        agreed: bool,
    },
    Follow(Roster),
}

impl Meeting {
    async fn run(mut self, stop: impl Future<Output = String>) -> Result<Session, MeetError> {
        let mut stop = std::pin::pin!(stop);
        loop {
            if self.id.me == 0 && self.stage == Stage::Gathering && self.present() == self.id.nodes.len() {
                return self.lead(true).await;
            }
            let due = self.due();
            let next = tokio::select! {
                next = self.next(due) => next,
                because = &mut stop => return Err(self.dismiss(because).await),
            };
            let turn = match next {
                Some(Incoming::Message { from, message: Message::Dismissed { because }, .. })
                    if from <= 1 =>
                {
                    return Err(MeetError::Dismissed { because });
                }
                Some(Incoming::Linked(established)) => {
                    self.link(*established);
                    Turn::Wait
                }
                Some(Incoming::Message { from, message, .. }) => self.hear(from, message),
                Some(Incoming::Closed { from }) => self.closed(from)?,
                None => self.decide()?,
            };
            match turn {
                Turn::Wait => (),
                Turn::Lead { agreed } => return self.lead(agreed).await,
                Turn::Follow(roster) => return self.follow(roster),
            }
        }
    }

    /// The next word of the meeting; what is for the session is kept for it.
    async fn next(&mut self, until: Instant) -> Option<Incoming> {
        loop {
            match self.mesh.next(until).await {
                Some(early @ Incoming::Message { message: Message::Resume { .. }, .. }) => {
                    self.kept.push(early)
                }
                next => return next,
            }
        }
    }

    /// Sends home whoever is here.
    async fn dismiss(mut self, because: String) -> MeetError {
        let message = Message::Dismissed { because: because.clone() };
        for node in self.joined.keys() {
            self.mesh.send(*node, &message, &[]);
        }
        self.mesh.goodbye(Instant::now() + LINK_ANSWER).await;
        MeetError::Dismissed { because }
    }

    /// Nodes here, this one included.
    fn present(&self) -> usize {
        self.joined.len() + 1
    }

    fn due(&self) -> Instant {
        match (self.stage, self.id.me) {
            (Stage::Asked(until) | Stage::Following(until), _) => until,
            (Stage::Gathering, 0) => self.window_end,
            (Stage::Gathering, 1) => self.window_end + DEPUTY_SLACK,
            (Stage::Gathering, _) => self.give_up,
        }
    }

    fn link(&mut self, established: Established) {
        let Some((peer, hello)) = self.mesh.add(established) else { return };
        if let Some(hello) = hello {
            let rest = self.window.saturating_sub(hello.waited);
            self.window_end = self.window_end.min(Instant::now() + rest);
            self.left.remove(&peer);
            let joined = self.alike(Joined::new(hello.facts, hello.seen));
            self.joined.insert(peer, joined);
        }
    }

    /// The same node with facts that it shares with the last one that joined, if that one is like it.
    fn alike(&mut self, mut joined: Joined) -> Joined {
        match &self.like {
            Some(like) if **like == *joined.facts => joined.facts = Arc::clone(like),
            _ => self.like = Some(Arc::clone(&joined.facts)),
        }
        joined
    }

    fn closed(&mut self, from: NodeId) -> Result<Turn, MeetError> {
        if !self.mesh.alive(from) && self.joined.remove(&from).is_some() {
            let why = format!("it joined, then its connection ended: {}", self.mesh.why(from));
            self.left.insert(from, why);
        }
        if let Some(roster) = self.offered.take(&self.mesh) {
            return Ok(Turn::Follow(roster));
        }
        match self.stage {
            Stage::Asked(_) if !self.mesh.alive(1) => self.decide(),
            _ => Ok(Turn::Wait),
        }
    }

    fn hear(&mut self, from: NodeId, message: Message) -> Turn {
        let me = self.id.me;
        match message {
            Message::Roster(wire) if from <= 1 && from != me => match wire.open(&self.id.nodes, from) {
                Ok(roster) => return Turn::Follow(roster),
                Err(error) => self.mesh.cut(from, &error.to_string()),
            },
            Message::Count { joined, facts } if me == 1 && from == 0 => {
                let more = self.present() > joined as usize;
                let leads = u32::from(more);
                self.mesh.send(0, &Message::Leads { node: leads }, &[]);
                if more {
                    let seen = facts.address.unwrap_or(Ipv4Addr::UNSPECIFIED.into());
                    self.joined.entry(0).or_insert(Joined::new(*facts, seen));
                    return Turn::Lead { agreed: true };
                }
                self.stage = Stage::Following(Instant::now() + LINK_ANSWER);
            }
            Message::Leads { node } if me == 0 && from == 1 && matches!(self.stage, Stage::Asked(_)) => {
                if node == 0 {
                    return Turn::Lead { agreed: true };
                }
                self.stage = Stage::Following(Instant::now() + LINK_ANSWER);
            }
            Message::Orphaned { leader, roster } => {
                self.offered.hear(&self.id, leader, Some(roster));
                return self.offered.take(&self.mesh).map_or(Turn::Wait, Turn::Follow);
            }
            Message::Follows { leader, roster } => {
                self.elsewhere.insert(from);
                self.offered.hear(&self.id, leader, roster);
                return self.offered.take(&self.mesh).map_or(Turn::Wait, Turn::Follow);
            }
            _ => (),
        }
        Turn::Wait
    }

    /// A time limit has passed.
    fn decide(&mut self) -> Result<Turn, MeetError> {
        let nodes = self.id.nodes.len();
        let mine = 1 + self.joined.keys().filter(|node| !self.elsewhere.contains(node)).count();
        match (self.stage, self.id.me) {
            (Stage::Gathering, 0) => {
                let joined = u32::try_from(self.present()).unwrap_or(u32::MAX);
                let count = Message::Count { joined, facts: Box::new(self.id.facts.clone()) };
                if self.mesh.send(1, &count, &[]) {
                    self.stage = Stage::Asked(Instant::now() + LINK_ANSWER);
                    return Ok(Turn::Wait);
                }
            }
            (Stage::Gathering, 1) if 2 * mine <= nodes => {
                self.stage = Stage::Following(self.give_up);
                return Ok(Turn::Wait);
            }
            (Stage::Gathering, 1) => return Ok(Turn::Lead { agreed: false }),
            (Stage::Gathering | Stage::Following(_), _) => return Err(self.no_leader()),
            (Stage::Asked(_), _) => (),
        }
        if 2 * mine < nodes {
            return Err(MeetError::TooFew { joined: mine, nodes });
        }
        Ok(Turn::Lead { agreed: false })
    }

    fn no_leader(&self) -> MeetError {
        let why = |node: NodeId| match node {
            _ if node == self.id.me => "this node".to_owned(),
            _ if self.mesh.alive(node) => "connected, but it sent no roster".to_owned(),
            _ => self.id.why_not_reached(node).unwrap_or_else(|| self.mesh.why(node)),
        };
        MeetError::NoLeader {
            waited: self.id.began.elapsed(),
            leader: self.id.name(0).to_owned(),
            leader_why: why(0),
            deputy: self.id.name(1).to_owned(),
            deputy_why: why(1),
        }
    }

    fn roster(&mut self) -> Roster {
        let own = Joined::new(self.id.facts.clone(), self.own_address);
        let entry = |(node, name): (NodeId, &Arc<str>)| {
            let joined = if node == self.id.me {
                own.clone()
            } else if let Some(joined) = self.joined.get(&node) {
                joined.clone()
            } else {
                let because = self.left.get(&node).cloned();
                let because = because.or_else(|| Some(format!("it did not join within {:?}", self.window)));
                return RosterEntry { name: name.clone(), joined: None, absent_because: because };
            };
            let absent_because = joined.facts.unfit_for(&own.facts);
            RosterEntry { name: name.clone(), joined: Some(joined), absent_because }
        };
        let nodes = (0..).zip(self.id.nodes.iter()).map(entry).collect();
        Roster { nodes, leader: self.id.me, leaves: self.leaves.clone() }
    }

    async fn lead(mut self, agreed: bool) -> Result<Session, MeetError> {
        let roster = self.roster();
        if let Ok(body) = crate::message::encode(&Message::Roster(Box::new(WireRoster::new(&roster))), &[]) {
            let body = body.into();
            // A node that can't take it is lost in the first exchange.
            let posted =
                self.joined.keys().map(|node| self.mesh.post(*node, &body)).filter(|done| !done).count();
            if posted > 0 {
                self.id.log.line(&format!("{posted} nodes did not take the roster"));
            }
        }
        if !agreed {
            let votes = self.votes().await;
            let nodes = self.id.nodes.len();
            // Half is enough for the leader, the deputy needs more: both can't have it.
            if 2 * votes < nodes + usize::from(self.id.me == 1) {
                // Whoever took this node's own roster would be left with it.
                let offered = if votes == 1 { self.offered.take(&self.mesh) } else { None };
                return match offered {
                    Some(roster) => self.follow(roster),
                    None => Err(MeetError::Outvoted { votes, nodes }),
                };
            }
        }
        let key = self.id.data_key.clone().unwrap_or_default();
        Ok(self.into_session(roster, key))
    }

    /// How many follow this node, itself included.
    async fn votes(&mut self) -> usize {
        let until = Instant::now() + VOTES;
        let mut open: BTreeSet<NodeId> = self.joined.keys().copied().collect();
        let mut votes = 1;
        while !open.is_empty() {
            match self.next(until).await {
                Some(Incoming::Message { from, message: Message::Accepted, .. }) if open.remove(&from) => {
                    votes += 1
                }
                Some(Incoming::Message { from, message: Message::Follows { leader, roster }, .. }) => {
                    self.offered.hear(&self.id, leader, roster);
                    open.remove(&from);
                }
                Some(Incoming::Message { message: Message::Orphaned { leader, roster }, .. }) => {
                    self.offered.hear(&self.id, leader, Some(roster));
                }
                Some(Incoming::Closed { from }) if !self.mesh.alive(from) => {
                    open.remove(&from);
                }
                Some(_) => (),
                None => break,
            }
        }
        votes
    }

    fn follow(mut self, roster: Roster) -> Result<Session, MeetError> {
        let leader = roster.leader;
        let Some(key) = self.mesh.data_key(leader) else {
            return Err(MeetError::Config("the leader gave no key for the job's connections"));
        };
        self.mesh.send(leader, &Message::Accepted, &[]);
        let other = 1 - leader;
        if other != self.id.me {
            let known = pass_on(&roster, self.id.me);
            self.mesh.send(other, &Message::Follows { leader, roster: known }, &[]);
        }
        Ok(self.into_session(roster, key))
    }

    fn into_session(self, roster: Roster, key: Zeroizing<[u8; 32]>) -> Session {
        let mut session = Session::new(self.id, self.mesh, roster, key);
        for incoming in self.kept {
            session.aside(incoming);
        }
        session
    }
}
