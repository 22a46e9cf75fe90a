//! What is installed into `/opt/aimaster` of every node: the plugin, stamped for the installed
//! Slurm, and programs, all owned by root and writable by nobody else.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::files::install_file;
use crate::slurm_version::SlurmVersion;
use crate::stamp::stamp;

/// Where the nodes see what is installed.
pub const NODE_DIR: &str = "/opt/aimaster";
/// The plugin as the nodes see it.
pub const NODE_PLUGIN: &str = "/opt/aimaster/spank_aimaster.so";

/// The plugin as cargo names it.
pub const BUILT_PLUGIN: &str = "libspank_aimaster.so";
/// The programs of the product.
pub(crate) const HELPERS: [&str; 6] =
    ["aimaster-prolog", "aimaster-worker", "aimaster-epilog", "aimaster-c4d", "aimaster-watcher", "aimaster"];

/// A set of files to install.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Install {
    plugin: Option<PathBuf>,
    programs: Vec<PathBuf>,
}

impl Install {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The product as cargo built it last, beside the running test.
    ///
    /// # Errors
    /// A part is missing there.
    pub fn from_target() -> Result<Self> {
        let dir = target_dir()?;
        let install = Self::new().plugin(dir.join(BUILT_PLUGIN));
        HELPERS.iter().fold(install, |install, helper| install.program(dir.join(helper))).built()
    }

    /// These files, if all are there.
    ///
    /// # Errors
    /// One is missing.
    pub fn built(self) -> Result<Self> {
        let missing: Vec<String> = self.missing().iter().map(|p| p.display().to_string()).collect();
        if !missing.is_empty() {
            bail!("not built: {}; `cargo build --workspace` makes them", missing.join(", "));
        }
        Ok(self)
    }

    /// Installs this plugin as `spank_aimaster.so`.
    pub fn plugin(mut self, path: impl AsRef<Path>) -> Self {
        self.plugin = Some(path.as_ref().to_owned());
        self
    }

    /// Installs a program (or any file) under its own name.
    pub fn program(mut self, path: impl AsRef<Path>) -> Self {
        self.programs.push(path.as_ref().to_owned());
        self
    }

    fn missing(&self) -> Vec<&PathBuf> {
        self.plugin.iter().chain(&self.programs).filter(|path| !path.is_file()).collect()
    }

    /// Copies everything into `dir` and stamps the plugin there.
    pub(crate) fn put(&self, dir: &Path, version: SlurmVersion) -> Result<()> {
        if let Some(plugin) = &self.plugin {
            let to = dir.join("spank_aimaster.so");
            install_file(plugin, &to)?;
            stamp(&to, version).with_context(|| format!("cannot stamp {}", plugin.display()))?;
        }
        for program in &self.programs {
            let name = program.file_name().with_context(|| format!("{} is no file", program.display()))?;
            install_file(program, &dir.join(name))?;
        }
        Ok(())
    }
}

/// The folder of cargo's products: `target/debug` or `target/release`.
pub fn target_dir() -> Result<PathBuf> {
    let exe = std::env::current_exe().context("where does this test lie?")?;
    let dir = exe.parent().context("folder of this test")?;
    // Tests lie in `deps`, programs beside the products.
    let dir = if dir.file_name().is_some_and(|name| name == "deps") { dir.parent() } else { Some(dir) };
    Ok(dir.context("target folder")?.to_owned())
}
