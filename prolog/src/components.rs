//! Heterogeneous batch jobs: the script runs in the first component, so that one does not start before the others
//! have their verdicts. Each component is checked by itself; nothing is decided here.

use std::time::Duration;

use cluster::slurm::environment::JobEnv;
use cluster::slurm::scontrol::Scontrol;
use diag::job::JobView;
use tokio::time::{Instant, sleep};

/// First rest between two looks; it doubles, since a component that takes long may take very long.
const FIRST_PAUSE: Duration = Duration::from_millis(250);

/// Waits until no other component is in its prologs, `every` being the longest rest between two looks. Gives words if
/// the job changed meanwhile: another component's prolog ended it or put it back into the queue.
pub async fn wait(
    scontrol: &Scontrol,
    job: &JobEnv,
    view: &JobView,
    every: Duration,
    until: Instant,
) -> Option<String> {
    if !(view.batch && view.het_job_id == Some(job.job_id)) {
        return None;
    }
    let mut pause = FIRST_PAUSE;
    // A controller that does not answer can't say that anything changed.
    while scontrol.other_components_start(job.job_id, until).await.unwrap_or(false) {
        if Instant::now() + pause >= until {
            return None;
        }
        sleep(pause).await;
        pause = every.min(pause * 2);
    }
    scontrol.show_job(job.job_id, until).await.ok()?.changed(job.restart)
}
