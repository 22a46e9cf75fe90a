//! Runs a helper program with a deadline that holds whatever the helper does. The helper is believed in two
//! things only: its own deadline, which the first line of its output says (and a later one says anew, where more is to be
//! done), and that it has nothing more to do, which the last one says. What it means that a helper failed is decided elsewhere.

use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

/// First word of the line in which a helper says its deadline; a number of milliseconds follows.
pub const DEADLINE_WORD: &str = "deadline_ms";

/// The line with which a helper says that all it had to do is done. Then its end is a matter of milliseconds; but the
/// kernel does not end a process of which a thread waits for a disk or driver, and no job is to wait for that.
pub const DONE_WORD: &str = "done";

/// Longest deadline that a helper may ask for: Slurm's own PrologEpilogTimeout is far shorter everywhere, and
/// a broken number must not hold a node for good.
const MAX_DEADLINE: Duration = Duration::from_secs(24 * 3600);

/// Most lines in which a helper says a deadline: the checks' and the agent's.
const MAX_DEADLINES: usize = 2;

/// How much of a helper's lines is kept; the three need 60 bytes.
const MAX_LINES: usize = 128;

/// How much of what a helper says on its standard error goes to the log.
const MAX_ERRORS: usize = 8 * 1024;

/// How often the helper's end is looked for where nothing tells of it.
const TICK: Duration = Duration::from_millis(20);

/// The same once it has closed its output, which it does right before its end.
const ENDING_TICK: Duration = Duration::from_millis(1);

/// The first descriptor after standard input, output and error.
const FIRST_DESCRIPTOR: libc::c_uint = 3;

/// The bounds on one helper.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// How long the first line may take; with `handshake` off: how long the helper may take.
    pub first: Duration,
    /// Whether the first line extends the time.
    pub handshake: bool,
    /// What is given on top of the helper's own deadline.
    pub grace: Duration,
    /// How long a helper that said that it is done may take to end.
    pub ending: Duration,
    /// From SIGTERM to SIGKILL.
    pub term_to_kill: Duration,
}

impl Limits {
    /// For the prolog's helper: it reads a few files before it says its deadline, on a busy node within 10 s;
    /// the grace lets its own deadline come first. The helper says 3 s more than the request's deadline, and a
    /// prolog must be gone 5 s after that, also with a helper that is frozen.
    pub const PROLOG: Self = Self {
        first: Duration::from_secs(10),
        handshake: true,
        grace: Duration::from_secs(1),
        ending: Duration::from_millis(200),
        term_to_kill: Duration::from_millis(500),
    };

    /// For the epilog's helper, which removes a few files.
    pub const EPILOG: Self = Self { handshake: false, ..Self::PROLOG };
}

/// How a helper ended.
#[derive(Debug)]
pub enum End {
    /// By itself.
    Exited(ExitStatus),
    /// It said that it is done, and did not end in time.
    Left {
        /// Its process.
        pid: u32,
        /// Whether SIGKILL ended it. Else it is left behind, and ends once the kernel lets it.
        killed: bool,
    },
    /// It was stopped.
    Overran {
        /// After so long.
        after: Duration,
        /// Whether it had said its deadline.
        answered: bool,
    },
    /// It never ran.
    NotStarted(io::Error),
    /// It could not be watched, and was killed.
    Lost(io::Error),
}

/// How a helper ended, and what it said on its standard error.
#[derive(Debug)]
pub struct Run {
    /// The end.
    pub end: End,
    /// The words: bounded, as they came.
    pub errors: Vec<u8>,
}

/// Runs `command` within `limits`.
pub fn run(command: &mut Command, limits: Limits) -> Run {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // SAFETY: between fork and exec it makes one system call and allocates nothing.
    unsafe { command.pre_exec(keep_descriptors_here) };
    match command.spawn() {
        Err(cause) => Run { end: End::NotStarted(cause), errors: Vec::new() },
        Ok(child) => {
            let mut watch = Watch::new(child, limits);
            let end = watch.until_end();
            Run { end, errors: watch.errors.kept }
        }
    }
}

