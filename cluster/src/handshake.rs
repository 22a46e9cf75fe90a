//! How two nodes prove themselves to each other on a fresh connection. Not who dials whom, nor what follows.
//!
//! The listener sends a challenge, with a key that only the trusted user of this site can read ([`crate::offer`]). The dialer
//! answers with a claim, sealed by that key, that names job, restart, target, role, itself, both nonces and a fresh key; the
//! listener answers with a sealed claim of its own that repeats the dialer's nonce. A claim that was recorded elsewhere holds
//! another nonce, target or job, or is sealed by another key, so it proves nothing. The fresh key then seals every frame.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use diag::facts::{NodeFacts, NodeId};
use rustix::net::sockopt::{set_tcp_keepcnt, set_tcp_keepidle, set_tcp_keepintvl, set_tcp_user_timeout};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::watch;
use zeroize::Zeroizing;

use crate::auth::{AuthError, Authenticator, SiteKey, random, wipe};
use crate::dial::Proof;
use crate::log::{LogSink, shown};
use crate::message::{Message, check_facts, decode, encode};
use crate::offer::{self, Offer, Offers};
use crate::rendezvous::JobKey;
use crate::secret;
pub(crate) use crate::tally::{Counters, Tally};
use crate::wire::{Direction, FrameReader, FrameWriter, MAX_FROM_LEADER, MAX_FROM_PEER, Seal, WireError};

/// Version of everything on the wire. Nodes of another one can't join.
const PROTOCOL: u32 = 2;
/// First bytes of every challenge, so that another service on the port is noticed at once.
const MAGIC: &str = "aimaster";
/// What each kind of claim begins with; one can't be passed off as the other.
const HELLO: &str = "aimaster hello";
const WELCOME: &str = "aimaster welcome";
/// Longest reason for a refusal that is taken from the other side: it is not proved.
pub(crate) const MAX_REASON: usize = 200;

/// After this much silence a connection is probed.
const FIRST_PROBE: Duration = Duration::from_secs(2);
/// Between two probes.
const NEXT_PROBE: Duration = Duration::from_secs(1);
/// So many probes in a row without an answer end the connection; a link that flaps for some seconds does not.
const PROBES: u32 = 6;
/// Data without an acknowledgement for as long ends it as well, ms.
const UNANSWERED_MS: u32 = 8000;

