//! The site's policy and limits for a person: read, checked, shown, each value with where it is from.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use diag::baseline::Baselines;
use diag::baseline_lint;
use diag::facts::Engine;
use diag::policy::{Policy, lines};
use diag::report::printable;
use diag::request::mistake::Mistake;
use serde::Serialize;
use serde_json::Value;

use crate::files;

/// How.
#[derive(Default, clap::Args)]
pub struct Arguments {
    /// Every value with its origin, as JSON.
    #[arg(long)]
    json: bool,
}

/// Reads the policy; the defaults where there is no file.
///
/// # Errors
/// If the file can't be read or has mistakes, all of which are shown.
pub fn read(path: &Path) -> Result<Policy> {
    match parse(path)? {
        Ok(policy) => Ok(policy),
        Err(mistakes) => {
            let lines: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
            bail!("{} has mistakes:\n{}", path.display(), lines.join("\n"))
        }
    }
}

/// The policy, or all its mistakes.
///
/// # Errors
/// The file can't be read.
pub fn parse(path: &Path) -> Result<Result<Policy, Vec<Mistake>>> {
    Ok(Policy::parse(&text(path)?.unwrap_or_default()))
}

/// The file's text; `None` where there is none.
fn text(path: &Path) -> Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("can't read {}", path.display())),
    }
}

/// Shows the policy that holds.
///
/// # Errors
/// As [`read`]; and if a baseline file can't be read or has limits that are none, all of which are shown.
pub fn show(arguments: &Arguments, path: &Path) -> Result<ExitCode> {
    let policy = read(path)?;
    let text = text(path)?;
    let lines = lines(text.as_deref().unwrap_or_default());
    let shown = if arguments.json {
        json(&policy, path, text.is_some(), &lines)?
    } else {
        annotated(&policy.to_toml()?, path, text.is_some(), &lines)
    };
    // A reader that went away, such as `head`, is no error.
    _ = std::io::stdout().write_all(shown.as_bytes());
    let (errors, notes): (Vec<Found>, _) =
        baselines(&policy.paths.baseline_dir)?.into_iter().partition(|one| one.is_error);
    for note in &notes {
        eprintln!("aimaster: {}", printable(&note.words));
    }
    if !errors.is_empty() {
        let lines: Vec<&str> = errors.iter().map(|one| one.words.as_str()).collect();
        bail!("limits in {}:\n{}", policy.paths.baseline_dir.display(), lines.join("\n"));
    }
    Ok(ExitCode::SUCCESS)
}

/// The policy as a file, in which the values of the site's own file say where they stand.
fn annotated(toml: &str, path: &Path, is_there: bool, lines: &BTreeMap<String, usize>) -> String {
    let file = path.display();
    let mut text = if is_there {
        format!(
            "# What holds. Values of {file} have its line behind them; all others are this software's defaults.\n"
        )
    } else {
        format!("# What holds: this software's defaults, since there is no {file}.\n")
    };
    let mut table = String::new();
    let mut told = String::new();
    for line in toml.lines() {
        text.push_str(line);
        let key = if let Some(name) = line.strip_prefix('[') {
            table = name.trim_matches(['[', ']']).replace(['"', '\''], "");
            table.clone()
        } else {
            match line.split_once(" = ") {
                Some((key, _)) if table.is_empty() => key.to_owned(),
                Some((key, _)) => format!("{table}.{}", key.trim_matches(['"', '\''])),
                None => String::new(),
            }
        };
        // Rows of a list are one value: of the first of them it is said.
        if let Some(number) = lines.get(&key).filter(|_| told != key) {
            text.push_str(&format!("  # {file}:{number}"));
            told = key;
        }
        text.push('\n');
    }
    text
}

/// A value and where it is from.
#[derive(Debug, Serialize, PartialEq)]
struct Held {
    value: Value,
    /// `file` or `default`.
    origin: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<usize>,
}

/// The whole policy.
#[derive(Serialize)]
struct Whole {
    schema: u32,
    file: PathBuf,
    /// Whether there is that file.
    is_there: bool,
    /// By the keys, joined by dots.
    values: BTreeMap<String, Held>,
}

fn json(policy: &Policy, path: &Path, is_there: bool, lines: &BTreeMap<String, usize>) -> Result<String> {
    let mut values = BTreeMap::new();
    leaves(serde_json::to_value(policy)?, "", &mut values);
    let held = values.into_iter().map(|(key, value)| {
        let line = lines.get(&key).copied();
        let origin = if line.is_some() { "file" } else { "default" };
        (key, Held { value, origin, line })
    });
    let whole = Whole { schema: 1, file: path.to_owned(), is_there, values: held.collect() };
    Ok(serde_json::to_string_pretty(&whole)? + "\n")
}

fn leaves(value: Value, path: &str, into: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(entries) => {
            for (key, value) in entries {
                leaves(value, &if path.is_empty() { key } else { format!("{path}.{key}") }, into);
            }
        }
        value => _ = into.insert(path.to_owned(), value),
    }
}

/// Something that is to be said of a baseline file.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Found {
    /// Whether the file can't be used so.
    pub is_error: bool,
    /// What.
    pub words: String,
}

/// What is wrong with the baseline files of a folder, by file; nothing where there is no such folder.
///
/// # Errors
/// The folder or a file can't be read.
pub fn baselines(folder: &Path) -> Result<Vec<Found>> {
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for file in baseline_files(folder)? {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let named = |one: Found| Found { words: format!("{name}: {}", one.words), ..one };
        found.extend(lint(&file)?.into_iter().map(named));
    }
    Ok(found)
}

/// Whether a file of the folder has limits for this engine.
#[must_use]
pub fn has_limits(folder: &Path, engine: Engine) -> bool {
    let files = baseline_files(folder).unwrap_or_default();
    let texts = files.iter().filter_map(|file| std::fs::read_to_string(file).ok());
    let mut parsed = texts.filter_map(|text| Baselines::parse(&text).ok());
    parsed.any(|baselines| baselines.engine == engine)
}

/// The baseline files of a folder.
///
/// # Errors
/// It can't be listed.
pub fn baseline_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let names = files::names(folder)?;
    let is_toml = |name: &&String| Path::new(name).extension().is_some_and(|end| end == "toml");
    Ok(names.iter().filter(is_toml).map(|name| folder.join(name)).collect())
}

/// What is to be said of a baseline file.
///
/// # Errors
/// It can't be read.
pub fn lint(file: &Path) -> Result<Vec<Found>> {
    let text = std::fs::read_to_string(file).with_context(|| format!("can't read {}", file.display()))?;
    Ok(match Baselines::parse(&text) {
        Ok(baselines) => {
            let found = baseline_lint::lint(&baselines);
            found.iter().map(|one| Found { is_error: one.is_error(), words: one.to_string() }).collect()
        }
        Err(error) => vec![Found { is_error: true, words: error.to_string() }],
    })
}

#[cfg(test)]
mod tests;
