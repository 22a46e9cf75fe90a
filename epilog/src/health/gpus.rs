//! The watch's hold on its watcher: starts it without rights, reads what it tells without waiting, starts it anew where
//! it ended, and ends it.

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

/// Most starts of one watch: a watcher that keeps ending is no accident.
const MOST_STARTS: u32 = 4;

/// From an end to the next start.
const RESTART_AFTER: Duration = Duration::from_secs(10);

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

#[derive(Debug)]
struct Process {
    child: Child,
    socket: UnixStream,
    lines: Lines,
}

/// A watcher of GPUs, running or not.
#[derive(Debug)]
pub(super) struct Gpus {
    how: Watcher,
    wanted: Wanted,
    process: Option<Process>,
    starts: u32,
    ended: Option<Instant>,
    trouble: Option<String>,
}

impl Gpus {
    /// Starts one. The kernel kills it when the calling thread ends, not only the process.
    pub(super) fn start(how: Watcher, wanted: Wanted) -> Self {
        let mut gpus = Self { how, wanted, process: None, starts: 0, ended: None, trouble: None };
        gpus.spawn();
        gpus
    }

    /// Why nothing is told, if that is so.
    pub(super) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// What was told since the last time.
    pub(super) fn poll(&mut self, now: Instant) -> Vec<Told> {
        let again = self.ended.is_some_and(|at| now.saturating_duration_since(at) >= RESTART_AFTER);
        if self.process.is_none() && again && self.starts < MOST_STARTS {
            self.spawn();
        }
        let Some(process) = &mut self.process else { return Vec::new() };
        let mut told = Vec::new();
        match process.read(&mut told) {
            Ok(()) => {
                if !told.is_empty() {
                    self.trouble = None;
                }
            }
            Err(words) => {
                self.end();
                self.ended = Some(now);
                self.trouble = Some(words);
            }
        }
        told
    }

    fn spawn(&mut self) {
        self.starts += 1;
        match self.started() {
            Ok(process) => {
                self.process = Some(process);
                self.ended = None;
            }
            Err(words) => {
                self.ended = Some(Instant::now());
                self.trouble = Some(words);
            }
        }
    }

    fn started(&self) -> Result<Process, String> {
        let failed = |error: io::Error| {
            format!(
                "{} can't be started: {error}; check that it is installed and that its user may run it",
                self.how.program.display()
            )
        };
        let identity = kernels::confined::resolve(&self.how.user)
            .map_err(|error| format!("NVML is asked by no user (paths.worker_user): {error}"))?;
        let (mut ours, theirs) = UnixStream::pair().map_err(failed)?;
        // It fits into the socket: nothing is waited for.
        ours.set_nonblocking(true).map_err(failed)?;
        let wanted = line(&self.wanted).map_err(|error| failed(error.into()))?;
        ours.write_all(&wanted).map_err(failed)?;
        let mut command = Command::new(&self.how.program);
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
        Ok(Process { child, socket: ours, lines: Lines::default() })
    }

    fn end(&mut self) {
        let Some(mut process) = self.process.take() else { return };
        // It may have ended by itself.
        _ = process.child.kill();
        let until = Instant::now() + STOP_WAIT;
        while matches!(process.child.try_wait(), Ok(None)) && Instant::now() < until {
            thread::sleep(STOP_POLL);
        }
    }
}

impl Drop for Gpus {
    fn drop(&mut self) {
        self.end();
    }
}

impl Process {
    fn read(&mut self, told: &mut Vec<Told>) -> Result<(), String> {
        let mut piece = vec![0; READ_BYTES];
        for _ in 0..MOST_BYTES / READ_BYTES {
            let ended = match self.socket.read(&mut piece) {
                Ok(0) => Some("it ended".to_owned()),
                Ok(count) => {
                    self.lines.push(&piece[..count]);
                    None
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => None,
                Err(error) => Some(error.to_string()),
            };
            while let Some(one) =
                self.lines.next().map_err(|error| format!("the watcher of GPUs: {error}"))?
            {
                told.push(one);
            }
            if let Some(words) = ended {
                return Err(format!(
                    "the watcher of GPUs can't be heard: {words}; see the kernel log for an out-of-memory kill"
                ));
            }
        }
        Ok(())
    }
}
