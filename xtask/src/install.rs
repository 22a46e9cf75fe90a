//! `cargo xtask install`: from the sources to a machine with Slurm. `cargo xtask dist` makes packages; this is for
//! trying it out.

use std::fs::{self, DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::stage::{cargo, run};

/// What is built, and where it goes below the root.
pub const PROGRAMS: &[(&str, &str)] = &[
    ("aimaster-prolog", "usr/libexec/aimaster/aimaster-prolog"),
    ("aimaster-worker", "usr/libexec/aimaster/aimaster-worker"),
    ("aimaster-epilog", "usr/libexec/aimaster/aimaster-epilog"),
    ("aimaster-watcher", "usr/libexec/aimaster/aimaster-watcher"),
    ("aimaster-c4d", "usr/libexec/aimaster/aimaster-c4d"),
    ("aimaster", "usr/bin/aimaster"),
];

/// Files of the source tree, and where they go below the root. A site's own policy is kept.
pub const BASELINES: (&str, &str) = ("conf/baselines", "etc/aimaster/baselines");
pub const POLICY: (&str, &str) = ("conf/aimaster.toml", "etc/aimaster/aimaster.toml");

/// The plugin that NCCL loads into users' processes: profile and package, its name as cargo has it, and where it goes:
/// beside the helpers, as the agent has it.
pub const PROFILER: (&str, &str, &str, &str) = (
    "plugin",
    "nccl-profiler-plugin",
    "libnccl_profiler_aimaster.so",
    "usr/libexec/aimaster/libnccl-profiler-aimaster.so",
);

/// Debian's folder of Slurm plugins (see `scontrol show config`, PluginDir).
fn plugins() -> String {
    format!("usr/lib/{}-linux-gnu/slurm-wlm", std::env::consts::ARCH)
}

/// Builds and copies.
///
/// # Errors
/// If the build fails, Slurm is not installed, or a file can't be written.
pub fn install(root: &Path) -> Result<()> {
    let built = build("release")?;
    programs(&built, root)?;
    let sources = sources()?;
    put_all(&sources.join(BASELINES.0), &root.join(BASELINES.1), 0o644)?;
    let policy = root.join(POLICY.1);
    if policy.exists() {
        println!("kept {}", policy.display());
    } else {
        put(&sources.join(POLICY.0), &policy, 0o644)?;
    }
    // Stamped before it is put in place: a process may map the plugin at any moment.
    let stamped = built.join("spank_aimaster.so");
    fs::copy(built.join("libspank_aimaster.so"), &stamped).context("can't copy the plugin")?;
    let name = stamped.to_str().context("the path of the build is no text")?;
    cargo(&["run", "--quiet", "--package", "aimaster-tests", "--bin", "stamp", "--", name])?;
    put(&stamped, &root.join(plugins()).join("spank_aimaster.so"), 0o755)?;
    if root == Path::new("/") {
        worker_user()?;
    }
    println!(
        "Installed. Choose the engine in /{}; then, to switch it on, add this line to /etc/slurm/plugstack.conf and restart slurmd:\n\
         optional spank_aimaster.so",
        POLICY.1
    );
    Ok(())
}

/// Builds what is installed, in a profile (`release` or `dev`); says where it lies.
///
/// # Errors
/// The build fails.
pub fn build(profile: &str) -> Result<PathBuf> {
    let packages = ["spank-plugin", "prolog", "epilog", "cli"];
    let mut arguments = vec!["build", "--profile", profile];
    arguments.extend(packages.iter().flat_map(|package| ["--package", package]));
    cargo(&arguments)?;
    let (profiler_profile, package, ..) = PROFILER;
    cargo(&["build", "--profile", profiler_profile, "--package", package])?;
    Ok(target_dir()?.join(if profile == "dev" { "debug" } else { profile }))
}

/// Copies the programs, and NCCL's plugin, below a root.
///
/// # Errors
/// A file can't be written.
pub fn programs(built: &Path, root: &Path) -> Result<()> {
    let (profile, _, profiler, profiler_to) = PROFILER;
    put(&built.with_file_name(profile).join(profiler), &root.join(profiler_to), 0o755)?;
    for (name, to) in PROGRAMS {
        put(&built.join(name), &root.join(to), 0o755)?;
    }
    Ok(())
}

/// The project's own folder.
///
/// # Errors
/// None that is known.
pub fn sources() -> Result<&'static Path> {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the source tree")
}

/// Copies all files of a folder; folders in it stay where they are.
///
/// # Errors
/// It can't be read, or one can't be written.
pub fn put_all(from: &Path, to: &Path, mode: u32) -> Result<()> {
    for file in fs::read_dir(from).with_context(|| format!("can't list {}", from.display()))? {
        let file = file?;
        if file.file_type()?.is_file() {
            put(&file.path(), &to.join(file.file_name()), mode)?;
        }
    }
    Ok(())
}

/// The user that workers run as.
fn worker_user() -> Result<()> {
    let known = Command::new("id").arg("aimaster").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if known.is_ok_and(|status| status.success()) {
        return Ok(());
    }
    let arguments = ["--system", "--no-create-home", "--shell", "/usr/sbin/nologin", "aimaster"];
    run(Command::new("useradd").args(arguments))
}

/// Where cargo builds, whatever its configuration says.
///
/// # Errors
/// cargo does not say it.
pub fn target_dir() -> Result<PathBuf> {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .output()
        .context("can't ask cargo for its target folder")?;
    let metadata: serde_json::Value =
        serde_json::from_slice(&output.stdout).context("cargo metadata gave no JSON")?;
    match metadata["target_directory"].as_str() {
        Some(folder) => Ok(folder.into()),
        None => bail!("cargo metadata names no target folder"),
    }
}

/// Copies a file to its place, whoever has the old one open.
///
/// # Errors
/// It can't be written.
pub fn put(from: &Path, to: &Path, mode: u32) -> Result<()> {
    let folder = to.parent().context("a file has a folder")?;
    make(folder)?;
    // A running program's file is replaced, not written into.
    let mut fresh = to.to_owned().into_os_string();
    fresh.push(".new");
    let fresh = PathBuf::from(fresh);
    fs::copy(from, &fresh)
        .with_context(|| format!("can't copy {} to {}", from.display(), fresh.display()))?;
    fs::set_permissions(&fresh, Permissions::from_mode(mode))?;
    fs::rename(&fresh, to).with_context(|| format!("can't write {}", to.display()))?;
    println!("{}", to.display());
    Ok(())
}

/// Makes what is missing of a folder, open to everybody whatever the umask is; what is there stays as it is.
fn make(folder: &Path) -> Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    if let Some(above) = folder.parent() {
        make(above)?;
    }
    DirBuilder::new()
        .mode(0o755)
        .create(folder)
        .with_context(|| format!("can't make {}", folder.display()))?;
    fs::set_permissions(folder, Permissions::from_mode(0o755))?;
    Ok(())
}
