//! The numbers of this node for Prometheus, as a file that node_exporter's textfile collector reads: what stood there before,
//! what a report adds, and the whole of it written anew. Which numbers there are is [`diag::metrics`]'s.
//!
//! Two jobs of a node may end at once, so a writer holds a lock on the folder. A folder that does not answer costs a job
//! [`WITHIN`] and its numbers, nothing else.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use diag::metrics::{Family, Kind, MOST_BYTES, Tally};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, prometheus_text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, fchmod, flock, openat, renameat, unlinkat};
use rustix::io::Errno;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// The file of the checks before a job's start.
pub const BEFORE_FILE: &str = "aimaster.prom";

/// The file of the checks while a job runs.
pub const RUNTIME_FILE: &str = "aimaster_runtime.prom";

/// How long a job waits for all of it: a local folder takes a millisecond.
pub const WITHIN: Duration = Duration::from_millis(500);

/// How long another writer is waited for; it has the lock for as long as a small file takes.
const LOCK_WAIT: Duration = Duration::from_millis(300);

/// Between two tries to have the lock.
const LOCK_POLL: Duration = Duration::from_millis(10);

/// Why there are no numbers.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    /// The folder, the file before, or the new one.
    #[error("the folder of paths.metrics_dir can't be used: make it, root's own, or leave the key out")]
    Folder(#[source] io::Error),
    /// Another writer.
    #[error("another writer keeps the folder of paths.metrics_dir locked")]
    Locked,
    /// They can't be written down.
    #[error("the numbers can't be written down")]
    Text(#[source] fmt::Error),
    /// The folder keeps the writer waiting.
    #[error("the folder of paths.metrics_dir does not answer")]
    Late,
    /// There is no thread to write.
    #[error("no thread can be started, or it ended early")]
    Thread,
}

impl From<Errno> for MetricsError {
    fn from(errno: Errno) -> Self {
        Self::Folder(errno.into())
    }
}

/// Some numbers with their families.
#[derive(Debug)]
struct Numbers {
    families: &'static [Family],
    tally: Tally,
}

impl Collector for Numbers {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for family in self.families {
            // The encoder puts the end of a counter's name itself.
            let (name, kind) = match family.kind {
                Kind::Counter => (family.name.trim_end_matches("_total"), MetricType::Counter),
                Kind::Gauge => (family.name, MetricType::Gauge),
            };
            let mut own = encoder.encode_descriptor(name, family.help, None, kind)?;
            for (values, value) in self.tally.series(family) {
                let labels: Vec<(&str, &str)> =
                    family.labels.iter().copied().zip(values.iter().map(String::as_str)).collect();
                let mut series = own.encode_family(&labels)?;
                match family.kind {
                    Kind::Counter => series.encode_counter::<Vec<(&str, &str)>, f64, u64>(&value, None)?,
                    Kind::Gauge => series.encode_gauge(&value)?,
                }
            }
        }
        Ok(())
    }
}

/// The numbers in Prometheus's text format, version 0.0.4.
///
/// # Errors
/// They can't be written down.
pub fn text(families: &'static [Family], tally: Tally) -> Result<String, MetricsError> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Numbers { families, tally }));
    let mut text = String::new();
    prometheus_text::encode(&mut text, &registry).map_err(MetricsError::Text)?;
    Ok(text)
}

/// Adds to a file of a folder, on a thread that is waited for no longer than [`WITHIN`].
///
/// # Errors
/// The file is as it was, or is written later.
pub async fn add(
    folder: &Path,
    file: &'static str,
    families: &'static [Family],
    tally: Tally,
) -> Result<(), MetricsError> {
    let (done, result) = oneshot::channel();
    let folder = folder.to_owned();
    let work = move || _ = done.send(add_now(&folder, file, families, tally));
    std::thread::Builder::new().name("metrics".into()).spawn(work).map_err(|_| MetricsError::Thread)?;
    match timeout(WITHIN, result).await {
        Ok(Ok(came)) => came,
        Ok(Err(_)) => Err(MetricsError::Thread),
        Err(_) => Err(MetricsError::Late),
    }
}

/// The same, here and now.
///
/// # Errors
/// The file is as it was.
pub fn add_now(
    folder: &Path,
    file: &str,
    families: &'static [Family],
    tally: Tally,
) -> Result<(), MetricsError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = openat(CWD, folder, flags, Mode::empty())?;
    lock(&folder)?;
    let before = Tally::read(&before(&folder, file)?, families);
    let text = text(families, tally.on(&before, families))?;
    // Not with the collector's ending: it would be read half written.
    let fresh = format!("{file}.new");
    match unlinkat(&folder, &fresh, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno.into()),
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut new = File::from(openat(&folder, &fresh, flags, Mode::RUSR | Mode::WUSR)?);
    new.write_all(text.as_bytes()).map_err(MetricsError::Folder)?;
    // The collector is another user, and nothing in it is anybody's secret.
    fchmod(&new, Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH)?;
    Ok(renameat(&folder, &fresh, &folder, file)?)
}

/// Until the folder is closed.
fn lock(folder: &OwnedFd) -> Result<(), MetricsError> {
    let until = Instant::now() + LOCK_WAIT;
    loop {
        match flock(folder, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK) if Instant::now() < until => std::thread::sleep(LOCK_POLL),
            Err(Errno::WOULDBLOCK) => return Err(MetricsError::Locked),
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// What stands there; nothing where there is no such file, or one that is not ours.
fn before(folder: &OwnedFd, file: &str) -> Result<String, MetricsError> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = match openat(folder, file, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT | Errno::LOOP) => return Ok(String::new()),
        Err(errno) => return Err(errno.into()),
    };
    let mut text = Vec::new();
    file.take(MOST_BYTES).read_to_end(&mut text).map_err(MetricsError::Folder)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests;
