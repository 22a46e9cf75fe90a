//! Whether a program may be run, a library loaded, or a policy believed: nobody but root can have changed it, or any folder
//! on the way to it. A walk by hand, because a symbolic link may lead through a folder that the path doesn't show.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// Most symbolic links on the way, as in Linux.
const MOST_LINKS: u32 = 40;

/// Bits that let others than the owner write.
const OTHERS_WRITE: u32 = 0o022;

/// The bit that lets the group write.
const GROUP_WRITES: u32 = 0o020;

/// The bit of a folder in which nobody removes or renames what is another's.
const STICKY: u32 = 0o1000;

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
///
/// # Errors
/// It is none, or others can change it.
pub fn program(path: &Path) -> Result<bool, PathError> {
    match walk(path, Rule::Ever)? {
        None => Ok(false),
        Some((_, metadata)) if metadata.is_file() && metadata.mode() & RUN != 0 => Ok(true),
        Some((at, _)) => Err(PathError::NoProgram { path: at }),
    }
}

/// Whether there is anything at `path`, which must be absolute: a library, or a folder of them.
///
/// # Errors
/// Others can change it.
pub fn anything(path: &Path) -> Result<bool, PathError> {
    Ok(walk(path, Rule::Ever)?.is_some())
}

/// Whether there is anything at `path`, which must be absolute, of which nobody but root can have changed what is there
/// now. It is for what is read at once: root's file in `/tmp` is as good as elsewhere while it is there, and members of
/// the group root are root.
///
/// # Errors
/// Others could have put it there, or changed it.
pub fn file_of_now(path: &Path) -> Result<bool, PathError> {
    Ok(walk(path, Rule::Now)?.is_some())
}

/// What is asked of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// Others can't change it now, nor put something there once it is gone.
    Ever,
    /// What is there now was not put there by others.
    Now,
}

/// The same of what root will use, whoever asks: nobody else's files are as good as root's then.
///
/// # Errors
/// Others than root can change it or the way to it, or it can't be looked at.
pub fn of_root(path: &Path) -> Result<bool, PathError> {
    Ok(walk_of(path, Rule::Ever, 0)?.is_some())
}

/// Follows `path` to what is there.
fn walk(path: &Path, rule: Rule) -> Result<Option<(PathBuf, Metadata)>, PathError> {
    // Where this software does not run as root, its own user's files are as good as its own program.
    walk_of(path, rule, rustix::process::geteuid().as_raw())
}

fn walk_of(path: &Path, rule: Rule, own: u32) -> Result<Option<(PathBuf, Metadata)>, PathError> {
    let mut parts: VecDeque<OsString> = names(path);
    let mut at = PathBuf::from("/");
    let mut last = look(&at)?;
    let mut links = 0;
    check(&at, last.as_ref(), own, rule)?;
    while let Some(part) = parts.pop_front() {
        if part == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&part);
        last = look(&next)?;
        let Some(metadata) = &last else { return Ok(None) };
        if !metadata.is_symlink() {
            check(&next, Some(metadata), own, rule)?;
            at = next;
            continue;
        }
        // In a folder in which all may write, a link can be anybody's.
        if rule == Rule::Now && !is_own(metadata, own) {
            return Err(open(&next, metadata));
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

fn check(path: &Path, metadata: Option<&Metadata>, own: u32, rule: Rule) -> Result<(), PathError> {
    let Some(metadata) = metadata else { return Ok(()) };
    let mut write = metadata.mode() & OTHERS_WRITE;
    if rule == Rule::Now {
        if metadata.gid() == 0 {
            write &= !GROUP_WRITES;
        }
        if metadata.is_dir() && metadata.mode() & STICKY != 0 {
            write = 0;
        }
    }
    if is_own(metadata, own) && write == 0 { Ok(()) } else { Err(open(path, metadata)) }
}

fn is_own(metadata: &Metadata, own: u32) -> bool {
    metadata.uid() == 0 || metadata.uid() == own
}

fn open(path: &Path, metadata: &Metadata) -> PathError {
    PathError::Open { path: path.to_owned(), owner: metadata.uid(), mode: metadata.mode() & 0o7777 }
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

    #[test]
    fn what_is_read_at_once_may_lie_in_tmp_but_is_nobody_elses() {
        let folder = tempfile::Builder::new().prefix("aimaster-path-").tempdir_in("/tmp").unwrap();
        let (policy, link) = (folder.path().join("policy"), folder.path().join("link"));
        std::fs::write(&policy, "").unwrap();
        symlink(&policy, &link).unwrap();
        assert!(file_of_now(&policy).unwrap() && file_of_now(&link).unwrap());
        assert!(!file_of_now(&folder.path().join("none")).unwrap());
        let mode =
            |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        mode(&policy, 0o646);
        assert!(matches!(file_of_now(&link), Err(PathError::Open { mode: 0o646, .. })));
        mode(&policy, 0o644);
        mode(folder.path(), 0o777);
        assert!(file_of_now(&policy).is_err());
        mode(folder.path(), 0o1777);
        assert!(file_of_now(&policy).unwrap());
        // The rest needs another user.
        if std::os::unix::fs::lchown(&link, Some(65_534), None).is_ok() {
            assert!(matches!(file_of_now(&link), Err(PathError::Open { owner: 65_534, .. })));
            std::os::unix::fs::chown(&policy, Some(65_534), None).unwrap();
            assert!(matches!(file_of_now(&policy), Err(PathError::Open { owner: 65_534, .. })));
            std::os::unix::fs::chown(&policy, Some(0), Some(65_534)).unwrap();
            mode(&policy, 0o664);
            assert!(file_of_now(&policy).is_err());
            std::os::unix::fs::chown(&policy, Some(0), Some(0)).unwrap();
            assert!(file_of_now(&policy).unwrap());
        }
    }
}
