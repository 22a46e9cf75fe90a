//! Finds the run folder of a job, `<root>/<cluster>/<node>/<job>.<restart>/`, and reads the launch gate and what else the
//! prolog left there. Every step down is taken from an open folder, without following links, and must belong to root.
//! What a gate means is [`crate::remote`]'s.

use std::ffi::CStr;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use diag::gate::{FILE_NAME, Gate, MAX_BYTES};
use diag::telemetry::{self, MAX_TAKEN_CHARS, TAKEN_FILE_NAME, Telemetry};
use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, Stat, fstat, openat};
use rustix::io::Errno;

use crate::files::read_open;

/// Most entries that are looked at in one folder: clusters, nodes of a host, jobs that ran on a node and were
/// not cleaned up. Beyond it something is wrong with the tree.
const MAX_ENTRIES: usize = 10_000;

/// Where to look, and for what.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// Root of the run folders.
    pub root: &'a Path,
    /// Whose the tree must be.
    pub owner: u32,
    /// The cluster; `None`: it is not known.
    pub cluster: Option<&'a str>,
    /// The node; `None`: it is not known.
    pub node: Option<&'a str>,
    /// The job.
    pub job: u32,
}

/// Why no gate was read.
#[derive(Debug, thiserror::Error)]
pub enum GateError {
    /// There is none.
    #[error("there is no verdict file")]
    Missing,
    /// More than one cluster or node of this host has one.
    #[error(
        "several clusters or nodes on this host have a verdict for this job id, and it is not known which is meant"
    )]
    Ambiguous,
    /// Something on the way is not as the helper makes it.
    #[error("{what} is not a {expected} that only root can change")]
    Foreign {
        /// What.
        what: String,
        /// What it should be.
        expected: &'static str,
    },
    /// The system refused.
    #[error("{what} can't be read: {cause}")]
    Unreadable {
        /// What.
        what: String,
        /// Why.
        cause: std::io::Error,
    },
    /// The content is no gate.
    #[error("the verdict file, or what stands beside it, is broken: {0}")]
    Broken(String),
}

/// The folder of one run of a job.
#[derive(Debug)]
pub struct RunFolder {
    folder: OwnedFd,
    owner: u32,
}

/// The folder of the highest restart of this job.
///
/// # Errors
/// If there is none, more than one node's, or it can't be trusted or read.
pub fn find(wanted: &Wanted<'_>) -> Result<RunFolder, GateError> {
    let root_name = wanted.root.display().to_string();
    let root = match openat(CWD, wanted.root, FOLDER, Mode::empty()) {
        Ok(root) => checked(root, &root_name, wanted.owner, FileType::Directory)?,
        Err(Errno::NOENT) => return Err(GateError::Missing),
        Err(errno) => return Err(unreadable(&root_name, errno)),
    };
    let mut found = None;
    for cluster in folders(&root, wanted.cluster, wanted.owner)? {
        for node in folders(&cluster, wanted.node, wanted.owner)? {
            let Some(folder) = newest_of(&node, wanted.job)? else { continue };
            if found.replace((node, folder)).is_some() {
                return Err(GateError::Ambiguous);
            }
        }
    }
    let (node, name) = found.ok_or(GateError::Missing)?;
    let folder = enter(&node, &name, wanted.owner)?.ok_or(GateError::Missing)?;
    Ok(RunFolder { folder, owner: wanted.owner })
}

impl RunFolder {
    /// The gate.
    ///
    /// # Errors
    /// If there is none, or it can't be trusted or read.
    pub fn gate(&self) -> Result<Gate, GateError> {
        let content = self.content(FILE_NAME, MAX_BYTES)?.ok_or(GateError::Missing)?;
        let gate: Gate =
            serde_json::from_slice(&content).map_err(|cause| GateError::Broken(cause.to_string()))?;
        if gate.schema == 1 {
            Ok(gate)
        } else {
            Err(GateError::Broken(format!("schema {} is unknown", gate.schema)))
        }
    }

    /// How ranks reach the agent; `None`: they don't.
    ///
    /// # Errors
    /// If the file can't be trusted or read.
    pub fn telemetry(&self) -> Result<Option<Telemetry>, GateError> {
        let Some(content) = self.content(telemetry::FILE_NAME, telemetry::MAX_BYTES)? else {
            return Ok(None);
        };
        let found: Telemetry =
            serde_json::from_slice(&content).map_err(|cause| GateError::Broken(cause.to_string()))?;
        if found.is_sound() {
            Ok(Some(found))
        } else {
            Err(GateError::Broken("it can't be put into an environment".into()))
        }
    }

