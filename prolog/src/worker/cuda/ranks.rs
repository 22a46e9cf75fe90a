//! One thread a rank, for the whole life of the worker: a device's context, buffers and communicators stay with the
//! thread that made them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use super::super::timed::Until;
use super::doing::{Doing, Flaw};

/// Tasks that may wait for a rank: the coordinator asks for one thing at a time, and what it has cancelled is over soon.
const QUEUE: usize = 2;

/// How much sooner than the limit a rank is to be at its end: what it waits for is over then, and an NCCL that is told to
/// abort takes two seconds. Who is silent at the limit did not come back from a call.
const ENDING: Duration = Duration::from_millis(2500);

/// Of a short limit, the share that the ranks get.
const WORK_SHARE: f64 = 0.75;

type Task<G> = Box<dyn FnOnce(&mut G) + Send>;

/// The ranks of this node, each with a `G` of its own.
pub(super) struct Ranks<G> {
    ranks: Vec<Rank<G>>,
}

/// One of them.
struct Rank<G> {
    tasks: mpsc::SyncSender<Task<G>>,
    doing: Arc<Doing>,
    /// Why it can't work, if it could not be started.
    closed: Option<Flaw>,
    /// Tasks that it was given.
    given: AtomicU64,
    /// Those that it must have ended before it gets another: it was silent when their limit came.
    owed: AtomicU64,
}

impl<G> Rank<G> {
    /// Why it can't take anything on now.
    fn flaw(&self) -> Option<Flaw> {
        let stuck = self.doing.ended() < self.owed.load(Ordering::Relaxed);
        self.closed.clone().or_else(|| stuck.then(|| self.doing.silent()))
    }

    /// Gives it a task. One that takes none more did not take the last ones either.
    fn give(&self, task: Task<G>) -> Result<(), Flaw> {
        self.tasks.try_send(task).map_err(|_| self.doing.silent())?;
        self.given.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// It was waited for in vain.
    fn silent(&self) -> Flaw {
        self.owed.store(self.given.load(Ordering::Relaxed), Ordering::Relaxed);
        self.doing.silent()
    }
}

impl<G: 'static> Ranks<G> {
    /// Starts `count` threads, each of which makes its own `G` first, beginning with the step `first`; gives what `make`
    /// says of each, or why it can't work.
    ///
    /// # Errors
    /// A thread can't be started.
    pub(super) fn start<T: Send + 'static>(
        count: usize,
        first: &'static str,
        make: impl Fn(usize, &Arc<Doing>) -> Result<(G, T), Flaw> + Send + Sync + 'static,
        until: &Until,
    ) -> Result<(Self, Vec<Result<T, Flaw>>), String> {
        let make = Arc::new(make);
        let (sender, made) = mpsc::channel();
        let mut ranks = Vec::new();
        for rank in 0..count {
            let (tasks, queue) = mpsc::sync_channel::<Task<G>>(QUEUE);
            let doing = Doing::new(first);
            let (make, sender, own) = (Arc::clone(&make), sender.clone(), Arc::clone(&doing));
            let run = move || {
                own.here();
                let made = caught(|| make(rank, &own)).and_then(|made| made);
                let (result, made) = match made {
                    Ok((made, said)) => (Ok(said), Some(made)),
                    Err(flaw) => (Err(flaw), None),
                };
                // Nobody listens any more if the limit ran out first.
                _ = sender.send((rank, result));
                let Some(mut made) = made else { return };
                while let Ok(task) = queue.recv() {
                    task(&mut made);
                }
            };
            thread::Builder::new()
                .name(format!("rank {rank}"))
                .spawn(run)
                .map_err(|error| format!("rank {rank} can't start: {error}"))?;
            let (given, owed) = Default::default();
            ranks.push(Rank { tasks, doing, closed: None, given, owed });
        }
        drop(sender);
        let said: Vec<Result<T, Flaw>> = collect(count, &made, until)
            .into_iter()
            .zip(&ranks)
            .map(|(said, rank)| said.unwrap_or_else(|| Err(rank.doing.silent())))
            .collect();
        for (rank, said) in ranks.iter_mut().zip(&said) {
            rank.closed = said.as_ref().err().cloned();
        }
        Ok((Self { ranks }, said))
    }

    /// Has every rank that can work do so at the same time, within a limit that is a little sooner than `until`.
    pub(super) fn each<T: Send + 'static>(
        &self,
        until: &Until,
        work: impl Fn(usize, &mut G, &Until) -> T + Send + Sync + 'static,
    ) -> Vec<Result<T, Flaw>> {
        let left = until.left();
        let sooner = until.at_most(left.saturating_sub(ENDING).max(left.mul_f64(WORK_SHARE).min(ENDING)));
        let work = Arc::new(work);
        let (sender, done) = mpsc::channel();
        let mut results: Vec<Option<Result<T, Flaw>>> = Vec::new();
        for (at, rank) in self.ranks.iter().enumerate() {
            let (work, sender, until) = (Arc::clone(&work), sender.clone(), sooner.clone());
            let doing = Arc::clone(&rank.doing);
            let task: Task<G> = Box::new(move |own| {
                let result = caught(|| work(at, own, &until));
                doing.end();
                // As above.
                _ = sender.send((at, result));
            });
            let taken = rank.flaw().map_or_else(|| rank.give(task), Err);
            results.push(taken.err().map(Err));
        }
        drop(sender);
        let wanted = results.iter().filter(|one| one.is_none()).count();
        for (at, result) in collect_some(wanted, &done, until) {
            results[at] = Some(result);
        }
        let silent = |(result, rank): (Option<Result<T, Flaw>>, &Rank<G>)| {
            // One that was told to give up is on its way.
            let flaw = || if until.cancelled() { rank.doing.silent() } else { rank.silent() };
            result.unwrap_or_else(|| Err(flaw()))
        };
        results.into_iter().zip(&self.ranks).map(silent).collect()
    }
}

