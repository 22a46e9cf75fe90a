//! A child process whose output is read as it comes: lines can be awaited, every wait has a
//! deadline, and dropping it kills its process group. It knows nothing of nodes or Slurm.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open};

/// How long output may trail the end of a process: a daemon it left behind may hold the pipe.
const TRAILING: Duration = Duration::from_secs(3);

/// How long what already lies in a pipe may lie there: the threads that read it wait their turn on a machine that the nodes
/// keep busy.
const UNREAD: Duration = Duration::from_secs(60);

/// Which of the two streams a line came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// What a finished process left.
#[derive(Clone, Debug)]
pub struct Output {
    /// The command, for messages.
    pub what: String,
    /// How it ended.
    pub status: ExitStatus,
    /// Everything on standard output, invalid UTF-8 replaced.
    pub stdout: String,
    /// Everything on standard error, invalid UTF-8 replaced.
    pub stderr: String,
    /// From the start to the end of the process.
    pub elapsed: Duration,
}

impl Output {
    /// The exit code; 128 + signal for a killed process, as a shell says it.
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| 128 + self.status.signal().unwrap_or(0))
    }

    /// Whether it exited with 0.
    pub fn success(&self) -> bool {
        self.status.success()
    }

    /// Itself if it exited with 0, else an error that shows what it printed.
    pub fn ok(self) -> Result<Self> {
        if self.success() {
            return Ok(self);
        }
        bail!(
            "`{}` ended with {} after {:?}\nstdout: {}\nstderr: {}",
            self.what,
            self.code(),
            self.elapsed,
            self.stdout.trim_end(),
            self.stderr.trim_end()
        )
    }

    /// Standard output without the white space around it.
    pub fn text(&self) -> &str {
        self.stdout.trim()
    }
}

/// Lines keep their line breaks here, so that nothing of the output is lost or added.
#[derive(Default)]
struct Captured {
    lines: Vec<(Stream, String)>,
    open: u8,
}

