//! Where a report goes: `<report_dir>/<cluster>/<job>/<check_number>/report.json`, readable by its owner and the job's
//! group. `report_dir` is the admin's and may be a folder that others write in as well: it is left as it is, and what
//! lies below it is not trusted.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use diag::policy::ReportOwner;
use diag::report::Report;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, fchmod, fstat, mkdirat, openat, renameat, unlinkat};
use rustix::io::Errno;

/// Name of the report's file.
pub const REPORT_FILE: &str = "report.json";

/// Its name while it is written.
const FRESH_FILE: &str = "report.new";

/// The way in is open, the file itself is not.
const OPEN: u32 = 0o755;

/// Writes the report, whole or not at all, and says where it is. The calling process must be the owner.
///
/// # Errors
/// If a folder or the file can't be written, or a folder on the way is a link or somebody else's.
pub fn write(
    report_dir: &Path,
    report: &Report,
    owner: ReportOwner,
    group: Option<u32>,
) -> io::Result<PathBuf> {
    if !report_dir.exists() {
        fs::create_dir_all(report_dir)?;
        fs::set_permissions(report_dir, Permissions::from_mode(OPEN))?;
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let top = openat(CWD, report_dir, flags, Mode::empty())?;
    let [cluster, job, check] =
        [report.cluster.clone(), report.job_id.to_string(), report.check_number.to_string()];
    let folder = match owner {
        ReportOwner::Root => own(&top, &cluster)?,
        ReportOwner::User => shared(&top, &cluster)?,
    };
    let folder = own(&own(&folder, &job)?, &check)?;
    let mut text = serde_json::to_vec_pretty(report)?;
    text.push(b'\n');
    match unlinkat(&folder, FRESH_FILE, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno.into()),
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(openat(&folder, FRESH_FILE, flags, Mode::RUSR | Mode::WUSR)?);
    file.write_all(&text)?;
    fchown(&file, None, group)?;
    fchmod(&file, Mode::RUSR | Mode::WUSR | Mode::RGRP)?;
    renameat(&folder, FRESH_FILE, &folder, REPORT_FILE)?;
    Ok(report_dir.join(cluster).join(job).join(check).join(REPORT_FILE))
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

    use diag::facts::Engine;
    use diag::verdict::Outcome;
    use jiff::Timestamp;

    use super::*;

    fn some_report() -> Report {
        Report {
            schema: 1,
            job_id: 7,
            cluster: "aim".into(),
            check_number: 1,
            engine: Engine::Host,
            started_at: Timestamp::UNIX_EPOCH,
            finished_at: Timestamp::UNIX_EPOCH,
            outcome: Outcome::Pass,
            summary: String::new(),
            action: "start".into(),
            nodes: Vec::new(),
            items: Vec::new(),
            drained: Vec::new(),
            errors: Vec::new(),
            notes: Vec::new(),
        }
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn the_admins_folder_keeps_its_mode() {
        let base = tempfile::tempdir().unwrap();
        for wanted in [0o1777, 0o775, 0o750] {
            fs::set_permissions(base.path(), Permissions::from_mode(wanted)).unwrap();
            let path = write(base.path(), &some_report(), ReportOwner::Root, None).unwrap();
            assert_eq!((mode(base.path()), mode(&path)), (wanted, 0o640));
            assert_eq!(mode(path.parent().unwrap()), 0o755);
        }
        let made = base.path().join("new/reports");
        let path = write(&made, &some_report(), ReportOwner::Root, None).unwrap();
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
        symlink(&victim, reports.join("aim/7/1/report.new")).unwrap();
        write(&reports, &some_report(), ReportOwner::Root, None).unwrap();
        assert_eq!((fs::read_to_string(&victim).unwrap(), mode(&victim)), ("untouched".into(), 0o600));

        // Users' reports: the folder that they share is root's to make.
        let error = write(&reports.join("none"), &some_report(), ReportOwner::User, None).unwrap_err();
        assert!(error.to_string().contains("1777"), "{error}");

        let elsewhere = base.path().join("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        fs::remove_dir_all(reports.join("aim/7")).unwrap();
        symlink(&elsewhere, reports.join("aim/7")).unwrap();
        write(&reports, &some_report(), ReportOwner::Root, None).unwrap_err();
        assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
    }
}
