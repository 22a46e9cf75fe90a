//! Rules for network devices: a port that the job uses goes down, flaps, or counts errors and packets that were sent
//! again faster than a healthy one. Pure: the caller brings readings and the time.
//!
//! In use is what the site names, else what was up when the job started (field cases J01, J03): a port that was down
//! then is nobody's loss. What no limit is published for is told and drains nobody; the limits are our own.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::reading::NicReading;
use super::{Action, Class, Condition, Part, grown};

/// A link that is down this long is no retraining, which takes two or three seconds.
const DOWN_CONFIRM_MS: u64 = 5000;

/// After this long up a link that was down is well again.
const UP_AGAIN_MS: u64 = 60_000;

/// In this window going down counts as flapping, and after as long a rest it is over (J07: not for days).
const FLAP_WINDOW_MS: u64 = 600_000;

/// That often in the window is a bad cable or port; once or twice is a switch that was restarted.
const FLAPS: u64 = 3;

/// Rates are taken over this long.
const RATE_WINDOW_MS: u64 = 60_000;

/// A rate must be high for longer than its window: then no single burst makes it, and two windows agree.
const RATE_CONFIRM_MS: u64 = RATE_WINDOW_MS + 15_000;

/// After this long below its limit a rate is well again.
const RATE_RECOVERY_MS: u64 = 300_000;

/// Readings closer than this are not kept: the flap window holds at most this many of them.
const KEEP_EVERY_MS: u64 = 5000;

/// Most ports that are looked at: twice what a node of eight GPUs has.
pub const MOST_PORTS: usize = 64;

/// What moves at least when a job uses a port; less is the fabric's own housekeeping.
const USED_BYTES: u64 = 1 << 20;

/// What a counter means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The link corrupts what it carries.
    Error,
    /// Packets were lost on the way and sent again.
    Resent,
}

/// A counter of a port.
#[derive(Debug, Clone, Copy)]
pub struct Counter {
    /// Where it lies below the port's folder in sysfs.
    pub file: &'static str,
    /// What it means.
    pub kind: Kind,
    /// More than this many a minute is not healthy.
    pub most_per_minute: u64,
}

/// The counters that are watched. Packets out of order are not among them: adaptive routing makes them, and so does no
/// receiver that is not ready, which is the program's matter. Link errors on a healthy port are a few a day.
pub const COUNTERS: &[Counter] = &[
    Counter { file: "counters/symbol_error", kind: Kind::Error, most_per_minute: 120 },
    Counter { file: "counters/link_error_recovery", kind: Kind::Error, most_per_minute: 2 },
    Counter { file: "counters/local_link_integrity_errors", kind: Kind::Error, most_per_minute: 2 },
    Counter { file: "counters/port_rcv_errors", kind: Kind::Error, most_per_minute: 60 },
    Counter { file: "hw_counters/rx_icrc_encapsulated", kind: Kind::Error, most_per_minute: 60 },
    Counter { file: "hw_counters/local_ack_timeout_err", kind: Kind::Resent, most_per_minute: 60 },
    Counter { file: "hw_counters/packet_seq_err", kind: Kind::Resent, most_per_minute: 600 },
    Counter { file: "hw_counters/implied_nak_seq_err", kind: Kind::Resent, most_per_minute: 600 },
];

type Port = (String, u32);

/// The ports of a node since a job's start.
#[derive(Debug, Clone)]
pub struct Ports {
    named: BTreeSet<String>,
    start: BTreeMap<Port, NicReading>,
    /// Readings of the flap window, oldest first.
    kept: VecDeque<(u64, BTreeMap<Port, NicReading>)>,
}

impl Ports {
    /// The ports as they are when the job starts. `named`: devices that the site says are in use; empty: what is up.
    #[must_use]
    pub fn new(now_ms: u64, named: BTreeSet<String>, readings: Vec<NicReading>) -> Self {
        let start = by_port(readings);
        Self { named, kept: VecDeque::from([(now_ms, start.clone())]), start }
    }

    /// Whether the job uses the device with this PCI function, and its name.
    #[must_use]
    pub fn used(&self, pci: &str) -> Option<&str> {
        let of = |one: &&NicReading| one.pci.as_deref() == Some(pci) && self.in_use(one);
        self.start.values().find(of).map(|one| one.device.as_str())
    }

    fn in_use(&self, at_start: &NicReading) -> bool {
        if self.named.is_empty() { is_up(at_start) } else { self.named.contains(&at_start.device) }
    }

    /// What holds now.
    pub fn step(&mut self, now_ms: u64, readings: Vec<NicReading>) -> Vec<Condition> {
        let now = by_port(readings);
        let mut found = Vec::new();
        for (port, start) in self.start.iter().filter(|(_, start)| self.in_use(start)) {
            let part = Part::Nic { device: port.0.clone(), port: port.1 };
            let Some(seen) = now.get(port) else {
                let words =
                    format!("{part} is gone from the node: its driver has given it up; see the kernel's log");
                found.push(down(part, words, Action::Drain));
                continue;
            };
            if !is_up(seen) {
                found.push(self.not_active(part.clone(), start, seen));
            }
            found.extend(self.flapping(&part, port, now_ms, seen));
            for kind in [Kind::Error, Kind::Resent] {
                found.extend(self.rates(&part, port, now_ms, seen, kind));
            }
        }
        self.keep(now_ms, now);
        found
    }

