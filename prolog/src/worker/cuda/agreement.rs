//! How the nodes of a communicator agree on it before NCCL is asked: the node of the first rank makes its name and gives
//! it to one rank of each other node, unless all of them hold the same communicator from an earlier check.

use std::collections::BTreeSet;

use diag::facts::NodeId;
use serde::{Deserialize, Serialize};

use super::super::host::Host;
use super::super::host::peer::Peer;
use super::super::timed::Until;
use crate::protocol::{Member, Tag, Unreachable};

/// Bytes of NCCL's unique id.
const ID_BYTES: usize = 128;

/// NCCL's unique id.
pub(super) type UniqueId = [u8; ID_BYTES];

/// What the first node says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Word {
    /// All hold the communicator of this name: it is used again.
    Again,
    /// A new one.
    New(Vec<u8>),
    /// The first node can't make one; it says so itself.
    None,
}

/// What a node holds: the name of its communicator of these ranks, if it has one.
#[derive(Debug, Serialize, Deserialize)]
struct Holds(Option<Vec<u8>>);

/// What is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Agreed {
    /// The communicator from an earlier check serves again.
    Again,
    /// A new one of this name.
    New(UniqueId),
}

/// Why there is no agreement.
#[derive(Debug)]
pub(super) enum Trouble {
    /// A way between workers that does not work.
    Unreachable(Unreachable),
    /// The first node could not make a name, and says so itself.
    ElsewhereBroken,
    /// This node could not.
    Own(String),
}

/// Agrees on a communicator of `members`; `held` is the name of this node's own one. `name` makes a new name.
pub(super) fn agree(
    host: &Host,
    tag: Tag,
    members: &[Member],
    held: Option<&UniqueId>,
    name: impl FnOnce() -> Result<UniqueId, String>,
    until: &Until,
) -> Result<Agreed, Trouble> {
    let Some(first) = members.first() else {
        return Err(Trouble::Own("a communicator of nobody".to_owned()));
    };
    let others = representatives(members);
    if host.node() != first.node {
        let own = others.iter().find(|member| member.node == host.node());
        let own = own.ok_or_else(|| Trouble::Own("this node is not in the communicator".to_owned()))?;
        return ask(host, tag, (*first, *own), held, until);
    }
    let mut peers = Vec::new();
    let same = match gathered(host, tag, (*first, &others), held, &mut peers, until) {
        Ok(same) => same,
        Err(trouble) => {
            // Those who are here need not wait, and none of their ways is to blame.
            for (_, peer) in &peers {
                let _ = peer.say(&Word::None, until);
            }
            return Err(trouble);
        }
    };
    let (word, agreed) = match if same { Ok(None) } else { name().map(Some) } {
        Ok(None) => (Word::Again, Ok(Agreed::Again)),
        Ok(Some(id)) => (Word::New(id.to_vec()), Ok(Agreed::New(id))),
        Err(error) => (Word::None, Err(Trouble::Own(error))),
    };
    for (other, peer) in &peers {
        peer.say(&word, until).map_err(|why| gone(*other, *first, &why))?;
    }
    agreed
}

/// The first node meets the others, who end up in `peers`: whether all of them hold what it holds.
fn gathered(
    host: &Host,
    tag: Tag,
    (first, others): (Member, &[Member]),
    held: Option<&UniqueId>,
    peers: &mut Vec<(Member, Peer)>,
    until: &Until,
) -> Result<bool, Trouble> {
    for other in others {
        let peer = Peer::meet(host, tag, (first, *other), until).map_err(Trouble::Unreachable)?;
        peers.push((*other, peer));
    }
    let mut same = held.is_some();
    for (other, peer) in peers {
        let Holds(theirs) = peer.hear(until).map_err(|why| gone(*other, first, &why))?;
        same &= theirs.as_deref() == held.map(<[u8; ID_BYTES]>::as_slice);
    }
    Ok(same)
}

