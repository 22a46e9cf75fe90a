//! How the nodes of a communicator agree on it before NCCL is asked: the node of the first rank makes its name and gives
//! it to one rank of each other node, unless all of them hold the same communicator from an earlier check. Several
//! communicators are agreed on side by side, a thread each.

use std::collections::BTreeSet;
use std::thread;

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
    /// A node can't take part in one; it says so itself.
    None,
}

/// What another node brings.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Theirs {
    /// The name of its communicator of these ranks, if it has one.
    Holds(Option<Vec<u8>>),
    /// Nothing: a rank of it can't take part.
    Broken,
}

/// What this node brings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mine {
    /// The name of its communicator of these ranks, if all of its ranks have the same one.
    Holds(Option<UniqueId>),
    /// Nothing: a rank can't take part, and the others are not to wait for it.
    Broken,
}

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
    /// A node can't take part, and says so itself.
    ElsewhereBroken,
    /// This node could not.
    Own(String),
}

/// Agrees on each of several communicators at the same time; `name` makes a new name.
pub(super) fn agree_on_all(
    host: &Host,
    tag: Tag,
    communicators: &[(&[Member], Mine)],
    name: impl Fn() -> Result<UniqueId, String> + Sync,
    until: &Until,
) -> Vec<Result<Agreed, Trouble>> {
    thread::scope(|scope| {
        let one = |&(members, mine): &(&'_ [Member], Mine)| {
            let (members, name) = (members.to_vec(), &name);
            let work = move || agree(host, tag, &members, mine, name, until);
            thread::Builder::new().name("agreement".to_owned()).spawn_scoped(scope, work)
        };
        let threads: Vec<_> = communicators.iter().map(one).collect();
        let own = |why: String| Err(Trouble::Own(why));
        let ended = threads.into_iter().map(|thread| match thread.map(thread::ScopedJoinHandle::join) {
            Ok(Ok(agreed)) => agreed,
            Ok(Err(_)) => own("agreeing on a communicator hit a bug (panic)".to_owned()),
            Err(error) => own(format!("no thread to agree on a communicator: {error}")),
        });
        ended.collect()
    })
}

/// Agrees on a communicator of `members`.
fn agree(
    host: &Host,
    tag: Tag,
    members: &[Member],
    mine: Mine,
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
        return ask(host, tag, (*first, *own), mine, until);
    }
    let mut peers = Vec::new();
    let same = match gathered(host, tag, (*first, &others), mine, &mut peers, until) {
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
    mine: Mine,
    peers: &mut Vec<(Member, Peer)>,
    until: &Until,
) -> Result<bool, Trouble> {
    for other in others {
        let peer = Peer::meet(host, tag, (first, *other), until).map_err(Trouble::Unreachable)?;
        peers.push((*other, peer));
    }
    let (mut same, mut broken) = (matches!(mine, Mine::Holds(Some(_))), mine == Mine::Broken);
    for (other, peer) in peers {
        match (peer.hear(until).map_err(|why| gone(*other, first, &why))?, mine) {
            (Theirs::Broken, _) => broken = true,
            (Theirs::Holds(theirs), Mine::Holds(held)) => {
                same &= theirs.as_deref() == held.as_ref().map(<[u8; ID_BYTES]>::as_slice);
            }
            (Theirs::Holds(_), Mine::Broken) => {}
        }
    }
    if broken { Err(Trouble::ElsewhereBroken) } else { Ok(same) }
}

