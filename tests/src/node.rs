//! One machine of the cluster (a node or the controller) as namespaces: starting, killing and
//! entering it. It knows no Slurm; `daemons` starts those.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use rustix::fd::OwnedFd;
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::cpu::Cgroups;
use crate::process::{Running, pid_of};
use crate::syslog::Syslog;
use crate::users;

const INIT: &str = include_str!("node_init.sh");
/// What commands and daemons in a node see as PATH.
pub(crate) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// A node is up in a fraction of a second; a busy machine gets more.
const START: Duration = Duration::from_secs(30);
/// The kernel ends every process of a node at once.
const STOP: Duration = Duration::from_secs(20);

/// What all machines of one cluster share.
#[derive(Clone, Debug)]
pub(crate) struct Shared {
    pub(crate) id: String,
    pub(crate) base: PathBuf,
    pub(crate) cgroups: Option<Cgroups>,
    pub(crate) shown: Vec<PathBuf>,
    pub(crate) gpus: u32,
    pub(crate) root: Option<PathBuf>,
}

/// A machine that is up.
struct Up {
    holder: Running,
    init: u32,
    init_fd: OwnedFd,
    _syslog: Syslog,
}

/// A machine, up or down.
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) address: String,
    pub(crate) dir: PathBuf,
    shared: Shared,
    up: Mutex<Option<Up>>,
}

impl Node {
    pub(crate) fn new(name: &str, address: &str, shared: &Shared) -> Self {
        let dir = shared.base.join(name);
        let (name, address) = (name.to_owned(), address.to_owned());
        Self { name, address, dir, shared: shared.clone(), up: Mutex::new(None) }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Up>> {
        self.up.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The id of the node's first process as this machine sees it.
    pub(crate) fn init(&self) -> Result<u32> {
        let up = self.lock();
        up.as_ref().map(|up| up.init).ok_or_else(|| anyhow!("{} is down", self.name))
    }

    pub(crate) fn is_up(&self) -> bool {
        self.lock().is_some()
    }

    /// Starts the namespaces without waiting for their set-up. The cable comes next, then
    /// [`Node::finish`].
    pub(crate) fn begin(&self) -> Result<()> {
        let mut up = self.lock();
        if up.is_some() {
            bail!("{} is up already", self.name);
        }
        self.make_folders().with_context(|| format!("folders of {}", self.name))?;
        let log = self.shared.base.join("log").join(format!("syslog.{}", self.name));
        let syslog = Syslog::start(&self.dir.join("run/dev-log"), &log)?;
        let mut command = self.in_group("unshare");
        command
            .args(["--net", "--uts", "--mount", "--ipc", "--pid", "--fork", "--kill-child"])
            .args(["--propagation", "private", "bash", "-c", INIT, "node-init"])
            .current_dir("/")
            .env_clear()
            .envs([("PATH", PATH), ("LANG", "C.UTF-8"), ("HOME", "/root"), ("NODE", self.name.as_str())])
            .env("DIR", &self.dir)
            .env("BASE", &self.shared.base)
            .env("ADDRESS", &self.address)
            .env("GPUS", self.shared.gpus.to_string())
            .env("ROOT", self.shared.root.as_deref().unwrap_or(Path::new("")))
            .env("SHOWN", self.shared.shown.iter().map(|p| p.to_string_lossy() + "\n").collect::<String>());
        let holder = Running::start(command, format!("the namespaces of {}", self.name), None, true)?;
        let line = holder.wait_line(|line| line.starts_with("pid "), START)?;
        let init: u32 = line["pid ".len()..].parse().context("id of the first process")?;
        let init_fd = pidfd_open(pid_of(init)?, PidfdFlags::empty()).context("pidfd_open")?;
        *up = Some(Up { holder, init, init_fd, _syslog: syslog });
        Ok(())
    }

    /// Tells the node that its cable is in, and waits until it is set up.
    pub(crate) fn finish(&self) -> Result<()> {
        let mut up = self.lock();
        let up = up.as_mut().ok_or_else(|| anyhow!("{} is down", self.name))?;
        up.holder.write_stdin("connected\n")?;
        up.holder.wait_line(|line| line == "ready", START)?;
        Ok(())
    }

    /// Kills every process of the node and waits for their end. No error if it is down.
    pub(crate) fn kill(&self) -> Result<()> {
        let Some(up) = self.lock().take() else { return Ok(()) };
        let _ = pidfd_send_signal(&up.init_fd, Signal::KILL);
        // The holder ends when the kernel has ended the last process of the node.
        up.holder.wait(STOP).with_context(|| format!("cannot kill {}", self.name))?;
        Ok(())
    }

    /// A command that starts in the node's control group, so that a processor limit holds for it.
    fn in_group(&self, program: &str) -> Command {
        let Some(cgroups) = &self.shared.cgroups else { return Command::new(program) };
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", "echo $$ >\"$0\" && exec \"$@\""])
            .arg(cgroups.procs_file(&self.shared.id, &self.name))
            .arg(program);
        command
    }

    /// A command line that enters all namespaces of the node; the program and its arguments follow.
    pub(crate) fn enter(&self) -> Result<Command> {
        let init = self.init()?.to_string();
        let mut command = self.in_group("nsenter");
        command.args(["-t", &init, "--net", "--uts", "--mount", "--ipc", "--pid", "--"]).current_dir("/");
        Ok(command)
    }

    /// `/run` and `/tmp` start empty, as after a boot; `/var/spool` and the keys stay.
    fn make_folders(&self) -> Result<()> {
        for name in ["run", "tmp"] {
            match fs::remove_dir_all(self.dir.join(name)) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
                _ => {}
            }
        }
        for name in ["run/munge", "spool/slurmd", "munge", "tmp", "dev", "layers", "hold", "shown"] {
            fs::create_dir_all(self.dir.join(name))?;
        }
        fs::set_permissions(self.dir.join("tmp"), Permissions::from_mode(0o1777))?;
        let munge = users::get("munge").context("is the munge package installed?")?;
        let key = self.dir.join("munge/key");
        fs::copy(self.shared.base.join("munge.key"), &key).context("munge key")?;
        fs::set_permissions(&key, Permissions::from_mode(0o600))?;
        fs::set_permissions(self.dir.join("munge"), Permissions::from_mode(0o711))?;
        for path in [key, self.dir.join("munge"), self.dir.join("run/munge")] {
            users::own(&path, &munge)?;
        }
        Ok(())
    }

    /// Where a file of the node's `/run` lies on this machine.
    pub(crate) fn run_file(&self, name: &str) -> PathBuf {
        self.dir.join("run").join(name)
    }
}

/// Whether something listens on a TCP port in the network namespace of a process.
pub(crate) fn listens(pid: u32, port: u16) -> bool {
    let end = format!(":{port:04X}");
    ["tcp", "tcp6"].iter().any(|file| {
        let table = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("net").join(file));
        table.unwrap_or_default().lines().skip(1).any(|line| {
            let mut fields = line.split_whitespace().skip(1);
            let local = fields.next().unwrap_or_default();
            // State 0A is LISTEN.
            local.ends_with(&end) && fields.nth(1) == Some("0A")
        })
    })
}
