//! How the agents of one run prove themselves to each other. Not what they say.
//!
//! They have a key from the nodes' meeting, so that no MUNGE is needed: who knows it is an agent of this run. The listener
//! sends a challenge that says whose it is, so that an agent of another job goes on at once. The dialer answers with a
//! keyed hash of run, both nodes and both nonces, the listener with another one. What was recorded elsewhere holds another
//! nonce and proves nothing. The keys of the frames, one for each direction, come from the same terms.

use std::net::IpAddr;
use std::time::Duration;

use diag::facts::NodeId;
use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use zeroize::Zeroizing;

use crate::auth::random;
use crate::dial::Proof;
use crate::handshake::{HandshakeError, MAX_REASON, Tally, parse, say, tune};
use crate::log::{LogSink, shown};
use crate::rendezvous::JobKey;
use crate::secret;
use crate::wire::{Direction, FrameReader, FrameWriter, Seal, WireError};

/// Version of everything that agents say to each other.
const PROTOCOL: u32 = 1;
/// First bytes of every challenge; that of a meeting is another one.
const MAGIC: &str = "aimaster agent";

/// What one agent knows of itself and of its run.
pub(super) struct Party {
    pub job: JobKey,
    pub nodes: Vec<String>,
    pub joined: Vec<NodeId>,
    pub me: NodeId,
    pub key: Zeroizing<[u8; 32]>,
    /// Longest frames that are read here of a node, and of one that judges.
    pub most_from_node_bytes: usize,
    pub most_from_judge_bytes: usize,
    pub log: LogSink,
    pub tally: Tally,
}

