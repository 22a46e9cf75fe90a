//! The launch gate: what the prolog leaves on the node so that the plugin lets the job's tasks start, or ends
//! them with the verdict.

use serde::{Deserialize, Serialize};

/// Name of the gate's file inside the run folder
/// `/run/aimaster/<cluster>/<node>/<job>.<restart>/`.
pub const FILE_NAME: &str = "gate.json";

/// Root of the run folders.
pub const RUN_ROOT: &str = "/run/aimaster";

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
}

impl Gate {
    /// A gate that lets the job start and has this to say.
    #[must_use]
    pub fn open(lines: Vec<String>) -> Self {
        Self { schema: 1, start: true, lines }
    }

    /// A gate that ends the job's tasks with these lines.
    #[must_use]
    pub fn closed(lines: Vec<String>) -> Self {
        Self { schema: 1, start: false, lines }
    }
}
