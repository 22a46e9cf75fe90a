//! The folder of one run on one node, `/run/aimaster/<cluster>/<node>/<job>.<restart>/`: where the launch gate
//! stands, and what the plugin puts into tasks. Root's own: nobody else can write in it, and the epilog removes it.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use cluster::slurm::environment::JobEnv;
use diag::gate::{self, Gate};
use diag::telemetry::{self, Telemetry};

/// The folder.
#[derive(Debug, Clone)]
pub struct RunFolder {
    path: PathBuf,
}

impl RunFolder {
    /// The folder of this run; made by the first thing that is written into it.
    #[must_use]
    pub fn of(job: &JobEnv) -> Self {
        let name = format!("{}.{}", job.job_id, job.restart);
        Self { path: Path::new(gate::RUN_ROOT).join(&job.cluster).join(&job.node).join(name) }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the folder, if it is not there.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn make(&self) -> io::Result<()> {
        fs::create_dir_all(&self.path)?;
        // umask of whoever started slurmd must not keep slurmstepd's readers out.
        for folder in self.path.ancestors().take_while(|folder| folder.starts_with(gate::RUN_ROOT)) {
            fs::set_permissions(folder, Permissions::from_mode(0o755))?;
        }
        Ok(())
    }

    /// Leaves the gate for the plugin, whole or not at all.
    ///
    /// # Errors
    /// If the folder or the file can't be written.
    pub fn write_gate(&self, gate: &Gate) -> io::Result<()> {
        self.write(gate::FILE_NAME, &serde_json::to_vec(gate)?, 0o644)
    }

    /// Leaves for the plugin what it puts into the tasks' environment, whole or not at all.
    ///
    /// # Errors
    /// If the folder or the file can't be written.
    pub fn write_telemetry(&self, telemetry: &Telemetry) -> io::Result<()> {
        self.write(telemetry::FILE_NAME, &serde_json::to_vec(telemetry)?, 0o600)
    }

    fn write(&self, name: &str, text: &[u8], mode: u32) -> io::Result<()> {
        self.make()?;
        let fresh = self.path.join(name).with_extension("new");
        // Not for a moment may others read what is not theirs.
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
        file.write_all(text)?;
        fs::set_permissions(&fresh, Permissions::from_mode(mode))?;
        fs::rename(&fresh, self.path.join(name))
    }
}
