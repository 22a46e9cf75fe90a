//! Every file of the corpora, among them whatever fuzzing ever found, goes through its target, without libFuzzer.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop at the first surprise")]

use std::collections::BTreeSet;
use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use fuzz_targets::{ALL, Target};

/// Most files of a target, and the most bytes of one: the corpora are read by people, and replayed at every change.
const MOST_FILES: usize = 80;
const MOST_BYTES: usize = 16 << 10;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join(name)
}

fn listed(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

/// What is wrong with a target's corpus.
fn replay(target: &Target) -> Vec<String> {
    let files = listed(&folder("corpus").join(target.name));
    let mut wrong = Vec::new();
    if files.is_empty() || files.len() > MOST_FILES {
        wrong.push(format!("{}: {} files", target.name, files.len()));
    }
    for file in files {
        let data = fs::read(&file).unwrap();
        if data.len() > MOST_BYTES {
            wrong.push(format!("{}: {} bytes", file.display(), data.len()));
        }
        if catch_unwind(|| (target.run)(&data)).is_err() {
            wrong.push(format!("{} is a finding", file.display()));
        }
        // Cut short, it is another one that must hold.
        if catch_unwind(|| (target.run)(&data[..data.len() / 2])).is_err() {
            wrong.push(format!("the first half of {} is a finding", file.display()));
        }
    }
    wrong
}

#[test]
fn every_file_of_the_corpora_holds() {
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let all: Vec<_> = ALL.iter().map(|target| scope.spawn(|| replay(target))).collect();
        all.into_iter().flat_map(|one| one.join().unwrap()).collect()
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn each_target_has_its_program_and_its_corpus() {
    let wanted: BTreeSet<&str> = ALL.iter().map(|target| target.name).collect();
    assert_eq!(wanted.len(), ALL.len());
    for (kind, end) in [("corpus", ""), ("fuzz_targets", ".rs")] {
        let paths = listed(&folder(kind));
        let names = paths.iter().filter_map(|path| path.file_name()?.to_str()?.strip_suffix(end));
        assert_eq!(names.collect::<BTreeSet<_>>(), wanted, "{kind}");
    }
    let manifest = fs::read_to_string(folder("Cargo.toml")).unwrap();
    for name in wanted {
        assert!(manifest.contains(&format!("name = \"{name}\"\n")), "{name} in fuzz/Cargo.toml");
    }
}
