//! Where lines for a person go: refused hellos, closed connections, elections. Not a logging framework.

use std::sync::Arc;

use diag::plain::printable;

/// Longest line; what others sent us is shortened to this.
const MAX_LINE: usize = 400;

/// Takes one line at a time. It must not block.
#[derive(Clone)]
pub struct LogSink(Arc<dyn Fn(&str) + Send + Sync>);

impl std::fmt::Debug for LogSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LogSink")
    }
}

impl LogSink {
    /// Lines go to `sink`.
    #[must_use]
    pub fn new(sink: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(sink))
    }

    /// Lines go nowhere.
    #[must_use]
    pub fn silent() -> Self {
        Self::new(|_| ())
    }

    pub(crate) fn line(&self, text: &str) {
        (self.0)(&shown(text, MAX_LINE));
    }
}

/// A foreign text as one printable line of at most `most` characters.
#[must_use]
pub(crate) fn shown(text: &str, most: usize) -> String {
    let mut line: String = printable(text.trim()).chars().take(most).collect();
    if text.trim().chars().count() > most {
        line.push_str("...");
    }
    line
}
