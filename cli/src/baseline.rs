//! `aimaster baseline`: limits from a site's own reports, and limits held against physics. What makes a limit is
//! [`diag::baseline_learn`]'s, what makes it none [`diag::baseline_lint`]'s.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use cluster::report_file::REPORT_FILE;
use diag::baseline::Baselines;
use diag::baseline_learn::{Learned, learn};
use diag::facts::Engine;
use diag::report::{Report, printable};
use prolog::assignment;

use crate::{config, files};

/// Exit code of limits that are none.
const FAULT: u8 = 1;

/// Most reports that are read: a year of some hundred jobs a day.
const MOST_REPORTS: usize = 50_000;

/// Deepest folder below the one that is named: cluster, job, check.
const MOST_DEPTH: usize = 4;

/// Learns or looks.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Makes a baseline file from the reports of jobs that passed.
    ///
    /// A limit is 90 % of the median of what was measured, or further away where the numbers scatter more. At least 10
    /// jobs on 3 nodes are needed, of one engine and one GPU model. Limits that nothing was learned for are taken from the
    /// baselines that hold now. What was not learned is said, with the reason.
    Learn(LearnArguments),
    /// Says which limits of baseline files no part can reach, or any part can. Exit code 1 if there are such.
    Lint {
        /// A baseline file, or a folder of them.
        path: PathBuf,
        /// What is found in each file, as JSON.
        #[arg(long)]
        json: bool,
    },
}

/// From which reports, and where to.
#[derive(clap::Args)]
pub struct LearnArguments {
    /// Reports (report.json), or folders with reports somewhere below them, such as the policy's paths.report_dir.
    #[arg(required = true)]
    reports: Vec<PathBuf>,
    /// The file to write; it must not be there yet [default: standard output].
    #[arg(long)]
    out: Option<PathBuf>,
    /// Only jobs on this GPU model, such as "H100 80GB".
    #[arg(long)]
    gpu: Option<String>,
}

/// Does it.
///
/// # Errors
/// Files can't be read or written, or nothing can be learned.
pub fn run(command: &Command, policy: &Path) -> Result<ExitCode> {
    match command {
        Command::Learn(arguments) => learn_from(arguments, policy),
        Command::Lint { path, json } => lint(path, *json),
    }
}

fn learn_from(arguments: &LearnArguments, policy: &Path) -> Result<ExitCode> {
    let policy = config::read(policy)?;
    let reports = reports(&arguments.reports)?;
    let now = |engine| {
        let policy = diag::policy::Policy { engine, ..policy.clone() };
        assignment::baselines(&policy)
    };
    // Both, since the reports say which it is.
    let (cuda, host) = (now(Engine::Cuda)?, now(Engine::Host)?);
    let kept = |engine: Engine, gpu: Option<&str>| match engine {
        Engine::Host => host.first().cloned(),
        Engine::Cuda => Baselines::for_gpu(&cuda, gpu.unwrap_or_default()).cloned(),
    };
    let learned = learn(&reports, arguments.gpu.as_deref(), kept)?;
    for line in &learned.left_out {
        eprintln!("aimaster: not learned: {}", printable(line));
    }
    let text = text(&learned)?;
    match &arguments.out {
        None => _ = std::io::stdout().write_all(text.as_bytes()),
        Some(path) => {
            let file = std::fs::OpenOptions::new().write(true).create_new(true).open(path);
            let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
            written.with_context(|| format!("can't write {}", path.display()))?;
            eprintln!(
                "aimaster: {} limits learned, {} kept: {}; to use it, put it into paths.baseline_dir on all nodes",
                learned.limits,
                learned.baselines.limits.len() - learned.limits,
                path.display()
            );
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn text(learned: &Learned) -> Result<String> {
    let name = learned.baselines.name();
    Ok(format!(
        "# Limits for {name}. Those whose source begins with \"learned\" are from this site's own reports (aimaster baseline \
         learn);\n# the others held before.\n{}",
        learned.baselines.to_toml()?
    ))
}

/// All reports that were named. One that was named itself must be a report; others below a folder are passed over where they
/// can't be read.
fn reports(paths: &[PathBuf]) -> Result<Vec<Report>> {
    let mut found = Vec::new();
    for path in paths {
        if !path.is_dir() {
            found.push(report(path)?);
            continue;
        }
        let mut files = Vec::new();
        search(path, MOST_DEPTH, &mut files)?;
        if files.is_empty() {
            bail!("no {REPORT_FILE} below {}", path.display());
        }
        for file in files {
            match report(&file) {
                Ok(report) => found.push(report),
                Err(error) => eprintln!("aimaster: passed over: {}", printable(&format!("{error:#}"))),
            }
        }
    }
    Ok(found)
}

fn report(path: &Path) -> Result<Report> {
    let text = files::text(path, files::MOST_REPORT_BYTES)
        .with_context(|| format!("can't read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is no report", path.display()))
}

fn search(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) -> Result<()> {
    for name in files::names(folder)? {
        let path = folder.join(&name);
        let Ok(about) = path.symlink_metadata() else { continue };
        if about.is_dir() && depth > 0 {
            search(&path, depth - 1, found)?;
        } else if about.is_file() && name == REPORT_FILE {
            found.push(path);
        }
        if found.len() > MOST_REPORTS {
            bail!("more than {MOST_REPORTS} reports: name fewer, such as those of the last months");
        }
    }
    Ok(())
}

fn lint(path: &Path, json: bool) -> Result<ExitCode> {
    let files = if path.is_dir() { config::baseline_files(path)? } else { vec![path.to_owned()] };
    if files.is_empty() {
        bail!("no baseline file (*.toml) in {}", path.display());
    }
    let mut code = ExitCode::SUCCESS;
    let mut shown = String::new();
    let mut told = BTreeMap::new();
    for file in files {
        let found = config::lint(&file)?;
        if found.iter().any(|one| one.is_error) {
            code = ExitCode::from(FAULT);
        }
        if json {
            told.insert(file, found);
            continue;
        }
        if found.is_empty() {
            shown.push_str(&format!("{}: fine\n", file.display()));
        }
        for one in found {
            let word = if one.is_error { "error" } else { "note" };
            shown.push_str(&printable(&format!("{}: {word}: {}", file.display(), one.words)));
            shown.push('\n');
        }
    }
    if json {
        shown = serde_json::to_string_pretty(&told)? + "\n";
    }
    _ = std::io::stdout().write_all(shown.as_bytes());
    Ok(code)
}

#[cfg(test)]
mod tests;
