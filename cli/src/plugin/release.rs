//! Which release of Slurm this machine has, without its configuration: it may not be there yet, and slurmctld need not run.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use diag::doctor::facts::Release;

use crate::command;
use crate::doctor::plugstack::stamp_of;

/// Where Slurm is installed: by packages, and by those who build it.
const PREFIXES: [&str; 4] = ["/usr", "/usr/local", "/opt/slurm", "/opt/slurm/current"];

/// The program that says it with `-V`. The others want a slurm.conf before they say anything.
const PROGRAM: &str = "sbin/slurmd";

/// Where Slurm's plugins lie below a prefix; machines on which users log in have no slurmd.
const FOLDERS: [&str; 4] =
    ["lib/x86_64-linux-gnu/slurm-wlm", "lib/aarch64-linux-gnu/slurm-wlm", "lib64/slurm", "lib/slurm"];

/// Plugins of Slurm's own of which each installation has one: they carry their release as ours does.
const PLUGINS: [&str; 3] = ["auth_munge.so", "hash_k12.so", "auth_slurm.so"];

/// The one that was named, else the one that is found.
///
/// # Errors
/// The word names no release; there is none here; or there are two.
pub fn find(named: Option<&str>) -> Result<Release> {
    if let Some(word) = named {
        return Release::parse(word).with_context(|| format!("{word:?} is no release such as 24.11.5"));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(among(Path::new("/"), &PREFIXES))
}

async fn among(root: &Path, prefixes: &[&str]) -> Result<Release> {
    let mut found: Vec<(PathBuf, Release)> = Vec::new();
    let mut silent = Vec::new();
    for prefix in prefixes {
        let prefix = root.join(prefix.trim_start_matches('/'));
        let slurmd = prefix.join(PROGRAM);
        if slurmd.is_file() {
            match command::said(&slurmd, &["-V"], None).await.map(|text| Release::parse(text.trim())) {
                Ok(Some(release)) => found.push((slurmd, release)),
                Ok(None) => silent.push(format!("{} names no release", slurmd.display())),
                Err(error) => silent.push(format!("{error:#}")),
            }
        }
        let plugins = FOLDERS.iter().flat_map(|folder| PLUGINS.map(|name| prefix.join(folder).join(name)));
        for path in plugins.filter(|path| path.is_file()) {
            match stamp_of(&path) {
                Ok(release) => found.push((path, release)),
                Err(error) => silent.push(format!("{}: {error:#}", path.display())),
            }
        }
    }
    let Some((first, release)) = found.first() else {
        let why = if silent.is_empty() { String::new() } else { format!(" ({})", silent.join("; ")) };
        // Not an error of ours: packages of a machine come in any order.
        bail!("Slurm is not installed in any of {}{why}", prefixes.join(", "));
    };
    if let Some((other, differs)) = found.iter().find(|(_, other)| !other.fits(*release)) {
        bail!(
            "{} is of Slurm {release} and {} of {differs}: name the one whose plugstack.conf it is for with --slurm",
            first.display(),
            other.display()
        );
    }
    Ok(*release)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn program(root: &Path, name: &str, says: &str) {
        let path = root.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, format!("#!/bin/sh\n{says}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[tokio::test]
    async fn programs_say_their_release() {
        let folder = tempfile::tempdir().unwrap();
        let ask = async || among(folder.path(), &PREFIXES).await.map_err(|error| format!("{error:#}"));
        assert!(ask().await.unwrap_err().contains("not installed in any of /usr, /usr/local"));
        program(folder.path(), "usr/local/sbin/slurmd", "exit 1");
        program(folder.path(), "usr/lib/slurm/auth_munge.so", "");
        let error = ask().await.unwrap_err();
        assert!(
            error.contains("slurmd ended with") && error.contains("auth_munge.so: it is no ELF"),
            "{error}"
        );
        program(folder.path(), "opt/slurm/sbin/slurmd", "echo slurm 24.11.5");
        assert_eq!(ask().await.unwrap().number(), 0x18_0b_05);
        program(folder.path(), "usr/sbin/slurmd", "echo slurm-wlm 22.05.8");
        let error = ask().await.unwrap_err();
        assert!(
            error.contains("22.05.8") && error.contains("24.11.5") && error.contains("--slurm"),
            "{error}"
        );
    }

    #[test]
    fn a_named_release_is_taken() {
        assert_eq!(find(Some("22.05.8")).unwrap().number(), 0x16_05_08);
        assert!(find(Some("new")).is_err());
    }
}
