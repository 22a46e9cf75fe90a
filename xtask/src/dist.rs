//! `cargo xtask dist`: a Debian package and an RPM of the product. Every file is put below target/dist/root first; what goes
//! into the packages, and with which rights, stands in cli/Cargo.toml; what they do when they come and go in packaging/.

mod check;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::install::{self, BASELINES, Built, POLICY, PROGRAMS, put, put_all};
use crate::share;
use crate::stage::{cargo_command, run};

/// Where everything is made, in the project's folder: the lists in cli/Cargo.toml name it.
const FOLDER: &str = "target/dist";

/// What makes the packages: cargo's subcommand, and the version that was tried.
const DEB: (&str, &str) = ("cargo-deb", "3.8.0");
const RPM: (&str, &str) = ("cargo-generate-rpm", "0.21.1");

/// What else is called, and the Debian package that has it. cargo-deb asks dpkg-shlibdeps what the programs are linked with.
const SYSTEM: [(&str, &str); 3] = [("strip", "binutils"), ("gzip", "gzip"), ("dpkg-shlibdeps", "dpkg-dev")];

/// Slurm's plugin in a package. No package knows for which Slurm it will be: `aimaster plugin` makes the one that is loaded.
const UNSTAMPED: &str = "usr/libexec/aimaster/spank_aimaster.so.unstamped";

