//! What the agents of a job tell each other: a [`Telling`] from each node to the two that judge, once a second, and a
//! [`Saying`] back. Not how it travels (`cluster::agents`), what is made of it ([`super::judge`]), nor who speaks
//! ([`super::voice`]).
//!
//! Each stands for itself: of two the newer one is enough, so that nothing is lost for good where one is.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use cluster::agents::{Agents, Config, judges};
use cluster::events::Events;
use cluster::order::Order;
use diag::c4d::digest::{Digest, MAX_DIGEST_BYTES, Telemetry as DigestTelemetry, clean};
use diag::c4d::settings::Settings;
use diag::facts::NodeId;
use diag::health::HealthEvent;
use diag::policy::Policy;
use serde::{Deserialize, Serialize};

use crate::c4d::voice::{Heard, Role};

/// Most events of a node's health in one telling, those that hold and those that are over since a moment: a node in
/// trouble has a handful.
pub const MAX_HEALTH: usize = 64;

/// What one of them takes as JSON at most: 400 bytes of words, each of which may be escaped, and three names.
const MAX_HEALTH_EVENT_BYTES: usize = 1400;

/// Largest telling as JSON.
pub const MAX_TELLING_BYTES: usize = MAX_DIGEST_BYTES + MAX_HEALTH * MAX_HEALTH_EVENT_BYTES + 100;

/// Most communicators whose steps are wanted, and most findings that are said to be told: more than the rules follow.
const MAX_SAID: usize = 1024;

/// Largest saying as JSON: two lists of numbers of 20 digits.
pub const MAX_SAYING_BYTES: usize = 2 * MAX_SAID * 21 + 200;

/// How long the last word may take: the epilog waits for this agent to end, and gives it three seconds for everything.
const GOODBYE: Duration = Duration::from_millis(1000);

/// Tellings that were refused and are logged; beyond it they are counted by nobody: they are the fault of a version.
const LOGGED_REFUSALS: u32 = 20;

/// What a node tells, once a second.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Telling {
    /// How its ranks are.
    pub digest: Digest,
    /// How its GPUs and network devices are: everything that is told of them, at most [`MAX_HEALTH`]. An event that is
    /// told again is the same one, and one that is over is told as such for a while.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub health: Vec<HealthEvent>,
}

/// A telling as it travels: with whether its node hears that the first of the judging nodes judges.
pub type Told = (Telling, bool);

/// What a judging node says back.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Saying {
    /// Communicators whose steps of the network it wants to be told.
    pub wants_steps: BTreeSet<u64>,
    /// Whether something is found that holds: all ranks tell all that they can then.
    pub trouble: bool,
    /// Whether the job is judged, as far as this node knows.
    pub judged: bool,
    /// What it has told of, and still holds, by [`super::voice`]'s numbers.
    pub told: BTreeSet<u64>,
}

/// Why a telling or a saying was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WordError {
    /// Not the JSON of one.
    #[error("it can't be read: {0}")]
    Unreadable(String),
    /// In the name of another node.
    #[error("it speaks for node {0}")]
    OtherNode(NodeId),
    /// More health than a node has.
    #[error("it tells {0} events of its health, at most {MAX_HEALTH} are taken")]
    TooMany(usize),
    /// An event that no agent makes.
    #[error("an event of its health keeps no bounds")]
    Unsound,
    /// A list that is longer than any agent's.
    #[error("it says more than {MAX_SAID} of something")]
    TooLong,
}

impl Telling {
    /// Reads what came in the session of a node, and holds it against that. The digest's own bounds are the rules' to
    /// hold.
    ///
    /// # Errors
    /// It is none, another node's, or says more than a node has to say.
    pub fn parse(from: NodeId, bytes: &[u8]) -> Result<Told, WordError> {
        let (told, hears_head): Told = serde_json::from_slice(bytes)
            .map_err(|error| WordError::Unreadable(clean(&error.to_string())))?;
        if told.digest.node != from {
            return Err(WordError::OtherNode(told.digest.node));
        }
        if told.health.len() > MAX_HEALTH {
            return Err(WordError::TooMany(told.health.len()));
        }
        if !told.health.iter().all(HealthEvent::is_sound) {
            return Err(WordError::Unsound);
        }
        Ok((told, hears_head))
    }
}

