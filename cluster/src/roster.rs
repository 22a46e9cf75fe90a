//! A roster as it travels: by columns, of which what most nodes have alike is said once. Each of thousands of nodes reads it,
//! so what is left for each node is its address. The names are known to everybody already.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use diag::facts::{Joined, NodeFacts, NodeId, Roster, RosterEntry};
use diag::gpu_facts::Fact;
use diag::topology::{LeafId, LeafKind, Leaves};
use serde::{Deserialize, Serialize};

use crate::message::{MAX_FACT, MAX_NODES, Unreadable, check_facts};

/// Hexadecimal digits of an address in its column.
const DIGITS: usize = 8;

/// A column in runs: how many nodes in a row, and what is said of each of them.
type Runs<T> = Vec<(u32, T)>;

/// All columns are in the order of the job's nodes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WireRoster {
    leader: NodeId,
    /// What nodes are, without what is said of each by itself.
    kinds: Vec<NodeFacts>,
    /// Each node's kind; `None`: it did not join.
    kind: Runs<Option<u32>>,
    /// The address that each believes in, as IPv4 in eight hexadecimal digits; zeros where it has none or another one.
    addresses: String,
    /// The others.
    other_addresses: Vec<(NodeId, IpAddr)>,
    /// Where each was seen; `None`: where it believes to be.
    seen: Runs<Option<IpAddr>>,
    /// Nodes that know something of themselves, or are unable.
    own: Vec<(NodeId, Vec<Fact>, Option<String>)>,
    absent_because: Vec<(NodeId, String)>,
    leaf_kind: LeafKind,
    leaf_names: Vec<String>,
    leaf: Runs<Option<LeafId>>,
}

/// Lengthens the last run, or begins another one.
fn push<T: PartialEq>(runs: &mut Runs<T>, value: T) {
    match runs.last_mut() {
        Some((count, last)) if *last == value => *count = count.saturating_add(1),
        _ => runs.push((1, value)),
    }
}

/// How many nodes a column is of.
fn length<T>(runs: &Runs<T>) -> u64 {
    runs.iter().map(|(count, _)| u64::from(*count)).sum()
}

fn each<T: Copy>(runs: &Runs<T>) -> impl Iterator<Item = T> + '_ {
    runs.iter().flat_map(|(count, value)| std::iter::repeat_n(*value, *count as usize))
}

/// Facts by kind: each kind once.
#[derive(Default)]
struct Kinds {
    all: Vec<NodeFacts>,
    /// By what they are as JSON.
    known: HashMap<Vec<u8>, u32>,
    last: Option<(Arc<NodeFacts>, u32)>,
}

impl Kinds {
    fn of(&mut self, facts: &Arc<NodeFacts>) -> u32 {
        if let Some((last, kind)) = &self.last
            && (Arc::ptr_eq(last, facts) || last == facts)
        {
            return *kind;
        }
        let mut bare = NodeFacts::clone(facts);
        bare.known.facts.clear();
        bare.unable = None;
        let all = &mut self.all;
        let kind = *self.known.entry(serde_json::to_vec(&bare).unwrap_or_default()).or_insert_with(|| {
            all.push(bare);
            u32::try_from(all.len() - 1).unwrap_or(u32::MAX)
        });
        self.last = Some((Arc::clone(facts), kind));
        kind
    }
}

impl WireRoster {
    pub(crate) fn new(roster: &Roster) -> Self {
        let mut kinds = Kinds::default();
        let (mut kind, mut seen, mut leaf) = (Vec::new(), Vec::new(), Vec::new());
        let (mut other_addresses, mut own, mut absent_because) = (Vec::new(), Vec::new(), Vec::new());
        let mut addresses = String::with_capacity(DIGITS * roster.nodes.len());
        for (node, entry) in (0..).zip(&roster.nodes) {
            let joined = entry.joined.as_ref();
            push(&mut kind, joined.map(|joined| kinds.of(&joined.facts)));
            let address = joined.and_then(|joined| joined.address);
            addresses.push_str(&digits(address));
            other_addresses
                .extend(address.filter(|address| !is_told(*address)).map(|address| (node, address)));
            push(&mut seen, joined.map(|joined| joined.seen_address).filter(|seen| address != Some(*seen)));
            if let Some(facts) = joined.map(|joined| &joined.facts)
                && (facts.unable.is_some() || !facts.known.facts.is_empty())
            {
                own.push((node, facts.known.facts.clone(), facts.unable.clone()));
            }
            absent_because.extend(entry.absent_because.clone().map(|because| (node, because)));
        }
        roster.leaves.of.iter().for_each(|one| push(&mut leaf, *one));
        Self {
            leader: roster.leader,
            kinds: kinds.all,
            kind,
            addresses,
            other_addresses,
            seen,
            own,
            absent_because,
            leaf_kind: roster.leaves.kind,
            leaf_names: roster.leaves.names.clone(),
            leaf,
        }
    }

