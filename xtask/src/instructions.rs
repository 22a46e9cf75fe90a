//! Counts the instructions of the parts without IO under valgrind's callgrind and holds them against a committed table: a count
//! does not depend on how busy the machine is, a time would. The works are `cli/examples/pure`; what each may grow by is
//! [`MOST_GROWTH_PERCENT`].

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context, Result, bail};

use crate::install::{sources, target_dir};
use crate::packages;
use crate::stage::cargo;

/// Each work with the nodes of its job: `plan` and `verdict` are of the size that docs/speed.md names, the others of one that
/// leaves the whole below half a minute.
const WORKS: &[(&str, u32)] = &[
    ("policy", 1024),
    ("hostlist", 1024),
    ("plan", 256),
    ("verdict", 256),
    ("report_json", 64),
    ("report_html", 64),
    ("digests", 64),
    ("window", 64),
];

/// The table: the compiler in the first line, then a line a work.
const TABLE: &str = "cli/examples/pure/instructions.txt";

/// More than this fails; less by more than this asks for a table of today.
const MOST_GROWTH_PERCENT: u32 = 10;

/// Counts, and compares or, with `accept`, writes the table.
///
/// # Errors
/// A work grew, the table is of another compiler or lacks a work, or valgrind can't count.
pub fn instructions(accept: bool) -> Result<()> {
    packages::install_these(packages::VALGRIND)?;
    // With the features that the build of everything has, or there would be other code to count.
    cargo(&["build", "--quiet", "--workspace", "--example", "pure"])?;
    let program = target_dir()?.join("debug/examples/pure");
    let compiler = compiler()?;
    let counts = all(&program)?;
    let path = sources()?.join(TABLE);
    if accept {
        return fs::write(&path, table(&compiler, &counts)).with_context(|| path.display().to_string());
    }
    let known = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let said = compare(&known, &compiler, &counts);
    said.lines.iter().for_each(|line| println!("{line}"));
    if said.failed {
        bail!(
            "more instructions than {TABLE} has; if that is meant: `cargo xtask instructions --accept`, and say why in the commit"
        );
    }
    Ok(())
}

/// `rustc 1.95.0 (...)`: another compiler makes other instructions.
fn compiler() -> Result<String> {
    let output =
        Command::new("rustc").arg("--version").output().context("can't ask rustc for its version")?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// All of them, each in a process of its own, two at a time: what else runs changes no count.
fn all(program: &Path) -> Result<Vec<(&'static str, u64)>> {
    let mut counts = Vec::new();
    for pair in WORKS.chunks(2) {
        let counted: Vec<Result<u64>> = thread::scope(|scope| {
            let running = pair.iter().map(|(name, nodes)| scope.spawn(|| count(program, name, *nodes)));
            let running: Vec<_> = running.collect();
            running.into_iter().map(|one| one.join().unwrap_or_else(|_| bail!("a thread panicked"))).collect()
        });
        for ((name, _), count) in pair.iter().zip(counted) {
            counts.push((*name, count?));
        }
    }
    Ok(counts)
}

/// The instructions of one work, from its beginning to its end.
fn count(program: &Path, name: &str, nodes: u32) -> Result<u64> {
    let file = tempfile(name);
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--toggle-collect=pure::counted*"])
        .arg(format!("--callgrind-out-file={}", file.display()))
        .arg(program)
        .args(["count", name, &nodes.to_string()])
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .context("can't start valgrind")?;
    let written = fs::read_to_string(&file);
    let _ = fs::remove_file(&file);
    if !output.status.success() {
        bail!("{name}: {}{}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    let written = written.with_context(|| format!("valgrind wrote no {}", file.display()))?;
    let total = written.lines().find_map(|line| line.strip_prefix("totals: "));
    match total.and_then(|total| total.trim().parse().ok()) {
        Some(total) if total > 0 => Ok(total),
        _ => bail!(
            "{name}: callgrind counted nothing; is the function `counted` still in cli/examples/pure/main.rs?"
        ),
    }
}

fn tempfile(name: &str) -> std::path::PathBuf {
    std::env::temp_dir().join(format!("aimaster-callgrind-{name}-{}", std::process::id()))
}

fn table(compiler: &str, counts: &[(&str, u64)]) -> String {
    let mut text = format!("{compiler}\n");
    for (name, count) in counts {
        let _ = writeln!(text, "{name} {count}");
    }
    text
}

/// What came of it, a line a work.
struct Said {
    lines: Vec<String>,
    failed: bool,
}

fn compare(known: &str, compiler: &str, counts: &[(&str, u64)]) -> Said {
    let mut said = Said { lines: Vec::new(), failed: false };
    let mut lines = known.lines();
    let of = lines.next().unwrap_or_default();
    if of != compiler {
        said.failed = true;
        said.lines.push(format!("the table is of {of}, this is {compiler}: its counts say nothing here"));
        return said;
    }
    let before: Vec<(&str, u64)> = lines
        .filter_map(|line| line.split_once(' '))
        .filter_map(|(name, count)| Some((name, count.parse().ok()?)))
        .collect();
    for (name, now) in counts {
        let Some((_, then)) = before.iter().find(|(known, _)| known == name) else {
            said.failed = true;
            said.lines.push(format!("{name}: {now} instructions, and the table does not have it"));
            continue;
        };
        let percent = (*now as f64 / *then as f64 - 1.0) * 100.0;
        // Whole numbers, so that exactly the bound is not beyond it.
        let (scaled, of) = (u128::from(*now) * 100, u128::from(*then));
        let failed = scaled > of * u128::from(100 + MOST_GROWTH_PERCENT);
        said.failed |= failed;
        let word = if failed {
            format!("GREW by more than {MOST_GROWTH_PERCENT} %")
        } else if scaled < of * u128::from(100 - MOST_GROWTH_PERCENT) {
            "fewer: `cargo xtask instructions --accept` keeps it so".to_owned()
        } else {
            "ok".to_owned()
        };
        said.lines.push(format!("{name:<12} {now:>14} instructions, {percent:+.1} %: {word}"));
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "rustc 1\nplan 1000\nverdict 500\n";

    #[test]
    fn a_tenth_more_passes_and_anything_beyond_fails_by_name() {
        let said = compare(BEFORE, "rustc 1", &[("plan", 1100), ("verdict", 500)]);
        assert!(!said.failed, "{:?}", said.lines);
        let said = compare(BEFORE, "rustc 1", &[("plan", 1101), ("verdict", 500)]);
        assert!(said.failed && said.lines[0].starts_with("plan") && said.lines[0].contains("GREW"));
        assert!(said.lines[1].ends_with("ok"), "{:?}", said.lines);
    }

    #[test]
    fn fewer_pass_and_ask_for_a_new_table() {
        let said = compare(BEFORE, "rustc 1", &[("plan", 850), ("verdict", 460)]);
        assert!(!said.failed && said.lines[0].contains("--accept") && said.lines[1].ends_with("ok"));
    }

    #[test]
    fn a_table_of_another_compiler_or_without_a_work_does_not_pass() {
        assert!(compare(BEFORE, "rustc 2", &[("plan", 1000)]).failed);
        assert!(compare(BEFORE, "rustc 1", &[("page", 1)]).failed);
        let written = table("rustc 1", &[("plan", 1000)]);
        assert!(!compare(&written, "rustc 1", &[("plan", 1000)]).failed);
    }
}
