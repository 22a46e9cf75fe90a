//! One rank: the collective again and again, with growing sizes, until rank 0 says stop. All-reduce is a
//! reduce-scatter and an all-gather around the ring; all-to-all sends each block straight to its rank. What rank
//! 0 says travels in the heads of the messages, so all ranks do the same number of collectives and nobody waits
//! for somebody who has left. How a rank gets its connections is in [`super`].

use std::time::{Duration, Instant};

use super::super::Until;
use super::super::duplex::{Cut, Duplex, HEAD_BYTES};
use super::{seconds_since, sums};
use crate::protocol::Collective;

/// Message size of the warm-up: connections leave slow start's first steps, pages are mapped.
const WARM_UP_BYTES: usize = 16 << 10;

/// Message size of the first measured collective: done in 1 s even on a link of 1 Mbit/s.
const FIRST_BYTES: usize = 64 << 10;

/// Many ranks start with a larger one: below this share a step is all delay and shows no bandwidth.
const FIRST_SHARE_BYTES: usize = 16 << 10;

/// Each size is this many times the one before.
const GROWTH: usize = 4;

/// Largest message of few ranks. Four ranks then send 1 MiB a step, 0.8 ms at 10 Gbit/s against some 0.1 ms of
/// delay; larger ones measure the memory of the node, not the way between the ranks.
const LARGEST_BYTES: usize = 4 << 20;

/// Many ranks may go on to this share, 0.1 ms at 10 Gbit/s: as long as the delay of its step.
const LARGEST_SHARE_BYTES: usize = 128 << 10;

/// Largest message of any number of ranks: what a rank may hold in memory is twice that.
const MOST_BYTES: usize = 64 << 20;

/// Collectives of the next size that must still fit into the window before the size grows.
const WORTH_GROWING: u32 = 3;

/// Most readings kept a size; the window is over long before, except for tiny messages.
const MAX_READINGS: usize = 4096;

/// What rank 0 says about the next collective, as the heads carry it.
const NOT_HEARD: u32 = 0;
const STOP: u32 = 1;

/// What one rank measured.
#[derive(Debug, Default, Clone)]
pub(super) struct Progress {
    /// Completed collectives, and how many had the right result.
    pub iterations: u64,
    pub right: u64,
    /// Size that `samples` belong to; the warm-up has none.
    pub bytes: u64,
    /// busbw of each collective of that size.
    pub samples: Vec<f64>,
    /// The limit ended it.
    pub limited: bool,
    /// Received in all, and in what time.
    pub moved_bytes: u64,
    pub seconds: f64,
}

impl Progress {
    /// The median of the readings; what was moved until the limit where that came first. What a rank receives is
    /// [`Collective::bus_factor`] of the message size, so bytes received by time is busbw too.
    pub(super) fn gb_per_s(&self) -> f64 {
        if self.limited || self.samples.is_empty() {
            let seconds = self.seconds.max(f64::MIN_POSITIVE);
            return self.moved_bytes as f64 / 1e9 / seconds;
        }
        let mut sorted = self.samples.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        if sorted.len().is_multiple_of(2) {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        } else {
            sorted[middle]
        }
    }
}

pub(super) struct Ring {
    collective: Collective,
    /// The i-th one sends to the rank i + 1 places on and receives from the one i + 1 places back. All-to-all
    /// has all of them, the others only the first.
    duplexes: Vec<Duplex>,
    /// Which of them is, or was last, in use.
    pub at: usize,
    position: usize,
    ranks: usize,
    window: Duration,
    until: Until,
    began: Instant,
    /// Collectives begun so far; the same on every rank.
    iteration: u32,
    /// What rank 0 said about the next one.
    heard: u32,
    data: Vec<u8>,
    /// What a step receives.
    scratch: Vec<u8>,
    /// What all steps of an all-to-all received.
    gathered: Vec<u8>,
    /// Duration and size of the last one, and of the last one of another size, for rank 0's plan.
    last: Option<(Duration, usize)>,
    smaller: Option<(Duration, usize)>,
    pub progress: Progress,
}

/// Where a rank stands.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub position: usize,
    pub ranks: usize,
}

impl Ring {
    pub(super) fn new(
        collective: Collective,
        duplexes: Vec<Duplex>,
        place: Place,
        window: Duration,
        until: Until,
    ) -> Self {
        Self {
            collective,
            duplexes,
            at: 0,
            position: place.position,
            ranks: place.ranks,
            window,
            until,
            began: Instant::now(),
            iteration: 0,
            heard: NOT_HEARD,
            data: Vec::new(),
            scratch: Vec::new(),
            gathered: Vec::new(),
            last: None,
            smaller: None,
            progress: Progress::default(),
        }
    }

