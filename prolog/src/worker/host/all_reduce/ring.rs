//! One rank of the ring: reduce-scatter, then all-gather, again and again with growing sizes until rank 0 says
//! stop. What rank 0 says travels in the heads of the messages, so all ranks do the same number of all-reduces
//! and nobody waits for somebody who has left.

use std::time::{Duration, Instant};

use super::super::Until;
use super::super::duplex::{Cut, Duplex, HEAD_BYTES};
use super::{seconds_since, sums};

/// Message size of the warm-up: connections leave slow start's first steps, pages are mapped.
const WARM_UP_BYTES: usize = 16 << 10;

/// Message size of the first measured all-reduce: done in 1 s even on a link of 1 Mbit/s.
const FIRST_BYTES: usize = 64 << 10;

/// Each size is this many times the one before.
const GROWTH: usize = 4;

/// Largest message. Four ranks then send 1 MiB a step, 0.8 ms at 10 Gbit/s against some 0.1 ms of delay; larger
/// ones measure the memory of the node, not the way between the ranks.
const LARGEST_BYTES: usize = 4 << 20;

/// All-reduces of the next size that must still fit into the window before the size grows.
const WORTH_GROWING: u32 = 3;

/// Most readings kept a size; the window is over long before, except for tiny messages.
const MAX_READINGS: usize = 4096;

/// What rank 0 says about the next all-reduce, as the heads carry it.
const NOT_HEARD: u32 = 0;
const STOP: u32 = 1;

/// What one rank measured.
#[derive(Debug, Default, Clone)]
pub(super) struct Progress {
    /// Completed all-reduces, and how many had the right sum.
    pub iterations: u64,
    pub right: u64,
    /// Size that `samples` belong to; the warm-up has none.
    pub bytes: u64,
    /// busbw of each all-reduce of that size.
    pub samples: Vec<f64>,
    /// The limit ended it.
    pub limited: bool,
    /// Received in all, and in what time.
    pub moved_bytes: u64,
    pub seconds: f64,
}

impl Progress {
    /// The median of the readings; what was moved until the limit where that came first. A rank receives
    /// 2(n-1)/n of the message size in an all-reduce, so bytes received by time is busbw too.
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
    duplex: Duplex,
    position: usize,
    ranks: usize,
    window: Duration,
    until: Until,
    began: Instant,
    /// All-reduces begun so far; the same on every rank.
    iteration: u32,
    /// What rank 0 said about the next one.
    heard: u32,
    data: Vec<u8>,
    scratch: Vec<u8>,
    /// Duration and size of the last one, for rank 0's plan.
    last: Option<(Duration, usize)>,
    pub progress: Progress,
}

impl Ring {
    pub(super) fn new(duplex: Duplex, position: usize, ranks: usize, window: Duration, until: Until) -> Self {
        Self {
            duplex,
            position,
            ranks,
            window,
            until,
            began: Instant::now(),
            iteration: 0,
            heard: NOT_HEARD,
            data: Vec::new(),
            scratch: Vec::new(),
            last: None,
            progress: Progress::default(),
        }
    }

