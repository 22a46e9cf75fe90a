//! What a runtime report says that an earlier one of the same agent did not: for whoever looks on while the job runs.

use crate::c4d::decide;
use crate::c4d::finding::Finding;
use crate::health::HealthEvent;
use crate::report::printable;
use crate::runtime_report::{RuntimeReport, Status};

impl RuntimeReport {
    /// What is new since `before`, one line each; with no `before`, all that there is.
    #[must_use]
    pub fn news(&self, before: Option<&Self>) -> Vec<String> {
        let mut lines = Vec::new();
        if before.is_none_or(|before| before.telemetry.status != self.telemetry.status) {
            lines.push(match self.telemetry.status {
                Status::Ok => "telemetry: ranks tell what they do".to_owned(),
                Status::None => "telemetry: no rank came yet".to_owned(),
                Status::Unavailable => {
                    format!("telemetry: unavailable: {}", self.telemetry.because.join("; "))
                }
            });
        }
        let known = |list: &[Finding], one: &Finding| {
            list.iter().any(|other| {
                (other.class, &other.subject) == (one.class, &one.subject)
                    && other.since_ms == one.since_ms
                    && other.same_ranks(one)
            })
        };
        for finding in &self.findings {
            if !before.is_some_and(|before| known(&before.findings, finding)) {
                lines.push(format!("{} {}", decide::item(finding, false).status, self.one_line(finding)));
            }
        }
        let told = |list: fn(&Self) -> usize| before.map_or(0, list);
        for finding in self.withdrawn.iter().skip(told(|before| before.withdrawn.len())) {
            lines.push(format!("withdrawn {}", self.withdrawn_line(finding)));
        }
        lines.extend(self.hardware_news(before));
        for act in self.acts.iter().skip(told(|before| before.acts.len())) {
            lines.push(format!("{}: {}", if act.done { "done" } else { "not done" }, act.what));
        }
        for line in &self.blind {
            if !before.is_some_and(|before| before.blind.contains(line)) {
                lines.push(format!("not seen: {line}"));
            }
        }
        for line in self.errors.iter().skip(told(|before| before.errors.len())) {
            lines.push(format!("ERROR {line}"));
        }
        if let Some(end) = &self.finished
            && before.is_none_or(|before| before.finished.is_none())
        {
            lines.push(format!("the watch ended: {}", end.because));
        }
        lines.iter().map(|line| printable(line)).collect()
    }

    fn one_line(&self, finding: &Finding) -> String {
        let since = super::text::after(finding.since_ms);
        let suspects: Vec<String> = finding.suspects.iter().take(3).map(|who| self.rank(who)).collect();
        let who = if suspects.is_empty() { String::new() } else { format!(" [{}]", suspects.join("; ")) };
        format!("{}: {} (since {since}){who}", finding.class, finding.message)
    }

    fn hardware_news(&self, before: Option<&Self>) -> Vec<String> {
        let all = |report: &Self| -> Vec<(String, HealthEvent)> {
            let here = report.hardware.iter().map(|event| (report.node.clone(), event.clone()));
            let elsewhere = report.elsewhere.iter().map(|one| (report.name(one.node), one.event.clone()));
            here.chain(elsewhere).collect()
        };
        // How long ago it began is another number each time.
        let same = |a: &(String, HealthEvent), b: &(String, HealthEvent)| {
            (&a.0, &a.1.part, &a.1.what, a.1.turn, a.1.action)
                == (&b.0, &b.1.part, &b.1.what, b.1.turn, b.1.action)
        };
        let old = before.map(all).unwrap_or_default();
        let new = all(self).into_iter().filter(|one| !old.iter().any(|other| same(one, other)));
        new.map(|(node, event)| self.hardware_line(&node, &event)).collect()
    }
}
