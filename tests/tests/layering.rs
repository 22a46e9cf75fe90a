//! The layering table of ARCHITECTURE.md: who may depend on whom, and where unsafe code may be.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Crate, and the crates of ours that it may use.
const MAY_USE: &[(&str, &[&str])] = &[
    ("diag", &[]),
    ("cluster", &["diag"]),
    ("kernels", &["diag"]),
    ("nccl-profiler", &[]),
    ("nccl-profiler-plugin", &["nccl-profiler"]),
    ("spank-plugin", &["diag"]),
    ("prolog", &["diag", "cluster", "kernels"]),
    ("epilog", &["diag", "cluster", "kernels", "nccl-profiler"]),
    ("cli", &["diag", "cluster", "kernels", "prolog", "epilog"]),
];

/// Crates that don't lie in a folder of their name: those that lie in another's.
const INSIDE: &[&str] = &["nccl-profiler-plugin"];

/// Crates of the project that stand outside the product.
const OUTSIDE: &[&str] = &["aimaster-tests", "xtask"];

/// Where unsafe code may be: folders, or a single file.
const UNSAFE: &[&str] = &["spank-plugin/", "kernels/", "nccl-profiler/", "cluster/src/munge.rs"];

/// The folders of the product's crates.
fn folders() -> impl Iterator<Item = &'static str> {
    MAY_USE.iter().map(|(name, _)| *name).filter(|name| !INSIDE.contains(name))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    packages
        .iter()
        .map(|package| {
            let used = package["dependencies"].as_array().unwrap();
            let used = used.iter().filter(|one| one["kind"].is_null() || one["kind"] == "build");
            (text(&package["name"]), used.map(|one| text(&one["name"])).collect())
        })
        .collect()
}

#[test]
fn crates_use_only_what_stands_below_them() {
    let dependencies = dependencies();
    let listed: BTreeSet<&str> =
        MAY_USE.iter().map(|(name, _)| *name).chain(OUTSIDE.iter().copied()).collect();
    let ours: BTreeSet<&str> = dependencies.keys().map(String::as_str).collect();
    assert_eq!(ours, listed, "every crate stands in the table");
    for (name, allowed) in MAY_USE {
        for used in dependencies[*name].iter().filter(|used| ours.contains(used.as_str())) {
            assert!(allowed.contains(&used.as_str()), "{name} may not use {used}");
        }
    }
}

#[test]
fn the_pure_crate_has_no_way_to_the_outside() {
    for file in rust_files(&root().join("diag/src")) {
        let text = std::fs::read_to_string(&file).unwrap();
        for forbidden in [
            "std::fs",
            "std::env",
            "std::process",
            "std::thread",
            "std::time",
            "std::net::Tcp",
            "Timestamp::now",
        ] {
            assert!(!text.contains(forbidden), "{} uses {forbidden}", file.display());
        }
    }
}

/// What of a file is the product, and not a test in it.
fn product_of(text: &str) -> &str {
    text.split("#[cfg(test)]").next().unwrap_or_default()
}

/// The product's sources, with their paths.
fn product_files() -> impl Iterator<Item = (PathBuf, String)> {
    folders().flat_map(|folder| rust_files(&root().join(folder).join("src"))).filter_map(|file| {
        let name = file.display().to_string();
        let text = std::fs::read_to_string(&file).unwrap();
        (!name.ends_with("tests.rs") && !name.contains("/tests/") && !name.contains("/testing"))
            .then(|| (file, product_of(&text).to_owned()))
    })
}

