//! What the agent said of a job is kept with the other reports once the job is over. Where they lie may be shared storage
//! whose server does not answer: another process writes, and is waited for no longer than a node may stay COMPLETING.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use cluster::metrics::{self, RUNTIME_FILE};
use cluster::report_writer::{self, WRITING};
use diag::metrics::{RUNTIME, Tally};
use diag::runtime_report::{FILE_NAME, MOST_BYTES, RuntimeReport};
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use tokio::time::Instant;

use crate::c4d::report::{KEEP_FILE_NAME, Keep, MOST_KEEP_BYTES};

/// How long all reports of a job on this node may take, however many runs of it left one.
pub const MOST_TIME: Duration = WRITING;

/// A report that is to be kept.
#[derive(Debug, Clone, PartialEq)]
pub struct Kept {
    /// Where and whose.
    pub keep: Keep,
    /// What.
    pub report: RuntimeReport,
}

/// What a run folder holds, if it is worth keeping. Root alone writes there.
///
/// # Errors
/// A file can't be read, or is none of the agent's.
pub fn take(folder: &OwnedFd) -> Result<Option<Kept>> {
    let Some(keep) = read(folder, KEEP_FILE_NAME, MOST_KEEP_BYTES)? else { return Ok(None) };
    let Some(report) = read(folder, FILE_NAME, MOST_BYTES)? else { return Ok(None) };
    let keep: Keep = serde_json::from_slice(&keep).with_context(|| format!("{KEEP_FILE_NAME} is broken"))?;
    let report: RuntimeReport =
        serde_json::from_slice(&report).with_context(|| format!("{FILE_NAME} is broken"))?;
    Ok(keep.wants(&report).then_some(Kept { keep, report }))
}

fn read(folder: &OwnedFd, name: &str, most: u64) -> Result<Option<Vec<u8>>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = match openat(folder, name, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(errno).with_context(|| format!("{name} can't be read")),
    };
    let mut text = Vec::new();
    file.take(most + 1).read_to_end(&mut text).with_context(|| format!("{name} can't be read"))?;
    if text.len() as u64 > most {
        bail!("{name} is longer than {most} bytes");
    }
    Ok(Some(text))
}

