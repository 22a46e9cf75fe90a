//! What is said about PyTorch's Gloo: the request and its outcome. How Gloo is run is in [`crate::worker`].

use std::net::IpAddr;
use std::path::PathBuf;

use diag::facts::NodeId;
use serde::{Deserialize, Serialize};

use super::{Busbw, Collected, Member, Tag, Unreachable};

/// What [`super::Request::Gloo`] needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gloo {
    /// Whose.
    pub tag: Tag,
    /// All ranks of both nodes in ring order.
    pub members: Vec<Member>,
    /// The site's python; `None`: there is none.
    pub python: Option<PathBuf>,
    /// Interface that Gloo is told to use; empty: it chooses by the node's name.
    pub interface: String,
    /// First port of the site's range.
    pub port_first: u16,
    /// Last port of the site's range, inclusive.
    pub port_last: u16,
    /// How long it is measured, once the two are connected.
    pub window_ms: u64,
    /// How long that may take in all.
    pub limit_ms: u64,
    /// How long torch may take to start before that.
    pub start_ms: u64,
}

/// How Gloo's all-reduce went.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Glooed {
    /// By torch.
    Torch {
        /// Numbers.
        busbw: Busbw,
        /// This node's version of torch.
        version: String,
        /// The address that Gloo used on each node, as far as it was seen.
        addresses: Vec<(NodeId, IpAddr)>,
    },
    /// By the project's own ring.
    Ring {
        /// How it went.
        collected: Collected,
        /// Who has no torch, and why.
        lacking: Vec<(NodeId, String)>,
    },
    /// Ways that don't work.
    Unreachable(Vec<Unreachable>),
    /// This node's torch does not work.
    Broken {
        /// What happened, one line.
        message: String,
    },
    /// The other node's torch does not work; it says so itself.
    PeerBroken,
}
