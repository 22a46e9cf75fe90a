//! The folder of one run on one node, `/run/aimaster/<cluster>/<node>/<job>.<restart>/`: where the launch gate
//! stands. Root's own: nobody else can write in it, and the epilog removes it.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use cluster::slurm::environment::JobEnv;
use diag::gate::{self, Gate};

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

    /// Leaves the gate for the plugin, whole or not at all.
    ///
    /// # Errors
    /// If the folder or the file can't be written.
    pub fn write_gate(&self, gate: &Gate) -> io::Result<()> {
        let text = serde_json::to_vec(gate)?;
        fs::create_dir_all(&self.path)?;
        // umask of whoever started slurmd must not keep slurmstepd's readers out.
        for folder in self.path.ancestors().take_while(|folder| folder.starts_with(gate::RUN_ROOT)) {
            fs::set_permissions(folder, Permissions::from_mode(0o755))?;
        }
        let fresh = self.path.join("gate.new");
        fs::write(&fresh, text)?;
        fs::set_permissions(&fresh, Permissions::from_mode(0o644))?;
        fs::rename(&fresh, self.path.join(gate::FILE_NAME))
    }
}
