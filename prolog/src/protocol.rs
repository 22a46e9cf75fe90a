//! What coordinator and worker say to each other over their socket pair: requests, replies and the frames that
//! carry them. The same messages serve every engine; what an engine does with them is in [`crate::worker`].

mod devices;
mod frames;
mod gloo;

use std::fmt;
use std::net::IpAddr;

use diag::facts::NodeId;
use diag::gpu_facts::reading::{Load, NodeReading};
use serde::{Deserialize, Serialize};
use zeroize::Zeroize as _;

pub use devices::{Device, Devices, Libraries, Look, Opened, Trouble, TroubleKind};
pub use frames::{Decoder, FrameError, MAX_FRAME, encode};
pub use gloo::{Gloo, Glooed};

/// Most single readings in one reply; [`diag::measurement::Measurement::samples`] holds no more.
pub const MAX_SAMPLES: usize = 32;

/// Most ranks that one worker runs.
pub const MAX_RANKS: u32 = 64;

/// The key that authenticates the data connections of one suite.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DataKey(pub [u8; 32]);

impl Drop for DataKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for DataKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DataKey(..)")
    }
}

/// Names one group's part in one round, the same on every member: connections of different tags never mix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Tag {
    /// [`diag::round::Round::index`].
    pub round: u32,
    /// Position of the group in the round.
    pub group: u32,
}

/// A rank and where it listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its node.
    pub node: NodeId,
    /// Its index on that node.
    pub rank: u32,
    /// Address of the node.
    pub address: IpAddr,
    /// Port of the rank.
    pub port: u16,
}

/// A node and all ports of its ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// The node.
    pub node: NodeId,
    /// Its address.
    pub address: IpAddr,
    /// Rank i listens on port i.
    pub ports: Vec<u16>,
}

/// A collective operation, as nccl-tests defines its sizes and its bus bandwidth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Collective {
    /// Every rank gets the sum of all contributions.
    AllReduce,
    /// Every rank gets every rank's block.
    AllGather,
    /// Every rank sends another block to every rank.
    AllToAll,
}

impl Collective {
    /// What a busbw is to size / time: the share of the message size that each rank receives at the least.
    #[must_use]
    pub fn bus_factor(self, ranks: usize) -> f64 {
        let share = (ranks.saturating_sub(1)) as f64 / ranks.max(1) as f64;
        match self {
            Self::AllReduce => 2.0 * share,
            Self::AllGather | Self::AllToAll => share,
        }
    }

    /// Its name with several of them, for a person.
    #[must_use]
    pub fn plural(self) -> &'static str {
        match self {
            Self::AllReduce => "all-reduces",
            Self::AllGather => "all-gathers",
            Self::AllToAll => "all-to-alls",
        }
    }
}

/// What the coordinator asks for. A new request cancels the one that is still running.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Bind one listener a rank.
    Listen(Listen),
    /// The rendezvous is over: who this node is, and the key of the data connections.
    Join {
        /// This node.
        node: NodeId,
        /// The key.
        key: DataKey,
    },
    /// Read what NVML and the kernel say of this node. It is answered whenever that is done, at the limit at the latest;
    /// other requests may follow meanwhile.
    Look(Look),
    /// Load the CUDA engine's libraries and open this node's GPUs: rank i is GPU i.
    Open(Devices),
    /// Matrix products on all ranks at once.
    Product {
        /// How long they are counted.
        window_ms: u64,
        /// When it ends at the latest.
        limit_ms: u64,
        /// How many ranks.
        ranks: u32,
    },
    /// The same products in fp8 on every GPU at once.
    Fp8Product {
        /// How long they are counted.
        window_ms: u64,
        /// When it ends at the latest.
        limit_ms: u64,
    },
    /// How long a sleeping thread takes to run after it was woken, one pair of threads a rank, or a kernel to start, on
    /// every GPU; all at once.
    WakeUp {
        /// How long wake-ups are counted.
        window_ms: u64,
        /// When it ends at the latest.
        limit_ms: u64,
        /// How many ranks.
        ranks: u32,
    },
    /// A collective on every communicator, all of them at the same time.
    Collective {
        /// Whose.
        tag: Tag,
        /// Which.
        collective: Collective,
        /// The ranks of each communicator in ring order, the same on every node; this node has ranks in all of
        /// them, and no rank is in two.
        communicators: Vec<Vec<Member>>,
        /// How long it is measured, once the connections stand.
        window_ms: u64,
        /// When it ends at the latest.
        limit_ms: u64,
    },
    /// An all-reduce over this node's ranks alone, then products beside it, each for one window.
    Overlap {
        /// Whose.
        tag: Tag,
        /// This node's ranks.
        members: Vec<Member>,
        /// How long each of the two lasts.
        window_ms: u64,
        /// When both end at the latest.
        limit_ms: u64,
    },
    /// PyTorch's Gloo all-reduce between two nodes; where one of them has no torch, the project's own ring.
    Gloo(Gloo),
    /// Connect to every port of every target and go back and forth.
    Connect {
        /// Whose.
        tag: Tag,
        /// To whom.
        targets: Vec<Target>,
        /// Round trips a port.
        round_trips: u32,
        /// When it ends at the latest.
        limit_ms: u64,
    },
    /// Send to one rank; its node's own request covers the other way.
    Transfer {
        /// Whose.
        tag: Tag,
        /// To whom.
        target: Member,
        /// How much.
        bytes: u64,
        /// When it ends at the latest; what was sent by then counts.
        limit_ms: u64,
    },
    /// Nothing; shows that the worker answers.
    Ping,
    /// End.
    Stop,
}

