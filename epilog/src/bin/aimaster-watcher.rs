//! The program that asks NVML while a job runs, as an unprivileged user: its standard input is a socket to the node's
//! agent, its one argument the agent's pid. It is not for people to run.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    let parent = std::env::args().nth(1).and_then(|pid| pid.parse().ok());
    let Some(parent) = parent else {
        eprintln!("aimaster-watcher: started by aimaster-c4d only, while a job runs");
        return ExitCode::from(2);
    };
    epilog::health::run_watcher(parent)
}
