//! `aimaster`: the command line of users and operators.
#![forbid(unsafe_code)]

mod baseline;
mod check;
mod colour;
mod command;
mod config;
mod doctor;
mod evidence;
mod explain;
mod files;
mod follow;
mod generate;
mod history;
mod html;
mod pattern;
mod plugin;
mod report;
mod undrain;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use diag::policy::POLICY_FILE;
use diag::report::printable;

/// What all commands have in common, at the end of the help.
const AFTER: &str = "\
Exit codes: 0 all is well, 1 a fault or something left undone, 2 wrong use or no answer, 3 neither shown to be well nor at fault.
Colours are for terminals only; NO_COLOR=1 turns them off. --json is for programs.

To begin with: `aimaster doctor` says whether this machine is set up; `aimaster report JOBID` what a job's check found;
`aimaster explain \"aimaster: ...\"` what the reason of a drained node means and what to do.";

/// The health check of a job's own nodes: reports, what they mean, and how the site is set up.
#[derive(Parser)]
#[command(name = "aimaster", version, after_help = AFTER)]
struct Arguments {
    /// The site's policy [default: /etc/aimaster/aimaster.toml; for doctor the one that plugstack.conf names].
    #[arg(long, global = true, value_name = "FILE")]
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
    /// Says what a check, a drain's reason, a finding, an Xid or a key of the policy means, and what to do.
    ///
    /// Exit code: 0, or 2 where nothing of that name is known: then what is near is named.
    Explain(explain::Arguments),
    /// Measures this machine now, or in a job step its nodes; no root is needed.
    ///
    /// Nothing in Slurm is changed, whatever is found. Exit code: 0 pass, 1 fault, 2 it can't be run, 3 SUSPECT, ERROR or skipped.
    Check(check::Arguments),
    /// Says whether this machine is set up so that the checks can work, and what to change to what.
    ///
    /// Run it on a login machine and, as root, on a node. It changes nothing. Exit code: 0 all is well, 1 there are mistakes, 2
    /// wrong use, 3 no mistake was found and not everything could be looked at.
    Doctor(doctor::Arguments),
    /// Checks the policy and shows what holds, every default filled in, with the line of each value that the site has set.
    ///
    /// No value comes from the environment. Exit code: 0, or 2 where policy or limits have mistakes.
    Config(config::Arguments),
    /// Returns to service the nodes that this software drained and that passed their checks since.
    ///
    /// The drain of somebody else, and one to whose reason somebody added something, is left alone.
    ///
    /// Exit code: 0 all nodes were returned, 1 some were left alone, 2 wrong use or Slurm did not answer.
    Undrain(undrain::Arguments),
    /// Limits: learned from reports, or held against physics.
    #[command(subcommand)]
    Baseline(baseline::Command),
    /// Shows what a node remembers of its own results; on that node, as root.
    History(history::Arguments),
    /// Puts the plugin that the package brings in place for the Slurm that is installed, and its line into plugstack.conf.
    ///
    /// The package does this by itself. By hand: after an upgrade of Slurm where the package did not notice it, and to switch
    /// the checks off and on. Exit code: 0, or 2 where something could not be done.
    #[command(subcommand)]
    Plugin(plugin::Command),
    /// Prints what makes a shell complete the words of this command.
    ///
    /// For bash: `aimaster completions bash >/etc/bash_completion.d/aimaster`.
    Completions(generate::Completions),
    /// Writes the manual pages of all commands into a folder.
    #[command(hide = true)]
    ManPages(generate::ManPages),
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
    let named = arguments.policy.clone();
    let policy = policy(arguments.policy)?;
    match arguments.command {
        Command::Report(command) => report::show(&command, &policy),
        Command::Explain(command) => explain::run(&command, &policy),
        Command::Check(command) => check::run(&command, &policy),
        Command::Doctor(command) => doctor::run(&command, named.as_deref()),
        Command::Config(command) => config::show(&command, &policy),
        Command::Undrain(command) => undrain::undrain(&command, &policy),
        Command::Baseline(command) => baseline::run(&command, &policy),
        Command::History(command) => history::show(&command, &policy),
        Command::Plugin(command) => plugin::run(&command),
        Command::Completions(command) => generate::completions(&command),
        Command::ManPages(command) => generate::man_pages(&command),
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
    use clap::CommandFactory as _;

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

    #[test]
    fn every_command_and_argument_has_words_and_every_command_speaks_to_programs() {
        let whole = Arguments::command();
        whole.clone().debug_assert();
        let mut open: Vec<&clap::Command> = vec![&whole];
        while let Some(command) = open.pop() {
            let name = command.get_name();
            assert!(command.get_about().is_some(), "{name} says nothing of itself");
            for argument in command.get_arguments() {
                let id = argument.get_id();
                assert!(argument.get_help().is_some() || id == "help" || id == "version", "{name} {id}");
            }
            let has = |id: &str| command.get_arguments().any(|argument| argument.get_id() == id);
            let makes_files =
                ["completions", "man-pages", "learn", "stamp", "on", "off", "configure", "unconfigure"]
                    .contains(&name);
            assert!(command.has_subcommands() || makes_files || has("json"), "{name} has no --json");
            open.extend(command.get_subcommands());
        }
    }
}