    /// The roster, if it is of this job's nodes and its sender leads. What it holds is bounded by the number of nodes before any
    /// run is written out.
    pub(crate) fn open(self, names: &[Arc<str>], sender: NodeId) -> Result<Roster, Unreadable> {
        let nodes = names.len() as u64;
        if length(&self.kind) != nodes || self.leader != sender {
            return Err(Unreadable(format!(
                "a roster of {} nodes led by node {}, sent by node {sender} of {nodes}",
                length(&self.kind),
                self.leader,
            )));
        }
        let (addresses, rest) = self.addresses.as_bytes().as_chunks::<DIGITS>();
        let fits = addresses.len() as u64 == nodes && rest.is_empty() && length(&self.seen) == nodes;
        if !fits || length(&self.leaf) > nodes {
            return Err(Unreadable(format!("a roster whose columns are not of {nodes} nodes")));
        }
        self.check_sizes(nodes)?;
        let kinds: Vec<Arc<NodeFacts>> = self.kinds.into_iter().map(Arc::new).collect();
        let columns = names.iter().zip(each(&self.kind)).zip(addresses).zip(each(&self.seen));
        // Room for all at once: a vector that grows copies thousands of entries again and again.
        let mut nodes = Vec::with_capacity(names.len());
        for (((name, kind), digits), seen) in columns {
            let address = address(digits)?;
            let joined = match kind {
                None => None,
                Some(kind) => {
                    let facts = kinds.get(kind as usize).cloned().ok_or_else(|| no_kind(kind))?;
                    // Where it was seen is where it believes to be; if that stands beside the column it is set below.
                    let seen_address = seen.or(address).unwrap_or(Ipv4Addr::UNSPECIFIED.into());
                    Some(Joined { facts, address, seen_address })
                }
            };
            nodes.push(RosterEntry { name: Arc::clone(name), joined, absent_because: None });
        }
        let mut of = Vec::with_capacity(if self.leaf.is_empty() { 0 } else { names.len() });
        self.leaf.iter().for_each(|(count, leaf)| of.extend(std::iter::repeat_n(*leaf, *count as usize)));
        let leaves = Leaves { kind: self.leaf_kind, names: self.leaf_names, of };
        let mut roster = Roster { nodes, leader: sender, leaves };
        let seen: Vec<Option<IpAddr>> =
            if self.other_addresses.is_empty() { Vec::new() } else { each(&self.seen).collect() };
        for (node, address) in self.other_addresses {
            let joined = joined(&mut roster, node)?;
            joined.address = Some(address);
            joined.seen_address = seen.get(node as usize).copied().flatten().unwrap_or(address);
        }
        for (node, facts, unable) in self.own {
            let own = Arc::make_mut(&mut joined(&mut roster, node)?.facts);
            own.known.facts = facts;
            own.unable = unable;
        }
        for (node, because) in self.absent_because {
            let entry = roster.nodes.get_mut(node as usize).ok_or_else(|| no_node(node))?;
            entry.absent_because = Some(because);
        }
        Ok(roster)
    }

    /// Whether what many nodes may get a copy of is small, and no list is longer than there are nodes.
    fn check_sizes(&self, nodes: u64) -> Result<(), Unreadable> {
        let odd = |what: &str| Err(Unreadable(format!("a roster with {what}")));
        let lists = [self.kinds.len(), self.own.len(), self.absent_because.len()];
        if lists.into_iter().any(|length| length as u64 > nodes) || self.leaf_names.len() > MAX_NODES {
            return odd("more entries than there are nodes");
        }
        for kind in &self.kinds {
            check_facts(kind).map_err(|why| Unreadable(format!("a roster whose kind is none: {why}")))?;
            if !kind.known.facts.is_empty() || kind.unable.is_some() {
                return odd("a kind of what single nodes know");
            }
        }
        let known = self.own.iter().flat_map(|(_, facts, _)| facts).map(|fact| &fact.words);
        let unable = self.own.iter().filter_map(|(.., unable)| unable.as_ref());
        if known.chain(unable).chain(&self.leaf_names).any(|text| text.len() > MAX_FACT) {
            return odd("a text that is too long");
        }
        Ok(())
    }
}

fn no_node(node: NodeId) -> Unreadable {
    Unreadable(format!("a roster that speaks of node {node}, which did not join"))
}

fn no_kind(kind: u32) -> Unreadable {
    Unreadable(format!("a roster without kind {kind}"))
}

fn joined(roster: &mut Roster, node: NodeId) -> Result<&mut Joined, Unreadable> {
    let entry = roster.nodes.get_mut(node as usize);
    entry.and_then(|entry| entry.joined.as_mut()).ok_or_else(|| no_node(node))
}

/// Whether the column of addresses can say it.
fn is_told(address: IpAddr) -> bool {
    matches!(address, IpAddr::V4(address) if !address.is_unspecified())
}

fn digits(address: Option<IpAddr>) -> String {
    match address {
        Some(IpAddr::V4(address)) => format!("{:08x}", address.to_bits()),
        _ => "0".repeat(DIGITS),
    }
}

