//! What is known of the parts of a node at this moment, and what of it is news: a condition is told when it has held
//! long enough, told again when it weighs more, and taken back when it has been gone long enough (field cases I07, J07).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Action, Class, Condition, MOST_WORDS_BYTES, Part, short};

/// Most conditions that are kept of one node: ten for each of its GPUs and ports.
pub const MOST_OPEN: usize = 256;

/// Most events of one look. What is left over is told at the next one; a node in trouble has a handful.
pub const MOST_EVENTS: usize = 16;

/// Whether a fault comes or goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Turn {
    /// It holds.
    Began,
    /// It was told, and now weighs more.
    Worse,
    /// It was told, and is over.
    Ended,
}

/// News of a part. It travels in a digest: at most [`MOST_EVENTS`] a look, each at most some 600 bytes as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HealthEvent {
    /// The part.
    pub part: Part,
    /// Which fault of it; with the part it names the fault for as long as the job runs.
    pub what: String,
    /// Whose matter it is.
    pub class: Class,
    /// What follows by the table and the rules; the policy's caps still hold.
    pub action: Action,
    /// Whether it comes or goes.
    pub turn: Turn,
    /// One line for a person.
    pub words: String,
    /// How long ago it began, in ms: a duration, since clocks of nodes differ.
    pub age_ms: u64,
}

/// Longest name of a part or a fault in an event: no device's name is half as long.
const MOST_NAME_BYTES: usize = 64;

impl HealthEvent {
    /// Whether it keeps the bounds that every event of this software keeps: what comes from another node is held against
    /// them before it is believed.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let name = |text: &str| text.len() <= MOST_NAME_BYTES && !text.contains(char::is_control);
        let part = match &self.part {
            Part::Gpu { pci, .. } => pci.as_deref().is_none_or(name),
            Part::Switch { pci } => name(pci),
            Part::Nic { device, .. } => name(device),
            Part::Node => true,
        };
        let words = self.words.len() <= MOST_WORDS_BYTES && !self.words.contains(char::is_control);
        part && words && name(&self.what) && self.action > Action::Ignore
    }
}

#[derive(Debug, Clone)]
struct Entry {
    since_ms: u64,
    seen_ms: u64,
    told: Option<Action>,
    now: Condition,
}

/// What is open.
#[derive(Debug, Clone, Default)]
pub struct Board {
    open: BTreeMap<(Part, String), Entry>,
    unkept: u64,
}

impl Board {
    /// How many conditions there was no room for.
    #[must_use]
    pub fn unkept(&self) -> u64 {
        self.unkept
    }

    /// Takes all that holds now, and gives what is news. Times come from one clock that does not go back.
    pub fn step(&mut self, now_ms: u64, conditions: Vec<Condition>) -> Vec<HealthEvent> {
        for condition in conditions.into_iter().filter(|one| one.action > Action::Ignore) {
            let key = (condition.part.clone(), condition.what.clone());
            let room = self.open.len() < MOST_OPEN;
            match self.open.get_mut(&key) {
                Some(entry) => {
                    entry.seen_ms = now_ms;
                    entry.now = condition;
                }
                None if room => {
                    let since_ms = condition.since_ms.unwrap_or(now_ms).min(now_ms);
                    self.open.insert(key, Entry { since_ms, seen_ms: now_ms, told: None, now: condition });
                }
                None => self.unkept += 1,
            }
        }
        let mut events = Vec::new();
        self.open.retain(|_, entry| {
            let (turn, keep) = entry.turn(now_ms);
            let Some(turn) = turn else { return keep };
            if events.len() == MOST_EVENTS {
                return true;
            }
            if turn != Turn::Ended {
                entry.told = Some(entry.now.action);
            }
            events.push(entry.event(turn, now_ms));
            keep
        });
        events
    }
}

impl Entry {
    /// What is to be told of it, and whether it stays.
    fn turn(&self, now_ms: u64) -> (Option<Turn>, bool) {
        let gone_ms = now_ms.saturating_sub(self.seen_ms);
        match (self.told, self.seen_ms == now_ms) {
            (None, true) => {
                let held = now_ms.saturating_sub(self.since_ms) >= self.now.confirm_ms;
                (held.then_some(Turn::Began), true)
            }
            // Gone before it was told. One that nothing takes back is told at the next look.
            (None, false) => match self.now.recovery_ms {
                None if self.now.confirm_ms == 0 => (Some(Turn::Began), true),
                _ => (None, false),
            },
            (Some(told), true) => ((self.now.action > told).then_some(Turn::Worse), true),
            (Some(_), false) => match self.now.recovery_ms {
                Some(recovery_ms) if gone_ms >= recovery_ms => (Some(Turn::Ended), false),
                _ => (None, true),
            },
        }
    }

    fn event(&self, turn: Turn, now_ms: u64) -> HealthEvent {
        let Condition { part, what, class, action, words, .. } = &self.now;
        let words = match turn {
            Turn::Began | Turn::Worse => short(words, MOST_WORDS_BYTES),
            Turn::Ended => {
                let gone_s = now_ms.saturating_sub(self.seen_ms) / 1000;
                short(&format!("over, not seen for {gone_s} s; it was {words}"), MOST_WORDS_BYTES)
            }
        };
        HealthEvent {
            part: part.clone(),
            what: what.clone(),
            class: *class,
            action: *action,
            turn,
            words,
            age_ms: now_ms.saturating_sub(self.since_ms),
        }
    }
}

#[cfg(test)]
mod tests;
