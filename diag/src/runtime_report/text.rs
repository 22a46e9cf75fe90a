//! The runtime report as text: what it amounts to, what holds, what was withdrawn, what the hardware showed, what was done,
//! what nobody could see, and when all that was.

use std::fmt::Write as _;

use crate::c4d::decide;
use crate::c4d::finding::{Finding, State};
use crate::health::{HealthEvent, Turn};
use crate::report::printable;
use crate::runtime_report::{RuntimeReport, Status};
use crate::wording;

/// Most suspects that are shown of a finding; the JSON has up to 32.
const MOST_SUSPECTS: usize = 8;

/// Most entries of a list that are shown; the JSON has them all.
const MOST_SHOWN: usize = 20;

impl RuntimeReport {
    /// The report as text.
    #[must_use]
    pub fn text(&self) -> String {
        let mut lines = vec![self.headline()];
        for finding in self.findings.iter().take(MOST_SHOWN) {
            lines.extend(self.finding_lines(finding));
        }
        lines.extend(more(self.findings.len(), "findings that hold"));
        for finding in self.withdrawn.iter().take(MOST_SHOWN) {
            lines.push(format!("  withdrawn {}", self.withdrawn_line(finding)));
        }
        lines.extend(more(self.withdrawn.len(), "withdrawn findings"));
        let here = self.hardware.iter().map(|event| self.hardware_line(&self.node, event));
        let elsewhere = self.elsewhere.iter().map(|one| self.hardware_line(&self.name(one.node), &one.event));
        let hardware: Vec<String> = here.chain(elsewhere).collect();
        lines.extend(hardware.iter().take(MOST_SHOWN).map(|line| format!("  {line}")));
        lines.extend(more(hardware.len(), "events of the hardware"));
        for act in &self.acts {
            let word = if act.done { "done" } else { "not done" };
            lines.push(format!("  {word}: {}", act.what));
        }
        lines.extend(self.blind.iter().take(MOST_SHOWN).map(|line| format!("  not seen: {line}")));
        lines.extend(more(self.blind.len(), "things that were not seen"));
        lines.extend(self.errors.iter().take(MOST_SHOWN).map(|line| format!("  ERROR   {line}")));
        lines.extend(more(self.errors.len(), "errors"));
        lines.extend(self.delay_lines());
        lines.extend(self.time_line());
        let mut text = String::new();
        for line in lines {
            // Writing to a String can't fail.
            _ = writeln!(text, "{}", printable(&line));
        }
        text
    }

    fn headline(&self) -> String {
        let ranks = match (self.telemetry.status, self.telemetry.ranks) {
            (Status::Ok, _) if !self.judged => "nobody judged what the ranks told".to_owned(),
            (Status::Ok, 1) => "1 rank told what it does".to_owned(),
            (Status::Ok, ranks) => format!("{ranks} ranks told what they do"),
            (Status::None | Status::Unavailable, _) => format!("unknown: {}", self.unknown_because()),
        };
        let refused = match self.telemetry.refused {
            0 => String::new(),
            refused => format!(", {refused} connections were refused"),
        };
        let end = match &self.finished {
            Some(end) => format!(
                "ended after {:.0} s: {}",
                seconds(end.at.duration_since(self.started_at)),
                end.because
            ),
            None => "has not said that it ended".to_owned(),
        };
        let judged = if self.spoke { "" } else { " (another node speaks for the job)" };
        format!(
            "RuntimeCheck on {}{judged}: {}; {ranks}{refused}; the watch {end}",
            self.node,
            self.outcome()
        )
    }

    fn finding_lines(&self, finding: &Finding) -> Vec<String> {
        let item = decide::item(finding, false);
        let operation = finding.operation.as_ref().map_or_else(String::new, |operation| {
            let name =
                if operation.name.is_empty() { String::new() } else { format!(" \"{}\"", operation.name) };
            format!(", communicator {:#x}{name} of {} ranks", operation.comm, operation.nranks)
        });
        let mut lines = vec![
            format!("  {:<7} {}: {}", item.status.to_string(), finding.class, finding.message),
            format!(
                "          {}; since {}, found {}; confidence {} %; {} wait{operation}",
                self.subject(&finding.subject),
                after(finding.since_ms),
                after(finding.found_ms),
                wording::number(finding.confidence * 100.0),
                finding.waiting,
            ),
        ];
        for who in finding.suspects.iter().take(MOST_SUSPECTS) {
            lines.push(format!("          suspect: {}", self.rank(who)));
        }
        if finding.suspects_total > finding.suspects.len().min(MOST_SUSPECTS) {
            lines.push(format!("          {} suspects in all", finding.suspects_total));
        }
        lines.extend(finding.evidence.iter().map(|line| format!("          - {line}")));
        lines
    }

    pub(super) fn withdrawn_line(&self, finding: &Finding) -> String {
        let because = match &finding.state {
            State::Withdrawn { because } => because.as_str(),
            State::Confirmed => "it holds no more",
        };
        let since = after(finding.since_ms);
        format!("{}: {} (since {since}; {because})", finding.class, finding.message)
    }

    pub(crate) fn hardware_line(&self, node: &str, event: &HealthEvent) -> String {
        let word = match (event.turn, decide::weight(event).0) {
            (Turn::Ended, _) => "over".to_owned(),
            (_, status) => status.to_string(),
        };
        format!("{word:<7} hardware of {node}: {}", event.words)
    }

    /// What was found, in the order in which it began.
    fn time_line(&self) -> Vec<String> {
        let mut moments: Vec<(u64, String)> = Vec::new();
        for finding in self.findings.iter().chain(&self.withdrawn) {
            let what = format!("{} {}", finding.class, self.subject(&finding.subject));
            let fate = if finding.state == State::Confirmed { "" } else { ", withdrawn later" };
            moments.push((finding.since_ms, format!("began: {what}")));
            moments.push((finding.found_ms, format!("found: {what}{fate}")));
        }
        if moments.is_empty() {
            return Vec::new();
        }
        moments.sort();
        moments.truncate(2 * MOST_SHOWN);
        let mut lines = vec![format!("  time line, seconds after {:.0}", self.started_at)];
        lines.extend(moments.iter().map(|(ms, what)| format!("  {:>9.1} {what}", *ms as f64 / 1000.0)));
        lines
    }
}

/// A time of the agent's own clock.
pub(super) fn after(ms: u64) -> String {
    format!("{:.1} s", ms as f64 / 1000.0)
}

fn seconds(duration: jiff::SignedDuration) -> f64 {
    duration.as_secs_f64().max(0.0)
}

fn more(all: usize, what: &str) -> Option<String> {
    (all > MOST_SHOWN).then(|| format!("  {} {what} in all; --json shows them", all))
}
