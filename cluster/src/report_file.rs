//! Where reports go: `<report_dir>/<cluster>/<job>/<check_number>/`, readable by their owner and the job's group or user.
//! `report_dir` is the admin's and may be a folder that others write in as well: it is left as it is, and what lies below
//! it is not trusted. Who writes is [`crate::report_writer`]'s matter.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, fchown};
use std::path::PathBuf;

use diag::policy::{ReportOwner, ReportReaders};
use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, XattrFlags, fchmod, fsetxattr, fstat, mkdirat, openat, renameat, unlinkat,
};
use rustix::io::Errno;

use crate::slurm::environment::is_plain_name;

/// Name of the report on the checks before the start.
pub const REPORT_FILE: &str = "report.json";

/// End of a file's name while it is written.
const FRESH: &str = ".new";

/// The attribute in which Linux keeps a file's access list.
const ACCESS_LIST: &str = "system.posix_acl_access";

/// The way in is open, the file itself is not.
const OPEN: u32 = 0o755;

/// Whose a report is to be, and who may read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rights {
    /// The policy's word.
    pub owner: ReportOwner,
    /// The policy's word.
    pub readers: ReportReaders,
    /// The job's user.
    pub uid: u32,
    /// The job's group, where Slurm said it.
    pub gid: Option<u32>,
}

/// Which file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The policy's folder of reports.
    pub report_dir: PathBuf,
    /// The cluster.
    pub cluster: String,
    /// The job.
    pub job_id: u32,
    /// 1 for the job's first start.
    pub check_number: u32,
    /// Its name in the folder of the check.
    pub file: String,
}

impl Place {
    /// Where it is.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        let folder = self.report_dir.join(&self.cluster).join(self.job_id.to_string());
        folder.join(self.check_number.to_string()).join(&self.file)
    }
}

/// Writes a file of reports, whole or not at all, and says where it is. The calling process must be the owner.
///
/// # Errors
/// If a folder or the file can't be written, or a folder on the way is a link or somebody else's.
pub fn write(place: &Place, text: &[u8], rights: Rights) -> io::Result<PathBuf> {
    let owner = rights.owner;
    let Place { report_dir, cluster, job_id, check_number, file: name } = place;
    if !is_plain_name(cluster) || !is_plain_name(name) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "no name of a cluster or of a report"));
    }
    if !report_dir.exists() {
        // Not for a moment may others write in one of them, whatever the umask.
        DirBuilder::new().recursive(true).mode(OPEN).create(report_dir)?;
        fs::set_permissions(report_dir, Permissions::from_mode(OPEN))?;
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let top = openat(CWD, report_dir, flags, Mode::empty())?;
    let folder = match owner {
        ReportOwner::Root => own(&top, cluster)?,
        ReportOwner::User => shared(&top, cluster)?,
    };
    let folder = own(&own(&folder, &job_id.to_string())?, &check_number.to_string())?;
    let fresh = format!("{name}{FRESH}");
    match unlinkat(&folder, &fresh, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno.into()),
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(openat(&folder, &fresh, flags, Mode::RUSR | Mode::WUSR)?);
    file.write_all(text)?;
    admit(&file, rights)?;
    renameat(&folder, &fresh, &folder, name)?;
    Ok(place.path())
}

