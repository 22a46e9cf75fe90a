//! The pages of `docs/` that say what `aimaster` says: those that are made from it, and the commands that they show, run with
//! what they print. Links, and commands that need Slurm, are held by the program `docs` of the crate `aimaster-tests`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test may stop at the first surprise"
)]

mod commands;
mod limits;
mod policy;
mod runbook;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// A file or folder by its path from the root of the sources.
fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// What `aimaster explain` says of something, by the policy that holds where there is none.
fn explained(asked: &str) -> Value {
    let policy = tempfile::NamedTempFile::new().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_aimaster"));
    command.arg("--policy").arg(policy.path()).args(["explain", "--json", asked]);
    let output = command.output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "aimaster explain {asked:?}: {words}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The texts of a list.
fn texts(value: &Value) -> Vec<&str> {
    value.as_array().unwrap().iter().map(|one| one.as_str().unwrap()).collect()
}

/// A page that has drifted is rewritten, and the test fails once, so that the change is seen and committed.
fn hold(page: &str, wanted: &str) {
    let path = root(page);
    if std::fs::read_to_string(&path).unwrap_or_default() != wanted {
        std::fs::write(&path, wanted).unwrap();
        panic!("{page} had drifted from the code; it is rewritten now: look at it and commit it");
    }
}
