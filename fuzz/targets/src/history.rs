//! What a node remembers of its own results: a series of entries and the one at hand, as JSON, as the node's file has them.
//!
//! A file is a list of JSON texts: the key, the series, the entry of now.

use diag::history::{Entry, Key, LEAST, MOST_ENTRIES, add, decline, is_kept};

use crate::holds;

/// A series stays within its bounds and in the order of time, and what is said of it is a line.
pub fn run(data: &[u8]) {
    let mut parts = holds::parts(data);
    let mut next = || parts.next().unwrap_or_default();
    let (key, series, now) = (next(), next(), next());
    let Ok(key) = serde_json::from_slice::<Key>(key) else { return };
    assert_eq!(serde_json::from_str::<Key>(&serde_json::to_string(&key).unwrap()).unwrap(), key);
    let Ok(series) = serde_json::from_slice::<Vec<Entry>>(series) else { return };
    let Ok(now) = serde_json::from_slice::<Entry>(now) else { return };
    _ = is_kept(key.metric);
    let told = decline(key.metric, &series, &now);
    if let Some(told) = &told {
        assert!(told.jobs >= LEAST && told.recent >= 1);
        // Names and settings are the node's own.
        _ = told.words(&key.part, "check", key.metric);
    }
    let again = decline(key.metric, &series, &now);
    assert_eq!(format!("{told:?}"), format!("{again:?}"));
    let mut kept = Vec::new();
    for entry in series.into_iter().chain([now]) {
        add(&mut kept, entry);
        assert!(!kept.is_empty() && kept.len() <= MOST_ENTRIES);
        assert!(kept.is_sorted_by_key(|entry| entry.at));
    }
    let written = serde_json::to_vec(&kept).unwrap();
    assert_eq!(serde_json::from_slice::<Vec<Entry>>(&written).unwrap(), kept);
}
