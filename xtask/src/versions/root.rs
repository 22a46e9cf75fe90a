//! A folder with another release of Debian, for its Slurm: packages are fetched with apt from where this machine gets its
//! own, and unpacked. Nothing of them is run or configured, so a release that is in flux will do. Kept until its Slurm has
//! a newer version.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};

use crate::stage::run;

/// Where roots are kept between runs.
const CACHE: &str = "/var/cache/aimaster-tests";

/// How old the lists of packages may be: a release that is out changes every few months.
const FRESH: Duration = Duration::from_secs(7 * 24 * 3600);

/// What a node of the test cluster needs: Slurm, MUNGE, and the commands that tests run in nodes.
const PACKAGES: &[&str] = &[
    "base-files",
    "bash",
    "coreutils",
    "dash",
    "findutils",
    "grep",
    "hostname",
    "iproute2",
    "iptables",
    "libc-bin",
    "libgcc-s1",
    "libmunge2",
    "mawk",
    "mount",
    "munge",
    "procps",
    "sed",
    "slurm-client",
    "slurmctld",
    "slurmd",
    "util-linux",
];

/// Folders at the top that lead into /usr; made first, whether a package has them or not.
const MERGED: [&str; 4] = ["bin", "lib", "lib64", "sbin"];

/// Names that packages leave to be linked when they are configured, and what they lead to.
const LINKS: [(&str, &str); 4] = [
    ("usr/bin/awk", "mawk"),
    ("usr/bin/sh", "dash"),
    ("usr/sbin/iptables", "xtables-nft-multi"),
    ("usr/sbin/iptables-restore", "xtables-nft-multi"),
];

/// Debian's Slurm has programs whose names end so, and links to them.
const WLM: &str = "-wlm";

/// A release of Debian with the Slurm in it.
#[derive(Debug)]
pub struct Root {
    /// Where it lies.
    pub path: PathBuf,
    /// The version of its package slurmd.
    pub version: String,
}

/// The root of a release (such as `trixie`), fetched where it is missing or out of date.
///
/// # Errors
/// Not root, no package source, or what was unpacked does not run.
pub fn ready(release: &str) -> Result<Root> {
    let apt = Apt::new(release)?;
    // Another run may be at it.
    let lock = File::create(apt.folder.join("lock")).context("can't make a lock")?;
    lock.lock().context("can't take the lock")?;
    let path = apt.folder.join("root");
    let marker = apt.folder.join("root.version");
    let have = fs::read_to_string(&marker).ok();
    if let Err(error) = apt.update() {
        match &have {
            Some(version) => eprintln!("{release}: no news of its packages, {version} is taken: {error:#}"),
            None => return Err(error),
        }
    }
    let version = apt.version()?;
    if have.as_deref() == Some(&version) {
        configure(&path)?;
        return Ok(Root { path, version });
    }
    eprintln!("{release}: fetching slurmd {version} and what it needs");
    remove(&path)?;
    remove(&marker)?;
    let fresh = apt.folder.join("root.new");
    remove(&fresh)?;
    let fetched = apt.fetch()?;
    unpack(&fetched, &fresh)?;
    configure(&fresh)?;
    run(Command::new("ldconfig").arg("-r").arg(&fresh)).context("the cache of libraries")?;
    let slurmd = Command::new("chroot").arg(&fresh).args(["/usr/sbin/slurmd", "-V"]).output();
    let slurmd = slurmd.context("can't run chroot")?;
    if !slurmd.status.success() {
        bail!("slurmd of {release} does not run: {}", String::from_utf8_lossy(&slurmd.stderr).trim());
    }
    fs::rename(&fresh, &path).with_context(|| format!("can't write {}", path.display()))?;
    fs::write(&marker, &version).with_context(|| format!("can't write {}", marker.display()))?;
    // They are fetched again when a newer one is out, and not before.
    remove(&apt.folder.join("cache"))?;
    Ok(Root { path, version })
}

/// The root of a release that is here already, whatever is newer by now.
#[must_use]
pub fn fetched(release: &str) -> Option<Root> {
    let folder = Path::new(CACHE).join(release);
    let version = fs::read_to_string(folder.join("root.version")).ok()?;
    Some(Root { path: folder.join("root"), version })
}

/// The version of slurmd in a release, as `24.11.5-4`.
///
/// # Errors
/// No package source, or it has no slurmd.
pub fn slurm_in(release: &str) -> Result<String> {
    let apt = Apt::new(release)?;
    apt.update()?;
    apt.version()
}

/// apt with lists of its own, as on a machine of that release on which nothing is installed.
struct Apt {
    release: String,
    folder: PathBuf,
}

impl Apt {
    fn new(release: &str) -> Result<Self> {
        let folder = Path::new(CACHE).join(release);
        for part in ["state/lists/partial", "cache/archives/partial"] {
            let path = folder.join(part);
            fs::create_dir_all(&path)
                .with_context(|| format!("can't make {}: this needs root", path.display()))?;
        }
        fs::write(folder.join("status"), "").context("the list of installed packages")?;
        Ok(Self { release: release.to_owned(), folder })
    }

