//! The launch gate: what the prolog leaves on the node so that the plugin lets the job's tasks start, or ends
//! them with the verdict.

use serde::{Deserialize, Serialize};

/// Name of the gate's file inside the run folder
/// `/run/aimaster/<cluster>/<node>/<job>.<restart>/`.
pub const FILE_NAME: &str = "gate.json";

/// Root of the run folders.
pub const RUN_ROOT: &str = "/run/aimaster";

/// Most lines of a gate.
pub const MAX_LINES: usize = 64;

/// Most characters of a line.
pub const MAX_LINE_CHARS: usize = 500;

/// Largest gate: that many lines of four bytes a character, and what JSON adds.
pub const MAX_BYTES: usize = 256 * 1024;

/// Content of the gate's file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gate {
    /// 1.
    pub schema: u32,
    /// Whether the job's tasks may start.
    pub start: bool,
    /// What to print: before the end of a task that may not start, and in a batch job's output otherwise.
    /// One line each, without control characters and without our name in front; empty if nothing was asked.
    pub lines: Vec<String>,
    /// Whether nobody has told these lines to whoever waits at srun or salloc: the first step does it then, also
    /// where it starts.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub untold: bool,
}

impl Gate {
    /// A gate that lets the job start and has this to say.
    #[must_use]
    pub fn open(lines: Vec<String>) -> Self {
        Self { schema: 1, start: true, lines: bounded(lines), untold: false }
    }

    /// The same, of what was not told on the way.
    #[must_use]
    pub fn untold(self) -> Self {
        Self { untold: true, ..self }
    }

    /// The same with one more line, of what was not told on the way; a gate that is full keeps what it has.
    #[must_use]
    pub fn with(mut self, line: String) -> Self {
        self.lines.push(line);
        Self { lines: bounded(self.lines), untold: true, ..self }
    }

    /// A gate that ends the job's tasks with these lines.
    #[must_use]
    pub fn closed(lines: Vec<String>) -> Self {
        Self { schema: 1, start: false, lines: bounded(lines), untold: false }
    }
}

/// No more than is printed: a gate that is too large to be read would be no gate, and the job would start.
fn bounded(lines: Vec<String>) -> Vec<String> {
    lines.into_iter().take(MAX_LINES).map(|line| line.chars().take(MAX_LINE_CHARS).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_gate_can_be_read() {
        for text in ["n1, ", "\"", "\u{1f980}"] {
            let gate = Gate::closed(vec![text.repeat(100_000); 1000]);
            assert!(serde_json::to_vec(&gate).unwrap().len() <= MAX_BYTES, "{text:?}");
        }
        let short = vec!["a".to_owned(), String::new()];
        assert_eq!(Gate::open(short.clone()).lines, short);
    }
}
