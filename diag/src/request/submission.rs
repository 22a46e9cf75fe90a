//! From what the user typed to a request: flags, environment twins and the document, in order of precedence,
//! with every mistake at once. It runs in srun, sbatch and salloc as the user; whoever calls it does the
//! reading, and whether the job is in the policy's scope is decided elsewhere.

use crate::policy::Policy;
use crate::request::Request;
use crate::request::mistake::Mistake;

/// A flag as it stood on the command line.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Flag {
    /// Not given.
    #[default]
    Absent,
    /// Given without a value.
    Bare,
    /// Given with a value.
    Value(String),
}

/// One option: the flag and its environment twin, which counts only where the flag is absent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Given {
    /// The flag.
    pub flag: Flag,
    /// The environment variable, if it is set.
    pub twin: Option<String>,
}

/// Everything that was given.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Inputs {
    /// `--sanity-check`, `AIMASTER_SANITY_CHECK`.
    pub sanity_check: Given,
    /// `--sanity-fail-action`, `AIMASTER_SANITY_FAIL_ACTION`.
    pub sanity_fail_action: Given,
    /// `--sanity-timeout`, `AIMASTER_SANITY_TIMEOUT`.
    pub sanity_timeout: Given,
    /// `--runtime-check`, `AIMASTER_RUNTIME_CHECK`.
    pub runtime_check: Given,
    /// `--runtime-fail-action`, `AIMASTER_RUNTIME_FAIL_ACTION`.
    pub runtime_fail_action: Given,
    /// `--aimaster`, `AIMASTER_CONFIG`.
    pub aimaster: Given,
    /// What the file held that [`Inputs::document_source`] names, or why it could not be read. Reading stops
    /// at [`crate::request::document::MAX_DOCUMENT_BYTES`] + 1 bytes; more is refused anyway.
    pub document: Option<Result<Vec<u8>, String>>,
}

/// Where the document is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DocumentSource<'a> {
    /// None was given.
    None,
    /// It is the argument itself; nothing has to be read.
    Inline(&'a str),
    /// In a file that the caller has to read into [`Inputs::document`], as the user.
    File(&'a str),
}

/// A request that may be queued.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    /// What was asked for.
    pub request: Request,
    /// What the user should know, one line each.
    pub notices: Vec<String>,
}

impl Inputs {
    /// Where the document is: an argument that starts with a brace is the document itself, any other one is
    /// the path of a file.
    #[must_use]
    pub fn document_source(&self) -> DocumentSource<'_> {
        let argument = match (&self.aimaster.flag, &self.aimaster.twin) {
            (Flag::Value(argument), _) => argument,
            (Flag::Absent, Some(argument)) => argument,
            (Flag::Absent, None) | (Flag::Bare, _) => return DocumentSource::None,
        };
        match argument.trim_start() {
            "" => DocumentSource::None,
            text if text.starts_with('{') => DocumentSource::Inline(argument),
            _ => DocumentSource::File(argument),
        }
    }
}
