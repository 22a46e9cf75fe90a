//! Diagnosis while the job runs: digests, rules and what follows from a finding.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod bounds;
mod decisions;
mod digests;
mod faults;
mod job;
mod scenarios;
mod settings;
mod shapes;
mod traces;
mod windows;
