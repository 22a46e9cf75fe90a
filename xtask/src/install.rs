//! `cargo xtask install`: from the sources to a machine with Slurm. Packages come with a release; this is for trying
//! it out and for sites that build their own.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::stage::{cargo, run};

/// Debian's folder of Slurm plugins.
const PLUGINS: &str = "usr/lib/x86_64-linux-gnu/slurm-wlm";

/// What goes where: file in the source tree, place below the root, mode.
const FILES: &[(&str, &str, u32)] = &[
    ("target/release/aimaster-prolog", "usr/libexec/aimaster/aimaster-prolog", 0o755),
    ("target/release/aimaster-worker", "usr/libexec/aimaster/aimaster-worker", 0o755),
    ("target/release/aimaster-epilog", "usr/libexec/aimaster/aimaster-epilog", 0o755),
    ("target/release/aimaster", "usr/bin/aimaster", 0o755),
    ("conf/baselines/host.toml", "etc/aimaster/baselines/host.toml", 0o644),
];

/// The policy: a site's own is kept.
const POLICY: (&str, &str) = ("conf/aimaster.toml", "etc/aimaster/aimaster.toml");

/// Builds and copies.
///
/// # Errors
/// If the build fails, Slurm is not installed, or a file can't be written.
pub fn install(root: &Path) -> Result<()> {
    let packages = ["spank-plugin", "prolog", "epilog", "cli"];
    let mut arguments = vec!["build", "--release"];
    arguments.extend(packages.iter().flat_map(|package| ["--package", package]));
    cargo(&arguments)?;
    for (from, to, mode) in FILES {
        put(Path::new(from), &root.join(to), *mode)?;
    }
    let policy = root.join(POLICY.1);
    if policy.exists() {
        println!("kept {}", policy.display());
    } else {
        put(Path::new(POLICY.0), &policy, 0o644)?;
    }
    let plugin = root.join(PLUGINS).join("spank_aimaster.so");
    put(Path::new("target/release/libspank_aimaster.so"), &plugin, 0o755)?;
    let plugin = plugin.to_str().context("the plugin's path is no text")?;
    cargo(&["run", "--quiet", "--package", "aimaster-tests", "--bin", "stamp", "--", plugin])?;
    if root == Path::new("/")
        && run(Command::new("id").arg("aimaster").stdout(std::process::Stdio::null())).is_err()
    {
        run(Command::new("useradd").args([
            "--system",
            "--no-create-home",
            "--shell",
            "/usr/sbin/nologin",
            "aimaster",
        ]))?;
    }
    println!(
        "Installed. To switch it on, add this line to /etc/slurm/plugstack.conf and restart slurmd:\n\
         optional {plugin}\n\
         Then choose the engine in {}.",
        policy.display()
    );
    Ok(())
}

fn put(from: &Path, to: &Path, mode: u32) -> Result<()> {
    let folder = to.parent().context("a file has a folder")?;
    fs::create_dir_all(folder).with_context(|| format!("can't make {}", folder.display()))?;
    // A running program's file is replaced, not written into.
    let fresh = to.with_extension("new");
    fs::copy(from, &fresh)
        .with_context(|| format!("can't copy {} to {}", from.display(), fresh.display()))?;
    fs::set_permissions(&fresh, Permissions::from_mode(mode))?;
    fs::rename(&fresh, to).with_context(|| format!("can't write {}", to.display()))?;
    println!("{}", to.display());
    Ok(())
}
