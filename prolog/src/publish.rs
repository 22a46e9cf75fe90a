//! Has the report of the checks before the start written, where the policy says and as whom it says.

use anyhow::Result;
use cluster::report_file::{Place, REPORT_FILE};
use cluster::report_writer::{self, Rights};
use cluster::slurm::environment::JobEnv;
use diag::policy::Paths;
use diag::report::Report;
use tokio::time::Instant;

/// Writes the report below `paths.report_dir`, within two seconds and not after `until` if that can be.
///
/// # Errors
/// If it was not written in this time, or can't be.
pub async fn report(paths: &Paths, job: &JobEnv, report: &Report, until: Instant) -> Result<()> {
    let mut text = serde_json::to_vec_pretty(report)?;
    text.push(b'\n');
    let place = Place {
        report_dir: paths.report_dir.clone(),
        cluster: report.cluster.clone(),
        job_id: report.job_id,
        check_number: report.check_number,
        file: REPORT_FILE.to_owned(),
    };
    let rights =
        Rights { owner: paths.report_owner, readers: paths.report_readers, uid: job.uid, gid: job.gid };
    Ok(report_writer::write(&place, &text, rights, until).await?)
}
