//! From a rank's ring to what the digest says of it. All of a ring is hostile: what does not fit is left out and lowers
//! what the telemetry is worth, never the other way round.
//!
//! Collectives are as far as the ring's table says, which loses nothing; sends and receives are counted from the records, by
//! peer ([`peers`]); waits of the network's steps are sums of the records, and what is open now ([`waits`]).
//!
//! KernelCh is on for a part of the time only. Where begin and end are told again after a pause, operations in between count
//! as ended, and a rank's begins and ends count as known ([`Look::kernels`]) once all that was enqueued before is passed.

mod peers;
mod waits;

use std::collections::BTreeMap;
use std::fs::File;
use std::time::Instant;

use diag::c4d::digest::{
    Collective, Comm, Func, MAX_AGE_MS, MAX_COMM_RANKS, MAX_COMMS, MAX_SAMPLES, Progress, Sample, Telemetry,
    clean, sampled, stride,
};
use nccl_profiler::ring::{
    COMMUNICATORS, Communicator, Counter, Entry, Function, Op, Reader, Record, RingError, Source,
};

use crate::c4d::orders::Pace;
use peers::{Peers, Room};
use waits::Waits;

/// Most records of one look: what a ring holds.
const MOST_RECORDS: u64 = nccl_profiler::ring::CAPACITY;

/// The bits of NCCL's events that tell of the network's steps, and when kernels begin and end.
const STEP_EVENTS: u64 = 1 << 4;
const KERNEL_EVENTS: u64 = 1 << 6;

/// How much longer a GPU may seem to run an operation than the host knew of it, in µs and as a share: clocks of two kinds.
const CLOCKS_US: u64 = 1_000;
const CLOCKS_SHARE: u64 = 100;

/// From so many operations on that would have run before they were called, and from such a part of the last ones, what NCCL tells of
/// a communicator's kernels is not believed: in CUDA graphs beside which the program makes collectives of the same
/// communicator too, NCCL 2.28.9 tells each kernel's begin and end at once, with times of others.
const IMPOSSIBLE: u32 = 3;
const IMPOSSIBLE_OF: u32 = 4;

/// How many operations are the last ones: from there on the older ones count half.
const LAST_OPS: u32 = 64;

/// What the plugin counts where it could not tell of an operation that happened. The others count what did not happen, or only what
/// an operation waited for.
const UNTOLD: [Counter; 4] =
    [Counter::CommunicatorsFull, Counter::OpsFull, Counter::RecordBusy, Counter::Evicted];

/// One rank's ring, and when what it counts changed by this node's clock.
#[derive(Debug)]
pub struct Ring<S> {
    reader: Reader<S>,
    seen: BTreeMap<(u8, u32), Seen>,
    entries: Vec<Entry>,
    /// What the plugin had left untold at the last look.
    untold: u64,
    /// Whether kernels were told at the last look.
    kernels: bool,
    pace: Pace,
}

/// A communicator as it was seen the last time.
#[derive(Debug)]
struct Seen {
    since: Instant,
    told_end: bool,
    /// What was enqueued at the last look.
    made: [u64; Function::ALL.len()],
    functions: BTreeMap<Function, Counted>,
    peers: Peers,
    waits: Waits,
    samples: Vec<Sample>,
    /// Of the last operations with times: all, and those that would have run before they were called.
    timed: u32,
    impossible: u32,
}

/// One function of a communicator.
#[derive(Debug, Clone, Copy)]
struct Counted {
    /// Enqueued, started, finished, and when each changed.
    changed: [(u64, Instant); 3],
    /// What was enqueued when kernels began to be told: begin and end of that may never be told.
    floor: u64,
}

/// What one look at a ring gave.
#[derive(Debug, PartialEq, Eq)]
pub struct Look {
    /// The communicators.
    pub comms: Vec<Comm>,
    /// Whether they are whole.
    pub telemetry: Telemetry,
    /// Whether begin and end of kernels are told.
    pub kernels: bool,
}

