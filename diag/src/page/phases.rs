//! When which check ran, from the prolog's start to the verdict.

use jiff::Timestamp;
use serde::Serialize;

use super::{Tone, name, seconds, share};
use crate::check::Phase;
use crate::report::{Item, Report};
use crate::verdict::Status;

/// Most checks: thirteen, and room for those of later versions.
const MOST_LANES: usize = 24;

/// The time line.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Phases {
    /// Its length in seconds.
    pub total: String,
    /// One a check.
    pub lanes: Vec<Lane>,
}

/// A check.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Lane {
    /// Its phase.
    pub phase: String,
    /// The check.
    pub check: String,
    /// Where it begins.
    pub from: f64,
    /// Where it ends.
    pub to: f64,
    /// From when to when, in seconds after the start.
    pub words: String,
    /// How long it took, in seconds.
    pub took: String,
    /// How it stands.
    pub tone: Tone,
    /// The same in a word.
    pub status: String,
}

/// Nothing where no item has its times.
pub(super) fn phases(report: &Report) -> Option<Phases> {
    let mut lanes: Vec<(Phase, &str, Timestamp, Timestamp, Status)> = Vec::new();
    let timed = |item: &Item| Some((item.started_at?, item.finished_at?));
    for (item, (from, to)) in report.items.iter().filter_map(|item| Some((item, timed(item)?))) {
        let known = lanes.iter().position(|lane| (lane.0, lane.1) == (item.phase, item.check.as_str()));
        if let Some(lane) = known.map(|place| &mut lanes[place]) {
            (lane.2, lane.3) = (lane.2.min(from), lane.3.max(to));
            lane.4 = lane.4.max(item.status);
        } else if lanes.len() < MOST_LANES {
            lanes.push((item.phase, &item.check, from, to, item.status));
        }
    }
    let total = report.seconds();
    if lanes.is_empty() || total <= 0.0 {
        return None;
    }
    let after = |at: Timestamp| at.duration_since(report.started_at).as_secs_f64().clamp(0.0, total);
    let lane = |(phase, check, from, to, status): (Phase, &str, Timestamp, Timestamp, Status)| {
        let (from_s, to_s) = (after(from), after(to).max(after(from)));
        Lane {
            phase: phase.to_string(),
            check: if check.is_empty() { "the nodes meet".to_owned() } else { name(check) },
            from: share(from_s, total),
            to: share(to_s, total),
            words: format!("{} s to {} s", seconds(from_s), seconds(to_s)),
            took: format!("{} s", seconds(to_s - from_s)),
            tone: Tone::of(status),
            status: status.to_string(),
        }
    };
    Some(Phases { total: format!("{} s", seconds(total)), lanes: lanes.into_iter().map(lane).collect() })
}
