//! What packages ship beside the program and is made from its own arguments: completions of shells, and manual pages.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::Arguments;

/// The program's name, which the shell completes.
const NAME: &str = "aimaster";

/// For which shell.
#[derive(clap::Args)]
pub struct Completions {
    /// The shell.
    shell: Shell,
}

/// Where to.
#[derive(clap::Args)]
pub struct ManPages {
    /// The folder; it is made if it is not there.
    folder: PathBuf,
}

/// Prints the completions.
///
/// # Errors
/// None: a reader that went away is none.
pub fn completions(arguments: &Completions) -> Result<ExitCode> {
    let mut text = Vec::new();
    clap_complete::generate(arguments.shell, &mut Arguments::command(), NAME, &mut text);
    _ = std::io::stdout().write_all(&text);
    Ok(ExitCode::SUCCESS)
}

/// Writes `aimaster.1`, `aimaster-report.1` and so on.
///
/// # Errors
/// The folder or a file can't be written.
pub fn man_pages(arguments: &ManPages) -> Result<ExitCode> {
    let folder = &arguments.folder;
    std::fs::create_dir_all(folder).with_context(|| format!("can't make {}", folder.display()))?;
    let whole = Arguments::command();
    clap_mangen::generate_to(whole, folder)
        .with_context(|| format!("can't write the pages into {}", folder.display()))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_its_page() {
        let folder = tempfile::tempdir().unwrap();
        man_pages(&ManPages { folder: folder.path().join("man") }).unwrap();
        let page = |name: &str| std::fs::read_to_string(folder.path().join("man").join(name)).unwrap();
        assert!(page("aimaster.1").contains("Exit codes") && page("aimaster-doctor.1").contains("Exit code"));
        assert!(page("aimaster-baseline-lint.1").contains("baseline"));
        assert!(!folder.path().join("man/aimaster-man-pages.1").exists());
    }

    #[test]
    fn shells_learn_every_command() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), NAME, &mut text);
            let text = String::from_utf8(text).unwrap();
            for word in ["doctor", "explain", "undrain", "after-pass"] {
                assert!(text.contains(word), "{shell}: {word}");
            }
        }
    }
}
