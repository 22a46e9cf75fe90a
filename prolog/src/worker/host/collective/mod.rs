//! Collectives over TCP: the ranks of this node, one thread each, on one communicator or on several at the same
//! time, and what their results amount to. What one rank does once it is connected is in [`ring`].

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
use crate::protocol::{Busbw, Collected, Collective, MAX_SAMPLES, Member, Reply, Tag, Unreachable};
use ring::{Place, Progress, Ring};

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
    /// A neighbour left, or sent what is no part of this collective.
    Left(Unreachable),
    /// Another rank of this node gave up.
    GaveUp,
    /// Our own trouble.
    Own(String),
}

/// What is run, and for how long.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    pub tag: Tag,
    pub collective: Collective,
    pub window: Duration,
}

/// What the ranks of this node share on one communicator.
struct Task<'t> {
    host: &'t Host,
    plan: Plan,
    members: &'t [Member],
    limit: Duration,
    until: &'t Until,
    /// One of them can't go on: the others need not wait.
    give_up: AtomicBool,
}

/// Runs this node's ranks of every communicator, all at the same time.
pub(super) fn run(host: &Host, plan: Plan, communicators: &[Vec<Member>], until: &Until) -> Reply {
    if let Err(message) = possible(host, communicators) {
        return Reply::Failed { message };
    }
    let limit = until.left();
    let tasks: Vec<Task<'_>> = communicators
        .iter()
        .map(|members| Task { host, plan, members, limit, until, give_up: AtomicBool::new(false) })
        .collect();
    let collected: Result<Vec<Collected>, String> = thread::scope(|scope| {
        let running: Vec<_> = tasks.iter().map(|task| task.start(scope)).collect();
        running.into_iter().map(|ranks| sum_up(ranks.into_iter().map(Running::end).collect())).collect()
    });
    match collected {
        Ok(collected) => Reply::Collective(collected),
        Err(message) => Reply::Failed { message },
    }
}

/// Whether this node has something to do everywhere, and each of its ranks in one place only.
fn possible(host: &Host, communicators: &[Vec<Member>]) -> Result<(), String> {
    let mine = |members: &Vec<Member>| members.iter().any(|member| member.node == host.node);
    if communicators.is_empty() || !communicators.iter().all(|members| members.len() >= 2 && mine(members)) {
        return Err("a collective needs two ranks, and one of them here".to_owned());
    }
    let mut ranks: Vec<_> = communicators.iter().flatten().map(|member| (member.node, member.rank)).collect();
    let count = ranks.len();
    ranks.sort_unstable();
    ranks.dedup();
    if ranks.len() < count {
        return Err("a rank can't be in two places of a collective".to_owned());
    }
    Ok(())
}

/// A rank at work, or why it could not start.
struct Running<'scope>(std::io::Result<thread::ScopedJoinHandle<'scope, Result<Progress, Trouble>>>);

impl Running<'_> {
    fn end(self) -> Result<Progress, Trouble> {
        match self.0 {
            Ok(rank) => rank.join().unwrap_or_else(|_| Err(Trouble::Own("a rank hit a bug (panic)".into()))),
            Err(error) => Err(Trouble::Own(format!("a rank can't start: {error}"))),
        }
    }
}

impl Task<'_> {
    /// Starts this node's ranks.
    fn start<'scope>(&'scope self, scope: &'scope thread::Scope<'scope, '_>) -> Vec<Running<'scope>> {
        let mine = (0..self.members.len()).filter(|&at| self.members[at].node == self.host.node);
        mine.map(|position| {
            let rank =
                thread::Builder::new().name(format!("rank {position}")).spawn_scoped(scope, move || {
                    let result = self.rank(position);
                    if result.is_err() {
                        self.give_up.store(true, Ordering::Relaxed);
                    }
                    result
                });
            if rank.is_err() {
                self.give_up.store(true, Ordering::Relaxed);
            }
            Running(rank)
        })
        .collect()
    }

    fn rank(&self, position: usize) -> Result<Progress, Trouble> {
        let place = Place { position, ranks: self.members.len() };
        let duplexes = self.connected(place)?;
        let mut until = self.until.clone();
        until.deadline -= LINGER.min(self.limit / 10);
        let Plan { collective, window, .. } = self.plan;
        let mut ring = Ring::new(collective, duplexes, place, window, until);
        let cut = ring.run();
        let late = self.until.left() < self.limit.mul_f64(1.0 - LATE_SHARE);
        let me = self.members[position];
        match cut {
            Ok(()) => {}
            Err(Cut::Over) => self.linger(),
            Err(Cut::Next(_) | Cut::Previous(_)) if late => ring.progress.limited = true,
            Err(Cut::Next(why)) => return Err(self.left(me, self.after(place, ring.at + 1), &why)),
            Err(Cut::Previous(why)) => return Err(self.left(me, self.before(place, ring.at + 1), &why)),
        }
        Ok(ring.progress)
    }

    fn after(&self, place: Place, distance: usize) -> Member {
        self.members[(place.position + distance) % place.ranks]
    }

    fn before(&self, place: Place, distance: usize) -> Member {
        self.members[(place.position + place.ranks - distance % place.ranks) % place.ranks]
    }

    /// The connections of a rank, nearest ranks first: to the neighbours, or for an all-to-all to all others.
    fn connected(&self, place: Place) -> Result<Vec<Duplex>, Trouble> {
        let me = self.members[place.position];
        let farthest = match self.plan.collective {
            Collective::AllReduce | Collective::AllGather => 1,
            Collective::AllToAll => place.ranks - 1,
        };
        let intent = |from: Member, to: Member| Intent {
            tag: self.plan.tag,
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
        let dialing = self.until.at_most(CONNECT_LEAST.max(self.limit / 2));
        let mut out = Vec::new();
        for distance in 1..=farthest {
            let next = self.after(place, distance);
            let (stream, _) = self
                .host
                .dial((next.address, next.port), intent(me, next), &dialing)
                .map_err(|why| Trouble::Dial(way(me, next, why)))?;
            out.push(stream);
        }
        let patience = self.limit.mul_f64(ARRIVAL_SHARE);
        let arrival = Until {
            deadline: self.until.deadline - self.limit + patience,
            cancel: std::sync::Arc::clone(&self.until.cancel),
        };
        let give_up = || self.give_up.load(Ordering::Relaxed);
        let mut duplexes = Vec::new();
        for (distance, next) in (1..).zip(out) {
            let previous = self.before(place, distance);
            let Some(incoming) = self.host.exchange.take(&intent(previous, me), &arrival, give_up) else {
                if give_up() {
                    return Err(Trouble::GaveUp);
                }
                let why = format!("no connection arrived within {:.1} s", patience.as_secs_f64());
                return Err(Trouble::Missing(way(previous, me, why)));
            };
            duplexes.push(Duplex::new(next, incoming).map_err(|error| Trouble::Own(error.to_string()))?);
        }
        Ok(duplexes)
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

fn sum_up(results: Vec<Result<Progress, Trouble>>) -> Result<Collected, String> {
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
        return Err(message);
    }
    // Who could not connect knows why; who was left only knows that. The weaker word would name a wrong way.
    for ways in [dial, missing, left] {
        if !ways.is_empty() {
            return Ok(Collected::Unreachable(ways));
        }
    }
    measured(&ranks)
        .map(Collected::Measured)
        .ok_or_else(|| "no rank of this node came to a result".to_owned())
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
        smaller: Vec::new(),
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
