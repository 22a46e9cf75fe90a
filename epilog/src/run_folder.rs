//! Finds and removes the run folders of a job: `<root>/<cluster>/<node>/<job>.<restart>`. Everything is done relative to
//! an open folder and without following links, so that nothing outside can be reached whatever lies there.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, openat, statat, unlinkat};
use rustix::io::Errno;

use crate::job::EndedJob;

/// Most entries that are removed in one call; a run folder holds a handful.
pub const MAX_ENTRIES: usize = 10_000;

/// Deepest folder below a run folder; ours have none.
pub const MAX_DEPTH: usize = 8;

/// Why something is still there.
#[derive(Debug, thiserror::Error)]
pub enum RemoveError {
    /// The system refused.
    #[error("{what} can't be removed")]
    Refused {
        /// What.
        what: String,
        /// Why.
        #[source]
        cause: io::Error,
    },
    /// Too much lies there.
    #[error(
        "there is more in {what} than a job ever leaves (bound {MAX_ENTRIES} entries, {MAX_DEPTH} levels): look at it and remove it by hand"
    )]
    TooMuch {
        /// Where.
        what: String,
    },
}

/// Removes every run folder of this job up to its restart count, and says how many there were. A later
/// restart's folder stays: the job may already be back on this node.
///
/// # Errors
/// Why the first folder that is still there could not be removed; the others are tried all the same.
pub fn remove(root: &Path, job: &EndedJob) -> Result<usize, RemoveError> {
    let Some(node) = node_folder(root, job)? else { return Ok(0) };
    let mut budget = MAX_ENTRIES;
    let (mut removed, mut first_error) = (0, None);
    for name in entries(&node, "the node's run folder", &mut budget)? {
        if !is_of(&name, job) {
            continue;
        }
        match remove_entry(&node, &name, 0, &mut budget) {
            Ok(()) => removed += 1,
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    first_error.map_or(Ok(removed), Err)
}

/// Opens every run folder of this job up to its restart count, and shows it with its name.
///
/// # Errors
/// A folder can't be listed or opened; those before it were shown.
pub fn visit(root: &Path, job: &EndedJob, mut show: impl FnMut(&str, &OwnedFd)) -> Result<(), RemoveError> {
    let Some(node) = node_folder(root, job)? else { return Ok(()) };
    let mut budget = MAX_ENTRIES;
    for name in entries(&node, "the node's run folder", &mut budget)? {
        if !is_of(&name, job) {
            continue;
        }
        match openat(&node, name.as_str(), FOLDER, Mode::empty()) {
            Ok(folder) => show(&name, &folder),
            // No folder of ours; what it is, the removal says.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
            Err(errno) => return Err(RemoveError::Refused { what: name, cause: errno.into() }),
        }
    }
    Ok(())
}

/// How a folder is opened, and nothing that is none.
pub(crate) const FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC)
    .union(OFlags::NONBLOCK);

/// The folder of the job's node, if there is one.
pub(crate) fn node_folder(root: &Path, job: &EndedJob) -> Result<Option<OwnedFd>, RemoveError> {
    let opened = openat(CWD, root, FOLDER, Mode::empty())
        .and_then(|root| openat(root, job.cluster.as_str(), FOLDER, Mode::empty()))
        .and_then(|cluster| openat(cluster, job.node.as_str(), FOLDER, Mode::empty()));
    match opened {
        Ok(node) => Ok(Some(node)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => {
            let what = root.join(&job.cluster).join(&job.node).display().to_string();
            Err(RemoveError::Refused { what, cause: errno.into() })
        }
    }
}

/// Whether `name` is one of the job's run folders that is over.
fn is_of(name: &str, job: &EndedJob) -> bool {
    run_of(name).is_some_and(|(id, count)| id == job.job && job.restart.is_none_or(|last| count <= last))
}

/// Job and restart count of a run folder's name, in the one spelling that the prolog uses.
pub(crate) fn run_of(name: &str) -> Option<(u32, u32)> {
    let (job, restart) = name.split_once('.')?;
    let run = (job.parse().ok()?, restart.parse().ok()?);
    (format!("{}.{}", run.0, run.1) == name).then_some(run)
}

/// The names in a folder, within what is left of the budget.
pub(crate) fn entries(folder: &OwnedFd, what: &str, budget: &mut usize) -> Result<Vec<String>, RemoveError> {
    let refused = |errno: Errno| RemoveError::Refused { what: what.to_owned(), cause: errno.into() };
    let mut names = Vec::new();
    for entry in Dir::read_from(folder).map_err(refused)? {
        let entry = entry.map_err(refused)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if matches!(name.as_str(), "." | "..") {
            continue;
        }
        *budget = budget.checked_sub(1).ok_or_else(|| RemoveError::TooMuch { what: what.to_owned() })?;
        names.push(name);
    }
    Ok(names)
}

/// Removes a file, a link, or a folder with all that is in it.
pub(crate) fn remove_entry(
    parent: &OwnedFd,
    name: &str,
    depth: usize,
    budget: &mut usize,
) -> Result<(), RemoveError> {
    let refused = |errno: Errno| RemoveError::Refused { what: name.to_owned(), cause: errno.into() };
    let stat = match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(refused(errno)),
    };
    let mut flags = AtFlags::empty();
    if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
        if depth >= MAX_DEPTH {
            return Err(RemoveError::TooMuch { what: name.to_owned() });
        }
        let folder = openat(parent, name, FOLDER, Mode::empty()).map_err(refused)?;
        for inner in entries(&folder, name, budget)? {
            remove_entry(&folder, &inner, depth + 1, budget)?;
        }
        flags = AtFlags::REMOVEDIR;
    }
    match unlinkat(parent, name, flags) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(refused(errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn job(restart: Option<u32>) -> EndedJob {
        EndedJob { cluster: "c".into(), node: "n1".into(), job: 7, restart }
    }

    fn tree(folders: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for folder in folders {
            fs::create_dir_all(root.path().join(folder)).unwrap();
            fs::write(root.path().join(folder).join("gate.json"), "{}").unwrap();
        }
        root
    }

    // E15, O14.
    #[test]
    fn only_this_job_s_finished_runs_go() {
        let kept = ["c/n1/7.3", "c/n1/8.0", "c/n1/77.0", "c/n1/7.00", "c/n1/7.x", "c/n2/7.0", "d/n1/7.0"];
        let root = tree(&[&kept[..], &["c/n1/7.0", "c/n1/7.2"]].concat());
        assert_eq!(remove(root.path(), &job(Some(2))).unwrap(), 2);
        assert!(kept.iter().all(|folder| root.path().join(folder).join("gate.json").exists()));
        assert!(!root.path().join("c/n1/7.2").exists());
        assert_eq!(remove(root.path(), &job(None)).unwrap(), 1);
        assert!(!root.path().join("c/n1/7.3").exists());
    }

    #[test]
    fn nothing_there_is_fine() {
        let root = tree(&[]);
        assert_eq!(remove(root.path(), &job(Some(0))).unwrap(), 0);
        assert_eq!(remove(&root.path().join("none"), &job(Some(0))).unwrap(), 0);
    }

    #[test]
    fn links_are_removed_and_never_followed() {
        let root = tree(&["c/n1/7.0/inner", "outside"]);
        let outside = root.path().join("outside");
        symlink(&outside, root.path().join("c/n1/7.0/inner/link")).unwrap();
        symlink(&outside, root.path().join("c/n1/7.1")).unwrap();
        remove(root.path(), &job(Some(1))).unwrap();
        assert!(outside.join("gate.json").exists());
        assert!(!root.path().join("c/n1/7.0").exists() && !root.path().join("c/n1/7.1").is_symlink());

        let root = tree(&["elsewhere/n1/7.0"]);
        symlink(root.path().join("elsewhere"), root.path().join("c")).unwrap();
        assert!(remove(root.path(), &job(Some(0))).is_err());
        assert!(root.path().join("elsewhere/n1/7.0/gate.json").exists());
    }

    #[test]
    fn the_work_is_bounded() {
        let deep = format!("c/n1/7.0/{}", "d/".repeat(MAX_DEPTH + 1));
        let root = tree(&[&deep]);
        assert!(matches!(remove(root.path(), &job(Some(0))), Err(RemoveError::TooMuch { .. })));

        let root = tree(&["c/n1/7.0"]);
        for index in 0..=MAX_ENTRIES {
            fs::write(root.path().join(format!("c/n1/7.0/{index}")), "").unwrap();
        }
        assert!(matches!(remove(root.path(), &job(Some(0))), Err(RemoveError::TooMuch { .. })));
    }
}
