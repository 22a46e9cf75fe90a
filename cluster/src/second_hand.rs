//! The roster of a leader that is gone, as those pass it on who follow it: a leader that dies while it hands out its
//! roster must not leave one half of the nodes with it and the other without.

use diag::facts::{NodeId, Roster};

use crate::handshake::Identity;
use crate::mesh::Mesh;
use crate::message::WireRoster;

/// Most nodes of a roster that is passed on: some hundred bytes each, far below what a peer may send.
const MOST_NODES: usize = 4096;

/// What a node that follows a leader says of it to others.
pub(crate) fn pass_on(roster: &Roster) -> Option<WireRoster> {
    (roster.nodes.len() <= MOST_NODES).then(|| WireRoster::new(roster))
}

/// A roster at second hand.
#[derive(Default)]
pub(crate) struct Offered(Option<Roster>);

impl Offered {
    /// Keeps a roster that has a place for this node.
    pub(crate) fn hear(&mut self, id: &Identity, leader: NodeId, roster: Option<WireRoster>) {
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

    /// Whether there is one whose leader can't send it any more.
    pub(crate) fn ready(&self, mesh: &Mesh) -> bool {
        self.0.as_ref().is_some_and(|roster| !mesh.alive(roster.leader))
    }

    /// That roster.
    pub(crate) fn take(&mut self, mesh: &Mesh) -> Option<Roster> {
        if self.ready(mesh) { self.0.take() } else { None }
    }
}