/// How to choose the ports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listen {
    /// How many: one a rank.
    pub ranks: u32,
    /// First port of the site's range.
    pub port_first: u16,
    /// Last port of the site's range, inclusive.
    pub port_last: u16,
    /// Spreads the jobs of one node over the range.
    pub job_id: u32,
    /// Exactly these instead: a restarted worker must be found where the roster says. Empty: search.
    pub exactly: Vec<u16>,
}

/// What the worker answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// To `Listen`: rank i listens on port i.
    Listening {
        /// The ports.
        rank_ports: Vec<u16>,
    },
    /// To `Join` and `Ping`.
    Ready,
    /// To `Look`.
    Looked(Box<NodeReading>),
    /// To `Open`.
    Opened(Opened),
    /// To `Product` and `Fp8Product`.
    Product(Products),
    /// To `WakeUp`.
    WakeUp(WakeUps),
    /// To `Collective`: one entry a communicator, in order.
    Collective(Vec<Collected>),
    /// To `Overlap`.
    Overlap(Overlapped),
    /// To `Gloo`.
    Gloo(Glooed),
    /// To `Connect`.
    Connect(Vec<Reached>),
    /// To `Transfer`.
    Transfer(Transferred),
    /// The last thing a stopped worker says.
    Stopping,
    /// The request could not be carried out, and that is this node's own trouble.
    Failed {
        /// What happened, one line.
        message: String,
    },
}

/// Counted products.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Products {
    /// Finished in the window, all ranks together.
    pub products: u64,
    /// From the common start to the end of the last counted product.
    pub seconds: f64,
    /// TFLOP/s of all ranks together.
    pub tflop_per_s: f64,
    /// TFLOP/s of each rank; 0 where its GPU or library offers no such product.
    pub per_rank: Vec<f64>,
    /// Share of the products that were exactly right; of GPUs, whose whole products are not known before, those with
    /// the same bits each time and the right elements where it was looked.
    pub right: f64,
    /// A hash of each rank's product of the same inputs by the same algorithm: like GPUs have the same. Host: none.
    pub fingerprints: Vec<u64>,
    /// What multiplied, with its version: other versions may give other bits. Host: empty.
    pub library: String,
    /// The ranks whose product was not right, and how.
    pub wrong: Vec<(u32, String)>,
    /// Of GPUs: what was seen of each rank's meanwhile. Host: none.
    pub loads: Vec<Load>,
    /// Ranks that have no number.
    pub troubles: Vec<Trouble>,
}

/// Wake-ups of threads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WakeUps {
    /// How many were seen, all ranks together.
    pub wake_ups: u64,
    /// From the wake call to the thread running, µs; the median.
    pub median_us: f64,
    /// The same, 99th percentile.
    pub tail_us: f64,
    /// Some of them, from the fastest to the slowest, at most [`MAX_SAMPLES`].
    pub samples_us: Vec<f64>,
    /// Of GPUs: each rank by itself, if it has numbers. Host: none.
    pub per_rank: Vec<Option<Launches>>,
    /// Ranks that have none.
    pub troubles: Vec<Trouble>,
}

