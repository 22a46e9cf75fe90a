//! Reads a whole file with a bound and without ever waiting: what a user or an admin names may be a FIFO, a
//! device, a folder, or larger than anybody meant. Not for files in folders that others may write; see
//! [`crate::gate_file`] for those.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

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
    use std::time::{Duration, Instant};

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
