//! What the agent asks of a rank's plugin: when NCCL tells begin and end of kernels (KernelCh), which most of the cost comes
//! from, and when it tells of the network's steps. [`Orders`] chooses and touches nothing; [`Pen`] is the one place that
//! writes into a ring's file.
//!
//! A job that makes few collectives has KernelCh on all the time. One that makes many has it in windows that begin with
//! numbers which all ranks of a communicator count alike ([`Kernels::Every`]), so that they look at the same operations and no
//! two clocks are compared. What looks late has it on at once; what is enqueued already stays untold.

use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use diag::c4d::digest::MAX_RANKS;
use nccl_profiler::ring::{Kernels, ORDER_AT, Order};

/// What KernelCh costs an operation: 6 µs a small all-reduce, up to 14 µs one of a MiB, on two H200 with NCCL 2.28.9
/// (docs/runtime.md).
const KERNELS_S: f64 = 10e-6;

/// Share of a job's time that it may cost.
const SHARE: f64 = 0.005;

/// Operations a second up to which it costs no more than that when it is on all the time.
const FEW_PER_S: f64 = SHARE / KERNELS_S;

/// From the begin of a window to the next one of the busiest communicator: two fall into a window of the rules (10 s), each with
/// enough operations for eight samples.
const PERIOD_S: f64 = 5.0;

/// Shortest window: ranks come to an operation milliseconds apart, since hosts run ahead of their GPUs.
const SHORTEST_MS: f64 = 20.0;

/// Longest: a part of the period.
const LONGEST_MS: f64 = 2_500.0;

/// Looks over which a rank's pace is taken: steps of a job take seconds.
const LOOKS: usize = 10;

/// Nothing was enqueued for so long: two looks.
const STILL: Duration = Duration::from_secs(2);

/// How long something looks late after the last sign of it: two windows of the rules, and some.
const LATE: Duration = Duration::from_secs(30);

/// An order to tell kernels ends by itself, so that an agent that died leaves nothing costly behind; it is renewed before.
const KERNELS_MS: u16 = 60_000;
const KERNELS_AGAIN: Duration = Duration::from_secs(20);

/// The same of steps, which are wanted anew every second.
const STEPS_MS: u16 = 5_000;
const STEPS_AGAIN: Duration = Duration::from_secs(2);

/// What a rank did since the last look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pace {
    /// Operations that it enqueued.
    pub made: u64,
    /// Those of the function and communicator with most of them.
    pub busiest: u64,
    /// Whether it has a communicator that lives and was used.
    pub works: bool,
}

/// What others want of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wish {
    /// The network's steps.
    pub steps: bool,
    /// A finding stands.
    pub trouble: bool,
}

/// The orders of one rank.
#[derive(Debug, Default)]
pub struct Orders {
    last: Option<(Order, Instant)>,
    paces: VecDeque<(Instant, Pace)>,
    moved: Option<Instant>,
    late: Option<Instant>,
}

impl Orders {
    /// The order to write now, if one is to be written. Once a second.
    pub fn choose(&mut self, pace: Pace, wish: Wish, now: Instant) -> Option<Order> {
        self.paces.push_back((now, pace));
        while self.paces.len() > LOOKS + 1 {
            self.paces.pop_front();
        }
        if pace.made > 0 || !pace.works {
            self.moved = Some(now);
        }
        let since = |at: Option<Instant>| at.map(|at| now.saturating_duration_since(at));
        let still = since(self.moved).is_some_and(|still| still >= STILL);
        if still || wish.steps || wish.trouble {
            self.late = Some(now);
        }
        let late = since(self.late).is_some_and(|late| late < LATE);
        let kernels = if late { Kernels::For(KERNELS_MS) } else { self.by_pace() };
        let steps_ms = if wish.steps { STEPS_MS } else { 0 };
        if let Some((order, at)) = self.last {
            let age = now.saturating_duration_since(at);
            let again = match kernels {
                Kernels::For(_) => age >= KERNELS_AGAIN,
                _ => false,
            };
            // One that is not wanted any more ends by itself.
            let steps = wish.steps && (order.steps_ms == 0 || age >= STEPS_AGAIN);
            if order.kernels == kernels && !again && !steps {
                return None;
            }
        }
        let number = self.last.map_or(0, |(order, _)| order.number).wrapping_add(1).max(1);
        Some(Order { number, telemetry: true, kernels, steps_ms })
    }

