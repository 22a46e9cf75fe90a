//! Hangs: nothing moves for too long although somebody waits. Who waits inside an operation is a victim, however many
//! others wait for him: the walk goes from operation to operation until it comes to ranks that wait for nobody, or to an
//! operation to which all have come.

use std::collections::{BTreeMap, BTreeSet};

use crate::c4d::digest::ProcessState;
use crate::c4d::meeting::{At, Key, Least, Meeting, What};
use crate::c4d::picture::Picture;
use crate::c4d::settings::Settings;

/// Where a walk ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum End {
    /// A rank that waits for nobody, and did nothing for too long.
    Rank,
    /// A process that is stopped.
    Paused,
    /// A process that is gone.
    Ended,
    /// A rank whose node or telemetry fell silent.
    Silent,
    /// An operation to which all came.
    Transport,
    /// One in which those that tell have all come, and others tell nothing.
    Unknown,
    /// Something that still moves: no hang, or not yet.
    Moves,
}

/// A group of operations that hang on each other, and what they hang on.
#[derive(Debug, Clone, Default)]
pub(super) struct Knot {
    /// The operations, with who is where in them.
    pub meetings: BTreeMap<Key, Meeting>,
    /// What they hang on: kind, rank if it is one, and the operation that shows it.
    pub ends: BTreeSet<(End, Option<usize>, Key)>,
    /// How long is too long here.
    pub too_long_ms: u64,
}

impl Knot {
    /// Leaves only the ends that the others do not explain.
    fn keep_causes(&mut self) {
        let has = |ends: &BTreeSet<(End, Option<usize>, Key)>, kinds: &[End]| {
            ends.iter().any(|(end, ..)| kinds.contains(end))
        };
        // A process that is gone or stopped takes its part of the transport with it.
        if has(&self.ends, &[End::Ended, End::Paused]) {
            self.ends.retain(|(end, ..)| *end != End::Transport);
        }
        // Sends and receives that were made together leave together: those to ranks that came wait for those to one that
        // did not.
        if has(&self.ends, &[End::Rank, End::Silent, End::Unknown]) {
            let pair = |key: &Key| matches!(key.what, What::Pair { .. });
            self.ends.retain(|(end, _, key)| *end != End::Transport || !pair(key));
        }
        if has(&self.ends, &[End::Ended, End::Paused, End::Rank, End::Transport]) {
            self.ends.retain(|(end, ..)| !matches!(end, End::Silent | End::Unknown | End::Moves));
        }
        if has(&self.ends, &[End::Silent]) {
            self.ends.retain(|(end, ..)| *end == End::Silent);
        }
    }
}

/// What hangs, put together: what has a cause in one, since one fault may stop communicators that nothing else connects;
/// circles by themselves.
pub(super) fn causes(picture: &Picture, now_ms: u64, settings: &Settings) -> (Knot, Vec<Knot>) {
    let mut whole = Knot::default();
    let mut circles = Vec::new();
    for mut knot in knots(picture, now_ms, settings) {
        if knot.ends.is_empty() {
            circles.push(knot);
            continue;
        }
        knot.keep_causes();
        whole.meetings.extend(knot.meetings);
        whole.ends.extend(knot.ends);
    }
    (whole, circles)
}

/// What the walk has seen.
struct Walk<'a> {
    picture: &'a Picture,
    settings: &'a Settings,
    at: At,
    /// The knot that an operation belongs to.
    knot_of: BTreeMap<Key, usize>,
    knots: Vec<Knot>,
    /// What a rank is inside of: asked for often.
    inside: BTreeMap<usize, Vec<Key>>,
    least: Least,
}

/// Everything that hangs.
fn knots(picture: &Picture, now_ms: u64, settings: &Settings) -> Vec<Knot> {
    let mut stalled: Vec<(u64, usize)> = picture
        .live_comms()
        .filter(|(_, comm)| !comm.ended && comm.nranks > 1)
        .filter_map(|(at, comm)| {
            let too_long_ms = comm.gaps.too_long_ms(comm.ops, now_ms, settings);
            (now_ms.saturating_sub(comm.moved_ms) >= too_long_ms).then_some((too_long_ms, at))
        })
        .collect();
    stalled.sort_unstable();
    let at = At { now_ms, silent_ms: settings.silent_ms };
    let mut walk = Walk {
        picture,
        settings,
        at,
        knot_of: BTreeMap::new(),
        knots: Vec::new(),
        inside: BTreeMap::new(),
        least: Least::new(),
    };
    for (too_long_ms, comm) in stalled {
        for key in picture.open_in(comm, at) {
            walk.from(key, too_long_ms);
        }
    }
    walk.knots.retain(|knot| !knot.meetings.is_empty());
    walk.knots
}

