//! PyTorch's Gloo all-reduce between this node and another: both start the site's python, agree on whether both
//! have torch, meet at a store on the lower node, and reduce. Where one has no torch, both run the project's own
//! ring. Which of the two ran is in the answer.

mod agree;
mod python;

use std::net::IpAddr;
use std::time::Duration;

use super::collective::{self, Plan};
use super::peer::Peer;
use super::{Host, Until};
use crate::protocol::{Busbw, Collective, Gloo, Glooed, MAX_SAMPLES, Member, Reply, Unreachable};
use agree::{Done, End, Store, Torch};
use python::{Numbers, Order, Place, Python, Silence, Word};

/// Gloo gets this long to connect and measure even where a check's limit is less: it waits in whole seconds.
const GLOO_LEAST: Duration = Duration::from_secs(5);

/// Share of that after which the program gives up by itself, so that it can still say why.
const PROGRAM_SHARE: f64 = 0.8;

/// How much later than this node the other one may be done.
const PEER_LATE: Duration = Duration::from_secs(2);

/// Ports that are tried for the store.
const PORT_TRIES: u16 = 16;

/// Where the kernel tells the node's name.
const HOSTNAME: &str = "/proc/sys/kernel/hostname";

/// The pair: rank 0 of each node.
#[derive(Clone, Copy)]
struct Pair {
    lower: Member,
    higher: Member,
    /// This node is the lower one.
    low: bool,
}

impl Pair {
    fn of(host: &Host, members: &[Member]) -> Option<Self> {
        let first = |member: &&Member| member.rank == 0;
        let lower = *members.iter().filter(first).min_by_key(|member| member.node)?;
        let higher = *members.iter().filter(first).max_by_key(|member| member.node)?;
        let here = lower.node == host.node || higher.node == host.node;
        (here && lower.node < higher.node).then_some(Self { lower, higher, low: lower.node == host.node })
    }

    fn peer(self) -> Member {
        if self.low { self.higher } else { self.lower }
    }

    fn me(self) -> Member {
        if self.low { self.lower } else { self.higher }
    }
}

/// One run to its end.
pub(super) fn run(host: &Host, wanted: &Gloo, until: &Until) -> Reply {
    let Some(pair) = Pair::of(host, &wanted.members) else {
        return Reply::Failed { message: "Gloo needs two nodes, and this one among them".to_owned() };
    };
    // Torch starts while the two meet.
    let starting = until.at_most(Duration::from_millis(wanted.start_ms));
    let started = wanted.python.as_ref().map(|python| Python::start(python, &wanted.interface));
    let meeting = until.at_most(Duration::from_millis(wanted.limit_ms));
    let mut peer = match Peer::meet(host, wanted.tag, (pair.lower, pair.higher), &meeting) {
        Ok(peer) => peer,
        Err(way) => return Reply::Gloo(Glooed::Unreachable(vec![way])),
    };
    let mut broken = None;
    let mut python = None;
    let mine = match started {
        None => Torch::Absent("there is no python (paths.python)".to_owned()),
        Some(Err(error)) => {
            broken = Some(format!("python can't be started: {error}"));
            Torch::Broken
        }
        Some(Ok(mut child)) => match torch(&mut child, &starting) {
            Ok(torch) => {
                python = Some(child);
                torch
            }
            Err(message) => {
                broken = Some(message);
                Torch::Broken
            }
        },
    };
    let agreed = peer.say(&mine, until).and_then(|()| peer.hear::<Torch>(until));
    if let Some(message) = broken {
        return Reply::Gloo(Glooed::Broken { message });
    }
    let theirs = match agreed {
        Ok(theirs) => theirs,
        Err(why) => return left(pair, format!("{why} before Gloo started")),
    };
    match (mine, theirs, python) {
        (_, Torch::Broken, _) => Reply::Gloo(Glooed::PeerBroken),
        (Torch::Ready(version), Torch::Ready(_), Some(python)) => {
            Reply::Gloo(Meeting { wanted, pair, peer, python }.reduce(version, until))
        }
        (mine, theirs, _) => {
            let lacking = [(pair.me(), mine), (pair.peer(), theirs)]
                .into_iter()
                .filter_map(|(member, torch)| match torch {
                    Torch::Absent(why) => Some((member.node, why)),
                    Torch::Ready(_) | Torch::Broken => None,
                })
                .collect();
            ring(host, wanted, lacking, until)
        }
    }
}

/// What this node has; the error says why its torch does not work.
fn torch(python: &mut Python, starting: &Until) -> Result<Torch, String> {
    let began = starting.left();
    match python.hear(starting) {
        Ok(Word::Ready(version)) => Ok(Torch::Ready(version)),
        Ok(Word::Absent(why)) => Ok(Torch::Absent(why)),
        Ok(Word::Broken(why)) => Err(format!("torch can't be imported: {why}")),
        Ok(other) => Err(format!("python began with {other:?}")),
        Err(Silence::Over) => Err(format!("torch did not start within {:.1} s", began.as_secs_f64())),
        Err(Silence::Broken(why)) => Err(format!("python did not import torch: {why}")),
    }
}

