//! What happens in the simulated job, event by event.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use diag::c4d::digest::{Func, Sample};

use super::count::Count;
use super::program::{DP, NEXT_IN, NEXT_OUT, Op, PREV_IN, PREV_OUT, TP, program};
use super::{Event, Plan, chance};

/// Time of a collective or a send by itself.
const TRANSPORT_US: u64 = 900;

/// Bytes of a collective.
pub const BYTES: u64 = 26_214_400;

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Life {
    Well,
    HostHang,
    GpuHang,
    Paused,
    Gone,
}

#[derive(Debug, Clone)]
pub struct RankState {
    pc: usize,
    step: u64,
    pub life: Life,
    pub since_us: u64,
    /// Inside an operation since then.
    pub inside: bool,
    /// Does something else until then.
    pub away_until_us: u64,
    pub away: (bool, bool),
    pub collectives: [Count; 3],
    pub pairs: [Count; 4],
    pub samples: [Vec<Sample>; 3],
    /// Calls at the last look, since when there are so many, and until when kernels are recorded for that.
    pub calls: (u64, u64),
    pub late_until_us: u64,
}

/// A group of ranks that make a collective.
#[derive(Debug, Clone)]
pub struct Group {
    pub members: Vec<usize>,
    pub nodes: usize,
    come: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Next {
    Computed(usize),
    Collective(usize, usize),
    /// The rank before the connection, and whether it goes forward.
    Pair(usize, bool),
    Resume(usize),
}

/// The simulated job.
#[derive(Debug, Clone)]
pub struct Job {
    pub plan: Plan,
    pub now_us: u64,
    pub ranks: Vec<RankState>,
    /// By kind: tensor, data, world.
    pub groups: [Vec<Group>; 3],
    /// Ends of each connection of a pipeline that have come: by rank before it, forward and backward.
    pairs: Vec<[(u8, u64); 2]>,
    programs: Vec<Vec<Op>>,
    heap: BinaryHeap<Reverse<(u64, Next)>>,
    pub number: u64,
    pub ended: bool,
}

impl Job {
    pub fn new(plan: Plan) -> Self {
        let shape = plan.shape;
        let (tp, pp, dp) = (shape.tp, shape.pp, shape.dp);
        let group = |members: Vec<usize>| {
            let nodes: BTreeSet<usize> = members.iter().map(|rank| rank / shape.per_node).collect();
            Group { members, nodes: nodes.len(), come: 0 }
        };
        let tensor = (0..dp * pp).map(|at| group((0..tp).map(|t| at * tp + t).collect())).collect();
        let data = (0..pp * tp).map(|at| group((0..dp).map(|d| d * pp * tp + at).collect())).collect();
        let world = vec![group((0..shape.ranks()).collect())];
        let rank = RankState {
            pc: 0,
            step: 0,
            life: Life::Well,
            since_us: 0,
            inside: false,
            away_until_us: 0,
            away: (false, false),
            collectives: [Count::default(); 3],
            pairs: [Count::default(); 4],
            samples: [Vec::new(), Vec::new(), Vec::new()],
            calls: (0, 0),
            late_until_us: 0,
        };
        let mut job = Self {
            now_us: 0,
            ranks: vec![rank; shape.ranks()],
            groups: [tensor, data, world],
            pairs: vec![[(0, 0); 2]; shape.ranks()],
            programs: (0..pp).map(|stage| program(stage, pp, tp, dp, shape.batches)).collect(),
            heap: BinaryHeap::new(),
            number: 0,
            ended: false,
            plan,
        };
        (0..job.ranks.len()).for_each(|rank| job.go_on(rank));
        job
    }

    /// Whether kernels of a rank are recorded now.
    pub fn records(&self, rank: usize) -> bool {
        let now_us = self.now_us;
        self.plan.events.iter().all(|event| match *event {
            Event::CallsOnly {} => false,
            Event::BlindRank { rank: one } => one != rank,
            Event::Windows { on_ms, of_ms } => {
                now_us / 1000 % of_ms < on_ms || now_us < self.ranks[rank].late_until_us
            }
            _ => true,
        })
    }

