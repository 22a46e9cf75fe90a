//! Live lines for srun and salloc while they wait, by `scontrol notify`. They never hold up the suite: a task of
//! its own sends them, and drops them for a batch job, which has nobody to tell.

use std::sync::Arc;
use std::time::Duration;

use cluster::slurm::scontrol::Scontrol;
use diag::job::JobView;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

/// Lines that may wait for a slow controller; more are dropped.
const QUEUE: usize = 8;

/// How long the end of the suite waits for lines that are under way.
const FLUSH: Duration = Duration::from_secs(1);

/// Sends lines.
#[derive(Debug)]
pub struct Progress {
    lines: mpsc::Sender<String>,
    task: JoinHandle<Option<JobView>>,
}

impl Progress {
    /// Reads the job once, then sends lines if somebody is there to read them.
    #[must_use]
    pub fn start(scontrol: Arc<Scontrol>, job_id: u32, deadline: Instant) -> Self {
        let (lines, mut queue) = mpsc::channel::<String>(QUEUE);
        let task = tokio::spawn(async move {
            let view = scontrol.show_job(job_id, deadline).await.ok();
            let somebody_waits = view.as_ref().is_some_and(|view| !view.batch);
            while let Some(line) = queue.recv().await {
                if somebody_waits {
                    // Live lines are a courtesy: one that can't be sent is not missed.
                    _ = scontrol.notify(job_id, &line, deadline).await;
                }
            }
            view
        });
        Self { lines, task }
    }

    /// Sends a line, unless too many wait already.
    pub fn say(&self, line: String) {
        _ = self.lines.try_send(line);
    }

    /// Waits a moment for what is under way; gives what the job looked like at the start.
    pub async fn finish(self) -> Option<JobView> {
        drop(self.lines);
        timeout(FLUSH, self.task).await.ok()?.ok()?
    }
}
