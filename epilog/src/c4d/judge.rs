//! What the rules make of what all nodes of a job tell: the same on every node that judges. Who speaks of it is not its
//! matter.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use diag::c4d::finding::Finding;
use diag::c4d::matrix::Delay;
use diag::c4d::picture::{Coverage, Picture};
use diag::c4d::settings::Settings;
use diag::c4d::step;
use diag::facts::NodeId;
use diag::health::{HealthEvent, Part, Turn};

use crate::c4d::link::Telling;

/// A job as one node judges it.
#[derive(Debug)]
pub struct Judge {
    picture: Picture,
    settings: Settings,
    began: Instant,
    hardware: BTreeMap<NodeId, BTreeMap<(Part, String), HealthEvent>>,
}

impl Judge {
    /// Of a job on these nodes; it counts time from `now` on.
    #[must_use]
    pub fn new(nodes: &[String], settings: Settings, now: Instant) -> Self {
        Self { picture: Picture::new(nodes.to_vec()), settings, began: now, hardware: BTreeMap::new() }
    }

    /// Takes what nodes told since the last time, and judges. Once a second, also when nothing came. Returns what is new,
    /// names others than before, or no longer holds.
    pub fn judge(&mut self, tellings: &[Telling], now: Instant) -> Vec<Finding> {
        for telling in tellings {
            let node = telling.digest.node;
            // A telling holds all that there is to tell of its node.
            let each = telling.health.iter().map(|one| ((one.part.clone(), one.what.clone()), one.clone()));
            self.hardware.insert(node, each.collect());
        }
        let digests: Vec<_> = tellings.iter().map(|telling| telling.digest.clone()).collect();
        let now_ms = self.ms(now);
        step(&mut self.picture, &digests, now_ms, &self.settings)
    }

    /// Whether the job is being ended.
    #[must_use]
    pub fn is_ending(&self, now: Instant) -> bool {
        self.picture.is_ending(self.ms(now), self.settings.silent_ms)
    }

    /// The findings that hold.
    pub fn standing(&self) -> impl Iterator<Item = &Finding> {
        self.picture.standing()
    }

    /// What holds of the hardware of the job's nodes.
    #[must_use]
    pub fn hardware(&self) -> Vec<(NodeId, HealthEvent)> {
        let holds = self.events().filter(|(_, event)| event.turn != Turn::Ended);
        holds.map(|(node, event)| (node, event.clone())).collect()
    }

    /// Everything that is told of the hardware of the job's nodes, also what is over.
    pub fn events(&self) -> impl Iterator<Item = (NodeId, &HealthEvent)> {
        self.hardware.iter().flat_map(|(node, events)| events.values().map(|event| (*node, event)))
    }

    /// How much of the job is seen.
    #[must_use]
    pub fn coverage(&self, now: Instant) -> Coverage {
        self.picture.coverage(self.ms(now), self.settings.silent_ms)
    }

    /// What the network's steps waited for, the worst first.
    #[must_use]
    pub fn delays(&self) -> &[Delay] {
        self.picture.delays()
    }

    /// Communicators of which the steps of the network would say more.
    #[must_use]
    pub fn wants_steps(&self) -> BTreeSet<u64> {
        self.picture.wants_steps()
    }

    fn ms(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.began).as_millis()).unwrap_or(u64::MAX)
    }
}
