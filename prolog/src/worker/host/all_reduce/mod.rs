//! Ring all-reduce over TCP: the ranks of this node, one thread each, and what their results amount to.

mod ring;
mod sums;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::super::authenticate::{Intent, Purpose};
use super::duplex::{Cut, Duplex};
use super::{CONNECT_LEAST, Host, Until};
use crate::protocol::{AllReduced, Busbw, MAX_SAMPLES, Member, Reply, Tag, Unreachable};
use ring::{Progress, Ring};

/// Share of the limit in which the previous rank must have connected: longer than its own attempt to connect
/// may take, so that the side that can't connect is the first to say so.
const ARRIVAL_SHARE: f64 = 0.75;

/// After this share of the limit a neighbour that leaves has run into its own limit, which began earlier: the
/// ring is slow, not broken. An undisturbed one is done after a tenth.
const LATE_SHARE: f64 = 0.5;

/// How long a rank that ran into its limit keeps its connections, so that the others run into theirs.
const LINGER: Duration = Duration::from_millis(200);

/// Why a rank has no number, the most telling first.
#[derive(Debug)]
enum Trouble {
    /// It could not connect to the next rank.
    Dial(Unreachable),
    /// The previous rank did not connect.
    Missing(Unreachable),
    /// A neighbour left, or sent what is no part of this all-reduce.
    Left(Unreachable),
    /// Another rank of this node gave up.
    GaveUp,
    /// Our own trouble.
    Own(String),
}

/// What the ranks of this node share.
struct Task<'t> {
    host: &'t Host,
    tag: Tag,
    members: &'t [Member],
    window: Duration,
    limit: Duration,
    until: &'t Until,
    /// One of them can't go on: the others need not wait.
    give_up: AtomicBool,
}

/// Runs this node's ranks among `members`.
pub(super) fn run(host: &Host, tag: Tag, members: &[Member], window: Duration, until: &Until) -> Reply {
    let mine: Vec<usize> = (0..members.len()).filter(|&at| members[at].node == host.node).collect();
    if members.len() < 2 || mine.is_empty() {
        return Reply::Failed { message: "an all-reduce needs two ranks, and one of them here".to_owned() };
    }
    let task =
        Task { host, tag, members, window, limit: until.left(), until, give_up: AtomicBool::new(false) };
    let results: Vec<Result<Progress, Trouble>> = thread::scope(|scope| {
        let ranks: Vec<_> = mine
            .iter()
            .map(|&position| {
                let task = &task;
                thread::Builder::new().name(format!("rank {position}")).spawn_scoped(scope, move || {
                    let result = task.rank(position);
                    if result.is_err() {
                        task.give_up.store(true, Ordering::Relaxed);
                    }
                    result
                })
            })
            .collect();
        ranks
            .into_iter()
            .map(|rank| match rank {
                Ok(rank) => {
                    rank.join().unwrap_or_else(|_| Err(Trouble::Own("a rank hit a bug (panic)".into())))
                }
                Err(error) => {
                    task.give_up.store(true, Ordering::Relaxed);
                    Err(Trouble::Own(format!("a rank can't start: {error}")))
                }
            })
            .collect()
    });
    sum_up(results)
}

