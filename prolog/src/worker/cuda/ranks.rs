//! One thread a rank, for the whole life of the worker: a device's context, buffers and communicators stay with the
//! thread that made them.

use std::sync::{Arc, mpsc};
use std::thread;

use super::super::timed::Until;

/// Tasks that may wait for a rank; the coordinator asks for one thing at a time, so more are a rank that is stuck.
const QUEUE: usize = 2;

type Task<G> = Box<dyn FnOnce(&mut G) + Send>;

/// The ranks of this node, each with a `G` of its own.
pub(super) struct Ranks<G> {
    threads: Vec<mpsc::SyncSender<Task<G>>>,
}

impl<G: 'static> Ranks<G> {
    /// Starts `count` threads, each of which makes its own `G` first; gives what `made` says of each.
    ///
    /// # Errors
    /// The first rank that can't make its own, or does not in time.
    pub(super) fn start<T: Send + 'static>(
        count: usize,
        make: impl Fn(usize) -> Result<(G, T), String> + Send + Sync + 'static,
        until: &Until,
    ) -> Result<(Self, Vec<T>), String> {
        let make = Arc::new(make);
        let (sender, made) = mpsc::channel();
        let mut threads = Vec::new();
        for rank in 0..count {
            let (tasks, queue) = mpsc::sync_channel::<Task<G>>(QUEUE);
            let (make, sender) = (Arc::clone(&make), sender.clone());
            let run = move || {
                let mut own = match make(rank) {
                    Ok((own, said)) => {
                        // Nobody listens any more if the limit ran out first.
                        let _ = sender.send((rank, Ok(said)));
                        own
                    }
                    Err(error) => {
                        let _ = sender.send((rank, Err(error)));
                        return;
                    }
                };
                while let Ok(task) = queue.recv() {
                    task(&mut own);
                }
            };
            thread::Builder::new()
                .name(format!("rank {rank}"))
                .spawn(run)
                .map_err(|error| format!("rank {rank} can't start: {error}"))?;
            threads.push(tasks);
        }
        drop(sender);
        let said = collect(count, &made, until);
        let said: Result<Vec<T>, String> = (0..)
            .zip(said)
            .map(|(rank, said)| said.unwrap_or_else(|| Err(format!("rank {rank} did not start in time"))))
            .collect();
        Ok((Self { threads }, said?))
    }

    pub(super) fn count(&self) -> usize {
        self.threads.len()
    }

    /// Has every rank work at the same time; `None` for one that does not come to an end by then, which its work should
    /// have seen to.
    pub(super) fn each<T: Send + 'static>(
        &self,
        until: &Until,
        work: impl Fn(usize, &mut G) -> T + Send + Sync + 'static,
    ) -> Vec<Option<T>> {
        let work = Arc::new(work);
        let (sender, done) = mpsc::channel();
        for (rank, tasks) in self.threads.iter().enumerate() {
            let (work, sender) = (Arc::clone(&work), sender.clone());
            let task: Task<G> = Box::new(move |own| {
                let result = work(rank, own);
                let _ = sender.send((rank, result));
            });
            // A rank that is stuck takes no more: it gives no result.
            let _ = tasks.try_send(task);
        }
        drop(sender);
        collect(self.threads.len(), &done, until)
    }
}

fn collect<T>(count: usize, results: &mpsc::Receiver<(usize, T)>, until: &Until) -> Vec<Option<T>> {
    let mut collected: Vec<Option<T>> = (0..count).map(|_| None).collect();
    // The threads live on and keep their ends of the channel, so it is counted.
    while collected.iter().any(Option::is_none) {
        let Some(slice) = until.slice() else { break };
        match results.recv_timeout(slice) {
            Ok((rank, result)) => collected[rank] = Some(result),
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
        }
    }
    collected
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::super::super::timed::Cancel;
    use super::*;

    fn until(ms: u64) -> Until {
        Until::after(Duration::from_millis(ms), &Cancel::default())
    }

    #[test]
    fn each_rank_keeps_what_is_its_own() {
        let begun = Instant::now();
        let (ranks, said) = Ranks::start(3, |rank| Ok((vec![rank], rank * 10)), &until(20_000)).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(10), "waited for the limit: {:?}", begun.elapsed());
        assert_eq!((ranks.count(), said), (3, vec![0, 10, 20]));
        for round in 1..4_usize {
            let lengths = ranks.each(&until(2000), move |rank, own| {
                own.push(round);
                own[0] == rank && own.len() == round + 1
            });
            assert_eq!(lengths, [Some(true); 3]);
        }
    }

    #[test]
    fn a_rank_that_is_stuck_is_not_waited_for() {
        let (ranks, _) = Ranks::start(2, |rank| Ok((rank, ())), &until(2000)).unwrap();
        let begun = Instant::now();
        for _ in 0..4 {
            let done = ranks.each(&until(100), |rank, _| {
                if rank == 1 {
                    thread::sleep(Duration::from_secs(30));
                }
            });
            assert_eq!(done, [Some(()), None]);
        }
        assert!(begun.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn the_first_rank_that_can_t_start_is_named() {
        let make = |rank| if rank == 1 { Err(format!("GPU {rank} is gone")) } else { Ok((rank, ())) };
        assert_eq!(Ranks::start(3, make, &until(2000)).err(), Some("GPU 1 is gone".to_owned()));
    }
}
