//! Another build of the product beside the one that is tested, for tests of upgrades: a build that was made elsewhere, or
//! this one with another version written into it; and the exchange of files as a package does it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cluster::Cluster;
use crate::install::{BUILT_PLUGIN, HELPERS, target_dir};
use crate::slurm_version::SlurmVersion;
use crate::stamp::stamp;

/// Names a folder with another build, as cargo left it (`target/debug` of an older state of the sources).
pub const OTHER_VARIABLE: &str = "AIMASTER_TESTS_OTHER_BUILD";

/// The version of all programs of the workspace.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The version of the other build where it is made of this one; as long as the real one, since it is written over it.
pub const OTHER_VERSION: &str = "9.9.9";

/// The programs that say their version to each other.
const THAT_SAY_IT: [&str; 2] = ["aimaster-prolog", "aimaster-c4d"];

/// The plugin as it is installed.
const PLUGIN: &str = "spank_aimaster.so";

/// A set of files that can be put in the place of another.
#[derive(Debug)]
pub struct Build {
    folder: PathBuf,
}

impl Build {
    /// The build that is tested.
    ///
    /// # Errors
    /// It is not there, or can't be copied.
    pub fn this(cluster: &Cluster) -> Result<Self> {
        Self::copy(&target_dir()?, cluster.base().join("builds/this"), cluster.slurm())
    }

    /// Another one.
    ///
    /// # Errors
    /// It is not there, or can't be made.
    pub fn other(cluster: &Cluster) -> Result<Self> {
        let folder = cluster.base().join("builds/other");
        if let Some(from) = std::env::var_os(OTHER_VARIABLE) {
            return Self::copy(Path::new(&from), folder, cluster.slurm());
        }
        const { assert!(VERSION.len() == OTHER_VERSION.len()) };
        let build = Self::copy(&target_dir()?, folder, cluster.slurm())?;
        for name in THAT_SAY_IT {
            let path = build.folder.join(name);
            let change = format!("s/{}/{OTHER_VERSION}/g", VERSION.replace('.', "\\."));
            run(Command::new("sed").env("LC_ALL", "C").args(["-i", &change]).arg(&path))?;
            run(Command::new("grep").args(["-aqF", OTHER_VERSION]).arg(&path))
                .with_context(|| format!("{name} holds no {VERSION} that could be changed"))?;
        }
        Ok(build)
    }

    /// Files without what only a debugger needs: they are exchanged often.
    fn copy(from: &Path, folder: PathBuf, slurm: SlurmVersion) -> Result<Self> {
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        for name in HELPERS.into_iter().chain([BUILT_PLUGIN]) {
            let to = folder.join(if name == BUILT_PLUGIN { PLUGIN } else { name });
            run(Command::new("strip").arg("-o").arg(&to).arg(from.join(name)))?;
            fs::set_permissions(&to, fs::Permissions::from_mode(0o755)).context("modes of a build")?;
        }
        stamp(&folder.join(PLUGIN), slurm)?;
        Ok(Self { folder })
    }

    /// Puts its files in the place of those in `dir`, one after the other, each by a rename: whoever runs the old one keeps
    /// it.
    ///
    /// # Errors
    /// A file can't be written.
    pub fn replace(&self, dir: &Path) -> Result<()> {
        for name in HELPERS.into_iter().chain([PLUGIN]) {
            let (to, fresh) = (dir.join(name), dir.join(format!("{name}.new")));
            // A rename onto another name of the same file leaves both.
            let _ = fs::remove_file(&fresh);
            fs::hard_link(self.folder.join(name), &fresh)
                .and_then(|()| fs::rename(&fresh, &to))
                .with_context(|| format!("cannot write {}", to.display()))?;
        }
        Ok(())
    }
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
