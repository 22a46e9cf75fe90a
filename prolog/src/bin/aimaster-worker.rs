//! The program that measures, as an unprivileged user: its standard input is a socket to the coordinator, its
//! one argument the coordinator's pid. It is not for people to run.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(code) = prolog::worker::become_other() {
        return code;
    }
    let parent = std::env::args().nth(1).and_then(|pid| pid.parse().ok());
    let Some(parent) = parent else {
        eprintln!("aimaster-worker: started by aimaster-prolog only, in a job's prolog");
        return ExitCode::from(2);
    };
    prolog::worker::run(parent)
}