#[derive(Default)]
struct Shared {
    captured: Mutex<Captured>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Captured> {
        self.captured.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running process.
pub struct Running {
    what: String,
    child: Child,
    stdin: Option<ChildStdin>,
    outputs: Vec<OwnedFd>,
    shared: Arc<Shared>,
    started: Instant,
}

impl Running {
    /// Starts `command` in a process group of its own, with both outputs captured. With `stdin`
    /// the bytes are written and the pipe closed; with `keep_stdin` it stays open for
    /// [`Running::write_stdin`]; else standard input is empty.
    pub fn start(
        mut command: Command,
        what: impl Into<String>,
        stdin: Option<Vec<u8>>,
        keep_stdin: bool,
    ) -> Result<Self> {
        let what = what.into();
        let piped = keep_stdin || stdin.is_some();
        command
            .stdin(if piped { Stdio::piped() } else { Stdio::null() })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        let started = Instant::now();
        let mut child = command.spawn().with_context(|| format!("cannot start `{what}`"))?;
        let shared = Arc::new(Shared::default());
        let ends = [
            (Stream::Stdout, child.stdout.take().map(OwnedFd::from)),
            (Stream::Stderr, child.stderr.take().map(OwnedFd::from)),
        ];
        let mut outputs = Vec::new();
        for (stream, source) in ends {
            let Some(source) = source else { continue };
            outputs.push(source.try_clone().with_context(|| format!("the output of `{what}`"))?);
            shared.lock().open += 1;
            let shared = Arc::clone(&shared);
            thread::spawn(move || collect(stream, File::from(source), &shared));
        }
        let mut pipe = child.stdin.take();
        if let Some(bytes) = stdin
            && let Some(mut pipe) = pipe.take_if(|_| !keep_stdin)
        {
            // A child that does not read its input must not stop the test: a thread of its own.
            thread::spawn(move || pipe.write_all(&bytes));
        }
        Ok(Self { what, child, stdin: pipe, outputs, shared, started })
    }

    /// The process id on this machine.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Writes to standard input, which has to be open.
    pub fn write_stdin(&mut self, text: &str) -> Result<()> {
        let pipe =
            self.stdin.as_mut().ok_or_else(|| anyhow!("`{}`: standard input is not open", self.what))?;
        pipe.write_all(text.as_bytes()).with_context(|| format!("cannot write to `{}`", self.what))
    }

    /// Closes standard input.
    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// The lines so far, in the order in which they came.
    pub fn lines(&self) -> Vec<(Stream, String)> {
        let chomp = |(stream, line): &(Stream, String)| (*stream, line.trim_end_matches('\n').to_owned());
        self.shared.lock().lines.iter().map(chomp).collect()
    }

    /// The first line (of either stream, also one that came before this call) that `matches`.
    pub fn wait_line(&self, matches: impl Fn(&str) -> bool, timeout: Duration) -> Result<String> {
        let deadline = Instant::now() + timeout;
        let mut seen = 0;
        let mut captured = self.shared.lock();
        loop {
            let mut new = captured.lines[seen..].iter().map(|(_, line)| line.trim_end_matches('\n'));
            if let Some(line) = new.find(|line| matches(line)) {
                return Ok(line.to_owned());
            }
            seen = captured.lines.len();
            let left = deadline.saturating_duration_since(Instant::now());
            if captured.open == 0 || left.is_zero() {
                let why = if captured.open == 0 { "output ended" } else { "timed out" };
                bail!(
                    "`{}`: {why} after {:?} without the awaited line:\n{}",
                    self.what,
                    self.elapsed(),
                    join(&captured.lines, None)
                );
            }
            captured =
                self.shared.changed.wait_timeout(captured, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Whether it has ended.
    pub fn finished(&mut self) -> Result<bool> {
        Ok(self.child.try_wait().with_context(|| format!("cannot wait for `{}`", self.what))?.is_some())
    }

    /// Waits for the end. On a timeout the process group is killed and an error shows the output.
    pub fn wait(mut self, timeout: Duration) -> Result<Output> {
        match self.wait_exit(timeout)? {
            Some((status, elapsed)) => {
                self.wait_closed();
                let captured = self.shared.lock();
                Ok(Output {
                    what: self.what.clone(),
                    status,
                    stdout: join(&captured.lines, Some(Stream::Stdout)),
                    stderr: join(&captured.lines, Some(Stream::Stderr)),
                    elapsed,
                })
            }
            None => {
                self.kill();
                let text = join(&self.shared.lock().lines, None);
                bail!("`{}` did not end within {timeout:?}, so it was killed; it printed:\n{text}", self.what)
            }
        }
    }

    fn wait_exit(&mut self, timeout: Duration) -> Result<Option<(ExitStatus, Duration)>> {
        let deadline = Instant::now() + timeout;
        let pid = pid_of(self.child.id())?;
        if let Ok(fd) = pidfd_open(pid, PidfdFlags::empty()) {
            loop {
                let left = deadline.saturating_duration_since(Instant::now());
                let time = Timespec::try_from(left).context("timeout too long")?;
                match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&time)) {
                    Err(rustix::io::Errno::INTR) => {}
                    Err(error) => return Err(error).context("poll"),
                    Ok(_) => break,
                }
            }
        }
        let elapsed = self.started.elapsed();
        let status = self.child.try_wait().with_context(|| format!("cannot wait for `{}`", self.what))?;
        Ok(status.map(|status| (status, elapsed)))
    }

    fn wait_closed(&self) {
        let ended = Instant::now();
        let mut captured = self.shared.lock();
        while captured.open > 0 {
            if ended.elapsed() >= if self.unread() { UNREAD } else { TRAILING } {
                return;
            }
            let changed = self.shared.changed.wait_timeout(captured, Duration::from_millis(100));
            captured = changed.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Whether something that was printed was not read yet.
    fn unread(&self) -> bool {
        self.outputs.iter().any(|output| rustix::io::ioctl_fionread(output).is_ok_and(|bytes| bytes > 0))
    }

    /// Sends a signal to the command itself. A command in a node runs below `nsenter`, which would
    /// die of it instead of passing it on: then its child gets the signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let id = self.child.id();
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
        let comm = std::fs::read_to_string(format!("/proc/{id}/comm")).unwrap_or_default();
        let target = match children.split_whitespace().next() {
            Some(child) if comm.trim() == "nsenter" => child.parse()?,
            _ => id,
        };
        kill_process(pid_of(target)?, signal).with_context(|| format!("cannot signal `{}`", self.what))
    }

    /// Kills the whole process group; no error if it is gone.
    pub fn kill(&mut self) {
        self.stdin = None;
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        if let Ok(pid) = pid_of(self.child.id()) {
            let _ = kill_process_group(pid, Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A process id as rustix wants it.
pub(crate) fn pid_of(id: u32) -> Result<Pid> {
    i32::try_from(id).ok().and_then(Pid::from_raw).ok_or_else(|| anyhow!("{id} is no process id"))
}

fn collect(stream: Stream, source: File, shared: &Shared) {
    let mut reader = BufReader::new(source);
    let mut line = Vec::new();
    while matches!(reader.read_until(b'\n', &mut line), Ok(n) if n > 0) {
        shared.lock().lines.push((stream, String::from_utf8_lossy(&line).into_owned()));
        shared.changed.notify_all();
        line.clear();
    }
    shared.lock().open -= 1;
    shared.changed.notify_all();
}

fn join(lines: &[(Stream, String)], only: Option<Stream>) -> String {
    let mut text = String::new();
    for (stream, line) in lines {
        if only.is_none_or(|only| only == *stream) {
            text.push_str(line);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Running {
        let mut command = Command::new("bash");
        command.args(["-c", script]);
        Running::start(command, script, None, false).unwrap()
    }

    #[test]
    fn captures_both_streams_and_the_status() {
        let output = shell("echo out; echo err >&2; exit 3").wait(Duration::from_secs(5)).unwrap();
        assert_eq!((output.code(), output.text(), output.stderr.trim()), (3, "out", "err"));
        assert!(output.ok().is_err());
    }

    #[test]
    fn a_timeout_kills_grandchildren_and_shows_the_output() {
        let running = shell("echo begun; sleep 60 & wait");
        let start = Instant::now();
        let error = running.wait(Duration::from_millis(200)).unwrap_err().to_string();
        assert!(error.contains("begun"), "{error}");
        assert!(start.elapsed() < Duration::from_secs(3));
    }

    #[test]
    fn lines_are_seen_while_it_runs() {
        let mut running = shell("echo one; sleep 0.1; echo two; sleep 60");
        assert_eq!(running.wait_line(|l| l == "two", Duration::from_secs(5)).unwrap(), "two");
        assert!(!running.finished().unwrap());
        assert!(running.wait_line(|l| l == "three", Duration::from_millis(50)).is_err());
    }
}
