//! The watch's hold on its watcher: hired without rights while the agent still has its own, read without waiting, replaced
//! where it ended, and let go.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use diag::health::reading::Told;

use super::lines::{Lines, line};
use super::watcher::Wanted;

/// Watchers of one watch: one that works and two that wait, some MiB each, since an agent that has given up its rights
/// can't start a process of another user. One that keeps ending is no accident.
const MOST_WATCHERS: usize = 3;

/// From an end to the next start.
const REPLACE_AFTER: Duration = Duration::from_secs(10);

/// Most bytes of one look; what is left waits for the next.
const MOST_BYTES: usize = 1 << 20;

/// Bytes read at once.
const READ_BYTES: usize = 64 << 10;

/// How long an end is waited for. One that waits inside the kernel is left behind: it is nobody's parent.
const STOP_WAIT: Duration = Duration::from_millis(500);

/// How often it is looked whether it has ended.
const STOP_POLL: Duration = Duration::from_millis(5);

/// How a watcher is run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watcher {
    /// The program, `aimaster-watcher`.
    pub program: PathBuf,
    /// `paths.worker_user`: a name, `uid:gid`, or empty. It counts only where the agent is root.
    pub user: String,
}

/// Watchers that wait for their first word.
#[derive(Debug, Default)]
pub struct Hired {
    processes: VecDeque<Process>,
    trouble: Option<String>,
}

impl Hired {
    /// None: NVML is not asked.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Starts the processes. It needs the right to become their user, and makes no thread: an agent calls it before it
    /// gives its rights up, on the thread that lives as long as the watch, since the kernel ends them with that.
    /// What does not work is said by [`super::Watch::blind`].
    #[must_use]
    pub fn new(how: &Watcher) -> Self {
        let mut hired = Self::default();
        for _ in 0..MOST_WATCHERS {
            match Process::start(how) {
                Ok(process) => hired.processes.push_back(process),
                Err(words) => hired.trouble = Some(words),
            }
        }
        hired
    }

    fn is_none(&self) -> bool {
        self.processes.is_empty() && self.trouble.is_none()
    }
}

#[derive(Debug)]
struct Process {
    child: Child,
    socket: Option<UnixStream>,
    lines: Lines,
}

/// A watcher of GPUs at work, and those that wait to replace it.
#[derive(Debug)]
pub(super) struct Gpus {
    wanted: Wanted,
    working: Option<Process>,
    spare: VecDeque<Process>,
    ended: Option<Instant>,
    trouble: Option<String>,
}

impl Gpus {
    /// Sets one to work; `None` where none was hired.
    pub(super) fn start(hired: Hired, wanted: Wanted) -> Option<Self> {
        if hired.is_none() {
            return None;
        }
        let Hired { processes: spare, trouble } = hired;
        let mut gpus = Self { wanted, working: None, spare, ended: None, trouble };
        gpus.next();
        Some(gpus)
    }

    /// Why nothing is told, if that is so.
    pub(super) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// What was told since the last time.
    pub(super) fn poll(&mut self, now: Instant) -> Vec<Told> {
        if self.ended.is_some_and(|at| now.saturating_duration_since(at) >= REPLACE_AFTER) {
            self.next();
        }
        let Some(process) = &mut self.working else { return Vec::new() };
        let mut told = Vec::new();
        match process.read(&mut told) {
            Ok(()) if told.is_empty() => (),
            Ok(()) => self.trouble = None,
            Err(words) => {
                let left = match self.spare.len() {
                    0 => "none is left to replace it",
                    _ => "another one takes its place",
                };
                self.working = None;
                self.ended = Some(now);
                self.trouble = Some(format!("the watcher of GPUs can't be heard: {words}; {left}"));
            }
        }
        told
    }

    fn next(&mut self) {
        self.ended = None;
        let Some(mut process) = self.spare.pop_front() else { return };
        match process.tell(&self.wanted) {
            Ok(()) => self.working = Some(process),
            Err(error) => {
                self.ended = Some(Instant::now());
                self.trouble = Some(format!("the watcher of GPUs does not listen: {error}"));
            }
        }
    }
}

impl Process {
    fn start(how: &Watcher) -> Result<Self, String> {
        let failed = |error: io::Error| {
            format!(
                "{} can't be started: {error}; check that it is installed and that its user may run it",
                how.program.display()
            )
        };
        let identity = kernels::confined::resolve(&how.user)
            .map_err(|error| format!("NVML is asked by no user (paths.worker_user): {error}"))?;
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        ours.set_nonblocking(true).map_err(failed)?;
        let mut command = Command::new(&how.program);
        command
            .arg(std::process::id().to_string())
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .env_clear()
            .current_dir("/");
        if let Some((uid, gid)) = identity {
            // The standard library drops the supplementary groups with a change of user.
            command.uid(uid).gid(gid);
        }
        let child = command.spawn().map_err(failed)?;
        Ok(Self { child, socket: Some(ours), lines: Lines::default() })
    }

    /// It fits into the socket: nothing is waited for.
    fn tell(&mut self, wanted: &Wanted) -> io::Result<()> {
        let wanted = line(wanted)?;
        let socket = self.socket.as_mut().ok_or(ErrorKind::NotConnected)?;
        socket.write_all(&wanted)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // That alone ends it: an agent without rights can't send a signal to another user's process.
        self.socket = None;
        _ = self.child.kill();
        let until = Instant::now() + STOP_WAIT;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < until {
            thread::sleep(STOP_POLL);
        }
    }
}

impl Process {
    fn read(&mut self, told: &mut Vec<Told>) -> Result<(), String> {
        let Some(socket) = &mut self.socket else { return Ok(()) };
        let mut piece = vec![0; READ_BYTES];
        for _ in 0..MOST_BYTES / READ_BYTES {
            let ended = match socket.read(&mut piece) {
                Ok(0) => Some("it ended".to_owned()),
                Ok(count) => {
                    self.lines.push(&piece[..count]);
                    None
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => None,
                Err(error) => Some(error.to_string()),
            };
            while let Some(one) = self.lines.next().map_err(|error| error.to_string())? {
                told.push(one);
            }
            if let Some(words) = ended {
                return Err(format!("{words}; see the kernel log for an out-of-memory kill"));
            }
        }
        Ok(())
    }
}
