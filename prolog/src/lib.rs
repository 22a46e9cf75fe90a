//! The suite that runs in the job prolog: a coordinator that meets the other nodes, plans, judges and acts, and a
//! worker that measures. The way of the data is `main.rs`, from top to bottom.
#![forbid(unsafe_code)]

pub mod agent;
pub mod assignment;
pub mod checks;
pub mod components;
pub mod conclusion;
pub mod engine;
pub mod events;
mod hardware;
pub mod history;
pub mod meeting;
pub mod on_demand;
pub mod progress;
pub mod protocol;
pub mod publish;
pub mod run_folder;
pub mod suite;
mod thread_state;
pub mod traffic;
pub mod watch;
pub mod worker;
pub mod worker_client;
