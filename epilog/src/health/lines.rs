//! One JSON value a line: what the watch and its watcher write to each other. Bounded; the other end may be of another
//! version or broken, and is never believed further than a line.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Longest line: the whole readings of 16 GPUs are some 100 KiB.
pub(super) const MOST_LINE_BYTES: usize = 4 << 20;

/// Why the other end can't be understood.
#[derive(Debug, thiserror::Error)]
pub(super) enum LineError {
    /// It never ends.
    #[error("a line is longer than {MOST_LINE_BYTES} bytes")]
    Long,
    /// It says something else.
    #[error("a line is no message; is the other program of another version?")]
    Foreign(#[source] serde_json::Error),
}

/// Lines that were not read yet.
#[derive(Debug, Default)]
pub(super) struct Lines {
    rest: Vec<u8>,
    /// How far `rest` holds no line end.
    looked: usize,
}

impl Lines {
    /// Takes bytes as they come.
    pub(super) fn push(&mut self, piece: &[u8]) {
        self.rest.extend_from_slice(piece);
    }

    /// The next whole line.
    pub(super) fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, LineError> {
        let Some(end) = self.rest[self.looked..].iter().position(|byte| *byte == b'\n') else {
            self.looked = self.rest.len();
            return if self.rest.len() > MOST_LINE_BYTES { Err(LineError::Long) } else { Ok(None) };
        };
        let line: Vec<u8> = self.rest.drain(..=self.looked + end).collect();
        self.looked = 0;
        serde_json::from_slice(&line).map(Some).map_err(LineError::Foreign)
    }
}

/// A value as a line.
pub(super) fn line<T: Serialize>(value: &T) -> serde_json::Result<Vec<u8>> {
    let mut bytes = serde_json::to_vec(value)?;
    bytes.push(b'\n');
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_whole_however_they_are_cut() {
        let all: Vec<u8> = ["a", "b\nc", ""].iter().flat_map(|text| line(text).unwrap()).collect();
        for cut in 0..all.len() {
            let mut lines = Lines::default();
            let mut read = Vec::new();
            for piece in [&all[..cut], &all[cut..]] {
                lines.push(piece);
                while let Some(text) = lines.next::<String>().unwrap() {
                    read.push(text);
                }
            }
            assert_eq!(read, ["a", "b\nc", ""]);
        }
    }

    #[test]
    fn what_is_no_message_or_never_ends_is_an_error() {
        let mut lines = Lines::default();
        lines.push(b"{}\n");
        assert!(matches!(lines.next::<String>(), Err(LineError::Foreign(_))));
        let mut lines = Lines::default();
        lines.push(&vec![b'x'; MOST_LINE_BYTES + 1]);
        assert!(matches!(lines.next::<String>(), Err(LineError::Long)));
    }
}
