//! Frames between two nodes: length, then sequence number, keyed hash and body. Not what the bodies mean.
//!
//! Before both sides have proved themselves a frame is a bare body of at most [`MAX_GREETING`]. Afterwards each
//! frame carries its sequence number and a BLAKE3 hash under a key of this connection and direction, of the hash of its
//! body: what goes to thousands of nodes is read once to be hashed. Whatever is wrong with a frame ends that connection
//! and no other.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_util::bytes::{BufMut, Bytes, BytesMut};
use tokio_util::codec::{Decoder, LengthDelimitedCodec};
use zeroize::Zeroizing;

use crate::secret;

/// Longest frame before authentication: two credentials and some words fit.
pub const MAX_GREETING: usize = 16 * 1024;
/// Longest frame from a node to the leader: thousands of measurements of one node.
pub const MAX_FROM_PEER: usize = 4 * 1024 * 1024;
/// Longest frame from the leader: what a thousand nodes said, at up to 64 KiB each.
pub const MAX_FROM_LEADER: usize = 64 * 1024 * 1024;

/// Sequence number and hash.
const OVERHEAD: usize = 8 + 32;
/// Read at once; the length of a frame decides what is reserved beyond that.
const READ_CHUNK: usize = 8 * 1024;

/// Why a connection's frames could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The other side closed it.
    #[error("the connection was closed")]
    Closed,
    /// The system's words.
    #[error("the connection broke")]
    Io(#[source] io::Error),
    /// Longer than allowed, or not a frame at all.
    #[error("a frame is longer than the limit of {limit} bytes, or the bytes are no frame")]
    TooLong {
        /// The limit.
        limit: usize,
    },
    /// Too short to hold sequence number and hash.
    #[error("a frame is too short")]
    TooShort,
    /// Lost, repeated or reordered.
    #[error("frame {found} came where {wanted} was due")]
    Sequence {
        /// What was due.
        wanted: u64,
        /// What came.
        found: u64,
    },
    /// Changed on the way, or not from the peer.
    #[error("the hash of frame {sequence} is wrong")]
    Hash {
        /// Which frame.
        sequence: u64,
    },
}

/// Which way a frame goes; part of its hash, so that a frame can't be sent back to its sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the node that dialed.
    FromDialer,
    /// From the node that listened.
    FromListener,
}

impl Direction {
    fn byte(self) -> u8 {
        match self {
            Self::FromDialer => 1,
            Self::FromListener => 2,
        }
    }
}

/// What a frame carries, with its hash, which every connection needs that it goes over.
#[derive(Debug, Clone)]
pub struct Body {
    bytes: Bytes,
    hash: blake3::Hash,
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        let hash = blake3::hash(&bytes);
        Self { bytes, hash }
    }
}

/// The key of one direction of one connection, and its place in the sequence.
pub struct Seal {
    key: Zeroizing<[u8; 32]>,
    direction: Direction,
    next: u64,
}

impl Seal {
    /// Starts at frame 0.
    #[must_use]
    pub fn new(key: &[u8; 32], direction: Direction) -> Self {
        Self { key: Zeroizing::new(*key), direction, next: 0 }
    }

    fn hash(&self, sequence: u64, body: &blake3::Hash) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(&[self.direction.byte()]).update(&sequence.to_be_bytes()).update(body.as_bytes());
        secret::finish(hasher)
    }

    /// Sequence number and hash for the next body.
    fn head(&mut self, body: &blake3::Hash) -> [u8; OVERHEAD] {
        let mut head = [0; OVERHEAD];
        head[..8].copy_from_slice(&self.next.to_be_bytes());
        head[8..].copy_from_slice(self.hash(self.next, body).as_bytes());
        self.next += 1;
        head
    }

    /// Takes the body out of the next frame.
    ///
    /// # Errors
    /// The frame is too short, out of sequence, or its hash is wrong.
    pub fn open(&mut self, mut frame: Bytes) -> Result<Bytes, WireError> {
        if frame.len() < OVERHEAD {
            return Err(WireError::TooShort);
        }
        let body = frame.split_off(OVERHEAD);
        let number: [u8; 8] = frame[..8].try_into().map_err(|_| WireError::TooShort)?;
        let hash: [u8; 32] = frame[8..].try_into().map_err(|_| WireError::TooShort)?;
        let sequence = u64::from_be_bytes(number);
        // The hash first: a number that nobody vouches for is not worth a message. Constant time.
        if self.hash(sequence, &blake3::hash(&body)) != blake3::Hash::from_bytes(hash) {
            return Err(WireError::Hash { sequence: self.next });
        }
        if sequence != self.next {
            return Err(WireError::Sequence { wanted: self.next, found: sequence });
        }
        self.next += 1;
        Ok(body)
    }
}

