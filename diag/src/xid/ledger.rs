//! Counts events so that none is lost and none counted twice, and says which rows of the table they reach.
//!
//! An event of the kernel's log is known by boot, sequence number, part and number (field case I03): two at the same
//! moment are two, and the same record read again is one. NVML tells of Xids too, without a sequence number and
//! sometimes one for several: what it says counts only where the log says nothing of that GPU (I10). Nothing before
//! the start of the job counts (I05).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

use super::{Family, Generation, MOST_COUNT, Rule, Severity, XidTable};
use crate::health::{Action, Class, Condition, MOST_WORDS_BYTES, Part, short};

/// Most different numbers that are kept of a job on one node; a part in trouble says a dozen.
const MOST_KINDS: usize = 256;

/// Most events of NVML that wait for the log.
const MOST_WAITING: usize = 64;

/// How far apart log and NVML may tell of one event: both come from the same interrupt, and each is asked once a second.
const SAME_MS: u64 = 5000;

/// Where an event stands in the kernel's log.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Place {
    /// The kernel's number of this start of the machine.
    pub boot: String,
    /// The record's number.
    pub seq: u64,
}

/// One event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Its place in the log; `None`: NVML told it.
    pub place: Option<Place>,
    /// When, in ms of the same clock as the other times.
    pub at_ms: u64,
    /// PCI address of GPU or switch, as sysfs writes it.
    pub pci: String,
    /// Which list.
    pub family: Family,
    /// The number.
    pub code: u32,
    /// How bad the driver says it is.
    pub severity: Option<Severity>,
    /// The driver's words.
    pub words: String,
}

/// A part that the job uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watched {
    /// PCI address as sysfs writes it.
    pub pci: String,
    /// What it is called.
    pub part: Part,
    /// For GPUs.
    pub generation: Option<Generation>,
}

/// What is counted together.
type Kind = (String, Family, u32, Option<Severity>);

#[derive(Debug, Clone, Default)]
struct Tally {
    /// Times and places of the newest, oldest first: as many as a row can ask for.
    recent: VecDeque<(u64, Option<Place>)>,
    /// Known places: those in `recent`.
    places: BTreeSet<Place>,
    /// The highest place that is no longer kept: what is not above it was counted.
    forgotten: Option<Place>,
    first_ms: u64,
    all: u64,
    words: String,
}

/// What was counted since the job's start.
#[derive(Debug, Clone)]
pub struct Ledger {
    since_ms: u64,
    tallies: BTreeMap<Kind, Tally>,
    /// When the log last spoke of a part.
    spoken: BTreeMap<String, VecDeque<u64>>,
    waiting: VecDeque<Event>,
    /// Events for which there was no room.
    unkept: u64,
}

/// Moments of a part that are kept to compare NVML's with: a storm needs no more.
const MOST_SPOKEN: usize = 32;

impl Ledger {
    /// Counts from the job's start on.
    #[must_use]
    pub fn new(since_ms: u64) -> Self {
        Self {
            since_ms,
            tallies: BTreeMap::new(),
            spoken: BTreeMap::new(),
            waiting: VecDeque::new(),
            unkept: 0,
        }
    }

    /// How many events there was no room for.
    #[must_use]
    pub fn unkept(&self) -> u64 {
        self.unkept
    }

    /// Takes an event of a part that the job uses; others are the caller's to leave out.
    pub fn add(&mut self, event: Event) {
        if event.at_ms < self.since_ms {
            return;
        }
        if event.place.is_some() {
            self.count(event);
        } else if self.waiting.len() < MOST_WAITING {
            self.waiting.push_back(event);
        } else {
            self.unkept += 1;
        }
    }

