//! Whether the job has this node to itself, from the sockets that slurmstepd keeps in its spool folder: no question to
//! the controller. It says how a number was taken, and excuses nobody.

use std::path::Path;

use cluster::slurm::config::{self, SlurmConf};
use cluster::slurm::environment::JobEnv;

use crate::agent;

/// Most files that are looked at: those of the steps and jobs on one node.
const MOST_FILES: usize = 20_000;

/// Whether no other job has a step on the node; `None` where that can't be seen. A job whose own prolog runs at this
/// moment has none yet: such a number scatters, and the rule of the history is made for that.
pub(super) fn alone(job: &JobEnv) -> Option<bool> {
    let conf = SlurmConf::read(&config::locate(job.slurm_conf.as_deref()).ok()?).ok()?;
    // Without a step for all of a job's life a job may be there that has none.
    conf.has_extern_steps().then(|| in_folder(&agent::spool(&conf, &job.node), &job.node, job.job_id))?
}

fn in_folder(folder: &Path, node: &str, job_id: u32) -> Option<bool> {
    let mut entries = std::fs::read_dir(folder).ok()?.take(MOST_FILES).flatten();
    let other = |name: &str| {
        let (job, step) = name.strip_prefix(node)?.strip_prefix('_')?.split_once('.')?;
        let (job, _): (u32, u32) = (job.parse().ok()?, step.parse().ok()?);
        Some(job != job_id)
    };
    Some(!entries.any(|entry| other(&entry.file_name().to_string_lossy()) == Some(true)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_of_another_job_is_company() {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str| std::fs::write(folder.path().join(name), "").unwrap();
        for name in ["cred_state", "n1_7.4294967292", "n12_8.0", "n1_x.0", "n1_8"] {
            put(name);
        }
        assert_eq!(in_folder(folder.path(), "n1", 7), Some(true));
        put("n1_8.4294967292");
        assert_eq!(in_folder(folder.path(), "n1", 7), Some(false));
        assert_eq!(in_folder(&folder.path().join("none"), "n1", 7), None);
    }
}
