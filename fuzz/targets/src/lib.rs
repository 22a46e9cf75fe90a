//! What fuzzing tries: a function for each kind of foreign bytes, with what must hold whatever the bytes are. The programs
//! in `fuzz/fuzz_targets` call them with what libFuzzer makes up, and `tests/replay.rs` with every file of the corpora.
//! How to run them, and what each covers: docs/fuzzing.md.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a target ends at the first surprise")]

pub mod baseline;
pub mod comments;
pub mod digest;
pub mod document;
pub mod environment;
pub mod history;
pub mod holds;
pub mod hostlist;
pub mod kernel_log;
pub mod key;
pub mod munge;
pub mod policy;
pub mod report;
pub mod request;
pub mod ring;
pub mod run_stamp;
pub mod scontrol;
pub mod topology;
pub mod wire;
pub mod worker;

/// A target.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name: that of its program and of the folder of its corpus.
    pub name: &'static str,
    /// Tries these bytes.
    pub run: fn(&[u8]),
}

/// All targets.
pub const ALL: &[Target] = &[
    Target { name: "baseline", run: baseline::run },
    Target { name: "comments", run: comments::run },
    Target { name: "digest", run: digest::run },
    Target { name: "document", run: document::run },
    Target { name: "environment", run: environment::run },
    Target { name: "history", run: history::run },
    Target { name: "hostlist", run: hostlist::run },
    Target { name: "kernel_log", run: kernel_log::run },
    Target { name: "key", run: key::run },
    Target { name: "munge", run: munge::run },
    Target { name: "policy", run: policy::run },
    Target { name: "report", run: report::run },
    Target { name: "request", run: request::run },
    Target { name: "ring", run: ring::run },
    Target { name: "run_stamp", run: run_stamp::run },
    Target { name: "scontrol", run: scontrol::run },
    Target { name: "topology", run: topology::run },
    Target { name: "wire", run: wire::run },
    Target { name: "worker", run: worker::run },
];
