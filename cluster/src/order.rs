//! What the prolog's helper tells the agent of its node, `aimaster-c4d`, once, on the agent's standard input. It holds
//! the key of the job's agents, so it is never written to a file. Not what the agent does with it.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::IpAddr;
use std::path::PathBuf;

use diag::facts::NodeId;
use diag::gpu_facts::ids::{GpuId, MAX_GPUS};
use diag::request::FailAction;
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, Zeroizing};

use crate::rendezvous::JobKey;
use crate::secret;

/// Largest order: a policy of 4 MiB, twice that where each of its characters is escaped, and the names of 65,536 nodes.
pub const MAX_BYTES: usize = 16 << 20;

/// First word of the agent's answer where it watches.
pub const READY: &str = "ready";

/// Longest answer: that word, or why not.
pub const MAX_ANSWER_BYTES: u64 = 400;

/// What an agent is to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Order {
    /// Version of the helper: an agent of another one refuses.
    pub version: String,
    /// Which run of which job.
    pub job: JobKey,
    /// Its user.
    pub uid: u32,
    /// Its group, where Slurm says it.
    pub gid: Option<u32>,
    /// All nodes of the job, in Slurm's order.
    pub nodes: Vec<String>,
    /// This node's place among them.
    pub me: NodeId,
    /// The run folder.
    pub folder: PathBuf,
    /// Slurm's configuration in use, where the environment named one.
    pub slurm_conf: Option<PathBuf>,
    /// Where Slurm shows that the job is still here.
    pub steps: Steps,
    /// How ranks reach the agent.
    pub telemetry: Telemetry,
    /// The job's GPUs on this node, as Slurm names them.
    pub gpus: Vec<GpuId>,
    /// What happens on a fault.
    pub fail_action: FailAction,
    /// The node's copy of the policy, as TOML.
    pub policy: String,
    /// What the agent needs to reach the others; `None`: the nodes did not meet, and it judges by itself.
    pub met: Option<Met>,
}

/// How ranks reach the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Telemetry {
    /// By the abstract socket of this name.
    Socket(String),
    /// Not at all.
    Unavailable {
        /// Why, in words.
        because: String,
    },
}

/// Where the sockets of the job's slurmstepds lie.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Steps {
    /// SlurmdSpoolDir of this node.
    pub folder: PathBuf,
    /// Whether there is a step for all of the job's life (PrologFlags=Contain).
    pub lasting: bool,
}

/// What a meeting brought.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Met {
    /// Secret of this run's agents.
    pub key: [u8; 32],
    /// Who joined.
    pub joined: Vec<NodeId>,
    /// Addresses of node 0 and node 1, the one at which it was seen first.
    pub addresses: BTreeMap<NodeId, Vec<IpAddr>>,
}

impl std::fmt::Debug for Met {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Met").field("joined", &self.joined).finish_non_exhaustive()
    }
}

impl Drop for Met {
    fn drop(&mut self) {
        self.key.zeroize();
    }
}

