//! Has the report of the checks before the start written, where the policy says and as whom it says; and its numbers for
//! Prometheus, where the policy says.

use anyhow::Result;
use cluster::metrics::{self, BEFORE_FILE, MetricsError};
use cluster::report_file::{Place, REPORT_FILE};
use cluster::report_writer::{self, Rights};
use cluster::slurm::environment::JobEnv;
use diag::metrics::{BEFORE, Tally};
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

/// Adds what the report says to the numbers of this node, where the policy wants them.
///
/// # Errors
/// They are as they were.
pub async fn numbers(paths: &Paths, report: &Report) -> Result<(), MetricsError> {
    if paths.metrics_dir.as_os_str().is_empty() {
        return Ok(());
    }
    metrics::add(&paths.metrics_dir, BEFORE_FILE, BEFORE, Tally::before(report)).await
}
