//! `cargo bench -p diag --bench trust`: what the verdicts are worth, as tables.
#![allow(clippy::unwrap_used, reason = "a bench may stop at the first surprise")]

#[path = "trust/cost.rs"]
mod cost;
#[path = "trust/healthy.rs"]
mod healthy;
#[path = "../tests/simulated/mod.rs"]
mod simulated;

use std::process::ExitCode;

fn main() -> ExitCode {
    // `cargo test --all-targets` starts benches too, without this flag: it has no hour for them.
    if std::env::args().all(|word| word != "--bench") {
        return ExitCode::SUCCESS;
    }
    let mut numbers = std::env::args().filter_map(|word| word.parse().ok());
    let jobs = numbers.next().unwrap_or(100_000);
    let mut right = cost::table();
    right &= healthy::healthy(jobs);
    if right { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
