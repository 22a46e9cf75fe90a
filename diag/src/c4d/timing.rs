//! Times of one communicator's collectives, compared over its members without any common clock: in a collective that
//! synchronises, all leave at about the same time, so whoever was in it shortest came last. What the shortest time itself is
//! made of is the transport.

use std::collections::VecDeque;

use crate::c4d::digest::{Func, MAX_SAMPLES, Sample};
use crate::c4d::settings::Settings;

/// How long the times of an operation may take to come in: three digests.
const PENDING_MS: u64 = 3_000;

/// Most operations of a communicator whose times are still coming in. A node may be behind another by that time, and each
/// digest brings so many: with less room than both send meanwhile, none would wait long enough for the other's.
const MAX_PENDING: usize = 2 * MAX_SAMPLES * (PENDING_MS / 1_000 + 1) as usize;

/// Most sizes of operations that a communicator's transport is watched at; the first ones of a window.
const MAX_CLASSES: usize = 4;

/// Times that are kept of each for a median.
const MAX_TIMES: usize = 16;

/// Fewest of them that make a median.
const MIN_TIMES: usize = 3;

/// Most windows that a stretched one lasts.
const MAX_STRETCH: u64 = 6;

/// Share of the median wait below which a member's own is that of the last to come: neither jitter nor the order of
/// channels moves a quarter.
const LATE_PART: u64 = 4;

/// Times of one communicator.
#[derive(Debug, Clone, Default)]
pub(super) struct Timing {
    pending: VecDeque<Op>,
    /// By place of the member.
    sums: Vec<Sum>,
    compared: u64,
    classes: Vec<SizeClass>,
    since_ms: u64,
    ops_before: u64,
    /// Who was late and how long members were inside in the last whole window, and when that ended.
    last: Option<(u64, Window)>,
}

/// One operation whose times come in.
#[derive(Debug, Clone)]
struct Op {
    func: Func,
    seq: u64,
    bytes: u64,
    first_ms: u64,
    /// By place of the member; 0: not told.
    times_us: Vec<u32>,
    got: usize,
}

/// What a window showed of one member.
#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    ops: u32,
    late: u32,
    late_us: u64,
    /// Time inside, over all its operations.
    inside_us: u64,
}

/// The last to come, over operations of one function and size.
#[derive(Debug, Clone)]
struct SizeClass {
    func: Func,
    bytes: u64,
    last_us: VecDeque<u32>,
    ops: u64,
    /// Its medians in the two best windows so far. The second one counts: one window alone may be a moment of quiet.
    best_us: [Option<u32>; 2],
}

/// A member that came last in most operations of a window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Late {
    pub place: usize,
    /// In how many of how many operations.
    pub late: u32,
    pub ops: u32,
    /// How long the others waited for it, on average where it was late.
    pub wait_us: u64,
    /// What that cost, as a share of the time.
    pub share: f64,
}

/// How long the last to come was in operations of one function and size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Transport {
    pub func: Func,
    pub bytes: u64,
    pub now_us: u32,
    /// At its best before this window.
    pub best_us: Option<u32>,
    /// Operations of this kind a second.
    pub per_s: f64,
}

/// What a window showed of a communicator.
#[derive(Debug, Clone, Default)]
pub(super) struct Window {
    pub span_ms: u64,
    pub late: Vec<Late>,
    /// Share of the time that each member was inside, by place.
    pub inside: Vec<f64>,
    pub transport: Vec<Transport>,
}

impl Timing {
    /// Takes one member's time of one operation.
    pub fn take(&mut self, place: usize, sample: &Sample, now_ms: u64, settings: &Settings) {
        if !sample.func.synchronises() {
            return;
        }
        let same = |op: &Op| op.seq == sample.seq && op.func == sample.func;
        let at = self.pending.iter().position(same).unwrap_or_else(|| {
            if self.pending.len() == MAX_PENDING
                && let Some(oldest) = self.pending.pop_front()
            {
                self.close(&oldest, settings);
            }
            self.pending.push_back(Op {
                func: sample.func,
                seq: sample.seq,
                bytes: sample.bytes,
                first_ms: now_ms,
                times_us: Vec::new(),
                got: 0,
            });
            self.pending.len() - 1
        });
        let op = &mut self.pending[at];
        if op.times_us.len() <= place {
            op.times_us.resize(place + 1, 0);
        }
        if op.times_us[place] == 0 {
            op.got += 1;
        }
        op.times_us[place] = sample.kernel_us.max(1);
    }