/// Why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandshakeError {
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error(transparent)]
    Auth(#[from] AuthError),
    #[error("no {what} came within its time")]
    Late { what: &'static str },
    #[error("its {what} can't be read")]
    Unreadable { what: &'static str },
    #[error("it speaks protocol {theirs}, this node speaks {PROTOCOL}")]
    Protocol { theirs: u32 },
    #[error("it refused: {0}")]
    Refused(String),
    #[error("its claim is for {what} {theirs:?}, here it is {ours:?}")]
    Elsewhere { what: &'static str, theirs: String, ours: String },
    #[error("its claim does not answer this connection's challenge (a replay?)")]
    Replay,
    #[error("it calls itself {0:?}, which is not another node of this job")]
    Stranger(String),
    #[error("its proof is wrong: it was made with another run's key, or for another connection (a replay?)")]
    Forged,
    #[error("{0}")]
    NoOffer(String),
    #[error("one of the two has a key file, the other MUNGE")]
    Otherwise,
    #[error("{0}")]
    Facts(&'static str),
}

impl HandshakeError {
    /// What the other side, which is not proved, says.
    pub(crate) fn refused(words: &str) -> Self {
        Self::Refused(shown(words, MAX_REASON))
    }
}

/// An error where they say one thing and here it is another.
pub(crate) fn elsewhere<T: PartialEq + ToString + ?Sized>(
    what: &'static str,
    theirs: &T,
    ours: &T,
) -> Result<(), HandshakeError> {
    if theirs == ours {
        return Ok(());
    }
    Err(HandshakeError::Elsewhere {
        what,
        theirs: shown(&theirs.to_string(), MAX_REASON),
        ours: ours.to_string(),
    })
}

/// What one node knows of itself and of the job when it meets the others.
pub(crate) struct Identity {
    pub(crate) job: JobKey,
    pub(crate) nodes: Arc<[Arc<str>]>,
    /// Their places; empty where nobody dials.
    pub(crate) places: HashMap<Arc<str>, NodeId>,
    pub(crate) me: NodeId,
    pub(crate) auth: Authenticator,
    pub(crate) offers: Offers,
    pub(crate) facts: NodeFacts,
    pub(crate) began: Instant,
    /// Set on leader and deputy only.
    pub(crate) data_key: Option<Zeroizing<[u8; 32]>>,
    pub(crate) log: LogSink,
    pub(crate) tally: Tally,
    /// Why leader or deputy were not reached so far.
    pub(crate) unreached: Mutex<BTreeMap<NodeId, String>>,
    /// The last word is said: how connections end from here on is no news.
    pub(crate) over: AtomicBool,
}

/// The places of a job's nodes, for one that is dialled: leader and deputy.
pub(crate) fn places(me: NodeId, nodes: &[Arc<str>]) -> HashMap<Arc<str>, NodeId> {
    if me > 1 {
        return HashMap::new();
    }
    (0..).zip(nodes).map(|(node, name)| (Arc::clone(name), node)).collect()
}

impl Identity {
    pub(crate) fn name(&self, node: NodeId) -> &str {
        self.nodes.get(node as usize).map_or("-", |name| &**name)
    }

    pub(crate) fn count(&self) -> u32 {
        u32::try_from(self.nodes.len()).unwrap_or(u32::MAX)
    }

    /// Remembers why a node was not reached.
    pub(crate) fn not_reached(&self, node: NodeId, because: &str) {
        if let Ok(mut unreached) = self.unreached.lock() {
            unreached.insert(node, because.to_owned());
        }
    }

    pub(crate) fn why_not_reached(&self, node: NodeId) -> Option<String> {
        self.unreached.lock().ok()?.get(&node).cloned()
    }

    fn data_key(&self) -> Option<[u8; 32]> {
        self.data_key.as_ref().map(|key| **key)
    }
}

/// A connection whose two ends have proved themselves.
pub(crate) struct Established {
    pub(crate) peer: NodeId,
    pub(crate) reader: FrameReader<OwnedReadHalf>,
    pub(crate) writer: FrameWriter<OwnedWriteHalf>,
    /// The peer's, if it may lead.
    pub(crate) data_key: Option<Zeroizing<[u8; 32]>>,
    /// What the dialer said of itself; `None` on the dialer's own side.
    pub(crate) hello: Option<Hello>,
    /// Set to the reason when the connection ends.
    pub(crate) ending: Arc<watch::Sender<Option<String>>>,
}

impl Proof for Identity {
    type Linked = Established;

    async fn answer(&self, stream: TcpStream, from: IpAddr) -> Result<Established, HandshakeError> {
        answer(stream, from, self).await
    }

    async fn introduce(
        &self,
        stream: TcpStream,
        target: NodeId,
        challenge_within: Duration,
    ) -> Result<Established, HandshakeError> {
        introduce(stream, target, self, challenge_within).await
    }

    fn is_news(&self, _: &HandshakeError) -> bool {
        true
    }

    fn nodes(&self) -> usize {
        self.nodes.len()
    }

    fn log(&self) -> &LogSink {
        &self.log
    }

    fn tally(&self) -> &Tally {
        &self.tally
    }
}

pub(crate) struct Hello {
    pub(crate) facts: NodeFacts,
    pub(crate) waited: Duration,
    pub(crate) seen: IpAddr,
}

/// What else another version says is passed over: its number is named. Nothing here is believed: job, restart and node only
/// spare whoever looks for another listener the rest.
#[derive(Serialize, Deserialize)]
struct Challenge {
    magic: String,
    protocol: u32,
    nonce: [u8; 32],
    #[serde(default)]
    job_id: u32,
    #[serde(default)]
    restart: u32,
    #[serde(default)]
    node: NodeId,
    #[serde(default)]
    offer: Offer,
}

/// Either a sealed claim or a refusal in words.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Reply {
    Claim(String),
    Refused(String),
}

/// What the offered key seals.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Claim {
    purpose: String,
    cluster: String,
    job_id: u32,
    restart: u32,
    nodes: u32,
    /// `leader` or `deputy`: what the listener is.
    role: String,
    from: String,
    to: String,
    listener_nonce: [u8; 32],
    dialer_nonce: [u8; 32],
    /// The dialer's; zero in a welcome.
    session_key: [u8; 32],
    data_key: Option<[u8; 32]>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        wipe(&mut self.session_key);
        if let Some(key) = &mut self.data_key {
            wipe(key);
        }
    }
}

impl Claim {
    fn new(id: &Identity, purpose: &str, listener: NodeId, to: &str, nonces: ([u8; 32], [u8; 32])) -> Self {
        Self {
            purpose: purpose.to_owned(),
            cluster: id.job.cluster.clone(),
            job_id: id.job.job_id,
            restart: id.job.restart,
            nodes: id.count(),
            role: role(listener).to_owned(),
            from: id.name(id.me).to_owned(),
            to: to.to_owned(),
            listener_nonce: nonces.0,
            dialer_nonce: nonces.1,
            session_key: [0; 32],
            data_key: id.data_key(),
        }
    }

    /// Everything but the sender's name and the nonces.
    fn check(&self, id: &Identity, purpose: &str, listener: NodeId) -> Result<(), HandshakeError> {
        elsewhere("purpose", &*self.purpose, purpose)?;
        elsewhere("cluster", &self.cluster, &id.job.cluster)?;
        elsewhere("job", &self.job_id, &id.job.job_id)?;
        elsewhere("restart", &self.restart, &id.job.restart)?;
        elsewhere("number of nodes", &self.nodes, &id.count())?;
        elsewhere("role", &*self.role, role(listener))?;
        elsewhere("target", &*self.to, id.name(id.me))
    }

    fn seal(&self, key: &SiteKey) -> Result<String, HandshakeError> {
        let bytes = secret::to_json(self).map_err(|_| HandshakeError::Unreadable { what: "own claim" })?;
        Ok(key.seal(&bytes)?)
    }
}

pub(crate) fn role(listener: NodeId) -> &'static str {
    if listener == 0 { "leader" } else { "deputy" }
}

