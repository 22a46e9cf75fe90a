//! `aimaster history`: what a node remembers of its own results, as a table or JSON. It runs on the node, as root, since
//! nobody else may read it.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use diag::baseline::median;
use diag::history::{Entry, Key, decline};
use diag::report::printable;
use diag::wording;
use prolog::history::store;
use serde::Serialize;

use crate::{config, files};

/// How long a job's prolog that uses the file is waited for.
const WAIT: Duration = Duration::from_secs(5);

/// Whose history, and how.
#[derive(clap::Args)]
pub struct Arguments {
    /// Folder of the node's state, such as /var/lib/aimaster/n1 [default: the only one below the policy's
    /// paths.state_dir].
    folder: Option<PathBuf>,
    /// All entries, as JSON.
    #[arg(long)]
    json: bool,
}

/// One series, as JSON.
#[derive(Serialize)]
struct Series<'a> {
    #[serde(flatten)]
    key: &'a Key,
    entries: &'a [Entry],
}

/// Shows it.
///
/// # Errors
/// There is no history, it is not known which one is meant, or it can't be read.
pub fn show(arguments: &Arguments, policy: &Path) -> Result<ExitCode> {
    let folder = match &arguments.folder {
        // The way to it is looked at, so it must be known.
        Some(folder) => {
            std::path::absolute(folder).with_context(|| format!("can't find {}", folder.display()))?
        }
        None => only(&config::read(policy)?.paths.state_dir)?,
    };
    let kept = store::read(&folder, WAIT)?;
    if kept.is_empty() {
        bail!("{} remembers nothing: no check has measured anything on this node yet", folder.display());
    }
    let all: Vec<Series<'_>> = kept.iter().map(|(key, entries)| Series { key, entries }).collect();
    let text = if arguments.json { serde_json::to_string_pretty(&all)? + "\n" } else { table(&all) };
    // A reader that went away, such as `head`, is no error.
    _ = std::io::stdout().write_all(text.as_bytes());
    Ok(ExitCode::SUCCESS)
}

/// The folder of the only node that has its state here.
fn only(state_dir: &Path) -> Result<PathBuf> {
    let with_history = |name: &String| state_dir.join(name).join(store::FILE).exists();
    let names = files::names(state_dir)
        .context("is this a node on which checks ran, and are you root? A login node has no history")?;
    let names: Vec<String> = names.into_iter().filter(with_history).collect();
    match names.as_slice() {
        [one] => Ok(store::folder(state_dir, one)),
        [] => bail!("no node has a history below {} that this user can see", state_dir.display()),
        several => bail!(
            "several nodes have their history in {}: name one of {}",
            state_dir.display(),
            several.join(", ")
        ),
    }
}

fn table(all: &[Series<'_>]) -> String {
    let header =
        ["part", "check", "how", "jobs", "median", "last", "since", "last job", ""].map(str::to_owned);
    let rows: Vec<[String; 9]> = std::iter::once(header).chain(all.iter().filter_map(row)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            // Writing to a String can't fail.
            _ = write!(line, "{cell:<width$}  ", width = width(column));
        }
        _ = writeln!(text, "{}", printable(line.trim_end()));
    }
    text
}

fn row(series: &Series<'_>) -> Option<[String; 9]> {
    let Series { key, entries } = series;
    let (last, before) = entries.split_last()?;
    let values: Vec<f64> = entries.iter().map(|one| one.value).collect();
    let like = key.like;
    let company = match like.alone {
        Some(true) => ", alone",
        Some(false) => ", beside other jobs",
        None => "",
    };
    let nodes = if like.nodes > 1 { format!(", to {} nodes", like.nodes) } else { String::new() };
    let nvls = if like.nvls { ", NVLS" } else { "" };
    let found = decline(key.metric, before, last);
    let found = found.map_or_else(String::new, |found| {
        let words = if found.changed.is_empty() { "declining since" } else { "changed since" };
        format!("{words} {}", found.since.strftime("%Y-%m-%d"))
    });
    let day = |entry: &Entry| entry.at.strftime("%Y-%m-%d").to_string();
    Some([
        key.part.clone(),
        format!("{}{}", key.check, wording::which(key.metric, key.bytes)),
        format!("{} {}{company}{nodes}{nvls}", key.engine, like.ranks),
        entries.len().to_string(),
        wording::quantity(key.metric, median(&values)?),
        wording::quantity(key.metric, last.value),
        entries.first().map(day)?,
        format!("{} on {}", last.job_id, day(last)),
        found,
    ])
}

#[cfg(test)]
mod tests;