/// Why an order can't be sent or taken.
#[derive(Debug, thiserror::Error)]
pub enum OrderError {
    /// The pipe's other end is gone, or the system refused.
    #[error("the order can't be read or written")]
    Pipe(#[source] std::io::Error),
    /// Not the JSON of an order.
    #[error("the order can't be read")]
    Json(#[source] serde_json::Error),
    /// Longer than any order.
    #[error("the order is longer than {MAX_BYTES} bytes")]
    TooLong,
    /// From another version's helper.
    #[error("aimaster-prolog is of version {theirs}, this is {ours}: install the same one")]
    Version {
        /// The helper's.
        theirs: String,
        /// This program's.
        ours: &'static str,
    },
    /// A part that can't be.
    #[error("the order's {0} makes no sense")]
    Odd(&'static str),
}

impl Order {
    /// Writes it, to its end.
    ///
    /// # Errors
    /// The other side does not read it.
    pub fn send(&self, mut to: impl Write) -> Result<(), OrderError> {
        let text = self.text()?;
        to.write_all(&text).and_then(|()| to.flush()).map_err(OrderError::Pipe)
    }

    /// Its text, wiped when it is dropped.
    ///
    /// # Errors
    /// It is too long.
    pub fn text(&self) -> Result<Zeroizing<Vec<u8>>, OrderError> {
        let text = secret::to_json(self).map_err(OrderError::Json)?;
        if text.len() > MAX_BYTES {
            return Err(OrderError::TooLong);
        }
        Ok(text)
    }

    /// Reads one, up to the end of `from`.
    ///
    /// # Errors
    /// What comes is not an order of this version.
    pub fn take(from: impl Read) -> Result<Self, OrderError> {
        let text = secret::read(from, MAX_BYTES).map_err(OrderError::Pipe)?;
        if text.len() > MAX_BYTES {
            return Err(OrderError::TooLong);
        }
        let order: Self = serde_json::from_slice(&text).map_err(OrderError::Json)?;
        let ours = env!("CARGO_PKG_VERSION");
        if order.version != ours {
            return Err(OrderError::Version { theirs: order.version.clone(), ours });
        }
        if order.nodes.get(order.me as usize).is_none() {
            return Err(OrderError::Odd("node list"));
        }
        if !order.folder.is_absolute() || !order.steps.folder.is_absolute() {
            return Err(OrderError::Odd("folder"));
        }
        if order.gpus.len() > MAX_GPUS {
            return Err(OrderError::Odd("list of GPUs"));
        }
        Ok(order)
    }

    /// Slurm's name of this node.
    #[must_use]
    pub fn node(&self) -> &str {
        self.nodes.get(self.me as usize).map_or("-", String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order() -> Order {
        Order {
            version: env!("CARGO_PKG_VERSION").into(),
            job: JobKey { cluster: "aim".into(), job_id: 7, restart: 1 },
            uid: 1000,
            gid: None,
            nodes: vec!["n1".into(), "n2".into()],
            me: 1,
            folder: "/run/aimaster/aim/n2/7.1".into(),
            slurm_conf: None,
            steps: Steps { folder: "/var/spool/slurmd".into(), lasting: true },
            telemetry: Telemetry::Socket("aimaster-c4d/n2/7/0".into()),
            gpus: vec![GpuId::Minor(3), GpuId::Gpu("GPU-1".into())],
            fail_action: FailAction::Retain,
            policy: String::new(),
            met: Some(Met {
                key: [7; 32],
                joined: vec![0, 1],
                addresses: [(0, vec![IpAddr::from([10, 0, 0, 1])])].into(),
            }),
        }
    }

    #[test]
    fn an_order_arrives_as_it_was() {
        let mut text = Vec::new();
        order().send(&mut text).unwrap();
        assert_eq!(Order::take(&text[..]).unwrap(), order());
        assert_eq!(order().node(), "n2");
        assert!(!format!("{:?}", order()).contains("7, 7"), "the key is not for logs");
    }

    #[test]
    fn what_is_no_order_is_refused() {
        let sent = |change: &dyn Fn(&mut Order)| {
            let mut order = order();
            change(&mut order);
            let mut text = Vec::new();
            order.send(&mut text).unwrap();
            Order::take(&text[..])
        };
        assert!(matches!(sent(&|order| order.version = "0.0.1".into()), Err(OrderError::Version { .. })));
        assert!(matches!(sent(&|order| order.me = 2), Err(OrderError::Odd(_))));
        assert!(matches!(sent(&|order| order.folder = "x".into()), Err(OrderError::Odd(_))));
        let many = |order: &mut Order| order.gpus = vec![GpuId::Minor(0); MAX_GPUS + 1];
        assert!(matches!(sent(&many), Err(OrderError::Odd("list of GPUs"))));
        assert!(matches!(Order::take(&b""[..]), Err(OrderError::Json(_))));
        assert!(matches!(Order::take(std::io::repeat(b' ')), Err(OrderError::TooLong)));
    }
}
