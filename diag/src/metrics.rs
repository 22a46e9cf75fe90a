//! What a report adds to the numbers that a node counts for Prometheus: which families there are, with their names, words and
//! labels, and the sums so far. Nothing of a job, a node or a user is a label: however many jobs run, a node has as many series.
//!
//! Counters go on from what the file of the last time says, so they read back what was written. How a family is written down is
//! in `cluster::metrics`.

use std::collections::BTreeMap;

use crate::c4d::finding::State;
use crate::check::CheckName;
use crate::health::{self, Action, Turn};
use crate::report::Report;
use crate::runtime_report::RuntimeReport;
use crate::verdict::{Outcome, Status};

/// Begins every name.
pub const PREFIX: &str = "aimaster_";

/// Most bytes of a file that is read back: each series of every family is some 100 bytes.
pub const MOST_BYTES: u64 = 256 << 10;

/// Most series that are read back.
const MOST_SERIES: usize = 1000;

/// Kinds of families.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It only grows; its name ends in `_total`.
    Counter,
    /// It is what the last report said.
    Gauge,
}

/// A family of series.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Family {
    /// Its whole name.
    pub name: &'static str,
    /// What it is, in a sentence without its full stop.
    pub help: &'static str,
    /// Its kind.
    pub kind: Kind,
    /// Names of its labels.
    pub labels: &'static [&'static str],
}

macro_rules! families {
    ($(#[$doc:meta])* $name:ident: $($family:literal $kind:ident [$($label:literal)*] $help:literal;)*) => {
        $(#[$doc])*
        pub const $name: &[Family] = &[$(Family {
            name: $family,
            help: $help,
            kind: Kind::$kind,
            labels: &[$($label),*],
        }),*];
    };
}

families! {
    /// Of the checks before a job's start, by the node that led them.
    BEFORE:
    "aimaster_checks_total" Counter ["outcome"] "Checks before a job's start that this node led";
    "aimaster_check_duration_seconds_total" Counter [] "Time that these checks took, from the prolog's start to the verdict";
    "aimaster_checked_nodes_total" Counter [] "Nodes of the jobs that were checked";
    "aimaster_findings_total" Counter ["check" "status"] "Findings of these checks that are neither a pass nor a skip";
    "aimaster_drained_nodes_total" Counter [] "Nodes that were drained for what these checks found";
    "aimaster_held_back_nodes_total" Counter [] "Nodes that were not drained because all jobs together may take no more out of service";
    "aimaster_jobs_total" Counter ["action"] "Checked jobs by what became of them";
    "aimaster_notices_total" Counter [] "Things that could not be done, and notices to users";
    "aimaster_last_check_timestamp_seconds" Gauge [] "When the last check that this node led ended";
    "aimaster_last_check_duration_seconds" Gauge [] "Time that it took";
    "aimaster_last_check_outcome" Gauge ["outcome"] "1 for the outcome of the last check that this node led, 0 for the others";
    "aimaster_last_check_limit_ratio" Gauge ["check"] "Worst number of a check against its limit in the last check: below 1 it misses";
}

families! {
    /// Of the checks while a job runs, by the node whose agent says so.
    RUNTIME:
    "aimaster_runtime_checks_total" Counter ["outcome"] "Jobs that this node's agent spoke for while they ran";
    "aimaster_runtime_findings_total" Counter ["class" "state"] "Findings about these jobs, those that held to the end and those that were withdrawn";
    "aimaster_runtime_hardware_faults_total" Counter ["class" "action"] "Faults that this node's own hardware showed while a job ran";
    "aimaster_runtime_blind_total" Counter [] "Things of this node that could not be watched while a job ran";
    "aimaster_runtime_last_outcome" Gauge ["outcome"] "1 for what this node's agent said last of a job, 0 for the others";
    "aimaster_runtime_last_timestamp_seconds" Gauge [] "When this node's agent ended last";
}

/// A series: the name of its family, and the values of its labels.
type Series = (&'static str, Vec<String>);

/// The values of some series.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Tally(BTreeMap<Series, f64>);

impl Tally {
    /// What a report says.
    #[must_use]
    pub fn before(report: &Report) -> Self {
        let mut tally = Self::default();
        for outcome in OUTCOMES {
            let is = f64::from(u8::from(outcome == report.outcome));
            // A counter that is there from the beginning shows its first step.
            tally.add("aimaster_checks_total", &[&word(outcome)], is);
            tally.add("aimaster_last_check_outcome", &[&word(outcome)], is);
        }
        for action in ["start", "end", "requeue"] {
            tally.add("aimaster_jobs_total", &[action], f64::from(u8::from(action == report.action)));
        }
        for item in report.items.iter().filter(|item| item.status > Status::Skip) {
            let status = item.status.to_string().to_lowercase();
            tally.add("aimaster_findings_total", &[check(&item.check), &status], 1.0);
        }
        let count = |list: &Vec<String>| list.len() as f64;
        tally.add("aimaster_check_duration_seconds_total", &[], report.seconds());
        tally.add("aimaster_checked_nodes_total", &[], count(&report.nodes));
        tally.add("aimaster_drained_nodes_total", &[], count(&report.drained));
        tally.add("aimaster_held_back_nodes_total", &[], count(&report.held_back));
        tally.add("aimaster_notices_total", &[], count(&report.errors));
        let ended_s = report.finished_at.as_millisecond() as f64 / 1000.0;
        tally.add("aimaster_last_check_timestamp_seconds", &[], ended_s);
        tally.add("aimaster_last_check_duration_seconds", &[], report.seconds());
        for (check, ratio) in ratios(report) {
            tally.add("aimaster_last_check_limit_ratio", &[check], ratio);
        }
        tally
    }

    /// What an agent's report says.
    #[must_use]
    pub fn runtime(report: &RuntimeReport) -> Self {
        let mut tally = Self::default();
        for outcome in OUTCOMES {
            let is = f64::from(u8::from(outcome == report.outcome()));
            tally.add("aimaster_runtime_last_outcome", &[&word(outcome)], is);
            // The others' words are in the report of the one that spoke.
            if report.spoke {
                tally.add("aimaster_runtime_checks_total", &[&word(outcome)], is);
            }
        }
        if report.spoke {
            for finding in report.findings.iter().chain(&report.withdrawn) {
                let state = if finding.state == State::Confirmed { "confirmed" } else { "withdrawn" };
                tally.add("aimaster_runtime_findings_total", &[finding.class.text(), state], 1.0);
            }
        }
        for event in report.hardware.iter().filter(|event| event.turn == Turn::Began) {
            let labels = [hardware_class(event.class), hardware_action(event.action)];
            tally.add("aimaster_runtime_hardware_faults_total", &labels, 1.0);
        }
        tally.add("aimaster_runtime_blind_total", &[], report.blind.len() as f64);
        if let Some(end) = &report.finished {
            tally.add(
                "aimaster_runtime_last_timestamp_seconds",
                &[],
                end.at.as_millisecond() as f64 / 1000.0,
            );
        }
        tally
    }

    fn add(&mut self, name: &'static str, labels: &[&str], value: f64) {
        let labels = labels.iter().map(|&label| label.to_owned()).collect();
        *self.0.entry((name, labels)).or_default() += value;
    }

    /// The same on top of what was counted before: counters go on, gauges are new.
    #[must_use]
    pub fn on(mut self, before: &Self, families: &[Family]) -> Self {
        let counters =
            || families.iter().filter(|family| family.kind == Kind::Counter).map(|family| family.name);
        for ((name, labels), value) in &before.0 {
            if counters().any(|one| one == *name) {
                *self.0.entry((name, labels.clone())).or_default() += value;
            }
        }
        self
    }

    /// What a file says of these families. Lines that are none of theirs, and numbers that no counter has, are passed by: a
    /// counter that begins again is no error.
    #[must_use]
    pub fn read(text: &str, families: &[Family]) -> Self {
        let series = text.lines().filter_map(|line| read_line(line, families));
        Self(series.take(MOST_SERIES).collect())
    }

    /// The series of a family, by the values of their labels.
    pub fn series(&self, family: &Family) -> impl Iterator<Item = (&[String], f64)> {
        let mine = self.0.iter().filter(|((name, _), _)| *name == family.name);
        mine.map(|((_, labels), value)| (labels.as_slice(), *value))
    }
}

const OUTCOMES: [Outcome; 6] =
    [Outcome::Pass, Outcome::Skip, Outcome::Error, Outcome::Suspect, Outcome::Environment, Outcome::Fail];

fn word(outcome: Outcome) -> String {
    outcome.to_string().to_lowercase()
}

/// A check's name. A report of another version, or of a user's, may have others: they are one series.
fn check(text: &str) -> &'static str {
    match CheckName::parse(text) {
        Some(check) => check.spec().text,
        None if text.is_empty() => "meeting",
        None => "other",
    }
}

fn hardware_class(class: health::Class) -> &'static str {
    match class {
        health::Class::Application => "application",
        health::Class::Gpu => "gpu",
        health::Class::Memory => "memory",
        health::Class::Nvlink => "nvlink",
        health::Class::Pcie => "pcie",
        health::Class::Driver => "driver",
        health::Class::Power => "power",
        health::Class::Heat => "heat",
        health::Class::Network => "network",
        health::Class::Unknown => "unknown",
    }
}

fn hardware_action(action: Action) -> &'static str {
    match action {
        Action::Ignore => "ignore",
        Action::Report => "report",
        Action::Drain => "drain",
    }
}

