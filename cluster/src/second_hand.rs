//! The roster of a leader that is gone, as those pass it on who follow it: a leader that dies while it hands out its
//! roster must not leave one half of the nodes with it and the other without.

use diag::facts::{NodeId, Roster};

use crate::handshake::Identity;
use crate::mesh::Mesh;
use crate::roster::WireRoster;
use crate::wire::MAX_FROM_PEER;

/// So many nodes pass the roster on, the first that joined: in a job of thousands the deputy must not get it from all.
const WITNESSES: usize = 8;

/// What a node that follows a leader says of it to the deputy; `None`: others do, or it is too long for one message.
pub(crate) fn pass_on(roster: &Roster, me: NodeId) -> Option<Box<WireRoster>> {
    let joined = (0..).zip(&roster.nodes).filter(|(node, entry)| *node > 1 && entry.joined.is_some());
    let witness = joined.take(WITNESSES).any(|(node, _): (NodeId, _)| node == me);
    let wire = witness.then(|| Box::new(WireRoster::new(roster)))?;
    let bytes = serde_json::to_vec(&wire).ok()?.len();
    (bytes < MAX_FROM_PEER / 2).then_some(wire)
}

/// A roster at second hand.
#[derive(Default)]
pub(crate) struct Offered(Option<Roster>);

impl Offered {
    /// Keeps a roster that has a place for this node.
    pub(crate) fn hear(&mut self, id: &Identity, leader: NodeId, roster: Option<Box<WireRoster>>) {
        if leader > 1 || leader == id.me {
            return;
        }
        let roster = roster.and_then(|wire| wire.open(&id.nodes, leader).ok());
        let joined =
            |roster: &Roster| roster.nodes.get(id.me as usize).is_some_and(|entry| entry.joined.is_some());
        if let Some(roster) = roster.filter(joined) {
            self.0 = Some(roster);
        }
    }

    /// The roster, once its leader was here and can't send it any more.
    pub(crate) fn take(&mut self, mesh: &Mesh) -> Option<Roster> {
        let gone = |roster: &Roster| !mesh.alive(roster.leader) && mesh.data_key(roster.leader).is_some();
        if self.0.as_ref().is_some_and(gone) { self.0.take() } else { None }
    }
}