fn ring(host: &Host, wanted: &Gloo, mut lacking: Vec<(u32, String)>, until: &Until) -> Reply {
    lacking.sort();
    let window = Duration::from_millis(wanted.window_ms);
    let plan = Plan { tag: wanted.tag, collective: Collective::AllReduce, window };
    let limit = until.at_most(Duration::from_millis(wanted.limit_ms));
    match collective::run(host, plan, std::slice::from_ref(&wanted.members), &limit) {
        Reply::Collective(collected) => match collected.into_iter().next() {
            Some(collected) => Reply::Gloo(Glooed::Ring { collected, lacking }),
            None => Reply::Failed { message: "the ring came to no result".to_owned() },
        },
        other => other,
    }
}

/// The other worker is gone.
fn left(pair: Pair, why: String) -> Reply {
    let (from, to) = (pair.me().node, pair.peer());
    Reply::Gloo(Glooed::Unreachable(vec![Unreachable {
        from,
        to: to.node,
        address: to.address,
        port: to.port,
        why,
    }]))
}

/// Two nodes that both have torch.
struct Meeting<'m> {
    wanted: &'m Gloo,
    pair: Pair,
    peer: Peer,
    python: Python,
}

/// How this node's program ended, and where its Gloo was.
struct Outcome {
    end: Result<Numbers, Trouble>,
    address: Option<Place>,
}

enum Trouble {
    /// Torch raised an error, as it does where the network fails it.
    Failed(String),
    /// It did what no torch does.
    Broken(String),
}