fn ask(
    host: &Host,
    tag: Tag,
    (first, own): (Member, Member),
    mine: Mine,
    until: &Until,
) -> Result<Agreed, Trouble> {
    let mut peer = Peer::meet(host, tag, (first, own), until).map_err(Trouble::Unreachable)?;
    let brings = match mine {
        Mine::Holds(held) => Theirs::Holds(held.map(|id| id.to_vec())),
        Mine::Broken => Theirs::Broken,
    };
    peer.say(&brings, until).map_err(|why| gone(own, first, &why))?;
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

    const NEW: Mine = Mine::Holds(None);

    fn until() -> Until {
        Until::after(Duration::from_secs(20), &Cancel::default())
    }

    /// What each of three nodes with two ranks agrees on.
    fn agreed(mine: [Mine; 3]) -> Vec<Result<Agreed, Trouble>> {
        let nodes: Vec<Node> = (0..3).map(|node| Node::new(node, 2)).collect();
        let members: Vec<Member> = nodes.iter().flat_map(|node| node.members.clone()).collect();
        thread::scope(|scope| {
            let threads: Vec<_> = nodes
                .iter()
                .zip(mine)
                .map(|(node, mine)| {
                    let members = &members;
                    scope.spawn(move || agree(&node.host, TAG, members, mine, || Ok([7; ID_BYTES]), &until()))
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn all_get_the_name_that_the_first_node_makes() {
        for one in agreed([Mine::Holds(None); 3]) {
            assert_eq!(one.unwrap(), Agreed::New([7; ID_BYTES]));
        }
    }

    #[test]
    fn a_communicator_serves_again_only_if_all_hold_the_same() {
        let (old, other) = (Mine::Holds(Some([1; ID_BYTES])), Mine::Holds(Some([2; ID_BYTES])));
        let none = Mine::Holds(None);
        assert!(agreed([old; 3]).into_iter().all(|one| one.unwrap() == Agreed::Again));
        for held in [[old, old, other], [old, none, old], [none, old, old]] {
            assert!(agreed(held).into_iter().all(|one| one.unwrap() == Agreed::New([7; ID_BYTES])));
        }
    }

    #[test]
    fn a_first_node_that_can_t_make_a_name_says_so_and_the_other_blames_nobody() {
        let nodes: Vec<Node> = (0..2).map(|node| Node::new(node, 1)).collect();
        let members: Vec<Member> = nodes.iter().flat_map(|node| node.members.clone()).collect();
        thread::scope(|scope| {
            let other =
                scope.spawn(|| agree(&nodes[1].host, TAG, &members, NEW, || Ok([7; ID_BYTES]), &until()));
            let first = agree(&nodes[0].host, TAG, &members, NEW, || Err("no NCCL".to_owned()), &until());
            assert!(matches!(first, Err(Trouble::Own(why)) if why == "no NCCL"));
            assert!(matches!(other.join().unwrap(), Err(Trouble::ElsewhereBroken)));
        });
    }

    #[test]
    fn a_node_that_can_t_take_part_keeps_nobody_waiting_and_blames_no_way() {
        for broken in 0..3 {
            let mut mine = [NEW; 3];
            mine[broken] = Mine::Broken;
            let begun = std::time::Instant::now();
            let agreed = agreed(mine);
            assert!(agreed.iter().all(|one| matches!(one, Err(Trouble::ElsewhereBroken))), "{agreed:?}");
            assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
        }
    }

    /// The communicators that rank i of each node forms, on nodes with as many ranks, for each i that all have.
    fn rails(nodes: &[Node]) -> Vec<Vec<Member>> {
        let fewest = nodes.iter().map(|node| node.members.len()).min().unwrap();
        (0..fewest).map(|rail| nodes.iter().map(|node| node.members[rail]).collect()).collect()
    }

    #[test]
    fn rails_are_agreed_on_side_by_side_and_each_gets_its_own_name() {
        let nodes = [Node::new(0, 4), Node::new(1, 3), Node::new(2, 5)];
        let rails = rails(&nodes);
        assert_eq!(rails.len(), 3);
        // Nobody has a name before all rails ask for one: one after the other they would wait for ever.
        let (all, next) = (std::sync::Barrier::new(rails.len()), std::sync::atomic::AtomicU8::new(1));
        let name = || {
            all.wait();
            Ok([next.fetch_add(1, std::sync::atomic::Ordering::SeqCst); ID_BYTES])
        };
        let name = &name;
        let agreed: Vec<Vec<Agreed>> = thread::scope(|scope| {
            let threads: Vec<_> = nodes
                .iter()
                .map(|node| {
                    let mine: Vec<(&[Member], Mine)> =
                        rails.iter().map(|rail| (rail.as_slice(), NEW)).collect();
                    scope.spawn(move || agree_on_all(&node.host, TAG, &mine, name, &until()))
                })
                .collect();
            let ended = threads.into_iter().map(|thread| thread.join().unwrap());
            ended.map(|all| all.into_iter().map(Result::unwrap).collect()).collect()
        });
        assert_eq!(agreed[0], agreed[1]);
        assert_eq!(agreed[0], agreed[2]);
        let names: BTreeSet<u8> = agreed[0]
            .iter()
            .map(|one| if let Agreed::New(id) = one { id[0] } else { panic!("{one:?}") })
            .collect();
        assert_eq!(names, BTreeSet::from([1, 2, 3]));
    }

    #[test]
    fn a_rail_that_is_broken_leaves_the_others_alone() {
        let nodes = [Node::new(0, 2), Node::new(1, 2)];
        let rails = rails(&nodes);
        let mine = |node: usize| -> Vec<(&[Member], Mine)> {
            let broken = |rail: usize| if (node, rail) == (1, 0) { Mine::Broken } else { NEW };
            rails.iter().enumerate().map(|(rail, members)| (members.as_slice(), broken(rail))).collect()
        };
        let agree =
            |node: usize| agree_on_all(&nodes[node].host, TAG, &mine(node), || Ok([7; ID_BYTES]), &until());
        let (first, second) = thread::scope(|scope| {
            let second = scope.spawn(|| agree(1));
            (agree(0), second.join().unwrap())
        });
        for agreed in [first, second] {
            assert!(matches!(agreed[0], Err(Trouble::ElsewhereBroken)), "{agreed:?}");
            assert_eq!(*agreed[1].as_ref().unwrap(), Agreed::New([7; ID_BYTES]));
        }
    }

    #[test]
    fn a_first_node_that_is_not_there_is_a_way_that_does_not_work() {
        let node = Node::new(1, 1);
        let mut members = node.members.clone();
        members.insert(0, Member { node: 0, port: 1, ..members[0] });
        let found = agree(&node.host, TAG, &members, NEW, || Ok([7; ID_BYTES]), &until());
        assert!(matches!(found, Err(Trouble::Unreachable(way)) if way.port == 1 && way.to == 0));
    }
}
