//! The site's policy and limits for a person: read, checked, shown.

use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use diag::baseline::Baselines;
use diag::baseline_lint::lint;
use diag::policy::Policy;

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
    let found = baselines(&policy.paths.baseline_dir)?;
    if !found.is_empty() {
        bail!("limits in {}:\n{}", policy.paths.baseline_dir.display(), found.join("\n"));
    }
    Ok(ExitCode::SUCCESS)
}

/// What is wrong with the baseline files of a folder, by file; nothing where there is no such folder.
fn baselines(folder: &Path) -> Result<Vec<String>> {
    let entries = match folder.read_dir() {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| format!("can't read {}", folder.display())),
    };
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|end| end == "toml"));
    files.sort();
    let mut found = Vec::new();
    for file in files {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let text =
            std::fs::read_to_string(&file).with_context(|| format!("can't read {}", file.display()))?;
        match Baselines::parse(&text) {
            Ok(baselines) => found.extend(lint(&baselines).iter().map(|one| format!("{name}: {one}"))),
            Err(error) => found.push(format!("{name}: {error}")),
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limits_that_ship_are_fine_and_others_are_shown_by_file() {
        let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conf/baselines");
        assert_eq!(baselines(&ours).unwrap(), Vec::<String>::new());
        assert_eq!(baselines(Path::new("/nowhere")).unwrap(), Vec::<String>::new());
        let folder = tempfile::tempdir().unwrap();
        let limit = "[[limit]]\ncheck='gemm_flops'\nmetric='flops'\nvalue=6200.0\nsource='x'";
        for (name, text) in
            [("h200.toml", format!("engine='cuda'\ngpu='H200'\n{limit}")), ("other.toml", "engine=1".into())]
        {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        std::fs::write(folder.path().join("README"), "not a baseline").unwrap();
        let found = baselines(folder.path()).unwrap();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found[0].starts_with("h200.toml: gemm_flops 6200 TFLOP/s: no part can reach it"),
            "{found:?}"
        );
        assert!(found[1].starts_with("other.toml: baseline file: "), "{found:?}");
    }
}
