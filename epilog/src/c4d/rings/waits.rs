//! What the network's steps waited for, while the agent asks for them: sums of the transfers that ended in this window, by
//! peer, channel and direction, and what is open now.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use diag::c4d::digest::{MAX_STEPS, StepState, StepWait};
use nccl_profiler::ring::{LiveStep, Steps};

/// Most connections of a communicator whose waits are summed: 64 channels to and from four peers. Beyond it new ones are
/// left out; 32 are told.
const MOST_SUMS: usize = 512;

/// Longest sum that is told: an hour. A window has a second.
const MOST_US: u64 = 3_600_000_000;

/// The sums of one communicator.
#[derive(Debug, Default)]
pub(super) struct Waits {
    /// By peer, channel, and whether it sends.
    sums: BTreeMap<(i32, u8, bool), Sum>,
}

#[derive(Debug, Default)]
struct Sum {
    steps: u64,
    first_ns: u64,
    second_ns: u64,
    third_ns: u64,
    /// Since when the oldest that is open waits, and for what.
    open: Option<(u64, StepState)>,
}

impl Waits {
    pub(super) fn clear(&mut self) {
        self.sums.clear();
    }

    fn sum(&mut self, key: (i32, u8, bool)) -> Option<&mut Sum> {
        let room = self.sums.len() < MOST_SUMS || self.sums.contains_key(&key);
        room.then(|| self.sums.entry(key).or_default())
    }

    /// A transfer ended.
    pub(super) fn add(&mut self, steps: &Steps) {
        let Some(sum) = self.sum((steps.op.peer, steps.channel, steps.send)) else { return };
        sum.steps += u64::from(steps.count);
        for (all, more) in [
            (&mut sum.first_ns, steps.first_ns),
            (&mut sum.second_ns, steps.second_ns),
            (&mut sum.third_ns, steps.third_ns),
        ] {
            *all = all.saturating_add(more);
        }
    }

    /// A transfer is open.
    pub(super) fn open(&mut self, step: &LiveStep) {
        let state = match step.state {
            8 | 11 | 12 => StepState::Gpu,
            20 => StepState::Credit,
            9 => StepState::Wire,
            10 => StepState::Data,
            // None of its steps has begun.
            _ => return,
        };
        let Some(sum) = self.sum((step.peer, step.channel, step.send)) else { return };
        if sum.open.is_none_or(|(since_ns, _)| step.since_ns < since_ns) {
            sum.open = Some((step.since_ns, state));
        }
    }

    /// As the digest tells them: those that are open longest first, then those that waited longest.
    pub(super) fn told(&self, ranks: u32) -> Vec<StepWait> {
        let us = |ns: u64| (ns / 1000).min(MOST_US);
        let mut all: Vec<(&Sum, StepWait)> = Vec::new();
        for ((peer, channel, send), sum) in &self.sums {
            let Some(peer) = u32::try_from(*peer).ok().filter(|peer| *peer < ranks) else { continue };
            let (gpu_ns, credit_ns, wire_ns) = if *send {
                (sum.first_ns, sum.second_ns, sum.third_ns)
            } else {
                (sum.second_ns.saturating_add(sum.third_ns), 0, sum.first_ns)
            };
            let wait = StepWait {
                peer,
                channel: *channel,
                send: *send,
                steps: u32::try_from(sum.steps).unwrap_or(u32::MAX),
                gpu_us: us(gpu_ns),
                credit_us: us(credit_ns),
                wire_us: us(wire_ns),
                open: sum.open.map(|(_, state)| state),
            };
            all.push((sum, wait));
        }
        all.sort_by_key(|(sum, wait)| {
            (
                sum.open.map_or(u64::MAX, |(since_ns, _)| since_ns),
                Reverse(wait.wire_us),
                wait.peer,
                wait.channel,
            )
        });
        all.truncate(MAX_STEPS);
        all.into_iter().map(|(_, wait)| wait).collect()
    }
}
