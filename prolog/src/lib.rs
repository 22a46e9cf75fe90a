//! The suite.
#![forbid(unsafe_code)]

pub mod checks;
pub mod protocol;
pub mod worker;
pub mod worker_client;