/// Reads length-limited frames.
pub struct FrameReader<R> {
    inner: R,
    codec: LengthDelimitedCodec,
    buffer: BytesMut,
    seal: Option<Seal>,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// For the time before authentication.
    pub fn greeting(inner: R) -> Self {
        Self { inner, codec: codec(MAX_GREETING), buffer: BytesMut::new(), seal: None }
    }

    /// From here on every frame is sealed; `limit` bounds its body. Bytes already read stay in line.
    pub fn sealed(mut self, seal: Seal, limit: usize) -> Self {
        self.codec = codec(limit.saturating_add(OVERHEAD));
        self.seal = Some(seal);
        self
    }

    /// The next body.
    ///
    /// # Errors
    /// Any: the connection is of no more use.
    pub async fn next(&mut self) -> Result<Bytes, WireError> {
        let limit = self.codec.max_frame_length();
        loop {
            let frame = self.codec.decode(&mut self.buffer).map_err(|_| WireError::TooLong { limit })?;
            if let Some(frame) = frame {
                return match &mut self.seal {
                    Some(seal) => seal.open(frame.freeze()),
                    None => Ok(frame.freeze()),
                };
            }
            self.buffer.reserve(READ_CHUNK);
            if self.inner.read_buf(&mut self.buffer).await.map_err(WireError::Io)? == 0 {
                return Err(WireError::Closed);
            }
        }
    }
}

/// Writes frames.
pub struct FrameWriter<W> {
    inner: W,
    seal: Option<Seal>,
}

impl<W: AsyncWrite + Unpin> FrameWriter<W> {
    /// For the time before authentication.
    pub fn greeting(inner: W) -> Self {
        Self { inner, seal: None }
    }

    /// From here on every frame is sealed.
    pub fn sealed(mut self, seal: Seal) -> Self {
        self.seal = Some(seal);
        self
    }

    /// The connection without its frames.
    #[cfg(test)]
    pub(crate) fn into_inner(self) -> W {
        self.inner
    }

    /// Sends one body. Bounds are the reader's; a body past them ends the connection there.
    ///
    /// # Errors
    /// The connection broke, or the body is longer than any frame may be.
    pub async fn send(&mut self, body: &[u8]) -> Result<(), WireError> {
        let hash = if self.seal.is_some() { Some(blake3::hash(body)) } else { None };
        self.put(body, hash.as_ref()).await
    }

    /// The same of a body that is hashed already.
    ///
    /// # Errors
    /// Those of [`Self::send`].
    pub async fn send_again(&mut self, body: &Body) -> Result<(), WireError> {
        self.put(&body.bytes, Some(&body.hash)).await
    }

    async fn put(&mut self, body: &[u8], hash: Option<&blake3::Hash>) -> Result<(), WireError> {
        if body.len() > MAX_FROM_LEADER {
            return Err(WireError::TooLong { limit: MAX_FROM_LEADER });
        }
        let head = self.seal.as_mut().zip(hash).map(|(seal, hash)| seal.head(hash));
        let head = head.as_ref().map_or(&[][..], |head| &head[..]);
        let length = u32::try_from(head.len() + body.len())
            .map_err(|_| WireError::TooLong { limit: MAX_FROM_LEADER })?;
        let mut front = BytesMut::with_capacity(4 + head.len() + body.len().min(READ_CHUNK));
        front.put_u32(length);
        front.put_slice(head);
        // One packet for what is short; the long ones are not copied.
        if body.len() <= READ_CHUNK {
            front.put_slice(body);
            return self.inner.write_all(&front).await.map_err(WireError::Io);
        }
        self.inner.write_all(&front).await.map_err(WireError::Io)?;
        self.inner.write_all(body).await.map_err(WireError::Io)
    }

    /// Says that nothing more follows.
    pub async fn finish(&mut self) {
        // The other side may be gone already, which is as good.
        let _ = self.inner.shutdown().await;
    }
}

fn codec(limit: usize) -> LengthDelimitedCodec {
    LengthDelimitedCodec::builder().length_field_length(4).max_frame_length(limit).new_codec()
}
