//! What the workers of a pair say to each other around Gloo's all-reduce, over a data connection of their own.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpStream};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::super::super::authenticate::{Intent, Purpose};
use super::super::super::timed::{Timed, words};
use super::super::{Host, Until};
use crate::protocol::{Decoder, Member, Tag, Unreachable, encode};

/// Share of the limit in which the other worker must have connected: longer than its own attempt may take.
const ARRIVAL_SHARE: f64 = 0.75;

/// What a node has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Torch {
    /// torch with Gloo, of this version.
    Ready(String),
    /// No torch, and why.
    Absent(String),
    /// A torch that does not work; its node says the rest.
    Broken,
}

/// Where the store listens; `None`: the lower node's torch does not work after all.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Store {
    pub port: Option<u16>,
}

/// How it ended on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum End {
    Worked,
    Failed,
    Broken,
}

/// What a node saw.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Done {
    pub end: End,
    /// Where its Gloo listened, or else from where it connected.
    pub address: Option<(IpAddr, u16)>,
    /// The node's name for itself, which Gloo looks up.
    pub hostname: String,
}

/// The connection to the other worker.
pub(super) struct Peer {
    stream: TcpStream,
    decoder: Decoder,
}

impl Peer {
    /// The higher node connects, the lower one waits for it.
    pub(super) fn meet(
        host: &Host,
        tag: Tag,
        (lower, higher): (Member, Member),
        limit: &Until,
    ) -> Result<Self, Unreachable> {
        let intent = Intent {
            tag,
            purpose: Purpose::Agree,
            from: (higher.node, higher.rank),
            to: (lower.node, lower.rank),
        };
        let unreachable = |why: String| Unreachable {
            from: higher.node,
            to: lower.node,
            address: lower.address,
            port: lower.port,
            why,
        };
        let stream = if host.node == higher.node {
            let half = limit.at_most(limit.left() / 2);
            host.dial((lower.address, lower.port), intent, &half).map_err(unreachable)?.0
        } else {
            let patience = limit.left().mul_f64(ARRIVAL_SHARE);
            host.exchange.take(&intent, &limit.at_most(patience), || false).ok_or_else(|| {
                unreachable(format!("no connection arrived within {:.1} s", patience.as_secs_f64()))
            })?
        };
        Ok(Self { stream, decoder: Decoder::default() })
    }

    pub(super) fn say<T: Serialize>(&self, message: &T, until: &Until) -> Result<(), String> {
        let frame = encode(message).map_err(|error| error.to_string())?;
        let mut timed = Timed { stream: &self.stream, until: until.clone() };
        timed.write_all(&frame).map_err(|error| words(&error))
    }

    pub(super) fn hear<T: DeserializeOwned>(&mut self, until: &Until) -> Result<T, String> {
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
