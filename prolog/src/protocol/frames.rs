//! How messages travel over the socket pair: JSON with its length in front, bounded. What they say is in
//! [`super`].

use cluster::secret;
use serde::Serialize;
use serde::de::DeserializeOwned;
use zeroize::{Zeroize as _, Zeroizing};

/// Largest frame, either way. The largest message is a `Connect` to every node of the job: 150 bytes a node, so
/// 10 000 nodes are 1.5 MB.
pub const MAX_FRAME: usize = 4 << 20;

/// Bytes of the length in front of a frame.
const LENGTH_BYTES: usize = 4;

/// A frame that can't be sent or read.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// Longer than [`MAX_FRAME`].
    #[error("a message of {length} bytes is longer than {MAX_FRAME}")]
    TooLong {
        /// Its length.
        length: usize,
    },
    /// Not the message that was expected.
    #[error("a message can't be read")]
    Malformed(#[source] serde_json::Error),
}

/// `message` with its length in front.
pub fn encode<T: Serialize>(message: &T) -> Result<Zeroizing<Vec<u8>>, FrameError> {
    // One of the messages holds a key.
    let text = secret::to_json(message).map_err(FrameError::Malformed)?;
    let length = text.len();
    let prefix =
        u32::try_from(length).ok().filter(|_| length <= MAX_FRAME).ok_or(FrameError::TooLong { length })?;
    let mut frame = Zeroizing::new(Vec::with_capacity(LENGTH_BYTES + length));
    frame.extend_from_slice(&prefix.to_be_bytes());
    frame.extend_from_slice(&text);
    Ok(frame)
}

/// Puts frames together from whatever pieces arrive. It holds at most one frame and one piece.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Zeroizing<Vec<u8>>,
}

impl Decoder {
    /// Adds what arrived.
    pub fn push(&mut self, piece: &[u8]) {
        self.buffer.extend_from_slice(piece);
    }

    /// The next whole message, if there is one.
    pub fn message<T: DeserializeOwned>(&mut self) -> Result<Option<T>, FrameError> {
        let Some(prefix) = self.buffer.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        let length = u32::from_be_bytes(*prefix) as usize;
        if length > MAX_FRAME {
            return Err(FrameError::TooLong { length });
        }
        let Some(body) = self.buffer.get(LENGTH_BYTES..LENGTH_BYTES + length) else { return Ok(None) };
        let message = serde_json::from_slice(body).map_err(FrameError::Malformed)?;
        self.buffer.drain(..LENGTH_BYTES + length);
        if self.buffer.is_empty() {
            // It may have been the key.
            self.buffer.zeroize();
        }
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Call, Request};

    #[test]
    fn frames_survive_being_cut_anywhere() {
        let call = Call { id: 7, request: Request::Ping };
        let mut stream = encode(&call).unwrap();
        stream.extend_from_slice(&encode(&call).unwrap());
        for cut in 0..stream.len() {
            let mut decoder = Decoder::default();
            let mut seen = 0;
            for piece in [&stream[..cut], &stream[cut..]] {
                decoder.push(piece);
                while let Some(message) = decoder.message::<Call>().unwrap() {
                    assert_eq!(message, call);
                    seen += 1;
                }
            }
            assert_eq!(seen, 2, "cut at {cut}");
        }
    }

    #[test]
    fn a_hostile_length_is_refused_before_anything_is_stored() {
        let mut decoder = Decoder::default();
        decoder.push(&u32::MAX.to_be_bytes());
        assert!(matches!(decoder.message::<Call>(), Err(FrameError::TooLong { .. })));
    }
}
