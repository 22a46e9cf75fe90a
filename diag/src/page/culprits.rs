//! What is at fault or not clear, one entry a subject: what every check found of it, and what a technician does first.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{MOST_LINES, Tone, name, text};
use crate::report::Item;
use crate::verdict::Status;
use crate::wording;

/// Most subjects that are shown: a cabinet of nodes.
const MOST_CULPRITS: usize = MOST_LINES;

/// Most checks whose findings of a subject are shown.
const MOST_FINDINGS: usize = 8;

/// A subject that something is said of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Culprit {
    /// What it is: `GPU`, `node`, ...
    pub kind: String,
    /// Its name.
    pub name: String,
    /// The worst that is said of it.
    pub status: String,
    /// The tone of that.
    pub tone: Tone,
    /// What each check found.
    pub reasons: Vec<Reason>,
    /// How many are left out.
    pub more: usize,
    /// What to do first.
    pub next: Vec<String>,
}

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Reason {
    /// The check, or the phase where it was none.
    pub check: String,
    /// What happened.
    pub words: String,
    /// Where the limit comes from, and how it was measured; empty where there is none.
    pub background: String,
    /// How many more findings of this check there are, such as those of other rails.
    pub alike: usize,
}

/// The worst first; in the order of the report else. And how many subjects are left out.
pub(super) fn culprits(items: &[Item]) -> (Vec<Culprit>, usize) {
    let mut troubles: Vec<&Item> = items.iter().filter(|item| item.status > Status::Skip).collect();
    troubles.sort_by_key(|item| std::cmp::Reverse(item.status));
    let mut places: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let mut culprits: Vec<Culprit> = Vec::new();
    for item in troubles {
        let subjects = places.len();
        let place = *places.entry((&item.subject.kind, &item.subject.name)).or_insert(subjects);
        if place == culprits.len() && place < MOST_CULPRITS {
            culprits.push(Culprit {
                kind: kind(&item.subject.kind),
                name: name(&item.subject.name),
                status: item.status.to_string(),
                tone: Tone::of(item.status),
                reasons: Vec::new(),
                more: 0,
                next: Vec::new(),
            });
        }
        if let Some(culprit) = culprits.get_mut(place) {
            add(culprit, item);
        }
    }
    (culprits, places.len().saturating_sub(MOST_CULPRITS))
}

fn add(culprit: &mut Culprit, item: &Item) {
    let check = if item.check.is_empty() { item.phase.to_string() } else { name(&item.check) };
    if let Some(known) = culprit.reasons.iter_mut().find(|one| one.check == check) {
        known.alike += 1;
        return;
    }
    if culprit.reasons.len() == MOST_FINDINGS {
        culprit.more += 1;
        return;
    }
    let parts = wording::parts(&item.message);
    // The subject stands above it.
    let spelled = item.subject.name.replacen('-', " - ", 1);
    let bare = [&item.subject.name, &spelled]
        .into_iter()
        .find_map(|name| parts.what.strip_prefix(name)?.strip_prefix(": "));
    let bare = bare.unwrap_or(&parts.what);
    let words = bare.strip_prefix(&check).map_or(bare, str::trim_start);
    culprit.reasons.push(Reason { words: text(words), background: text(&parts.background), check, alike: 0 });
    let next = text(&parts.next);
    if !next.is_empty() && !culprit.next.contains(&next) {
        culprit.next.push(next);
    }
}

/// A kind of subject for a person.
fn kind(kind: &str) -> String {
    match kind {
        "gpu" => "GPU".to_owned(),
        "nic" => "network device".to_owned(),
        "pair_rail" => "rail of a pair".to_owned(),
        "fabric_rail" => "rail of the fabric".to_owned(),
        "switch" => "leaf switch".to_owned(),
        "path" => "way".to_owned(),
        "run" => "the run".to_owned(),
        other => name(other),
    }
}