/// A connection whose two ends have proved themselves.
pub(super) struct Linked {
    pub peer: NodeId,
    pub reader: FrameReader<OwnedReadHalf>,
    pub writer: FrameWriter<OwnedWriteHalf>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Challenge {
    magic: String,
    protocol: u32,
    job_id: u32,
    restart: u32,
    node: NodeId,
    nonce: [u8; 32],
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Hello {
    Proof {
        from: NodeId,
        nonce: [u8; 32],
        proof: [u8; 32],
    },
    /// Of somebody who looked for something else here.
    Refused(String),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Welcome {
    Proof([u8; 32]),
    Refused(String),
}

/// What a proof is of.
#[derive(Clone, Copy)]
struct Terms {
    listener: NodeId,
    dialer: NodeId,
    listener_nonce: [u8; 32],
    dialer_nonce: [u8; 32],
}

impl Party {
    pub(super) fn name(&self, node: NodeId) -> &str {
        self.nodes.get(node as usize).map_or("-", String::as_str)
    }

    /// A hash that only an agent of this run can make, and no other purpose's.
    fn hash(&self, purpose: &str, terms: &Terms) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        // Each text with its length, so that no two sets of terms read the same.
        for text in [purpose, &self.job.cluster] {
            hasher.update(&(text.len() as u64).to_be_bytes()).update(text.as_bytes());
        }
        for number in [self.job.job_id, self.job.restart, terms.listener, terms.dialer] {
            hasher.update(&number.to_be_bytes());
        }
        hasher.update(&terms.listener_nonce).update(&terms.dialer_nonce);
        secret::finish(hasher)
    }

    fn seal(&self, direction: Direction, terms: &Terms) -> Seal {
        let purpose = match direction {
            Direction::FromDialer => "frames of the dialer",
            Direction::FromListener => "frames of the listener",
        };
        let key = Zeroizing::new(*self.hash(purpose, terms).as_bytes());
        Seal::new(&key, direction)
    }

    /// Judges a hello. The comparison of hashes takes the same time wherever they differ.
    fn hear(&self, hello: &[u8], nonce: [u8; 32]) -> Result<Terms, HandshakeError> {
        let (from, dialer_nonce, proof) = match parse("hello", hello)? {
            Hello::Proof { from, nonce, proof } => (from, nonce, proof),
            Hello::Refused(why) => return Err(HandshakeError::Refused(shown(&why, MAX_REASON))),
        };
        if from == self.me || !self.joined.contains(&from) {
            return Err(HandshakeError::Stranger(format!("node {from}")));
        }
        let terms = Terms { listener: self.me, dialer: from, listener_nonce: nonce, dialer_nonce };
        if self.hash("hello", &terms) != blake3::Hash::from_bytes(proof) {
            return Err(HandshakeError::Forged);
        }
        Ok(terms)
    }

    /// Whether a challenge is of whom this node looks for.
    fn check(&self, challenge: &Challenge, target: NodeId) -> Result<(), HandshakeError> {
        if challenge.magic != MAGIC || challenge.protocol != PROTOCOL {
            return Err(HandshakeError::Protocol { theirs: challenge.protocol });
        }
        let pairs = [
            ("job", challenge.job_id, self.job.job_id),
            ("restart", challenge.restart, self.job.restart),
            ("node", challenge.node, target),
        ];
        match pairs.into_iter().find(|(_, theirs, ours)| theirs != ours) {
            Some((what, theirs, ours)) => {
                Err(HandshakeError::Elsewhere { what, theirs: theirs.to_string(), ours: ours.to_string() })
            }
            None => Ok(()),
        }
    }
}

impl Proof for Party {
    type Linked = Linked;

    async fn answer(&self, stream: TcpStream, _: IpAddr) -> Result<Linked, HandshakeError> {
        tune(&stream);
        let (read, write) = stream.into_split();
        let (mut reader, mut writer) = (FrameReader::greeting(read), FrameWriter::greeting(write));
        let nonce = random()?;
        let challenge = Challenge {
            magic: MAGIC.to_owned(),
            protocol: PROTOCOL,
            job_id: self.job.job_id,
            restart: self.job.restart,
            node: self.me,
            nonce,
        };
        say(&mut writer, &challenge).await?;
        let terms = match self.hear(&reader.next().await?, nonce) {
            Ok(terms) => terms,
            Err(error) => {
                say(&mut writer, &Welcome::Refused(error.to_string())).await?;
                return Err(error);
            }
        };
        say(&mut writer, &Welcome::Proof(*self.hash("welcome", &terms).as_bytes())).await?;
        let reader = reader.sealed(self.seal(Direction::FromDialer, &terms), self.most_from_node_bytes);
        let writer = writer.sealed(self.seal(Direction::FromListener, &terms));
        Ok(Linked { peer: terms.dialer, reader, writer })
    }

    async fn introduce(
        &self,
        stream: TcpStream,
        target: NodeId,
        challenge_within: Duration,
    ) -> Result<Linked, HandshakeError> {
        tune(&stream);
        let (read, write) = stream.into_split();
        let (mut reader, mut writer) = (FrameReader::greeting(read), FrameWriter::greeting(write));
        let challenge = tokio::time::timeout(challenge_within, reader.next())
            .await
            .map_err(|_| HandshakeError::Late { what: "challenge" })??;
        let challenge: Challenge = parse("challenge", &challenge)?;
        self.check(&challenge, target)?;
        let nonce = random()?;
        let terms =
            Terms { listener: target, dialer: self.me, listener_nonce: challenge.nonce, dialer_nonce: nonce };
        let proof = *self.hash("hello", &terms).as_bytes();
        say(&mut writer, &Hello::Proof { from: self.me, nonce, proof }).await?;
        match parse("welcome", &reader.next().await?)? {
            Welcome::Refused(why) => return Err(HandshakeError::Refused(shown(&why, MAX_REASON))),
            Welcome::Proof(proof) if self.hash("welcome", &terms) != blake3::Hash::from_bytes(proof) => {
                return Err(HandshakeError::Forged);
            }
            Welcome::Proof(_) => {}
        }
        let reader = reader.sealed(self.seal(Direction::FromListener, &terms), self.most_from_judge_bytes);
        let writer = writer.sealed(self.seal(Direction::FromDialer, &terms));
        Ok(Linked { peer: target, reader, writer })
    }

    /// Other jobs' agents and meetings look for theirs on the same ports, and go again.
    fn is_news(&self, error: &HandshakeError) -> bool {
        !matches!(
            error,
            HandshakeError::Refused(_) | HandshakeError::Wire(WireError::Closed | WireError::Io(_))
        )
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
