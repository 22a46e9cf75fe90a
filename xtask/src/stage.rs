//! Stages of a task: each is named, timed and reported, and a failed one does not hide the next.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// How many tests run at once, for their programs: most of them wait for something, so more than there are cores; those that
/// measure the machine keep all others away.
pub const SIDE_BY_SIDE: &str = "--test-threads=6";

/// The stages that ran.
pub struct Stages {
    only: Option<String>,
    done: Vec<(&'static str, Duration, bool)>,
    skipped: Vec<(&'static str, &'static str)>,
}

impl Stages {
    /// No stage yet; `only` keeps those whose name contains it.
    pub fn new(only: Option<&str>) -> Self {
        Self { only: only.map(ToOwned::to_owned), done: Vec::new(), skipped: Vec::new() }
    }

    fn is_wanted(&self, name: &str) -> bool {
        self.only.as_deref().is_none_or(|only| name.contains(only))
    }

    /// Notes a stage that can't run here, and what to do for it.
    pub fn skip(&mut self, name: &'static str, why: &'static str) {
        if self.is_wanted(name) {
            self.skipped.push((name, why));
        }
    }

    /// Runs a stage and notes how it went.
    pub fn run(&mut self, name: &'static str, stage: impl FnOnce() -> Result<()>) {
        if !self.is_wanted(name) {
            return;
        }
        eprintln!("== {name}");
        let start = Instant::now();
        let result = stage();
        if let Err(error) = &result {
            eprintln!("{name}: {error:#}");
        }
        self.done.push((name, start.elapsed(), result.is_ok()));
    }

    /// Whether a stage failed.
    pub fn failed(&self) -> bool {
        self.done.iter().any(|(_, _, ok)| !ok)
    }

    /// Prints the table.
    ///
    /// # Errors
    /// If a stage failed, or none ran.
    pub fn finish(self) -> Result<()> {
        println!("\nstage        seconds  result");
        for (name, took, ok) in &self.done {
            println!("{name:<12} {:>7.1}  {}", took.as_secs_f64(), if *ok { "ok" } else { "FAILED" });
        }
        for (name, why) in &self.skipped {
            println!("{name:<12} {:>7}  skipped: {why}", "-");
        }
        let total: Duration = self.done.iter().map(|(_, took, _)| *took).sum();
        println!("{:<12} {:>7.1}", "total", total.as_secs_f64());
        if self.done.is_empty() && self.skipped.is_empty() {
            bail!("no stage has that name");
        }
        if self.failed() {
            bail!("at least one stage failed");
        }
        Ok(())
    }
}

/// Runs cargo, the same one that runs this.
///
/// # Errors
/// If it can't start or fails.
pub fn cargo(arguments: &[&str]) -> Result<()> {
    run(cargo_command().args(arguments))
}

/// cargo, the same one that runs this.
pub fn cargo_command() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Runs a command to its end.
///
/// # Errors
/// If it can't start or fails.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("can't start {command:?}"))?;
    if !status.success() {
        bail!("{command:?}: {status}");
    }
    Ok(())
}
