//! `aimaster doctor`: whether everything on this machine is set so that the checks can work, and what to change. The rules are
//! [`diag::doctor`]'s; what lies here and what Slurm says is gathered beside this file.

mod entries;
mod fingerprint;
mod gather;
mod node;
pub mod plugstack;
mod slurm;

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use diag::doctor::facts::{Facts, Machine};
use diag::doctor::{Finding, Level, examine, has_mistakes, page, text};
use diag::report::printable;
use serde::Serialize;

use crate::colour::{Colour, Tone};
use fingerprint::Fingerprint;

/// GPUs of this machine, by their device files.
#[must_use]
pub fn gpu_devices() -> u32 {
    node::gpu_devices(Path::new("/dev"))
}

/// Exit codes: a mistake was found; none was, and not everything could be looked at.
const FAULT: u8 = 1;
const UNDECIDED: u8 = 3;

/// How.
#[derive(clap::Args)]
pub struct Arguments {
    /// The findings as JSON, for programs and for --against.
    #[arg(long)]
    json: bool,
    /// What `aimaster doctor --json` printed on another machine: says what differs here that must be the same.
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
    /// This machine as a node of that name [default: the node that Slurm knows by this machine's host name; a login machine if
    /// there is none].
    #[arg(long)]
    node: Option<String>,
}

/// All of it, for programs.
#[derive(Serialize)]
struct Told<'a> {
    schema: u32,
    outcome: &'static str,
    #[serde(flatten)]
    machine: &'a Machine,
    cluster: Option<&'a str>,
    findings: &'a [Finding],
    unseen: &'a [String],
    fingerprint: &'a Fingerprint,
}

/// Looks, and says what it found.
///
/// # Errors
/// The other machine's words can't be read.
pub fn run(arguments: &Arguments, policy: Option<&Path>) -> Result<ExitCode> {
    let other = arguments.against.as_deref().map(Fingerprint::read).transpose()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let facts = runtime.block_on(gather::facts(policy, arguments.node.as_deref()));
    // What a storage or a resolver still keeps in a thread is not waited for.
    runtime.shutdown_background();
    let own = Fingerprint::of(&facts);
    let mut findings = examine(&facts);
    findings.splice(0..0, other.iter().flat_map(|other| own.differences(other)));
    let (outcome, code) = outcome(&facts, &findings);
    let shown = if arguments.json {
        let told = Told {
            schema: 1,
            outcome,
            machine: &facts.machine,
            cluster: facts.cluster.as_deref(),
            findings: &findings,
            unseen: &facts.unseen,
            fingerprint: &own,
        };
        serde_json::to_string_pretty(&told)? + "\n"
    } else {
        let words = [
            ("MISTAKE", Tone::Bad),
            ("note", Tone::Notice),
            ("not seen", Tone::Notice),
            ("All is well", Tone::Good),
        ];
        Colour::of_stdout().lines(&told(&facts, &findings), &words)
    };
    // A reader that went away, such as `head`, is no error.
    _ = std::io::stdout().write_all(shown.as_bytes());
    Ok(ExitCode::from(code))
}

fn outcome(facts: &Facts, findings: &[Finding]) -> (&'static str, u8) {
    if has_mistakes(findings) {
        ("FAIL", FAULT)
    } else if facts.unseen.is_empty() {
        ("PASS", 0)
    } else {
        ("UNDECIDED", UNDECIDED)
    }
}

fn told(facts: &Facts, findings: &[Finding]) -> String {
    let what = match &facts.machine {
        Machine::Login => "This machine submits jobs, and is no node".to_owned(),
        Machine::Compute { node } => format!("This machine is node {node}"),
    };
    let cluster = facts.cluster.as_deref().map_or_else(String::new, |name| format!(" of cluster {name}"));
    let release = facts.slurm.release.map_or_else(String::new, |release| format!(", Slurm {release}"));
    let mut all = format!("{what}{cluster}{release}.\n\n");
    all.push_str(&text(findings));
    for words in &facts.unseen {
        // Writing to a String can't fail.
        _ = writeln!(all, "not seen: {words}");
    }
    let mistakes = findings.iter().filter(|one| one.level == Level::Mistake).count();
    match (mistakes, facts.unseen.len()) {
        (0, 0) => {
            let page = page(facts);
            let width = page.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
            for (name, line) in page {
                _ = writeln!(all, "  {name:<width$}  {line}");
            }
            all.push_str("\nAll is well.\n");
        }
        (0, unseen) => {
            _ = writeln!(all, "\nNo mistake was found, and {unseen} things could not be looked at.")
        }
        (1, _) => all.push_str("One mistake is to be mended.\n"),
        (count, _) => _ = writeln!(all, "{count} mistakes are to be mended."),
    }
    all.lines().map(|line| printable(line) + "\n").collect()
}
