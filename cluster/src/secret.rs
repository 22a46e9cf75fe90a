//! Messages that hold a key: made and read in memory that is wiped before it is given back, whichever way it grew. Keys on
//! the stack are wiped where their types are dropped; copies that the compiler makes are out of reach.

use std::io::{self, Read, Write};

use serde::Serialize;
use zeroize::{Zeroize as _, Zeroizing};

/// What is read at first; the messages of small jobs fit.
const FIRST_BYTES: usize = 16 << 10;

/// The hash, and nothing left of the hasher, which holds the key.
pub fn finish(mut hasher: blake3::Hasher) -> blake3::Hash {
    let hash = hasher.finalize();
    hasher.zeroize();
    hash
}

/// A message as JSON. Its length is found first: a buffer that grows leaves what it held behind.
///
/// # Errors
/// It can't be JSON.
pub fn to_json<T: Serialize>(message: &T) -> serde_json::Result<Zeroizing<Vec<u8>>> {
    let mut length = Count(0);
    serde_json::to_writer(&mut length, message)?;
    let mut text = Zeroizing::new(Vec::with_capacity(length.0));
    serde_json::to_writer(&mut *text, message)?;
    Ok(text)
}

/// All that comes, up to `most` bytes and one more, by which too much shows.
///
/// # Errors
/// It can't be read.
pub fn read(mut from: impl Read, most: usize) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut text = Zeroizing::new(vec![0; FIRST_BYTES.min(most + 1)]);
    let mut filled = 0;
    loop {
        if filled == text.len() {
            if filled > most {
                return Ok(text);
            }
            let mut larger = Zeroizing::new(vec![0; (2 * filled).min(most + 1)]);
            larger[..filled].copy_from_slice(&text);
            text = larger;
        }
        match from.read(&mut text[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    text.truncate(filled);
    Ok(text)
}

struct Count(usize);

impl Write for Count {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_never_grows_its_buffer() {
        for length in [0, 1, 100, 5000] {
            let message = "k".repeat(length);
            let text = to_json(&message).unwrap();
            assert_eq!((text.len(), text.capacity()), (length + 2, length + 2));
        }
    }

    #[test]
    fn what_comes_is_read_to_its_end_or_one_byte_too_far() {
        for length in [0, 1, FIRST_BYTES - 1, FIRST_BYTES, FIRST_BYTES + 1, 3 * FIRST_BYTES] {
            let sent = vec![7; length];
            assert_eq!(*read(&sent[..], 3 * FIRST_BYTES).unwrap(), sent);
        }
        for most in [0, 1, 100, FIRST_BYTES, 3 * FIRST_BYTES] {
            assert_eq!(read(io::repeat(7), most).unwrap().len(), most + 1);
        }
    }
}
