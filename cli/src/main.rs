//! `aimaster`: the command line of users and operators.
#![forbid(unsafe_code)]

mod config;
mod report;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Checks of a job's own nodes: their reports and the policy behind them.
#[derive(Parser)]
#[command(name = "aimaster", version)]
struct Arguments {
    /// The site's policy; it says where reports are.
    #[arg(long, global = true, default_value = "/etc/aimaster/aimaster.toml")]
    policy: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Shows the report of a job: what was measured, what was found, what was done.
    ///
    /// Exit code: 0 pass, 1 fault, 2 wrong use or no report, 3 SUSPECT, ENVIRONMENT, ERROR or skipped.
    Report(report::Arguments),
    /// Checks the policy and shows what holds, every default filled in.
    Config,
}

/// Exit code for a wrong use, a missing file and everything else that keeps the answer from being given.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match arguments.command {
        Command::Report(command) => report::show(&command, &arguments.policy),
        Command::Config => config::show(&arguments.policy),
    };
    done.unwrap_or_else(|error| {
        eprintln!("aimaster: {error:#}");
        ExitCode::from(USAGE)
    })
}
