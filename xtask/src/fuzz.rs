//! `cargo xtask fuzz`: builds the programs that libFuzzer drives, by the toolchain of the project, and runs each for some
//! minutes. What they try is in `fuzz/targets`; docs/fuzzing.md says what each covers.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::stage::run;

/// What `cargo fuzz` builds with, as far as the stable compiler knows it. Its address sanitizer is left out: what is tried
/// holds no unsafe code.
const RUSTFLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
                         -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
                         -Cllvm-args=-sanitizer-coverage-trace-compares -Cllvm-args=-simplifycfg-branch-fold-threshold=0 \
                         -Ccodegen-units=1";

/// An input that takes so long is a finding, in seconds; by the clock on the wall, and the machine may be busy.
const TIMEOUT_S: u32 = 25;

/// An input that takes so long is tried again when its target is done, in seconds: a finding if it is no quicker then.
const SLOW_S: u32 = 10;

/// Memory at which an input is a finding, in MiB.
const RSS_MIB: u32 = 2048;

/// Longest input, in bytes: the largest file of the corpora.
const MOST_BYTES: u32 = 16 << 10;

/// What a target came to.
struct Outcome {
    name: String,
    executions: Option<u64>,
    corpus: usize,
    findings: Vec<PathBuf>,
}

/// Runs these targets, or all, so many at once.
///
/// # Errors
/// If they can't be built, one can't be run, or something was found.
pub fn fuzz(minutes: u32, jobs: usize, wanted: &[String]) -> Result<()> {
    let root =
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("a folder above this one")?.join("fuzz");
    let all = targets(&root)?;
    if let Some(odd) = wanted.iter().find(|name| !all.contains(name)) {
        bail!("there is no target {odd}; known: {}", all.join(", "));
    }
    let names = if wanted.is_empty() { all } else { wanted.to_vec() };
    let programs = build(&root)?;
    let (queue, outcomes) = (Mutex::new(names.into_iter().rev().collect::<Vec<_>>()), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().ok().and_then(|mut queue| queue.pop());
                    let Some(name) = next else { break };
                    eprintln!("== {name}, {minutes} min");
                    let outcome = one(&root, &programs, &name, minutes);
                    if let Ok(mut outcomes) = outcomes.lock() {
                        outcomes.push(outcome.with_context(|| name));
                    }
                }
            });
        }
    });
    let outcomes: Result<Vec<Outcome>> = outcomes.into_inner().unwrap_or_default().into_iter().collect();
    show(outcomes?)
}

/// By their programs.
fn targets(root: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(root.join("fuzz_targets")).context("fuzz/fuzz_targets")?;
    let mut names: Vec<String> = entries
        .filter_map(|entry| Some(entry.ok()?.file_name().to_str()?.strip_suffix(".rs")?.to_owned()))
        .collect();
    names.sort();
    Ok(names)
}

/// The folder of the built programs.
fn build(root: &Path) -> Result<PathBuf> {
    let compiler = Command::new("c++").arg("--version").stdout(Stdio::null()).status();
    if !compiler.is_ok_and(|status| status.success()) {
        bail!("there is no c++, which libFuzzer is built with: install g++");
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // Named outright, so that the flags are not those of build scripts and macros too.
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    run(Command::new(cargo)
        .args(["build", "--release", "--locked", "--bins", "--target", &triple])
        .current_dir(root)
        .env("RUSTFLAGS", RUSTFLAGS))?;
    Ok(root.join("target").join(triple).join("release"))
}

fn one(root: &Path, programs: &Path, name: &str, minutes: u32) -> Result<Outcome> {
    let folder = |kind: &str| -> Result<PathBuf> {
        let folder = root.join("target/runs").join(name).join(kind);
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        Ok(folder)
    };
    let (corpus, findings) = (folder("corpus")?, folder("findings")?);
    let known = files(&findings)?;
    let log_path = root.join("target/runs").join(name).join("log");
    let log = File::create(&log_path).context("its log")?;
    // What is new goes into the first folder; the committed files are only read.
    let status = Command::new("nice")
        .args(["-n", "19"])
        .arg(programs.join(name))
        .arg(format!("-max_total_time={}", u64::from(minutes) * 60))
        .arg(format!("-timeout={TIMEOUT_S}"))
        .arg(format!("-report_slow_units={SLOW_S}"))
        .arg(format!("-rss_limit_mb={RSS_MIB}"))
        .arg(format!("-max_len={MOST_BYTES}"))
        .arg(format!("-dict={}", root.join("dictionaries").join(format!("{name}.dict")).display()))
        .arg(format!("-artifact_prefix={}/", findings.display()))
        .arg("-print_final_stats=1")
        .arg(&corpus)
        .arg(root.join("corpus").join(name))
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .status()?;
    let said = String::from_utf8_lossy(&fs::read(&log_path)?).into_owned();
    let executions = said
        .lines()
        .find_map(|line| line.strip_prefix("stat::number_of_executed_units:")?.trim().parse().ok());
    let mut findings: Vec<PathBuf> =
        files(&findings)?.into_iter().filter(|path| !known.contains(path)).collect();
    for path in std::mem::take(&mut findings) {
        if was_slow(&path) && is_quick(&programs.join(name), &path)? {
            fs::remove_file(&path).with_context(|| path.display().to_string())?;
        } else {
            findings.push(path);
        }
    }
    if !status.success() && findings.is_empty() {
        bail!("it ended with {status}: {}", log_path.display());
    }
    Ok(Outcome { name: name.to_owned(), executions, corpus: files(&corpus)?.len(), findings })
}

/// Whether all that was found of this input is how long it took.
fn was_slow(path: &Path) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("slow-unit-"))
}

/// Whether an input that was slow beside everything else that the machine does is quick by itself.
fn is_quick(program: &Path, input: &Path) -> Result<bool> {
    let begun = Instant::now();
    let output = Command::new(program).arg(input).stdin(Stdio::null()).output()?;
    Ok(output.status.success() && begun.elapsed() < Duration::from_secs(SLOW_S.into()))
}

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    Ok(entries.filter_map(|entry| Some(entry.ok()?.path())).collect())
}

fn show(mut outcomes: Vec<Outcome>) -> Result<()> {
    outcomes.sort_by(|one, other| one.name.cmp(&other.name));
    println!("\ntarget          executions   corpus  findings");
    for Outcome { name, executions, corpus, findings } in &outcomes {
        let executions = executions.map_or_else(|| "?".to_owned(), |count| count.to_string());
        println!("{name:<14} {executions:>11} {corpus:>8} {:>9}", findings.len());
    }
    let findings: Vec<String> =
        outcomes.iter().flat_map(|one| &one.findings).map(|path| path.display().to_string()).collect();
    if !findings.is_empty() {
        bail!("found:\n{}", findings.join("\n"));
    }
    Ok(())
}
