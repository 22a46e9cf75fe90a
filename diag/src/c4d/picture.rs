//! What is known of the whole job: its nodes, processes and communicators, and how far each of them is. Filled by
//! [`super::intake`], read by the rules.
//!
//! Memory is bounded by the digests' bounds, not by what ranks claim: of a communicator that says it has 65,536 ranks only
//! those take room that told of themselves. At most [`BYTES_PER_RANK`] a rank, which takes ranks in 32 communicators with
//! every function and 16 peers each; a rank in six communicators with two functions takes about 2 KiB.

use std::collections::BTreeMap;

use crate::c4d::confirm::Tracked;
use crate::c4d::digest::{Func, MAX_RANKS, ProcessState};
use crate::c4d::finding::Finding;
use crate::c4d::gaps::Gaps;
use crate::c4d::matrix::Matrix;
use crate::c4d::timing::Timing;
use crate::facts::NodeId;

/// Most memory of a picture for each rank that told of itself, in bytes.
pub const BYTES_PER_RANK: usize = 64 << 10;

/// Memory beside the ranks: findings and the delay matrix, in bytes.
pub const BYTES_BESIDE: usize = 16 << 20;

/// How long the nodes of a job may take to end one after the other: from SIGTERM to SIGKILL (KillWait, 30 s), and what can't be
/// killed (UnkillableStepTimeout, 60 s). Where others go on for longer the job lives without the node: it was resized, or
/// only that node's agent has ended.
const ENDS_MS: u64 = 120_000;

/// Most processes of a node that are kept, those that ended and were replaced included.
pub const MAX_PROCESSES: usize = 2 * MAX_RANKS;

/// The state of the rules: everything that they know of the job.
#[derive(Debug, Clone)]
pub struct Picture {
    pub(super) nodes: Vec<Node>,
    pub(super) ranks: Vec<Option<Rank>>,
    pub(super) free_ranks: Vec<usize>,
    pub(super) by_pid: BTreeMap<(NodeId, u32), usize>,
    pub(super) comms: Vec<Option<Comm>>,
    pub(super) free_comms: Vec<usize>,
    pub(super) by_id: BTreeMap<u64, usize>,
    pub(super) tracked: BTreeMap<(crate::c4d::finding::Class, crate::measurement::Subject, u64), Tracked>,
    pub(super) matrix: Matrix,
    /// Start of the window over which times are compared.
    pub(super) window_since_ms: Option<u64>,
}

/// A node of the job.
#[derive(Debug, Clone, Default)]
pub(super) struct Node {
    pub name: String,
    /// When its last digest came.
    pub heard_ms: Option<u64>,
    /// That digest's number.
    pub number: u64,
    /// Why its last digest was refused.
    pub refused: Option<String>,
    /// Since when it says that the job is being ended there.
    pub ending_ms: Option<u64>,
}

/// A process of the job that uses NCCL.
#[derive(Debug, Clone)]
pub(super) struct Rank {
    pub node: NodeId,
    pub pid: u32,
    pub task: Option<u32>,
    pub gpu: Option<u32>,
    /// That GPU's UUID; empty: not known.
    pub gpu_uuid: String,
    /// Whether another living rank of the job uses the same GPU: they take turns on it.
    pub shares_gpu: bool,
    /// How busy its GPU is; `None`: not known, or others use it too.
    pub busy_percent: Option<u8>,
    pub state: ProcessState,
    pub wchan: String,
    pub io_bytes: Option<u64>,
    /// Why there is no telemetry of it.
    pub unavailable: Option<String>,
    /// When records of it were lost last.
    pub lost_ms: Option<u64>,
    /// Whether begin and end of kernels are told.
    pub kernels: bool,
    pub heard_ms: u64,
    /// When anything of it moved in any communicator.
    pub moved_ms: u64,
    /// When it last worked visibly: its GPU or its files.
    pub worked_ms: Option<u64>,
    /// Where it sits: communicators, and its place in each.
    pub seats: Vec<Seat>,
    /// Bytes that it received, and time that it spent in sends and receives, in the window of times.
    pub received: u64,
    pub p2p_us: u64,
}

/// A rank's place in a communicator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seat {
    pub id: u64,
    pub comm: usize,
    pub member: usize,
}

