//! The folder of one run on one node, `/run/aimaster/<cluster>/<node>/<job>.<restart>/`: where the launch gate
//! stands, what the plugin puts into tasks, and when the run began. Root's own and closed to others, since it says what was
//! found of a job; the epilog removes it. Every step down is taken from an open folder, without following links.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use cluster::slurm::config::{self, SlurmConf};
use cluster::slurm::environment::JobEnv;
use diag::gate::{self, Gate};
use diag::run_stamp::{self, RunStamp};
use diag::telemetry::{self, Telemetry};
use kernels::sysfs::{self, Root};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, fchmod, fstat, mkdirat, openat, renameat, unlinkat};
use rustix::io::Errno;

/// Folders that all runs share: their names are what `squeue` shows anyway.
const SHARED: Mode = Mode::RWXU.union(Mode::RGRP).union(Mode::XGRP).union(Mode::ROTH).union(Mode::XOTH);

/// The folder of a run.
const CLOSED: Mode = Mode::RWXU;

/// The folder.
#[derive(Debug, Clone)]
pub struct RunFolder {
    root: PathBuf,
    names: [String; 3],
    path: PathBuf,
    slurm_conf: Option<PathBuf>,
}

impl RunFolder {
    /// The folder of this run; made by the first thing that is written into it.
    #[must_use]
    pub fn of(job: &JobEnv) -> Self {
        Self::below(Path::new(gate::RUN_ROOT), job)
    }

