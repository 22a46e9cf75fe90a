//! Events and log lines in syslog: `key=value` fields after the event's name, as journald and rsyslog take them.

use std::path::Path;
use std::sync::{Arc, Mutex};

use cluster::log::LogSink;
use diag::report::{Report, printable};
use diag::verdict::Outcome;
use syslog::{Facility, Formatter3164, Logger, LoggerBackend};

/// Where log lines go: syslog if its socket is there, else the standard error of this process.
#[derive(Clone)]
pub struct Events {
    logger: Option<Arc<Mutex<Logger<LoggerBackend, Formatter3164>>>>,
    job: u32,
}

impl Events {
    /// Connects to the socket.
    #[must_use]
    pub fn open(socket: &Path, node: &str, job: u32) -> Self {
        let formatter = Formatter3164 {
            facility: Facility::LOG_DAEMON,
            hostname: Some(node.to_owned()),
            process: "aimaster-prolog".into(),
            pid: std::process::id(),
        };
        let logger = syslog::unix_custom(formatter, socket).ok().map(|logger| Arc::new(Mutex::new(logger)));
        Self { logger, job }
    }

    /// One line.
    pub fn log(&self, line: &str) {
        let line = format!("job={} {}", self.job, printable(line));
        match &self.logger {
            Some(logger) => {
                if let Ok(mut logger) = logger.lock() {
                    // There is nowhere left to complain to.
                    _ = logger.warning(&line);
                }
            }
            None => eprintln!("aimaster: {line}"),
        }
    }

    /// The sink that the session's own lines go to.
    #[must_use]
    pub fn sink(&self) -> LogSink {
        let events = self.clone();
        LogSink::new(move |line| events.log(line))
    }

    /// The event of a finished suite.
    pub fn finished(&self, report: &Report) {
        let name = match report.outcome {
            Outcome::Pass | Outcome::Skip => "SanityCheckSucceeded",
            Outcome::Error | Outcome::Suspect | Outcome::Environment | Outcome::Fail => "SanityCheckFailed",
        };
        let seconds = report.finished_at.duration_since(report.started_at).as_secs_f64();
        self.log(&format!(
            "event={name} cluster={} check_number={} outcome={} action={} nodes={} drained={} seconds={seconds:.1} \
             summary={:?}",
            report.cluster,
            report.check_number,
            report.outcome,
            report.action,
            report.nodes.len(),
            report.drained.join(","),
            report.summary
        ));
    }
}