impl Walk<'_> {
    fn from(&mut self, start: Key, too_long_ms: u64) {
        if self.knot_of.contains_key(&start) {
            return;
        }
        let mut mine = self.knots.len();
        self.knots.push(Knot { too_long_ms, ..Knot::default() });
        let mut next = vec![start];
        while let Some(key) = next.pop() {
            if let Some(other) = self.knot_of.get(&key).copied() {
                if other != mine {
                    mine = self.join(other, mine);
                }
                continue;
            }
            self.knot_of.insert(key, mine);
            let meeting = self.picture.meeting(key, self.at);
            self.follow(key, &meeting, mine, &mut next);
            if let What::Pair { .. } = key.what {
                for who in &meeting.waiting {
                    let together = self.picture.inside(*who, &mut self.least).into_iter();
                    next.extend(together.filter(|one| one.comm == key.comm && one.what != key.what));
                }
            }
            self.knots[mine].meetings.insert(key, meeting);
        }
    }

    /// Two groups that turn out to be one; the one that is left.
    fn join(&mut self, into: usize, from: usize) -> usize {
        let Knot { meetings, ends, too_long_ms } = std::mem::take(&mut self.knots[from]);
        for key in meetings.keys() {
            self.knot_of.insert(*key, into);
        }
        let knot = &mut self.knots[into];
        knot.meetings.extend(meetings);
        knot.ends.extend(ends);
        knot.too_long_ms = knot.too_long_ms.min(too_long_ms);
        into
    }

    fn follow(&mut self, key: Key, meeting: &Meeting, mine: usize, next: &mut Vec<Key>) {
        let mut ends = Vec::new();
        if meeting.waiting.is_empty() {
            return;
        }
        for who in &meeting.missing {
            match self.rank_ends(*who, self.knots[mine].too_long_ms) {
                Some(end) => ends.push((end, Some(*who), key)),
                None => next.extend(self.inside.get(who).into_iter().flatten()),
            }
        }
        ends.extend(meeting.unknown.iter().map(|who| (self.dark(*who), Some(*who), key)));
        if meeting.missing.is_empty() && meeting.unknown.is_empty() {
            if meeting.unheard > 0 {
                ends.push((End::Unknown, None, key));
            } else {
                ends.extend(self.all_have_come(key, meeting, mine));
            }
        }
        self.knots[mine].ends.extend(ends);
    }

    /// One that tells nothing: it did before, or never.
    fn dark(&self, who: usize) -> End {
        let without = self.picture.rank(who).is_none_or(|rank| rank.unavailable.is_some());
        if without { End::Unknown } else { End::Silent }
    }

    /// What a rank that has not come is; `None`: it waits elsewhere.
    fn rank_ends(&mut self, who: usize, too_long_ms: u64) -> Option<End> {
        let rank = self.picture.rank(who)?;
        if rank.state.ended() {
            return Some(End::Ended);
        }
        if rank.state == ProcessState::Stopped {
            return Some(End::Paused);
        }
        let picture = self.picture;
        let least = &mut self.least;
        let inside = self.inside.entry(who).or_insert_with(|| picture.inside(who, least));
        if !inside.is_empty() {
            return None;
        }
        let now_ms = self.at.now_ms;
        // One that works visibly has until the ceiling: a checkpoint, an evaluation of its own.
        let worked_ms = rank.worked_ms.unwrap_or(0).max(rank.moved_ms);
        let still_ms = now_ms.saturating_sub(worked_ms);
        let unmoved_ms = now_ms.saturating_sub(rank.moved_ms);
        let ceiling_ms = self.settings.ceiling_ms.max(too_long_ms);
        Some(if still_ms >= too_long_ms || unmoved_ms >= ceiling_ms { End::Rank } else { End::Moves })
    }

    /// All have come and it does not end: the transport, unless one of them can't do his part.
    fn all_have_come(&self, key: Key, meeting: &Meeting, mine: usize) -> Vec<(End, Option<usize>, Key)> {
        let state = |who: &usize| self.picture.rank(*who).map(|rank| rank.state);
        let with = |end: End, holds: &dyn Fn(ProcessState) -> bool| {
            let of = meeting.waiting.iter().filter(|who| state(who).is_some_and(holds));
            of.map(|who| (end, Some(*who), key)).collect::<Vec<_>>()
        };
        let ended = with(End::Ended, &ProcessState::ended);
        let paused = with(End::Paused, &|state| state == ProcessState::Stopped);
        let known = |who: &usize| {
            let comm = self.picture.comm(key.comm);
            comm.is_some_and(|comm| self.picture.knows(comm, *who, self.at))
        };
        let silent = meeting.waiting.iter().filter(|who| !known(who));
        let silent: Vec<_> = silent.map(|who| (self.dark(*who), Some(*who), key)).collect();
        let still_ms = self.at.now_ms.saturating_sub(meeting.moved_ms);
        for found in [ended, paused, silent] {
            if !found.is_empty() {
                return found;
            }
        }
        // Who called it and does not tell of his kernels may not have come on his GPU.
        let called = |who: &&usize| {
            let rank = self.picture.rank(**who);
            rank.is_some_and(|rank| !rank.kernels) && !self.picture.is_open(**who, key)
        };
        let end = match still_ms >= self.knots[mine].too_long_ms {
            false => End::Moves,
            true if meeting.waiting.iter().any(|who| called(&who)) => End::Unknown,
            true => End::Transport,
        };
        vec![(end, None, key)]
    }
}
