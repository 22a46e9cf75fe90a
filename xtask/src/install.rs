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

/// The plugin that Slurm loads: profile and package, and its name as cargo has it.
const PLUGIN: (&str, &str, &str) = ("spank", "spank-plugin", "libspank_aimaster.so");

/// The most that a plugin may have which every srun, sbatch and slurmstepd of a site maps, in bytes.
const MOST_PLUGIN_BYTES: u64 = 1_000_000;

/// Where what was built lies.
pub struct Built {
    /// The folder of the programs.
    pub programs: PathBuf,
    /// Slurm's plugin, not yet stamped.
    pub plugin: PathBuf,
}

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
    small_enough(&built.plugin)?;
    programs(&built.programs, root)?;
    let sources = sources()?;
    put_all(&sources.join(BASELINES.0), &root.join(BASELINES.1), 0o644)?;
    let policy = root.join(POLICY.1);
    if policy.exists() {
        println!("kept {}", policy.display());
    } else {
        put(&sources.join(POLICY.0), &policy, 0o644)?;
    }
    // Stamped before it is put in place: a process may map the plugin at any moment.
    let stamped = built.plugin.with_file_name("spank_aimaster.so");
    fs::copy(&built.plugin, &stamped).context("can't copy the plugin")?;
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

/// Builds what is installed, in a profile (`release` or `dev`); says where it lies. The plugins have profiles of their own;
/// Slurm's is built as the rest is where that is `dev`.
///
/// # Errors
/// The build fails.
pub fn build(profile: &str) -> Result<Built> {
    let packages = ["prolog", "epilog", "cli"];
    let mut arguments = vec!["build", "--profile", profile];
    arguments.extend(packages.iter().flat_map(|package| ["--package", package]));
    cargo(&arguments)?;
    let (plugin_profile, package, plugin) = PLUGIN;
    let plugin_profile = if profile == "dev" { profile } else { plugin_profile };
    cargo(&["build", "--profile", plugin_profile, "--package", package])?;
    let (profiler_profile, package, ..) = PROFILER;
    cargo(&["build", "--profile", profiler_profile, "--package", package])?;
    let target = target_dir()?;
    let folder = |profile| target.join(if profile == "dev" { "debug" } else { profile });
    Ok(Built { programs: folder(profile), plugin: folder(plugin_profile).join(plugin) })
}

/// Holds the plugin that ships against what it may be at most.
///
/// # Errors
/// It is larger, or can't be looked at.
pub fn small_enough(plugin: &Path) -> Result<()> {
    let bytes = fs::metadata(plugin).with_context(|| plugin.display().to_string())?.len();
    if bytes > MOST_PLUGIN_BYTES {
        bail!(
            "{} has {bytes} bytes, more than {MOST_PLUGIN_BYTES}: every srun, sbatch and slurmstepd maps it; \
             `nm --size-sort -C` on a build with `-C strip=none` shows what has come in",
            plugin.display()
        );
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_over_the_line_is_refused_with_both_numbers() {
        let file = std::env::temp_dir().join(format!("aimaster-plugin-size-{}", std::process::id()));
        let sized = |bytes| {
            let made = fs::File::create(&file).and_then(|one| one.set_len(bytes));
            made.unwrap();
            small_enough(&file).map_err(|error| error.to_string())
        };
        let (fits, over) = (sized(MOST_PLUGIN_BYTES), sized(MOST_PLUGIN_BYTES + 1));
        fs::remove_file(&file).unwrap();
        assert_eq!(fits, Ok(()));
        let words = over.unwrap_err();
        assert!(words.contains("1000001") && words.contains("1000000"), "{words}");
        assert!(small_enough(&file).is_err(), "it is gone");
    }
}
