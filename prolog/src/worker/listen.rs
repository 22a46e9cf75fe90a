//! One listener a rank: which ports, and how they are bound.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

use crate::protocol::{Listen, MAX_RANKS};

/// Connections that may wait to be accepted. The head node of a job is connected to by every other node at
/// once, and a full queue costs the peer a second. The kernel cuts it to net.core.somaxconn.
const BACKLOG: i32 = 4096;

/// Why there are no listeners.
#[derive(Debug, thiserror::Error)]
pub(super) enum ListenError {
    /// Not a sensible number of ranks.
    #[error("host.ranks_per_node = {ranks}: 1 to {MAX_RANKS} are possible")]
    Ranks { ranks: u32 },
    /// The range is used up.
    #[error(
        "only {bound} of {wanted} ports are free in {first}-{last} (network.port_first, port_last); the last \
         one said: {source}"
    )]
    Full { bound: usize, wanted: u32, first: u16, last: u16, source: io::Error },
    /// A port that the roster names is taken.
    #[error("port {port}, which the other nodes know, can't be bound again: {source}")]
    Taken { port: u16, source: io::Error },
}

/// Listeners and their ports, rank by rank.
type Bound = (Vec<TcpListener>, Vec<u16>);

pub(super) fn bind(wanted: &Listen) -> Result<Bound, ListenError> {
    if wanted.ranks == 0 || wanted.ranks > MAX_RANKS {
        return Err(ListenError::Ranks { ranks: wanted.ranks });
    }
    if !wanted.exactly.is_empty() {
        let listeners = wanted
            .exactly
            .iter()
            .map(|&port| bind_one(port).map_err(|source| ListenError::Taken { port, source }))
            .collect::<Result<_, _>>()?;
        return Ok((listeners, wanted.exactly.clone()));
    }
    let (mut listeners, mut ports) = (Vec::new(), Vec::new());
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for port in candidates(wanted) {
        match bind_one(port) {
            Ok(listener) => {
                listeners.push(listener);
                ports.push(port);
            }
            Err(error) => last = error,
        }
        if ports.len() == wanted.ranks as usize {
            return Ok((listeners, ports));
        }
    }
    Err(ListenError::Full {
        bound: ports.len(),
        wanted: wanted.ranks,
        first: wanted.port_first,
        last: wanted.port_last,
        source: last,
    })
}

/// Every port of the range once, from a place in its upper half: the leader's session searches from the job id
/// modulo the size of the range, and both should find theirs at the first try.
fn candidates(wanted: &Listen) -> impl Iterator<Item = u16> {
    let first = u32::from(wanted.port_first);
    let size = u32::from(wanted.port_last).saturating_sub(first) + 1;
    let upper = size - size / 2;
    let start = size / 2 + wanted.job_id.wrapping_mul(wanted.ranks) % upper;
    (0..size).filter_map(move |step| u16::try_from(first + (start + step) % size).ok())
}

/// On all addresses: peers may know this node by any of them. IPv6 sockets take IPv4 connections too; a node
/// without IPv6 gets an IPv4 one.
fn bind_one(port: u16) -> io::Result<TcpListener> {
    let listener = match TcpListener::bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))) {
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
            TcpListener::bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)))?
        }
        other => other?,
    };
    // Listening again only sets the length of the queue.
    rustix::net::listen(&listener, BACKLOG)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(port_first: u16, port_last: u16, job_id: u32) -> Listen {
        Listen { ranks: 2, port_first, port_last, job_id, exactly: Vec::new() }
    }

    #[test]
    fn the_search_starts_in_the_upper_half_and_sees_every_port_once() {
        for job_id in [0, 1, 77, u32::MAX] {
            let mut ports: Vec<u16> = candidates(&wanted(45_000, 45_199, job_id)).collect();
            assert!(ports[0] >= 45_100, "{job_id}: {}", ports[0]);
            ports.sort_unstable();
            assert_eq!(ports, (45_000..=45_199).collect::<Vec<_>>());
        }
        assert_eq!(candidates(&wanted(65_535, 65_535, 3)).collect::<Vec<_>>(), [65_535]);
    }

    #[test]
    fn taken_ports_are_passed_over_and_a_full_range_says_so() {
        // Below the ports that the kernel gives to outgoing connections, of which other tests have many.
        let first = 10_000 + u16::try_from(std::process::id() % 2000).unwrap() * 4;
        let four = || wanted(first, first + 3, 0);
        let (_first, ports) = bind(&four()).unwrap();
        let (_second, others) = bind(&four()).unwrap();
        assert!(ports.iter().all(|port| !others.contains(port)));
        assert!(matches!(bind(&four()), Err(ListenError::Full { bound: 0, .. })));
        let exactly = Listen { exactly: ports.clone(), ..four() };
        assert!(matches!(bind(&exactly), Err(ListenError::Taken { .. })));
        drop(_first);
        assert_eq!(bind(&exactly).unwrap().1, ports);
    }
}
