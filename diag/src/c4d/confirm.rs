//! From what one window shows to a finding: it must show in two, it is said once, and it is withdrawn when it shows no more.

use std::collections::BTreeSet;

use crate::c4d::finding::{Class, Finding, State};
use crate::c4d::picture::Picture;
use crate::c4d::settings::Settings;
use crate::measurement::Subject;

/// Most findings that are followed at a time: a fault makes one or two, and more than this no person reads.
pub(super) const MAX_TRACKED: usize = 256;

/// Windows of times after which one that was not judged again is forgotten.
const MAX_WINDOWS: u64 = 13;

/// What tells one finding from another over time: kind, where, and what else.
pub(super) type Id = (Class, Subject, u64);

/// What one window shows.
#[derive(Debug, Clone)]
pub(super) struct Candidate {
    pub key: Id,
    pub finding: Finding,
}

/// A finding that is followed.
#[derive(Debug, Clone)]
pub(super) struct Tracked {
    pub finding: Finding,
    pub first_ms: u64,
    pub seen_ms: u64,
    pub confirmed: bool,
}

impl Tracked {
    /// Memory that it holds.
    pub fn bytes(&self) -> usize {
        let text: usize =
            self.finding.evidence.iter().map(|line| line.capacity() + size_of::<String>()).sum();
        size_of::<Self>()
            + text
            + self.finding.message.capacity()
            + self.finding.suspects.capacity() * size_of::<crate::c4d::finding::Who>()
    }
}

/// What was judged.
pub(super) enum Judged {
    /// Everything that could hang.
    Hangs,
    /// The times of these communicators.
    Times(BTreeSet<u64>),
}

impl Picture {
    /// Takes what a window shows; what changed.
    pub(super) fn follow(
        &mut self,
        shown: Vec<Candidate>,
        judged: &Judged,
        now_ms: u64,
        settings: &Settings,
    ) -> Vec<Finding> {
        let mut changes = Vec::new();
        let mut seen = BTreeSet::new();
        for Candidate { key, finding } in shown {
            seen.insert(key.clone());
            let known = self.tracked.len() < MAX_TRACKED || self.tracked.contains_key(&key);
            if known {
                changes.extend(self.see(key, finding, now_ms, settings));
            }
        }
        let over: Vec<Id> = self
            .tracked
            .iter()
            .filter(|(key, one)| !seen.contains(*key) && is_over(key, one, judged))
            .map(|(key, _)| key.clone())
            .collect();
        for key in over {
            let Some(one) = self.tracked.remove(&key) else { continue };
            if one.confirmed {
                let because = self.why_over(&key, &one);
                changes.push(Finding { state: State::Withdrawn { because }, ..one.finding });
            }
        }
        changes
    }

    fn see(&mut self, key: Id, finding: Finding, now_ms: u64, settings: &Settings) -> Option<Finding> {
        // A slow transport whose place became known was seen before without it.
        let without_place = (Class::CommunicationSlow, Subject::Run, 0);
        let before = if key.0 == without_place.0 { self.tracked.get(&without_place) } else { None };
        let before = before.map(|one| (one.first_ms, one.finding.since_ms));
        let Some(one) = self.tracked.get_mut(&key) else {
            let (first_ms, since_ms) = before.unwrap_or((now_ms, finding.since_ms));
            let confirmed = before.is_some();
            let finding = Finding { since_ms, found_ms: now_ms, ..finding };
            let change = confirmed.then(|| finding.clone());
            self.tracked.insert(key, Tracked { finding, first_ms, seen_ms: now_ms, confirmed });
            return change;
        };
        one.seen_ms = now_ms;
        let since_ms = one.finding.since_ms.min(finding.since_ms);
        let changed = one.finding.subject != finding.subject || !one.finding.same_ranks(&finding);
        let found_ms = if one.confirmed { one.finding.found_ms } else { now_ms };
        one.finding = Finding { since_ms, found_ms, ..finding };
        if one.confirmed {
            return changed.then(|| one.finding.clone());
        }
        let long_enough = now_ms.saturating_sub(one.first_ms) >= settings.confirm_ms;
        one.confirmed = long_enough;
        long_enough.then(|| one.finding.clone())
    }

    fn why_over(&self, key: &Id, one: &Tracked) -> String {
        let placed = |other: &Id| other.0 == Class::CommunicationSlow && other.1 != Subject::Run;
        if key.0 == Class::CommunicationSlow && key.1 == Subject::Run && self.tracked.keys().any(placed) {
            return "where it is slow is known now".to_owned();
        }
        let comm = one.finding.operation.as_ref().map(|operation| operation.comm);
        let there = comm.and_then(|id| self.comm(*self.by_id.get(&id)?));
        match (there, one.finding.class.is_hang()) {
            (Some(comm), true) if !comm.ended => "things move again".to_owned(),
            (Some(comm), false) if !comm.ended => "it was not seen in the last window".to_owned(),
            _ => "its communicator was ended".to_owned(),
        }
    }

    /// Withdraws what was not seen for too long: nothing was judged meanwhile, so nobody knows whether it holds.
    pub(super) fn expire_findings(&mut self, now_ms: u64, settings: &Settings) -> Vec<Finding> {
        let longest_ms = |class: Class| {
            let windows = if class.is_hang() { 0 } else { settings.window_ms * MAX_WINDOWS };
            settings.expire_ms.max(windows)
        };
        let old = |key: &Id, one: &Tracked| now_ms.saturating_sub(one.seen_ms) >= longest_ms(key.0);
        let over: Vec<Id> =
            self.tracked.iter().filter(|(key, one)| old(key, one)).map(|(key, _)| key.clone()).collect();
        let over = over.into_iter().filter_map(|key| self.tracked.remove(&key));
        let because = || "nothing was heard of it for too long".to_owned();
        over.filter(|one| one.confirmed)
            .map(|one| Finding { state: State::Withdrawn { because: because() }, ..one.finding })
            .collect()
    }
}

/// Whether one that was not seen is over: only what was judged can have ended.
fn is_over(key: &Id, one: &Tracked, judged: &Judged) -> bool {
    match judged {
        Judged::Hangs => key.0.is_hang(),
        Judged::Times(comms) => {
            let comm = one.finding.operation.as_ref().map_or(0, |operation| operation.comm);
            !key.0.is_hang() && comms.contains(&comm)
        }
    }
}
