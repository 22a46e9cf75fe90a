//! What the agents of a job tell each other: a [`Telling`] from each node to those that judge, once a second, and a
//! [`Saying`] back. Not how it travels (`cluster`), nor what is made of it ([`super::judge`]).
//!
//! Each stands for itself: of two the newer one is enough, so that nothing is lost for good where one is.

use std::collections::BTreeSet;

use diag::c4d::digest::{Digest, MAX_DIGEST_BYTES};
use diag::facts::NodeId;
use diag::health::HealthEvent;
use serde::{Deserialize, Serialize};

/// Most events of a node's health in one telling, those that hold and those that are over since a moment: a node in
/// trouble has a handful.
pub const MAX_HEALTH: usize = 64;

/// What one of them takes as JSON at most: 400 bytes of words, each of which may be escaped, and three names.
const MAX_HEALTH_EVENT_BYTES: usize = 1400;

/// Largest telling as JSON.
pub const MAX_TELLING_BYTES: usize = MAX_DIGEST_BYTES + MAX_HEALTH * MAX_HEALTH_EVENT_BYTES + 100;

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

/// What a judging node says back.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Saying {
    /// Communicators whose steps of the network it wants to be told.
    pub wants_steps: BTreeSet<u64>,
    /// Whether the job is judged there.
    pub judged: bool,
}

/// Why a telling was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TellingError {
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
}

impl Telling {
    /// Reads what came in the session of a node, and holds it against that.
    ///
    /// # Errors
    /// It is none, or not this node's. The digest's own bounds are the rules' to hold.
    pub fn parse(from: NodeId, bytes: &[u8]) -> Result<Self, TellingError> {
        let told: Self = serde_json::from_slice(bytes)
            .map_err(|error| TellingError::Unreadable(diag::c4d::digest::clean(&error.to_string())))?;
        if told.digest.node != from {
            return Err(TellingError::OtherNode(told.digest.node));
        }
        if told.health.len() > MAX_HEALTH {
            return Err(TellingError::TooMany(told.health.len()));
        }
        if !told.health.iter().all(HealthEvent::is_sound) {
            return Err(TellingError::Unsound);
        }
        Ok(told)
    }
}
