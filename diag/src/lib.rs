//! Pure logic of the health check: what was asked, what to measure next, who is at fault, what to do about it.
//!
//! Nothing here reads a file, a clock or the environment, and nothing starts a thread: time, seeds and
//! file contents are arguments. Everything left of a [`measurement::Measurement`] touches the machine and
//! decides nothing; everything right of it is in this crate.
//!
//! How a number becomes a drained node, one file a step:
//!
//! | step | file |
//! |---|---|
//! | what is measured next, and who takes part | [`plan`] |
//! | what a number is held against: baseline file, like numbers of the job | `standards`, `votes` |
//! | what a group of nodes showed in a round: fine, a miss, nothing | [`judge`], [`look`] |
//! | how often a number must miss before chance is ruled out | `chance`, `odds` |
//! | which misses are of one size, and what else must have been seen before a node is blamed | `seen`, `doubt` |
//! | which node, link or leaf switch explains the misses | [`localise`], `blame`, `switches` |
//! | who should meet whom | `meetings`, `switches` |
//! | findings in words: value, limit, what confirmed it, what to do next | [`findings`], `pair_findings`, [`wording`], `next_step` |
//! | causes that excuse, and the outcome of all findings | [`explain`], [`conclude`] |
//! | what is done about it, within the caps | [`action`] |
#![forbid(unsafe_code)]

pub mod action;
pub mod admin_comment;
pub mod baseline;
pub mod baseline_learn;
pub mod baseline_lint;
mod blame;
pub mod c4d;
mod chance;
pub mod check;
pub mod conclude;
pub mod doctor;
mod doubt;
pub mod drain_memory;
pub mod explain;
pub mod facts;
pub mod fields;
pub mod findings;
pub mod gate;
pub mod gpu_facts;
pub mod health;
pub mod history;
pub mod hostlist;
pub mod job;
pub mod judge;
pub mod localise;
pub mod look;
pub mod measurement;
mod meetings;
pub mod metrics;
pub mod next_step;
mod odds;
pub mod page;
mod pair_findings;
pub mod plain;
pub mod plan;
pub mod plugstack;
pub mod policy;
pub mod reason;
pub mod report;
pub mod request;
pub mod round;
pub mod run_stamp;
pub mod runtime_report;
mod seen;
mod standards;
mod switches;
pub mod telemetry;
pub mod times;
pub mod topology;
pub mod verdict;
mod votes;
pub mod wording;
pub mod xid;