impl Meeting<'_> {
    fn reduce(mut self, version: String, until: &Until) -> Glooed {
        let limit = until.at_most(Duration::from_millis(self.wanted.limit_ms).max(GLOO_LEAST));
        let port = match self.store(&limit) {
            Ok(Some(port)) => port,
            Ok(None) => return Glooed::PeerBroken,
            Err(answer) => return *answer,
        };
        let outcome = self.join(port, &limit);
        let done = Done {
            end: match outcome.end {
                Ok(_) => End::Worked,
                Err(Trouble::Failed(_)) => End::Failed,
                Err(Trouble::Broken(_)) => End::Broken,
            },
            address: outcome.address,
            hostname: std::fs::read_to_string(HOSTNAME).unwrap_or_default().trim().to_owned(),
        };
        let late = Until { deadline: limit.deadline + PEER_LATE, cancel: limit.cancel.clone() };
        // The lower node's python holds the store: it stays until the other one is done too.
        let theirs = self.peer.say(&done, &late).and_then(|()| self.peer.hear::<Done>(&late));
        let peer = self.pair.peer();
        match outcome.end {
            Ok(numbers) => {
                // Of two nodes only one has to be reached; in a larger job each of them would be.
                let looped = theirs.as_ref().map(|theirs| self.looped(&done, theirs)).unwrap_or_default();
                if !looped.is_empty() {
                    return Glooed::Unreachable(looped);
                }
                let places =
                    [(self.pair.me(), done.address), (peer, theirs.ok().and_then(|done| done.address))];
                let mut addresses: Vec<(u32, IpAddr)> = places
                    .iter()
                    .filter_map(|(member, place)| Some((member.node, place.as_ref()?.0)))
                    .collect();
                addresses.sort_unstable();
                Glooed::Torch { busbw: busbw(numbers), version, addresses }
            }
            Err(Trouble::Broken(message)) => Glooed::Broken { message },
            Err(Trouble::Failed(why)) => match theirs {
                Ok(theirs) if theirs.end == End::Broken => Glooed::PeerBroken,
                Ok(theirs) => Glooed::Unreachable(self.ways(&done, &theirs, &why)),
                Err(gone) => {
                    let way =
                        self.way(self.pair.me(), peer, None, format!("{gone} during Gloo's all-reduce"));
                    Glooed::Unreachable(vec![way])
                }
            },
        }
    }

    /// The port of the store, which the lower node chooses; the error is the answer.
    fn store(&mut self, limit: &Until) -> Result<Option<u16>, Box<Glooed>> {
        if !self.pair.low {
            let store: Result<Store, String> = self.peer.hear(limit);
            let peer = self.pair.peer();
            return store.map(|store| store.port).map_err(|gone| {
                let way = self.way(self.pair.me(), peer, None, format!("{gone} before Gloo started"));
                Box::new(Glooed::Unreachable(vec![way]))
            });
        }
        let order = Order::Serve { ports: self.ports(), limit_s: limit.left().as_secs_f64() };
        let port = match self.python.tell(&order).and_then(|()| self.python.hear(limit)) {
            Ok(Word::Port(port)) => Ok(port),
            Ok(Word::Failed(why)) => Err(why),
            Ok(other) => Err(format!("torch answered {other:?} to an order to start its store")),
            Err(Silence::Over) => Err("torch did not start its store in time".to_owned()),
            Err(Silence::Broken(why)) => Err(format!("torch did not start its store: {why}")),
        };
        // If the other worker is gone the end shows it.
        let _ = self.peer.say(&Store { port: port.as_ref().ok().copied() }, limit);
        port.map(Some).map_err(|message| Box::new(Glooed::Broken { message }))
    }

    /// Ports of the site's range, from just after this rank's own.
    fn ports(&self) -> Vec<u16> {
        let Gloo { port_first, port_last, .. } = *self.wanted;
        let size = u32::from(port_last.saturating_sub(port_first)) + 1;
        let own = u32::from(self.pair.lower.port.saturating_sub(port_first));
        (1..=u32::from(PORT_TRIES))
            .filter_map(|step| u16::try_from(u32::from(port_first) + (own + step) % size).ok())
            .collect()
    }

    /// Has the program meet the other one and reduce.
    fn join(&mut self, port: u16, limit: &Until) -> Outcome {
        let low = self.pair.low;
        let order = Order::Join {
            // The store listens on all addresses; its own node needs no network to reach it.
            host: if low { IpAddr::from([127, 0, 0, 1]) } else { self.pair.lower.address },
            port,
            rank: u32::from(!low),
            window_s: Duration::from_millis(self.wanted.window_ms).as_secs_f64(),
            limit_s: limit.left().mul_f64(PROGRAM_SHARE).as_secs_f64(),
        };
        let mut address = None;
        let mut word = self.python.tell(&order).and_then(|()| self.python.hear(limit));
        loop {
            let end = match word {
                Ok(Word::Advertised(places)) => {
                    address = places.first().copied().or(address);
                    word = self.python.hear(limit);
                    continue;
                }
                Ok(Word::Connected(places)) => {
                    address = address.or(places.first().copied());
                    word = self.python.hear(limit);
                    continue;
                }
                Ok(Word::Result(numbers)) => sensible(numbers),
                Ok(Word::Failed(why)) => Err(Trouble::Failed(why)),
                Ok(other) => Err(Trouble::Broken(format!("torch answered {other:?} instead of numbers"))),
                Err(Silence::Over) => Err(Trouble::Broken("torch hangs in Gloo's all-reduce".to_owned())),
                Err(Silence::Broken(why)) => Err(Trouble::Broken(format!("torch gave no numbers: {why}"))),
            };
            return Outcome { end, address };
        }
    }

    /// Which ways do not work. A loopback address is the usual cause.
    fn ways(&self, mine: &Done, theirs: &Done, why: &str) -> Vec<Unreachable> {
        let looped = self.looped(mine, theirs);
        if !looped.is_empty() {
            return looped;
        }
        vec![self.way(self.pair.me(), self.pair.peer(), theirs.address, why.to_owned())]
    }

    /// The ways to a node whose own name resolves to a loopback address, which Gloo then gives to the others.
    fn looped(&self, mine: &Done, theirs: &Done) -> Vec<Unreachable> {
        let (me, peer) = (self.pair.me(), self.pair.peer());
        let way = |from: Member, to: Member, done: &Done| {
            let place = done.address.filter(|place| place.0.is_loopback() && !to.address.is_loopback())?;
            let why = format!(
                "Gloo can't be reached there: the host name {} resolves to a loopback address; mend its \
                 /etc/hosts, or name the interface in network.interface",
                done.hostname
            );
            Some(self.way(from, to, Some(place), why))
        };
        [way(peer, me, mine), way(me, peer, theirs)].into_iter().flatten().collect()
    }

    fn way(&self, from: Member, to: Member, place: Option<Place>, why: String) -> Unreachable {
        let (address, port) = match place {
            // What the host name leads to, before a port is known.
            Some((address, 0)) => (address, to.port),
            Some(place) => place,
            None => (to.address, to.port),
        };
        Unreachable { from: from.node, to: to.node, address, port, why }
    }
}

/// Numbers that a run can have; anything else came from no torch.
fn sensible(numbers: Numbers) -> Result<Numbers, Trouble> {
    let rate = |value: f64| value.is_finite() && value >= 0.0;
    let fine = rate(numbers.gb_per_s)
        && numbers.iterations > 0
        && (0.0..=1.0).contains(&numbers.right)
        && rate(numbers.seconds)
        && numbers.samples.iter().all(|sample| rate(*sample));
    if fine {
        Ok(numbers)
    } else {
        Err(Trouble::Broken(format!("torch's numbers make no sense: {numbers:?}")))
    }
}

fn busbw(numbers: Numbers) -> Busbw {
    let Numbers { gb_per_s, bytes, iterations, right, mut samples, seconds } = numbers;
    samples.truncate(MAX_SAMPLES);
    let moved_bytes = bytes.saturating_mul(iterations);
    let smaller = Vec::new();
    Busbw {
        gb_per_s,
        bytes,
        samples,
        smaller,
        iterations,
        right: Some(right),
        limited: false,
        moved_bytes,
        seconds,
    }
}