    /// The group of a kind that a rank is in.
    pub fn group_of(&self, kind: usize, rank: usize) -> usize {
        match kind {
            TP => rank / self.plan.shape.tp,
            DP => rank % (self.plan.shape.tp * self.plan.shape.pp),
            _ => 0,
        }
    }

    /// Lets time pass.
    pub fn advance(&mut self, to_ms: u64) {
        while let Some(Reverse((at_us, next))) = self.heap.peek().copied() {
            if at_us > to_ms * 1000 {
                break;
            }
            self.heap.pop();
            self.now_us = at_us;
            match next {
                Next::Computed(rank) => self.computed(rank),
                Next::Collective(kind, group) => self.collective_over(kind, group),
                Next::Pair(from, forward) => self.pair_over(from, forward),
                Next::Resume(rank) => {
                    self.ranks[rank].life = Life::Well;
                    self.go_on(rank);
                }
            }
        }
        self.now_us = to_ms * 1000;
        self.die();
    }

    /// Ranks that are gone from a moment on, whatever they do.
    fn die(&mut self) {
        for event in self.plan.events.clone() {
            let per_node = self.plan.shape.per_node;
            let (first, count, at_ms) = match event {
                Event::Crash { rank, at_ms } => (rank, 1, at_ms),
                Event::NodeLost { node, at_ms } => (node * per_node, per_node, at_ms),
                _ => continue,
            };
            if at_ms * 1000 <= self.now_us {
                for rank in first..(first + count).min(self.ranks.len()) {
                    if self.ranks[rank].life != Life::Gone {
                        self.ranks[rank].life = Life::Gone;
                        self.ranks[rank].since_us = at_ms * 1000;
                    }
                }
            }
        }
    }

    fn is_gone(&self, rank: usize) -> bool {
        let per_node = self.plan.shape.per_node;
        self.plan.events.iter().any(|event| match *event {
            Event::Crash { rank: gone, at_ms } => gone == rank && at_ms * 1000 <= self.now_us,
            Event::NodeLost { node, at_ms } => node == rank / per_node && at_ms * 1000 <= self.now_us,
            Event::Cancelled { at_ms } => at_ms * 1000 <= self.now_us,
            _ => false,
        })
    }

    /// The rank begins what comes next.
    fn go_on(&mut self, rank: usize) {
        if self.is_gone(rank) || self.ended {
            return;
        }
        let program = &self.programs[self.plan.shape.stage(rank)];
        if self.ranks[rank].pc == program.len() {
            self.ranks[rank].pc = 0;
            self.ranks[rank].step += 1;
        }
        if self.ranks[rank].pc == 0 && self.turn(rank) {
            return;
        }
        let op = self.programs[self.plan.shape.stage(rank)][self.ranks[rank].pc];
        // What is called already begins by itself: a program stops before a call.
        let called = match op {
            Op::Compute => false,
            Op::Collective(kind) => self.ranks[rank].collectives[kind].is_called(),
            Op::Pair(end) => self.ranks[rank].pairs[end].is_called(),
        };
        if let Some((life, until_us)) = self.stops(rank).filter(|_| !called) {
            if life == Life::GpuHang {
                // Its program has called the next operation already.
                self.call_next(rank);
            }
            let now_us = self.now_us;
            let state = &mut self.ranks[rank];
            (state.life, state.since_us) = (life, now_us);
            if let Some(until_us) = until_us {
                self.heap.push(Reverse((until_us.max(self.now_us), Next::Resume(rank))));
            }
            return;
        }
        match op {
            Op::Compute => {
                let time = self.computing_us(rank);
                self.call_next(rank);
                self.heap.push(Reverse((self.now_us + time, Next::Computed(rank))));
            }
            _ => self.come(rank, op),
        }
    }