/// A communicator.
#[derive(Debug, Clone)]
pub(super) struct Comm {
    pub id: u64,
    pub name: String,
    pub nranks: u32,
    pub nnodes: u32,
    /// Its members that told of themselves; `None`: one that left.
    pub members: Vec<Option<Member>>,
    pub by_rank: BTreeMap<u32, usize>,
    /// Finalised, aborted, or left by a member.
    pub ended: bool,
    /// When anything of any member moved.
    pub moved_ms: u64,
    /// Most operations that a member has begun.
    pub ops: u64,
    /// The same of collectives that synchronise.
    pub sync_ops: u64,
    pub gaps: Gaps,
    pub timing: Timing,
}

/// A member of a communicator.
#[derive(Debug, Clone)]
pub(super) struct Member {
    /// Its rank there.
    pub rank: u32,
    /// Which process.
    pub who: usize,
    pub born_ms: u64,
    pub funcs: Vec<(Func, Count)>,
    pub peers: Vec<(Peer, Count)>,
}

/// Whom a member sends to or receives from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Peer {
    pub rank: u32,
    pub send: bool,
}

/// How far a member is with one kind of operation, and when it came there on the clock of the judging node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Count {
    pub enqueued: u64,
    pub started: u64,
    pub finished: u64,
    pub moved_ms: u64,
}

impl Count {
    /// Whether the GPU is inside an operation.
    pub fn is_open(&self) -> bool {
        self.started > self.finished
    }
}

impl Member {
    pub fn count(&self, func: Func) -> Count {
        self.funcs.iter().find(|(one, _)| *one == func).map(|(_, count)| *count).unwrap_or_default()
    }

    pub fn peer(&self, peer: Peer) -> Option<Count> {
        self.peers.iter().find(|(one, _)| *one == peer).map(|(_, count)| *count)
    }
}

impl Comm {
    /// Its members that told of themselves, with their places.
    pub fn known(&self) -> impl Iterator<Item = (usize, &Member)> {
        self.members.iter().enumerate().filter_map(|(place, member)| Some((place, member.as_ref()?)))
    }

    /// What to call it.
    pub fn title(&self) -> String {
        let name = if self.name.is_empty() { String::new() } else { format!("{} ", self.name) };
        format!("communicator {name}{:x} ({} ranks)", self.id, self.nranks)
    }
}

/// How much of the job is seen. What is not seen is unknown, never healthy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Coverage {
    /// Ranks that tell of themselves.
    pub known: usize,
    /// Ranks that communicators speak of and that told nothing, and processes without telemetry.
    pub unknown: usize,
    /// What is not seen and why, one line each, at most [`MAX_GAPS`].
    pub gaps: Vec<String>,
}

/// Most lines about what is not seen.
pub const MAX_GAPS: usize = 16;

impl Picture {
    /// A picture of a job on these nodes of which nothing is known yet.
    #[must_use]
    pub fn new(nodes: Vec<String>) -> Self {
        Self {
            nodes: nodes.into_iter().map(|name| Node { name, ..Node::default() }).collect(),
            ranks: Vec::new(),
            free_ranks: Vec::new(),
            by_pid: BTreeMap::new(),
            comms: Vec::new(),
            free_comms: Vec::new(),
            by_id: BTreeMap::new(),
            tracked: BTreeMap::new(),
            matrix: Matrix::default(),
            window_since_ms: None,
        }
    }

    /// The findings that hold.
    pub fn standing(&self) -> impl Iterator<Item = &Finding> {
        self.tracked.values().filter(|one| one.confirmed).map(|one| &one.finding)
    }

    /// Whether the job is being ended: what stops then is no fault.
    #[must_use]
    pub fn is_ending(&self, now_ms: u64, silent_ms: u64) -> bool {
        let Some(last_ms) = self.nodes.iter().filter_map(|node| node.ending_ms).max() else { return false };
        let goes_on = |node: &Node| {
            let heard = node.heard_ms.is_some_and(|at| now_ms.saturating_sub(at) < silent_ms);
            heard && node.ending_ms.is_none()
        };
        now_ms.saturating_sub(last_ms) < ENDS_MS || !self.nodes.iter().any(goes_on)
    }

    pub(super) fn name(&self, node: NodeId) -> &str {
        self.nodes.get(node as usize).map_or("-", |node| node.name.as_str())
    }

    pub(super) fn live_ranks(&self) -> impl Iterator<Item = (usize, &Rank)> {
        self.ranks.iter().enumerate().filter_map(|(who, rank)| Some((who, rank.as_ref()?)))
    }