/// A digest as it may travel: of one that is too large the extras are left out, and of one that still is the ranks are
/// there without what they do, so that the node is heard and nobody is blamed.
fn fitting(mut digest: Digest) -> Digest {
    let fits = |digest: &Digest| serde_json::to_vec(digest).is_ok_and(|body| body.len() <= MAX_DIGEST_BYTES);
    if fits(&digest) {
        return digest;
    }
    for comm in digest.ranks.iter_mut().flat_map(|rank| &mut rank.comms) {
        comm.steps.clear();
        comm.samples.clear();
    }
    if !fits(&digest) {
        for rank in &mut digest.ranks {
            rank.comms.clear();
            let why = format!("its node has more to tell than {MAX_DIGEST_BYTES} bytes");
            rank.telemetry = DigestTelemetry::Unavailable { why };
        }
    }
    digest
}

impl Saying {
    /// Reads what a judging node says.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(bytes: &[u8]) -> Result<Self, WordError> {
        let said: Self = serde_json::from_slice(bytes)
            .map_err(|error| WordError::Unreadable(clean(&error.to_string())))?;
        if said.wants_steps.len() > MAX_SAID || said.told.len() > MAX_SAID {
            return Err(WordError::TooLong);
        }
        Ok(said)
    }
}

/// This node's place among the agents of its job.
pub struct Link {
    me: NodeId,
    /// The nodes that judge, the one that speaks first.
    judges: Vec<NodeId>,
    agents: Option<Agents>,
    role: Option<Role>,
    joined: usize,
    silent: Duration,
    /// When nodes were heard, and whether they hear the head.
    heard: BTreeMap<NodeId, (Instant, bool)>,
    /// What judging nodes said, and when.
    said: BTreeMap<NodeId, (Instant, Saying)>,
    events: Events,
    refusals: u32,
}

impl Link {
    /// Takes its place. It needs a runtime around it.
    #[must_use]
    pub fn new(order: &Order, policy: &Policy, settings: &Settings, events: &Events) -> Self {
        let silent = Duration::from_millis(settings.silent_ms);
        let mut link = Self {
            me: order.me,
            judges: Vec::new(),
            agents: None,
            role: (order.nodes.len() == 1).then_some(Role::Alone),
            joined: 1,
            silent,
            heard: BTreeMap::new(),
            said: BTreeMap::new(),
            events: events.clone(),
            refusals: 0,
        };
        let Some(met) = order.met.clone().filter(|_| order.nodes.len() > 1) else { return link };
        link.joined = met.joined.len();
        link.judges = judges(&met);
        let agents = Agents::start(Config {
            job: order.job.clone(),
            nodes: order.nodes.clone(),
            me: order.me,
            met,
            ports: policy.network.port_first..=policy.network.port_last,
            most_from_node_bytes: MAX_TELLING_BYTES,
            most_from_judge_bytes: MAX_SAYING_BYTES,
            log: events.sink(),
        });
        // One that nobody can come to is no judge.
        link.role = match link.judges.iter().position(|node| *node == order.me) {
            Some(0) if agents.listens() => Some(Role::Head),
            Some(_) if agents.listens() => Some(Role::Deputy),
            _ => None,
        };
        link.agents = Some(agents);
        link
    }

    /// What this node is among those that judge; `None`: it follows.
    #[must_use]
    pub fn role(&self) -> Option<Role> {
        self.role
    }

    /// How many nodes met.
    #[must_use]
    pub fn joined(&self) -> usize {
        self.joined
    }

    /// Tells what this node has to tell. Returns what has come since the last time, this node's own first.
    pub fn exchange(
        &mut self,
        digest: Digest,
        health: Vec<HealthEvent>,
        speaks: bool,
        now: Instant,
    ) -> Vec<Telling> {
        self.hear_judges();
        let hears_head = match self.role {
            Some(Role::Alone | Role::Head) => speaks,
            _ => self.hears_head(now),
        };
        let own: Told = (Telling { digest: fitting(digest), health }, hears_head);
        if let Some(agents) = self.agents.as_ref().filter(|agents| agents.judges() != [self.me])
            && let Ok(body) = serde_json::to_vec(&own)
        {
            agents.tell(body);
        }
        let came = self.agents.as_ref().map(Agents::told).unwrap_or_default();
        let mut tellings = Vec::new();
        let mut take = |(telling, hears_head): Told| {
            self.heard.insert(telling.digest.node, (now, hears_head));
            tellings.push(telling);
        };
        take(own);
        let mut refused = Vec::new();
        for (node, body) in came {
            match Telling::parse(node, &body) {
                Ok(told) => take(told),
                Err(error) => refused.push((node, error)),
            }
        }
        refused.iter().for_each(|(node, error)| self.refuse(*node, error));
        tellings
    }

