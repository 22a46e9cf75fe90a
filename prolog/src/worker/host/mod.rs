//! The host engine: the primitives on the processor and over TCP.

mod collective;
mod connect;
mod duplex;
mod gloo;
mod overlap;
pub(super) mod peer;
mod product;
mod segments;
#[cfg(test)]
pub(super) mod testing;
mod transfer;
mod wake_up;

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use diag::facts::NodeId;

use super::authenticate::{self, Intent};
use super::exchange::Exchange;
use super::timed::{Cancel, Timed, Until, connect_within, words};
use crate::protocol::{DataKey, Reply, Request, Tag};
use collective::Plan;

/// How long a TCP connection may take: long enough for two lost SYNs (sent again after 1 s and 3 s), which is
/// slow but not dead.
const CONNECT_WAIT: Duration = Duration::from_millis(3500);

/// A connection gets this long even where half of a check's limit is less: a lost SYN is sent again after 1 s.
const CONNECT_LEAST: Duration = Duration::from_millis(1500);

/// How long the handshake after it may take; the peer's processors are busy with other ranks.
const HANDSHAKE_WAIT: Duration = Duration::from_secs(3);

/// How often a connection is tried again that was cut during the handshake: the acceptor drops connections
/// while it is flooded.
const HANDSHAKE_TRIES: u32 = 3;

/// Pause between them.
const HANDSHAKE_PAUSE: Duration = Duration::from_millis(20);

/// The engine of one node.
pub(super) struct Host {
    node: NodeId,
    key: DataKey,
    exchange: Arc<Exchange>,
    inputs: product::Inputs,
}

impl Host {
    /// Serves `listeners`, one a rank, for the rest of the process.
    pub(super) fn start(node: NodeId, key: DataKey, listeners: &[TcpListener]) -> std::io::Result<Self> {
        let exchange = Exchange::start(node, key.clone(), listeners)?;
        Ok(Self { node, key, exchange, inputs: product::Inputs::default() })
    }

    /// This node.
    pub(super) fn node(&self) -> NodeId {
        self.node
    }

    /// Drops connections that were left over from earlier rounds.
    pub(super) fn begin(&self, tag: Tag) {
        self.exchange.begin(tag.round);
    }

    /// Runs one primitive to its end, its limit, or until it is cancelled.
    pub(super) fn measure(&self, request: &Request, cancel: &Cancel) -> Reply {
        match request {
            &Request::Product { window_ms, limit_ms, ranks } => {
                let until = Until::after(Duration::from_millis(limit_ms), cancel);
                product::run(&self.inputs, Duration::from_millis(window_ms), ranks, &until)
            }
            &Request::WakeUp { window_ms, limit_ms, ranks } => {
                let until = Until::after(Duration::from_millis(limit_ms), cancel);
                wake_up::run(Duration::from_millis(window_ms), ranks, &until)
            }
            Request::Collective { tag, collective, communicators, window_ms, limit_ms } => {
                let (window, limit) = (Duration::from_millis(*window_ms), Duration::from_millis(*limit_ms));
                self.exchange.begin(tag.round);
                let plan = Plan { tag: *tag, collective: *collective, window };
                collective::run(self, plan, communicators, &Until::after(limit, cancel))
            }
            Request::Overlap { tag, members, window_ms, limit_ms } => {
                let (window, limit) = (Duration::from_millis(*window_ms), Duration::from_millis(*limit_ms));
                self.exchange.begin(tag.round);
                overlap::run(self, *tag, members, window, &Until::after(limit, cancel))
            }
            Request::Gloo(wanted) => {
                self.exchange.begin(wanted.tag.round);
                let limit = Duration::from_millis(wanted.start_ms.saturating_add(wanted.limit_ms));
                gloo::run(self, wanted, &Until::after(limit, cancel))
            }
            Request::Connect { tag, targets, round_trips, limit_ms } => {
                let until = Until::after(Duration::from_millis(*limit_ms), cancel);
                Reply::Connect(connect::run(self, *tag, targets, *round_trips, &until))
            }
            Request::Transfer { tag, target, bytes, limit_ms } => {
                let until = Until::after(Duration::from_millis(*limit_ms), cancel);
                transfer::run(self, *tag, *target, *bytes, &until)
            }
            Request::Fp8Product { .. } => Reply::Failed { message: "processors have no fp8".to_owned() },
            Request::Listen(_)
            | Request::Look(_)
            | Request::Open(_)
            | Request::Join { .. }
            | Request::Ping
            | Request::Stop => Reply::Failed { message: "this request is no primitive".to_owned() },
        }
    }

    /// Connects to a rank and shows who this is. Gives the time until the TCP connection stood; the error is
    /// what a person should read.
    fn dial(
        &self,
        (address, port): (IpAddr, u16),
        intent: Intent,
        until: &Until,
    ) -> Result<(TcpStream, Duration), String> {
        let mut tries = 0;
        loop {
            let connecting = until.at_most(CONNECT_WAIT);
            let wait = CONNECT_WAIT.min(until.left());
            let (stream, took) = connect_within(SocketAddr::new(address, port), &connecting)
                .map_err(|error| with_time(&error, wait))?;
            // Small messages close a step and a handshake: Nagle would hold them back until the peer's delayed
            // acknowledgement, 40 ms. The buffers are left alone: setting them turns the kernel's autotuning off
            // and caps them at net.core.wmem_max, often 208 KiB.
            stream.set_nodelay(true).map_err(|error| words(&error))?;
            let mut timed = Timed { stream: &stream, until: until.at_most(HANDSHAKE_WAIT) };
            let answering = HANDSHAKE_WAIT.min(until.left());
            let Err(error) = authenticate::connect(&mut timed, &self.key, intent) else {
                return Ok((stream, took));
            };
            tries += 1;
            let cut = matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset);
            if !cut || tries >= HANDSHAKE_TRIES || until.over() {
                return Err(format!("connected, but: {}", with_time(&error, answering)));
            }
            std::thread::sleep(HANDSHAKE_PAUSE);
        }
    }
}

/// What went wrong; where it was only time, how much.
fn with_time(error: &std::io::Error, wait: Duration) -> String {
    let after = if error.kind() == ErrorKind::TimedOut {
        format!(" after {:.1} s", wait.as_secs_f64())
    } else {
        String::new()
    };
    format!("{}{after}", words(error))
}
