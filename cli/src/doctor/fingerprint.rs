//! What must be the same on all machines of a cluster, in a form that one machine can hold against another's.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result};
use diag::doctor::facts::{Facts, Machine};
use diag::doctor::{Finding, Level};
use serde::{Deserialize, Serialize};

use crate::{config, files};

/// Largest file that is hashed: the plugin has some MB.
const MOST_BYTES: u64 = 256 << 20;

/// Longest output of another machine.
const MOST_TEXT_BYTES: u64 = 1 << 20;

/// How many digits of a hash are shown: enough to tell two files apart.
const DIGITS: usize = 16;

/// Name and value of what must be the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// Whose it is.
    machine: String,
    /// Values by name.
    items: BTreeMap<String, String>,
}

/// The part of another machine's output that is read.
#[derive(Deserialize)]
struct Told {
    fingerprint: Fingerprint,
}

impl Fingerprint {
    /// This machine's.
    pub fn of(facts: &Facts) -> Self {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
        let machine = match &facts.machine {
            Machine::Compute { node } => node.clone(),
            Machine::Login => host,
        };
        let mut items = BTreeMap::from([("version".to_owned(), env!("CARGO_PKG_VERSION").to_owned())]);
        if let Some(release) = facts.slurm.release {
            items.insert("Slurm".into(), release.to_string());
        }
        let lines: Vec<&str> = facts.plugin.lines.iter().map(|line| line.text.trim()).collect();
        items.insert("line of plugstack.conf".into(), lines.join("; "));
        if let Some(file) = &facts.plugin.file {
            items.insert("plugin".into(), hash(std::slice::from_ref(&file.path)));
        }
        items.insert("policy".into(), hash(std::slice::from_ref(&facts.site.policy_file.path)));
        let baselines = config::baseline_files(&facts.site.policy.paths.baseline_dir).unwrap_or_default();
        items.insert("baselines".into(), hash(&baselines));
        Self { machine, items }
    }

    /// Another machine's, of what `aimaster doctor --json` printed there.
    ///
    /// # Errors
    /// It can't be read, or is something else.
    pub fn read(path: &Path) -> Result<Self> {
        let text =
            files::text(path, MOST_TEXT_BYTES).with_context(|| format!("can't read {}", path.display()))?;
        let told: Told = serde_json::from_str(&text)
            .with_context(|| format!("{} is not what `aimaster doctor --json` prints", path.display()))?;
        Ok(told.fingerprint)
    }

    /// What differs.
    pub fn differences(&self, other: &Self) -> Vec<Finding> {
        let names: BTreeSet<&String> = self.items.keys().chain(other.items.keys()).collect();
        let value = |of: &Self, name: &str| of.items.get(name).map_or("(nothing)", String::as_str).to_owned();
        let differ = names.into_iter().filter(|name| self.items.get(*name) != other.items.get(*name));
        differ
            .map(|name| Finding {
                rule: "machines_differ",
                level: Level::Mistake,
                found: format!(
                    "{name}: {} on {}, {} on {}",
                    value(self, name),
                    self.machine,
                    value(other, name),
                    other.machine
                ),
                change: "install the same on both".into(),
                why: "nodes that differ plan and judge differently, so that a job's nodes refuse each other"
                    .into(),
            })
            .collect()
    }
}

/// A hash of the files' contents; words where one can't be read.
fn hash(paths: &[std::path::PathBuf]) -> String {
    let mut hasher = blake3::Hasher::new();
    for path in paths {
        let bytes = std::fs::File::open(path).and_then(|file| {
            let mut bytes = Vec::new();
            std::io::Read::read_to_end(&mut std::io::Read::take(file, MOST_BYTES), &mut bytes).map(|_| bytes)
        });
        match bytes {
            Ok(bytes) => {
                hasher.update(path.file_name().unwrap_or_default().as_encoded_bytes());
                hasher.update(&bytes);
            }
            Err(error) => return error.to_string(),
        }
    }
    hasher.finalize().to_hex().chars().take(DIGITS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fingerprint(machine: &str, items: &[(&str, &str)]) -> Fingerprint {
        let items = items.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Fingerprint { machine: machine.into(), items }
    }

    #[test]
    fn what_differs_is_told_with_both_values() {
        let own = fingerprint("n1", &[("policy", "a"), ("plugin", "b")]);
        assert_eq!(own.differences(&own), []);
        let other = fingerprint("login", &[("policy", "c")]);
        let found: Vec<String> = own.differences(&other).into_iter().map(|one| one.found).collect();
        assert_eq!(found, ["plugin: b on n1, (nothing) on login", "policy: a on n1, c on login"]);
    }

    #[test]
    fn another_machines_output_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("login.json");
        let own = fingerprint("n1", &[("policy", "a")]);
        let told = serde_json::json!({ "schema": 1, "findings": [], "fingerprint": own });
        std::fs::write(&path, told.to_string()).unwrap();
        assert_eq!(Fingerprint::read(&path).unwrap(), own);
        std::fs::write(&path, "{}").unwrap();
        assert!(format!("{:#}", Fingerprint::read(&path).unwrap_err()).contains("doctor --json"));
    }

    #[test]
    fn a_hash_follows_the_content() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        assert!(hash(std::slice::from_ref(&path)).contains("No such file"));
        std::fs::write(&path, "1").unwrap();
        let first = hash(std::slice::from_ref(&path));
        std::fs::write(&path, "2").unwrap();
        assert!(first.len() == DIGITS && first != hash(&[path]));
    }
}