/// A panic is the work's own flaw: the thread goes on.
fn caught<T>(work: impl FnOnce() -> T) -> Result<T, Flaw> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| Flaw::failed("the worker hit a bug (panic)"))
}

fn collect<T>(count: usize, results: &mpsc::Receiver<(usize, T)>, until: &Until) -> Vec<Option<T>> {
    let mut collected: Vec<Option<T>> = (0..count).map(|_| None).collect();
    for (rank, result) in collect_some(count, results, until) {
        collected[rank] = Some(result);
    }
    collected
}

/// So many results, or those that come in time.
fn collect_some<T>(wanted: usize, results: &mpsc::Receiver<(usize, T)>, until: &Until) -> Vec<(usize, T)> {
    let mut collected = Vec::new();
    // The threads live on and keep their ends of the channel, so it is counted.
    while collected.len() < wanted {
        // What is there at the limit counts.
        let slice = until.slice();
        match results.recv_timeout(slice.unwrap_or_default()) {
            Ok(result) => collected.push(result),
            Err(mpsc::RecvTimeoutError::Timeout) if slice.is_some() => {}
            Err(_) => break,
        }
    }
    collected
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::super::super::timed::Cancel;
    use super::*;
    use crate::protocol::TroubleKind;

    fn until(ms: u64) -> Until {
        Until::after(Duration::from_millis(ms), &Cancel::default())
    }

    fn numbered(rank: usize, _: &Arc<Doing>) -> Result<(Vec<usize>, usize), Flaw> {
        Ok((vec![rank], rank * 10))
    }

    #[test]
    fn each_rank_keeps_what_is_its_own() {
        let begun = Instant::now();
        let (ranks, said) = Ranks::start(3, "starting", numbered, &until(20_000)).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(10), "waited for the limit: {:?}", begun.elapsed());
        assert_eq!(said, [Ok(0), Ok(10), Ok(20)]);
        for round in 1..4_usize {
            let lengths = ranks.each(&until(20_000), move |rank, own, _| {
                own.push(round);
                own[0] == rank && own.len() == round + 1
            });
            assert_eq!(lengths, [const { Ok(true) }; 3]);
        }
    }

    #[test]
    fn a_rank_that_is_stuck_is_told_of_and_waited_for_once() {
        let make = |_: usize, doing: &Arc<Doing>| Ok((Arc::clone(doing), ()));
        let (ranks, _) = Ranks::start(2, "starting", make, &until(20_000)).unwrap();
        for turn in 0..4 {
            let begun = Instant::now();
            let limit = if turn == 0 { 200 } else { 20_000 };
            let done = ranks.each(&until(limit), |rank, doing, _| {
                if rank == 1 {
                    doing.at("a launch");
                    thread::sleep(Duration::from_secs(60));
                }
            });
            assert_eq!(done[0], Ok(()));
            let flaw = done[1].as_ref().unwrap_err();
            assert_eq!(flaw.kind, TroubleKind::Silent);
            assert!(flaw.message.starts_with("no answer in a launch after"), "{}", flaw.message);
            assert!(begun.elapsed() < Duration::from_secs(10), "waited again: {:?}", begun.elapsed());
        }
    }

    #[test]
    fn those_that_can_t_start_are_named_and_the_others_work() {
        let make = |rank: usize, doing: &Arc<Doing>| match rank {
            1 => Err(Flaw::failed("GPU 1 is gone")),
            2 => {
                doing.at("making its context");
                thread::sleep(Duration::from_secs(60));
                Ok((rank, ()))
            }
            3 => std::panic::resume_unwind(Box::new("on purpose")),
            _ => Ok((rank, ())),
        };
        let (ranks, said) = Ranks::start(4, "starting", make, &until(300)).unwrap();
        assert_eq!(said[..2], [Ok(()), Err(Flaw::failed("GPU 1 is gone"))]);
        let silent = said[2].as_ref().unwrap_err();
        assert!(silent.message.starts_with("no answer in making its context after"), "{}", silent.message);
        assert!(said[3].as_ref().unwrap_err().message.contains("bug"));
        let done = ranks.each(&until(20_000), |rank, own, _| rank == *own);
        assert_eq!(done[0], Ok(true));
        // For the same reason as before, whatever has become of them since.
        assert!(
            done[1..].iter().zip(&said[1..]).all(|(now, then)| now.as_ref().err() == then.as_ref().err())
        );
    }

    #[test]
    fn a_rank_has_its_end_before_the_limit() {
        let (ranks, _) = Ranks::start(1, "starting", numbered, &until(20_000)).unwrap();
        for ms in [400, 8_000] {
            let all = until(ms);
            let deadline = all.deadline;
            let own = ranks.each(&all, |_, _, until| until.deadline).remove(0).unwrap();
            assert!(own < deadline && own > deadline - Duration::from_millis(ms), "{ms}");
        }
        let panicked = ranks.each(&until(20_000), |_, _, _| -> () { std::panic::resume_unwind(Box::new(1)) });
        assert!(panicked[0].as_ref().unwrap_err().message.contains("bug"));
        assert_eq!(ranks.each(&until(20_000), |rank, _, _| rank), [Ok(0)]);
    }
}