    /// At the start of a step: whether the rank does something else first.
    fn turn(&mut self, rank: usize) -> bool {
        let now_us = self.now_us;
        let last_us = self.ranks[rank].away_until_us;
        // Everybody stops for the same time; who came later stops later.
        let begins = |at_ms: u64, for_ms: u64| {
            (at_ms * 1000..(at_ms + for_ms) * 1000).contains(&now_us) && last_us < at_ms * 1000
        };
        let over = |event: &Event| matches!(*event, Event::JobEnds { at_ms } if at_ms * 1000 <= now_us);
        if self.plan.events.iter().any(over) {
            self.ranks[rank].life = Life::Gone;
            return true;
        }
        let away = self.plan.events.iter().find_map(|event| match *event {
            Event::AllPause { at_ms, for_ms, io, gpu } if begins(at_ms, for_ms) => Some((for_ms, io, gpu)),
            Event::OneWorks { rank: one, at_ms, for_ms, io, gpu } if one == rank && begins(at_ms, for_ms) => {
                Some((for_ms, io, gpu))
            }
            _ => None,
        });
        let away = away.map(|(for_ms, io, gpu)| (now_us + for_ms * 1000, io, gpu));
        if let Some((until_us, io, gpu)) = away {
            self.ranks[rank].away_until_us = until_us;
            self.ranks[rank].away = (io, gpu);
            self.heap.push(Reverse((until_us, Next::Resume(rank))));
            return true;
        }
        false
    }

    /// Whether the rank stops here, and until when.
    fn stops(&self, rank: usize) -> Option<(Life, Option<u64>)> {
        let at = |at_ms: u64| at_ms * 1000 <= self.now_us;
        self.plan.events.iter().find_map(|event| match *event {
            Event::HostHang { rank: one, at_ms, until_ms } if one == rank && at(at_ms) => (until_ms
                .is_none_or(|until| self.now_us < until * 1000))
            .then(|| (Life::HostHang, until_ms.map(|ms| ms * 1000))),
            Event::Pause { rank: one, at_ms, until_ms } if one == rank && at(at_ms) => (until_ms
                .is_none_or(|until| self.now_us < until * 1000))
            .then(|| (Life::Paused, until_ms.map(|ms| ms * 1000))),
            Event::GpuHang { rank: one, at_ms } if one == rank && at(at_ms) => Some((Life::GpuHang, None)),
            _ => None,
        })
    }

    fn computing_us(&self, rank: usize) -> u64 {
        let plan = &self.plan;
        let state = &self.ranks[rank];
        let roll =
            |salt: u64| chance(plan.seed, rank as u64 ^ (salt << 32), state.step * 1000 + state.pc as u64);
        let mut time = plan.compute_ms * 1000.0 * (1.0 + plan.uneven * plan.shape.stage(rank) as f64);
        time *= 1.0 + plan.jitter * (roll(1) * 2.0 - 1.0);
        // Now and then the system takes the processor away.
        if roll(2) < plan.jitter / 30.0 {
            time *= 1.0 + 2.0 * roll(3);
        }
        if state.step == 0 {
            time *= 1.0 + (plan.first_step - 1.0) * (0.5 + 0.5 * roll(4));
        }
        for event in &plan.events {
            time *= match *event {
                Event::Slow { rank: one, at_ms, factor } | Event::Popular { rank: one, at_ms, factor }
                    if one == rank && at_ms * 1000 <= self.now_us =>
                {
                    factor
                }
                Event::SlowNode { node, at_ms, factor }
                    if node == rank / plan.shape.per_node && at_ms * 1000 <= self.now_us =>
                {
                    factor
                }
                _ => 1.0,
            };
        }
        time as u64
    }

    /// The rank's program calls its next operation while the GPU computes.
    fn call_next(&mut self, rank: usize) {
        let program = &self.programs[self.plan.shape.stage(rank)];
        let next = program[self.ranks[rank].pc..].iter().find(|op| **op != Op::Compute).copied();
        let (now_us, recorded) = (self.now_us, self.records(rank));
        let state = &mut self.ranks[rank];
        let count = match next {
            Some(Op::Collective(kind)) => &mut state.collectives[kind],
            Some(Op::Pair(end)) => &mut state.pairs[end],
            _ => return,
        };
        count.call(now_us, recorded);
    }

    fn computed(&mut self, rank: usize) {
        if self.is_gone(rank) {
            return;
        }
        self.ranks[rank].pc += 1;
        self.go_on(rank);
    }

