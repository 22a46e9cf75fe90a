//! Diagnosis while the job runs: from what the nodes tell of their ranks once a second to findings. Pure, like the
//! rest of the crate: the digests and the time are arguments.
//!
//! The way of the data: [`digest`] -> `intake` -> [`picture::Picture`] -> `hang`, `straggler`, `slow` -> `confirm` ->
//! [`finding::Finding`] -> [`decide`]. Collectives are a clock that all ranks share, so that no two clocks are ever
//! compared: who is missing in one, and who waits least in many.

mod confirm;
pub mod decide;
pub mod digest;
mod digest_check;
mod digest_wire;
pub mod finding;
mod gaps;
mod hang;
mod intake;
mod link;
pub mod matrix;
mod meeting;
pub mod picture;
pub mod settings;
mod slow;
mod straggler;
mod suspects;
mod timing;
mod words;

use std::collections::{BTreeMap, BTreeSet};

use confirm::{Candidate, Judged};
use digest::Digest;
use finding::Finding;
use picture::Picture;
use settings::Settings;
use suspects::{Scene, of_causes, of_circle};
use timing::Window;

/// Takes the digests of one window and judges what is known then. Once a second, also when no digest came: silence is told
/// by time alone. `now_ms` is the judging node's own clock, which never goes back; `settings` hold (`Settings::check`).
/// Returns what changed: findings that are new, that name others than before, or that are withdrawn.
pub fn step(state: &mut Picture, digests: &[Digest], now_ms: u64, settings: &Settings) -> Vec<Finding> {
    for digest in digests {
        state.take(digest, now_ms, settings);
    }
    state.note_work(now_ms, settings);
    state.expire(settings);
    state.settle(now_ms, settings);
    // What stops while the job ends is no fault, and what was found before it stays found.
    if state.is_ending(now_ms, settings.silent_ms) {
        return Vec::new();
    }
    let mut changes = Vec::new();
    // Where most nodes are silent it is this node that hears nothing.
    if !state.is_deaf(now_ms, settings) {
        let candidates = hangs(state, now_ms, settings);
        changes.extend(state.follow(candidates, &Judged::Hangs, now_ms, settings));
        changes.extend(times(state, now_ms, settings));
    }
    changes.extend(state.expire_findings(now_ms, settings));
    changes
}

fn hangs(state: &mut Picture, now_ms: u64, settings: &Settings) -> Vec<Candidate> {
    let (whole, circles) = hang::causes(state, now_ms, settings);
    let scene = |knot| Scene { picture: state, knot, now_ms, silent_ms: settings.silent_ms };
    let mut candidates = of_causes(&scene(&whole));
    candidates.extend(circles.iter().filter_map(|knot| of_circle(&scene(knot))));
    let stuck = whole.ends.iter().filter(|(end, ..)| *end == hang::End::Transport);
    let stuck: BTreeSet<u64> = stuck.filter_map(|(_, _, key)| Some(state.comm(key.comm)?.id)).collect();
    for id in stuck {
        state.matrix.want(id, now_ms + settings.window_ms);
    }
    candidates
}

/// Compares times, once a window.
fn times(state: &mut Picture, now_ms: u64, settings: &Settings) -> Vec<Finding> {
    let since_ms = *state.window_since_ms.get_or_insert(now_ms);
    if since_ms != now_ms && now_ms.saturating_sub(since_ms) < settings.window_ms {
        return Vec::new();
    }
    let windows = state.end_windows(now_ms, settings);
    let slow = slow::slow_comms(state, &windows, settings);
    let mut candidates = slow::candidates(state, &slow, now_ms, settings);
    let slow: BTreeSet<usize> = slow.iter().map(|one| one.comm).collect();
    candidates.extend(straggler::candidates(state, &windows, &slow, now_ms, settings));
    let judged = windows.keys().filter_map(|at| Some(state.comm(*at)?.id)).collect();
    let changes = state.follow(candidates, &Judged::Times(judged), now_ms, settings);
    state.window_since_ms = Some(now_ms);
    state.keep_delays(now_ms, settings);
    state.matrix.new_window(now_ms);
    for rank in state.ranks.iter_mut().flatten() {
        (rank.received, rank.p2p_us) = (0, 0);
    }
    changes
}

impl Picture {
    /// Compares the operations of which all times have come.
    fn settle(&mut self, now_ms: u64, settings: &Settings) {
        for comm in self.comms.iter_mut().flatten() {
            comm.timing.settle(comm.by_rank.len(), now_ms, settings);
        }
    }

    /// What the window showed of each communicator that had enough operations in it.
    fn end_windows(&mut self, now_ms: u64, settings: &Settings) -> BTreeMap<usize, Window> {
        let comms = self.comms.iter_mut().enumerate().filter_map(|(at, comm)| Some((at, comm.as_mut()?)));
        comms
            .filter_map(|(at, comm)| Some((at, comm.timing.end_window(comm.sync_ops, now_ms, settings)?)))
            .collect()
    }

    /// What the last whole windows showed of communicators.
    fn last_windows(&self, now_ms: u64, settings: &Settings) -> BTreeMap<usize, Window> {
        let last =
            |(at, comm): (usize, &picture::Comm)| Some((at, comm.timing.last(now_ms, settings)?.clone()));
        self.live_comms().filter_map(last).collect()
    }

    /// Whether more than half of the nodes that were heard, and did not say that they end, are not heard any more.
    fn is_deaf(&self, now_ms: u64, settings: &Settings) -> bool {
        let stay = self.nodes.iter().filter(|node| node.ending_ms.is_none());
        let heard: Vec<u64> = stay.filter_map(|node| node.heard_ms).collect();
        let silent = heard.iter().filter(|at| now_ms.saturating_sub(**at) >= settings.silent_ms).count();
        silent * 2 > heard.len()
    }
}