/// Leader and deputy may send what all nodes said; the others only what they say themselves.
fn limit_from(peer: NodeId) -> usize {
    if peer <= 1 { MAX_FROM_LEADER } else { MAX_FROM_PEER }
}

/// The key of the connection's frames: both nonces go in, so that no two connections share one.
fn frame_key(claim: &Claim) -> Zeroizing<[u8; 32]> {
    let mut hasher = blake3::Hasher::new_derive_key("aimaster 1 frames between two nodes");
    hasher.update(&claim.session_key).update(&claim.listener_nonce).update(&claim.dialer_nonce);
    Zeroizing::new(*secret::finish(hasher).as_bytes())
}

pub(crate) fn parse<T: DeserializeOwned>(what: &'static str, bytes: &[u8]) -> Result<T, HandshakeError> {
    serde_json::from_slice(bytes).map_err(|_| HandshakeError::Unreadable { what })
}

pub(crate) async fn say<T: Serialize>(
    writer: &mut FrameWriter<OwnedWriteHalf>,
    what: &T,
) -> Result<(), HandshakeError> {
    let body = serde_json::to_vec(what).map_err(|_| HandshakeError::Unreadable { what: "own words" })?;
    Ok(writer.send(&body).await?)
}

/// A node that loses its power or its network says no farewell: without this it would be missed only when its answer
/// is. A process that is stopped still has a kernel that answers, and is left the time of its round.
pub(crate) fn tune(stream: &TcpStream) {
    let _ = stream.set_nodelay(true); // only a matter of speed
    let silent = rustix::net::sockopt::set_socket_keepalive(stream, true)
        .and_then(|()| set_tcp_keepidle(stream, FIRST_PROBE))
        .and_then(|()| set_tcp_keepintvl(stream, NEXT_PROBE))
        .and_then(|()| set_tcp_keepcnt(stream, PROBES))
        .and_then(|()| set_tcp_user_timeout(stream, UNANSWERED_MS));
    let _ = silent; // then a lost node is noticed at the end of its round
}

