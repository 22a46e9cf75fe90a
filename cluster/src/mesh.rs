//! The proved connections of one node: a reader and a writer each, one inbox for all. Not who leads, nor when
//! to wait.
//!
//! Between leader and deputy there may be two connections, one dialed from each side; messages are addressed to
//! nodes and take whichever is alive. A node is gone when all of its connections are closed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use diag::facts::NodeId;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;
use tokio_util::bytes::Bytes;
use zeroize::Zeroizing;

use crate::handshake::{Established, Hello, Identity};
use crate::message::{Message, decode, encode};
use crate::wire::{Body, WireError};

/// Messages that wait for one peer to read. Steps alternate, so a peer that lags further doesn't read at all.
const SEND_QUEUE: usize = 64;
/// Most connections kept of one node: one from each side.
const LINKS_PER_NODE: usize = 2;

/// What arrives.
pub(crate) enum Incoming {
    /// A proved connection, not yet in use.
    Linked(Box<Established>),
    /// A message.
    Message { from: NodeId, message: Message, payload: Bytes },
    /// One of a node's connections ended.
    Closed { from: NodeId },
}

impl From<Established> for Incoming {
    fn from(established: Established) -> Self {
        Self::Linked(Box::new(established))
    }
}

struct Link {
    dialed: bool,
    out: mpsc::Sender<Body>,
    ending: Arc<watch::Sender<Option<String>>>,
    writer: JoinHandle<()>,
    reader: JoinHandle<()>,
}

impl Link {
    fn alive(&self) -> bool {
        self.ending.borrow().is_none()
    }

    fn end(&self, because: &str) {
        end(&self.ending, because);
        self.reader.abort();
        self.writer.abort();
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.end("this node closed it");
    }
}

/// The first reason stays.
fn end(ending: &watch::Sender<Option<String>>, because: &str) {
    ending.send_if_modified(|now| {
        let first = now.is_none();
        if first {
            *now = Some(because.to_owned());
        }
        first
    });
}

/// All connections of this node.
pub(crate) struct Mesh {
    id: Arc<Identity>,
    links: BTreeMap<NodeId, Vec<Link>>,
    keys: BTreeMap<NodeId, Zeroizing<[u8; 32]>>,
    inbox: mpsc::Receiver<Incoming>,
    /// Nodes that are gone, and how much of what came before that is still in the inbox.
    ends: VecDeque<(NodeId, usize)>,
    inbox_in: mpsc::Sender<Incoming>,
    /// The acceptor and the dialers.
    pub(crate) helpers: JoinSet<()>,
}

impl Mesh {
    pub(crate) fn new(id: Arc<Identity>) -> Self {
        // Every node may have a connection, an answer and an end under way at once, from both sides.
        let (inbox_in, inbox) = mpsc::channel(64 + 4 * id.nodes.len());
        Self {
            id,
            links: BTreeMap::new(),
            keys: BTreeMap::new(),
            inbox,
            ends: VecDeque::new(),
            inbox_in,
            helpers: JoinSet::new(),
        }
    }

    pub(crate) fn inbox(&self) -> mpsc::Sender<Incoming> {
        self.inbox_in.clone()
    }

    /// Takes a connection into use. A node that has one in this direction keeps it: the newcomer is refused.
    pub(crate) fn add(&mut self, established: Established) -> Option<(NodeId, Option<Hello>)> {
        let Established { peer, reader, writer, data_key, hello, ending } = established;
        let dialed = hello.is_none();
        let links = self.links.entry(peer).or_default();
        links.retain(Link::alive);
        if links.len() >= LINKS_PER_NODE || links.iter().any(|link| link.dialed == dialed) {
            self.id.log.line(&format!(
                "a second hello of {} was refused: its first connection is alive",
                self.id.name(peer)
            ));
            end(&ending, "another connection to the same node is alive");
            return None;
        }
        let (out, queue) = mpsc::channel::<Body>(SEND_QUEUE);
        let reader = tokio::spawn(read(
            reader,
            peer,
            Arc::clone(&self.id),
            self.inbox_in.clone(),
            Arc::clone(&ending),
        ));
        let writer = tokio::spawn(write(writer, queue, Arc::clone(&ending)));
        if let Some(key) = data_key {
            self.keys.insert(peer, key);
        }
        links.push(Link { dialed, out, ending, writer, reader });
        Some((peer, hello))
    }

    /// The data key that a node would lead with.
    pub(crate) fn data_key(&self, node: NodeId) -> Option<Zeroizing<[u8; 32]>> {
        if node == self.id.me { self.id.data_key.clone() } else { self.keys.get(&node).cloned() }
    }

    pub(crate) fn alive(&self, node: NodeId) -> bool {
        self.links.get(&node).is_some_and(|links| links.iter().any(Link::alive))
    }