impl Task<'_> {
    fn rank(&self, position: usize) -> Result<Progress, Trouble> {
        let count = self.members.len();
        let me = self.members[position];
        let next = self.members[(position + 1) % count];
        let previous = self.members[(position + count - 1) % count];
        let intent = |from: Member, to: Member| Intent {
            tag: self.tag,
            purpose: Purpose::Ring,
            from: (from.node, from.rank),
            to: (to.node, to.rank),
        };
        let way = |from: Member, to: Member, why: String| Unreachable {
            from: from.node,
            to: to.node,
            address: to.address,
            port: to.port,
            why,
        };
        let (out, _) = self
            .host
            .dial(
                (next.address, next.port),
                intent(me, next),
                &self.until.at_most(CONNECT_LEAST.max(self.limit / 2)),
            )
            .map_err(|why| Trouble::Dial(way(me, next, why)))?;
        let patience = self.limit.mul_f64(ARRIVAL_SHARE);
        let arrival = Until {
            deadline: self.until.deadline - self.limit + patience,
            cancel: std::sync::Arc::clone(&self.until.cancel),
        };
        let give_up = || self.give_up.load(Ordering::Relaxed);
        let Some(incoming) = self.host.exchange.take(&intent(previous, me), &arrival, give_up) else {
            if give_up() {
                return Err(Trouble::GaveUp);
            }
            let why = format!("no connection arrived within {:.1} s", patience.as_secs_f64());
            return Err(Trouble::Missing(way(previous, me, why)));
        };
        let duplex = Duplex::new(out, incoming).map_err(|error| Trouble::Own(error.to_string()))?;
        let mut until = self.until.clone();
        until.deadline -= LINGER.min(self.limit / 10);
        let mut ring = Ring::new(duplex, position, count, self.window, until);
        let cut = ring.run();
        let late = self.until.left() < self.limit.mul_f64(1.0 - LATE_SHARE);
        match cut {
            Ok(()) => {}
            Err(Cut::Over) => self.linger(),
            Err(Cut::Next(_) | Cut::Previous(_)) if late => ring.progress.limited = true,
            Err(Cut::Next(why)) => return Err(self.left(me, next, &why)),
            Err(Cut::Previous(why)) => return Err(self.left(me, previous, &why)),
        }
        Ok(ring.progress)
    }

    /// A neighbour left. One on this node did so because of a third rank, which has more to say.
    fn left(&self, me: Member, neighbour: Member, why: &str) -> Trouble {
        let others = self.members.iter().any(|member| member.node != me.node);
        if neighbour.node == me.node && others {
            return Trouble::GaveUp;
        }
        Trouble::Left(Unreachable {
            from: me.node,
            to: neighbour.node,
            address: neighbour.address,
            port: neighbour.port,
            why: format!("{why} in the middle"),
        })
    }

    fn linger(&self) {
        while let Some(slice) = self.until.slice() {
            thread::sleep(slice);
        }
    }
}

fn sum_up(results: Vec<Result<Progress, Trouble>>) -> Reply {
    let (mut dial, mut missing, mut left, mut own) = (Vec::new(), Vec::new(), Vec::new(), None);
    let mut ranks = Vec::new();
    for result in results {
        match result {
            Ok(progress) => ranks.push(progress),
            Err(Trouble::Dial(way)) => dial.push(way),
            Err(Trouble::Missing(way)) => missing.push(way),
            Err(Trouble::Left(way)) => left.push(way),
            Err(Trouble::GaveUp) => {}
            Err(Trouble::Own(message)) => own = Some(message),
        }
    }
    if let Some(message) = own {
        return Reply::Failed { message };
    }
    // Who could not connect knows why; who was left only knows that. The weaker word would name a wrong way.
    for ways in [dial, missing, left] {
        if !ways.is_empty() {
            return Reply::AllReduce(AllReduced::Unreachable(ways));
        }
    }
    match measured(&ranks) {
        Some(busbw) => Reply::AllReduce(AllReduced::Measured(busbw)),
        None => Reply::Failed { message: "no rank of this node came to a result".to_owned() },
    }
}

/// The slowest of this node's ranks speaks for all.
fn measured(ranks: &[Progress]) -> Option<Busbw> {
    let slowest = ranks.iter().min_by(|one, other| one.gb_per_s().total_cmp(&other.gb_per_s()))?;
    let iterations: u64 = ranks.iter().map(|rank| rank.iterations).sum();
    let right: u64 = ranks.iter().map(|rank| rank.right).sum();
    let samples = &slowest.samples[slowest.samples.len().saturating_sub(MAX_SAMPLES)..];
    Some(Busbw {
        gb_per_s: slowest.gb_per_s(),
        bytes: slowest.bytes,
        samples: samples.to_vec(),
        iterations: slowest.iterations,
        right: (iterations > 0).then(|| right as f64 / iterations as f64),
        limited: ranks.iter().any(|rank| rank.limited),
        moved_bytes: slowest.moved_bytes,
        seconds: slowest.seconds,
    })
}

/// Seconds since `start`.
fn seconds_since(start: Instant) -> f64 {
    start.elapsed().as_secs_f64()
}