/// The listener's side. The caller bounds its time.
async fn answer(stream: TcpStream, seen: IpAddr, id: &Identity) -> Result<Established, HandshakeError> {
    tune(&stream);
    let (read, write) = stream.into_split();
    let (mut reader, mut writer) = (FrameReader::greeting(read), FrameWriter::greeting(write));
    let nonce = random()?;
    let made = id.offers.current(id).await;
    let (offer, seal) = match &*made {
        Ok((offer, key)) => (offer.clone(), Ok(key)),
        Err(why) => (Offer::Refused(why.clone()), Err(HandshakeError::NoOffer(why.clone()))),
    };
    let JobKey { job_id, restart, .. } = id.job;
    let challenge =
        Challenge { magic: MAGIC.to_owned(), protocol: PROTOCOL, nonce, job_id, restart, node: id.me, offer };
    say(&mut writer, &challenge).await?;
    let seal = seal?;
    let heard = match parse("hello", &reader.next().await?)? {
        Reply::Claim(sealed) => hear(&sealed, nonce, seal, id),
        Reply::Refused(text) => return Err(HandshakeError::refused(&text)),
    };
    let (claim, peer) = match heard {
        Ok(heard) => heard,
        Err(error) => {
            // So that an honest node of another job goes on to the next port at once.
            say(&mut writer, &Reply::Refused(error.to_string())).await?;
            return Err(error);
        }
    };
    let key = frame_key(&claim);
    let welcome = Claim::new(id, WELCOME, id.me, &claim.from, (nonce, claim.dialer_nonce));
    say(&mut writer, &Reply::Claim(welcome.seal(seal)?)).await?;
    let mut reader = reader.sealed(Seal::new(&key, Direction::FromDialer), limit_from(peer));
    let writer = writer.sealed(Seal::new(&key, Direction::FromListener));
    let facts = decode(reader.next().await?).map_err(|_| HandshakeError::Unreadable { what: "facts" })?;
    let (Message::Facts { facts, waited_ms }, _) = facts else {
        return Err(HandshakeError::Unreadable { what: "facts" });
    };
    check_facts(&facts).map_err(HandshakeError::Facts)?;
    let hello = Some(Hello { facts: *facts, waited: Duration::from_millis(waited_ms), seen });
    let data_key = claim.data_key.map(Zeroizing::new);
    Ok(Established { peer, reader, writer, data_key, hello, ending: Arc::default() })
}

/// Judges a hello's claim.
fn hear(
    sealed: &str,
    nonce: [u8; 32],
    key: &SiteKey,
    id: &Identity,
) -> Result<(Claim, NodeId), HandshakeError> {
    let claim: Claim = parse("claim", &key.open(sealed)?)?;
    claim.check(id, HELLO, id.me)?;
    if claim.listener_nonce != nonce {
        return Err(HandshakeError::Replay);
    }
    match id.places.get(&*claim.from).copied() {
        Some(peer) if peer != id.me => Ok((claim, peer)),
        _ => Err(HandshakeError::Stranger(shown(&claim.from, MAX_REASON))),
    }
}

