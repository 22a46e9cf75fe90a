//! `aimaster`: the command line of users and operators.
#![forbid(unsafe_code)]

mod baseline;
mod config;
mod evidence;
mod files;
mod follow;
mod history;
mod report;
mod undrain;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use diag::policy::POLICY_FILE;
use diag::report::printable;

/// Checks of a job's own nodes: their reports and the policy behind them.
#[derive(Parser)]
#[command(name = "aimaster", version)]
struct Arguments {
    /// The site's policy; it says where reports are [default: /etc/aimaster/aimaster.toml].
    #[arg(long, global = true)]
    policy: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Shows the report of a job: what was measured and found before it started and while it ran, what was done.
    ///
    /// Exit code: 0 pass, 1 fault, 2 wrong use or no report, 3 SUSPECT, ENVIRONMENT, ERROR or skipped. A runtime check that
    /// could not see anything does not count beside checks before the start that passed.
    Report(report::Arguments),
    /// Checks the policy and shows what holds, every default filled in.
    Config,
    /// Returns drained nodes to service: only those that this software drained, and of these only the ones that passed
    /// their checks since. The drain of somebody else, and one to whose reason somebody added something, is left alone.
    ///
    /// Exit code: 0 all nodes were returned, 1 some were left alone, 2 wrong use or Slurm did not answer.
    Undrain(undrain::Arguments),
    /// Limits: learned from reports, or held against physics.
    #[command(subcommand)]
    Baseline(baseline::Command),
    /// Shows what a node remembers of its own results; on that node, as root.
    History(history::Arguments),
}

/// Exit code for a wrong use, a missing file and everything else that keeps the answer from being given.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    run(Arguments::parse()).unwrap_or_else(|error| {
        let text = format!("{error:#}");
        let lines: Vec<String> = text.lines().map(printable).collect();
        eprintln!("aimaster: {}", lines.join("\n"));
        ExitCode::from(USAGE)
    })
}

fn run(arguments: Arguments) -> Result<ExitCode> {
    let policy = policy(arguments.policy)?;
    match arguments.command {
        Command::Report(command) => report::show(&command, &policy),
        Command::Config => config::show(&policy),
        Command::Undrain(command) => undrain::undrain(&command, &policy),
        Command::Baseline(command) => baseline::run(&command, &policy),
        Command::History(command) => history::show(&command, &policy),
    }
}

/// The policy's file; without the usual one the defaults hold. One that was named must be there: else a slip in its name would show the defaults as what holds.
fn policy(named: Option<PathBuf>) -> Result<PathBuf> {
    let Some(path) = named else { return Ok(POLICY_FILE.into()) };
    std::fs::metadata(&path).with_context(|| format!("can't read {}", path.display()))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(arguments: &[&str]) -> Result<ExitCode> {
        run(Arguments::try_parse_from(arguments).unwrap())
    }

    #[test]
    fn a_policy_that_was_named_must_be_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("site.toml");
        let arguments = ["aimaster", "--policy", path.to_str().unwrap(), "config"];
        let error = format!("{:#}", shown(&arguments).unwrap_err());
        assert!(error.contains("site.toml") && error.contains("No such file"), "{error}");
        std::fs::write(&path, "paths.baseline_dir = \"/nowhere\"").unwrap();
        assert_eq!(shown(&arguments).unwrap(), ExitCode::SUCCESS);
        assert_eq!(policy(None).unwrap(), PathBuf::from(POLICY_FILE));
    }
}