/// Has the kernel close everything but the standard descriptors at exec. Slurm leaves pipes of its own open,
/// and an agent that held one would keep slurmd waiting.
fn keep_descriptors_here() -> io::Result<()> {
    // SAFETY: no memory is involved. A kernel before 5.11 refuses, and then the helper starts all the same.
    unsafe {
        libc::syscall(libc::SYS_close_range, FIRST_DESCRIPTOR, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC)
    };
    Ok(())
}

/// One of a helper's outputs: read so that the helper never blocks on it, kept up to a bound.
struct Output<R> {
    source: Option<R>,
    kept: Vec<u8>,
    most: usize,
}

impl<R: Read + AsFd> Output<R> {
    /// Reads once; the poll said that it won't block.
    fn read(&mut self) {
        let mut buffer = [0; 4096];
        let Some(source) = &mut self.source else { return };
        match source.read(&mut buffer) {
            Ok(0) => self.source = None,
            Ok(count) => {
                let room = self.most.saturating_sub(self.kept.len()).min(count);
                self.kept.extend_from_slice(&buffer[..room]);
            }
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => self.source = None,
        }
    }
}

struct Watch {
    child: Child,
    /// Tells of its end at once; kernels before 5.3 have none.
    end: Option<OwnedFd>,
    limits: Limits,
    started: Instant,
    until: Instant,
    /// How many deadlines it has said.
    answers: usize,
    done: bool,
    lines: Output<std::process::ChildStdout>,
    errors: Output<std::process::ChildStderr>,
}

impl Watch {
    fn new(mut child: Child, limits: Limits) -> Self {
        let started = Instant::now();
        let lines = Output { source: child.stdout.take(), kept: Vec::new(), most: MAX_LINES };
        let errors = Output { source: child.stderr.take(), kept: Vec::new(), most: MAX_ERRORS };
        let until = started + limits.first;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let end = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        Self { child, end, limits, started, until, answers: 0, done: false, lines, errors }
    }

    fn until_end(&mut self) -> End {
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => {
                    // What it wrote last; an agent that it left behind may hold the pipe, so never to the end.
                    self.read_outputs(Duration::ZERO);
                    return End::Exited(status);
                }
                Ok(None) => {}
                Err(cause) => {
                    self.stop();
                    return End::Lost(cause);
                }
            }
            let now = Instant::now();
            if now >= self.until && self.done {
                return self.leave();
            }
            if now >= self.until {
                self.stop();
                return End::Overran { after: self.started.elapsed(), answered: self.answers > 0 };
            }
            self.read_outputs(TICK.min(self.until - now));
            self.look_for_words();
        }
    }

    /// Waits up to `wait` for output or the helper's end, and reads what is there.
    fn read_outputs(&mut self, wait: Duration) {
        let (lines_ready, errors_ready);
        {
            let mut fds = Vec::with_capacity(3);
            let lines = self.lines.source.as_ref().map(|source| PollFd::new(source, PollFlags::IN));
            let errors = self.errors.source.as_ref().map(|source| PollFd::new(source, PollFlags::IN));
            let (has_lines, has_errors) = (lines.is_some(), errors.is_some());
            fds.extend(lines);
            fds.extend(errors);
            fds.extend(self.end.as_ref().map(|end| PollFd::new(end, PollFlags::IN)));
            let timeout = Timespec { tv_sec: 0, tv_nsec: wait.subsec_nanos().into() };
            if fds.is_empty() || poll(&mut fds, Some(&timeout)).is_err() {
                sleep(wait.min(ENDING_TICK));
                return;
            }
            let mut ready = fds.iter().map(|fd| !fd.revents().is_empty());
            lines_ready = has_lines && ready.next().unwrap_or_default();
            errors_ready = has_errors && ready.next().unwrap_or_default();
        }
        if lines_ready {
            self.lines.read();
        }
        if errors_ready {
            self.errors.read();
        }
    }

    /// Takes a deadline over once its line is there, and gives the helper little time once it is done.
    fn look_for_words(&mut self) {
        if self.done || !self.limits.handshake {
            return;
        }
        if is_done(&self.lines.kept) {
            self.done = true;
            self.until = self.until.min(Instant::now() + self.limits.ending);
            return;
        }
        let said = deadlines(&self.lines.kept);
        if said.len() > self.answers
            && let Some(deadline) = said.last()
        {
            self.answers = said.len();
            self.until = Instant::now() + (*deadline).min(MAX_DEADLINE) + self.limits.grace;
        }
    }

    /// Ends a helper that has nothing left to be asked for, if it can be ended.
    fn leave(&mut self) -> End {
        let pid = self.child.id();
        let _ = self.child.kill();
        sleep(TICK);
        let killed = matches!(self.child.try_wait(), Ok(Some(_)));
        self.read_outputs(Duration::ZERO);
        End::Left { pid, killed }
    }

    /// SIGTERM, a while later SIGKILL. Its own children are bound to it and go with it.
    fn stop(&mut self) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid {
            // Not reaped yet, so the id can't be another process's.
            let _ = kill_process(pid, Signal::TERM);
        }
        let until = Instant::now() + self.limits.term_to_kill;
        while Instant::now() < until {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                self.read_outputs(Duration::ZERO);
                return;
            }
            self.read_outputs(TICK);
        }
        let _ = self.child.kill();
        // A process in an uninterruptible call stays; it is not waited for.
        sleep(TICK);
        let _ = self.child.try_wait();
    }
}

