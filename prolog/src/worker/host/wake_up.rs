//! How late a sleeping thread runs that is woken at a given time: what a kernel launch is on a GPU. A slow or
//! overloaded host shows here before it shows in anything that keeps the processors busy. The time counts from when
//! the wake call was due, so that a host which holds back the caller is seen as well.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use super::Until;
use crate::protocol::{MAX_RANKS, MAX_SAMPLES, Reply, WakeUps};

/// Between two wake-ups of a thread: long enough that it sleeps again, and that its processor may too.
const PAUSE: Duration = Duration::from_micros(500);

/// Most wake-ups of one thread: 60 s, the longest window, of them.
const MOST: usize = 120_000;

/// The share of wake-ups that are faster than the tail.
const TAIL: f64 = 0.99;

/// What a sleeper waits for.
#[derive(Default)]
struct Bell {
    rung: Mutex<Option<Instant>>,
    condition: Condvar,
}

impl Bell {
    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        self.rung.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The wake call that was `due` at this time.
    fn ring(&self, due: Instant) {
        *self.lock() = Some(due);
        self.condition.notify_one();
    }

    /// Sleeps until the bell rings; gives how long ago that was due. `None`: the time is over.
    fn wait(&self, until: &Until) -> Option<Duration> {
        let mut rung = self.lock();
        loop {
            if let Some(at) = rung.take() {
                return Some(at.elapsed());
            }
            let slice = until.slice()?;
            rung = self.condition.wait_timeout(rung, slice).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Wakes `ranks` threads again and again for `window`.
pub(super) fn run(window: Duration, ranks: u32, until: &Until) -> Reply {
    if ranks == 0 || ranks > MAX_RANKS {
        return Reply::Failed {
            message: format!("host.ranks_per_node = {ranks}: 1 to {MAX_RANKS} are possible"),
        };
    }
    let until = &until.clone();
    let seen: Result<Vec<Vec<Duration>>, String> = thread::scope(|scope| {
        let wakers: Vec<_> = (0..ranks)
            .map(|rank| {
                thread::Builder::new()
                    .name(format!("waker {rank}"))
                    .spawn_scoped(scope, move || wake(window, until))
            })
            .collect();
        let ended = wakers.into_iter().map(|waker| match waker {
            Ok(waker) => waker.join().unwrap_or_else(|_| Err("a waker hit a bug (panic)".to_owned())),
            Err(error) => Err(format!("a thread can't start: {error}")),
        });
        ended.collect()
    });
    match seen {
        Ok(seen) => Reply::WakeUp(sum_up(seen.concat())),
        Err(message) => Reply::Failed { message },
    }
}

/// Wakes one thread until the window is over.
fn wake(window: Duration, until: &Until) -> Result<Vec<Duration>, String> {
    let bell = Bell::default();
    let (sender, answers) = mpsc::channel();
    // The sleeper ends with the waker's window, not with the limit.
    let mut sleeping = until.clone();
    sleeping.cancel = std::sync::Arc::default();
    let over = std::sync::Arc::clone(&sleeping.cancel);
    thread::scope(|scope| {
        let bell = &bell;
        thread::Builder::new()
            .name("sleeper".to_owned())
            .spawn_scoped(scope, move || {
                while let Some(took) = bell.wait(&sleeping) {
                    if sender.send(took).is_err() {
                        return;
                    }
                }
            })
            .map_err(|error| format!("a thread can't start: {error}"))?;
        let began = Instant::now();
        let mut seen = Vec::new();
        // The first one pays for the start of the thread.
        let mut warm = false;
        while !until.over() && seen.len() < MOST && (seen.is_empty() || began.elapsed() < window) {
            let pause = PAUSE.min(until.left());
            let due = Instant::now() + pause;
            thread::sleep(pause);
            bell.ring(due);
            let took = match answer(&answers, until) {
                Some(took) => took,
                // It did not run at all: it took at least so long.
                None => due.elapsed(),
            };
            if warm || until.over() {
                seen.push(took);
            }
            warm = true;
        }
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        Ok(seen)
    })
}

fn answer(answers: &mpsc::Receiver<Duration>, until: &Until) -> Option<Duration> {
    while let Some(slice) = until.slice() {
        match answers.recv_timeout(slice) {
            Ok(took) => return Some(took),
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => return None,
        }
    }
    None
}

fn sum_up(mut seen: Vec<Duration>) -> WakeUps {
    seen.sort_unstable();
    let at = |share: f64| {
        let last = seen.len().saturating_sub(1);
        let index = (last as f64 * share).round() as usize;
        seen.get(index).map_or(0.0, |took| took.as_secs_f64() * 1e6)
    };
    let kept = seen.len().min(MAX_SAMPLES);
    let samples_us = (0..kept).map(|index| at(index as f64 / (kept - 1).max(1) as f64)).collect();
    WakeUps {
        wake_ups: seen.len() as u64,
        median_us: at(0.5),
        tail_us: at(TAIL),
        samples_us,
        per_rank: Vec::new(),
        troubles: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Cancel;
    use super::*;

    fn wake_ups(window_ms: u64, ranks: u32, limit: Duration) -> WakeUps {
        let until = Until::after(limit, &Cancel::default());
        match run(Duration::from_millis(window_ms), ranks, &until) {
            Reply::WakeUp(wake_ups) => wake_ups,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn wake_ups_are_counted_and_ordered() {
        let seen = wake_ups(200, 2, Duration::from_secs(10));
        println!("{seen:?}");
        assert!(seen.wake_ups >= 4, "{seen:?}");
        assert!(seen.median_us > 0.0 && seen.median_us <= seen.tail_us, "{seen:?}");
        assert!(seen.samples_us.is_sorted() && seen.samples_us.len() <= MAX_SAMPLES, "{seen:?}");
    }

    #[test]
    fn a_sleeper_that_never_runs_counts_for_as_long_as_it_was_waited_for() {
        let until = Until::after(Duration::from_millis(100), &Cancel::default());
        let (_sender, silent) = mpsc::channel();
        assert_eq!(answer(&silent, &until), None);
        assert!(until.over());
    }

    #[test]
    fn the_numbers_are_the_middle_and_the_tail() {
        let seen = sum_up((1..=201).rev().map(Duration::from_micros).collect());
        assert_eq!((seen.wake_ups, seen.median_us.round(), seen.tail_us.round()), (201, 101.0, 199.0));
        assert_eq!((seen.samples_us[0].round(), seen.samples_us[31].round()), (1.0, 201.0));
        assert_eq!(sum_up(Vec::new()).wake_ups, 0);
    }

    #[test]
    fn the_limit_ends_it_and_nonsense_is_refused() {
        let began = Instant::now();
        assert!(wake_ups(60_000, 1, Duration::from_millis(200)).wake_ups > 0);
        assert!(began.elapsed() < Duration::from_secs(5));
        let until = Until::after(Duration::from_secs(1), &Cancel::default());
        for ranks in [0, MAX_RANKS + 1] {
            assert!(matches!(run(Duration::from_millis(1), ranks, &until), Reply::Failed { .. }));
        }
    }
}