    /// That order is on its way. One that is not is chosen again.
    pub fn wrote(&mut self, order: Order, now: Instant) {
        self.last = Some((order, now));
    }

    /// By how much a rank does: all the time, or again and again.
    fn by_pace(&self) -> Kernels {
        let always = Kernels::For(KERNELS_MS);
        let (Some((first, _)), Some((last, _))) = (self.paces.front(), self.paces.back()) else {
            return always;
        };
        let span_s = last.saturating_duration_since(*first).as_secs_f64();
        let kept = self.last.map(|(order, _)| order.kernels);
        if span_s < 1.0 {
            return kept.unwrap_or(always);
        }
        // What the first look found was made before it.
        let counted = || self.paces.iter().skip(1).map(|(_, pace)| pace);
        let per_s = |made: u64| made as f64 / span_s;
        // What a rank counts is its own word.
        let all = per_s(counted().map(|pace| pace.made).fold(0, u64::saturating_add));
        let busiest = per_s(counted().map(|pace| pace.busiest).fold(0, u64::saturating_add));
        match kept {
            // Between the two it stays as it is.
            Some(Kernels::Every { .. }) if all < FEW_PER_S / 2.0 => always,
            Some(kept @ Kernels::Every { .. }) => {
                let wanted = every(all, busiest);
                if near(kept, wanted) { kept } else { wanted }
            }
            _ if all <= FEW_PER_S => always,
            _ => every(all, busiest),
        }
    }
}

/// Windows of a rank that makes so many operations a second, and in one communicator.
fn every(all: f64, busiest: f64) -> Kernels {
    let share = (FEW_PER_S / all.max(1.0)).min(1.0);
    // Each communicator begins windows of its own: so rarely that the shortest ones fit into the share.
    let least = all * SHORTEST_MS / 1000.0 / share;
    let apart = (busiest * PERIOD_S).max(least).max(1.0);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 31")]
    let shift = apart.log2().ceil().clamp(0.0, 31.0) as u8;
    let begins_per_s = all / f64::from(2_u32.saturating_pow(u32::from(shift)));
    let ms = (1000.0 * share / begins_per_s).clamp(SHORTEST_MS, LONGEST_MS);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
    Kernels::Every { shift, ms: ms as u16 }
}

/// Whether two kinds of windows are so near that a new order is not worth it: a pace is never twice the same.
fn near(one: Kernels, other: Kernels) -> bool {
    match (one, other) {
        (Kernels::Every { shift, ms }, Kernels::Every { shift: other, ms: wanted }) => {
            shift.abs_diff(other) <= 1 && wanted >= ms / 4 && wanted <= ms.saturating_mul(4)
        }
        _ => one == other,
    }
}

/// Writes orders into one ring's file.
///
/// The file is the process's too, and the kernel takes the file's lock for a write: a process that holds it, by a write of
/// its own that never ends, must not stop the agent. So each word has a thread of its own, one at a time; one that does not come
/// back keeps that thread until its process ends, and its ring gets no further orders. A process may come again and again, each time
/// with a new ring, so that all pens of an agent count their threads together. A page that the process gave back is made
/// anew by the write, at most one a ring.
#[derive(Debug, Default)]
pub struct Pen {
    busy: Arc<AtomicBool>,
    writing: Arc<AtomicUsize>,
}

/// Most threads that write orders at a time: each rank's that a node may have.
const MOST_WRITING: usize = MAX_RANKS;

impl Pen {
    /// A pen for another ring of the same agent.
    #[must_use]
    pub fn another(&self) -> Self {
        Self { busy: Arc::default(), writing: Arc::clone(&self.writing) }
    }

