//! The site's python as a child: bounded in time and output, in a process group of its own that is killed at the
//! end. What it runs is `all_reduce.py`; whatever it answers is taken for hostile.

use std::io::{ErrorKind, Read, Write};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use diag::plain::is_plain;
use rustix::event::PollFlags;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::{Deserialize, Serialize};

use super::super::super::launch;
use super::super::super::timed::wait_for;
use super::super::Until;

/// The program.
const PROGRAM: &str = include_str!("all_reduce.py");

/// Most that it may say in all: a run says some ten lines of at most a kilobyte.
const MOST_OUTPUT: usize = 64 << 10;

/// How much of the end of its standard error is kept: the last line of a traceback.
const KEPT_ERRORS: usize = 300;

/// How long a killed process may take to go.
const KILL_WAIT: Duration = Duration::from_secs(1);

/// An address as the program writes it.
pub(super) type Place = (IpAddr, u16);

/// What the program says.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Word {
    /// torch with Gloo is there, of this version.
    Ready(String),
    /// There is none, and why.
    Absent(String),
    /// It can't be imported.
    Broken(String),
    /// The store listens here.
    Port(u16),
    /// Gloo listens here.
    Advertised(Vec<Place>),
    /// Own ends of the connections that Gloo made.
    Connected(Vec<Place>),
    /// Torch raised this.
    Failed(String),
    /// The numbers.
    Result(Numbers),
}

impl Word {
    /// The same without what could disturb a report or a terminal.
    fn printable(self) -> Self {
        match self {
            Self::Ready(said) => Self::Ready(text(said.as_bytes())),
            Self::Absent(said) => Self::Absent(text(said.as_bytes())),
            Self::Broken(said) => Self::Broken(text(said.as_bytes())),
            Self::Failed(said) => Self::Failed(text(said.as_bytes())),
            other => other,
        }
    }
}

/// The numbers of a run.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct Numbers {
    pub gb_per_s: f64,
    pub bytes: u64,
    pub iterations: u64,
    pub right: f64,
    pub samples: Vec<f64>,
    pub seconds: f64,
}

/// What the program is told.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Order {
    /// Start the store at one of these ports.
    Serve { ports: Vec<u16>, limit_s: f64 },
    /// Meet at the store and reduce.
    Join { host: IpAddr, port: u16, rank: u32, window_s: f64, limit_s: f64 },
}

/// Why there is no word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Silence {
    /// The time is over.
    Over,
    /// It ended, said what is no word, or can't be talked to.
    Broken(String),
}

/// The child.
pub(super) struct Python {
    child: Child,
    stdin: ChildStdin,
    stdout: ChildStdout,
    stderr: ChildStderr,
    unread: Vec<u8>,
    output: usize,
    errors: Vec<u8>,
}

impl Python {
    pub(super) fn start(python: &Path, interface: &str) -> std::io::Result<Self> {
        // Isolated, so that no variable and no folder of a user changes what is imported; no files written.
        let arguments = ["-I", "-u", "-B", "-c", PROGRAM];
        let mut command: Command = launch::command(python, &arguments);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .env_clear()
            .env("HOME", "/")
            .env("PATH", "/usr/bin:/bin")
            // One thread adds up fast enough; many would disturb the other ranks.
            .env("OMP_NUM_THREADS", "1")
            .current_dir("/")
            .process_group(0);
        if !interface.is_empty() {
            command.env("GLOO_SOCKET_IFNAME", interface);
        }
        let mut child = command.spawn()?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(stdin), Some(stdout), Some(stderr)) = pipes else {
            return Err(std::io::Error::other("the child has no pipes"));
        };
        for pipe in [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()] {
            fcntl_setfl(pipe, fcntl_getfl(pipe)? | OFlags::NONBLOCK)?;
        }
        Ok(Self { child, stdin, stdout, stderr, unread: Vec::new(), output: 0, errors: Vec::new() })
    }

    /// Gives a command; it is far shorter than a pipe.
    pub(super) fn tell(&mut self, command: &Order) -> Result<(), Silence> {
        let mut line = serde_json::to_vec(command).map_err(|error| Silence::Broken(error.to_string()))?;
        line.push(b'\n');
        self.stdin.write_all(&line).map_err(|error| Silence::Broken(format!("it takes no command: {error}")))
    }

    /// The next thing that it says.
    pub(super) fn hear(&mut self, until: &Until) -> Result<Word, Silence> {
        let mut piece = [0; 4096];
        loop {
            if let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                return serde_json::from_slice(&line)
                    .map(Word::printable)
                    .map_err(|_| Silence::Broken(format!("it said {:?}", text(&line))));
            }
            let Some(slice) = until.slice() else { return Err(Silence::Over) };
            self.keep_errors();
            match self.stdout.read(&mut piece) {
                Ok(0) => return Err(self.ended(until)),
                Ok(count) => {
                    self.output += count;
                    self.unread.extend_from_slice(&piece[..count]);
                    if self.output > MOST_OUTPUT {
                        return Err(Silence::Broken(format!("it said more than {MOST_OUTPUT} bytes")));
                    }
                    continue;
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => return Err(Silence::Broken(error.to_string())),
            }
            // Only its answers are waited for: an end of its errors would wake this loop for ever.
            wait_for(&[(self.stdout.as_fd(), PollFlags::IN)], slice)
                .map_err(|error| Silence::Broken(error.to_string()))?;
        }
    }

    fn keep_errors(&mut self) {
        let mut piece = [0; 4096];
        // Bounded, so that a flood can't hold the caller.
        for _ in 0..64 {
            let Ok(count @ 1..) = self.stderr.read(&mut piece) else { return };
            self.errors.extend_from_slice(&piece[..count]);
            let surplus = self.errors.len().saturating_sub(KEPT_ERRORS);
            self.errors.drain(..surplus);
        }
    }

    fn ended(&mut self, until: &Until) -> Silence {
        let deadline = Instant::now() + KILL_WAIT.min(until.left());
        let mut status = None;
        while status.is_none() && Instant::now() < deadline {
            status = self.child.try_wait().ok().flatten();
            std::thread::sleep(Duration::from_millis(5));
        }
        self.keep_errors();
        let status = status.map_or_else(|| "it closed its output".to_owned(), |status| status.to_string());
        let said = text(&self.errors);
        Silence::Broken(if said.is_empty() { status } else { format!("{status}: ...{said}") })
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        // Killed by its group: it may have children of its own.
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process_group(pid, Signal::KILL);
        }
        let _ = self.child.kill();
        let deadline = Instant::now() + KILL_WAIT;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Bytes as one printable line.
fn text(bytes: &[u8]) -> String {
    let text: String = String::from_utf8_lossy(bytes)
        .chars()
        .take(KEPT_ERRORS)
        .map(|c| if is_plain(c) { c } else { ' ' })
        .collect();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
