//! A file in another's place by a rename: whoever reads or has mapped the old one keeps it whole. Mode, owner and access list are
//! those that are wanted.

use std::fs::{self, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::Path;

use anyhow::{Context, Result};
use rustix::fs::{XattrFlags, fremovexattr, fsetxattr, getxattr};
use rustix::io::Errno;

/// The attribute in which Linux keeps a file's access list (acl(5)). NFSv4 has another form, which it does not let others copy.
const ACCESS_LIST: &str = "system.posix_acl_access";

/// Longest attribute that Linux has (`XATTR_SIZE_MAX`).
const MOST_LIST_BYTES: usize = 64 << 10;

/// Who may do what with a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rights {
    mode: u32,
    /// User and group; `None`: whoever writes it.
    owner: Option<(u32, u32)>,
    /// As the attribute has it, empty where there is none; `None`: as the folder gives it.
    access_list: Option<Vec<u8>>,
}

impl Rights {
    /// Of a new file.
    pub fn new(mode: u32) -> Self {
        Self { mode, owner: None, access_list: None }
    }

    /// Those of a file that is there, if it is.
    pub fn of(path: &Path) -> io::Result<Option<Self>> {
        let about = match fs::metadata(path) {
            Ok(about) => about,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut list = vec![0; MOST_LIST_BYTES];
        let length = match getxattr(path, ACCESS_LIST, &mut list[..]) {
            Ok(length) => length,
            Err(Errno::NODATA | Errno::NOTSUP) => 0,
            Err(errno) => return Err(errno.into()),
        };
        list.truncate(length);
        Ok(Some(Self {
            mode: about.permissions().mode() & 0o7777,
            owner: Some((about.uid(), about.gid())),
            access_list: Some(list),
        }))
    }

    fn give(&self, file: &File) -> io::Result<()> {
        if let Some((user, group)) = self.owner {
            fchown(file, Some(user), Some(group))?;
        }
        file.set_permissions(Permissions::from_mode(self.mode))?;
        // After the mode, which changes a list's mask.
        match self.access_list.as_deref() {
            None => {}
            Some([]) => match fremovexattr(file, ACCESS_LIST) {
                Ok(()) | Err(Errno::NODATA | Errno::NOTSUP) => {}
                Err(errno) => return Err(errno.into()),
            },
            Some(list) => fsetxattr(file, ACCESS_LIST, list, XattrFlags::empty())?,
        }
        Ok(())
    }
}

/// Puts it there.
pub fn put(to: &Path, bytes: &[u8], rights: &Rights) -> Result<()> {
    let name = to.file_name().unwrap_or_default().to_string_lossy();
    // A name with a dot: no pattern of an include fits it. One that a crash left is taken away.
    // On storage that machines share each has its own.
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let fresh = to.with_file_name(format!(".{name}.{host}.new"));
    let whole = || -> io::Result<()> {
        let _ = fs::remove_file(&fresh);
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
        file.write_all(bytes)?;
        rights.give(&file)?;
        file.sync_all()?;
        fs::rename(&fresh, to)
    };
    let written = whole();
    if written.is_err() {
        let _ = fs::remove_file(&fresh);
    }
    written.with_context(|| format!("can't write {}", to.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Its owner reads and writes, one other user and the group read (`linux/posix_acl_xattr.h` for the form).
    fn list(user: u32) -> Vec<u8> {
        let mut list = 2_u32.to_le_bytes().to_vec();
        for (tag, rights, id) in [
            (1_u16, 6_u16, u32::MAX),
            (2, 4, user),
            (4, 4, u32::MAX),
            (0x10, 4, u32::MAX),
            (0x20, 0, u32::MAX),
        ] {
            list.extend(tag.to_le_bytes());
            list.extend(rights.to_le_bytes());
            list.extend(id.to_le_bytes());
        }
        list
    }

    #[test]
    fn an_access_list_stays_and_none_comes() {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = folder.path().join("plugstack.conf");
        assert_eq!(Rights::of(&path).unwrap(), None);
        fs::write(&path, "one\n").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        let plain = Rights::of(&path).unwrap().unwrap();
        assert_eq!((plain.mode, plain.access_list.as_deref()), (0o640, Some(&[][..])));

        let file = File::open(&path).unwrap();
        match fsetxattr(&file, ACCESS_LIST, &list(1000), XattrFlags::empty()) {
            // Storage without access lists.
            Err(Errno::NOTSUP) => return,
            done => done.unwrap(),
        }
        let listed = Rights::of(&path).unwrap().unwrap();
        put(&path, b"two\n", &listed).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "two\n");
        assert_eq!(listed.access_list.as_deref(), Some(&list(1000)[..]));
        assert_eq!(Rights::of(&path).unwrap().unwrap(), listed);

        // A folder gives its new files a list of its own: a file that had none gets none.
        let given = File::open(folder.path()).unwrap();
        fsetxattr(&given, "system.posix_acl_default", &list(1001), XattrFlags::empty()).unwrap();
        fs::remove_file(&path).unwrap();
        put(&path, b"new\n", &Rights::new(0o644)).unwrap();
        assert_ne!(Rights::of(&path).unwrap().unwrap().access_list, plain.access_list);
        put(&path, b"old\n", &plain).unwrap();
        assert_eq!(Rights::of(&path).unwrap().unwrap(), plain);
    }
}
