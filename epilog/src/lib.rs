//! What is left to do on a node when a job has ended: its run folder goes. Reports and drains are made before
//! the job starts and while it runs, not here.
#![forbid(unsafe_code)]

pub mod health;
pub mod job;
pub mod run_folder;
