//! Whether a program may be run, or a library loaded, that the policy names: nobody but root can have changed it, or any folder on the
//! way to it. A walk by hand, because a symbolic link may lead through a folder that the path doesn't show.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// Most symbolic links on the way, as in Linux.
const MOST_LINKS: u32 = 40;

/// Bits that let others than the owner write.
const OTHERS_WRITE: u32 = 0o022;

/// Any of the bits that let somebody run it.
const RUN: u32 = 0o111;

/// Why a program is not run.
#[derive(Debug, thiserror::Error)]
pub enum PathError {
    /// Somebody else could have put another program there.
    #[error("{} can be changed by others than root (owner {owner}, mode {mode:o}); mend that, or name another", .path.display())]
    Open {
        /// What can be changed: the file, or a folder above it.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
        /// Its permissions.
        mode: u32,
    },
    /// It is no program.
    #[error("{} is no program", .path.display())]
    NoProgram {
        /// What lies there.
        path: PathBuf,
    },
    /// Links that lead nowhere.
    #[error("{} goes through more than {MOST_LINKS} symbolic links", .path.display())]
    Links {
        /// Where the way begins.
        path: PathBuf,
    },
    /// The operating system refused.
    #[error("{} can't be looked at: {source}", .path.display())]
    Unreadable {
        /// What.
        path: PathBuf,
        /// Its words.
        source: std::io::Error,
    },
}

/// Whether there is a program at `path`, which must be absolute.
pub(crate) fn program(path: &Path) -> Result<bool, PathError> {
    match walk(path)? {
        None => Ok(false),
        Some((_, metadata)) if metadata.is_file() && metadata.mode() & RUN != 0 => Ok(true),
        Some((at, _)) => Err(PathError::NoProgram { path: at }),
    }
}

/// Whether there is anything at `path`, which must be absolute: a library, or a folder of them.
pub(crate) fn anything(path: &Path) -> Result<bool, PathError> {
    Ok(walk(path)?.is_some())
}

/// The same of what root will use, whoever asks: nobody else's files are as good as root's then.
///
/// # Errors
/// Others than root can change it or the way to it, or it can't be looked at.
pub fn of_root(path: &Path) -> Result<bool, PathError> {
    Ok(walk_of(path, 0)?.is_some())
}

/// Follows `path` to what is there.
fn walk(path: &Path) -> Result<Option<(PathBuf, Metadata)>, PathError> {
    // Where this software does not run as root, its own user's files are as good as its own program.
    walk_of(path, rustix::process::geteuid().as_raw())
}

fn walk_of(path: &Path, own: u32) -> Result<Option<(PathBuf, Metadata)>, PathError> {
    let mut parts: VecDeque<OsString> = names(path);
    let mut at = PathBuf::from("/");
    let mut last = look(&at)?;
    let mut links = 0;
    check(&at, last.as_ref(), own)?;
    while let Some(part) = parts.pop_front() {
        if part == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&part);
        last = look(&next)?;
        let Some(metadata) = &last else { return Ok(None) };
        if !metadata.is_symlink() {
            check(&next, Some(metadata), own)?;
            at = next;
            continue;
        }
        links += 1;
        if links > MOST_LINKS {
            return Err(PathError::Links { path: path.to_owned() });
        }
        let target = std::fs::read_link(&next)
            .map_err(|source| PathError::Unreadable { path: next.clone(), source })?;
        if target.is_absolute() {
            at = PathBuf::from("/");
        }
        for name in names(&target).into_iter().rev() {
            parts.push_front(name);
        }
    }
    Ok(last.map(|metadata| (at, metadata)))
}

fn names(path: &Path) -> VecDeque<OsString> {
    path.components()
        .filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
        })
        .collect()
}

fn look(path: &Path) -> Result<Option<Metadata>, PathError> {
    match std::fs::symlink_metadata(path) {
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(PathError::Unreadable { path: path.to_owned(), source }),
    }
}

fn check(path: &Path, metadata: Option<&Metadata>, own: u32) -> Result<(), PathError> {
    let Some(metadata) = metadata else { return Ok(()) };
    let (owner, mode) = (metadata.uid(), metadata.mode() & 0o7777);
    if (owner == 0 || owner == own) && mode & OTHERS_WRITE == 0 {
        return Ok(());
    }
    Err(PathError::Open { path: path.to_owned(), owner, mode })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn system_programs_are_fine_and_absent_ones_are_absent() {
        assert!(program(Path::new("/bin/sh")).unwrap());
        assert!(!program(Path::new("/usr/bin/no-such-python")).unwrap());
        assert!(matches!(program(Path::new("/usr")), Err(PathError::NoProgram { .. })));
        assert!(matches!(program(Path::new("/etc/passwd")), Err(PathError::NoProgram { .. })));
    }

    #[test]
    fn what_others_can_change_is_refused_also_behind_a_link() {
        // A folder that everybody may write to, sticky or not, and a link that leads through it.
        let folder = tempfile::Builder::new().prefix("aimaster-path-").tempdir_in("/tmp").unwrap();
        let python = folder.path().join("python3");
        std::fs::copy("/bin/true", &python).unwrap();
        assert!(matches!(program(&python), Err(PathError::Open { .. })));
        let Ok(closed) = tempfile::Builder::new().prefix("aimaster-path-").tempdir_in("/var/lib") else {
            assert!(!rustix::process::geteuid().is_root());
            return;
        };
        let link = closed.path().join("link");
        symlink(&python, &link).unwrap();
        assert!(matches!(program(&link), Err(PathError::Open { .. })));
        let own = closed.path().join("python3");
        std::fs::copy("/bin/true", &own).unwrap();
        let relative = closed.path().join("relative");
        symlink(
            "../".to_owned() + closed.path().file_name().unwrap().to_str().unwrap() + "/python3",
            &relative,
        )
        .unwrap();
        assert!(program(&own).unwrap() && program(&relative).unwrap());
        std::fs::set_permissions(&own, PermissionsExt::from_mode(0o775)).unwrap();
        assert!(matches!(program(&relative), Err(PathError::Open { mode: 0o775, .. })));
        let circle = closed.path().join("circle");
        symlink(&circle, &circle).unwrap();
        assert!(matches!(program(&circle), Err(PathError::Links { .. })));
    }
}