/// Lets in who may read it. It was made for its owner alone.
fn admit(file: &File, rights: Rights) -> io::Result<()> {
    match (rights.readers, rights.owner) {
        (ReportReaders::Group, _) => {
            fchown(file, None, rights.gid)?;
            fchmod(file, Mode::RUSR | Mode::WUSR | Mode::RGRP)?;
        }
        (ReportReaders::User, ReportOwner::User) => {}
        (ReportReaders::User, ReportOwner::Root) => {
            let list = access_list(rights.uid);
            match fsetxattr(file, ACCESS_LIST, &list, XattrFlags::empty()) {
                // Storage without access lists: root alone reads it.
                Ok(()) | Err(Errno::NOTSUP) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
    Ok(())
}

/// The access list of a file that its owner writes and one other user reads, as Linux takes it (acl(5), and
/// `linux/posix_acl_xattr.h` for the form).
fn access_list(uid: u32) -> Vec<u8> {
    const VERSION: u32 = 2;
    const NOBODY: u32 = u32::MAX;
    const READ: u16 = 4;
    const READ_WRITE: u16 = 6;
    let (owner, user, group, mask, others) = (1, 2, 4, 0x10, 0x20);
    let entries: [(u16, u16, u32); 5] = [
        (owner, READ_WRITE, NOBODY),
        (user, READ, uid),
        (group, 0, NOBODY),
        (mask, READ, NOBODY),
        (others, 0, NOBODY),
    ];
    let mut list = VERSION.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        list.extend(tag.to_le_bytes());
        list.extend(rights.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    list
}

/// A folder of this process's own in `parent`; made if it is missing.
fn own(parent: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
    match mkdirat(parent, name, Mode::from_raw_mode(OPEN)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno.into()),
    }
    let folder = open_folder(parent, name)?;
    if fstat(&folder)?.st_uid != rustix::process::geteuid().as_raw() {
        let words = format!("the folder {name} was made by somebody else");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, words));
    }
    // The umask of whoever started slurmd does not count.
    fchmod(&folder, Mode::from_raw_mode(OPEN))?;
    Ok(folder)
}

/// A folder in which the users of a cluster make theirs. Only root can have made it: one user must not shut out
/// the others.
fn shared(parent: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
    let advice = |words: String| {
        let advice = "root must make it, with mode 1777, where paths.report_owner is \"user\"";
        io::Error::new(io::ErrorKind::PermissionDenied, format!("the folder {name} {words}: {advice}"))
    };
    let folder = match open_folder(parent, name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(advice("is missing".into())),
        folder => folder?,
    };
    match fstat(&folder)?.st_uid {
        0 => Ok(folder),
        owner => Err(advice(format!("belongs to uid {owner}"))),
    }
}

fn open_folder(parent: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(parent, name, flags, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use super::*;

    fn place(report_dir: &Path) -> Place {
        let file = REPORT_FILE.to_owned();
        Place { report_dir: report_dir.to_owned(), cluster: "aim".into(), job_id: 7, check_number: 1, file }
    }

    fn put(report_dir: &Path, owner: ReportOwner) -> io::Result<PathBuf> {
        write(&place(report_dir), b"{}\n", rights(owner))
    }

    fn rights(owner: ReportOwner) -> Rights {
        Rights { owner, readers: ReportReaders::Group, uid: 1000, gid: None }
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn the_admins_folder_keeps_its_mode() {
        let base = tempfile::tempdir().unwrap();
        for wanted in [0o1777, 0o775, 0o750] {
            fs::set_permissions(base.path(), Permissions::from_mode(wanted)).unwrap();
            let path = put(base.path(), ReportOwner::Root).unwrap();
            assert_eq!((mode(base.path()), mode(&path)), (wanted, 0o640));
            assert_eq!(mode(path.parent().unwrap()), 0o755);
            assert_eq!(fs::read_to_string(path).unwrap(), "{}\n");
        }
        let made = base.path().join("new/reports");
        let path = put(&made, ReportOwner::Root).unwrap();
        assert_eq!((path, mode(&made)), (made.join("aim/7/1/report.json"), 0o755));
    }

    #[test]
    fn a_link_in_the_way_is_not_followed() {
        let base = tempfile::tempdir().unwrap();
        let victim = base.path().join("victim");
        fs::write(&victim, "untouched").unwrap();
        fs::set_permissions(&victim, Permissions::from_mode(0o600)).unwrap();
        let reports = base.path().join("reports");
        fs::create_dir_all(reports.join("aim/7/1")).unwrap();
        symlink(&victim, reports.join("aim/7/1/report.json.new")).unwrap();
        put(&reports, ReportOwner::Root).unwrap();
        assert_eq!((fs::read_to_string(&victim).unwrap(), mode(&victim)), ("untouched".into(), 0o600));

        // Users' reports: the folder that they share is root's to make.
        let error = put(&reports.join("none"), ReportOwner::User).unwrap_err();
        assert!(error.to_string().contains("1777"), "{error}");

        let elsewhere = base.path().join("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        fs::remove_dir_all(reports.join("aim/7")).unwrap();
        symlink(&elsewhere, reports.join("aim/7")).unwrap();
        put(&reports, ReportOwner::Root).unwrap_err();
        assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
    }

    #[test]
    fn a_report_for_its_user_alone_shows_no_group_anything() {
        // The system's own tests hold for its parser; what it makes of the list is seen in the file's mode.
        let base = tempfile::tempdir_in("/var/tmp").unwrap();
        let rights = Rights { readers: ReportReaders::User, gid: Some(0), ..rights(ReportOwner::Root) };
        let path = write(&place(base.path()), b"{}\n", rights).unwrap();
        let mut list = [0; 100];
        match rustix::fs::getxattr(&path, ACCESS_LIST, &mut list[..]) {
            Ok(length) => {
                // The group's bits are the list's mask now.
                assert_eq!(mode(&path), 0o640);
                assert_eq!(list[..length], access_list(1000));
            }
            Err(_) => assert_eq!(mode(&path), 0o600),
        }
        let own = Rights { owner: ReportOwner::User, ..rights };
        let file = File::create(base.path().join("own")).unwrap();
        fchmod(&file, Mode::RUSR | Mode::WUSR).unwrap();
        admit(&file, own).unwrap();
        assert_eq!(mode(&base.path().join("own")), 0o600);
    }

    #[test]
    fn no_name_leads_elsewhere() {
        let base = tempfile::tempdir().unwrap();
        for odd in ["", "..", "../x", "a/b", ".x"] {
            let cluster = Place { cluster: odd.into(), ..place(base.path()) };
            let file = Place { file: odd.into(), ..place(base.path()) };
            for place in [cluster, file] {
                write(&place, b"", rights(ReportOwner::Root)).unwrap_err();
            }
        }
        assert_eq!(fs::read_dir(base.path()).unwrap().count(), 0);
    }
}
