//! What watches a job while it runs ([`c4d`]), and what is left to do on a node when it has ended: its agent is stopped,
//! what that said is kept, its run folder goes, and so do those of jobs that had no epilog. Reports and drains of the checks before the start are made there, not here.
#![forbid(unsafe_code)]

pub mod c4d;
pub mod health;
pub mod job;
pub mod keep;
pub mod run_folder;
pub mod sweep;