    fn command(&self, program: &str) -> Command {
        let folder = self.folder.display();
        let mut command = Command::new(program);
        for option in [
            format!("Dir::State={folder}/state"),
            format!("Dir::State::status={folder}/status"),
            format!("Dir::Cache={folder}/cache"),
            format!("Dir::Etc::SourceList={folder}/sources.list"),
            "Dir::Etc::SourceParts=-".to_owned(),
            "APT::Sandbox::User=root".to_owned(),
            "APT::Install-Recommends=false".to_owned(),
            "Acquire::Languages=none".to_owned(),
            "Acquire::Retries=3".to_owned(),
        ] {
            command.args(["-o", &option]);
        }
        command.env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C");
        command
    }

    /// Asks for new lists, where they are old.
    fn update(&self) -> Result<()> {
        let stamp = self.folder.join("updated");
        let at = fs::metadata(&stamp).and_then(|meta| meta.modified());
        if at.is_ok_and(|at| SystemTime::now().duration_since(at).is_ok_and(|age| age < FRESH)) {
            return Ok(());
        }
        let source = format!(
            "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] {} {} main\n",
            mirror()?,
            self.release
        );
        fs::write(self.folder.join("sources.list"), source).context("can't write sources.list")?;
        run(self.command("apt-get").args(["update", "--error-on=any", "-qq"]).stdout(Stdio::null()))?;
        fs::write(&stamp, "").context("can't note the time of the lists")
    }

    fn version(&self) -> Result<String> {
        let output = self.command("apt-cache").args(["policy", "slurmd"]).output().context("apt-cache")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let candidate = text.lines().find_map(|line| line.trim().strip_prefix("Candidate: "));
        candidate
            .filter(|version| *version != "(none)")
            .map(str::to_owned)
            .with_context(|| format!("{} has no slurmd", self.release))
    }

    /// All packages with what they depend on.
    fn fetch(&self) -> Result<Vec<PathBuf>> {
        let archives = self.folder.join("cache/archives");
        remove(&archives)?;
        fs::create_dir_all(archives.join("partial")).context("can't make the folder of packages")?;
        let mut command = self.command("apt-get");
        command.args(["install", "--yes", "-qq", "--download-only"]).args(PACKAGES);
        run(command.stdout(Stdio::null()))?;
        let mut found = Vec::new();
        for entry in fs::read_dir(&archives).context("can't list the packages")? {
            let path = entry.context("can't list the packages")?.path();
            if path.extension().is_some_and(|extension| extension == "deb") {
                found.push(path);
            }
        }
        found.sort();
        Ok(found)
    }
}

/// Where this machine gets Debian's packages.
fn mirror() -> Result<String> {
    let format = "$(ORIGIN) $(LABEL) $(REPO_URI)";
    let output = Command::new("apt-get")
        .args(["indextargets", "--format", format, "Created-By: Packages"])
        .output()
        .context("can't run apt-get")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let found = text.lines().find_map(|line| line.strip_prefix("Debian Debian "));
    found.map(str::to_owned).context("apt knows no source of Debian's packages: run apt-get update")
}

fn unpack(packages: &[PathBuf], root: &Path) -> Result<()> {
    fs::create_dir_all(root.join("usr")).with_context(|| format!("can't make {}", root.display()))?;
    for name in MERGED {
        fs::create_dir_all(root.join("usr").join(name)).context("can't make the folders of /usr")?;
        symlink(Path::new("usr").join(name), root.join(name)).context("can't link the folders of /usr")?;
    }
    for package in packages {
        let mut archive = Command::new("dpkg-deb")
            .arg("--fsys-tarfile")
            .arg(package)
            .stdout(Stdio::piped())
            .spawn()
            .context("can't run dpkg-deb")?;
        let from = archive.stdout.take().context("dpkg-deb has no output")?;
        let options = ["--extract", "--keep-directory-symlink", "--preserve-permissions", "--directory"];
        run(Command::new("tar").args(options).arg(root).stdin(from))?;
        let status = archive.wait().context("dpkg-deb")?;
        if !status.success() {
            bail!("{}: dpkg-deb: {status}", package.display());
        }
    }
    Ok(())
}

/// What configuring the packages would have made, as far as a node needs it; what is there stays.
fn configure(root: &Path) -> Result<()> {
    for kind in ["auth", "account", "password", "session"] {
        let path = root.join("etc/pam.d").join(format!("common-{kind}"));
        if !path.exists() {
            // slurmd asks `su` for a user's environment (`sbatch --export=NONE`).
            fs::write(&path, format!("{kind} required pam_permit.so\n"))
                .with_context(|| format!("can't write {}", path.display()))?;
        }
    }
    link(root)
}

fn link(root: &Path) -> Result<()> {
    let mut links: Vec<(PathBuf, String)> =
        LINKS.iter().map(|(name, target)| (root.join(name), (*target).to_owned())).collect();
    for folder in ["usr/bin", "usr/sbin"] {
        for entry in fs::read_dir(root.join(folder)).with_context(|| format!("there is no {folder}"))? {
            let name = entry.context("can't list programs")?.file_name().to_string_lossy().into_owned();
            if let Some(short) = name.strip_suffix(WLM) {
                links.push((root.join(folder).join(short), name.clone()));
            }
        }
    }
    for (path, target) in links {
        if path.symlink_metadata().is_err() {
            symlink(&target, &path).with_context(|| format!("can't link {}", path.display()))?;
        }
    }
    Ok(())
}

/// Removes a file or a folder, if it is there.
fn remove(path: &Path) -> Result<()> {
    let done = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match done {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("can't remove {}", path.display()))
        }
        _ => Ok(()),
    }
}