/// Of the source tree: what the documentation of a package has.
const DOCUMENTS: [&str; 6] =
    ["README.md", "CHANGELOG.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "LICENSE-APACHE", "LICENSE-MIT"];

/// Files of conf/ that are examples, by folder, and whether they are scripts.
const EXAMPLES: [(&str, u32); 6] = [
    ("prolog.d", 0o755),
    ("epilog.d", 0o755),
    ("plugstack.conf.d", 0o644),
    ("containers", 0o644),
    ("grafana", 0o644),
    ("prometheus", 0o644),
];

/// Makes both.
///
/// # Errors
/// A tool is missing, or a build or a check fails.
pub fn dist(debug: bool, with_check: bool) -> Result<()> {
    tools(&std::env::var_os("PATH").unwrap_or_default())?;
    let sources = install::sources()?;
    let folder = sources.join(FOLDER);
    let root = folder.join("root");
    let built = install::build(if debug { "dev" } else { "release" })?;
    if root.exists() {
        fs::remove_dir_all(&root).with_context(|| format!("can't remove {}", root.display()))?;
    }
    stage(sources, &built, &root)?;
    if !debug {
        install::small_enough(&root.join(UNSTAMPED))?;
    }
    let deb = deb(sources, &folder, None)?;
    let rpm = rpm(sources, &folder)?;
    for package in [&deb, &rpm] {
        let bytes = fs::metadata(package).with_context(|| package.display().to_string())?.size();
        println!("{} ({:.1} MB)", package.display(), bytes as f64 / 1e6);
    }
    if with_check {
        check::same_files(&deb, &rpm)?;
        check::rpm_comes_and_goes(&rpm)?;
        check::comes_and_goes(sources, &folder, &deb)?;
    }
    Ok(())
}

/// Nothing is installed behind a person's back: what is missing is named.
fn tools(path: &OsStr) -> Result<()> {
    let lacks = |name: &str| !std::env::split_paths(path).any(|folder| folder.join(name).is_file());
    let own = [DEB, RPM].into_iter().filter(|(name, _)| lacks(name));
    let own = own.map(|(name, version)| {
        format!("cargo install {name} --locked --version {version}    # some minutes")
    });
    let system = SYSTEM.into_iter().filter(|(name, _)| lacks(name));
    let system = system.map(|(name, package)| format!("apt-get install {package}    # {name}"));
    let missing: Vec<String> = own.chain(system).collect();
    if !missing.is_empty() {
        bail!("not in PATH:\n{}", missing.join("\n"));
    }
    Ok(())
}

/// All files, where a machine has them.
fn stage(sources: &Path, built: &Built, root: &Path) -> Result<()> {
    install::programs(&built.programs, root)?;
    // The standard library's lines of source are most of a program; its names stay, for what a panic says.
    for (_, program) in PROGRAMS {
        run(Command::new("strip").arg("--strip-debug").arg(root.join(program)))?;
    }
    put(&built.plugin, &root.join(UNSTAMPED), 0o644)?;
    run(Command::new("strip").arg("--strip-debug").arg(root.join(UNSTAMPED)))?;
    put_all(&sources.join(BASELINES.0), &root.join(BASELINES.1), 0o644)?;
    put(&sources.join(POLICY.0), &root.join(POLICY.1), 0o644)?;
    let documents = root.join("usr/share/doc/aimaster");
    for name in DOCUMENTS {
        put(&sources.join(name), &documents.join(name), 0o644)?;
    }
    for folder in ["docs", "docs/screenshots"] {
        put_all(&sources.join(folder), &documents.join(folder), 0o644)?;
    }
    let examples = documents.join("examples");
    put(&sources.join("conf/aimaster.json"), &examples.join("aimaster.json"), 0o644)?;
    for (name, mode) in EXAMPLES {
        put_all(&sources.join("conf").join(name), &examples.join(name), mode)?;
    }
    let share = root.join("usr/share");
    share::write(&share, || Command::new(built.programs.join("aimaster")))?;
    let pages = share.join("man/man1");
    for page in fs::read_dir(&pages).with_context(|| format!("can't list {}", pages.display()))? {
        // Without a time or a name in it: the same sources make the same file.
        run(Command::new("gzip").args(["-9", "--no-name", "--force"]).arg(page?.path()))?;
    }
    Ok(())
}

/// The Debian package; `version` in place of the product's own.
fn deb(sources: &Path, folder: &Path, version: Option<&str>) -> Result<PathBuf> {
    let into = folder.join(version.unwrap_or("packages"));
    made(&into, "deb", || {
        let mut command = cargo_command();
        command.args(["deb", "--package", "cli", "--no-build", "--no-strip", "--quiet", "--output"]);
        command.arg(into.join("")).current_dir(sources);
        // Only the check has one; nobody keeps it.
        command.args(version.iter().flat_map(|version| ["--fast", "--deb-version", version]));
        command
    })
}

fn rpm(sources: &Path, folder: &Path) -> Result<PathBuf> {
    let into = folder.join("packages");
    made(&into, "rpm", || {
        let mut command = cargo_command();
        command.args(["generate-rpm", "--package", "cli", "--output"]);
        command.arg(into.join("")).current_dir(sources);
        command
    })
}

/// Runs what makes a package in a folder, and finds it there by the end of its name.
fn made(into: &Path, end: &str, command: impl FnOnce() -> Command) -> Result<PathBuf> {
    fs::create_dir_all(into).with_context(|| format!("can't make {}", into.display()))?;
    let found = || -> Result<Vec<PathBuf>> {
        let all = fs::read_dir(into).with_context(|| format!("can't list {}", into.display()))?;
        let paths = all.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
        Ok(paths.into_iter().filter(|path| path.extension().is_some_and(|one| one == end)).collect())
    };
    for old in found()? {
        fs::remove_file(&old).with_context(|| format!("can't remove {}", old.display()))?;
    }
    run(&mut command())?;
    match &found()?[..] {
        [package] => Ok(package.clone()),
        others => bail!("{} has {} packages .{end}, not one", into.display(), others.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tool_that_is_missing_is_named_with_what_installs_it() {
        let folder = std::env::temp_dir().join(format!("aimaster-dist-tools-{}", std::process::id()));
        let told = || tools(folder.as_os_str()).map_err(|error| error.to_string());
        let words = told().unwrap_err();
        let names = [DEB.0, RPM.0].into_iter().chain(SYSTEM.iter().map(|(name, _)| *name));
        for name in names.clone() {
            assert!(words.contains(name), "{name}: {words}");
        }
        assert!(words.contains("apt-get install binutils"), "{words}");
        fs::create_dir(&folder).unwrap();
        for name in names {
            fs::write(folder.join(name), "").unwrap();
        }
        let complete = told();
        fs::remove_file(folder.join("strip")).unwrap();
        let lacking = told();
        fs::remove_dir_all(&folder).unwrap();
        complete.unwrap();
        let lacking = lacking.unwrap_err();
        assert_eq!(lacking.lines().count(), 2, "{lacking}");
        assert!(lacking.contains("binutils"), "{lacking}");
    }
}
