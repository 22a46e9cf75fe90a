//! A bulk transfer to one peer, for the share of segments that the network lost: loss hides from bandwidth.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use super::super::authenticate::{Intent, Purpose};
use super::super::timed::{Timed, words};
use super::segments::{self, Segments};
use super::{Host, Until};
use crate::protocol::{Member, Reply, SegmentSource, Tag, Transferred, Unreachable};

/// Bytes handed to the kernel at once.
const PIECE_BYTES: usize = 64 << 10;

/// Sends `bytes` to a rank, which counts them.
pub(super) fn run(host: &Host, tag: Tag, target: Member, bytes: u64, until: &Until) -> Reply {
    let port = target.port;
    let unreachable = |why| {
        Reply::Transfer(Transferred::Unreachable(Unreachable {
            from: host.node,
            to: target.node,
            address: target.address,
            port,
            why,
        }))
    };
    let intent = Intent { tag, purpose: Purpose::Sink, from: (host.node, 0), to: (target.node, target.rank) };
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
    timed.write_all(&bytes.to_be_bytes())?;
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
    let mut count = [0; 8];
    match timed.read_exact(&mut count) {
        Ok(()) if u64::from_be_bytes(count) == bytes => Ok(sent),
        Ok(()) => Err(std::io::Error::other("the peer counted something else")),
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

    fn transfer(target: Member, limit: Duration) -> Transferred {
        let me = Node::new(0, 1);
        match run(&me.host, TAG, target, 8 << 20, &Until::after(limit, &Cancel::default())) {
            Reply::Transfer(transferred) => transferred,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn all_of_it_arrives_and_its_own_segments_are_counted() {
        let peer = Node::new(1, 1);
        let done = transfer(peer.members[0], Duration::from_secs(10));
        let Transferred::Sent { bytes, segments, retransmitted, source, .. } = done else {
            panic!("{done:?}")
        };
        assert_eq!((bytes, source), (8 << 20, SegmentSource::Connection));
        // On a busy machine TCP probes a tail that only waits for the processor, and counts that.
        assert!(retransmitted < 10, "{retransmitted}");
        // Loopback's segments hold up to 64 KiB.
        assert!((100..10_000).contains(&segments), "{segments}");
    }

    #[test]
    fn time_ends_it_before_bytes_do() {
        let peer = Node::new(1, 1);
        let mut target = peer.members[0];
        target.port = proxy(target.port, Fault::Slow(100e3));
        let began = Instant::now();
        let done = transfer(target, Duration::from_millis(500));
        assert!(began.elapsed() < Duration::from_secs(2));
        let Transferred::Sent { bytes, .. } = done else { panic!("{done:?}") };
        assert!(bytes > 0 && bytes <= 8 << 20);
    }

    #[test]
    fn a_refused_port_is_named() {
        let peer = Node::new(1, 1);
        let done = transfer(Member { port: 1, ..peer.members[0] }, Duration::from_secs(2));
        let Transferred::Unreachable(way) = done else { panic!("{done:?}") };
        assert_eq!((way.from, way.to, way.port, way.why.as_str()), (0, 1, 1, "connection refused"));
    }
}
