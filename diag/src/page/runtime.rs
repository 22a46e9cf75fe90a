//! What an agent said while the job ran: its findings, a time line of the ranks that they name, the delay matrix, what the
//! hardware showed, what was done, and what nobody could see.

use serde::Serialize;

use super::{Fact, Lines, MOST_LINES, Tone, moment, name, seconds, share, text};
use crate::c4d::decide;
use crate::c4d::finding::{Finding, State, Who};
use crate::c4d::matrix::Delay;
use crate::runtime_report::{RuntimeReport, Status};
use crate::wording;

/// Most findings that are shown whole: more than one job has causes.
const MOST_FOUND: usize = 12;

/// Most suspects of a finding.
const MOST_SUSPECTS: usize = 8;

/// Most lanes of the time line.
const MOST_LANES: usize = 24;

/// Most marks on the job's own lane.
const MOST_MARKS: usize = 12;

/// Most senders, and most receivers, of the matrix.
pub const MOST_SIDE: usize = 16;

/// How many times the middle of the cells a cell of level 1, 2, 3 and 4 has at least.
const LEVELS: [u64; 4] = [2, 5, 20, 100];

/// What an agent said.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Watch {
    /// Its node.
    pub node: String,
    /// What it amounts to.
    pub outcome: String,
    /// The tone of that.
    pub tone: Tone,
    /// Whether it spoke for the job.
    pub spoke: bool,
    /// How it watched.
    pub facts: Vec<Fact>,
    /// Findings that hold, then those that were withdrawn.
    pub found: Vec<Found>,
    /// How many are left out.
    pub more_found: usize,
    /// The length of the time line in seconds; empty without lanes.
    pub total: String,
    /// What happened to whom.
    pub lanes: Vec<RankLane>,
    /// The delay matrix.
    pub delays: Option<Delays>,
    /// What the hardware showed.
    pub hardware: Lines,
    /// What was done, and what not.
    pub acts: Lines,
    /// What could not be watched.
    pub blind: Lines,
    /// Errors of the watch.
    pub errors: Lines,
}

/// A finding.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Found {
    /// Its class.
    pub class: String,
    /// What is at fault.
    pub subject: String,
    /// `FAIL`, `SUSPECT`, ..., or `withdrawn`.
    pub status: String,
    /// The tone of that.
    pub tone: Tone,
    /// In a line.
    pub words: String,
    /// What shows it.
    pub evidence: Lines,
    /// The ranks.
    pub suspects: Lines,
    /// When it began, when it was found, how sure it is, who waits.
    pub facts: Vec<Fact>,
}

/// Something that happened at a time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Mark {
    /// When.
    pub at: f64,
    /// What.
    pub words: String,
}

/// A rank, a part or the job itself on the time line.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RankLane {
    /// Who it is.
    pub name: String,
    /// The class of the finding; empty for the job itself.
    pub class: String,
    /// When it began, when it was found, until when it held; `None`: the job itself.
    pub span: Option<(f64, f64, f64)>,
    /// Whether it holds.
    pub holds: bool,
    /// The same in words.
    pub words: String,
    /// Single moments.
    pub marks: Vec<Mark>,
}

/// The delay matrix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Delays {
    /// The senders, down.
    pub senders: Vec<String>,
    /// The receivers, across.
    pub receivers: Vec<String>,
    /// A row a sender.
    pub rows: Vec<Vec<Option<DelayCell>>>,
    /// The middle of all cells, in µs.
    pub median: String,
    /// How many connections are left out.
    pub more: usize,
}

/// A connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DelayCell {
    /// What a step waits, in µs, or `stuck`.
    pub value: String,
    /// 0: as the others, to 4.
    pub level: usize,
    /// Steps behind it.
    pub steps: u64,
}

/// A finding in a few words: its class and what is at fault.
pub(super) fn named(report: &RuntimeReport, finding: &Finding) -> String {
    let subject = name(&report.subject(&finding.subject));
    format!("{}, {subject}", finding.class.text().replace('_', " "))
}