    /// The rank's GPU comes to an operation.
    fn come(&mut self, rank: usize, op: Op) {
        let (now_us, recorded) = (self.now_us, self.records(rank));
        self.ranks[rank].inside = true;
        match op {
            Op::Compute => {}
            Op::Collective(kind) => {
                self.ranks[rank].collectives[kind].start(now_us, recorded);
                let at = self.group_of(kind, rank);
                let group = &mut self.groups[kind][at];
                group.come += 1;
                if group.come == group.members.len()
                    && let Some(time) = self.transport_us(kind, at)
                {
                    self.heap.push(Reverse((now_us + time, Next::Collective(kind, at))));
                }
            }
            Op::Pair(end) => {
                self.ranks[rank].pairs[end].start(now_us, recorded);
                let (from, forward) = self.connection(rank, end);
                let pair = &mut self.pairs[from][usize::from(forward)];
                *pair = (pair.0 + 1, now_us);
                if pair.0 == 2 {
                    let time = self.send_us(from, forward);
                    self.heap.push(Reverse((now_us + time, Next::Pair(from, forward))));
                }
            }
        }
    }

    fn send_us(&self, from: usize, forward: bool) -> u64 {
        let slow = self.plan.events.iter().find_map(|event| match *event {
            Event::SlowPipe { rank, at_ms, factor }
                if rank == from && forward && at_ms * 1000 <= self.now_us =>
            {
                Some(factor)
            }
            _ => None,
        });
        (TRANSPORT_US as f64 * slow.unwrap_or(1.0)) as u64
    }

    /// A pipeline's connection: the rank before it, and whether the data goes forward.
    fn connection(&self, rank: usize, end: usize) -> (usize, bool) {
        match end {
            PREV_IN => (rank - self.plan.shape.tp, true),
            PREV_OUT => (rank - self.plan.shape.tp, false),
            NEXT_IN => (rank, false),
            _ => (rank, true),
        }
    }

    /// How long the operation itself takes; `None`: it does not end.
    fn transport_us(&self, kind: usize, at: usize) -> Option<u64> {
        let now_us = self.now_us;
        let mut time = TRANSPORT_US as f64;
        for event in self.plan.events.iter().filter(|_| kind == DP) {
            match *event {
                Event::SlowLink { rank, .. } if self.group_of(DP, rank) == at => {
                    time *= event.slows_link(rank, now_us).unwrap_or(1.0);
                }
                Event::StuckLink { rank, at_ms }
                    if self.group_of(DP, rank) == at && at_ms * 1000 <= now_us =>
                {
                    return None;
                }
                _ => {}
            }
        }
        let roll = chance(self.plan.seed, (kind * 1_000_003 + at) as u64, now_us);
        Some((time * (1.0 + self.plan.jitter * roll)) as u64)
    }

    fn collective_over(&mut self, kind: usize, at: usize) {
        let members = self.groups[kind][at].members.clone();
        if members.iter().any(|rank| self.is_gone(*rank)) {
            return;
        }
        self.groups[kind][at].come = 0;
        let now_us = self.now_us;
        for rank in members {
            let state = &mut self.ranks[rank];
            let count = &mut state.collectives[kind];
            let kernel_us = (now_us - count.at_us[1]) as u32;
            let seq = count.finished;
            let recorded = count.finish(now_us);
            if recorded {
                state.samples[kind].push(Sample { func: Func::AllReduce, seq, bytes: BYTES, kernel_us });
            }
            self.over(rank);
        }
    }

    fn pair_over(&mut self, from: usize, forward: bool) {
        let to = from + self.plan.shape.tp;
        if self.is_gone(from) || self.is_gone(to) {
            return;
        }
        self.pairs[from][usize::from(forward)] = (0, 0);
        let ends =
            if forward { [(from, NEXT_OUT), (to, PREV_IN)] } else { [(to, PREV_OUT), (from, NEXT_IN)] };
        for (rank, end) in ends {
            self.ranks[rank].pairs[end].finish(self.now_us);
            self.over(rank);
        }
    }

    /// The rank leaves an operation.
    fn over(&mut self, rank: usize) {
        self.ranks[rank].inside = false;
        self.ranks[rank].pc += 1;
        self.go_on(rank);
    }
}
