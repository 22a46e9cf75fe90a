//! Events and log lines in syslog: `key=value` fields after the event's name, as journald and rsyslog take them.

use std::path::Path;
use std::sync::{Arc, Mutex};

use diag::report::printable;
use syslog::{Facility, Formatter3164, Logger, LoggerBackend};

use crate::log::LogSink;

/// Where log lines go: syslog if its socket is there and takes them, else the standard error of this process.
#[derive(Clone)]
pub struct Events {
    logger: Option<Arc<Mutex<Logger<LoggerBackend, Formatter3164>>>>,
    job: u32,
}

impl Events {
    /// Connects to the socket; `process` is the name of this program.
    #[must_use]
    pub fn open(socket: &Path, process: &str, node: &str, job: u32) -> Self {
        let formatter = Formatter3164 {
            facility: Facility::LOG_DAEMON,
            hostname: Some(node.to_owned()),
            process: process.into(),
            pid: std::process::id(),
        };
        let logger = syslog::unix_custom(formatter, socket).ok().filter(never_waits);
        Self { logger: logger.map(|logger| Arc::new(Mutex::new(logger))), job }
    }

    /// One line about something that should be looked at.
    pub fn log(&self, line: &str) {
        self.write(line, true);
    }

    fn write(&self, line: &str, warning: bool) {
        let line = format!("job={} {}", self.job, printable(line));
        let logger = self.logger.as_ref().and_then(|logger| logger.lock().ok());
        let written = logger.is_some_and(|mut logger| {
            let done = if warning { logger.warning(&line) } else { logger.info(&line) };
            done.is_ok()
        });
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
}