/// Kernel launches on one GPU, µs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Launches {
    /// The launch call, median.
    pub call_us: f64,
    /// The launch call, 99th percentile.
    pub call_tail_us: f64,
    /// From the launch call to the end of the kernel as the host sees it, median.
    pub done_us: f64,
    /// The same, 99th percentile.
    pub done_tail_us: f64,
    /// Some launch calls, from the fastest to the slowest.
    pub samples_us: Vec<f64>,
}

/// An all-reduce, alone and with products beside it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overlapped {
    /// Numbers.
    Measured(Box<Overlap>),
    /// Ranks of this node that can't reach each other.
    Unreachable(Vec<Unreachable>),
    /// Ranks that kept the others from it.
    Broken(Vec<Trouble>),
}

/// The numbers of an overlap.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Overlap {
    /// The all-reduce with nothing beside it.
    pub busbw_alone: Busbw,
    /// Products while the all-reduce ran.
    pub products: Products,
    /// The all-reduce while products ran.
    pub busbw: Busbw,
}

/// How a collective went on one communicator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Collected {
    /// Numbers.
    Measured(Busbw),
    /// Ranks that this node could not reach, or that left.
    Unreachable(Vec<Unreachable>),
    /// Ranks of this node that kept the others from it.
    Broken(Vec<Trouble>),
    /// Another node could not do its part, and says so itself.
    PeerBroken,
}

/// Bus bandwidth as nccl-tests defines it: [`Collective::bus_factor`] × bytes / time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Busbw {
    /// GB/s (10^9 bytes); the lowest of this node's ranks.
    pub gb_per_s: f64,
    /// Message size that the number belongs to; 0 if no collective was completed.
    pub bytes: u64,
    /// The single readings behind it.
    pub samples: Vec<f64>,
    /// Smaller messages, where several sizes were measured: bytes and GB/s, the lowest of this node's ranks.
    pub smaller: Vec<(u64, f64)>,
    /// Completed collectives, the warm-up included; every one was verified.
    pub iterations: u64,
    /// Share of them with the right result on every rank of this node; `None`: none was completed.
    pub right: Option<f64>,
    /// The limit ran out: the number is what was moved until then.
    pub limited: bool,
    /// What each rank of this node received over the network in all.
    pub moved_bytes: u64,
    /// From the standing connections to the end.
    pub seconds: f64,
}

/// A way between two ranks that does not work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unreachable {
    /// Node that connects.
    pub from: NodeId,
    /// Node that listens.
    pub to: NodeId,
    /// Address that was tried.
    pub address: IpAddr,
    /// Port that was tried.
    pub port: u16,
    /// What the operating system or the peer said, in words.
    pub why: String,
}

/// What `Connect` found at one target.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reached {
    /// The target.
    pub node: NodeId,
    /// One entry a port, in order.
    pub ports: Vec<PortResult>,
}

/// What `Connect` found at one port.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PortResult {
    /// Connected and echoed.
    Reached {
        /// Until the TCP connection stood.
        connect_ms: f64,
        /// Round trips, at most [`MAX_SAMPLES`].
        round_trips_ms: Vec<f64>,
    },
    /// Not.
    Unreachable {
        /// The port.
        port: u16,
        /// What the operating system or the peer said, in words.
        why: String,
    },
    /// The limit ran out before this port's turn: says nothing about it.
    NotTried,
}

/// How a transfer went.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transferred {
    /// Sent, as a whole or until the limit.
    Sent {
        /// Bytes handed to the network.
        bytes: u64,
        /// How long it took.
        seconds: f64,
        /// Segments sent.
        segments: u64,
        /// Segments sent again.
        retransmitted: u64,
        /// Where the two counts come from.
        source: SegmentSource,
    },
    /// The peer could not be reached, or left.
    Unreachable(Unreachable),
}

/// Where counts of segments come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SegmentSource {
    /// TCP_INFO of this very connection.
    Connection,
    /// /proc/self/net/snmp: everything that this network namespace sent meanwhile.
    Namespace,
}

/// A request and its number.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// Counts up; the answer carries it back.
    pub id: u64,
    /// What is asked.
    pub request: Request,
}

/// A reply and the number of its request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// Number of the request.
    pub id: u64,
    /// What was answered.
    pub reply: Reply,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_not_printed() {
        assert!(!format!("{:?}", Request::Join { node: 0, key: DataKey([171; 32]) }).contains("171"));
    }
}
