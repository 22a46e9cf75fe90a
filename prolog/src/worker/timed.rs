//! Sockets that wait no longer than they may: every wait ends at a deadline, or soon after its request was
//! overtaken by the next one.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt};

/// Longest single wait: how late a cancelled request notices.
const SLICE: Duration = Duration::from_millis(50);

/// Set when a request is overtaken by the next one; everything that waits looks at it.
pub(super) type Cancel = Arc<AtomicBool>;

/// Until when something may wait.
#[derive(Debug, Clone)]
pub(super) struct Until {
    pub deadline: Instant,
    pub cancel: Cancel,
}

impl Until {
    /// `limit` from now.
    pub(super) fn after(limit: Duration, cancel: &Cancel) -> Self {
        Self { deadline: Instant::now() + limit, cancel: Arc::clone(cancel) }
    }

    /// The same, but at most `limit` from now.
    pub(super) fn at_most(&self, limit: Duration) -> Self {
        Self { deadline: self.deadline.min(Instant::now() + limit), cancel: Arc::clone(&self.cancel) }
    }

    pub(super) fn cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }

    pub(super) fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    pub(super) fn over(&self) -> bool {
        self.cancelled() || self.left().is_zero()
    }

    /// The next single wait; `None` when there is no time left.
    pub(super) fn slice(&self) -> Option<Duration> {
        (!self.over()).then(|| self.left().min(SLICE))
    }
}

/// A blocking stream whose reads and writes end with `until`.
pub(super) struct Timed<'s> {
    pub stream: &'s TcpStream,
    pub until: Until,
}

impl Timed<'_> {
    fn patiently(&self, mut attempt: impl FnMut(Duration) -> io::Result<usize>) -> io::Result<usize> {
        while let Some(slice) = self.until.slice() {
            match attempt(slice) {
                Err(error)
                    if error.kind() == ErrorKind::WouldBlock || error.kind() == ErrorKind::TimedOut => {}
                other => return other,
            }
        }
        Err(ErrorKind::TimedOut.into())
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.patiently(|slice| {
            self.stream.set_read_timeout(Some(slice))?;
            (&mut &*self.stream).read(buffer)
        })
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.patiently(|slice| {
            self.stream.set_write_timeout(Some(slice))?;
            (&mut &*self.stream).write(buffer)
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Waits for one of `fds`, at most `wait`.
pub(super) fn wait_for(fds: &[(BorrowedFd<'_>, PollFlags)], wait: Duration) -> io::Result<()> {
    let mut fds: Vec<PollFd<'_>> =
        fds.iter().map(|&(fd, flags)| PollFd::from_borrowed_fd(fd, flags)).collect();
    let wait = Timespec::try_from(wait).map_err(io::Error::other)?;
    match poll(&mut fds, Some(&wait)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Connects, and says how long it took until the connection stood.
pub(super) fn connect_within(to: SocketAddr, until: &Until) -> io::Result<(TcpStream, Duration)> {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    let start = Instant::now();
    match connect(&socket, &to) {
        Ok(()) => {}
        Err(rustix::io::Errno::INPROGRESS) => loop {
            let Some(slice) = until.slice() else { return Err(ErrorKind::TimedOut.into()) };
            let fd = [(std::os::fd::AsFd::as_fd(&socket), PollFlags::OUT)];
            wait_for(&fd, slice)?;
            sockopt::socket_error(&socket)??;
            if rustix::net::getpeername(&socket).is_ok_and(|peer| peer.is_some()) {
                break;
            }
        },
        Err(errno) => return Err(errno.into()),
    }
    let took = start.elapsed();
    let stream = TcpStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok((stream, took))
}

/// What went wrong, as a person wants to read it.
pub(super) fn words(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        ErrorKind::TimedOut | ErrorKind::WouldBlock => "timed out".to_owned(),
        ErrorKind::HostUnreachable => "no route to host".to_owned(),
        ErrorKind::NetworkUnreachable => "network is unreachable".to_owned(),
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => "the peer reset the connection".to_owned(),
        ErrorKind::UnexpectedEof => "the peer closed the connection".to_owned(),
        _ => error.to_string(),
    }
}