    /// Why a node is gone.
    pub(crate) fn why(&self, node: NodeId) -> String {
        let last = self.links.get(&node).and_then(|links| links.last());
        last.and_then(|link| link.ending.borrow().clone())
            .unwrap_or_else(|| "there was no connection to it".to_owned())
    }

    /// Hands a body to a node's writer; never waits. False: the node is gone, or doesn't read.
    pub(crate) fn post(&mut self, node: NodeId, body: &Body) -> bool {
        let Some(links) = self.links.get(&node) else { return false };
        for link in links.iter().filter(|link| link.alive()) {
            match link.out.try_send(body.clone()) {
                Ok(()) => return true,
                Err(_) => link.end("it does not read what it is sent"),
            }
        }
        false
    }

    pub(crate) fn send(&mut self, node: NodeId, message: &Message, payload: &[u8]) -> bool {
        encode(message, payload).is_ok_and(|body| self.post(node, &body.into()))
    }

    /// The next that arrives, or `None` at the deadline. A node's end comes behind all that it sent: it may have two
    /// connections, and the one that brought its last words need not be the one whose end is noticed first.
    pub(crate) async fn next(&mut self, deadline: Instant) -> Option<Incoming> {
        loop {
            if let Some((from, _)) = self.ends.pop_front_if(|(_, before)| *before == 0) {
                return Some(Incoming::Closed { from });
            }
            let incoming = tokio::time::timeout_at(deadline, self.inbox.recv()).await.ok().flatten()?;
            self.ends.iter_mut().for_each(|(_, before)| *before = before.saturating_sub(1));
            match incoming {
                Incoming::Closed { from } if !self.alive(from) && !self.inbox.is_empty() => {
                    self.ends.push_back((from, self.inbox.len()));
                }
                other => return Some(other),
            }
        }
    }

    /// Ends all connections to a node.
    pub(crate) fn cut(&mut self, node: NodeId, because: &str) {
        if let Some(links) = self.links.get(&node) {
            links.iter().for_each(|link| link.end(because));
        }
    }

    /// Sends what is queued, says goodbye and waits until the peers have read it: a process that ends with
    /// unread bytes resets its connections, and with them its own last words.
    pub(crate) async fn goodbye(&mut self, deadline: Instant) {
        self.id.over.store(true, Ordering::Relaxed);
        self.helpers.abort_all();
        let mut endings = Vec::new();
        for link in self.links.values_mut().flatten() {
            let (closed, _) = mpsc::channel(1);
            link.out = closed; // the writer ends when its queue is empty
            endings.push(link.ending.subscribe());
        }
        let all = async {
            // The inbox is emptied all the while, or a reader could wait for room and never see the end.
            let drain = async { while self.inbox.recv().await.is_some() {} };
            let ended = async {
                for ending in &mut endings {
                    // An error means that the link itself is gone, which is an end too.
                    let _ = ending.wait_for(Option::is_some).await;
                }
            };
            tokio::select! { () = drain => (), () = ended => () }
        };
        // At the deadline the rest is given up: those peers are frozen.
        let _ = tokio::time::timeout_at(deadline, all).await;
    }
}

async fn read(
    mut reader: crate::wire::FrameReader<tokio::net::tcp::OwnedReadHalf>,
    from: NodeId,
    id: Arc<Identity>,
    inbox: mpsc::Sender<Incoming>,
    ending: Arc<watch::Sender<Option<String>>>,
) {
    let because = loop {
        let body = match reader.next().await {
            Ok(body) => body,
            // A node that left in good order; what it means is for whoever still expects something of it.
            Err(error @ WireError::Closed) => break error.to_string(),
            Err(error) => {
                let because = crate::chain(&error);
                if !id.over.load(Ordering::Relaxed) {
                    id.log.line(&format!("connection with {}: {because}", id.name(from)));
                }
                break because;
            }
        };
        match decode(body) {
            Ok((message, payload)) => {
                if inbox.send(Incoming::Message { from, message, payload }).await.is_err() {
                    break "this node has ended".to_owned();
                }
            }
            Err(error) => {
                id.log.line(&format!("connection with {}: {error}", id.name(from)));
                break error.to_string();
            }
        }
    };
    end(&ending, &because);
    // Fails only if nobody listens any more.
    let _ = inbox.send(Incoming::Closed { from }).await;
}

async fn write(
    mut writer: crate::wire::FrameWriter<tokio::net::tcp::OwnedWriteHalf>,
    mut queue: mpsc::Receiver<Body>,
    ending: Arc<watch::Sender<Option<String>>>,
) {
    let mut ended = ending.subscribe();
    loop {
        let next = tokio::select! {
            next = queue.recv() => next,
            // Whatever was wrong with what came in: nothing goes out any more either.
            _ = ended.wait_for(Option::is_some) => return,
        };
        let Some(body) = next else { break };
        if let Err(error) = writer.send_again(&body).await {
            end(&ending, &crate::chain(&error));
            return;
        }
    }
    writer.finish().await;
}
