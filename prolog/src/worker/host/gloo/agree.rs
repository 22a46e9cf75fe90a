//! What the workers of a pair say to each other around Gloo's all-reduce, over a data connection of their own.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

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
