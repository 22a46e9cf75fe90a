//! What a node remembers of its own results, and which of a job's numbers are its own. Whether they decline is in
//! `history/decline.rs`; the file that holds them, and everything that reads or writes it, is the node's matter.

mod decline;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::baseline::median;
use crate::check::CheckName;
use crate::facts::{Engine, NodeId, Roster};
use crate::gpu_facts::{Fact, FactKind};
use crate::measurement::{Measurement, Metric, Subject};
use crate::round::{Mode, NodeOutcome, RoundResult};

pub use decline::{Decline, LEAST, RECENT, decline};

/// Most entries of a series: the first ones, which say what the part did when it was new here, and the last ones.
pub const MOST_ENTRIES: usize = FIRST + 40;

/// Entries that are kept however old they are. Without them a part that loses a percent a month would be held against
/// last week's self, and never be found. Twice what a decline is judged by, so that few odd ones do not matter.
pub const FIRST: usize = 24;

/// What a series is about. Numbers are compared with others of the same key only: those of the same part, taken in the
/// same way.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    /// What measured.
    pub engine: Engine,
    /// The check.
    pub check: CheckName,
    /// The quantity.
    pub metric: Metric,
    /// Size of the messages, where several are told apart.
    pub bytes: Option<u64>,
    /// The part: a GPU by its UUID, `gpu3` where that is not known, `rail0`, or `node`.
    pub part: String,
    /// How it was taken.
    pub like: Like,
}

/// What else makes numbers alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Like {
    /// Whether the job was the only one on the node; `None`: that is not known.
    pub alone: Option<bool>,
    /// The job's ranks on the node: its GPUs, on the host engine its processes.
    pub ranks: u32,
    /// Nodes of the job, rounded up to a power of two, where the number is about the way to others, which they share;
    /// else 1.
    pub nodes: u32,
    /// Whether NVLink multicast may be used.
    pub nvls: bool,
}

/// What somebody may have changed between two jobs, and a number may depend on. Empty where nothing is known.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Setting {
    /// This software.
    pub version: String,
    /// Libraries, such as `NCCL 2.27.3`.
    pub libraries: String,
    /// The GPU driver.
    pub driver: String,
    /// Clocks that applications are set to run at and the limit of power, of a GPU.
    pub clocks: String,
}

impl Setting {
    /// What is different in `later`, in words; what is not known of one of them differs from nothing.
    #[must_use]
    pub fn changes(&self, later: &Self) -> Vec<String> {
        self.differing(later).map(|(name, a, b)| format!("{name} {a} -> {b}")).collect()
    }

    /// Whether nothing that is known differs.
    #[must_use]
    pub fn is_like(&self, other: &Self) -> bool {
        self.differing(other).next().is_none()
    }

    fn differing<'s>(&'s self, later: &'s Self) -> impl Iterator<Item = (&'static str, &'s str, &'s str)> {
        let pairs = [
            ("driver", self.driver.as_str(), later.driver.as_str()),
            ("libraries", &self.libraries, &later.libraries),
            ("clocks", &self.clocks, &later.clocks),
            ("aimaster", &self.version, &later.version),
        ];
        pairs.into_iter().filter(|(_, a, b)| !a.is_empty() && !b.is_empty() && a != b)
    }
}

/// One number of one job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// When it was measured.
    pub at: Timestamp,
    /// The job.
    pub job_id: u32,
    /// Its value in the metric's unit; the median where the job measured it several times.
    pub value: f64,
    /// The other node, of a number about the way to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub with: Option<String>,
    /// What it was measured with.
    pub setting: Setting,
}

/// Whether it is remembered: rates, and the median of launches. The tail of launches and the times of the network
/// scatter more than any part declines, and a wrong result is no matter of time.
#[must_use]
pub fn is_kept(metric: Metric) -> bool {
    metric.is_rate() || metric == Metric::Launch
}

/// Whether a cause was seen of a network port: it holds for all that a node measured in that round, whichever of the
/// numbers tells of it.
#[must_use]
pub fn is_disturbed(numbers: &[Measurement]) -> bool {
    let of_port = |fact: &Fact| fact.kind == FactKind::Cause && matches!(fact.subject, Subject::Nic { .. });
    numbers.iter().flat_map(|one| &one.facts).any(of_port)
}

/// Adds a job's number to a series, which stays in the order of time and within [`MOST_ENTRIES`]. Once [`LEAST`] jobs
/// ran with another driver, library or setting, what was measured before it says nothing more and goes.
pub fn add(series: &mut Vec<Entry>, entry: Entry) {
    // The clock may have been set back.
    let place = series.partition_point(|earlier| earlier.at <= entry.at);
    series.insert(place, entry);
    if let Some(last) = series.last().map(|last| last.setting.clone()) {
        let same = series.iter().rev().take_while(|one| one.setting.is_like(&last)).count();
        if same >= LEAST {
            series.drain(..series.len() - same);
        }
    }
    while series.len() > MOST_ENTRIES {
        series.remove(FIRST);
    }
}