/// An agent's report as it is shown.
pub(super) fn watch(report: &RuntimeReport) -> Watch {
    let all = report.findings.iter().chain(&report.withdrawn);
    let found: Vec<Found> = all.take(MOST_FOUND).map(|one| found(report, one)).collect();
    let (total_s, lanes) = lanes(report);
    let here = report.hardware.iter().map(|event| report.hardware_line(&report.node, event));
    let elsewhere =
        report.elsewhere.iter().map(|one| report.hardware_line(&report.name(one.node), &one.event));
    let hardware: Vec<String> =
        here.chain(elsewhere).map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    let act = |act: &crate::runtime_report::Act| {
        format!("{}: {} ({})", if act.done { "done" } else { "not done" }, act.what, moment(act.at))
    };
    let acts: Vec<String> = report.acts.iter().map(act).collect();
    let lines = |lines: &[String]| Lines::of(lines.iter().map(String::as_str), MOST_LINES);
    let outcome = report.outcome();
    Watch {
        node: name(&report.node),
        outcome: outcome.to_string(),
        tone: Tone::of_outcome(outcome),
        spoke: report.spoke,
        facts: facts(report),
        more_found: (report.findings.len() + report.withdrawn.len()).saturating_sub(found.len()),
        found,
        total: if lanes.is_empty() { String::new() } else { format!("{} s", seconds(total_s)) },
        lanes,
        delays: delays(report),
        hardware: lines(&hardware),
        acts: lines(&acts),
        blind: lines(&report.blind),
        errors: lines(&report.errors),
    }
}

fn facts(report: &RuntimeReport) -> Vec<Fact> {
    let told = match report.telemetry.status {
        Status::Ok if report.judged => format!("{} ranks told what they do", report.telemetry.ranks),
        _ => text(&report.unknown_because()),
    };
    let ended = match &report.finished {
        Some(end) => {
            let lasted = end.at.duration_since(report.started_at).as_secs_f64().max(0.0);
            format!("after {} s: {}", seconds(lasted), text(&end.because))
        }
        None => "it has not said that it ended".to_owned(),
    };
    let mut facts = vec![
        Fact { name: "Telemetry", value: told },
        Fact { name: "Began", value: moment(report.started_at) },
        Fact { name: "Ended", value: ended },
    ];
    if report.telemetry.refused > 0 {
        facts.push(Fact { name: "Refused connections", value: report.telemetry.refused.to_string() });
    }
    facts
}

fn found(report: &RuntimeReport, finding: &Finding) -> Found {
    let item = decide::item(finding, false);
    let mut facts = vec![
        Fact { name: "Since", value: after(finding.since_ms) },
        Fact { name: "Found", value: after(finding.found_ms) },
        Fact { name: "Confidence", value: format!("{} %", wording::number(finding.confidence * 100.0)) },
        Fact { name: "Waiting ranks", value: finding.waiting.to_string() },
    ];
    let (status, tone) = match &finding.state {
        State::Confirmed => (item.status.to_string(), Tone::of(item.status)),
        State::Withdrawn { because } => {
            facts.push(Fact { name: "Withdrawn", value: text(because) });
            ("withdrawn".to_owned(), Tone::Quiet)
        }
    };
    let suspects: Vec<String> = finding.suspects.iter().map(|who| report.rank(who)).collect();
    let mut suspects = Lines::of(suspects.iter().map(String::as_str), MOST_SUSPECTS);
    suspects.more = finding.suspects_total.saturating_sub(suspects.shown.len());
    Found {
        class: finding.class.text().replace('_', " "),
        subject: name(&report.subject(&finding.subject)),
        status,
        tone,
        words: text(&finding.message),
        evidence: Lines::of(finding.evidence.iter().map(String::as_str), MOST_SUSPECTS),
        suspects,
        facts,
    }
}

/// A time of the agent's own clock.
fn after(ms: u64) -> String {
    format!("{} s", seconds(ms as f64 / 1000.0))
}

