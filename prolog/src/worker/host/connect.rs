//! Connect and round trip towards every port of every target, a few at a time.

use std::io::{Read, Write};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::super::authenticate::{Intent, Purpose};
use super::super::timed::{Timed, words};
use super::{CONNECT_LEAST, Host, Until};
use crate::protocol::{MAX_SAMPLES, PortResult, Reached, Tag, Target};

/// Ports tried at the same time: enough that some thirty silent ones fit into a check's limit; few enough that
/// the tries don't disturb each other's times.
const AT_ONCE: usize = 16;

/// A port that was tried for this share of the limit when that ran out is judged: it was silent. One whose turn
/// came later is not.
const FAIR_SHARE: u32 = 4;

/// Bytes of a round trip: one small segment.
const ECHO_BYTES: usize = 64;

/// How long one round trip may take.
const TRIP_WAIT: Duration = Duration::from_secs(2);

/// Tries all ports of all targets.
pub(super) fn run(
    host: &Host,
    tag: Tag,
    targets: &[Target],
    round_trips: u32,
    until: &Until,
) -> Vec<Reached> {
    // First port of every target first, so that a limit leaves no node without any answer.
    let most = targets.iter().map(|target| target.ports.len()).max().unwrap_or(0);
    let work: Vec<(usize, usize)> = (0..most)
        .flat_map(|port| (0..targets.len()).map(move |target| (target, port)))
        .filter(|&(target, port)| port < targets[target].ports.len())
        .collect();
    let results = Mutex::new(
        targets
            .iter()
            .map(|target| Reached {
                node: target.node,
                ports: vec![PortResult::NotTried; target.ports.len()],
            })
            .collect::<Vec<_>>(),
    );
    let turn = AtomicUsize::new(0);
    let fair = until.left() / FAIR_SHARE;
    let budget = CONNECT_LEAST.max(until.left() / 2);
    let worker = || {
        while let Some(&(target, port)) = work.get(turn.fetch_add(1, Ordering::Relaxed)) {
            if until.over() {
                return;
            }
            let began = Instant::now();
            let tried = try_port(host, tag, &targets[target], port, round_trips, &until.at_most(budget));
            let result = match tried {
                Ok(reached) => reached,
                Err(_) if until.over() && began.elapsed() < fair => PortResult::NotTried,
                Err(why) => PortResult::Unreachable { port: targets[target].ports[port], why },
            };
            results.lock().unwrap_or_else(PoisonError::into_inner)[target].ports[port] = result;
        }
    };
    thread::scope(|scope| {
        for _ in 1..AT_ONCE.min(work.len()) {
            // If a thread can't start, the others do its part.
            let _ = thread::Builder::new().name("connect".to_owned()).spawn_scoped(scope, worker);
        }
        worker();
    });
    results.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn try_port(
    host: &Host,
    tag: Tag,
    target: &Target,
    index: usize,
    round_trips: u32,
    until: &Until,
) -> Result<PortResult, String> {
    let rank = u32::try_from(index).unwrap_or(u32::MAX);
    let intent = Intent { tag, purpose: Purpose::Echo, from: (host.node, rank), to: (target.node, rank) };
    let (stream, took) = host.dial((target.address, target.ports[index]), intent, until)?;
    let mut trips = Vec::new();
    for _ in 0..round_trips.min(MAX_SAMPLES as u32) {
        let mut timed = Timed { stream: &stream, until: until.at_most(TRIP_WAIT) };
        let started = Instant::now();
        let mut back = [0; ECHO_BYTES];
        timed
            .write_all(&[7; ECHO_BYTES])
            .and_then(|()| timed.read_exact(&mut back))
            .map_err(|error| format!("connected, but no echo: {}", words(&error)))?;
        trips.push(started.elapsed().as_secs_f64() * 1e3);
    }
    Ok(PortResult::Reached { connect_ms: took.as_secs_f64() * 1e3, round_trips_ms: trips })
}

#[cfg(test)]
mod tests {
    use super::super::super::timed::Cancel;
    use super::super::testing::{Fault, LOCAL, Node, TAG, proxy, silent_port};
    use super::*;

    #[test]
    fn reached_refused_and_dead_ports_are_told_apart() {
        let (me, peer) = (Node::new(0, 1), Node::new(1, 2));
        let mut target = peer.target();
        // Port 1: nothing listens. The last one takes connections and then says nothing.
        target.ports.extend([1, proxy(target.ports[0], Fault::StallAfter(20))]);
        let until = Until::after(Duration::from_secs(10), &Cancel::default());
        let found = run(&me.host, TAG, &[target], 9, &until);
        for port in &found[0].ports[..2] {
            let PortResult::Reached { connect_ms, round_trips_ms } = port else { panic!("{port:?}") };
            assert!(*connect_ms > 0.0 && *connect_ms < 1000.0);
            assert_eq!(round_trips_ms.len(), 9);
        }
        let refused = PortResult::Unreachable { port: 1, why: "connection refused".to_owned() };
        assert_eq!(found[0].ports[2], refused);
        let PortResult::Unreachable { why, .. } = &found[0].ports[3] else { panic!("{found:?}") };
        assert_eq!(why, "connected, but: timed out after 3.0 s");
    }

    #[test]
    fn silent_ports_are_unreachable_and_those_behind_them_untried() {
        let me = Node::new(0, 1);
        let target = Target { node: 1, address: LOCAL, ports: vec![silent_port(); 40] };
        let began = Instant::now();
        let until = Until::after(Duration::from_millis(2000), &Cancel::default());
        let found = run(&me.host, TAG, &[target], 3, &until);
        assert!(began.elapsed() < Duration::from_secs(3));
        let (tried, behind) = found[0].ports.split_at(AT_ONCE);
        for port in tried {
            let PortResult::Unreachable { why, .. } = port else { panic!("{port:?}") };
            assert!(why.starts_with("timed out after"), "{why}");
        }
        assert_eq!(behind.last(), Some(&PortResult::NotTried));
    }
}