    /// Tells the agent that a task has a profiler of the user's own. The first such task is enough.
    ///
    /// # Errors
    /// If the file can't be written.
    pub fn note_taken(&self, value: &str) -> std::io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = match openat(&self.folder, TAKEN_FILE_NAME, flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => File::from(file),
            Err(Errno::EXIST) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        };
        let shown: String = value.chars().take(MAX_TAKEN_CHARS).collect();
        std::io::Write::write_all(&mut &file, shown.as_bytes())
    }

    fn content(&self, name: &'static str, most: usize) -> Result<Option<Vec<u8>>, GateError> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = match openat(&self.folder, name, flags, Mode::empty()) {
            Ok(file) => checked(file, name, self.owner, FileType::RegularFile)?,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => return Err(GateError::Foreign { what: name.into(), expected: "file" }),
            Err(errno) => return Err(unreadable(name, errno)),
        };
        let content = read_open(&File::from(file), most + 1)
            .map_err(|cause| GateError::Unreadable { what: name.into(), cause })?;
        if content.len() > most {
            return Err(GateError::Broken(format!("it is larger than {most} bytes")));
        }
        Ok(Some(content))
    }
}

const FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC)
    .union(OFlags::NONBLOCK);

/// The folders in `parent`: the named one, or all.
fn folders(parent: &OwnedFd, name: Option<&str>, owner: u32) -> Result<Vec<OwnedFd>, GateError> {
    let names = match name {
        Some(name) => vec![name.to_owned()],
        None => names(parent)?,
    };
    names.iter().filter_map(|name| enter(parent, name, owner).transpose()).collect()
}

/// Opens a folder; `None` if there is none of that name.
fn enter(parent: &OwnedFd, name: &str, owner: u32) -> Result<Option<OwnedFd>, GateError> {
    match openat(parent, name, FOLDER, Mode::empty()) {
        Ok(folder) => checked(folder, name, owner, FileType::Directory).map(Some),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(Errno::LOOP) => Err(GateError::Foreign { what: name.to_owned(), expected: "folder" }),
        Err(errno) => Err(unreadable(name, errno)),
    }
}

fn names(folder: &OwnedFd) -> Result<Vec<String>, GateError> {
    let entries = Dir::read_from(folder).map_err(|errno| unreadable("a run folder", errno))?;
    let mut names = Vec::new();
    for entry in entries.take(MAX_ENTRIES) {
        let entry = entry.map_err(|errno| unreadable("a run folder", errno))?;
        names.extend(plain_name(entry.file_name()));
    }
    Ok(names)
}

fn plain_name(name: &CStr) -> Option<String> {
    let name = name.to_str().ok()?;
    (!matches!(name, "." | "..")).then(|| name.to_owned())
}

/// Name of the folder of the job's last restart.
fn newest_of(node: &OwnedFd, job: u32) -> Result<Option<String>, GateError> {
    let restart = names(node)?.iter().filter_map(|name| restart_of(name, job)).max();
    Ok(restart.map(|restart| format!("{job}.{restart}")))
}

/// The restart count in the name of one of this job's folders, in the one spelling that the helper uses.
fn restart_of(name: &str, job: u32) -> Option<u32> {
    let (id, restart) = name.split_once('.')?;
    let count = restart.parse().ok()?;
    (id == job.to_string() && restart == format!("{count}")).then_some(count)
}

/// Passes on what is open if it is of the right kind, the owner's, and nobody else may write it.
fn checked(fd: OwnedFd, name: &str, owner: u32, kind: FileType) -> Result<OwnedFd, GateError> {
    let stat: Stat = fstat(fd.as_fd()).map_err(|errno| unreadable(name, errno))?;
    let others_may_write = Mode::from_raw_mode(stat.st_mode).intersects(Mode::WGRP | Mode::WOTH);
    if FileType::from_raw_mode(stat.st_mode) != kind || stat.st_uid != owner || others_may_write {
        let expected = if kind == FileType::Directory { "folder" } else { "file" };
        return Err(GateError::Foreign { what: name.to_owned(), expected });
    }
    Ok(fd)
}