    /// Measures until rank 0 says stop. `progress` holds what was reached, however it ends.
    pub(super) fn run(&mut self) -> Result<(), Cut> {
        self.began = Instant::now();
        let done = self.all_sizes();
        self.progress.moved_bytes = self.duplexes.iter().map(|duplex| duplex.received).sum();
        self.progress.seconds = seconds_since(self.began);
        self.progress.limited = done == Err(Cut::Over);
        done
    }

    fn all_sizes(&mut self) -> Result<(), Cut> {
        let mut size = self.whole(WARM_UP_BYTES);
        let mut measured_from = None;
        loop {
            if self.position == 0 {
                self.heard = self.plan(size, measured_from);
            } else {
                self.heard = NOT_HEARD;
            }
            let started = Instant::now();
            let took = self.once(size)?;
            if self.last.is_some_and(|(_, last)| last != size) {
                self.smaller = self.last;
            }
            self.last = Some((started.elapsed(), size));
            if measured_from.is_some() {
                self.note(size, took);
            } else {
                measured_from = Some(Instant::now());
            }
            match self.heard {
                STOP => return Ok(()),
                next => size = self.checked(next)?,
            }
        }
    }

    /// `size` rounded so that every rank's share is whole elements, at least one.
    fn whole(&self, size: usize) -> usize {
        let unit = self.ranks * sums::ELEMENT;
        (size / unit).max(1) * unit
    }

    fn first(&self) -> usize {
        self.whole(FIRST_BYTES.max(FIRST_SHARE_BYTES * self.ranks).min(MOST_BYTES))
    }

    fn largest(&self) -> usize {
        self.whole((LARGEST_SHARE_BYTES * self.ranks).clamp(LARGEST_BYTES, MOST_BYTES))
    }

    /// A size that came over the network.
    fn checked(&self, size: u32) -> Result<usize, Cut> {
        let size = size as usize;
        let largest = self.largest().max(self.first());
        if size <= STOP as usize || size > largest || !size.is_multiple_of(self.ranks * sums::ELEMENT) {
            return Err(Cut::Previous(format!("the peer asked for an impossible size ({size})")));
        }
        Ok(size)
    }

    /// Rank 0's word on what follows the collective of `size` that is about to start.
    fn plan(&self, size: usize, measured_from: Option<Instant>) -> u32 {
        let (Some(from), Some((last, last_size))) = (measured_from, self.last) else {
            return word(self.first());
        };
        // The warm-up is no guide to larger ones.
        let cost =
            if last_size < self.first() / 2 { last } else { last.mul_f64(size as f64 / last_size as f64) };
        let left = self.window.saturating_sub(from.elapsed()).saturating_sub(cost);
        let larger = self.whole(size * GROWTH).min(self.largest());
        if larger > size && last_size == size && self.forecast(larger, cost) * WORTH_GROWING <= left {
            word(larger)
        } else if left < cost / 2 || left.is_zero() {
            STOP
        } else {
            word(size)
        }
    }

    /// How long one of `larger` bytes will take where the last one took `cost`: what grows with the size, as
    /// far as two sizes tell, and the delay of the steps, which many ranks have much of.
    fn forecast(&self, larger: usize, cost: Duration) -> Duration {
        let Some((_, size)) = self.last else { return cost };
        let in_proportion = cost.mul_f64(larger as f64 / size as f64);
        let Some((before, smaller)) = self.smaller.filter(|(_, smaller)| *smaller < size) else {
            return in_proportion;
        };
        let slope = cost.saturating_sub(before).as_secs_f64() / (size - smaller) as f64;
        (cost + Duration::from_secs_f64(slope * (larger - size) as f64)).min(in_proportion)
    }

    fn note(&mut self, size: usize, took: Duration) {
        if self.progress.bytes != size as u64 {
            self.progress.bytes = size as u64;
            self.progress.samples.clear();
        }
        let share = self.collective.bus_factor(self.ranks);
        if self.progress.samples.len() < MAX_READINGS {
            self.progress.samples.push(share * size as f64 / 1e9 / took.as_secs_f64().max(1e-9));
        }
    }

    /// One collective; gives the time from the moment when all ranks were ready.
    fn once(&mut self, size: usize) -> Result<Duration, Cut> {
        self.iteration += 1;
        self.data.resize(size, 0);
        self.scratch.resize(size / self.ranks, 0);
        self.prepare();
        // After as many steps as there are other ranks, everybody has heard of everybody: nobody still fills
        // its buffer or checks its last results.
        for step in 0..self.ranks - 1 {
            self.step(step, None)?;
        }
        let started = Instant::now();
        match self.collective {
            Collective::AllReduce => {
                self.reduce_scatter()?;
                self.all_gather(1)?;
            }
            Collective::AllGather => self.all_gather(0)?,
            Collective::AllToAll => self.all_to_all()?,
        }
        let took = started.elapsed();
        self.progress.iterations += 1;
        self.progress.right += u64::from(self.is_right());
        Ok(took)
    }