    /// Writes one order; false: the one before is still being written, too many others are, or the system refused.
    pub fn write(&self, ring: &File, order: Order) -> bool {
        // Only the agent's loop adds to it, so that nothing comes between the look and the addition.
        if self.busy.load(Ordering::Acquire) || self.writing.load(Ordering::Acquire) >= MOST_WRITING {
            return false;
        }
        let Ok(file) = ring.try_clone() else { return false };
        self.busy.store(true, Ordering::Release);
        self.writing.fetch_add(1, Ordering::AcqRel);
        let done = Self { busy: Arc::clone(&self.busy), writing: Arc::clone(&self.writing) };
        let write = move || {
            // A file that is sealed against writing keeps what holds without an order.
            _ = file.write_at(&order.to_bytes(), ORDER_AT);
            done.put_down();
        };
        let started = thread::Builder::new().name("order".to_owned()).spawn(write).is_ok();
        if !started {
            self.put_down();
        }
        started
    }

    fn put_down(&self) {
        self.busy.store(false, Ordering::Release);
        self.writing.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_WISH: Wish = Wish { steps: false, trouble: false };

    fn pace(made: u64, busiest: u64) -> Pace {
        Pace { made, busiest, works: true }
    }

    /// Looks once a second; the orders, with their seconds.
    fn orders(seconds: u64, does: impl Fn(u64) -> (Pace, Wish)) -> Vec<(u64, Order)> {
        let begun = Instant::now();
        let mut orders = Orders::default();
        let at = |second| begun + Duration::from_secs(second);
        let each = |second| {
            let (pace, wish) = does(second);
            let order = orders.choose(pace, wish, at(second))?;
            orders.wrote(order, at(second));
            Some((second, order))
        };
        (0..seconds).filter_map(each).collect()
    }

    #[test]
    fn an_order_that_is_not_on_its_way_is_chosen_again() {
        let (mut orders, begun) = (Orders::default(), Instant::now());
        let at = |second| begun + Duration::from_secs(second);
        let first = orders.choose(pace(1, 1), NO_WISH, at(0)).unwrap();
        assert_eq!(orders.choose(pace(1, 1), NO_WISH, at(1)), Some(first));
        orders.wrote(first, at(1));
        assert_eq!(orders.choose(pace(1, 1), NO_WISH, at(2)), None);
    }

    #[test]
    fn few_operations_are_told_all_the_time_and_the_order_is_renewed() {
        let orders = orders(70, |_| (pace(400, 100), NO_WISH));
        let seconds: Vec<u64> = orders.iter().map(|(second, _)| *second).collect();
        assert_eq!(seconds, [0, 20, 40, 60]);
        assert!(orders.iter().all(|(_, order)| order.kernels == Kernels::For(60_000) && order.steps_ms == 0));
        let numbers: Vec<u16> = orders.iter().map(|(_, order)| order.number).collect();
        assert_eq!(numbers, [1, 2, 3, 4]);
    }

    #[test]
    fn many_operations_are_told_in_windows_that_cost_what_they_may() {
        for (all, busiest) in [(600, 600), (2_000, 400), (50_000, 50_000), (50_000, 5_000), (200_000, 100)] {
            // The pace of a step is never even.
            let orders = orders(60, |second| (pace(all + second % 3 * all / 20, busiest), NO_WISH));
            let (_, last) = orders.last().unwrap();
            let Kernels::Every { shift, ms } = last.kernels else { panic!("{all}: {orders:?}") };
            assert!(orders.len() <= 2, "{all}: {orders:?}");
            let begins_per_s = all as f64 / f64::from(1_u32 << shift);
            let on = (begins_per_s * f64::from(ms) / 1000.0).min(1.0);
            assert!(on * all as f64 * KERNELS_S <= SHARE * 1.1, "{all}: {on} {last:?}");
            let period_s = f64::from(1_u32 << shift) / all as f64;
            assert!(period_s * 1000.0 >= f64::from(ms), "{all}: {last:?}");
        }
        // And all the time again, once they are few.
        let orders =
            orders(60, |second| (if second < 20 { pace(9_000, 9_000) } else { pace(100, 100) }, NO_WISH));
        assert!(matches!(orders.last().unwrap().1.kernels, Kernels::For(_)), "{orders:?}");
    }

    #[test]
    fn all_ranks_of_a_communicator_have_windows_at_common_numbers() {
        // Their counts differ by what falls into a look, and by what else they do.
        let shifts = [(9_000, 8_000), (9_500, 8_400), (16_000, 7_900)].map(|(all, busiest)| {
            let Kernels::Every { shift, .. } = every(f64::from(all), f64::from(busiest)) else { panic!() };
            shift
        });
        // Multiples of a larger power of two are multiples of a smaller one.
        assert!(shifts.iter().max().unwrap() - shifts.iter().min().unwrap() <= 1, "{shifts:?}");
    }

    #[test]
    fn what_looks_late_is_told_at_once_and_for_a_while() {
        let busy = pace(20_000, 20_000);
        let stops = |second| if (20..25).contains(&second) { pace(0, 0) } else { busy };
        let of_stop = orders(90, |second| (stops(second), NO_WISH));
        let on: Vec<u64> = of_stop
            .iter()
            .filter(|(_, order)| matches!(order.kernels, Kernels::For(_)))
            .map(|(second, _)| *second)
            .collect();
        assert_eq!(on.iter().filter(|second| **second > 2).collect::<Vec<_>>(), [&21, &41], "{of_stop:?}");
        assert!(matches!(of_stop.last().unwrap().1.kernels, Kernels::Every { .. }), "{of_stop:?}");
        // One that has no communicator stands still for no reason.
        let idle = orders(20, |_| (Pace::default(), NO_WISH));
        assert_eq!(idle.len(), 1);
        let trouble = orders(10, |second| (busy, Wish { trouble: second == 5, steps: false }));
        assert!(trouble.iter().any(|(second, order)| (*second, order.kernels) == (5, Kernels::For(60_000))));
    }

    #[test]
    fn steps_are_wanted_anew_and_end_by_themselves() {
        let wish = |second| Wish { steps: (5..11).contains(&second), trouble: false };
        let orders = orders(30, |second| (pace(100, 100), wish(second)));
        let steps: Vec<u64> =
            orders.iter().filter(|(_, order)| order.steps_ms > 0).map(|(second, _)| *second).collect();
        assert_eq!(steps, [5, 7, 9], "{orders:?}");
    }

    #[test]
    fn an_order_is_written_and_a_sealed_file_is_left_as_it_is() {
        use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
        let order = Order { number: 3, telemetry: true, kernels: Kernels::Off, steps_ms: 7 };
        for sealed in [false, true] {
            let ring = File::from(memfd_create("ring", MemfdFlags::ALLOW_SEALING).unwrap());
            ring.set_len(nccl_profiler::ring::FILE_BYTES).unwrap();
            if sealed {
                fcntl_add_seals(&ring, SealFlags::WRITE).unwrap();
            }
            let pen = Pen::default();
            assert!(pen.write(&ring, order));
            let until = Instant::now() + Duration::from_secs(30);
            while pen.busy.load(Ordering::Acquire) {
                assert!(Instant::now() < until);
                thread::yield_now();
            }
            let mut bytes = [0; 8];
            ring.read_exact_at(&mut bytes, ORDER_AT).unwrap();
            assert_eq!(Order::of(u64::from_le_bytes(bytes)), (!sealed).then_some(order));
        }
        // One that does not come back is not waited for.
        let pen = Pen::default();
        pen.busy.store(true, Ordering::Release);
        let ring = File::from(memfd_create("ring", MemfdFlags::CLOEXEC).unwrap());
        assert!(!pen.write(&ring, order));
        // However many rings such a process brings.
        let pen = Pen::default();
        pen.writing.store(MOST_WRITING, Ordering::Release);
        assert!(!pen.another().write(&ring, order));
        pen.writing.store(MOST_WRITING - 1, Ordering::Release);
        assert!(pen.another().write(&ring, order));
    }
}
