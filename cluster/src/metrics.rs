//! The numbers of this node for Prometheus, as a file that node_exporter's textfile collector reads: what stood there before,
//! what a report adds, and the whole of it written anew. Which numbers there are is [`diag::metrics`]'s.
//!
//! Two jobs of a node may end at once, so a writer holds a lock. It is on a file of its own that root alone can open: a folder
//! can be locked by whoever can list it. A folder that does not answer costs a job [`WITHIN`] and its numbers, nothing else.

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
use rustix::fs::{
    AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, fchmod, flock, fstat, openat, renameat, unlinkat,
};
use rustix::io::Errno;

use crate::beside::{Beside, BesideError};

/// The file of the checks before a job's start.
pub const BEFORE_FILE: &str = "aimaster.prom";

/// The file of the checks while a job runs.
pub const RUNTIME_FILE: &str = "aimaster_runtime.prom";

/// The file that a writer locks. The collector reads what ends in `.prom`, and shows no name that begins with a dot.
const LOCK_FILE: &str = ".aimaster.lock";

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
    /// What lies there is not root's alone to write: `what` of it.
    #[error(
        "{what} of paths.metrics_dir can be changed by others (owner {owner}, mode {mode:o}): chown root and chmod go-w"
    )]
    Open {
        /// The folder, or the lock in it.
        what: &'static str,
        /// Whose it is.
        owner: u32,
        /// Its mode.
        mode: u32,
    },
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
    #[error("there is no thread to write them")]
    Thread(#[source] BesideError),
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
    let folder = folder.to_owned();
    let adding = Beside::start("metrics", move || add_now(&folder, file, families, tally));
    match adding.map_err(MetricsError::Thread)?.within(WITHIN).await {
        Ok(came) => came,
        Err(BesideError::Late) => Err(MetricsError::Late),
        Err(error) => Err(MetricsError::Thread(error)),
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
    own("the folder", &folder, FileType::Directory)?;
    let _lock = lock(&folder)?;
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

/// Refuses what others than root can write: they could put numbers there that nobody measured, or hold its lock. Where this
/// software does not run as root its own user's files are as good as its own program.
fn own(what: &'static str, file: &OwnedFd, wanted: FileType) -> Result<(), MetricsError> {
    let about = fstat(file)?;
    let mine = about.st_uid == 0 || about.st_uid == rustix::process::geteuid().as_raw();
    let mode = Mode::from_raw_mode(about.st_mode);
    let others = mode.intersects(Mode::WGRP | Mode::WOTH);
    if FileType::from_raw_mode(about.st_mode) != wanted || !mine || others {
        return Err(MetricsError::Open { what, owner: about.st_uid, mode: mode.as_raw_mode() });
    }
    Ok(())
}

/// Held until it is dropped.
fn lock(folder: &OwnedFd) -> Result<OwnedFd, MetricsError> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = openat(folder, LOCK_FILE, flags, Mode::RUSR | Mode::WUSR)?;
    own("the lock", &file, FileType::RegularFile)?;
    // One that somebody has opened to readers can be held by them.
    fchmod(&file, Mode::RUSR | Mode::WUSR)?;
    let until = Instant::now() + LOCK_WAIT;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(Errno::WOULDBLOCK) if Instant::now() < until => std::thread::sleep(LOCK_POLL),
            Err(Errno::WOULDBLOCK) => return Err(MetricsError::Locked),
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// What stands there; nothing where there is no such file, or something else.
fn before(folder: &OwnedFd, file: &str) -> Result<String, MetricsError> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = match openat(folder, file, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT | Errno::LOOP) => return Ok(String::new()),
        Err(errno) => return Err(errno.into()),
    };
    // A pipe has no numbers of ours, and its other end could hold them back.
    if !FileType::from_raw_mode(fstat(&file)?.st_mode).is_file() {
        return Ok(String::new());
    }
    let mut text = Vec::new();
    file.take(MOST_BYTES).read_to_end(&mut text).map_err(MetricsError::Folder)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests;
