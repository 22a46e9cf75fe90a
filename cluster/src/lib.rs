//! Everything that talks to the other nodes of a job or to Slurm: the meeting of the prologs, the session that
//! follows it, and `scontrol`.
//!
//! Nothing here measures, judges or decides: measurements pass through as opaque answers, and actions are
//! carried out as they were decided, unless a look at Slurm shows that they no longer apply.
#![deny(unsafe_code)]

pub mod auth;
pub mod log;
#[allow(unsafe_code)]
pub mod munge;
pub mod wire;
