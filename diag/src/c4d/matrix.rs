//! The delay matrix: what the network's steps between each two ranks wait for. It is filled only while a slow or stuck
//! transport is looked into.

use std::collections::{BTreeMap, BTreeSet};

use crate::c4d::digest::{StepState, StepWait};
use crate::c4d::picture::Picture;

/// Most cells: each rank of 16,384 with four peers.
pub(super) const MAX_CELLS: usize = 65_536;

/// Most communicators that are looked into at a time.
const MAX_WANTED: usize = 4_096;

/// Fewest steps of a cell that make a mean.
pub(super) const MIN_STEPS: u64 = 8;

/// The matrix: sender and receiver, by their places in the picture.
#[derive(Debug, Clone, Default)]
pub(super) struct Matrix {
    pub cells: BTreeMap<(usize, usize), Cell>,
    /// Communicators whose steps are wanted, and until when.
    pub wanted: BTreeMap<u64, u64>,
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
        self.cells.len() * (size_of::<((usize, usize), Cell)>() + entry)
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