#[test]
fn nothing_is_run_by_a_shell_or_with_an_environment_that_came_along() {
    /// Where a program is started whose environment was emptied by who started this one.
    const EMPTIED_BEFORE: &[&str] = &["prolog/src/worker/launch.rs"];
    let (mut files, mut starts) = (0, 0);
    for (file, text) in product_files() {
        files += 1;
        for shell in ["\"sh\"", "\"bash\"", "/bin/sh", "/bin/bash", "system(", "popen("] {
            assert!(!text.contains(shell), "{}: {shell}", file.display());
        }
        let name = file.strip_prefix(root()).unwrap().to_str().unwrap();
        let begun = text.matches("Command::new(").count();
        starts += begun;
        if begun > 0 && !EMPTIED_BEFORE.contains(&name) {
            assert_eq!(text.matches(".env_clear()").count(), begun, "{name}");
        }
    }
    assert!(files > 150 && starts >= 7, "{files} files, {starts} starts: is the product where it was?");
}

// E05, E10, F01, F06, L06, L09, N05: their output is not read, nobody waits for them, their locks and handles are not ours.
#[test]
fn no_foreign_diagnosis_is_run_read_or_loaded() {
    /// Programs. In the middle of a text they are advice.
    const PROGRAMS: &[&str] = &[
        "nvidia-smi",
        "dcgmi",
        "nv-hostengine",
        "mpirun",
        "mpiexec",
        "ibstat",
        "lspci",
        "nvidia-bug-report.sh",
    ];
    /// Libraries, and the parts of NVML that lock a GPU's counters or make instances of it.
    const INTERFACES: &[&str] = &[
        "libdcgm",
        "libcupti",
        "libmpi",
        "nvmlGpm",
        "nvmlProfiler",
        "CreateGpuInstance",
        "CreateComputeInstance",
    ];
    // `diag` can run nothing, and tells people what they might.
    let acting = folders().filter(|name| *name != "diag");
    for file in acting.flat_map(|name| rust_files(&root().join(name).join("src"))) {
        let text = std::fs::read_to_string(&file).unwrap();
        for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
            for literal in line.split('"').skip(1).step_by(2) {
                let word = literal.split_whitespace().next().unwrap_or_default();
                let program = word.rsplit('/').next().unwrap_or_default();
                assert!(!PROGRAMS.contains(&program), "{} runs {program}: {line}", file.display());
            }
            let used = INTERFACES.iter().find(|one| line.contains(**one));
            assert!(used.is_none(), "{} uses {used:?}: {line}", file.display());
        }
    }
}

#[test]
fn unsafe_code_is_only_where_the_table_allows_it() {
    let root = root();
    for name in folders() {
        for file in rust_files(&root.join(name)) {
            let path = file.strip_prefix(&root).unwrap().to_string_lossy().into_owned();
            let text = std::fs::read_to_string(&file).unwrap();
            let allowed = UNSAFE.iter().any(|place| path.starts_with(place));
            let word = text.lines().map(|line| line.split("//").next().unwrap_or_default()).any(|line| {
                line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "unsafe")
            });
            assert!(allowed || !word, "{path} holds unsafe code");
            let is_root =
                path.ends_with("src/lib.rs") || path.ends_with("src/main.rs") || path.contains("/bin/");
            if is_root && !allowed {
                let promise =
                    if name == "cluster" { "#![deny(unsafe_code)]" } else { "#![forbid(unsafe_code)]" };
                assert!(text.contains(promise), "{path} does not say {promise}");
            }
        }
    }
}

#[test]
fn every_file_says_what_it_is_and_stays_small() {
    /// Lines that a reader takes in at a sitting.
    const MOST_LINES: usize = 500;
    let root = root();
    for name in folders().chain(["tests", "xtask"]) {
        for file in rust_files(&root.join(name)) {
            let text = std::fs::read_to_string(&file).unwrap();
            assert!(text.starts_with("//!"), "{} has no header", file.display());
            let lines = text.lines().count();
            assert!(lines <= MOST_LINES, "{} has {lines} lines", file.display());
        }
    }
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && path.file_name().is_none_or(|name| name != "target") {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") {
                files.push(path);
            }
        }
    }
    assert!(!files.is_empty(), "no Rust file in {}", folder.display());
    files
}