    fn below(root: &Path, job: &JobEnv) -> Self {
        let run = format!("{}.{}", job.job_id, job.restart);
        let path = root.join(&job.cluster).join(&job.node).join(&run);
        let names = [job.cluster.clone(), job.node.clone(), run];
        Self { root: root.to_owned(), names, path, slurm_conf: job.slurm_conf.clone() }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the folder, if it is not there, and says in it when that was.
    ///
    /// # Errors
    /// If the system refuses, or something else is in its place.
    pub fn make(&self) -> io::Result<()> {
        self.open().map(|folder| self.stamp(&folder))
    }

    /// Says when this run began. It does not matter to the job: a run that does not say it is never taken for over, so an
    /// earlier one's word must not stay.
    fn stamp(&self, folder: &OwnedFd) {
        let written = stamp_of(self.slurm_conf.as_deref()).is_some_and(|stamp| {
            serde_json::to_vec(&stamp).is_ok_and(|text| self.write(run_stamp::FILE_NAME, &text).is_ok())
        });
        if !written {
            // There may be none.
            _ = unlinkat(folder, run_stamp::FILE_NAME, AtFlags::empty());
        }
    }

    fn open(&self) -> io::Result<OwnedFd> {
        let [cluster, node, run] = &self.names;
        let root = enter(CWD, &self.root, SHARED)?;
        let cluster = enter(&root, Path::new(cluster), SHARED)?;
        let node = enter(&cluster, Path::new(node), SHARED)?;
        enter(&node, Path::new(run), CLOSED)
    }

    /// Leaves the gate for the plugin, whole or not at all.
    ///
    /// # Errors
    /// If the folder or the file can't be written.
    pub fn write_gate(&self, gate: &Gate) -> io::Result<()> {
        self.write(gate::FILE_NAME, &serde_json::to_vec(gate)?)?;
        // After it: on a full disk the gate is what matters.
        self.make()
    }

    /// Leaves for the plugin what it puts into the tasks' environment, whole or not at all.
    ///
    /// # Errors
    /// If the folder or the file can't be written.
    pub fn write_telemetry(&self, telemetry: &Telemetry) -> io::Result<()> {
        self.write(telemetry::FILE_NAME, &serde_json::to_vec(telemetry)?)
    }

    fn write(&self, name: &str, text: &[u8]) -> io::Result<()> {
        let folder = self.open()?;
        let fresh = format!("{name}.new");
        // Of a helper that was killed at this point; a new file is nobody's link.
        match unlinkat(&folder, &fresh, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&folder, &fresh, flags, Mode::RUSR | Mode::WUSR)?;
        File::from(file).write_all(text)?;
        Ok(renameat(&folder, &fresh, &folder, name)?)
    }
}

/// Now, on this node; `None` where it does not say when that is.
fn stamp_of(slurm_conf: Option<&Path>) -> Option<RunStamp> {
    let machine = Root::new("/");
    let uptime_s = sysfs::uptime_s(&machine)?.try_into().ok()?;
    let conf = config::locate(slurm_conf).and_then(|path| SlurmConf::read(&path));
    let lasting = conf.is_ok_and(|conf| conf.has_extern_steps());
    Some(RunStamp::new(sysfs::boot_id(&machine)?, uptime_s, lasting))
}

/// Opens a folder of this process's own with this mode; makes it if it is not there.
fn enter(parent: impl AsFd, name: &Path, mode: Mode) -> io::Result<OwnedFd> {
    let parent = parent.as_fd();
    match mkdirat(parent, name, mode) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno.into()),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = openat(parent, name, flags, Mode::empty())?;
    let owner = fstat(&folder)?.st_uid;
    if owner != rustix::process::geteuid().as_raw() {
        let words = format!("the folder {} belongs to uid {owner}", name.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, words));
    }
    // The umask of whoever started slurmd does not count.
    fchmod(&folder, mode)?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

    use super::*;
    use crate::assignment::tests::job;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn a_run_is_closed_to_others_and_its_folders_are_mended() {
        let base = tempfile::tempdir().unwrap();
        let root = base.path().join("aimaster");
        let folder = RunFolder::below(&root, &job());
        fs::create_dir_all(folder.path()).unwrap();
        for path in folder.path().ancestors().take(4) {
            fs::set_permissions(path, Permissions::from_mode(0o777)).unwrap();
        }
        folder.write_gate(&Gate::open(Vec::new())).unwrap();
        assert_eq!((mode(folder.path()), mode(&folder.path().join(gate::FILE_NAME))), (0o700, 0o600));
        for path in folder.path().ancestors().skip(1).take(3) {
            assert_eq!(mode(path), 0o755, "{}", path.display());
        }
    }

    #[test]
    fn a_run_says_when_it_began_and_no_earlier_one_s_word_stays() {
        let base = tempfile::tempdir().unwrap();
        let conf = base.path().join("slurm.conf");
        fs::write(&conf, "PrologFlags=Alloc,Contain\n").unwrap();
        let job = JobEnv { slurm_conf: Some(conf.clone()), ..job() };
        let folder = RunFolder::below(&base.path().join("aimaster"), &job);
        let file = folder.path().join(run_stamp::FILE_NAME);
        let said = || serde_json::from_slice::<RunStamp>(&fs::read(&file).unwrap()).unwrap();
        folder.make().unwrap();
        let first = said();
        assert!(first.lasting && first.uptime_s > 0 && !first.boot.is_empty(), "{first:?}");
        fs::write(&file, serde_json::to_vec(&RunStamp { uptime_s: 0, ..first.clone() }).unwrap()).unwrap();
        fs::write(&conf, "PrologFlags=Alloc\n").unwrap();
        folder.write_gate(&Gate::open(Vec::new())).unwrap();
        let second = said();
        assert!(!second.lasting && second.uptime_s >= first.uptime_s, "{second:?}");
        // It can't be written: what stood there is gone all the same.
        fs::create_dir(folder.path().join("run.json.new")).unwrap();
        folder.write_gate(&Gate::open(Vec::new())).unwrap();
        assert!(!file.exists() && folder.path().join(gate::FILE_NAME).exists());
    }

    #[test]
    fn links_and_pipes_in_the_way_are_not_followed() {
        let base = tempfile::tempdir().unwrap();
        let (root, victim) = (base.path().join("aimaster"), base.path().join("victim"));
        let folder = RunFolder::below(&root, &job());
        folder.make().unwrap();
        fs::write(&victim, "untouched").unwrap();
        fs::set_permissions(&victim, Permissions::from_mode(0o640)).unwrap();
        let untouched =
            || (fs::read_to_string(&victim).unwrap(), mode(&victim)) == ("untouched".into(), 0o640);
        let at = |name: &str| folder.path().join(name);
        let gate = Gate::closed(vec!["x".into()]);
        // In place of the file that is written first, and of the one that it becomes.
        symlink(&victim, at("gate.json.new")).unwrap();
        symlink(&victim, at("gate.json")).unwrap();
        folder.write_gate(&gate).unwrap();
        assert!(untouched() && !fs::symlink_metadata(at("gate.json")).unwrap().is_symlink());
        fs::hard_link(&victim, at("gate.json.new")).unwrap();
        folder.write_gate(&gate).unwrap();
        assert!(untouched());
        fs::remove_file(at("gate.json")).unwrap();
        let pipe = Mode::RUSR | Mode::WUSR;
        for name in ["gate.json.new", "gate.json"] {
            rustix::fs::mknodat(CWD, at(name), rustix::fs::FileType::Fifo, pipe, 0).unwrap();
        }
        folder.write_gate(&gate).unwrap();
        assert!(fs::read_to_string(at("gate.json")).unwrap().contains("\"x\""));
    }

    #[test]
    fn a_folder_that_is_a_link_or_somebody_elses_gets_nothing() {
        let base = tempfile::tempdir().unwrap();
        let (root, elsewhere) = (base.path().join("aimaster"), base.path().join("elsewhere"));
        fs::create_dir(&elsewhere).unwrap();
        let folder = RunFolder::below(&root, &job());
        for path in folder.path().ancestors().take(4) {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            symlink(&elsewhere, path).unwrap();
            folder.write_gate(&Gate::open(Vec::new())).unwrap_err();
            assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0, "{}", path.display());
            fs::remove_file(path).unwrap();
            fs::create_dir(path).unwrap();
            // The rest needs another user.
            if chown(path, Some(65_534), None).is_ok() {
                let error = folder.write_gate(&Gate::open(Vec::new())).unwrap_err();
                assert!(error.to_string().contains("uid 65534"), "{error}");
            }
            fs::remove_dir_all(&root).unwrap();
        }
    }
}