/// Of each check the worst number against its limit: above 1 it is within it, whichever way is better.
fn ratios(report: &Report) -> BTreeMap<&'static str, f64> {
    let mut worst: BTreeMap<&'static str, f64> = BTreeMap::new();
    for item in &report.items {
        let rates = item
            .rates
            .iter()
            .map(|rate| (Some(rate.metric), Some(rate.value), rate.limit.as_ref().map(|limit| limit.value)));
        for (metric, value, limit) in rates.chain([(item.metric, item.value, item.limit)]) {
            let (Some(metric), Some(value), Some(limit)) = (metric, value, limit) else { continue };
            let ratio = if metric.higher_is_better() { value / limit } else { limit / value };
            if ratio.is_finite() && ratio >= 0.0 {
                let entry = worst.entry(check(&item.check)).or_insert(ratio);
                *entry = entry.min(ratio);
            }
        }
    }
    worst
}

/// A line of a file: `name{label="value"} number`. Values of our labels have none of the signs that would be escaped.
fn read_line(line: &str, families: &[Family]) -> Option<(Series, f64)> {
    let (head, value) = line.rsplit_once(' ')?;
    let (name, rest) = head.split_once('{').unwrap_or((head, "}"));
    let family = families.iter().find(|family| family.name == name)?;
    let mut labels = Vec::new();
    let pairs = rest.strip_suffix('}')?;
    for pair in pairs.split(',').filter(|pair| !pair.is_empty()) {
        let (label, value) = pair.split_once('=')?;
        let value = value.strip_prefix('"')?.strip_suffix('"')?;
        let plain =
            value.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
        (plain && Some(&label) == family.labels.get(labels.len())).then_some(())?;
        labels.push(value.to_owned());
    }
    let value: f64 = value.parse().ok()?;
    (labels.len() == family.labels.len() && value.is_finite() && value >= 0.0).then_some(())?;
    Some(((family.name, labels), value))
}

#[cfg(test)]
mod tests;