fn unreadable(what: &str, errno: Errno) -> GateError {
    GateError::Unreadable { what: what.to_owned(), cause: errno.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    const GOOD: &str = r#"{"schema":1,"start":false,"lines":["no"]}"#;

    struct Tree {
        folder: tempfile::TempDir,
    }

    impl Tree {
        fn new() -> Self {
            Self { folder: tempfile::tempdir().unwrap() }
        }

        fn gate(&self, path: &str, content: &str) -> &Self {
            let folder = self.folder.path().join(path);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(FILE_NAME), content).unwrap();
            self
        }

        fn read(&self, cluster: Option<&str>, node: Option<&str>) -> Result<Gate, GateError> {
            let owner = rustix::process::getuid().as_raw();
            find(&Wanted { root: self.folder.path(), owner, cluster, node, job: 7 })?.gate()
        }
    }

    #[test]
    fn the_highest_restart_counts_and_only_this_job_s() {
        let tree = Tree::new();
        tree.gate("c/n1/7.2", r#"{"schema":1,"start":true,"lines":[]}"#).gate("c/n1/7.10", GOOD);
        tree.gate("c/n1/77.99", "x").gate("c/n1/7.011", "x").gate("c/n1/7.x", "x");
        assert!(!tree.read(None, Some("n1")).unwrap().start);
        assert!(matches!(tree.read(None, Some("n2")), Err(GateError::Missing)));
    }

    #[test]
    fn two_nodes_or_clusters_on_one_host_are_told_apart_or_refused() {
        let tree = Tree::new();
        tree.gate("c/n1/7.0", GOOD).gate("c/n2/7.0", GOOD).gate("d/n1/7.0", GOOD);
        assert!(matches!(tree.read(None, None), Err(GateError::Ambiguous)));
        assert!(matches!(tree.read(None, Some("n1")), Err(GateError::Ambiguous)));
        assert!(tree.read(None, Some("n2")).is_ok());
        assert!(tree.read(Some("d"), Some("n1")).is_ok());
    }

    #[test]
    fn links_foreign_owners_and_open_modes_are_refused() {
        let tree = Tree::new();
        let root = tree.folder.path();
        tree.gate("c/n1/7.0", GOOD);
        let gate = root.join("c/n1/7.0").join(FILE_NAME);
        let wanted = Wanted { root, owner: 4_000_000, cluster: None, node: Some("n1"), job: 7 };
        assert!(matches!(find(&wanted), Err(GateError::Foreign { .. })));

        fs::set_permissions(&gate, fs::Permissions::from_mode(0o666)).unwrap();
        assert!(matches!(tree.read(None, Some("n1")), Err(GateError::Foreign { .. })));

        fs::rename(&gate, root.join("elsewhere")).unwrap();
        symlink(root.join("elsewhere"), &gate).unwrap();
        assert!(matches!(tree.read(None, Some("n1")), Err(GateError::Foreign { .. })));

        fs::rename(root.join("c/n1"), root.join("moved")).unwrap();
        symlink(root.join("moved"), root.join("c/n1")).unwrap();
        assert!(tree.read(None, Some("n1")).is_err());
    }

    #[test]
    fn a_broken_gate_is_an_error() {
        for content in ["", "{", r#"{"schema":2,"start":true,"lines":[]}"#, &"x".repeat(MAX_BYTES + 1)] {
            let tree = Tree::new();
            tree.gate("c/n1/7.0", content);
            assert!(matches!(tree.read(None, Some("n1")), Err(GateError::Broken(_))), "{content:.20}");
        }
        let tree = Tree::new();
        fs::create_dir_all(tree.folder.path().join("c/n1/7.0").join(FILE_NAME)).unwrap();
        assert!(matches!(tree.read(None, Some("n1")), Err(GateError::Foreign { .. })));
    }

    #[test]
    fn what_tasks_get_is_read_with_the_same_care() {
        let tree = Tree::new();
        tree.gate("c/n1/7.0", GOOD);
        let root = tree.folder.path();
        let owner = rustix::process::getuid().as_raw();
        let found = find(&Wanted { root, owner, cluster: None, node: None, job: 7 }).unwrap();
        assert_eq!(found.telemetry().unwrap(), None);
        let path = root.join("c/n1/7.0").join(telemetry::FILE_NAME);
        let good = Telemetry::new("aimaster-c4d/n1/7/0".into(), "/x/y.so".into(), &[]);
        fs::write(&path, serde_json::to_vec(&good).unwrap()).unwrap();
        assert_eq!(found.telemetry().unwrap(), Some(good));
        for content in ["", "{", r#"{"schema":1,"socket":"s","profiler":"relative"}"#] {
            fs::write(&path, content).unwrap();
            assert!(matches!(found.telemetry(), Err(GateError::Broken(_))), "{content}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o622)).unwrap();
        assert!(matches!(found.telemetry(), Err(GateError::Foreign { .. })));
    }

    #[test]
    fn the_first_foreign_profiler_is_noted_and_bounded() {
        let tree = Tree::new();
        tree.gate("c/n1/7.0", GOOD);
        let root = tree.folder.path();
        let owner = rustix::process::getuid().as_raw();
        let found = find(&Wanted { root, owner, cluster: None, node: None, job: 7 }).unwrap();
        found.note_taken(&"x".repeat(100_000)).unwrap();
        found.note_taken("second").unwrap();
        let noted = fs::read_to_string(root.join("c/n1/7.0").join(TAKEN_FILE_NAME)).unwrap();
        assert_eq!(noted, "x".repeat(MAX_TAKEN_CHARS));
    }
}