    fn count(&mut self, event: Event) {
        let kind = (event.pci.clone(), event.family, event.code, event.severity);
        if !self.tallies.contains_key(&kind) && self.tallies.len() == MOST_KINDS {
            self.unkept += 1;
            return;
        }
        let tally = self.tallies.entry(kind).or_default();
        if let Some(place) = &event.place {
            if tally.forgotten.as_ref().is_some_and(|last| place <= last)
                || !tally.places.insert(place.clone())
            {
                return;
            }
            let spoken = self.spoken.entry(event.pci).or_default();
            spoken.push_back(event.at_ms);
            if spoken.len() > MOST_SPOKEN {
                spoken.pop_front();
            }
        }
        if tally.all == 0 {
            tally.first_ms = event.at_ms;
        }
        tally.all += 1;
        tally.words = short(&event.words, MOST_WORDS_BYTES / 2);
        tally.recent.push_back((event.at_ms, event.place));
        if tally.recent.len() > MOST_COUNT as usize
            && let Some((_, Some(oldest))) = tally.recent.pop_front()
        {
            tally.places.remove(&oldest);
            tally.forgotten = tally.forgotten.take().max(Some(oldest));
        }
    }

    /// What NVML told and the log did not, once the log has had its time.
    fn settle(&mut self, now_ms: u64) {
        for event in std::mem::take(&mut self.waiting) {
            let in_log = self
                .spoken
                .get(&event.pci)
                .is_some_and(|moments| moments.iter().any(|at| at.abs_diff(event.at_ms) <= SAME_MS));
            if in_log {
                continue;
            }
            if now_ms.saturating_sub(event.at_ms) > SAME_MS {
                self.count(event);
            } else {
                self.waiting.push_back(event);
            }
        }
    }

    /// What the events come to now.
    pub fn conditions(&mut self, table: &XidTable, parts: &[Watched], now_ms: u64) -> Vec<Condition> {
        self.settle(now_ms);
        let each = |(kind, tally): (&Kind, &Tally)| {
            let part = parts.iter().find(|part| part.pci == kind.0)?;
            let rule = table.rule(kind.1, kind.2, part.generation, kind.3);
            condition(kind, tally, rule, part, now_ms)
        };
        self.tallies.iter().filter_map(each).collect()
    }
}

fn condition(kind: &Kind, tally: &Tally, rule: Rule, part: &Watched, now_ms: u64) -> Option<Condition> {
    let (_, family, code, severity) = kind;
    if rule.action == Action::Ignore {
        return None;
    }
    let reached =
        if rule.window_s == 0 { tally.all >= u64::from(rule.count) } else { within(&tally.recent, rule) };
    // I01: whatever a row says, a program's own fault takes no node out of service.
    let most = if rule.class == Class::Application { Action::Report } else { rule.action };
    let action = if reached { most } else { Action::Report };
    let limit = match (rule.action, rule.count, rule.window_s) {
        (Action::Drain, 2.., 0) => format!(" (limit {})", rule.count),
        (Action::Drain, 2.., window_s) => format!(" (limit {} in {window_s} s)", rule.count),
        _ => String::new(),
    };
    let times = if tally.all == 1 { "once".to_owned() } else { format!("{} times", tally.all) };
    let said = if tally.words.is_empty() { String::new() } else { format!(": {}", tally.words) };
    let severity = match severity {
        Some(Severity::Fatal) => " fatal",
        Some(Severity::Nonfatal) => " nonfatal",
        None => "",
    };
    Some(Condition {
        part: part.part.clone(),
        what: format!("{family} {code}{severity}"),
        class: rule.class,
        action,
        words: format!("{}: {family} {code}{severity} {times}{limit}{said}", part.part),
        // The driver has said it: there is nothing to confirm, and nothing that takes it back.
        confirm_ms: 0,
        recovery_ms: None,
        since_ms: Some(tally.first_ms.min(now_ms)),
    })
}

/// Whether that many fell into one window, at any time since the job's start.
fn within(recent: &VecDeque<(u64, Option<Place>)>, rule: Rule) -> bool {
    let count = rule.count as usize;
    let window_ms = u64::from(rule.window_s) * 1000;
    let times: Vec<u64> = recent.iter().map(|(at, _)| *at).collect();
    times.windows(count).any(|run| match (run.first(), run.last()) {
        (Some(first), Some(last)) => last.abs_diff(*first) <= window_ms,
        _ => false,
    })
}

#[cfg(test)]
mod tests;
