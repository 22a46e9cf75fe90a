//! What this node's network ports move while its checks send nothing: read right before and right after a measurement between
//! nodes. Nothing is judged here: see [`diag::gpu_facts::other_traffic`].

use std::path::Path;
use std::time::Duration;

use cluster::beside::Beside;
use diag::gpu_facts::Quiet;
use diag::gpu_facts::reading::Moved;
use kernels::sysfs::{Root, moved};
use tokio::time::{Instant, sleep};

/// Time between two readings: long enough that a twentieth of a port's rate is megabytes, short enough to be waited for twice a
/// round.
const APART: Duration = Duration::from_millis(50);

/// How long a reading may take. It takes about a millisecond; the counters of a device in trouble may not come back.
const LIMIT: Duration = Duration::from_millis(150);

/// The look at this node's ports in one job.
#[derive(Debug, Default)]
pub struct Traffic {
    /// A reading failed: the next one would hang as it did, and leave one more thread behind.
    given_up: bool,
}

impl Traffic {
    /// Two readings of the ports below `root`; `None`: there are no ports, or they can't be read in time, now or once before.
    pub async fn quiet(&mut self, root: &Path) -> Option<Quiet> {
        let first = self.read(root).await?;
        let begun = Instant::now();
        sleep(APART).await;
        let second = self.read(root).await?;
        let apart_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        Some(Quiet { first, second, apart_ms })
    }

    async fn read(&mut self, root: &Path) -> Option<Vec<Moved>> {
        if self.given_up {
            return None;
        }
        let ports = read(root).await;
        self.given_up = ports.is_none();
        ports.filter(|ports| !ports.is_empty())
    }
}

/// On a thread of its own; `None`: it hangs, or there is no thread to be had.
async fn read(root: &Path) -> Option<Vec<Moved>> {
    let root = Root::new(root);
    Beside::start("traffic", move || moved(&root)).ok()?.within(LIMIT).await.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn ports_are_read_twice_and_none_are_no_reading() {
        let folder = tempfile::tempdir().unwrap();
        let mut traffic = Traffic::default();
        assert_eq!(traffic.quiet(folder.path()).await, None);
        let counters = folder.path().join("sys/class/infiniband/mlx5_0/ports/1/counters");
        std::fs::create_dir_all(&counters).unwrap();
        std::fs::write(counters.join("port_xmit_data"), "100\n").unwrap();
        std::fs::write(counters.join("port_rcv_data"), "24\n").unwrap();
        let seen = traffic.quiet(folder.path()).await.unwrap();
        assert_eq!(seen.first, [Moved { device: "mlx5_0".into(), port: 1, bytes: 496 }]);
        assert_eq!(seen.first, seen.second);
        assert!(seen.apart_ms >= 50);
    }

    /// A pipe that nobody writes to keeps whoever opens it waiting.
    #[tokio::test]
    async fn one_that_hangs_is_waited_for_once() {
        let folder = tempfile::tempdir().unwrap();
        let counters = folder.path().join("sys/class/infiniband/mlx5_0/ports/1/counters");
        std::fs::create_dir_all(&counters).unwrap();
        let pipe = counters.join("port_xmit_data");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let (mut traffic, begun) = (Traffic::default(), Instant::now());
        assert_eq!(traffic.quiet(folder.path()).await, None);
        assert!(begun.elapsed() >= LIMIT);
        // No second thread: it would wait for the pipe too.
        let begun = Instant::now();
        assert_eq!(traffic.quiet(folder.path()).await, None);
        assert!(begun.elapsed() < LIMIT);
        // Lets the first one go.
        drop(std::fs::File::options().write(true).open(&pipe).unwrap());
    }
}