/// This node, as far as its numbers depend on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Here {
    /// Its place in the job.
    pub me: NodeId,
    /// What measures.
    pub engine: Engine,
    /// UUIDs of its GPUs by their numbers.
    pub uuids: BTreeMap<u32, String>,
    /// See [`Like::alone`].
    pub alone: Option<bool>,
    /// See [`Like::ranks`].
    pub ranks: u32,
    /// See [`Like::nvls`].
    pub nvls: bool,
    /// What it measures with.
    pub setting: Setting,
    /// The settings of its GPUs' clocks, by their numbers.
    pub clocks: BTreeMap<u32, String>,
    /// Parts that something was known of before anything was measured that explains slow results.
    pub caused: BTreeSet<Subject>,
}

impl Here {
    /// What a measurement of this node is remembered under, with the other node if it is about the way to one; `None`
    /// for what is not its own, not kept, or explained by a cause that says nothing about the part.
    #[must_use]
    pub fn key(&self, roster: &Roster, one: &Measurement) -> Option<(Key, Option<String>)> {
        let caused = one.facts.iter().any(|fact| fact.kind == FactKind::Cause);
        let before = match one.subject {
            Subject::Gpu { .. } => self.caused.contains(&one.subject),
            // As slow as the slowest of its parts.
            _ => !self.caused.is_empty(),
        };
        if caused || before || !is_kept(one.metric) || !one.value.is_finite() || one.value <= 0.0 {
            return None;
        }
        let other = |a: NodeId, b: NodeId| match self.me {
            me if me == a => Some(b),
            me if me == b => Some(a),
            _ => None,
        };
        let (part, with) = match one.subject {
            Subject::Node { node } if node == self.me => ("node".to_owned(), None),
            Subject::Gpu { node, index } if node == self.me => {
                (self.uuids.get(&index).cloned().unwrap_or_else(|| format!("gpu{index}")), None)
            }
            Subject::Rail { node, index } if node == self.me => (format!("rail{index}"), None),
            Subject::Pair { a, b } => ("node".to_owned(), Some(other(a, b)?)),
            Subject::PairRail { a, b, rail } => (format!("rail{rail}"), Some(other(a, b)?)),
            _ => return None,
        };
        let size = u32::try_from(roster.nodes.len()).unwrap_or(u32::MAX);
        let nodes = if with.is_some() { size.checked_next_power_of_two().unwrap_or(u32::MAX) } else { 1 };
        let like = Like { alone: self.alone, ranks: self.ranks, nodes, nvls: self.nvls };
        let key =
            Key { engine: self.engine, check: one.check, metric: one.metric, bytes: one.bytes, part, like };
        Some((key, with.map(|node| roster.name(node).to_owned())))
    }

    /// What it was measured with: of a GPU also how its clocks are set.
    #[must_use]
    pub fn setting_of(&self, subject: &Subject) -> Setting {
        let clocks = match subject {
            Subject::Gpu { index, .. } => self.clocks.get(index).cloned().unwrap_or_default(),
            // One that is held down holds up the others.
            _ => {
                let all: BTreeSet<&str> = self.clocks.values().map(String::as_str).collect();
                all.into_iter().collect::<Vec<_>>().join("; ")
            }
        };
        Setting { clocks, ..self.setting.clone() }
    }

    /// What this node keeps of a job: one entry a series. A number that was taken in several windows is their median; of
    /// several partners the last one is named.
    #[must_use]
    pub fn entries(&self, roster: &Roster, results: &[RoundResult], job_id: u32) -> Vec<(Key, Entry)> {
        let mut values: BTreeMap<Key, (Vec<f64>, Entry)> = BTreeMap::new();
        for result in results.iter().filter(|result| result.round.mode == Mode::Full) {
            let numbers = result.outcomes.get(&self.me).map_or(&[][..], NodeOutcome::numbers);
            if is_disturbed(numbers) {
                continue;
            }
            for one in numbers {
                let Some((key, with)) = self.key(roster, one) else { continue };
                let setting = self.setting_of(&one.subject);
                let entry = Entry { at: one.finished_at, job_id, value: one.value, with, setting };
                let kept = values.entry(key).or_insert_with(|| (Vec::new(), entry.clone()));
                kept.0.push(one.value);
                kept.1 = entry;
            }
        }
        let entry = |(key, (values, entry)): (Key, (Vec<f64>, Entry))| {
            Some((key, Entry { value: median(&values)?, ..entry }))
        };
        values.into_iter().filter_map(entry).collect()
    }
}

#[cfg(test)]
mod tests;
