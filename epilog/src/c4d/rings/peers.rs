//! Sends and receives by peer, counted from the ring's records: NCCL does not number them, and the ring's table has them of
//! all peers together. The third send to a peer meets its third receive from here, so that the counts of both ends can be
//! held against each other as long as no record was lost.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use diag::c4d::digest::{MAX_P2P, P2p, Progress};
use nccl_profiler::ring::{Communicator, Function, Op, Record};

use super::age;

/// Most ends of connections of one process that are counted, over all its communicators: an all-to-all of 512 ranks. Of a
/// communicator 16 are told.
const MOST_ENDS: usize = 1024;

/// Most operations of one process that are remembered until they end: those that the plugin follows.
const MOST_IN_FLIGHT: usize = 4096;

/// What one process may still take of them.
#[derive(Debug)]
pub(super) struct Room {
    ends: usize,
    in_flight: usize,
}

impl Room {
    /// What these leave.
    pub(super) fn of<'a>(all: impl Iterator<Item = &'a Peers>) -> Self {
        let (ends, in_flight) = all.fold((0, 0), |(ends, in_flight), one| {
            let queued: usize = one.ends.values().map(|end| end.queue.len()).sum();
            (ends + one.ends.len(), in_flight + queued)
        });
        Self { ends: MOST_ENDS.saturating_sub(ends), in_flight: MOST_IN_FLIGHT.saturating_sub(in_flight) }
    }
}

/// The ends of one communicator's connections.
#[derive(Debug, Default)]
pub(super) struct Peers {
    /// By peer and whether it is sent to.
    ends: BTreeMap<(u32, bool), End>,
}

#[derive(Debug)]
struct End {
    /// Enqueued, started, finished, and when each changed.
    counts: [(u64, Instant); 3],
    /// What was enqueued when kernels began to be told.
    floor: u64,
    /// NCCL's number of the last one that was enqueued, and one.
    last: u64,
    /// Numbers and counts of those that may still end.
    queue: VecDeque<(u64, u64)>,
    /// Bytes that were enqueued in this window.
    bytes: u64,
    /// Time and number of those that were told to have ended in this window.
    told: (u64, u64),
    /// Those that were enqueued since ends were told last: the told ones stand for them.
    since: u64,
}

impl Peers {
    pub(super) fn new_window(&mut self) {
        for end in self.ends.values_mut() {
            (end.bytes, end.told) = (0, (0, 0));
        }
    }

    /// Kernels are told from now on.
    pub(super) fn begin(&mut self) {
        for end in self.ends.values_mut() {
            end.floor = end.counts[0].0;
        }
    }

    /// Whether what was enqueued before that is passed, wherever something came after it.
    pub(super) fn are_passed(&self) -> bool {
        self.ends.values().all(|end| end.counts[0].0 <= end.floor || end.counts[1].0 >= end.floor)
    }

    /// Takes one record; false if it can't be counted.
    pub(super) fn take(
        &mut self,
        record: &Record,
        op: &Op,
        one: &Communicator,
        room: &mut Room,
        now: Instant,
    ) -> bool {
        let send = match op.function {
            Function::Send => true,
            Function::Recv => false,
            // Its direction is not told.
            _ => return true,
        };
        let Some(peer) = u32::try_from(op.peer).ok().filter(|peer| *peer < one.ranks) else { return false };
        let end = match self.ends.entry((peer, send)) {
            std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
            // Silence of one that talks to more peers than are told says nothing.
            std::collections::btree_map::Entry::Vacant(_) if room.ends == 0 => return true,
            std::collections::btree_map::Entry::Vacant(free) => {
                room.ends -= 1;
                free.insert(End::new(now))
            }
        };
        match *record {
            Record::Enqueued { bytes, .. } => {
                let counted = end.enqueued(op.sequence, room, now);
                end.bytes = end.bytes.saturating_add(if counted { bytes } else { 0 });
                counted
            }
            Record::Started { .. } => end.started(op.sequence, room, now),
            Record::Done { gpu_start_ns, gpu_stop_ns, run_us, .. } => {
                let by_gpu = gpu_stop_ns.checked_sub(gpu_start_ns).filter(|_| gpu_start_ns > 0);
                let us = by_gpu.map_or(u64::from(run_us), |ns| ns / 1000);
                end.told = (end.told.0.saturating_add(us.min(u64::from(u32::MAX))), end.told.1 + 1);
                end.finished(op.sequence, room, now)
            }
            _ => true,
        }
    }

