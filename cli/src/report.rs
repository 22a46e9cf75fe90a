//! `aimaster report JOBID`: what was found before and during a job, as text, JSON or a page.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use diag::page::Page;
use diag::plain::is_plain;
use diag::report::{Report, printable};
use diag::runtime_report::{RuntimeReport, joint_outcome};
use diag::times::Times;
use diag::verdict::Outcome;
use serde::Serialize;

use crate::colour::{Colour, Tone};
use crate::files::{self, Found};
use crate::{config, follow, html};

/// Which report, and how.
#[derive(clap::Args)]
pub struct Arguments {
    /// The job's id.
    pub job_id: u32,
    /// Which of the job's checks: 1 for its first start, 2 after its first restart; the last one by default.
    #[arg(long)]
    pub check: Option<u32>,
    /// The cluster, where several keep their reports in one place.
    #[arg(long)]
    pub cluster: Option<String>,
    /// The report as JSON; what the runtime check found stands under `runtime`, one entry a node.
    #[arg(long)]
    pub json: bool,
    /// The report as a page for a browser: one file that needs nothing else, with pictures.
    #[arg(long, conflicts_with_all = ["json", "follow"])]
    pub html: bool,
    /// Where the seconds of the checks went: each beside what the same work takes at the peak of the chip or its links.
    #[arg(long, conflicts_with_all = ["json", "html", "follow"])]
    pub times: bool,
    /// Where the page goes, in place of standard output.
    #[arg(long, value_name = "FILE", requires = "html")]
    pub output: Option<PathBuf>,
    /// On the job's first node, as root: shows what the runtime check finds while the job runs, then the report.
    #[arg(long, conflicts_with_all = ["json", "check"])]
    pub follow: bool,
    /// Folder of reports, in place of the policy's.
    #[arg(long)]
    pub report_dir: Option<PathBuf>,
}

impl Arguments {
    /// The last report of a job, where the policy says.
    #[must_use]
    pub fn of(job_id: u32, cluster: Option<String>) -> Self {
        Self {
            job_id,
            check: None,
            cluster,
            json: false,
            html: false,
            times: false,
            output: None,
            follow: false,
            report_dir: None,
        }
    }
}

/// Shows it. The exit code is the outcome: 0 pass, 1 fault, 3 undecided, error or skipped.
///
/// # Errors
/// If there is no such report or it can't be read.
pub fn show(arguments: &Arguments, policy: &Path) -> Result<ExitCode> {
    let policy = config::read(policy)?;
    let folder = arguments.report_dir.clone().unwrap_or_else(|| policy.paths.report_dir.clone());
    if arguments.follow {
        return follow::follow(arguments, &policy, &folder);
    }
    last(&folder, arguments)
}

/// The report as it is now.
///
/// # Errors
/// As [`show`].
pub fn last(folder: &Path, arguments: &Arguments) -> Result<ExitCode> {
    let found = files::read(&files::find(folder, arguments)?)?;
    for trouble in &found.troubles {
        eprintln!("aimaster: {}", printable(trouble));
    }
    if arguments.html {
        put(&html(&found)?, arguments.output.as_deref())?;
        return Ok(ExitCode::from(code(&found)));
    }
    if arguments.times {
        let (report, _) = found.report.as_ref().context("this job had no checks before its start")?;
        _ = std::io::stdout().write_all(Times::of(report).text().as_bytes());
        return Ok(ExitCode::from(code(&found)));
    }
    let shown = if arguments.json { escaped(&json(&found)?) } else { coloured(&text(&found)) };
    // A reader that went away, such as `head`, is no error.
    _ = std::io::stdout().write_all(shown.as_bytes());
    Ok(ExitCode::from(code(&found)))
}

/// What was found as a page.
fn html(found: &Found) -> Result<String> {
    let page = Page::new(found.report.as_ref().map(|(report, _)| report), &found.runtime);
    html::render(&page.context("there is nothing to show")?)
}

/// Into a file, or to standard output.
fn put(page: &str, output: Option<&Path>) -> Result<()> {
    match output {
        // As closed as the report itself: whom it is sent to is for the caller to say.
        Some(file) => std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o640)
            .open(file)
            .and_then(|mut to| to.write_all(page.as_bytes()))
            .with_context(|| format!("can't write {}", file.display())),
        None => {
            // A reader that went away is no error.
            _ = std::io::stdout().write_all(page.as_bytes());
            Ok(())
        }
    }
}

/// The outcome of each line in its colour, for a terminal.
#[must_use]
pub fn coloured(text: &str) -> String {
    let words = [
        ("PASS", Tone::Good),
        ("FAIL", Tone::Bad),
        ("ERROR", Tone::Notice),
        ("SUSPECT", Tone::Notice),
        ("ENVIRONMENT", Tone::Notice),
    ];
    Colour::of_stdout().lines(text, &words)
}

fn text(found: &Found) -> String {
    let mut text = match (&found.report, found.runtime.first()) {
        (Some((report, _)), _) => report.text(),
        (None, Some(first)) => format!(
            "job {} on {} (check {}): no checks before its start\n",
            first.job_id,
            printable(&first.cluster),
            first.check_number
        ),
        (None, None) => String::new(),
    };
    text.extend(found.runtime.iter().map(RuntimeReport::text));
    text
}

/// The report with what the agents said.
#[derive(Serialize)]
struct Whole<'a> {
    #[serde(flatten)]
    report: &'a Report,
    runtime: &'a [RuntimeReport],
}

/// The same where nothing was checked before the start.
#[derive(Serialize)]
struct RuntimeOnly<'a> {
    schema: u32,
    job_id: u32,
    cluster: &'a str,
    check_number: u32,
    runtime: &'a [RuntimeReport],
}

fn json(found: &Found) -> Result<String> {
    let runtime = &found.runtime;
    let mut text = match (&found.report, runtime.first()) {
        (Some((_, text)), None) => return Ok(text.clone()),
        (Some((report, _)), Some(_)) => serde_json::to_string_pretty(&Whole { report, runtime })?,
        (None, Some(first)) => serde_json::to_string_pretty(&RuntimeOnly {
            schema: first.schema,
            job_id: first.job_id,
            cluster: &first.cluster,
            check_number: first.check_number,
            runtime,
        })?,
        (None, None) => String::new(),
    };
    text.push('\n');
    Ok(text)
}

/// The same JSON, with what a terminal would act on written in JSON's own way. A report of a user's may hold anything that
/// JSON allows in a text.
fn escaped(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if is_plain(c) || matches!(c, '\n' | '\r' | '\t') {
            out.push(c);
        } else {
            // Outside of texts JSON has no other such characters.
            let mut units = [0; 2];
            out.extend(c.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")));
        }
    }
    out
}

/// The exit code of an outcome.
#[must_use]
pub fn code_of(outcome: Outcome) -> u8 {
    match outcome {
        Outcome::Pass => 0,
        Outcome::Fail => 1,
        Outcome::Skip | Outcome::Error | Outcome::Suspect | Outcome::Environment => 3,
    }
}

/// A fault is one wherever it shows; what the runtime check could not see does not undo what passed before the start.
fn code(found: &Found) -> u8 {
    let before = found.report.as_ref().map(|(report, _)| report.outcome);
    let during = joint_outcome(&found.runtime).filter(|one| before.is_none() || *one != Outcome::Skip);
    let codes: Vec<u8> = before.into_iter().chain(during).map(code_of).collect();
    if codes.contains(&1) { 1 } else { codes.into_iter().max().unwrap_or(3) }
}

#[cfg(test)]
mod tests;