/// Puts reports where they are kept, within [`MOST_TIME`] in all; of each its place, or why it is lost.
///
/// # Errors
/// There can be no process that writes.
pub fn put(reports: &[Kept]) -> Result<Vec<(PathBuf, Result<()>)>> {
    if reports.is_empty() {
        return Ok(Vec::new());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let until = Instant::now() + MOST_TIME;
    runtime.block_on(async {
        let mut done = Vec::new();
        for Kept { keep, report } in reports {
            let place = keep.place();
            let mut text = serde_json::to_vec_pretty(report)?;
            text.push(b'\n');
            let written = if Instant::now() < until {
                report_writer::write(&place, &text, keep.rights(), until).await.map_err(Into::into)
            } else {
                Err(anyhow::anyhow!("no time was left for it"))
            };
            done.push((place.path(), written));
        }
        Ok(done)
    })
}

/// Adds what the reports say to the numbers of this node, where the policy wants them; why not, where that fails.
///
/// # Errors
/// There can be no thread that writes.
pub fn count(reports: &[Kept]) -> Result<Vec<String>> {
    let wanted = || reports.iter().filter(|kept| !kept.keep.metrics_dir.as_os_str().is_empty());
    if wanted().next().is_none() {
        return Ok(Vec::new());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let until = Instant::now() + MOST_TIME;
    runtime.block_on(async {
        let mut troubles = Vec::new();
        for Kept { keep, report } in wanted() {
            if Instant::now() >= until {
                troubles.push("no time was left for metrics".to_owned());
                break;
            }
            let tally = Tally::runtime(report);
            if let Err(error) = metrics::add(&keep.metrics_dir, RUNTIME_FILE, RUNTIME, tally).await {
                troubles.push(format!("no metrics: {}", cluster::chain(&error)));
            }
        }
        Ok(troubles)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::c4d::report::{self, Finished, Status, Telemetry};
    use diag::policy::{ReportOwner, ReportReaders};
    use jiff::Timestamp;

    fn keep(first: bool) -> Keep {
        Keep {
            report_dir: "/r".into(),
            cluster: "aim".into(),
            job_id: 7,
            check_number: 2,
            node: "n2".into(),
            first,
            owner: ReportOwner::Root,
            readers: ReportReaders::Group,
            uid: 1000,
            gid: None,
            metrics_dir: PathBuf::new(),
        }
    }

    fn quiet(spoke: bool) -> RuntimeReport {
        RuntimeReport {
            finished: Some(Finished { at: Timestamp::UNIX_EPOCH, because: "x".into() }),
            telemetry: Telemetry { status: Status::Ok, because: Vec::new(), ranks: 8, refused: 0 },
            judged: true,
            spoke,
            ..RuntimeReport::new("aim", 7, 2, "n2", Timestamp::UNIX_EPOCH)
        }
    }

    fn folder() -> (tempfile::TempDir, OwnedFd) {
        let folder = tempfile::tempdir().unwrap();
        let open =
            rustix::fs::open(folder.path(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
        (folder, open)
    }

    #[test]
    fn of_many_nodes_those_with_something_to_say_are_kept_under_names_of_their_own() {
        let (_root, folder) = folder();
        assert_eq!(take(&folder).unwrap(), None);
        report::write(&quiet(false), &folder).unwrap();
        // An agent that left no word where to is one of a node that keeps nothing.
        assert_eq!(take(&folder).unwrap(), None);
        keep(false).write(&folder).unwrap();
        assert_eq!(take(&folder).unwrap(), None);
        for loud in [quiet(true), RuntimeReport { errors: vec!["blind".into()], ..quiet(false) }] {
            report::write(&loud, &folder).unwrap();
            let kept = take(&folder).unwrap().unwrap();
            assert_eq!(kept.report, loud);
            assert_eq!(kept.keep.place().path(), PathBuf::from("/r/aim/7/2/runtime.n2.json"));
        }
        report::write(&quiet(false), &folder).unwrap();
        keep(true).write(&folder).unwrap();
        let kept = take(&folder).unwrap().unwrap();
        assert_eq!(kept.keep.place().path(), PathBuf::from("/r/aim/7/2/runtime.json"));
    }

    #[test]
    fn what_is_no_report_is_said_and_not_kept() {
        let (root, folder) = folder();
        keep(true).write(&folder).unwrap();
        std::fs::write(root.path().join(FILE_NAME), "{").unwrap();
        assert!(take(&folder).unwrap_err().to_string().contains("runtime.json is broken"));
        std::fs::remove_file(root.path().join(FILE_NAME)).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", root.path().join(FILE_NAME)).unwrap();
        assert!(take(&folder).unwrap_err().to_string().contains("can't be read"));
        assert!(put(&[]).unwrap().is_empty());
    }

    #[test]
    fn numbers_are_counted_where_the_policy_wants_them() {
        let folder = tempfile::tempdir().unwrap();
        let kept = |metrics_dir: &std::path::Path| Kept {
            keep: Keep { metrics_dir: metrics_dir.to_owned(), ..keep(true) },
            report: quiet(true),
        };
        assert_eq!(count(&[kept(std::path::Path::new(""))]).unwrap(), Vec::<String>::new());
        assert_eq!(count(&[kept(folder.path()), kept(folder.path())]).unwrap(), Vec::<String>::new());
        let text = std::fs::read_to_string(folder.path().join(RUNTIME_FILE)).unwrap();
        assert!(text.contains("aimaster_runtime_checks_total{outcome=\"pass\"} 2.0"), "{text}");
        let troubles = count(&[kept(&folder.path().join("no"))]).unwrap();
        assert!(troubles.len() == 1 && troubles[0].contains("paths.metrics_dir"), "{troubles:?}");
    }
}