impl<S: Source> Ring<S> {
    /// Takes a ring that was handed over.
    ///
    /// # Errors
    /// It is no ring of this version.
    pub fn open(source: S) -> Result<Self, RingError> {
        let reader = Reader::open(source)?;
        Ok(Self {
            reader,
            seen: BTreeMap::new(),
            entries: Vec::new(),
            untold: 0,
            kernels: true,
            pace: Pace::default(),
        })
    }

    /// What its process enqueued between the last two looks.
    pub fn pace(&self) -> Pace {
        self.pace
    }

    /// What stands in it now.
    pub fn look(&mut self, now: Instant) -> Look {
        self.try_look(now).unwrap_or_else(|error| Look {
            comms: Vec::new(),
            telemetry: Telemetry::Unavailable { why: clean(&error.to_string()) },
            kernels: false,
        })
    }

    fn try_look(&mut self, now: Instant) -> Result<Look, RingError> {
        let header = self.reader.header()?;
        self.entries.clear();
        // The records first: the table is never behind them then.
        let polled = self.reader.poll(MOST_RECORDS, &mut self.entries)?;
        let table = self.reader.communicators()?;
        let live = if header.mask & STEP_EVENTS != 0 { self.reader.live_steps()? } else { Vec::new() };
        let known = |key: &(u8, u32)| table.iter().any(|one| (one.slot, one.generation) == *key);
        self.seen.retain(|key, _| known(key));
        let odd = self.take(&table, now);
        self.pace = Pace::default();
        for one in table.iter().filter(|one| is_sound(one)) {
            if let Some(seen) = self.seen.get_mut(&(one.slot, one.generation)) {
                seen.count(one, &mut self.pace);
            }
        }
        for step in &live {
            let seen = self.seen.iter_mut().find(|((slot, generation), _)| {
                (*slot, *generation as u16) == (step.communicator, step.generation)
            });
            if let Some((_, seen)) = seen {
                seen.waits.open(step);
            }
        }
        let told = header.mask & KERNEL_EVENTS != 0;
        let before = std::mem::replace(&mut self.kernels, told);
        let begins = told && !before;
        let sound = || table.iter().filter(|one| is_sound(one));
        if begins {
            for one in sound() {
                if let Some(seen) = self.seen.get_mut(&(one.slot, one.generation)) {
                    seen.begin(one);
                }
            }
        }
        let seen = |one: &Communicator| self.seen.get(&(one.slot, one.generation));
        let is_known = |seen: &Seen, one| seen.is_believed() && seen.is_passed(one);
        let kernels = told && sound().all(|one| seen(one).is_none_or(|seen| is_known(seen, one)));
        let mut comms: Vec<Comm> = Vec::new();
        for communicator in sound() {
            let Some(seen) = self.seen.get_mut(&(communicator.slot, communicator.generation)) else {
                continue;
            };
            let again = comms.iter().any(|comm| comm.id == communicator.id);
            // Of one that ended the rules need to hear once.
            if comms.len() == MAX_COMMS || again || std::mem::replace(&mut seen.told_end, communicator.ended)
            {
                continue;
            }
            comms.push(comm(communicator, seen, kernels, now));
        }
        let untold = UNTOLD.iter().fold(0, |sum: u64, one| sum.saturating_add(header.counter(*one)));
        let records =
            (polled.lost + polled.odd).saturating_add(odd).saturating_add(untold.saturating_sub(self.untold));
        self.untold = untold;
        let telemetry = if records > 0 { Telemetry::Lost { records } } else { Telemetry::Ok };
        Ok(Look { comms, telemetry, kernels })
    }

