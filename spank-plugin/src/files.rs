//! Reads a whole file with a bound and without ever waiting: what a user or an admin names may be a FIFO, a
//! device, a folder, or larger than anybody meant. Not for files in folders that others may write; see
//! [`crate::gate_file`] for those.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Why a file was not read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It is not there.
    #[error("there is no such file; check the path")]
    Missing,
    /// It can't be opened or read.
    #[error("{0}")]
    Unreadable(#[source] io::Error),
    /// It is not a file.
    #[error("it is a {kind}, not a regular file")]
    NotAFile {
        /// What it is.
        kind: &'static str,
    },
}

/// The first `most` bytes of a regular file.
///
/// # Errors
/// If it is missing, unreadable, or not a regular file.
pub fn read(path: &Path, most: usize) -> Result<Vec<u8>, ReadError> {
    // O_NONBLOCK: to open a FIFO must not wait for its writer.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC)
        .open(path)
        .map_err(|cause| match cause.kind() {
            io::ErrorKind::NotFound => ReadError::Missing,
            _ => ReadError::Unreadable(cause),
        })?;
    let kind = file.metadata().map_err(ReadError::Unreadable)?.file_type();
    if !kind.is_file() {
        let kind = if kind.is_dir() {
            "folder"
        } else if kind.is_fifo() {
            "FIFO"
        } else {
            "device or socket"
        };
        return Err(ReadError::NotAFile { kind });
    }
    read_open(&file, most).map_err(ReadError::Unreadable)
}

/// What of a program's path others than root could change, if anything: it is about to run as root. A folder in which all
/// may write is fine where nobody can take away what is another's; members of the group root are root.
pub fn open_to_others(program: &Path) -> Option<PathBuf> {
    // A program that is missing is said by who starts it.
    let real = std::fs::canonicalize(program).ok()?;
    let own = rustix::process::geteuid().as_raw();
    let open = |path: &&Path| {
        let Ok(about) = std::fs::symlink_metadata(path) else { return true };
        let all = about.mode() & 0o002 != 0 && !(about.is_dir() && about.mode() & 0o1000 != 0);
        let group =
            about.mode() & 0o020 != 0 && about.gid() != 0 && !(about.is_dir() && about.mode() & 0o1000 != 0);
        (about.uid() != 0 && about.uid() != own) || (!about.is_symlink() && (all || group))
    };
    program.ancestors().chain(real.ancestors()).find(open).map(Path::to_owned)
}

/// The first `most` bytes of an open file.
///
/// # Errors
/// If it can't be read.
pub fn read_open(file: &File, most: usize) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    file.take(u64::try_from(most).unwrap_or(u64::MAX)).read_to_end(&mut content)?;
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::time::{Duration, Instant};

    #[test]
    fn a_program_that_others_can_change_is_found_out() {
        let folder = tempfile::tempdir().unwrap();
        let (program, link) = (folder.path().join("program"), folder.path().join("link"));
        std::fs::write(&program, "").unwrap();
        std::os::unix::fs::symlink(&program, &link).unwrap();
        let mode =
            |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        mode(&program, 0o755);
        // Below /tmp, in which all may write but not take away.
        assert_eq!(open_to_others(&program), None);
        assert_eq!(open_to_others(&link), None);
        assert_eq!(open_to_others(Path::new("/bin/sh")), None);
        mode(&program, 0o757);
        assert_eq!(open_to_others(&link), Some(program.clone()));
        mode(&program, 0o755);
        mode(folder.path(), 0o777);
        assert_eq!(open_to_others(&program).as_deref(), Some(folder.path()));
        mode(folder.path(), 0o755);
        // The rest needs another user.
        if std::os::unix::fs::lchown(&link, Some(65_534), None).is_ok() {
            assert_eq!(open_to_others(&link), Some(link.clone()));
            assert_eq!(open_to_others(&program), None);
            std::os::unix::fs::chown(&program, Some(0), Some(65_534)).unwrap();
            mode(&program, 0o775);
            assert_eq!(open_to_others(&program), Some(program));
        }
    }

    #[test]
    fn reads_up_to_the_bound() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::fs::write(&path, b"12345").unwrap();
        assert_eq!(read(&path, 100).unwrap(), b"12345");
        assert_eq!(read(&path, 3).unwrap(), b"123");
    }

    #[test]
    fn what_is_no_file_is_named_and_never_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RUSR).unwrap();
        let started = Instant::now();
        assert!(matches!(read(&fifo, 1), Err(ReadError::NotAFile { kind: "FIFO" })));
        assert!(matches!(read(folder.path(), 1), Err(ReadError::NotAFile { kind: "folder" })));
        assert!(matches!(read(Path::new("/dev/zero"), 1), Err(ReadError::NotAFile { .. })));
        assert!(matches!(read(&folder.path().join("none"), 1), Err(ReadError::Missing)));
        assert!(started.elapsed() < Duration::from_secs(1));
    }
}