    /// Fills in this rank's contribution; nothing of an earlier collective may pass for a result of this one.
    fn prepare(&mut self) {
        let (position, iteration) = (word(self.position), self.iteration);
        sums::fill(&mut self.data, position, iteration);
        match self.collective {
            Collective::AllReduce => {}
            Collective::AllGather => {
                let own = self.chunk(0);
                self.data[..own.start].fill(0);
                self.data[own.end..].fill(0);
            }
            Collective::AllToAll => {
                self.gathered.clear();
                self.gathered.resize(self.data.len(), 0);
                let own = self.chunk(0);
                self.gathered[own.clone()].copy_from_slice(&self.data[own]);
            }
        }
    }

    fn is_right(&self) -> bool {
        let iteration = self.iteration;
        let length = self.data.len() / self.ranks;
        let elements = |blocks: usize| word(blocks * length / sums::ELEMENT);
        let blocks = |data: &[u8], first: &dyn Fn(usize) -> u32| {
            (0..)
                .zip(data.chunks_exact(length))
                .all(|(rank, block)| sums::is_part(block, first(rank), word(rank), iteration))
        };
        match self.collective {
            Collective::AllReduce => sums::is_sum(&self.data, word(self.ranks), iteration),
            Collective::AllGather => blocks(&self.data, &elements),
            Collective::AllToAll => blocks(&self.gathered, &|_| elements(self.position)),
        }
    }

    fn reduce_scatter(&mut self) -> Result<(), Cut> {
        for step in 0..self.ranks - 1 {
            let (ours, theirs) = (self.chunk(self.ranks - step), self.chunk(2 * self.ranks - step - 1));
            self.step(self.ranks + step, Some(ours))?;
            sums::add(&mut self.data[theirs], &self.scratch);
        }
        Ok(())
    }

    /// Passes blocks around the ring, the one `offset` places from this rank first.
    fn all_gather(&mut self, offset: usize) -> Result<(), Cut> {
        for step in 0..self.ranks - 1 {
            let ours = self.chunk(self.ranks + offset - step);
            let theirs = self.chunk(2 * self.ranks + offset - step - 1);
            self.step(2 * self.ranks + step, Some(ours))?;
            self.data[theirs].copy_from_slice(&self.scratch);
        }
        Ok(())
    }

    fn all_to_all(&mut self) -> Result<(), Cut> {
        for distance in 1..self.ranks {
            self.at = distance - 1;
            let (ours, theirs) = (self.chunk(distance), self.chunk(self.ranks - distance));
            self.step(self.ranks + distance, Some(ours))?;
            self.gathered[theirs].copy_from_slice(&self.scratch);
        }
        self.at = 0;
        Ok(())
    }

    /// The share of the data whose number is this rank's plus `offset`, counted around the ring.
    fn chunk(&self, offset: usize) -> std::ops::Range<usize> {
        let length = self.data.len() / self.ranks;
        let index = (self.position + offset) % self.ranks;
        index * length..(index + 1) * length
    }

    /// Sends `ours` of the data over the duplex in use and receives as much into `scratch`.
    fn step(&mut self, step: usize, ours: Option<std::ops::Range<usize>>) -> Result<(), Cut> {
        let step = word(step);
        let mut head = [0; HEAD_BYTES];
        for (place, word) in head.chunks_exact_mut(4).zip([self.iteration, step, self.heard, 0]) {
            place.copy_from_slice(&word.to_be_bytes());
        }
        let body = ours.clone().map_or(&[][..], |range| &self.data[range]);
        let into = if ours.is_some() { &mut self.scratch[..] } else { &mut [] };
        let Some(duplex) = self.duplexes.get_mut(self.at) else {
            return Err(Cut::Next("there is no connection to that rank".to_owned()));
        };
        let theirs = duplex.swap(head, body, into, &self.until)?;
        let mut words = [0; 4];
        for (word, place) in words.iter_mut().zip(theirs.as_chunks::<4>().0) {
            *word = u32::from_be_bytes(*place);
        }
        if words[..2] != [self.iteration, step] {
            return Err(Cut::Previous("the peer sent what is no part of this collective".to_owned()));
        }
        if self.position != 0 {
            self.heard = words[2];
        }
        Ok(())
    }
}

/// A number of ranks, elements or steps, as heads and contributions hold it.
fn word(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
