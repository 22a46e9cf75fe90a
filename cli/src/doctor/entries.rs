//! What lies at a path, and who else can change it.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use cluster::trusted_path;
use diag::doctor::facts::{Entry, Is};

/// The bits of a mode that say who may do what.
const PERMISSIONS: u32 = 0o7777;

/// The entry, links followed.
pub fn look(path: &Path) -> Entry {
    let (is, owner, mode) = match path.metadata() {
        Ok(about) => {
            let is = if about.is_file() {
                Is::File
            } else if about.is_dir() {
                Is::Folder
            } else {
                Is::Other
            };
            (is, about.uid(), about.mode() & PERMISSIONS)
        }
        Err(error) if error.kind() == ErrorKind::NotFound => (Is::Nothing, 0, 0),
        Err(_) => (Is::Hidden, 0, 0),
    };
    Entry { path: path.to_owned(), is, owner, mode, open: None }
}

/// The same, and where on the way to it others than root can change something.
pub fn guarded(path: &Path) -> Entry {
    let open = match trusted_path::of_root(path) {
        Err(error @ trusted_path::PathError::Open { .. }) => Some(error.to_string()),
        Ok(_) | Err(_) => None,
    };
    Entry { open, ..look(path) }
}

/// The same of storage that may not answer; `None`: it did not within that time. A thread that it keeps is left behind.
pub fn within(path: PathBuf, time: Duration) -> Option<Entry> {
    let (done, found) = mpsc::channel();
    let look = move || _ = done.send(look(&path));
    std::thread::Builder::new().name("storage".into()).spawn(look).ok()?;
    found.recv_timeout(time).ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_lies_there_is_told_with_who_can_change_it() {
        let folder = tempfile::Builder::new().prefix("aimaster-doctor-").tempdir_in("/tmp").unwrap();
        let path = folder.path().join("aimaster-prolog");
        assert_eq!(look(&path).is, Is::Nothing);
        std::fs::write(&path, "").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
        let entry = guarded(&path);
        assert_eq!((entry.is, entry.mode, entry.is_program()), (Is::File, 0o640, false));
        // Everybody may write in /tmp.
        assert!(entry.open.unwrap().contains("/tmp can be changed by others"));
        assert_eq!(guarded(Path::new("/bin/sh")).open, None);
        assert_eq!(within("/".into(), Duration::from_secs(5)).unwrap().is, Is::Folder);
    }
}