    /// Compares the operations of which all `members` told, or will tell no more.
    pub fn settle(&mut self, members: usize, now_ms: u64, settings: &Settings) {
        let mut open = VecDeque::new();
        for op in std::mem::take(&mut self.pending) {
            if op.got >= members || now_ms.saturating_sub(op.first_ms) >= PENDING_MS {
                self.close(&op, settings);
            } else {
                open.push_back(op);
            }
        }
        self.pending = open;
    }

    fn close(&mut self, op: &Op, settings: &Settings) {
        let mut times: Vec<u32> = op.times_us.iter().copied().filter(|time| *time > 0).collect();
        // One alone has nobody to be compared with.
        if times.len() < 2 {
            return;
        }
        let middle = times.len() / 2;
        // Of two the longer one: that one waited.
        let median = u64::from(*times.select_nth_unstable(middle).1);
        let last = op.times_us.iter().copied().filter(|time| *time > 0).min().unwrap_or(1);
        self.compared += 1;
        self.note_last(op, last);
        if self.sums.len() < op.times_us.len() {
            self.sums.resize(op.times_us.len(), Sum::default());
        }
        let least = settings.late_us.max(median / LATE_PART);
        let near_last = u64::from(last) + (median - u64::from(last)) / LATE_PART;
        for (sum, time) in self.sums.iter_mut().zip(&op.times_us).filter(|(_, time)| **time > 0) {
            sum.ops += 1;
            let time = u64::from(*time);
            sum.inside_us += time;
            let wait = median.saturating_sub(time);
            if wait >= least && time <= near_last {
                sum.late += 1;
                sum.late_us += wait;
            }
        }
    }

    fn note_last(&mut self, op: &Op, last_us: u32) {
        let same = |class: &SizeClass| class.func == op.func && class.bytes == op.bytes;
        let unused = |class: &SizeClass| class.ops == 0 && class.best_us[1].is_none();
        let fresh = || SizeClass {
            func: op.func,
            bytes: op.bytes,
            last_us: VecDeque::new(),
            ops: 0,
            best_us: [None; 2],
        };
        let at = if let Some(at) = self.classes.iter().position(same) {
            at
        } else if self.classes.len() < MAX_CLASSES {
            self.classes.push(fresh());
            self.classes.len() - 1
        } else if let Some(at) = self.classes.iter().position(unused) {
            self.classes[at] = fresh();
            at
        } else {
            return;
        };
        let class = &mut self.classes[at];
        class.ops += 1;
        if class.last_us.len() == MAX_TIMES {
            class.last_us.pop_front();
        }
        class.last_us.push_back(last_us);
    }

    /// The window, once it has enough operations; `None`: it goes on. `ops` are the synchronising collectives that the
    /// communicator has made since its start.
    pub fn end_window(&mut self, ops: u64, now_ms: u64, settings: &Settings) -> Option<Window> {
        if self.since_ms == 0 {
            self.restart(ops, now_ms);
            return None;
        }
        let span_ms = now_ms.saturating_sub(self.since_ms).max(1);
        if self.compared < settings.min_ops {
            if span_ms >= settings.window_ms * MAX_STRETCH {
                self.restart(ops, now_ms);
            }
            return None;
        }
        // A sample stands for as many operations as were made for each that was compared.
        let made = ops.saturating_sub(self.ops_before).max(self.compared);
        let weight = made as f64 / self.compared as f64;
        let span_us = span_ms as f64 * 1000.0;
        let late = self.sums.iter().enumerate().filter(|(_, sum)| {
            u64::from(sum.ops) >= settings.min_ops
                && f64::from(sum.late) >= settings.late_share * f64::from(sum.ops)
        });
        let late = late.map(|(place, sum)| Late {
            place,
            late: sum.late,
            ops: sum.ops,
            wait_us: sum.late_us / u64::from(sum.late.max(1)),
            share: sum.late_us as f64 * weight / span_us,
        });
        let late: Vec<Late> = late.filter(|one| one.share >= settings.slow_share).collect();
        let inside = self.sums.iter().map(|sum| sum.inside_us as f64 * weight / span_us).collect();
        let mut transport = Vec::new();
        for class in self.classes.iter_mut().filter(|class| class.last_us.len() >= MIN_TIMES) {
            let mut times: Vec<u32> = class.last_us.iter().copied().collect();
            let middle = times.len() / 2;
            let now_us = *times.select_nth_unstable(middle).1;
            let per_s = class.ops as f64 * weight * 1000.0 / span_ms as f64;
            let SizeClass { func, bytes, best_us, .. } = *class;
            transport.push(Transport { func, bytes, now_us, best_us: best_us[1], per_s });
            class.best_us = match best_us {
                [Some(first), _] if now_us < first => [Some(now_us), Some(first)],
                [Some(first), second] => {
                    [Some(first), Some(second.map_or(now_us, |second| second.min(now_us)))]
                }
                [None, _] => [Some(now_us), None],
            };
        }
        self.restart(ops, now_ms);
        let window = Window { span_ms, late, inside, transport };
        self.last = Some((now_ms, Window { transport: Vec::new(), ..window.clone() }));
        Some(window)
    }

