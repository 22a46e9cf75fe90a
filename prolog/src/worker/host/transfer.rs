//! A bulk transfer to one peer, for the share of segments that the network lost: loss hides from bandwidth.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Instant;

use super::super::authenticate::{Intent, Purpose};
use super::super::timed::{Timed, words};
use super::segments::{self, Segments};
use super::{Host, Until};
use crate::protocol::{Reply, SegmentSource, Tag, Target, Transferred, Unreachable};

/// Bytes handed to the kernel at once.
const PIECE_BYTES: usize = 64 << 10;

/// Sends `bytes` to the first rank of `target`, which counts them.
pub(super) fn run(host: &Host, tag: Tag, target: &Target, bytes: u64, until: &Until) -> Reply {
    let Some(&port) = target.ports.first() else {
        return Reply::Failed { message: format!("node {} has no rank to send to", target.node) };
    };
    let unreachable = |why| {
        Reply::Transfer(Transferred::Unreachable(Unreachable {
            from: host.node,
            to: target.node,
            address: target.address,
            port,
            why,
        }))
    };
    let intent = Intent { tag, purpose: Purpose::Sink, from: (host.node, 0), to: (target.node, 0) };
    let (stream, _) = match host.dial((target.address, port), intent, until) {
        Ok(dialed) => dialed,
        Err(why) => return unreachable(why),
    };
    let before = segments::of_namespace();
    let started = Instant::now();
    let sent = match send(&stream, bytes, until) {
        Ok(sent) => sent,
        Err(error) => return unreachable(format!("{} in the middle of a transfer", words(&error))),
    };
    let seconds = started.elapsed().as_secs_f64();
    let (counted, source) = match segments::of_connection(&stream) {
        Ok(counted) => (counted, SegmentSource::Connection),
        // A kernel without inet_diag: the next best number counts other traffic too.
        Err(_) => match (before, segments::of_namespace()) {
            (Some(before), Some(after)) => (after.since(before), SegmentSource::Namespace),
            _ => {
                return Reply::Failed {
                    message: "neither inet_diag nor /proc/self/net/snmp can be read".to_owned(),
                };
            }
        },
    };
    let Segments { sent: segments, again: retransmitted } = counted;
    Reply::Transfer(Transferred::Sent { bytes: sent, seconds, segments, retransmitted, source })
}

/// Sends until all is acknowledged by the peer's count, or until the time is over: what was sent by then counts.
fn send(stream: &TcpStream, bytes: u64, until: &Until) -> std::io::Result<u64> {
    let piece = vec![0x5A; PIECE_BYTES];
    let mut timed = Timed { stream, until: until.clone() };
    let mut sent = 0;
    while sent < bytes {
        let wanted = usize::try_from(bytes - sent).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
        match timed.write(&piece[..wanted]) {
            Ok(0) => return Err(std::io::ErrorKind::WriteZero.into()),
            Ok(count) => sent += count as u64,
            Err(_) if until.over() => return Ok(sent),
            Err(error) => return Err(error),
        }
    }
    stream.shutdown(Shutdown::Write)?;
    let mut count = [0; 8];
    match timed.read_exact(&mut count) {
        Ok(()) if u64::from_be_bytes(count) == bytes => Ok(sent),
        Ok(()) => Err(std::io::Error::other("the peer counted other bytes than were sent")),
        Err(_) if until.over() => Ok(sent),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::super::timed::Cancel;
    use super::super::testing::{Fault, Node, TAG, proxy};
    use super::*;

    fn transfer(target: &Target, limit: Duration) -> Transferred {
        let me = Node::new(0, 1);
        match run(&me.host, TAG, target, 8 << 20, &Until::after(limit, &Cancel::default())) {
            Reply::Transfer(transferred) => transferred,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn all_of_it_arrives_and_its_own_segments_are_counted() {
        let peer = Node::new(1, 1);
        let done = transfer(&peer.target(), Duration::from_secs(10));
        let Transferred::Sent { bytes, segments, retransmitted, source, .. } = done else {
            panic!("{done:?}")
        };
        assert_eq!((bytes, retransmitted, source), (8 << 20, 0, SegmentSource::Connection));
        // Loopback's segments hold up to 64 KiB.
        assert!((100..10_000).contains(&segments), "{segments}");
    }

    #[test]
    fn time_ends_it_before_bytes_do() {
        let peer = Node::new(1, 1);
        let mut target = peer.target();
        target.ports[0] = proxy(target.ports[0], Fault::Slow(100e3));
        let began = Instant::now();
        let done = transfer(&target, Duration::from_millis(500));
        assert!(began.elapsed() < Duration::from_secs(2));
        let Transferred::Sent { bytes, .. } = done else { panic!("{done:?}") };
        assert!(bytes > 0 && bytes <= 8 << 20);
    }

    #[test]
    fn a_refused_port_is_named() {
        let peer = Node::new(1, 1);
        let done = transfer(&Target { ports: vec![1], ..peer.target() }, Duration::from_secs(2));
        let Transferred::Unreachable(way) = done else { panic!("{done:?}") };
        assert_eq!((way.from, way.to, way.port, way.why.as_str()), (0, 1, 1, "connection refused"));
    }
}
