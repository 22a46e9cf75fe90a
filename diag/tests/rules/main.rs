//! The rules that judge, by what they make of whole jobs: one program, so that the simulated cluster is compiled once.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop at the first surprise")]

mod actions;
mod blame;
mod conf;
mod culprits;
mod doctor;
mod drains;
mod evidence;
mod gpu_facts;
mod gpu_facts_among;
mod gpu_facts_load;
mod gpu_ids;
mod gpus;
mod history;
mod known;
mod learn;
mod network_limits;
mod numbers;
mod page;
mod parts;
mod readings;
mod simulated;
mod spine;
mod topology;
mod traffic;
mod trust;
mod unfinished;
mod whole_suite;