    /// Takes the new records; how many could not be counted.
    fn take(&mut self, table: &[Communicator], now: Instant) -> u64 {
        let mut slots: [Option<&Communicator>; COMMUNICATORS] = [None; COMMUNICATORS];
        for one in table.iter().filter(|one| is_sound(one)) {
            self.seen.entry((one.slot, one.generation)).or_insert_with(|| Seen::new(now)).new_window();
            if let Some(slot) = slots.get_mut(usize::from(one.slot)) {
                *slot = Some(one);
            }
        }
        let mut room = Room::of(self.seen.values().map(|seen| &seen.peers));
        let mut odd = 0;
        for entry in &self.entries {
            let op = match &entry.record {
                Record::Enqueued { op, .. } | Record::Started { op, .. } | Record::Done { op, .. } => op,
                Record::Steps { steps, .. } => &steps.op,
                Record::CommInit { .. } | Record::CommEnd { .. } => continue,
            };
            let one = slots.get(usize::from(op.communicator)).copied().flatten();
            let Some(one) = one.filter(|one| one.generation as u16 == op.generation) else { continue };
            if let Some(seen) = self.seen.get_mut(&(one.slot, one.generation)) {
                odd += u64::from(!seen.take(&entry.record, op, one, &mut room, now));
            }
        }
        odd
    }
}

impl Ring<File> {
    /// The ring's file, which the process knows too.
    pub fn file(&self) -> &File {
        self.reader.source()
    }
}

/// Whether it says who it is, as far as can be told.
fn is_sound(one: &Communicator) -> bool {
    let rank = u32::try_from(one.rank).ok();
    one.id != 0
        && (1..=MAX_COMM_RANKS).contains(&one.ranks)
        && (1..=one.ranks).contains(&one.nodes)
        && rank.is_some_and(|rank| rank < one.ranks)
}

fn age(since: Instant, now: Instant) -> u64 {
    let ms = u64::try_from(now.saturating_duration_since(since).as_millis()).unwrap_or(MAX_AGE_MS);
    ms.min(MAX_AGE_MS)
}

impl Counted {
    fn new(since: Instant) -> Self {
        Self { changed: [(0, since); 3], floor: 0 }
    }

    /// Enqueued, started, finished. What is not believed stands still, like what is not told.
    fn numbers(&self, one: &nccl_profiler::ring::Progress, kernels: bool, believed: bool) -> [u64; 3] {
        if !believed {
            let stood = self.changed[1].0;
            return [one.enqueued, stood.min(one.enqueued), stood.min(one.enqueued)];
        }
        let mut started = one.started.min(one.enqueued);
        if kernels && one.enqueued == self.floor {
            started = one.enqueued;
        }
        // Nothing runs: an event was lost, and the operation has ended.
        let finished = if one.running == 0 { started } else { one.finished.min(started) };
        [one.enqueued, started, finished]
    }
}

impl Seen {
    fn new(now: Instant) -> Self {
        Self {
            since: now,
            told_end: false,
            made: [0; Function::ALL.len()],
            functions: BTreeMap::new(),
            peers: Peers::default(),
            waits: Waits::default(),
            samples: Vec::new(),
            timed: 0,
            impossible: 0,
        }
    }

    fn new_window(&mut self) {
        self.samples.clear();
        self.waits.clear();
        self.peers.new_window();
    }

    /// Adds what was enqueued since the last look.
    fn count(&mut self, one: &Communicator, pace: &mut Pace) {
        for (made, progress) in self.made.iter_mut().zip(&one.progress) {
            let more = progress.enqueued.saturating_sub(*made);
            *made = progress.enqueued;
            pace.made = pace.made.saturating_add(more);
            pace.busiest = pace.busiest.max(more);
            pace.works |= !one.ended && progress.enqueued > 0;
        }
    }

    /// Kernels are told from now on: what was enqueued before may never be.
    fn begin(&mut self, one: &Communicator) {
        for function in Function::ALL {
            let enqueued = one.progress(function).enqueued;
            if enqueued > 0 {
                self.functions.entry(function).or_insert_with(|| Counted::new(self.since)).floor = enqueued;
            }
        }
        self.peers.begin();
    }

    /// Whether all that was enqueued before kernels were told is passed, as far as anything came after it.
    fn is_passed(&self, one: &Communicator) -> bool {
        one.ended
            || self.peers.are_passed()
                && self.functions.iter().all(|(function, counted)| {
                    let told = one.progress(*function);
                    func(*function).is_none()
                        || told.enqueued <= counted.floor
                        || told.started >= counted.floor
                })
    }