    /// As the digest tells them: those that are open first, then those that moved last.
    pub(super) fn told(&mut self, one: &Communicator, kernels: bool, now: Instant) -> Vec<P2p> {
        for (send, function) in [(true, Function::Send), (false, Function::Recv)] {
            // Nothing runs: an event was lost, and what was open has ended.
            if one.progress(function).running == 0 {
                let ends = self.ends.iter_mut().filter(|((_, sends), _)| *sends == send);
                ends.for_each(|(_, end)| end.set(2, end.counts[1].0, now));
            }
        }
        let mut all: Vec<P2p> =
            self.ends.iter_mut().map(|((peer, send), end)| end.told(*peer, *send, kernels, now)).collect();
        all.sort_by_key(|one| {
            let Progress { started, finished, .. } = one.progress;
            let open = started > finished;
            (
                !open,
                if open { u64::MAX - one.progress.started_age_ms } else { one.progress.age_ms() },
                one.peer,
            )
        });
        all.truncate(MAX_P2P);
        all
    }
}

impl End {
    fn new(now: Instant) -> Self {
        Self {
            counts: [(0, now); 3],
            floor: 0,
            last: 0,
            queue: VecDeque::new(),
            bytes: 0,
            told: (0, 0),
            since: 0,
        }
    }

    fn set(&mut self, which: usize, number: u64, now: Instant) {
        let known = &mut self.counts[which];
        if number > known.0 {
            *known = (number, now);
        }
    }

    /// False: the numbers go back, which those of a process that is not torn don't.
    fn enqueued(&mut self, sequence: u64, room: &mut Room, now: Instant) -> bool {
        if sequence < self.last {
            return false;
        }
        self.last = sequence.saturating_add(1);
        self.since = self.since.saturating_add(1);
        let count = self.counts[0].0.saturating_add(1);
        self.set(0, count, now);
        if room.in_flight > 0 {
            room.in_flight -= 1;
        } else if self.queue.pop_front().is_none() {
            // Others hold the room. What begins and ends of this one is not told then; a later one makes up for it.
            return true;
        }
        self.queue.push_back((sequence, count));
        true
    }

    /// The count of an operation in flight. One whose enqueueing was lost is counted here.
    fn count_of(&mut self, sequence: u64, room: &mut Room, now: Instant) -> Option<(usize, u64)> {
        if sequence >= self.last {
            self.enqueued(sequence, room, now);
        }
        let place = self.queue.binary_search_by_key(&sequence, |(sequence, _)| *sequence).ok()?;
        Some((place, self.queue[place].1))
    }

    fn started(&mut self, sequence: u64, room: &mut Room, now: Instant) -> bool {
        let Some((_, count)) = self.count_of(sequence, room, now) else { return true };
        // Those before it that nobody told of have ended.
        if self.counts[1].0 == self.counts[2].0 {
            self.set(1, count.saturating_sub(1), now);
            self.set(2, count.saturating_sub(1), now);
        }
        self.set(1, count, now);
        true
    }

    fn finished(&mut self, sequence: u64, room: &mut Room, now: Instant) -> bool {
        let Some((place, count)) = self.count_of(sequence, room, now) else { return true };
        self.queue.drain(..=place);
        room.in_flight += place + 1;
        self.set(1, count, now);
        self.set(2, count, now);
        true
    }

    fn told(&mut self, peer: u32, send: bool, kernels: bool, now: Instant) -> P2p {
        if kernels && self.counts[0].0 == self.floor {
            // Nothing came since kernels are told: what was before is not known to be open.
            self.set(1, self.floor, now);
            self.set(2, self.floor, now);
        }
        let (us, ended) = self.told;
        // Of those of which nobody told that they ended the told ones are taken to be typical.
        let made = if kernels { ended } else { self.since.max(ended) };
        let kernel_us = if ended == 0 { 0 } else { u128::from(us) * u128::from(made) / u128::from(ended) };
        if ended > 0 || kernels {
            self.since = 0;
        }
        let [enqueued, started, finished] = self.counts;
        let progress = Progress {
            enqueued: enqueued.0,
            started: started.0,
            finished: finished.0,
            enqueued_age_ms: age(enqueued.1, now),
            started_age_ms: age(started.1, now),
            finished_age_ms: age(finished.1, now),
            bytes: self.bytes,
        };
        P2p { peer, send, kernel_us: u32::try_from(kernel_us).unwrap_or(u32::MAX), progress }
    }
}
