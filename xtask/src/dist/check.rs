//! `cargo xtask dist --check`: whether both packages have the same files, and what they do on a machine: the Debian package
//! beside jobs, the RPM without. The machine is a Debian 12 below /var/cache/aimaster-tests with Slurm installed by dpkg; the test cluster boots from it, and
//! nothing is installed here.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::packages;
use crate::stage::{cargo_command, run};

/// What the check needs of Debian.
const TOOLS: &[&str] = &["mmdebstrap", "rpm"];

/// The Debian in which the package is tried, and where it is kept.
const RELEASE: &str = "bookworm";
const CACHE: &str = "/var/cache/aimaster-tests";

/// What a machine with Slurm has; for the cluster, iproute2 and iptables as well.
const PACKAGES: &str = "slurmd,slurmctld,slurm-client,munge,iproute2,iptables,procps";

/// The same program under two roofs: Debian's zsh looks elsewhere than others.
const ZSH: (&str, &str) = ("/usr/share/zsh/vendor-completions/", "/usr/share/zsh/site-functions/");

/// Files that Debian's policy wants, and no other.
const DEBIAN_ONLY: [&str; 1] = ["/usr/share/doc/aimaster/copyright"];

/// Fails unless both packages have the same files with the same rights.
///
/// # Errors
/// They differ, or can't be read.
pub fn same_files(deb: &Path, rpm: &Path) -> Result<()> {
    packages::install_these(TOOLS)?;
    let deb = of_deb(&output(Command::new("dpkg-deb").arg("--contents").arg(deb))?);
    let format = "[%{FILEMODES:perms} %{FILEUSERNAME}/%{FILEGROUPNAME} %{FILENAMES}\\n]";
    let rpm = of_rpm(&output(
        Command::new("rpm").args(["--query", "--queryformat", format, "--package"]).arg(rpm),
    )?);
    let mut differ: Vec<String> = Vec::new();
    for name in deb.keys().chain(rpm.keys()) {
        if deb.get(name) != rpm.get(name) && !differ.iter().any(|one| one.contains(name)) {
            differ.push(format!("{name}: {:?} in the deb, {:?} in the rpm", deb.get(name), rpm.get(name)));
        }
    }
    if deb.is_empty() || !differ.is_empty() {
        bail!("the packages differ:\n{}", differ.join("\n"));
    }
    println!("both packages have the same {} files", deb.len());
    Ok(())
}

/// `-rwxr-xr-x 0/0 123 2026-01-01 00:00 ./usr/bin/x`, without folders.
fn of_deb(text: &str) -> BTreeMap<String, String> {
    let rows = text.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [rights, owner, .., name] = words[..] else { return None };
        let name = name.trim_start_matches('.');
        let name = name.strip_prefix(ZSH.0).map_or_else(|| name.to_owned(), |rest| ZSH.1.to_owned() + rest);
        let owner = if owner == "0/0" { "root/root" } else { owner };
        let kept = !rights.starts_with('d') && !DEBIAN_ONLY.contains(&name.as_str());
        kept.then(|| (name, format!("{rights} {owner}")))
    });
    rows.collect()
}

fn of_rpm(text: &str) -> BTreeMap<String, String> {
    let rows = text.lines().filter_map(|line| {
        let [rights, owner, name] = line.split_whitespace().collect::<Vec<_>>()[..] else { return None };
        (!rights.starts_with('d')).then(|| (name.to_owned(), format!("{rights} {owner}")))
    });
    rows.collect()
}

/// Runs the program that installs, upgrades, removes and purges the package beside jobs.
///
/// # Errors
/// The Debian can't be had, or the test fails.
pub fn comes_and_goes(sources: &Path, folder: &Path, deb: &Path) -> Result<()> {
    let root = ready()?;
    // The same files under a higher version.
    let newer = super::deb(sources, folder, Some("99.0.0-1"))?;
    let mut command = cargo_command();
    command.args(["run", "--quiet", "--package", "aimaster-tests", "--bin", "packages"]).current_dir(sources);
    command.env("AIMASTER_TESTS_ROOT", root).env("AIMASTER_TESTS_PACKAGE", deb);
    run(command.env("AIMASTER_TESTS_NEWER_PACKAGE", newer))
}

/// Installs, upgrades and removes the RPM in a copy of that Debian: its scripts run there, without jobs.
///
/// # Errors
/// The Debian can't be had, or something is not as it should be afterwards.
pub fn rpm_comes_and_goes(rpm: &Path) -> Result<()> {
    let root = Path::new(CACHE).join(format!("{RELEASE}-rpm"));
    if root.exists() {
        fs::remove_dir_all(&root).with_context(|| format!("can't remove {}", root.display()))?;
    }
    run(Command::new("cp").arg("--archive").arg(ready()?).arg(&root))?;
    let in_root = |arguments: &[&str], packages: &[&Path]| {
        let mut command = Command::new("rpm");
        command.arg("--root").arg(&root).args(arguments).args(packages);
        run(&mut command)
    };
    let text = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let line = || text("etc/slurm/plugstack.conf.d/aimaster.conf");
    let plugin = root.join("usr/libexec/aimaster/spank_aimaster.so");
    let policy = root.join("etc/aimaster/aimaster.toml");

    // Debian's packages are none that rpm knows.
    in_root(&["--nodeps", "--install"], &[rpm])?;
    if !plugin.is_file() || !line().contains("spank_aimaster.so") || !text("etc/passwd").contains("aimaster:")
    {
        bail!("the RPM was installed, and plugin, line or user is missing in {}", root.display());
    }
    let own = "# the site's own\n";
    fs::write(&policy, own).with_context(|| format!("can't write {}", policy.display()))?;
    in_root(&["--nodeps", "--upgrade", "--force"], &[rpm])?;
    if text("etc/aimaster/aimaster.toml") != own || !line().contains("spank_aimaster.so") {
        bail!("the RPM was upgraded, and policy or line did not stay in {}", root.display());
    }
    in_root(&["--erase", "aimaster"], &[])?;
    if plugin.exists() || !line().is_empty() || text("etc/aimaster/aimaster.toml.rpmsave") != own {
        bail!("the RPM was removed, and plugin or line is left, or the policy lost, in {}", root.display());
    }
    fs::remove_dir_all(&root).with_context(|| format!("can't remove {}", root.display()))?;
    println!("the RPM comes and goes as it should");
    Ok(())
}

/// The root, made where it is missing.
fn ready() -> Result<PathBuf> {
    let path = Path::new(CACHE).join(format!("{RELEASE}-installed"));
    let fresh = Path::new(CACHE).join(format!("{RELEASE}-installed.new"));
    if path.join("usr/sbin/slurmd").exists() {
        return Ok(path);
    }
    fs::create_dir_all(CACHE).with_context(|| format!("can't make {CACHE}: this needs root"))?;
    if fresh.exists() {
        fs::remove_dir_all(&fresh).with_context(|| format!("can't remove {}", fresh.display()))?;
    }
    eprintln!("{RELEASE}: a Debian with Slurm is made below {CACHE}");
    let mut command = Command::new("mmdebstrap");
    command.args(["--quiet", "--mode=root", "--variant=minbase"]).arg(format!("--include={PACKAGES}"));
    run(command.arg(RELEASE).arg(&fresh))?;
    fs::rename(&fresh, &path).with_context(|| format!("can't write {}", path.display()))?;
    Ok(path)
}

fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("can't start {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    String::from_utf8(output.stdout).context("names of files are text")
}
