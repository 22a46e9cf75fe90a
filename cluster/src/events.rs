//! Events and log lines in syslog: `key=value` fields after the event's name, as journald and rsyslog take them.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use diag::action::drains::{Kind, Withheld};
use diag::report::printable;
use syslog::{Error, Facility, Formatter3164, Logger, LoggerBackend};

use crate::log::LogSink;

/// Where log lines go: syslog if its socket is there and takes them, else the standard error of this process.
#[derive(Clone)]
pub struct Events {
    outlet: Arc<Mutex<Outlet>>,
    job: u32,
}

/// The way to the socket. A daemon that was started anew has a new one, and a job may run for weeks.
struct Outlet {
    socket: PathBuf,
    process: String,
    node: String,
    logger: Option<Logger<LoggerBackend, Formatter3164>>,
}

impl Outlet {
    fn connect(&mut self) {
        let formatter = Formatter3164 {
            facility: Facility::LOG_DAEMON,
            hostname: Some(self.node.clone()),
            process: self.process.clone(),
            pid: std::process::id(),
        };
        self.logger = syslog::unix_custom(formatter, &self.socket).ok().filter(never_waits);
    }

    /// Whether it was taken.
    fn put(&mut self, line: &str, warning: bool) -> bool {
        match self.try_put(line, warning) {
            Ok(()) => return true,
            // It is there and does not read: the same socket is what would be found.
            Err(ErrorKind::WouldBlock) => return false,
            Err(_) => self.connect(),
        }
        self.try_put(line, warning).is_ok()
    }

    fn try_put(&mut self, line: &str, warning: bool) -> Result<(), ErrorKind> {
        let logger = self.logger.as_mut().ok_or(ErrorKind::NotConnected)?;
        let done = if warning { logger.warning(line) } else { logger.info(line) };
        done.map_err(|error| match error {
            Error::Write(cause) | Error::Io(cause) => cause.kind(),
            Error::Initialization(_) => ErrorKind::NotConnected,
        })
    }
}

impl Events {
    /// Connects to the socket; `process` is the name of this program.
    #[must_use]
    pub fn open(socket: &Path, process: &str, node: &str, job: u32) -> Self {
        let (process, node) = (process.to_owned(), node.to_owned());
        let mut outlet = Outlet { socket: socket.to_owned(), process, node, logger: None };
        outlet.connect();
        Self { outlet: Arc::new(Mutex::new(outlet)), job }
    }

    /// One line about something that should be looked at.
    pub fn log(&self, line: &str) {
        self.write(line, true);
    }

    fn write(&self, line: &str, warning: bool) {
        let line = format!("job={} {}", self.job, printable(line));
        let written = self.outlet.lock().unwrap_or_else(PoisonError::into_inner).put(&line, warning);
        if !written {
            eprintln!("aimaster: {line}");
        }
    }

    /// The sink that the session's own lines go to.
    #[must_use]
    pub fn sink(&self) -> LogSink {
        let events = self.clone();
        LogSink::new(move |line| events.log(line))
    }

    /// An event; it is a warning where somebody should look.
    pub fn event(&self, line: &str, warning: bool) {
        self.write(line, warning);
    }
}

/// The events of nodes that should have been drained and were not: those over the budget in one, each that needs a person.
#[must_use]
pub fn withheld(withheld: &[Withheld]) -> Vec<String> {
    let of = |kind: Kind| withheld.iter().filter(move |one| one.kind == kind);
    let mut lines = Vec::new();
    if let Some(first) = of(Kind::Budget).next() {
        let nodes: Vec<&str> = of(Kind::Budget).map(|one| one.node.as_str()).collect();
        lines.push(format!("event=DrainHeldBack nodes={} summary={:?}", nodes.join(","), first.words));
    }
    lines.extend(
        of(Kind::Person)
            .map(|one| format!("event=NodeNeedsPerson node={} summary={:?}", one.node, one.words)),
    );
    lines
}

/// A syslog daemon that hangs must not hold the job up: what it does not take at once goes elsewhere.
fn never_waits(logger: &Logger<LoggerBackend, Formatter3164>) -> bool {
    match &logger.backend {
        LoggerBackend::Unix(socket) => socket.set_nonblocking(true).is_ok(),
        LoggerBackend::UnixStream(stream) => stream.get_ref().set_nonblocking(true).is_ok(),
        LoggerBackend::Udp(..) | LoggerBackend::Tcp(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_syslog_daemon_that_hangs_holds_nobody_up() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        // It is there, and never reads.
        let _daemon = UnixDatagram::bind(&path).unwrap();
        let (done, ended) = mpsc::channel();
        std::thread::spawn(move || {
            let events = Events::open(&path, "aimaster", "n1", 7);
            (0..3000).for_each(|_| events.log("a line"));
            done.send(()).unwrap();
        });
        ended.recv_timeout(Duration::from_secs(20)).unwrap();
    }

    #[test]
    fn a_syslog_daemon_that_comes_late_or_is_started_anew_is_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let events = Events::open(&path, "aimaster", "n1", 7);
        events.log("nobody is there");
        for start in ["first", "second"] {
            let daemon = UnixDatagram::bind(&path).unwrap();
            daemon.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            events.log(start);
            let mut bytes = [0; 200];
            let count = daemon.recv(&mut bytes).unwrap();
            assert!(String::from_utf8_lossy(&bytes[..count]).ends_with(start));
            std::fs::remove_file(&path).unwrap();
        }
    }
}
