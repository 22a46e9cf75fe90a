//! `cargo xtask bench trust`, or `cargo bench -p diag --bench trust`: what the verdicts are worth, as tables. Jobs on a
//! simulated cluster under the rules of the product: healthy ones, of which nobody may be drained; one fault at every place,
//! and two; how large a fault must be; what a verdict costs; and other published rules on the same faults. It ends with an
//! error if a node was drained that is fine, or one is not named that can be.
//!
//! Arguments (after `--`), each `name=number`, all with defaults: `healthy` jobs, `from` which seed on, `singles` whether to
//! put one fault at each place (2: the network's only), `places` in a job of 1,024 nodes, `pairs` of faults, `between`
//! how many jobs with a slow way between leaves, and as many with a slow leaf, `curve` runs a point, `rules` whether to
//! compare, `cost` whether to measure it; `plots=FOLDER` has pictures of curve and cost written there. The first seed of a part
//! is 0; 100,000 healthy jobs take some two hours of processor time.
#![allow(clippy::unwrap_used, reason = "a bench may stop at the first surprise")]

#[path = "trust/cost.rs"]
mod cost;
#[path = "trust/faults.rs"]
mod faults;
#[path = "trust/healthy.rs"]
mod healthy;
#[path = "trust/others.rs"]
mod others;
#[path = "trust/parallel.rs"]
mod parallel;
#[path = "trust/plot.rs"]
mod plot;
#[path = "../tests/rules/simulated/mod.rs"]
mod simulated;

use std::process::ExitCode;

use faults::OF_THE_NETWORK;
use simulated::catalogue::ALL;

/// The number that an argument gives, else `usual`.
fn argument(name: &str, usual: u32) -> u32 {
    let given = std::env::args().find_map(|word| word.strip_prefix(name)?.strip_prefix('=')?.parse().ok());
    given.unwrap_or(usual)
}

fn main() -> ExitCode {
    // `cargo test --all-targets` starts benches too, without this flag: it has no hour for them.
    if std::env::args().all(|word| word != "--bench") {
        return ExitCode::SUCCESS;
    }
    let count = |name: &str, usual: u32| argument(name, usual) as usize;
    let mut right = true;
    if argument("cost", 1) > 0 {
        right &= cost::table();
    }
    let (singles, places) = (argument("singles", 1), argument("places", 50));
    if singles > 0 {
        right &= faults::singles(if singles == 1 { &ALL } else { &OF_THE_NETWORK }, places, false);
        right &= faults::singles(&OF_THE_NETWORK, places, true);
    }
    right &= faults::pairs(count("pairs", 2000));
    right &= faults::slow_switches(count("between", 5000));
    if count("curve", 200) > 0 {
        faults::curve(count("curve", 200));
    }
    if argument("rules", 1) > 0 {
        others::table();
    }
    right &= healthy::table(u64::from(argument("from", 0)), count("healthy", 100_000));
    if right { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