    pub(super) fn live_comms(&self) -> impl Iterator<Item = (usize, &Comm)> {
        self.comms.iter().enumerate().filter_map(|(at, comm)| Some((at, comm.as_ref()?)))
    }

    pub(super) fn rank(&self, who: usize) -> Option<&Rank> {
        self.ranks.get(who)?.as_ref()
    }

    pub(super) fn comm(&self, at: usize) -> Option<&Comm> {
        self.comms.get(at)?.as_ref()
    }

    /// Whether a rank tells of itself at this time.
    pub(super) fn tells(&self, rank: &Rank, now_ms: u64, silent_ms: u64) -> bool {
        rank.unavailable.is_none() && now_ms.saturating_sub(rank.heard_ms) < silent_ms
    }

    /// How much of the job is seen.
    #[must_use]
    pub fn coverage(&self, now_ms: u64, silent_ms: u64) -> Coverage {
        let mut gaps = Vec::new();
        let mut say = |line: String| {
            if gaps.len() < MAX_GAPS {
                gaps.push(line);
            }
        };
        for node in &self.nodes {
            match (node.heard_ms, &node.refused) {
                (None, None) => say(format!("{}: nothing was heard of it", node.name)),
                (_, Some(why)) => say(format!("{}: its digest was refused: {why}", node.name)),
                (Some(heard), None) if now_ms.saturating_sub(heard) >= silent_ms => {
                    let silent_s = now_ms.saturating_sub(heard) / 1000;
                    say(format!("{}: nothing was heard of it for {silent_s} s", node.name));
                }
                _ => {}
            }
        }
        let (mut known, mut unknown, mut without_seat) = (0, 0, 0);
        for (_, rank) in self.live_ranks() {
            if self.tells(rank, now_ms, silent_ms) {
                known += 1;
                continue;
            }
            unknown += 1;
            without_seat += usize::from(rank.seats.is_empty());
            if let Some(why) = &rank.unavailable {
                say(format!("{}: process {}: no telemetry: {why}", self.name(rank.node), rank.pid));
            }
        }
        // Ranks that no node told of are known by their absence from the largest communicator only.
        let unheard = self.live_comms().map(|(_, comm)| comm.nranks as usize - comm.by_rank.len());
        // Processes that never told of a communicator are among those that it misses.
        let unheard = unheard.max().unwrap_or(0).saturating_sub(without_seat);
        if unheard > 0 {
            say(format!("{unheard} ranks of a communicator tell nothing"));
        }
        Coverage { known, unknown: unknown + unheard, gaps }
    }

    /// Memory that it holds, in bytes, as near as lengths of lists tell.
    #[must_use]
    pub fn bytes(&self) -> usize {
        /// What a map's entry costs beside itself: two words and its share of half-empty nodes.
        const ENTRY: usize = 32;
        let ranks: usize = self.live_ranks().map(|(_, rank)| rank.bytes()).sum();
        let comms: usize = self.live_comms().map(|(_, comm)| comm.bytes(ENTRY)).sum();
        let tracked: usize = self.tracked.values().map(|one| one.bytes() + ENTRY).sum();
        let lists = self.ranks.capacity() * size_of::<Option<Rank>>()
            + self.comms.capacity() * size_of::<Option<Comm>>()
            + (self.free_ranks.capacity() + self.free_comms.capacity()) * size_of::<usize>()
            + (self.by_pid.len() + self.by_id.len()) * (2 * size_of::<u64>() + ENTRY)
            + self.nodes.iter().map(|node| size_of::<Node>() + node.name.capacity()).sum::<usize>();
        size_of::<Self>() + ranks + comms + tracked + lists + self.matrix.bytes(ENTRY)
    }
}

impl Rank {
    fn bytes(&self) -> usize {
        self.wchan.capacity()
            + self.unavailable.as_ref().map_or(0, String::capacity)
            + self.seats.capacity() * size_of::<Seat>()
    }
}

impl Comm {
    fn bytes(&self, entry: usize) -> usize {
        let members: usize = self
            .known()
            .map(|(_, member)| {
                member.funcs.capacity() * size_of::<(Func, Count)>()
                    + member.peers.capacity() * size_of::<(Peer, Count)>()
            })
            .sum();
        members
            + self.members.capacity() * size_of::<Option<Member>>()
            + self.by_rank.len() * (2 * size_of::<u64>() + entry)
            + self.name.capacity()
            + self.timing.bytes()
    }
}