fn ask(
    host: &Host,
    tag: Tag,
    (first, own): (Member, Member),
    held: Option<&UniqueId>,
    until: &Until,
) -> Result<Agreed, Trouble> {
    let mut peer = Peer::meet(host, tag, (first, own), until).map_err(Trouble::Unreachable)?;
    peer.say(&Holds(held.map(|id| id.to_vec())), until).map_err(|why| gone(own, first, &why))?;
    match peer.hear(until).map_err(|why| gone(own, first, &why))? {
        Word::Again => Ok(Agreed::Again),
        Word::New(id) => id
            .try_into()
            .map(Agreed::New)
            .map_err(|id: Vec<u8>| Trouble::Own(format!("a name of {} bytes for a communicator", id.len()))),
        Word::None => Err(Trouble::ElsewhereBroken),
    }
}

/// The first rank of each node but the first one.
fn representatives(members: &[Member]) -> Vec<Member> {
    let mut seen: BTreeSet<NodeId> = members.first().map(|member| member.node).into_iter().collect();
    members.iter().filter(|member| seen.insert(member.node)).copied().collect()
}

fn gone(from: Member, to: Member, why: &str) -> Trouble {
    Trouble::Unreachable(Unreachable {
        from: from.node,
        to: to.node,
        address: to.address,
        port: to.port,
        why: format!("{why} while a communicator was agreed on"),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::super::host::testing::{Node, TAG};
    use super::super::super::timed::Cancel;
    use super::*;

    fn until() -> Until {
        Until::after(Duration::from_secs(5), &Cancel::default())
    }

    /// What each of three nodes with two ranks agrees on.
    fn agreed(held: [Option<UniqueId>; 3]) -> Vec<Result<Agreed, Trouble>> {
        let nodes: Vec<Node> = (0..3).map(|node| Node::new(node, 2)).collect();
        let members: Vec<Member> = nodes.iter().flat_map(|node| node.members.clone()).collect();
        std::thread::scope(|scope| {
            let threads: Vec<_> = nodes
                .iter()
                .zip(held)
                .map(|(node, held)| {
                    let members = &members;
                    scope.spawn(move || {
                        agree(&node.host, TAG, members, held.as_ref(), || Ok([7; ID_BYTES]), &until())
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn all_get_the_name_that_the_first_node_makes() {
        for one in agreed([None; 3]) {
            assert_eq!(one.unwrap(), Agreed::New([7; ID_BYTES]));
        }
    }

    #[test]
    fn a_communicator_serves_again_only_if_all_hold_the_same() {
        let (old, other) = (Some([1; ID_BYTES]), Some([2; ID_BYTES]));
        assert!(agreed([old; 3]).into_iter().all(|one| one.unwrap() == Agreed::Again));
        for held in [[old, old, other], [old, None, old], [None, old, old]] {
            assert!(agreed(held).into_iter().all(|one| one.unwrap() == Agreed::New([7; ID_BYTES])));
        }
    }

    #[test]
    fn a_first_node_that_can_t_make_a_name_says_so_and_the_other_blames_nobody() {
        let nodes: Vec<Node> = (0..2).map(|node| Node::new(node, 1)).collect();
        let members: Vec<Member> = nodes.iter().flat_map(|node| node.members.clone()).collect();
        std::thread::scope(|scope| {
            let other =
                scope.spawn(|| agree(&nodes[1].host, TAG, &members, None, || Ok([7; ID_BYTES]), &until()));
            let first = agree(&nodes[0].host, TAG, &members, None, || Err("no NCCL".to_owned()), &until());
            assert!(matches!(first, Err(Trouble::Own(why)) if why == "no NCCL"));
            assert!(matches!(other.join().unwrap(), Err(Trouble::ElsewhereBroken)));
        });
    }

    #[test]
    fn a_first_node_that_is_not_there_is_a_way_that_does_not_work() {
        let node = Node::new(1, 1);
        let mut members = node.members.clone();
        members.insert(0, Member { node: 0, port: 1, ..members[0] });
        let found = agree(&node.host, TAG, &members, None, || Ok([7; ID_BYTES]), &until());
        assert!(matches!(found, Err(Trouble::Unreachable(way)) if way.port == 1 && way.to == 0));
    }
}
