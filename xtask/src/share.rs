//! Manual pages and completions. They are made from the program's own arguments, so they are not kept in the tree.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::stage::run;

/// Shells, and where what completes their words lies.
const SHELLS: [(&str, &str); 3] = [
    ("bash", "bash-completion/completions/aimaster"),
    ("zsh", "zsh/site-functions/_aimaster"),
    ("fish", "fish/vendor_completions.d/aimaster.fish"),
];

/// Writes them below a folder such as /usr/share; `aimaster` starts the program.
///
/// # Errors
/// It fails, or a file can't be written.
pub fn write(share: &Path, aimaster: impl Fn() -> Command) -> Result<()> {
    run(aimaster().arg("man-pages").arg(share.join("man/man1")))?;
    for (shell, to) in SHELLS {
        let to = share.join(to);
        fs::create_dir_all(to.parent().context("a file has a folder")?)?;
        let output = aimaster().args(["completions", shell]).output().context("can't start aimaster")?;
        if !output.status.success() {
            bail!("aimaster completions {shell}: {}", String::from_utf8_lossy(&output.stderr));
        }
        fs::write(&to, output.stdout).with_context(|| format!("can't write {}", to.display()))?;
        println!("{}", to.display());
    }
    Ok(())
}