fn address(digits: &[u8; DIGITS]) -> Result<Option<IpAddr>, Unreadable> {
    let mut bits = 0;
    for byte in digits {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            _ => return Err(Unreadable("a roster with an address that is none".to_owned())),
        };
        bits = bits << 4 | u32::from(digit);
    }
    Ok((bits != 0).then(|| Ipv4Addr::from_bits(bits).into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Message, decode, encode};
    use diag::facts::{Engine, GpuName};
    use diag::gpu_facts::{Compared, FactKind, Known};
    use diag::measurement::Subject;

    fn fact() -> Fact {
        let subject = Subject::Gpu { node: 0, index: 3 };
        Fact { subject, kind: FactKind::Cause, words: "a GPU 3: SM clock locked".into() }
    }

    fn facts(version: &str, address: Option<IpAddr>) -> NodeFacts {
        NodeFacts {
            version: version.into(),
            request_digest: "d".into(),
            engine: Engine::Host,
            address,
            rank_ports: vec![1, 2],
            gpus: vec![GpuName { index: 3, model: "G".into() }],
            libraries: "NCCL 2".into(),
            known: Known {
                facts: vec![fact()],
                compared: Compared { driver: Some("580".into()), ..Compared::default() },
            },
            unable: Some("no".into()),
        }
    }

    fn roster() -> Roster {
        let ip = |last| IpAddr::from([10, 0, 0, last]);
        let joined = |version, address, seen| Some(Joined::new(facts(version, address), seen));
        let plain = Joined::new(
            NodeFacts { known: Known::default(), unable: None, ..facts("1", Some(ip(6))) },
            ip(6),
        );
        let entry =
            |name: &str, joined, absent_because| RosterEntry { name: name.into(), joined, absent_because };
        let six = "fd00::6".parse().unwrap();
        Roster {
            nodes: vec![
                entry("a", joined("1", None, ip(1)), None),
                entry("b", None, Some("late".into())),
                entry("c", joined("2", Some(six), six), Some("version".into())),
                entry("d", joined("1", Some(six), ip(1)), None),
                entry("e", joined("1", Some(Ipv4Addr::UNSPECIFIED.into()), ip(5)), None),
                entry("f", Some(plain), None),
            ],
            leader: 0,
            leaves: Leaves {
                names: vec!["s1".into(), "s2".into()],
                of: vec![Some(0), None, Some(1), Some(0)],
                ..Leaves::default()
            },
        }
    }

    fn names() -> Vec<Arc<str>> {
        ["a", "b", "c", "d", "e", "f"].map(Into::into).into()
    }

    #[test]
    fn a_roster_arrives_as_it_was() {
        let wire = WireRoster::new(&roster());
        assert_eq!(wire.kinds.len(), 3);
        let sent = encode(&Message::Roster(Box::new(wire)), b"x").unwrap();
        let (Message::Roster(wire), payload) = decode(sent).unwrap() else { panic!("not a roster") };
        assert_eq!(&payload[..], b"x");
        assert_eq!(wire.open(&names(), 0).unwrap(), roster());
    }

    #[test]
    fn columns_that_do_not_fit_are_refused() {
        let wire = WireRoster::new(&roster());
        assert!(wire.clone().open(&names()[1..], 0).is_err() && wire.clone().open(&names(), 1).is_err());
        let changes: [fn(&mut WireRoster); 15] = [
            |wire| wire.kinds.extend(vec![wire.kinds[0].clone(); 6]),
            |wire| wire.kinds[0].version = "v".repeat(MAX_FACT + 1),
            |wire| wire.kinds[0].known.facts.push(fact()),
            |wire| wire.own[0].2 = Some("u".repeat(MAX_FACT + 1)),
            |wire| drop(wire.kinds.pop()),
            |wire| wire.kind.push((u32::MAX, Some(0))),
            |wire| wire.seen.push((u32::MAX, None)),
            |wire| wire.seen.truncate(1),
            |wire| wire.leaf.push((u32::MAX, None)),
            |wire| wire.addresses.push('0'),
            |wire| wire.addresses.push_str("00000000"),
            |wire| wire.addresses.replace_range(1..2, "g"),
            |wire| wire.own.push((1, Vec::new(), None)),
            |wire| wire.other_addresses.push((1, IpAddr::from([0; 16]))),
            |wire| wire.absent_because.push((6, String::new())),
        ];
        for (at, change) in changes.into_iter().enumerate() {
            let mut odd = wire.clone();
            change(&mut odd);
            assert!(odd.open(&names(), 0).is_err(), "{at}");
        }
    }

    #[test]
    fn an_entry_of_a_node_like_others_takes_a_few_bytes() {
        let nodes = |count: u8| {
            let entry = |node: u8| RosterEntry {
                name: "n".into(),
                joined: Some(Joined::new(
                    NodeFacts {
                        known: Known::default(),
                        unable: None,
                        ..facts("1", Some([10, 0, node, 9].into()))
                    },
                    [10, 0, node, 9].into(),
                )),
                absent_because: None,
            };
            let nodes = (0..count).map(entry).collect();
            let roster = Roster { nodes, leader: 0, leaves: Leaves::default() };
            serde_json::to_vec(&WireRoster::new(&roster)).unwrap().len()
        };
        assert!(nodes(200) - nodes(100) <= 100 * (DIGITS + 1));
    }
}