/// The dialer's side towards `target`. `challenge_within` is short, so that a silent stranger on a port costs
/// little; the caller bounds the rest.
async fn introduce(
    stream: TcpStream,
    target: NodeId,
    id: &Identity,
    challenge_within: Duration,
) -> Result<Established, HandshakeError> {
    tune(&stream);
    let (read, write) = stream.into_split();
    let (mut reader, mut writer) = (FrameReader::greeting(read), FrameWriter::greeting(write));
    let challenge = tokio::time::timeout(challenge_within, reader.next())
        .await
        .map_err(|_| HandshakeError::Late { what: "challenge" })??;
    let challenge: Challenge = parse("challenge", &challenge)?;
    if challenge.magic != MAGIC || challenge.protocol != PROTOCOL {
        let refusal = format!("node {} speaks protocol {PROTOCOL}", id.name(id.me));
        say(&mut writer, &Reply::Refused(refusal)).await?;
        return Err(HandshakeError::Protocol { theirs: challenge.protocol });
    }
    let seal = match proper(
        challenge.offer,
        (challenge.job_id, challenge.restart, challenge.node),
        target,
        id,
    )
    .await
    {
        Ok(seal) => seal,
        Err(error) => {
            say(&mut writer, &Reply::Refused(error.to_string())).await?;
            return Err(error);
        }
    };
    let nonces = (challenge.nonce, random()?);
    let mut claim = Claim::new(id, HELLO, target, id.name(target), nonces);
    claim.session_key = random()?;
    say(&mut writer, &Reply::Claim(claim.seal(&seal)?)).await?;
    let sealed = match parse("welcome", &reader.next().await?)? {
        Reply::Claim(sealed) => sealed,
        Reply::Refused(text) => return Err(HandshakeError::refused(&text)),
    };
    let welcome: Claim = parse("claim", &seal.open(&sealed)?)?;
    welcome.check(id, WELCOME, target)?;
    if (welcome.listener_nonce, welcome.dialer_nonce) != nonces {
        return Err(HandshakeError::Replay);
    }
    if welcome.from != id.name(target) {
        return Err(HandshakeError::Stranger(shown(&welcome.from, MAX_REASON)));
    }
    let key = frame_key(&claim);
    let reader = reader.sealed(Seal::new(&key, Direction::FromListener), limit_from(target));
    let mut writer = writer.sealed(Seal::new(&key, Direction::FromDialer));
    let waited_ms = u64::try_from(id.began.elapsed().as_millis()).unwrap_or(u64::MAX);
    let facts = encode(&Message::Facts { facts: Box::new(id.facts.clone()), waited_ms }, &[])
        .map_err(|_| HandshakeError::Unreadable { what: "own facts" })?;
    writer.send(&facts).await?;
    let data_key = welcome.data_key.map(Zeroizing::new);
    Ok(Established { peer: target, reader, writer, data_key, hello: None, ending: Arc::default() })
}

/// The key that the right listener offers.
async fn proper(
    offer: Offer,
    (job_id, restart, node): (u32, u32, NodeId),
    target: NodeId,
    id: &Identity,
) -> Result<SiteKey, HandshakeError> {
    elsewhere("job", &job_id, &id.job.job_id)?;
    elsewhere("restart", &restart, &id.job.restart)?;
    elsewhere("node", &node, &target)?;
    offer::take(offer, target, id).await
}

/// What each side of a meeting makes of a first frame, in words; for [`crate::hostile`].
pub(crate) fn heard(body: &[u8]) -> Vec<String> {
    let challenge =
        parse::<Challenge>("challenge", body).map(|challenge| format!("protocol {}", challenge.protocol));
    let reply = parse::<Reply>("hello", body).and_then(|reply| match reply {
        Reply::Claim(credential) => Ok(format!("a claim of {} bytes", credential.len())),
        Reply::Refused(text) => Err(HandshakeError::refused(&text)),
    });
    [challenge, reply].into_iter().map(|said| said.unwrap_or_else(|error| error.to_string())).collect()
}

/// Who is let in by a claim; for [`crate::hostile`].
pub(crate) fn let_in(
    sealed: &str,
    nonce: [u8; 32],
    key: &SiteKey,
    id: &Identity,
) -> Result<NodeId, HandshakeError> {
    Ok(hear(sealed, nonce, key, id)?.1)
}