    /// What the last whole window showed, as long as the next one may take.
    pub fn last(&self, now_ms: u64, settings: &Settings) -> Option<&Window> {
        let (at_ms, window) = self.last.as_ref()?;
        (now_ms.saturating_sub(*at_ms) <= settings.window_ms * MAX_STRETCH).then_some(window)
    }

    fn restart(&mut self, ops: u64, now_ms: u64) {
        self.since_ms = now_ms.max(1);
        self.ops_before = ops;
        self.compared = 0;
        self.sums.clear();
        for class in &mut self.classes {
            class.last_us.clear();
            class.ops = 0;
        }
    }

    /// Forgets what is counted by place: a member left, and its place may be another's.
    pub fn forget_places(&mut self) {
        self.pending.clear();
        self.sums.clear();
        self.compared = 0;
        self.last = None;
    }

    /// Memory that it holds beside itself.
    pub fn bytes(&self) -> usize {
        let pending: usize = self.pending.iter().map(|op| op.times_us.capacity() * size_of::<u32>()).sum();
        let classes: usize =
            self.classes.iter().map(|class| class.last_us.capacity() * size_of::<u32>()).sum();
        let last = self.last.as_ref().map_or(0, |(_, window)| {
            window.inside.capacity() * size_of::<f64>() + window.late.capacity() * size_of::<Late>()
        });
        pending
            + classes
            + last
            + self.pending.capacity() * size_of::<Op>()
            + self.sums.capacity() * size_of::<Sum>()
            + self.classes.capacity() * size_of::<SizeClass>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Windows of two ranks, each of which tells eight operations a second; the second one tells so many seconds later.
    fn windows(behind_s: u64, seconds: u64) -> Vec<Window> {
        let settings = Settings::default();
        let mut timing = Timing::default();
        let sample = |seq, kernel_us| Sample { func: Func::AllReduce, seq, bytes: 4096, kernel_us };
        let mut windows = Vec::new();
        for second in 0..seconds {
            let now_ms = (second + 1) * 1_000;
            for at in 0..MAX_SAMPLES as u64 {
                timing.take(0, &sample(second * 8 + at, 20_000), now_ms, &settings);
                if let Some(told) = second.checked_sub(behind_s) {
                    timing.take(1, &sample(told * 8 + at, 1_000), now_ms, &settings);
                }
            }
            timing.settle(2, now_ms, &settings);
            if second % 10 == 9 {
                windows.extend(timing.end_window(second * 8, now_ms, &settings));
            }
        }
        windows
    }

    #[test]
    fn a_rank_whose_times_come_later_is_compared_all_the_same() {
        for behind_s in 0..=3 {
            let windows = windows(behind_s, 31);
            assert_eq!(windows.len(), 2, "{behind_s} s behind");
            for window in windows {
                let [late] = window.late.as_slice() else { panic!("{behind_s} s behind: {window:?}") };
                assert_eq!((late.place, late.wait_us), (1, 19_000), "{behind_s} s behind");
            }
        }
        // One that is further behind is another matter: what it tells is too old.
        assert!(windows(6, 31).iter().all(|window| window.late.is_empty()));
    }
}