    fn not_active(&self, part: Part, start: &NicReading, seen: &NicReading) -> Condition {
        let moved = seen.moved_bytes.zip(start.moved_bytes).map(|(now, then)| now.saturating_sub(then));
        // Up at the start and never used by the job: told, since another job may want it.
        let used = self.named.contains(&start.device) || moved.is_none_or(|bytes| bytes >= USED_BYTES);
        let known = |state: &Option<String>| state.clone().unwrap_or_else(|| "unknown".to_owned());
        let words = format!(
            "{part} is {} ({}), and was up when the job started; check cable and switch port",
            known(&seen.state),
            known(&seen.physical_state)
        );
        down(part, words, if used { Action::Drain } else { Action::Report })
    }

    fn flapping(&self, part: &Part, port: &Port, now_ms: u64, seen: &NicReading) -> Option<Condition> {
        let since = |one: &NicReading| {
            let ports = grown(one.downs, seen.downs);
            let carriers = grown(one.carrier_downs, seen.carrier_downs);
            ports.max(carriers)
        };
        let from = now_ms.saturating_sub(FLAP_WINDOW_MS);
        let oldest = self.kept.iter().find(|(at, _)| *at >= from)?;
        let count = since(oldest.1.get(port)?)?;
        if count == 0 {
            return None;
        }
        let minutes = FLAP_WINDOW_MS / 60_000;
        Some(Condition {
            what: "flapping".to_owned(),
            class: Class::Network,
            action: if count >= FLAPS { Action::Drain } else { Action::Report },
            words: format!(
                "{part} went down {count} times in {minutes} minutes (limit {FLAPS}); check cable and switch port"
            ),
            part: part.clone(),
            confirm_ms: 0,
            // The window itself is the time that it takes to be over.
            recovery_ms: Some(0),
            since_ms: None,
        })
    }

    fn rates(
        &self,
        part: &Part,
        port: &Port,
        now_ms: u64,
        seen: &NicReading,
        kind: Kind,
    ) -> Option<Condition> {
        let until = now_ms.checked_sub(RATE_WINDOW_MS)?;
        let (at, then) = self.kept.iter().rev().find(|(at, _)| *at <= until)?;
        let then = then.get(port)?;
        let took_ms = (now_ms - at).max(1);
        let mut high = Vec::new();
        for (counter, (before, after)) in COUNTERS.iter().zip(then.counts.iter().zip(&seen.counts)) {
            let count = grown(*before, *after).unwrap_or_default();
            let per_minute = u128::from(count) * 60_000 / u128::from(took_ms);
            if counter.kind == kind && per_minute > u128::from(counter.most_per_minute) {
                let name = counter.file.rsplit('/').next().unwrap_or(counter.file);
                high.push(format!("{name} {per_minute} a minute (limit {})", counter.most_per_minute));
            }
        }
        if high.is_empty() {
            return None;
        }
        let (what, means) = match kind {
            Kind::Error => ("errors", "the link corrupts data; check cable and switch port"),
            Kind::Resent => ("resent", "packets are lost on the way; see the fabric's counters"),
        };
        Some(Condition {
            words: format!("{part}: {}: {means}", high.join(", ")),
            part: part.clone(),
            what: what.to_owned(),
            class: Class::Network,
            action: Action::Report,
            confirm_ms: RATE_CONFIRM_MS,
            recovery_ms: Some(RATE_RECOVERY_MS),
            since_ms: None,
        })
    }

    fn keep(&mut self, now_ms: u64, now: BTreeMap<Port, NicReading>) {
        if self.kept.back().is_none_or(|(last, _)| now_ms.saturating_sub(*last) >= KEEP_EVERY_MS) {
            self.kept.push_back((now_ms, now));
        }
        let from = now_ms.saturating_sub(FLAP_WINDOW_MS);
        while self.kept.len() > 1 && self.kept.front().is_some_and(|(at, _)| *at < from) {
            self.kept.pop_front();
        }
    }
}

/// A device that the kernel's log calls failed.
#[must_use]
pub fn failed(device: &str, words: &str) -> Condition {
    Condition {
        part: Part::Nic { device: device.to_owned(), port: 1 },
        what: "failed".to_owned(),
        class: Class::Network,
        action: Action::Drain,
        words: format!("{device} has failed: {words}; reset it, or restart the node"),
        confirm_ms: 0,
        recovery_ms: None,
        since_ms: None,
    }
}

fn by_port(readings: Vec<NicReading>) -> BTreeMap<Port, NicReading> {
    readings.into_iter().take(MOST_PORTS).map(|one| ((one.device.clone(), one.port), one)).collect()
}

fn is_up(port: &NicReading) -> bool {
    port.state.as_deref() == Some("ACTIVE")
}

fn down(part: Part, words: String, action: Action) -> Condition {
    Condition {
        part,
        what: "down".to_owned(),
        class: Class::Network,
        action,
        words,
        confirm_ms: DOWN_CONFIRM_MS,
        recovery_ms: Some(UP_AGAIN_MS),
        since_ms: None,
    }
}

#[cfg(test)]
mod tests;