/// The length of the time line, and its lanes: the job's own first. Nothing where nothing was found or done.
fn lanes(report: &RuntimeReport) -> (f64, Vec<RankLane>) {
    let findings = || report.findings.iter().chain(&report.withdrawn);
    if findings().next().is_none() && report.acts.is_empty() {
        return (0.0, Vec::new());
    }
    let since = |at: jiff::Timestamp| at.duration_since(report.started_at).as_secs_f64();
    let ended_s = report.finished.as_ref().map(|end| since(end.at));
    let last_ms = findings().map(|one| one.found_ms.max(one.since_ms)).max().unwrap_or_default();
    let last_act_s = report.acts.iter().map(|act| since(act.at)).fold(0.0, f64::max);
    let total_s = ended_s.unwrap_or(0.0).max(last_ms as f64 / 1000.0).max(last_act_s).max(1.0);
    let place = |at_s: f64| share(at_s, total_s);
    let mark = |at: jiff::Timestamp, words: String| Mark {
        at: place(since(at)),
        words: format!("{words}, at {} s", seconds(since(at))),
    };
    let first = report.first_step_at.map(|at| mark(at, "first step".to_owned()));
    let acts = report.acts.iter().map(|act| {
        mark(act.at, format!("{}: {}", if act.done { "done" } else { "not done" }, text(&act.what)))
    });
    let own = RankLane {
        name: "the job".to_owned(),
        class: String::new(),
        span: None,
        holds: false,
        words: format!("watched for {} s", seconds(total_s)),
        marks: first.into_iter().chain(acts).take(MOST_MARKS).collect(),
    };
    let of_finding = |one: &Finding| {
        let holds = one.state == State::Confirmed;
        let (begin, found) = (place(one.since_ms as f64 / 1000.0), place(one.found_ms as f64 / 1000.0));
        let span = (begin, found.max(begin), if holds { 1.0 } else { found.max(begin) });
        let words = format!(
            "{}: since {}, found {}, {}",
            one.class.text().replace('_', " "),
            after(one.since_ms),
            after(one.found_ms),
            if holds { "holds" } else { "withdrawn later" }
        );
        let names: Vec<String> = if one.suspects.is_empty() {
            vec![report.subject(&one.subject)]
        } else {
            one.suspects.iter().take(MOST_SUSPECTS).map(|who| rank(report, who)).collect()
        };
        let class = one.class.text().replace('_', " ");
        names
            .into_iter()
            .map(|who| RankLane {
                name: name(&who),
                class: class.clone(),
                span: Some(span),
                holds,
                words: words.clone(),
                marks: Vec::new(),
            })
            .collect::<Vec<_>>()
    };
    let mut named: Vec<RankLane> =
        findings().take(MOST_LANES).flat_map(of_finding).take(MOST_LANES).collect();
    named.sort_by(|a, b| a.span.partial_cmp(&b.span).unwrap_or(std::cmp::Ordering::Equal));
    (total_s, std::iter::once(own).chain(named).collect())
}

fn rank(report: &RuntimeReport, who: &Who) -> String {
    let rank = match (who.task, who.rank) {
        (Some(task), _) => format!("task {task}, "),
        (None, Some(rank)) => format!("rank {rank}, "),
        (None, None) => String::new(),
    };
    rank + &report.place(who)
}

fn delays(report: &RuntimeReport) -> Option<Delays> {
    let (mut senders, mut receivers): (Vec<&Who>, Vec<&Who>) = (Vec::new(), Vec::new());
    let mut shown: Vec<&Delay> = Vec::new();
    for delay in &report.delays {
        let (sends, receives) = (senders.contains(&&delay.from), receivers.contains(&&delay.to));
        // The worst stand first.
        if (!sends && senders.len() == MOST_SIDE) || (!receives && receivers.len() == MOST_SIDE) {
            continue;
        }
        if !sends {
            senders.push(&delay.from);
        }
        if !receives {
            receivers.push(&delay.to);
        }
        shown.push(delay);
    }
    let mut means: Vec<u64> = report.delays.iter().filter(|one| !one.open).map(|one| one.mean_us).collect();
    means.sort_unstable();
    let middle = means.get(means.len() / 2).copied().unwrap_or_default();
    let cell = |delay: &&Delay| DelayCell {
        value: if delay.open {
            "stuck".to_owned()
        } else {
            super::grouped(usize::try_from(delay.mean_us).unwrap_or(usize::MAX))
        },
        level: if delay.open {
            LEVELS.len()
        } else {
            LEVELS.iter().take_while(|times| delay.mean_us >= middle.max(1).saturating_mul(**times)).count()
        },
        steps: delay.steps,
    };
    senders.sort();
    receivers.sort();
    let row = |from: &&Who| {
        let at = |to: &&Who| shown.iter().find(|one| one.from == **from && one.to == **to).map(cell);
        receivers.iter().map(at).collect()
    };
    let names = |ranks: &[&Who]| ranks.iter().map(|who| name(&report.place(who))).collect();
    (!senders.is_empty()).then(|| Delays {
        rows: senders.iter().map(row).collect(),
        senders: names(&senders),
        receivers: names(&receivers),
        median: super::grouped(usize::try_from(middle).unwrap_or(usize::MAX)),
        more: report.delays.len() - shown.len(),
    })
}
