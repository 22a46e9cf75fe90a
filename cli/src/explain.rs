//! `aimaster explain`: what a word of this software means and what to do: a check, a whole reason of a drain, what the runtime
//! check found, an outcome, an action, an Xid, a key of the policy. The words themselves are where they were before: in the
//! registry of checks, the next steps of [`diag::next_step`], the table of Xids, and the documentation.

mod pages;
mod reason;
mod xid;

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};
use diag::check::{ALL, CheckName, Scope};
use diag::report::printable;
use diag::request::mistake::{nearest, quoted};
use serde::Serialize;

use crate::config;
use pages::Passage;

/// Pages on which a check's row repeats the registry.
const REPEATS: &str = "README.md";

/// Most places that are shown where nothing has exactly this name.
const MOST_MENTIONS: usize = 4;

/// Shortest text that is looked for inside other words.
const SHORTEST_MENTION: usize = 3;

/// Words of outcomes, actions and the runtime check that the documentation explains.
const WORDS: [&str; 20] = [
    "non_communication_hang",
    "communication_hang",
    "straggler",
    "communication_slow",
    "deadlock",
    "undecided",
    "paused",
    "hardware",
    "SUSPECT",
    "ERROR",
    "ENVIRONMENT",
    "retain",
    "drain",
    "fail",
    "requeue",
    "undrain",
    "--sanity-check",
    "--sanity-timeout",
    "--runtime-check",
    "--aimaster",
];

/// What.
#[derive(clap::Args)]
pub struct Arguments {
    /// A check (all_reduce_2), a drain's reason as `sinfo -R` shows it, a finding (straggler), an outcome (SUSPECT), an action
    /// (requeue), a number of the driver (Xid 79), a line of the kernel's log, or a key of the policy (time.join_s).
    #[arg(required = true, value_name = "CHECK|REASON|WORD")]
    words: Vec<String>,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

/// What is known of something.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct Explained {
    /// What it is, one line.
    title: String,
    /// What is known of this very one.
    says: Vec<String>,
    /// What the documentation says.
    passages: Vec<Passage>,
    /// What to do, the first first.
    next: Vec<String>,
}

/// Explains it.
///
/// # Errors
/// Nothing of that name is known: the error names what is near.
pub fn run(arguments: &Arguments, policy: &Path) -> Result<ExitCode> {
    let asked = arguments.words.join(" ");
    let policy = config::read(policy)?;
    let Some(found) = explain(asked.trim(), &policy.runtime.xid) else {
        bail!("{}", unknown(asked.trim()));
    };
    let shown = if arguments.json { serde_json::to_string_pretty(&found)? + "\n" } else { text(&found) };
    // A reader that went away, such as `head`, is no error.
    _ = std::io::stdout().write_all(shown.as_bytes());
    Ok(ExitCode::SUCCESS)
}

fn explain(asked: &str, table: &diag::xid::XidTable) -> Option<Explained> {
    if let Some(check) = CheckName::parse(asked) {
        return Some(of_check(check));
    }
    if let Some(found) = reason::explain(asked, table).or_else(|| xid::explain(asked, table)) {
        return Some(found);
    }
    let exact = pages::key(asked).into_iter().chain(pages::about(asked));
    let passages: Vec<Passage> = exact.collect();
    if !passages.is_empty() {
        return Some(Explained { title: asked.to_owned(), passages, ..Explained::default() });
    }
    // Outcomes are written in capitals, findings are not.
    let Some(other) = WORDS.iter().find(|word| word.eq_ignore_ascii_case(asked)) else {
        return if near(asked).is_none() { mentioned(asked) } else { None };
    };
    Some(Explained { title: (*other).to_owned(), passages: pages::about(other), ..Explained::default() })
        .filter(|found| !found.passages.is_empty())
        .or_else(|| mentioned(asked))
}

/// Places that have the words among others.
fn mentioned(asked: &str) -> Option<Explained> {
    if asked.len() < SHORTEST_MENTION {
        return None;
    }
    let mut passages = pages::mentions(asked);
    passages.truncate(MOST_MENTIONS);
    let title = format!("{asked}: no name of its own; what the documentation says with these words");
    (!passages.is_empty()).then(|| Explained { title, passages, ..Explained::default() })
}

fn of_check(check: CheckName) -> Explained {
    let spec = check.spec();
    let scope = match spec.scope {
        Scope::Node => "each node by itself",
        Scope::Pair => "pairs of nodes",
        Scope::All => "all nodes at once",
    };
    let engines: Vec<String> = spec.engines.iter().map(ToString::to_string).collect();
    Explained {
        title: format!("{check}: {}", spec.doc),
        says: vec![format!("phase {}, {scope}, engines {}", spec.phase, engines.join(" and "))],
        passages: pages::about(spec.text).into_iter().filter(|one| one.page != REPEATS).collect(),
        next: diag::next_step::steps(check).into_iter().map(str::to_owned).collect(),
    }
}

/// The known name that was most likely meant.
fn near(asked: &str) -> Option<String> {
    let keys = pages::keys();
    let known = ALL.iter().map(|spec| spec.text).chain(WORDS).chain(keys.iter().map(String::as_str));
    nearest(asked, known).map(str::to_owned)
}

fn unknown(asked: &str) -> String {
    let near = near(asked).map_or_else(String::new, |name| format!("did you mean {name}? "));
    let checks: Vec<&str> = ALL.iter().map(|spec| spec.text).collect();
    format!(
        "{} is not known; {near}known: the checks ({}), {}, Xid NUMBER, the keys of the policy (`aimaster config`), and any reason \
         that begins with \"aimaster: \"",
        quoted(asked),
        checks.join(", "),
        WORDS.join(", ")
    )
}

fn text(found: &Explained) -> String {
    let mut text = String::new();
    // Writing to a String can't fail.
    _ = writeln!(text, "{}", printable(&found.title));
    for line in &found.says {
        _ = writeln!(text, "  {}", printable(line));
    }
    for passage in &found.passages {
        let at = if passage.heading.is_empty() { String::new() } else { format!(", {}", passage.heading) };
        _ = writeln!(text, "\n{}{at}:", passage.page);
        for line in &passage.lines {
            _ = writeln!(text, "{}", format!("  {}", printable(line)).trim_end());
        }
    }
    if !found.next.is_empty() {
        _ = writeln!(text, "\nWhat to do:");
        for step in &found.next {
            _ = writeln!(text, "  - {}", printable(step));
        }
    }
    text
}

#[cfg(test)]
mod tests;