    /// Takes one record; false if it can't be counted.
    fn take(&mut self, record: &Record, op: &Op, one: &Communicator, room: &mut Room, now: Instant) -> bool {
        match (record, func(op.function)) {
            (Record::Steps { steps, .. }, _) => {
                self.waits.add(steps);
                true
            }
            (Record::Done { bytes, gpu_start_ns, gpu_stop_ns, wait_us, run_us, .. }, Some(func)) => {
                let ns = gpu_stop_ns.checked_sub(*gpu_start_ns).filter(|_| *gpu_start_ns > 0);
                let known_us = u64::from(*wait_us) + u64::from(*run_us);
                let most_us = known_us + known_us / CLOCKS_SHARE + CLOCKS_US;
                if let Some(ns) = ns {
                    let impossible = ns / 1000 > most_us;
                    self.timed(impossible);
                    if impossible {
                        return true;
                    }
                }
                let kernel_us = ns.and_then(|ns| u32::try_from(ns / 1000).ok());
                self.samples.extend(kernel_us.map(|kernel_us| Sample {
                    func,
                    seq: op.sequence,
                    bytes: *bytes,
                    kernel_us,
                }));
                true
            }
            (_, Some(_)) => true,
            (_, None) => self.peers.take(record, op, one, room, now),
        }
    }

    fn counted(&mut self, function: Function) -> &mut Counted {
        self.functions.entry(function).or_insert_with(|| Counted::new(self.since))
    }

    /// Whether begin and end of its kernels are what they seem.
    fn is_believed(&self) -> bool {
        self.impossible < IMPOSSIBLE || self.impossible * IMPOSSIBLE_OF < self.timed
    }

    fn timed(&mut self, impossible: bool) {
        self.timed += 1;
        self.impossible += u32::from(impossible);
        if self.timed >= LAST_OPS {
            self.timed /= 2;
            self.impossible /= 2;
        }
    }

    /// Operations that ended, of those that every rank picks.
    fn picked(&self) -> Vec<Sample> {
        if !self.is_believed() {
            return Vec::new();
        }
        let stride = stride(self.samples.len() as u64);
        self.samples.iter().filter(|one| sampled(one.seq, stride)).take(MAX_SAMPLES).copied().collect()
    }
}

fn comm(one: &Communicator, seen: &mut Seen, kernels: bool, now: Instant) -> Comm {
    let mut collectives = Vec::new();
    let believed = seen.is_believed();
    for function in Function::ALL {
        let told = one.progress(function);
        let Some(func) = func(function).filter(|_| told.enqueued > 0) else { continue };
        let counted = seen.counted(function);
        let numbers = counted.numbers(told, kernels, believed);
        for (known, number) in counted.changed.iter_mut().zip(numbers) {
            if known.0 != number {
                *known = (number, now);
            }
        }
        let [enqueued, started, finished] = numbers;
        let [enqueued_age_ms, started_age_ms, finished_age_ms] =
            counted.changed.map(|(_, since)| age(since, now));
        let progress = Progress {
            enqueued,
            started,
            finished,
            enqueued_age_ms,
            started_age_ms,
            finished_age_ms,
            bytes: told.bytes,
        };
        collectives.push(Collective { func, progress });
    }
    Comm {
        id: one.id,
        name: clean(&one.name()),
        rank: u32::try_from(one.rank).unwrap_or(0),
        nranks: one.ranks,
        nnodes: one.nodes,
        age_ms: age(seen.since, now),
        ended: one.ended,
        collectives,
        p2p: seen.peers.told(one, kernels, now),
        samples: seen.picked(),
        steps: seen.waits.told(one.ranks),
    }
}

/// The rules' name of a collective; `None`: it is none.
fn func(function: Function) -> Option<Func> {
    Some(match function {
        Function::AllReduce => Func::AllReduce,
        Function::AllGather => Func::AllGather,
        Function::ReduceScatter => Func::ReduceScatter,
        Function::Broadcast => Func::Broadcast,
        Function::Reduce => Func::Reduce,
        Function::AllToAll => Func::AllToAll,
        Function::Gather => Func::Gather,
        Function::Scatter => Func::Scatter,
        Function::Send | Function::Recv | Function::SendRecv | Function::Other => return None,
    })
}

#[cfg(test)]
mod tests;
