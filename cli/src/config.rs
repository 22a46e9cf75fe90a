//! The site's policy and limits for a person: read, checked, shown.

use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use diag::baseline::Baselines;
use diag::baseline_lint;
use diag::policy::Policy;
use diag::report::printable;

use crate::files;

/// Reads the policy; the defaults where there is no file.
///
/// # Errors
/// If the file can't be read or has mistakes, all of which are shown.
pub fn read(path: &Path) -> Result<Policy> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error).with_context(|| format!("can't read {}", path.display())),
    };
    match Policy::parse(&text) {
        Ok(policy) => Ok(policy),
        Err(mistakes) => {
            let lines: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
            bail!("{} has mistakes:\n{}", path.display(), lines.join("\n"))
        }
    }
}

/// Shows the policy that holds.
///
/// # Errors
/// As [`read`]; and if a baseline file can't be read or has limits that are none, all of which are shown.
pub fn show(path: &Path) -> Result<ExitCode> {
    let policy = read(path)?;
    // A reader that went away, such as `head`, is no error.
    _ = std::io::stdout().write_all(policy.to_toml()?.as_bytes());
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

/// Something that is to be said of a baseline file.
#[derive(Debug, PartialEq, Eq)]
pub struct Found {
    /// Whether the file can't be used so.
    pub is_error: bool,
    /// What.
    pub words: String,
}

/// What is wrong with the baseline files of a folder, by file; nothing where there is no such folder.
fn baselines(folder: &Path) -> Result<Vec<Found>> {
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
mod tests {
    use super::*;

    #[test]
    fn the_limits_that_ship_are_fine_and_others_are_shown_by_file() {
        let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conf/baselines");
        assert_eq!(baselines(&ours).unwrap(), Vec::new());
        assert_eq!(baselines(Path::new("/nowhere")).unwrap(), Vec::new());
        let folder = tempfile::tempdir().unwrap();
        let limit = "[[limit]]\ncheck='gemm_flops'\nmetric='flops'\nvalue=6200.0\nsource='x'";
        let other = limit.replace("6200.0", "200.0");
        for (name, text) in [
            ("h200.toml", format!("engine='cuda'\ngpu='H200'\n{limit}")),
            ("l40s.toml", format!("engine='cuda'\ngpu='L40S'\n{other}")),
            ("other.toml", "engine=1".into()),
        ] {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        std::fs::write(folder.path().join("README"), "not a baseline").unwrap();
        let found = baselines(folder.path()).unwrap();
        let told: Vec<(bool, &str)> = found.iter().map(|one| (one.is_error, one.words.as_str())).collect();
        let [(true, physics), (false, unknown), (true, syntax)] = told[..] else { panic!("{found:?}") };
        assert!(physics.starts_with("h200.toml: gemm_flops 6200 TFLOP/s: no part can reach it"), "{found:?}");
        assert!(unknown.starts_with("l40s.toml: no peak rates of a L40S are known"), "{found:?}");
        assert!(syntax.starts_with("other.toml: baseline file: "), "{found:?}");
    }
}