    fn hear_judges(&mut self) {
        for (node, (when, body)) in self.agents.as_ref().map(Agents::said).unwrap_or_default() {
            if self.said.get(&node).is_some_and(|(known, _)| *known == when) {
                continue;
            }
            match Saying::parse(&body) {
                Ok(saying) => drop(self.said.insert(node, (when, saying))),
                Err(error) => self.refuse(node, &error),
            }
        }
    }

    fn refuse(&mut self, node: NodeId, error: &WordError) {
        self.refusals = self.refusals.saturating_add(1);
        if self.refusals <= LOGGED_REFUSALS {
            self.events.log(&format!("what the agent on node {node} says was refused: {error}"));
        }
    }

    /// Whom this node hears.
    #[must_use]
    pub fn heard(&self, now: Instant) -> Heard {
        let lately =
            self.heard.values().filter(|(when, _)| now.saturating_duration_since(*when) < self.silent);
        let (mut nodes, mut hear_head) = (0, 0);
        lately.for_each(|(_, hears)| {
            nodes += 1;
            hear_head += usize::from(*hears);
        });
        Heard { nodes, hear_head, head: self.hears_head(now) }
    }

    /// What a judging node said lately.
    fn said(&self, place: usize, now: Instant) -> Option<&Saying> {
        let node = self.judges.get(place)?;
        let (when, saying) = self.said.get(node)?;
        (now.saturating_duration_since(*when) < self.silent).then_some(saying)
    }

    fn hears_head(&self, now: Instant) -> bool {
        self.said(0, now).is_some_and(|saying| saying.judged)
    }

    /// What the other one of those that judge has told, if it is heard.
    #[must_use]
    pub fn other_told(&self, now: Instant) -> Option<&BTreeSet<u64>> {
        let place = match self.role? {
            Role::Alone => return None,
            Role::Head => 1,
            Role::Deputy => 0,
        };
        self.said(place, now).map(|saying| &saying.told)
    }

    /// Whether another node says that the job is judged.
    #[must_use]
    pub fn is_judged(&self, now: Instant) -> bool {
        self.guidance(now).is_some()
    }

    /// What the one says that judges the job.
    #[must_use]
    pub fn guidance(&self, now: Instant) -> Option<&Saying> {
        (0..self.judges.len()).find_map(|place| self.said(place, now).filter(|saying| saying.judged))
    }

    /// Says to all nodes what they should know.
    pub fn say(&self, mut saying: Saying) {
        let Some(agents) = &self.agents else { return };
        for list in [&mut saying.wants_steps, &mut saying.told] {
            while list.len() > MAX_SAID {
                list.pop_last();
            }
        }
        if let Ok(body) = serde_json::to_vec(&saying) {
            agents.say(body);
        }
    }

    /// Why the judging nodes are not reached.
    #[must_use]
    pub fn why(&self, nodes: &[String]) -> String {
        let name = |node: NodeId| nodes.get(node as usize).map_or("-", String::as_str);
        let Some(agents) = &self.agents else { return "the nodes of the job did not meet".to_owned() };
        let whys = self.judges.iter().filter(|node| **node != self.me).map(|node| {
            let why = agents.why(*node).unwrap_or_else(|| "it says nothing".to_owned());
            format!("{}: {why}", name(*node))
        });
        let whys: Vec<String> = whys.collect();
        if whys.is_empty() { "no node of the job can be reached".to_owned() } else { whys.join("; ") }
    }

    /// Tells that this node ends, so that what stops with it is no fault, and once more how its hardware is: a telling stands for
    /// all that there is to tell, and the one before may not have been read yet.
    pub async fn goodbye(self, digest: Digest, health: Vec<HealthEvent>) {
        let Some(agents) = self.agents else { return };
        // Nobody is to take over for a node that ends with its job.
        let digest = fitting(Digest { ending: true, ..digest });
        let last: Told = (Telling { digest, health }, true);
        if let Ok(body) = serde_json::to_vec(&last) {
            agents.goodbye(body, GOODBYE).await;
        }
    }
}

#[cfg(test)]
mod tests;
