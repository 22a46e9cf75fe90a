//! What nodes say to each other once they trust each other. Not how it travels.
//!
//! A body is the length of its head (four bytes, big endian), the head as JSON, then a payload that only the
//! receiver's step understands, so that the leader passes answers on without reading them twice.

use std::collections::BTreeSet;
use std::sync::Arc;

use diag::facts::{NodeFacts, NodeId};
use serde::{Deserialize, Serialize};
use tokio_util::bytes::{BufMut, Bytes, BytesMut};

use crate::roster::WireRoster;

/// Longest text of a node about itself; longer is refused.
pub(crate) const MAX_FACT: usize = 1024;
/// More nodes than any Slurm job has.
pub(crate) const MAX_NODES: usize = 65_536;
/// Most ranks of one node.
const MAX_RANKS: usize = 256;

/// Heads of messages.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Message {
    /// The dialer's first word: its facts, and how long it has waited already.
    Facts { facts: Box<NodeFacts>, waited_ms: u64 },
    /// Leader to deputy when its window has ended: how many nodes it has, itself included.
    Count { joined: u32, facts: Box<NodeFacts> },
    /// Deputy to leader: who shall lead.
    Leads { node: NodeId },
    /// The leader's roster.
    Roster(Box<WireRoster>),
    /// Leader or deputy, before any roster: there will be no meeting, and why.
    Dismissed { because: String },
    /// A node follows the sender of the roster.
    Accepted,
    /// A node follows somebody else already, whose roster this is.
    Follows { leader: NodeId, roster: Option<Box<WireRoster>> },
    /// A node's answer in a step; the payload is the answer.
    Answer { step: u64, tag: u32 },
    /// All answers of a step; the payload is the map.
    Answers { step: u64, tag: u32 },
    /// A node lost its leader before the first exchange was over: the roster that it has from it, for a deputy that has
    /// none yet.
    Orphaned { leader: NodeId, roster: Box<WireRoster> },
    /// A node lost its leader and follows the receiver: where it stands.
    Resume { step: u64, tag: u32, finished: u64 },
    /// The new leader lacks this step's map and asks a node that has it.
    Fetch { step: u64 },
    /// The last word of the node that leads; the payload is what it says. The deputy passes on the leader's as it is.
    Conclusion { of: NodeId },
}

/// A message with an unreadable head.
#[derive(Debug, thiserror::Error)]
#[error("a message can't be read: {0}")]
pub(crate) struct Unreadable(pub(crate) String);

pub(crate) fn encode(message: &Message, payload: &[u8]) -> Result<Bytes, Unreadable> {
    let head = serde_json::to_vec(message).map_err(|error| Unreadable(error.to_string()))?;
    let length = u32::try_from(head.len()).map_err(|error| Unreadable(error.to_string()))?;
    let mut body = BytesMut::with_capacity(4 + head.len() + payload.len());
    body.put_u32(length);
    body.put_slice(&head);
    body.put_slice(payload);
    Ok(body.freeze())
}

pub(crate) fn decode(mut body: Bytes) -> Result<(Message, Bytes), Unreadable> {
    let short = || Unreadable("it is cut short".to_owned());
    let length: [u8; 4] = body.get(..4).and_then(|head| head.try_into().ok()).ok_or_else(short)?;
    let end = 4 + u32::from_be_bytes(length) as usize;
    if end > body.len() {
        return Err(short());
    }
    let payload = body.split_off(end);
    let message = serde_json::from_slice(&body[4..]).map_err(|error| Unreadable(error.to_string()))?;
    Ok((message, payload))
}

/// Whether a job's nodes are such, and this node is one of them.
pub(crate) fn check_nodes(nodes: &[Arc<str>], me: NodeId) -> Result<(), &'static str> {
    if nodes.is_empty() || nodes.len() > MAX_NODES {
        return Err("the job has no nodes, or more than 65536");
    }
    if me as usize >= nodes.len() {
        return Err("this node is not in the job's node list");
    }
    // Slurm's order is mostly that of the names, which is sooner seen.
    if !nodes.is_sorted_by(|one, next| one < next)
        && nodes.iter().collect::<BTreeSet<_>>().len() != nodes.len()
    {
        return Err("a node is in the job's node list twice");
    }
    Ok(())
}

/// Whether facts are of a believable size.
pub(crate) fn check_facts(facts: &NodeFacts) -> Result<(), &'static str> {
    let texts =
        [Some(&facts.version), Some(&facts.request_digest), Some(&facts.libraries), facts.unable.as_ref()];
    let models = facts.gpus.iter().map(|gpu| &gpu.model);
    let words = facts.known.facts.iter().map(|fact| &fact.words);
    if texts.into_iter().flatten().chain(models).chain(words).any(|text| text.len() > MAX_FACT) {
        return Err("a text in its facts is longer than 1024 bytes");
    }
    if facts.rank_ports.len() > MAX_RANKS || facts.gpus.len() > MAX_RANKS {
        return Err("its facts name more than 256 ranks");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_body_is_read_or_refused(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(body.into());
        }
    }
}