/// The deadlines that the first complete lines say.
fn deadlines(output: &[u8]) -> Vec<Duration> {
    complete_lines(output).map_while(deadline_of).take(MAX_DEADLINES).collect()
}

/// The deadline that a line says.
fn deadline_of(line: &[u8]) -> Option<Duration> {
    let number = std::str::from_utf8(line).ok()?.strip_prefix(DEADLINE_WORD)?.strip_prefix(' ')?;
    number.trim().parse().ok().map(Duration::from_millis)
}

/// Whether one of the complete lines says that the helper is done.
fn is_done(output: &[u8]) -> bool {
    complete_lines(output).any(|line| line == DONE_WORD.as_bytes())
}

fn complete_lines(output: &[u8]) -> impl Iterator<Item = &[u8]> {
    let complete = output.iter().rposition(|byte| *byte == b'\n').map_or(&[][..], |end| &output[..end]);
    complete.split(|byte| *byte == b'\n')
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    const SHORT: Limits = Limits {
        first: Duration::from_millis(300),
        handshake: true,
        grace: Duration::from_millis(200),
        ending: Duration::from_millis(200),
        term_to_kill: Duration::from_millis(200),
    };

    fn shell(script: &str, limits: Limits) -> (Run, Duration) {
        let started = Instant::now();
        let run = run(Command::new("/bin/sh").args(["-c", script]), limits);
        (run, started.elapsed())
    }

    #[test]
    fn a_quick_one_ends_at_once() {
        let (run, took) = shell("exit 0", SHORT);
        assert!(matches!(run.end, End::Exited(status) if status.success()));
        assert!(took < Duration::from_millis(250), "{took:?}");
    }

    #[test]
    fn the_first_line_extends_the_time() {
        let (run, _) = shell("echo deadline_ms 5000; sleep 0.8; echo bad luck >&2; exit 3", SHORT);
        assert!(matches!(run.end, End::Exited(status) if status.code() == Some(3)), "{run:?}");
        assert_eq!(run.errors, b"bad luck\n");
    }

    // A02, A25: own bounds, far below Slurm's.
    #[test]
    fn silence_ends_with_the_handshake() {
        let (run, took) = shell("exec sleep 60", SHORT);
        assert!(matches!(run.end, End::Overran { answered: false, .. }), "{run:?}");
        assert!(took < Duration::from_millis(1200), "{took:?}");
    }

    // A02, A25, E06: SIGTERM and a while, SIGKILL last.
    #[test]
    fn a_helper_past_its_own_deadline_is_stopped_even_if_it_ignores_sigterm() {
        let script = "trap '' TERM; echo deadline_ms 100; while :; do sleep 0.05; done";
        let (run, took) = shell(script, SHORT);
        assert!(matches!(run.end, End::Overran { answered: true, .. }), "{run:?}");
        assert!(took > Duration::from_millis(300) && took < Duration::from_millis(1500), "{took:?}");
    }

    // E07.
    #[test]
    fn a_flood_neither_blocks_the_helper_nor_grows() {
        let (run, _) = shell("yes | head -c 3000000; yes | head -c 3000000 >&2; exit 7", Limits::EPILOG);
        assert!(matches!(run.end, End::Exited(status) if status.code() == Some(7)), "{run:?}");
        assert_eq!(run.errors.len(), MAX_ERRORS);
    }

    // A05, A21, A27.
    #[test]
    fn an_agent_that_keeps_the_pipe_does_not_hold_the_prolog() {
        let (run, took) = shell("sleep 3 & exit 0", SHORT);
        assert!(matches!(run.end, End::Exited(_)), "{run:?}");
        assert!(took < Duration::from_millis(300), "{took:?}");
    }

    #[test]
    fn one_that_is_done_is_not_waited_for() {
        // It ignores what can be ignored; one inside the kernel ignores all.
        let script =
            "trap '' TERM; echo deadline_ms 60000; sleep 0.4; echo last words >&2; echo done; exec sleep 60";
        let (run, took) = shell(script, SHORT);
        assert!(matches!(run.end, End::Left { killed: true, .. }), "{run:?}");
        assert_eq!(run.errors, b"last words\n");
        assert!(took > Duration::from_millis(550) && took < Duration::from_millis(1500), "{took:?}");
        // It need not have said its deadline, and its end is its own if it comes.
        let (run, took) = shell("echo done; exec sleep 60", SHORT);
        assert!(matches!(run.end, End::Left { .. }) && took < Duration::from_secs(1), "{run:?} {took:?}");
        let (run, _) = shell("echo deadline_ms 60000; echo done; exit 4", SHORT);
        assert!(matches!(run.end, End::Exited(status) if status.code() == Some(4)), "{run:?}");
    }

    #[test]
    fn only_a_whole_line_says_that_it_is_done() {
        assert!(is_done(b"done\n") && is_done(b"deadline_ms 5\ndone\nx"));
        for other in [&b"done"[..], b"deadline_ms 5\ndone", b"done \n", b"undone\n", b"\n", b""] {
            assert!(!is_done(other), "{other:?}");
        }
    }

    // B11, A31.
    #[test]
    fn a_crash_and_a_missing_program_are_told_apart() {
        let (run, _) = shell("kill -SEGV $$", SHORT);
        assert!(matches!(run.end, End::Exited(status) if status.signal() == Some(11)));
        let run = super::run(&mut Command::new("/nonexistent/aimaster-prolog"), SHORT);
        assert!(matches!(run.end, End::NotStarted(cause) if cause.kind() == io::ErrorKind::NotFound));
    }

    // A05.
    #[test]
    fn the_helper_gets_its_standard_descriptors_only() {
        // One that is not closed on exec, as Slurm leaves them.
        let (left_open, _other) = rustix::pipe::pipe().unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(&left_open);
        let (run, _) = shell(&format!("test ! -e /proc/self/fd/{number}"), SHORT);
        assert!(matches!(run.end, End::Exited(status) if status.success()), "{run:?}");
    }

    #[test]
    fn only_a_complete_and_right_line_is_an_answer() {
        let ms = Duration::from_millis;
        assert_eq!(deadlines(b"deadline_ms 12\nmore"), [ms(12)]);
        assert_eq!(deadlines(b"deadline_ms 12\ndeadline_ms 5\ndeadline_ms 7\n"), [ms(12), ms(5)]);
        assert_eq!(deadlines(b"deadline_ms 12\ndone\ndeadline_ms 7\n"), [ms(12)]);
        for wrong in [&b"deadline_ms 12"[..], b"deadline_ms -1\n", b"deadline_msx 3\n", b"\n", b"\xff\n", b""]
        {
            assert_eq!(deadlines(wrong), []);
        }
        assert_eq!(deadlines(b"deadline_ms 99999999999999999999\n"), []);
    }

    // A helper that stops before it says the second one is held by the first.
    #[test]
    fn a_second_deadline_takes_the_place_of_the_first() {
        let (run, took) =
            shell("echo deadline_ms 9000; sleep 0.2; echo deadline_ms 100; exec sleep 60", SHORT);
        assert!(matches!(run.end, End::Overran { answered: true, .. }), "{run:?}");
        assert!(took < Duration::from_millis(1500), "{took:?}");
        let script = "echo deadline_ms 200; sleep 0.2; echo deadline_ms 5000; sleep 0.7; exit 3";
        let (run, _) = shell(script, SHORT);
        assert!(matches!(run.end, End::Exited(status) if status.code() == Some(3)), "{run:?}");
    }
}
