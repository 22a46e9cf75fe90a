//! What this node's network ports move while its checks send nothing: read right before and right after a measurement between
//! nodes. Nothing is judged here: see [`diag::gpu_facts::other_traffic`].

use std::path::Path;
use std::time::Duration;

use diag::gpu_facts::Quiet;
use diag::gpu_facts::reading::Moved;
use kernels::sysfs::{Root, moved};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

/// Time between two readings: long enough that a twentieth of a port's rate is megabytes, short enough to be waited for twice a
/// round.
const APART: Duration = Duration::from_millis(50);

/// How long a reading may take. The counters of a device in trouble may not come back.
const LIMIT: Duration = Duration::from_secs(1);

/// Two readings of the ports below `root`; `None`: there are no ports, or they can't be read in time.
pub async fn quiet(root: &Path) -> Option<Quiet> {
    let first = read(root).await?;
    let begun = Instant::now();
    sleep(APART).await;
    let second = read(root).await?;
    let apart_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    Some(Quiet { first, second, apart_ms })
}

/// On a thread of its own: one that hangs holds up nothing but itself.
async fn read(root: &Path) -> Option<Vec<Moved>> {
    let (sender, received) = oneshot::channel();
    let root = Root::new(root);
    // Nobody listens any more where the sending fails: the limit ran out.
    let work = move || _ = sender.send(moved(&root));
    std::thread::Builder::new().name("traffic".to_owned()).spawn(work).ok()?;
    timeout(LIMIT, received).await.ok()?.ok().filter(|ports| !ports.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn ports_are_read_twice_and_none_are_no_reading() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(quiet(folder.path()).await, None);
        let counters = folder.path().join("sys/class/infiniband/mlx5_0/ports/1/counters");
        std::fs::create_dir_all(&counters).unwrap();
        std::fs::write(counters.join("port_xmit_data"), "100\n").unwrap();
        std::fs::write(counters.join("port_rcv_data"), "24\n").unwrap();
        let seen = quiet(folder.path()).await.unwrap();
        assert_eq!(seen.first, [Moved { device: "mlx5_0".into(), port: 1, bytes: 496 }]);
        assert_eq!(seen.first, seen.second);
        assert!(seen.apart_ms >= 50);
    }
}
