//! How many TCP segments were sent, and sent again. The kernel tells it for a single connection (TCP_INFO, asked
//! for over netlink's sock_diag, which needs no rights), and for all of a network namespace together.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};

use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with, sockopt,
};

/// Where the counters of this network namespace are.
const SNMP: &str = "/proc/self/net/snmp";

/// How long the kernel may take to answer; it does so within the send call.
const ANSWER_WAIT: std::time::Duration = std::time::Duration::from_secs(1);

/// Numbers from linux/netlink.h, linux/sock_diag.h and linux/inet_diag.h.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const NLMSG_ERROR: u16 = 2;
const INET_DIAG_INFO: u16 = 2;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const IPPROTO_TCP: u8 = 6;

/// Lengths of nlmsghdr, inet_diag_msg and rtattr.
const NETLINK_HEAD: usize = 16;
const DIAG_MESSAGE: usize = 72;
const ATTRIBUTE_HEAD: usize = 4;

/// Places in tcp_info of tcpi_total_retrans and tcpi_data_segs_out (since Linux 4.6); the layout only grows.
const TOTAL_RETRANS: usize = 100;
const DATA_SEGS_OUT: usize = 156;

/// Counts of segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Segments {
    pub sent: u64,
    pub again: u64,
}

impl Segments {
    /// What came since `before`.
    pub(super) fn since(self, before: Self) -> Self {
        Self { sent: self.sent.saturating_sub(before.sent), again: self.again.saturating_sub(before.again) }
    }
}

/// Counts of this network namespace since it was made.
pub(super) fn of_namespace() -> Option<Segments> {
    parse_snmp(&std::fs::read_to_string(SNMP).ok()?)
}

fn parse_snmp(text: &str) -> Option<Segments> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp:"));
    let (names, values) = (lines.next()?, lines.next()?);
    let value = |wanted: &str| {
        let column = names.split_whitespace().position(|name| name == wanted)?;
        values.split_whitespace().nth(column)?.parse().ok()
    };
    Some(Segments { sent: value("OutSegs")?, again: value("RetransSegs")? })
}

/// Counts of one connection: data segments only, so that acknowledgements don't thin the share.
pub(super) fn of_connection(stream: &TcpStream) -> io::Result<Segments> {
    let request = request(stream.local_addr()?, stream.peer_addr()?)?;
    let socket =
        socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(netlink::SOCK_DIAG))?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(ANSWER_WAIT))?;
    sendto(&socket, &request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let mut answer = vec![0; 8192];
    let (length, _) = recv(&socket, &mut answer[..], RecvFlags::empty())?;
    parse_answer(answer.get(..length).unwrap_or(&answer))
        .ok_or_else(|| io::Error::other("the kernel's answer has no TCP_INFO"))
}

/// nlmsghdr, then inet_diag_req_v2 for exactly one connection.
fn request(local: SocketAddr, peer: SocketAddr) -> io::Result<Vec<u8>> {
    let family = if local.is_ipv4() { AF_INET } else { AF_INET6 };
    let mut body = vec![family, IPPROTO_TCP, 1 << (INET_DIAG_INFO - 1), 0];
    // Any state, then both ports, both addresses, any interface, no cookie.
    body.extend(u32::MAX.to_ne_bytes());
    body.extend(local.port().to_be_bytes());
    body.extend(peer.port().to_be_bytes());
    for address in [local.ip(), peer.ip()] {
        let mut place = [0; 16];
        match address {
            IpAddr::V4(v4) => place[..4].copy_from_slice(&v4.octets()),
            IpAddr::V6(v6) => place.copy_from_slice(&v6.octets()),
        }
        body.extend(place);
    }
    let interface = match peer {
        SocketAddr::V6(v6) => v6.scope_id(),
        SocketAddr::V4(_) => 0,
    };
    body.extend(interface.to_ne_bytes());
    body.extend([0xFF; 8]);
    let length = u32::try_from(NETLINK_HEAD + body.len()).map_err(io::Error::other)?;
    let mut message = Vec::new();
    message.extend(length.to_ne_bytes());
    message.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    message.extend(NLM_F_REQUEST.to_ne_bytes());
    // Sequence number and our port: one question, one answer.
    message.extend([0; 8]);
    message.extend(body);
    Ok(message)
}

fn parse_answer(answer: &[u8]) -> Option<Segments> {
    let half = |place: usize| Some(u16::from_ne_bytes(*answer.get(place..)?.first_chunk()?));
    if half(4)? == NLMSG_ERROR {
        return None;
    }
    let mut at = NETLINK_HEAD + DIAG_MESSAGE;
    loop {
        let (length, kind) = (usize::from(half(at)?), half(at + 2)?);
        if length < ATTRIBUTE_HEAD {
            return None;
        }
        if kind == INET_DIAG_INFO {
            let info = answer.get(at + ATTRIBUTE_HEAD..at + length)?;
            let word = |place: usize| Some(u64::from(u32::from_ne_bytes(*info.get(place..)?.first_chunk()?)));
            return Some(Segments { sent: word(DATA_SEGS_OUT)?, again: word(TOTAL_RETRANS)? });
        }
        at += length.next_multiple_of(4);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_connection_counts_its_own_segments() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(host).unwrap();
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let mut server = listener.accept().unwrap().0;
            let mut byte = [0];
            for _ in 0..20 {
                client.write_all(&[1]).unwrap();
                server.read_exact(&mut byte).unwrap();
            }
            let counted = of_connection(&client).unwrap();
            assert!((20..30).contains(&counted.sent), "{host}: {counted:?}");
            assert_eq!(counted.again, 0);
        }
    }

    #[test]
    fn the_namespace_counts_all() {
        let text = "Ip: A B\nIp: 1 2\nTcp: RtoMin OutSegs RetransSegs\nTcp: 200 5000 12\nUdp: X\nUdp: 1\n";
        assert_eq!(parse_snmp(text), Some(Segments { sent: 5000, again: 12 }));
        assert_eq!(parse_snmp("Tcp: OutSegs\n"), None);
        assert!(of_namespace().is_some());
    }

    #[test]
    fn cut_answers_are_no_counts() {
        for length in [0, 5, 16, 88, 90] {
            assert_eq!(parse_answer(&vec![0; length]), None, "{length}");
        }
    }
}
