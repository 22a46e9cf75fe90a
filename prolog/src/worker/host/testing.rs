//! For tests: several nodes in one process on loopback, and a proxy between two of them that slows, stalls,
//! cuts or spoils what goes through.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use diag::facts::NodeId;

use super::Host;
use crate::protocol::{DataKey, Member, Tag, Target};

pub(in crate::worker) const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
pub(in crate::worker) const TAG: Tag = Tag { round: 3, group: 1 };
pub(in crate::worker) const KEY: DataKey = DataKey([9; 32]);

/// One node with its ranks.
pub(in crate::worker) struct Node {
    pub host: Arc<Host>,
    pub members: Vec<Member>,
}

impl Node {
    pub(in crate::worker) fn with_key(node: NodeId, ranks: u32, key: DataKey) -> Self {
        let listeners: Vec<_> = (0..ranks).map(|_| TcpListener::bind((LOCAL, 0)).unwrap()).collect();
        let members = (0..)
            .zip(&listeners)
            .map(|(rank, listener)| Member {
                node,
                rank,
                address: LOCAL,
                port: listener.local_addr().unwrap().port(),
            })
            .collect();
        Self { host: Arc::new(Host::start(node, key, &listeners).unwrap()), members }
    }

    pub(in crate::worker) fn new(node: NodeId, ranks: u32) -> Self {
        Self::with_key(node, ranks, KEY)
    }

    pub(in crate::worker) fn target(&self) -> Target {
        Target {
            node: self.members[0].node,
            address: LOCAL,
            ports: self.members.iter().map(|member| member.port).collect(),
        }
    }
}

/// A port that stays silent like one behind a firewall that drops: its queue is full, so no connection is taken.
pub(in crate::worker) fn silent_port() -> u16 {
    let listener = TcpListener::bind((LOCAL, 0)).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let address = listener.local_addr().unwrap();
    for _ in 0..3 {
        let full = TcpStream::connect_timeout(&address, Duration::from_millis(50));
        std::mem::forget(full);
    }
    std::mem::forget(listener);
    address.port()
}

/// What a proxy does to the bytes from the connecting side.
#[derive(Debug, Clone, Copy)]
pub(in crate::worker) enum Fault {
    /// Lets them through at so many bytes a second.
    Slow(f64),
    /// Lets so many through, then none.
    StallAfter(usize),
    /// Lets so many through, then closes both sides.
    CutAfter(usize),
    /// Flips a bit of the byte with this number.
    Spoil(usize),
}

/// A port that leads to `port` with a fault on the way.
pub(in crate::worker) fn proxy(port: u16, fault: Fault) -> u16 {
    let listener = TcpListener::bind((LOCAL, 0)).unwrap();
    let own = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let server = TcpStream::connect((LOCAL, port)).unwrap();
            let (mut back_from, mut back_to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            thread::spawn(move || std::io::copy(&mut back_from, &mut back_to));
            thread::spawn(move || forward(client, server, fault));
        }
    });
    own
}

fn forward(mut client: TcpStream, mut server: TcpStream, fault: Fault) {
    let mut buffer = [0; 4096];
    let (mut total, mut due) = (0, Instant::now());
    while let Ok(count @ 1..) = client.read(&mut buffer) {
        let mut piece = &mut buffer[..count];
        match fault {
            Fault::Slow(rate) => {
                // A way that lay idle must not make up for it: the ranks may take a while to start.
                due = due.max(Instant::now()) + Duration::from_secs_f64(count as f64 / rate);
                thread::sleep(due.saturating_duration_since(Instant::now()));
            }
            Fault::Spoil(at) if (total..total + count).contains(&at) => piece[at - total] ^= 8,
            Fault::Spoil(_) => {}
            Fault::StallAfter(limit) | Fault::CutAfter(limit) => {
                piece = &mut buffer[..count.min(limit - total)]
            }
        }
        total += count;
        if server.write_all(piece).is_err() {
            break;
        }
        match fault {
            Fault::StallAfter(limit) if total >= limit => loop {
                thread::sleep(Duration::from_secs(1));
            },
            Fault::CutAfter(limit) if total >= limit => break,
            _ => {}
        }
    }
    let _ = client.shutdown(Shutdown::Both);
    let _ = server.shutdown(Shutdown::Both);
}
