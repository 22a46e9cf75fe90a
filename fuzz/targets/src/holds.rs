//! What all targets share: how bytes are cut into inputs, and what holds of every text that a person sees.

use std::borrow::Cow;

use diag::request::mistake::{MAX_MISTAKES, Mistake};

/// Between two inputs of one file: a byte that no text in UTF-8 has.
pub const SEPARATOR: u8 = 0xff;

/// Longest line about a mistake: two paths of 200 characters, words of 60, each of which may be escaped, and all known names.
pub const MOST_MISTAKE_BYTES: usize = 8192;

/// The inputs of a file, in order.
pub fn parts(data: &[u8]) -> impl Iterator<Item = &[u8]> {
    data.split(|byte| *byte == SEPARATOR)
}

/// Bytes as the callers of parsers make a text of them.
#[must_use]
pub fn text(data: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(data)
}

/// One line that moves no cursor and fills no disk.
pub fn line(text: &str, most_bytes: usize) {
    assert!(!text.chars().any(char::is_control), "control characters: {text:?}");
    assert!(text.len() <= most_bytes, "{} bytes, at most {most_bytes}: {text}", text.len());
}

/// Lines, each ended by a line feed.
pub fn lines(text: &str) {
    assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "control characters: {text:?}");
}

/// What a reading that went wrong says.
pub fn mistakes(list: &[Mistake]) {
    assert!(!list.is_empty() && list.len() <= MAX_MISTAKES, "{} mistakes", list.len());
    for mistake in list {
        line(&mistake.to_string(), MOST_MISTAKE_BYTES);
    }
}
