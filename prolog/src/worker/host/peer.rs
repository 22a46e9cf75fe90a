//! A data connection between two workers over which they agree on what both do next.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::super::authenticate::{Intent, Purpose};
use super::super::timed::{Timed, words};
use super::{Host, Until};
use crate::protocol::{Decoder, Member, Tag, Unreachable, encode};

/// Share of the limit in which the other worker must have connected: longer than its own attempt may take.
const ARRIVAL_SHARE: f64 = 0.75;

/// The connection to the other worker.
pub(in super::super) struct Peer {
    stream: TcpStream,
    decoder: Decoder,
}

impl Peer {
    /// The dialer connects, the acceptor waits for it; this node is one of the two.
    pub(in super::super) fn meet(
        host: &Host,
        tag: Tag,
        (acceptor, dialer): (Member, Member),
        limit: &Until,
    ) -> Result<Self, Unreachable> {
        let intent = Intent {
            tag,
            purpose: Purpose::Agree,
            from: (dialer.node, dialer.rank),
            to: (acceptor.node, acceptor.rank),
        };
        let unreachable = |why: String| Unreachable {
            from: dialer.node,
            to: acceptor.node,
            address: acceptor.address,
            port: acceptor.port,
            why,
        };
        let stream = if host.node == dialer.node {
            let half = limit.at_most(limit.left() / 2);
            host.dial((acceptor.address, acceptor.port), intent, &half).map_err(unreachable)?.0
        } else {
            let patience = limit.left().mul_f64(ARRIVAL_SHARE);
            host.exchange.take(&intent, &limit.at_most(patience), || false).ok_or_else(|| {
                unreachable(format!("no connection arrived within {:.1} s", patience.as_secs_f64()))
            })?
        };
        Ok(Self { stream, decoder: Decoder::default() })
    }

    pub(in super::super) fn say<T: Serialize>(&self, message: &T, until: &Until) -> Result<(), String> {
        let frame = encode(message).map_err(|error| error.to_string())?;
        let mut timed = Timed { stream: &self.stream, until: until.clone() };
        timed.write_all(&frame).map_err(|error| words(&error))
    }

    pub(in super::super) fn hear<T: DeserializeOwned>(&mut self, until: &Until) -> Result<T, String> {
        let mut timed = Timed { stream: &self.stream, until: until.clone() };
        let mut piece = [0; 4096];
        loop {
            if let Some(message) = self.decoder.message().map_err(|error| error.to_string())? {
                return Ok(message);
            }
            match timed.read(&mut piece) {
                Ok(0) => return Err("the peer closed the connection".to_owned()),
                Ok(count) => self.decoder.push(&piece[..count]),
                Err(error) => return Err(words(&error)),
            }
        }
    }
}
