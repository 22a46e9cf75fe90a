//! The site's policy for a person: read, checked, shown.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use diag::policy::Policy;

/// Reads the policy; the defaults where there is no file.
///
/// # Errors
/// If the file can't be read or has mistakes, all of which are shown.
pub fn read(path: &Path) -> Result<Policy> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
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
/// As [`read`].
pub fn show(path: &Path) -> Result<ExitCode> {
    let policy = read(path)?;
    // A reader that went away, such as `head`, is no error.
    _ = std::io::stdout().write_all(policy.to_toml()?.as_bytes());
    Ok(ExitCode::SUCCESS)
}
