//! From a rank's ring to what the digest says of it. All of a ring is hostile: what does not fit is left out and lowers
//! what the telemetry is worth, never the other way round. Sends, receives and the network's steps are not in it yet.

use std::collections::BTreeMap;
use std::time::Instant;

use diag::c4d::digest::{
    Collective, Comm, Func, MAX_AGE_MS, MAX_COMM_RANKS, MAX_COMMS, MAX_SAMPLES, Progress, Sample, Telemetry,
    clean, sampled, stride,
};
use nccl_profiler::ring::{Communicator, Counter, Entry, Function, Reader, Record, RingError, Source};

/// Most records of one look: what a ring holds.
const MOST_RECORDS: u64 = nccl_profiler::ring::CAPACITY;

/// The bit of NCCL's events that tells when kernels begin and end.
const KERNEL_EVENTS: u64 = 1 << 6;

/// What the plugin counts where it could not tell something that happened. The others count what did not happen.
const UNTOLD: [Counter; 5] =
    [Counter::CommunicatorsFull, Counter::OpsFull, Counter::StepsFull, Counter::RecordBusy, Counter::Evicted];

/// One rank's ring, and when what it counts changed by this node's clock.
#[derive(Debug)]
pub struct Ring<S> {
    reader: Reader<S>,
    seen: BTreeMap<(u8, u32), Seen>,
    entries: Vec<Entry>,
    /// What the plugin had left untold at the last look.
    untold: u64,
}

/// A communicator as it was seen the last time.
#[derive(Debug)]
struct Seen {
    since: Instant,
    told_end: bool,
    functions: BTreeMap<Function, [(u64, Instant); 3]>,
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
        Ok(Self { reader: Reader::open(source)?, seen: BTreeMap::new(), entries: Vec::new(), untold: 0 })
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
        let known = |key: &(u8, u32)| table.iter().any(|one| (one.slot, one.generation) == *key);
        self.seen.retain(|key, _| known(key));
        let mut comms: Vec<Comm> = Vec::new();
        for communicator in table.iter().filter(|one| is_sound(one)) {
            let seen = self
                .seen
                .entry((communicator.slot, communicator.generation))
                .or_insert_with(|| Seen { since: now, told_end: false, functions: BTreeMap::new() });
            let again = comms.iter().any(|comm| comm.id == communicator.id);
            // Of one that ended the rules need to hear once.
            if comms.len() == MAX_COMMS || again || std::mem::replace(&mut seen.told_end, communicator.ended)
            {
                continue;
            }
            comms.push(comm(communicator, seen, &self.entries, now));
        }
        let untold = UNTOLD.iter().fold(0, |sum: u64, one| sum.saturating_add(header.counter(*one)));
        let records = (polled.lost + polled.odd).saturating_add(untold.saturating_sub(self.untold));
        self.untold = untold;
        let telemetry = if records > 0 { Telemetry::Lost { records } } else { Telemetry::Ok };
        Ok(Look { comms, telemetry, kernels: header.mask & KERNEL_EVENTS != 0 })
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

fn comm(one: &Communicator, seen: &mut Seen, entries: &[Entry], now: Instant) -> Comm {
    let age = |since: Instant| {
        let ms = u64::try_from(now.saturating_duration_since(since).as_millis()).unwrap_or(MAX_AGE_MS);
        ms.min(MAX_AGE_MS)
    };
    let mut collectives = Vec::new();
    for function in Function::ALL {
        let Some(func) = func(function) else { continue };
        let told = one.progress(function);
        if told.enqueued == 0 {
            continue;
        }
        let started = told.started.min(told.enqueued);
        // Nothing runs: an event was lost, and the operation has ended.
        let finished = if told.running == 0 { started } else { told.finished.min(started) };
        let numbers = [told.enqueued, started, finished];
        let changed = seen.functions.entry(function).or_insert([(0, seen.since); 3]);
        for (known, number) in changed.iter_mut().zip(numbers) {
            if known.0 != number {
                *known = (number, now);
            }
        }
        let [enqueued_age_ms, started_age_ms, finished_age_ms] = changed.map(|(_, since)| age(since));
        let progress = Progress {
            enqueued: numbers[0],
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
        age_ms: age(seen.since),
        ended: one.ended,
        collectives,
        p2p: Vec::new(),
        samples: samples(one, entries),
        steps: Vec::new(),
    }
}

/// Operations that ended, of those that every rank picks.
fn samples(one: &Communicator, entries: &[Entry]) -> Vec<Sample> {
    let all = entries.iter().filter_map(|entry| match entry.record {
        Record::Done { op, bytes, gpu_start_ns, gpu_stop_ns, .. } => {
            let mine = op.communicator == one.slot && op.generation == one.generation as u16;
            let func = func(op.function).filter(|_| mine && gpu_start_ns > 0)?;
            let kernel_us = gpu_stop_ns.checked_sub(gpu_start_ns)? / 1000;
            Some(Sample { func, seq: op.sequence, bytes, kernel_us: u32::try_from(kernel_us).ok()? })
        }
        _ => None,
    });
    let all: Vec<Sample> = all.collect();
    let stride = stride(all.len() as u64);
    all.into_iter().filter(|sample| sampled(sample.seq, stride)).take(MAX_SAMPLES).collect()
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
