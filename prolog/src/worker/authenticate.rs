//! How two workers show each other that they belong to the same suite: a challenge and response with keyed
//! BLAKE3 over both sides' fresh random bytes and what the connection is for. The data that follows is neither
//! encrypted nor authenticated: it is test data, and a measurement must not measure a cipher.

use std::io::{self, Read, Write};

use cluster::secret;
use diag::facts::NodeId;

use crate::protocol::{DataKey, Tag};

/// What a connection opens with: the protocol and its version.
const MAGIC: [u8; 8] = *b"AIMDATA1";

const NONCE_BYTES: usize = 32;
const MAC_BYTES: usize = 32;
const INTENT_BYTES: usize = 25;

/// What the acceptor says last: the connection is taken.
const TAKEN: u8 = 1;
/// What it says instead if the connection is meant for somebody else.
const NOT_MINE: u8 = 2;

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Purpose {
    /// Data of a ring, from a rank to the next one.
    Ring,
    /// Comes back byte by byte.
    Echo,
    /// Is counted and thrown away.
    Sink,
    /// Two workers agree on what both do next.
    Agree,
}

/// Who connects to whom, and for what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Intent {
    pub tag: Tag,
    pub purpose: Purpose,
    pub from: (NodeId, u32),
    pub to: (NodeId, u32),
}

impl Intent {
    fn to_bytes(self) -> [u8; INTENT_BYTES] {
        let mut bytes = [0; INTENT_BYTES];
        let words = [self.tag.round, self.tag.group, self.from.0, self.from.1, self.to.0, self.to.1];
        for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_be_bytes());
        }
        bytes[INTENT_BYTES - 1] = match self.purpose {
            Purpose::Ring => 1,
            Purpose::Echo => 2,
            Purpose::Sink => 3,
            Purpose::Agree => 4,
        };
        bytes
    }

    fn from_bytes(bytes: &[u8; INTENT_BYTES]) -> Option<Self> {
        let mut words = [0; 6];
        for (word, place) in words.iter_mut().zip(bytes.chunks_exact(4)) {
            *word = u32::from_be_bytes(*place.first_chunk()?);
        }
        let [round, group, from_node, from_rank, to_node, to_rank] = words;
        let purpose = match bytes[INTENT_BYTES - 1] {
            1 => Purpose::Ring,
            2 => Purpose::Echo,
            3 => Purpose::Sink,
            4 => Purpose::Agree,
            _ => return None,
        };
        Some(Self {
            tag: Tag { round, group },
            purpose,
            from: (from_node, from_rank),
            to: (to_node, to_rank),
        })
    }
}

fn mac(
    key: &DataKey,
    side: u8,
    intent: &[u8; INTENT_BYTES],
    nonces: [&[u8; NONCE_BYTES]; 2],
) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new_keyed(&key.0);
    hasher.update(&MAGIC).update(&[side]).update(intent).update(nonces[0]).update(nonces[1]);
    secret::finish(hasher)
}

fn nonce() -> io::Result<[u8; NONCE_BYTES]> {
    let mut bytes = [0; NONCE_BYTES];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(bytes)
}

fn refused(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

/// The connecting side. `stream` bounds how long it takes.
pub(super) fn connect(stream: &mut (impl Read + Write), key: &DataKey, intent: Intent) -> io::Result<()> {
    let (mine, intent) = (nonce()?, intent.to_bytes());
    let mut opening = Vec::with_capacity(MAGIC.len() + NONCE_BYTES + INTENT_BYTES);
    opening.extend(MAGIC);
    opening.extend(mine);
    opening.extend(intent);
    stream.write_all(&opening)?;
    let mut theirs = [0; NONCE_BYTES];
    let mut proof = [0; MAC_BYTES];
    stream.read_exact(&mut theirs)?;
    stream.read_exact(&mut proof)?;
    // Comparing blake3's hashes takes the same time wherever they differ.
    if mac(key, b'A', &intent, [&mine, &theirs]) != blake3::Hash::from_bytes(proof) {
        return Err(refused("what listens there is not a worker of this job"));
    }
    stream.write_all(mac(key, b'C', &intent, [&mine, &theirs]).as_bytes())?;
    let mut verdict = [0];
    stream.read_exact(&mut verdict)?;
    match verdict {
        [TAKEN] => Ok(()),
        [NOT_MINE] => {
            Err(refused("this address leads to another node of the job; see its host name and routes"))
        }
        _ => Err(refused("the worker there refused the connection")),
    }
}

/// The accepting side: what an authenticated connection wants. `stream` bounds how long it takes; `mine` tells
/// whether a node and rank is the one that accepts here.
pub(super) fn accept(
    stream: &mut (impl Read + Write),
    key: &DataKey,
    mine: impl Fn((NodeId, u32)) -> bool,
) -> io::Result<Intent> {
    let mut magic = [0; MAGIC.len()];
    stream.read_exact(&mut magic)?;
    if magic != MAGIC {
        return Err(refused("not our protocol"));
    }
    let (mut theirs, mut bytes) = ([0; NONCE_BYTES], [0; INTENT_BYTES]);
    stream.read_exact(&mut theirs)?;
    stream.read_exact(&mut bytes)?;
    let fresh = nonce()?;
    let mut answer = Vec::with_capacity(NONCE_BYTES + MAC_BYTES);
    answer.extend(fresh);
    answer.extend(mac(key, b'A', &bytes, [&theirs, &fresh]).as_bytes());
    stream.write_all(&answer)?;
    let mut proof = [0; MAC_BYTES];
    stream.read_exact(&mut proof)?;
    if mac(key, b'C', &bytes, [&theirs, &fresh]) != blake3::Hash::from_bytes(proof) {
        return Err(refused("the peer does not know the key"));
    }
    let intent = Intent::from_bytes(&bytes).ok_or_else(|| refused("unknown purpose"))?;
    if !mine(intent.to) {
        stream.write_all(&[NOT_MINE])?;
        return Err(refused("meant for another rank"));
    }
    stream.write_all(&[TAKEN])?;
    Ok(intent)
}
