//! What nodes say to each other once they trust each other. Not how it travels.
//!
//! A body is the length of its head (four bytes, big endian), the head as JSON, then a payload that only the
//! receiver's step understands, so that the leader passes answers on without reading them twice.

use std::net::IpAddr;

use diag::facts::{Engine, GpuName, Joined, NodeFacts, NodeId, Roster, RosterEntry};
use diag::gpu_facts::{Compared, Fact, Known};
use diag::topology::Leaves;
use serde::{Deserialize, Serialize};
use tokio_util::bytes::{BufMut, Bytes, BytesMut};

/// Longest text of a node about itself; longer is refused.
const MAX_FACT: usize = 1024;
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
    Roster(WireRoster),
    /// Leader or deputy, before any roster: there will be no meeting, and why.
    Dismissed { because: String },
    /// A node follows the sender of the roster.
    Accepted,
    /// A node follows somebody else already, whose roster this is.
    Follows { leader: NodeId, roster: Option<WireRoster> },
    /// A node's answer in a step; the payload is the answer.
    Answer { step: u64, tag: u32 },
    /// All answers of a step; the payload is the map.
    Answers { step: u64, tag: u32 },
    /// A node lost its leader before the first exchange was over: the roster that it has from it, for a deputy that has
    /// none yet.
    Orphaned { leader: NodeId, roster: WireRoster },
    /// A node lost its leader and follows the receiver: where it stands.
    Resume { step: u64, tag: u32, finished: u64 },
    /// The new leader lacks this step's map and asks a node that has it.
    Fetch { step: u64 },
    /// The leader's last word; the payload is what it says.
    Conclusion,
}

/// A message with an unreadable head.
#[derive(Debug, thiserror::Error)]
#[error("a message can't be read: {0}")]
pub(crate) struct Unreadable(String);

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

/// A roster as it travels: everybody knows the names already, and most nodes are of one kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct WireRoster {
    leader: NodeId,
    kinds: Vec<Kind>,
    nodes: Vec<(Option<WireNode>, Option<String>)>,
    leaves: Leaves,
}

/// What many nodes have alike: version, digest, engine, GPUs, libraries, what is compared.
type Kind = (String, String, Engine, Vec<GpuName>, String, Compared);

/// Kind, believed address, seen address, ports, what it knows of itself, why unable.
type WireNode = (u32, Option<IpAddr>, IpAddr, Vec<u16>, Vec<Fact>, Option<String>);

impl WireRoster {
    pub(crate) fn new(roster: &Roster) -> Self {
        let mut kinds = Vec::new();
        let mut kind_of = |facts: &NodeFacts| {
            let NodeFacts { version, request_digest, engine, gpus, libraries, known, .. } = facts.clone();
            let kind = (version, request_digest, engine, gpus, libraries, known.compared);
            let at = kinds.iter().position(|known| *known == kind).unwrap_or_else(|| {
                kinds.push(kind);
                kinds.len() - 1
            });
            u32::try_from(at).unwrap_or(u32::MAX)
        };
        let nodes = roster
            .nodes
            .iter()
            .map(|entry| {
                let joined = entry.joined.as_ref().map(|joined| {
                    let facts = &joined.facts;
                    let kind = kind_of(facts);
                    let (ports, own) = (facts.rank_ports.clone(), facts.known.facts.clone());
                    (kind, facts.address, joined.seen_address, ports, own, facts.unable.clone())
                });
                (joined, entry.absent_because.clone())
            })
            .collect();
        Self { leader: roster.leader, kinds, nodes, leaves: roster.leaves.clone() }
    }

    /// The roster, if it is of this job's nodes and its sender leads.
    pub(crate) fn open(self, names: &[String], sender: NodeId) -> Result<Roster, Unreadable> {
        if self.nodes.len() != names.len() || self.leader != sender {
            return Err(Unreadable(format!(
                "a roster of {} nodes led by node {}, sent by node {sender} of {}",
                self.nodes.len(),
                self.leader,
                names.len()
            )));
        }
        let entry = |(name, (joined, absent_because)): (&String, (Option<WireNode>, Option<String>))| {
            let joined = match joined {
                None => None,
                Some((kind, address, seen_address, rank_ports, facts, unable)) => {
                    let (version, request_digest, engine, gpus, libraries, compared) = self
                        .kinds
                        .get(kind as usize)
                        .cloned()
                        .ok_or_else(|| Unreadable(format!("a roster without kind {kind}")))?;
                    let facts = NodeFacts {
                        version,
                        request_digest,
                        engine,
                        address,
                        rank_ports,
                        gpus,
                        libraries,
                        known: Known { facts, compared },
                        unable,
                    };
                    Some(Joined { facts, seen_address })
                }
            };
            Ok(RosterEntry { name: name.clone(), joined, absent_because })
        };
        let nodes = names.iter().zip(self.nodes).map(entry).collect::<Result<_, _>>()?;
        Ok(Roster { nodes, leader: sender, leaves: self.leaves })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use diag::gpu_facts::FactKind;
    use diag::measurement::Subject;
    use proptest::prelude::*;

    fn fact() -> Fact {
        let subject = Subject::Gpu { node: 0, index: 3 };
        Fact { subject, kind: FactKind::Cause, words: "a GPU 3: SM clock locked".into() }
    }

    fn roster() -> Roster {
        let facts = |version: &str| NodeFacts {
            version: version.into(),
            request_digest: "d".into(),
            engine: Engine::Host,
            address: None,
            rank_ports: vec![1, 2],
            gpus: vec![GpuName { index: 3, model: "G".into() }],
            libraries: "NCCL 2".into(),
            known: Known {
                facts: vec![fact()],
                compared: Compared { driver: Some("580".into()), ..Compared::default() },
            },
            unable: Some("no".into()),
        };
        let joined =
            |version| Some(Joined { facts: facts(version), seen_address: IpAddr::from([10, 0, 0, 1]) });
        let entry =
            |name: &str, joined, absent_because| RosterEntry { name: name.into(), joined, absent_because };
        Roster {
            nodes: vec![
                entry("a", joined("1"), None),
                entry("b", None, Some("late".into())),
                entry("c", joined("2"), Some("version".into())),
                entry("d", joined("1"), None),
            ],
            leader: 0,
            leaves: Leaves {
                names: vec!["s1".into(), "s2".into()],
                of: vec![Some(0), None, Some(1), Some(0)],
                ..Leaves::default()
            },
        }
    }

    #[test]
    fn a_roster_arrives_as_it_was() {
        let names = ["a", "b", "c", "d"].map(str::to_owned);
        let wire = WireRoster::new(&roster());
        assert_eq!(wire.kinds.len(), 2);
        let sent = encode(&Message::Roster(wire), b"x").unwrap();
        let (Message::Roster(wire), payload) = decode(sent).unwrap() else { panic!("not a roster") };
        assert_eq!(&payload[..], b"x");
        assert_eq!(wire.clone().open(&names, 0).unwrap(), roster());
        assert!(wire.clone().open(&names[1..], 0).is_err() && wire.clone().open(&names, 1).is_err());
        let mut odd = wire;
        odd.kinds.pop();
        assert!(odd.open(&names, 0).is_err());
    }

    proptest! {
        #[test]
        fn any_body_is_read_or_refused(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(body.into());
        }
    }
}