    /// Measures until rank 0 says stop. `progress` holds what was reached, however it ends.
    pub(super) fn run(&mut self) -> Result<(), Cut> {
        self.began = Instant::now();
        let done = self.all_sizes();
        self.progress.moved_bytes = self.duplex.received;
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
            let took = self.all_reduce(size)?;
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

    /// A size that came over the network.
    fn checked(&self, size: u32) -> Result<usize, Cut> {
        let size = size as usize;
        let largest = self.whole(LARGEST_BYTES);
        if size <= STOP as usize || size > largest || !size.is_multiple_of(self.ranks * sums::ELEMENT) {
            return Err(Cut::Previous(format!("the peer asked for an impossible size ({size})")));
        }
        Ok(size)
    }

    /// Rank 0's word on what follows the all-reduce of `size` that is about to start.
    fn plan(&self, size: usize, measured_from: Option<Instant>) -> u32 {
        let word = |size: usize| u32::try_from(size).unwrap_or(STOP);
        let first = word(self.whole(FIRST_BYTES));
        let (Some(from), Some((last, last_size))) = (measured_from, self.last) else { return first };
        // The warm-up is no guide to larger ones.
        let cost =
            if last_size < FIRST_BYTES / 2 { last } else { last.mul_f64(size as f64 / last_size as f64) };
        let left = self.window.saturating_sub(from.elapsed()).saturating_sub(cost);
        let larger = size * GROWTH;
        let growth = u32::try_from(GROWTH).unwrap_or(u32::MAX);
        if larger <= LARGEST_BYTES && cost * growth * WORTH_GROWING <= left && last_size == size {
            word(self.whole(larger))
        } else if left < cost / 2 || left.is_zero() {
            STOP
        } else {
            word(size)
        }
    }

    fn note(&mut self, size: usize, took: Duration) {
        if self.progress.bytes != size as u64 {
            self.progress.bytes = size as u64;
            self.progress.samples.clear();
        }
        let share = 2.0 * (self.ranks - 1) as f64 / self.ranks as f64;
        if self.progress.samples.len() < MAX_READINGS {
            self.progress.samples.push(share * size as f64 / 1e9 / took.as_secs_f64().max(1e-9));
        }
    }

    /// One all-reduce; gives the time from the moment when all ranks were ready.
    fn all_reduce(&mut self, size: usize) -> Result<Duration, Cut> {
        self.iteration += 1;
        let (iteration, ranks) = (self.iteration, u32::try_from(self.ranks).unwrap_or(u32::MAX));
        self.data.resize(size, 0);
        self.scratch.resize(size / self.ranks, 0);
        sums::fill(&mut self.data, u32::try_from(self.position).unwrap_or(u32::MAX), iteration);
        // After as many steps as there are other ranks, everybody has heard of everybody: nobody still fills
        // its buffer or checks its last sums.
        for step in 0..self.ranks - 1 {
            self.step(step, None)?;
        }
        let started = Instant::now();
        for step in 0..self.ranks - 1 {
            let (ours, theirs) = (self.chunk(self.ranks - step), self.chunk(2 * self.ranks - step - 1));
            self.step(self.ranks + step, Some(ours))?;
            sums::add(&mut self.data[theirs], &self.scratch);
        }
        for step in 0..self.ranks - 1 {
            let (ours, theirs) = (self.chunk(self.ranks + 1 - step), self.chunk(self.ranks - step));
            self.step(2 * self.ranks + step, Some(ours))?;
            self.data[theirs].copy_from_slice(&self.scratch);
        }
        let took = started.elapsed();
        self.progress.iterations += 1;
        self.progress.right += u64::from(sums::is_sum(&self.data, ranks, iteration));
        Ok(took)
    }

    /// The share of the data whose number is this rank's plus `offset`, counted around the ring.
    fn chunk(&self, offset: usize) -> std::ops::Range<usize> {
        let length = self.data.len() / self.ranks;
        let index = (self.position + offset) % self.ranks;
        index * length..(index + 1) * length
    }

    /// Sends `ours` of the data to the next rank and receives as much into `scratch`.
    fn step(&mut self, step: usize, ours: Option<std::ops::Range<usize>>) -> Result<(), Cut> {
        let step = u32::try_from(step).unwrap_or(u32::MAX);
        let mut head = [0; HEAD_BYTES];
        for (place, word) in head.chunks_exact_mut(4).zip([self.iteration, step, self.heard, 0]) {
            place.copy_from_slice(&word.to_be_bytes());
        }
        let body = ours.clone().map_or(&[][..], |range| &self.data[range]);
        let into = if ours.is_some() { &mut self.scratch[..] } else { &mut [] };
        let theirs = self.duplex.swap(head, body, into, &self.until)?;
        let mut words = [0; 4];
        for (word, place) in words.iter_mut().zip(theirs.as_chunks::<4>().0) {
            *word = u32::from_be_bytes(*place);
        }
        if words[..2] != [self.iteration, step] {
            return Err(Cut::Previous("the peer sent what is no part of this all-reduce".to_owned()));
        }
        if self.position != 0 {
            self.heard = words[2];
        }
        Ok(())
    }
}
