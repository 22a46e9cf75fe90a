//! The delay matrix: what the network's steps between each two ranks wait for. It is filled only while a slow or stuck
//! transport is looked into.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::c4d::digest::{StepState, StepWait};
use crate::c4d::finding::Who;
use crate::c4d::picture::Picture;
use crate::c4d::settings::Settings;

/// Most cells: each rank of 16,384 with four peers.
pub(super) const MAX_CELLS: usize = 65_536;

/// Most communicators that are looked into at a time.
const MAX_WANTED: usize = 4_096;

/// Fewest steps of a cell that make a mean.
pub(super) const MIN_STEPS: u64 = 8;

/// Most cells that a report shows: of a larger matrix the worst are what a person looks for.
pub const MAX_SHOWN: usize = 64;

/// A cell for a person.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Delay {
    /// The communicator.
    pub comm: u64,
    /// The sender.
    pub from: Who,
    /// The receiver.
    pub to: Who,
    /// Steps in the window.
    pub steps: u64,
    /// What one of them waited for the network, in the mean.
    pub mean_us: u64,
    /// Whether a step waits for the network and none went through in the window.
    pub open: bool,
}

/// The matrix: sender and receiver, by their places in the picture.
#[derive(Debug, Clone, Default)]
pub(super) struct Matrix {
    pub cells: BTreeMap<(usize, usize), Cell>,
    /// Communicators whose steps are wanted, and until when.
    pub wanted: BTreeMap<u64, u64>,
    /// The worst of the last window in which there were any.
    shown: Vec<Delay>,
}

/// One sender and one receiver.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Cell {
    /// The communicator's place.
    pub comm: usize,
    pub steps: u64,
    /// What the sender's steps waited for the network.
    pub wire_us: u64,
    /// What its oldest open step waits for, and when that was told.
    pub open: Option<(StepState, u64)>,
}

impl Cell {
    /// Mean wait of a step, in µs.
    pub fn mean_us(&self) -> u64 {
        self.wire_us / self.steps.max(1)
    }
}

impl Matrix {
    /// Begins a new window: sums start again, what is open stays.
    pub fn new_window(&mut self, now_ms: u64) {
        self.wanted.retain(|_, until_ms| *until_ms > now_ms);
        self.cells.retain(|_, cell| cell.steps > 0 || cell.open.is_some());
        for cell in self.cells.values_mut() {
            (cell.steps, cell.wire_us) = (0, 0);
        }
    }

    /// Wants the steps of a communicator until that time.
    pub fn want(&mut self, id: u64, until_ms: u64) {
        if self.wanted.len() < MAX_WANTED || self.wanted.contains_key(&id) {
            self.wanted.insert(id, until_ms);
        }
    }

    /// Memory that it holds.
    pub fn bytes(&self, entry: usize) -> usize {
        self.shown.capacity() * size_of::<Delay>()
            + self.cells.len() * (size_of::<((usize, usize), Cell)>() + entry)
            + self.wanted.len() * (2 * size_of::<u64>() + entry)
    }
}

impl Picture {
    /// Communicators of which the ranks should record the network's steps: something there is slow or stuck, and the steps
    /// tell where.
    #[must_use]
    pub fn wants_steps(&self) -> BTreeSet<u64> {
        self.matrix.wanted.keys().copied().collect()
    }

    /// What the network's steps waited for in the last window that was looked into: the worst first, at most
    /// [`MAX_SHOWN`].
    #[must_use]
    pub fn delays(&self) -> &[Delay] {
        &self.matrix.shown
    }

    /// Keeps the worst of the window that ends.
    pub(super) fn keep_delays(&mut self, now_ms: u64, settings: &Settings) {
        let stuck = |cell: &Cell| {
            let told = cell.open.filter(|(state, at)| {
                *state == StepState::Wire && now_ms.saturating_sub(*at) < settings.silent_ms
            });
            cell.steps == 0 && told.is_some()
        };
        let mut cells: Vec<(bool, u64, usize, usize)> = self
            .matrix
            .cells
            .iter()
            .filter(|(_, cell)| cell.steps > 0 || stuck(cell))
            .map(|((from, to), cell)| (stuck(cell), cell.mean_us(), *from, *to))
            .collect();
        cells.sort_unstable_by_key(|(stuck, mean_us, from, to)| (Reverse((*stuck, *mean_us)), *from, *to));
        cells.truncate(MAX_SHOWN);
        let shown: Vec<Delay> = cells
            .into_iter()
            .filter_map(|(open, mean_us, from, to)| {
                let cell = self.matrix.cells.get(&(from, to))?;
                let comm = self.comm(cell.comm)?.id;
                let (from, to) = (self.seated(from, cell.comm)?, self.seated(to, cell.comm)?);
                Some(Delay { comm, from, to, steps: cell.steps, mean_us, open })
            })
            .collect();
        if !shown.is_empty() {
            self.matrix.shown = shown;
        }
    }

    /// A rank as a member of a communicator.
    fn seated(&self, who: usize, comm: usize) -> Option<Who> {
        let rank = self.rank(who)?;
        let seat = rank.seats.iter().find(|seat| seat.comm == comm);
        let member = seat.and_then(|seat| self.comm(comm)?.members[seat.member].as_ref());
        let (node, pid, gpu, task) = (rank.node, rank.pid, rank.gpu, rank.task);
        Some(Who { node, pid, gpu, task, rank: member.map(|member| member.rank) })
    }

    /// Takes what one rank told of its steps.
    pub(super) fn take_steps(&mut self, who: usize, comm: usize, steps: &[StepWait], now_ms: u64) {
        // What a receiver waits for is told by everybody behind a slow connection; the sender's wait is the place itself.
        for step in steps.iter().filter(|step| step.send) {
            let Some(peer) = self.comm(comm).and_then(|comm| {
                let place = comm.by_rank.get(&step.peer)?;
                comm.members[*place].as_ref().map(|member| member.who)
            }) else {
                continue;
            };
            let full = self.matrix.cells.len() >= MAX_CELLS;
            if full && !self.matrix.cells.contains_key(&(who, peer)) {
                continue;
            }
            let cell = self.matrix.cells.entry((who, peer)).or_default();
            // Of several channels the one that waits for the network says more than one that waits for its turn.
            let fresh = cell.open.filter(|(state, at)| *at == now_ms && *state == StepState::Wire);
            cell.comm = comm;
            cell.steps = cell.steps.saturating_add(u64::from(step.steps));
            cell.wire_us = cell.wire_us.saturating_add(step.wire_us);
            cell.open = fresh.or(step.open.map(|state| (state, now_ms)));
        }
    }
}
