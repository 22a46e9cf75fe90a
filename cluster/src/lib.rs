//! Everything that talks to the other nodes of a job or to Slurm: the meeting of the prologs, the session that
//! follows it, and `scontrol`; and where reports are written, which may be shared storage.
//!
//! Nothing here measures, judges or decides: measurements pass through as opaque answers, and actions are
//! carried out as they were decided, unless a look at Slurm shows that they no longer apply.
#![deny(unsafe_code)]

pub mod agents;
mod answers;
pub mod auth;
pub mod beside;
mod dial;
pub mod events;
mod gather;
mod handshake;
#[doc(hidden)]
pub mod hostile;
pub mod log;
mod meet_error;
mod mesh;
mod message;
pub mod metrics;
#[allow(unsafe_code)]
pub mod munge;
mod offer;
pub mod order;
pub mod rendezvous;
pub mod report_file;
pub mod report_writer;
mod roster;
mod second_hand;
pub mod secret;
pub mod session;
pub mod slurm;
mod tally;
pub mod topology;
pub mod trusted_path;
pub mod wire;

pub use tally::Counters;

/// The program that runs, for starting it once more: also after an upgrade has put another file at its path.
pub const OWN_PROGRAM: &str = "/proc/self/exe";

/// An error and its causes in one line.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut line = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let text = cause.to_string();
        // A transparent error repeats its source's words.
        if !line.ends_with(&text) {
            line = format!("{line}: {text}");
        }
        source = cause.source();
    }
    line
}
