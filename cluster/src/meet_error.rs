//! Why nodes did not meet, in words that say where to look.

use std::time::Duration;

use crate::auth::AuthError;

/// Why there was no meeting. Blames nobody.
#[derive(Debug, thiserror::Error)]
pub enum MeetError {
    /// The arguments contradict each other.
    #[error("the meeting can't be arranged: {0}")]
    Config(&'static str),
    /// No random numbers.
    #[error(transparent)]
    Auth(#[from] AuthError),
    /// Nobody led this node within its time.
    #[error(
        "no meeting within {waited:?}: leader {leader}: {leader_why}; deputy {deputy}: {deputy_why} (see the port range, NodeAddr, the firewall and munge)"
    )]
    NoLeader {
        /// How long this node waited.
        waited: Duration,
        /// Name of the leader.
        leader: String,
        /// What is known of it.
        leader_why: String,
        /// Name of the deputy.
        deputy: String,
        /// What is known of it.
        deputy_why: String,
    },
    /// The meeting was called off, here or by the node that would have led it.
    #[error("there is no meeting: {because}")]
    Dismissed {
        /// Why, in words.
        because: String,
    },
    /// Too few nodes to lead, and no word from the deputy.
    #[error(
        "only {joined} of {nodes} nodes joined within the window and the deputy could not be asked: this node does not lead"
    )]
    TooFew {
        /// How many, this one included.
        joined: usize,
        /// How many there should be.
        nodes: usize,
    },
    /// Too many nodes follow the other one.
    #[error("only {votes} of {nodes} nodes follow this node, the others follow another leader")]
    Outvoted {
        /// How many, this one included.
        votes: usize,
        /// How many there are.
        nodes: usize,
    },
}
