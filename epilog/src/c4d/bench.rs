//! A node that judges: what it makes of the tellings, whether it speaks, and what of it is to be told. It keeps the
//! judging node's two halves together, [`super::judge`] and [`super::voice`]; what is done with news is not its matter.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use diag::c4d::finding::{Finding, State};
use diag::c4d::settings::Settings;
use diag::facts::NodeId;
use diag::health::{HealthEvent, Turn};

use crate::c4d::judge::Judge;
use crate::c4d::link::{Saying, Telling};
use crate::c4d::voice::{Heard, Role, Voice, event_id, finding_id};

/// Between two looks no more than this passes, or this node was frozen and has yet to hear the others again.
const FROZEN: Duration = Duration::from_secs(3);

/// What is to be told now.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct News {
    /// Findings that are new, name others than before, or were told and hold no more.
    pub findings: Vec<Finding>,
    /// The same of the hardware of nodes.
    pub hardware: Vec<(NodeId, HealthEvent)>,
}

/// A judging node.
#[derive(Debug)]
pub struct Bench {
    judge: Judge,
    voice: Voice,
    judged: bool,
    /// Since when it listens without a break, and when it looked last.
    listens: Instant,
    looked: Instant,
    silent: Duration,
}

impl Bench {
    /// In that place, of a job on these nodes of which so many met.
    #[must_use]
    pub fn new(nodes: &[String], role: Role, joined: usize, settings: Settings, now: Instant) -> Self {
        Self {
            judge: Judge::new(nodes, settings, now),
            voice: Voice::new(role, joined),
            judged: role == Role::Alone,
            listens: now,
            looked: now,
            silent: Duration::from_millis(settings.silent_ms),
        }
    }

    /// Judges what was told since the last time, once a second. `other_told` is what the other judging node says that it
    /// has told, where it is heard.
    pub fn sit(
        &mut self,
        tellings: &[Telling],
        heard: Heard,
        other_told: Option<&BTreeSet<u64>>,
        now: Instant,
    ) -> News {
        let changes = self.judge.judge(tellings, now);
        if now.saturating_duration_since(self.looked) > FROZEN {
            self.listens = now;
        }
        self.looked = now;
        let settled = now.saturating_duration_since(self.listens) >= self.silent;
        // Whoever is silent while the job ends has ended with it.
        if !self.judge.is_ending(now) {
            self.judged = self.voice.decide(heard, settled);
        }
        if let Some(told) = other_told {
            self.voice.hear(told);
        }
        let holds: BTreeMap<u64, &Finding> =
            self.judge.standing().map(|one| (finding_id(one), one)).collect();
        let over = changes.iter().filter(|change| matches!(change.state, State::Withdrawn { .. }));
        let over: BTreeMap<u64, &Finding> = over.map(|one| (finding_id(one), one)).collect();
        let (mut hold, mut end) = (BTreeMap::new(), BTreeMap::new());
        for (node, event) in self.judge.events() {
            let ids = [false, true].map(|worse| event_id(node, event, worse));
            match event.turn {
                Turn::Began => drop(hold.insert(ids[0], (node, event))),
                Turn::Worse => drop(hold.insert(ids[1], (node, event))),
                Turn::Ended => end.extend(ids.map(|id| (id, (node, event)))),
            }
        }
        let ids = |one: &BTreeMap<u64, &Finding>, other: &BTreeMap<u64, (NodeId, &HealthEvent)>| {
            one.keys().chain(other.keys()).copied().collect::<BTreeSet<u64>>()
        };
        let told = self.voice.turn(&ids(&holds, &hold), &ids(&over, &end));
        let mut news = News::default();
        for (tell, findings, events) in [(&told.ended, &over, &end), (&told.begun, &holds, &hold)] {
            let findings = findings.iter().filter(|(id, _)| tell.contains(id));
            news.findings.extend(findings.map(|(_, finding)| (*finding).clone()));
            let events = events.iter().filter(|(id, _)| tell.contains(id));
            for (node, event) in events.map(|(_, (node, event))| (*node, (*event).clone())) {
                // What began and got worse ends once.
                if !news.hardware.contains(&(node, event.clone())) {
                    news.hardware.push((node, event));
                }
            }
        }
        news
    }

    /// Whether the job is judged, here or by the other judging node.
    #[must_use]
    pub fn is_judged(&self) -> bool {
        self.judged
    }

    /// Whether this node speaks.
    #[must_use]
    pub fn speaks(&self) -> bool {
        self.voice.speaks()
    }

    /// What it makes of the job, whether or not it speaks.
    #[must_use]
    pub fn judge(&self) -> &Judge {
        &self.judge
    }

    /// The findings that hold, where this node is the one that speaks of them.
    pub fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.judge.standing().filter(|_| self.speaks())
    }

    /// What holds of the hardware of the job's nodes, where this node is the one that speaks of it.
    #[must_use]
    pub fn hardware(&self) -> Vec<(NodeId, HealthEvent)> {
        if self.speaks() { self.judge.hardware() } else { Vec::new() }
    }

    /// What all nodes should know.
    #[must_use]
    pub fn saying(&self) -> Saying {
        Saying {
            wants_steps: self.judge.wants_steps(),
            trouble: self.judge.standing().next().is_some(),
            judged: self.judged,
            told: self.voice.told().clone(),
        }
    }
}

#[cfg(test)]
mod tests;
