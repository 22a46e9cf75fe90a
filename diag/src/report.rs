//! The report: the verdict with names instead of numbers, as JSON (schema 1) and as text.

use std::fmt::Write as _;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::action::{Decision, JobAction};
use crate::check::Phase;
use crate::facts::{Engine, Roster};
use crate::judge::{Hardware, Suite};
use crate::measurement::Metric;
use crate::verdict::{Finding, Outcome, Rate, Status, Verdict};
use crate::wording;

/// The report of one run of the suite.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// 1.
    pub schema: u32,
    /// The job.
    pub job_id: u32,
    /// The cluster's name.
    pub cluster: String,
    /// 1 for the first start of the job, 2 after its first restart, ...; 0: on demand, and nothing becomes of a job.
    pub check_number: u32,
    /// What measured.
    pub engine: Engine,
    /// What it measured on; not in reports of early versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hardware: Option<MeasuredOn>,
    /// When the leader's prolog started.
    pub started_at: Timestamp,
    /// When the verdict stood.
    pub finished_at: Timestamp,
    /// The outcome.
    pub outcome: Outcome,
    /// The outcome in a sentence.
    pub summary: String,
    /// What became of the job: `start`, `end` or `requeue`.
    pub action: String,
    /// The job's nodes, in order.
    pub nodes: Vec<String>,
    /// One entry a finding.
    pub items: Vec<Item>,
    /// Nodes that were drained by this run.
    pub drained: Vec<String>,
    /// Nodes that would have been drained, but for what all jobs together may take out of service.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held_back: Vec<String>,
    /// What could not be done, and what the user should know.
    pub errors: Vec<String>,
    /// What is worth knowing of the hardware, beside the findings.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// What the nodes of a job have alike, as far as limits depend on it; nothing where they differ, and on the host engine.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct MeasuredOn {
    /// The model of all GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
    /// GPUs of each node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<u32>,
    /// Whether NVLink multicast was allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvls: Option<bool>,
}

impl MeasuredOn {
    /// What a suite measures on once the nodes have met.
    #[must_use]
    pub fn of(suite: &Suite) -> Self {
        let Hardware { gpu, gpus, nvls, .. } = &suite.hardware;
        let nvls = (suite.engine == Engine::Cuda).then_some(*nvls);
        Self { gpu: gpu.clone(), gpus: *gpus, nvls }
    }
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Item {
    /// The phase.
    pub phase: Phase,
    /// The check; empty for the meeting of the nodes.
    pub check: String,
    /// What it is about.
    pub subject: ItemSubject,
    /// The other nodes that took part.
    pub peers: Vec<String>,
    /// The outcome.
    pub status: Status,
    /// The quantity that decided; not in reports of early versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<Metric>,
    /// Its value.
    pub value: Option<f64>,
    /// Size of its messages, where several are told apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Its unit.
    pub unit: Option<String>,
    /// The limit.
    pub limit: Option<f64>,
    /// Where the limit comes from.
    pub limit_source: Option<String>,
    /// Median of like subjects.
    pub median: Option<f64>,
    /// The readings.
    pub samples: Vec<f64>,
    /// All rates beside each other, where there are several: by size of messages, by precision.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rates: Vec<Rate>,
    /// One line for a person.
    pub message: String,
    /// When the first reading began.
    pub started_at: Option<Timestamp>,
    /// When the last one ended.
    pub finished_at: Option<Timestamp>,
}

/// What a finding is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ItemSubject {
    /// `node`, `gpu`, `nic`, `rail`, `pair`, `path`, `link`, `fabric` or `run`.
    pub kind: String,
    /// The node, or the first of two; empty where there is none.
    pub node: String,
    /// The subject's name, such as `n3` or `n1-n3`.
    pub name: String,
}

/// Which run a report is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunId {
    /// The job.
    pub job_id: u32,
    /// The cluster's name.
    pub cluster: String,
    /// See [`Report::check_number`].
    pub check_number: u32,
    /// What measured.
    pub engine: Engine,
    /// What it measured on.
    pub hardware: MeasuredOn,
}

impl Report {
    /// Makes the report of a run.
    #[must_use]
    pub fn new(
        run: &RunId,
        roster: &Roster,
        verdict: &Verdict,
        decision: &Decision,
        (started_at, finished_at): (Timestamp, Timestamp),
    ) -> Self {
        Self {
            schema: 1,
            job_id: run.job_id,
            cluster: run.cluster.clone(),
            check_number: run.check_number,
            engine: run.engine,
            hardware: Some(run.hardware.clone()),
            started_at,
            finished_at,
            outcome: verdict.outcome,
            summary: verdict.summary.clone(),
            action: match decision.job {
                JobAction::Start => "start",
                JobAction::End { .. } => "end",
                JobAction::Requeue { .. } => "requeue",
            }
            .into(),
            nodes: roster.nodes.iter().map(|entry| entry.name.to_string()).collect(),
            items: verdict.findings.iter().map(|finding| item(roster, finding)).collect(),
            drained: Vec::new(),
            held_back: Vec::new(),
            errors: decision.notes.clone(),
            notes: verdict.notes.clone(),
        }
    }

    /// How long the checks took; a clock that was set back meanwhile does not make it less than nothing.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.finished_at.duration_since(self.started_at).as_secs_f64().max(0.0)
    }

    /// The report as text: the outcome, then what is not a pass, then the rest.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        let (seconds, engine, outcome) = (self.seconds(), self.engine, self.outcome);
        let cluster = printable(&self.cluster);
        // Writing to a String can't fail.
        _ = match self.check_number {
            0 => writeln!(text, "on demand, on {cluster} (engine {engine}): {outcome} after {seconds:.1} s"),
            number => writeln!(
                text,
                "job {} on {cluster} (check {number}, engine {engine}): {outcome} after {seconds:.1} s; the job: {}",
                self.job_id,
                printable(&self.action)
            ),
        };
        _ = writeln!(text, "{}", printable(&self.summary));
        if !self.drained.is_empty() {
            _ = writeln!(text, "drained: {}", printable(&self.drained.join(", ")));
        }
        if !self.held_back.is_empty() {
            _ = writeln!(text, "not drained, over the budget: {}", printable(&self.held_back.join(", ")));
        }
        for error in self.errors.iter().chain(&self.notes) {
            _ = writeln!(text, "note: {}", printable(error));
        }
        let mut phase = None;
        for item in &self.items {
            if phase != Some(item.phase) {
                phase = Some(item.phase);
                _ = writeln!(text, "{}", item.phase);
            }
            _ = writeln!(text, "  {:<7} {}", item.status.to_string(), printable(&item.message));
            for rate in &item.rates {
                _ = writeln!(text, "  {:<7} - {}", "", printable(&wording::rate(rate)));
            }
        }
        text
    }
}

fn item(roster: &Roster, finding: &Finding) -> Item {
    let nodes = finding.subject.nodes();
    Item {
        phase: finding.phase,
        check: finding.check.map_or_else(String::new, |check| check.to_string()),
        subject: ItemSubject {
            kind: finding.subject.kind().into(),
            node: nodes.first().map_or_else(String::new, |node| roster.name(*node).to_owned()),
            name: wording::subject(roster, &finding.subject),
        },
        peers: finding.peers.iter().map(|node| roster.name(*node).to_owned()).collect(),
        status: finding.status,
        metric: finding.metric,
        value: finding.value,
        bytes: finding.bytes,
        unit: finding.metric.map(|metric| metric.unit().to_owned()),
        limit: finding.limit.as_ref().map(|limit| limit.value),
        limit_source: finding.limit.as_ref().map(|limit| limit.source.clone()),
        median: finding.median,
        samples: finding.samples.clone(),
        rates: finding.rates.clone(),
        message: finding.message.clone(),
        started_at: finding.started_at,
        finished_at: finding.finished_at,
    }
}

/// Most findings that are shown to a user beside the first; the report has them all.
const MAX_LINES: usize = 8;

/// The verdict for the user: in a batch job's output, or sent to srun and salloc. One line each, without control
/// characters and without our name in front. `place` says where the report is.
#[must_use]
pub fn user_lines(report: &Report, place: &str) -> Vec<String> {
    let seconds = report.seconds();
    let mut troubles: Vec<&Item> = report.items.iter().filter(|item| item.status > Status::Skip).collect();
    // The worst first; the order of the phases stays within each kind.
    troubles.sort_by_key(|item| std::cmp::Reverse(item.status));
    let mut lines = vec![format!(
        "{} after {seconds:.1} s (counted against the job's time): {}",
        report.outcome,
        headline(report, &troubles)
    )];
    for item in troubles.iter().take(MAX_LINES) {
        lines.push(format!("{} {}", item.status, wording::brief(&item.message)));
    }
    if troubles.len() > MAX_LINES {
        lines.push(format!("{} more in the report", troubles.len() - MAX_LINES));
    }
    if !report.drained.is_empty() {
        lines.push(format!("leaves service: {}", report.drained.join(", ")));
    }
    lines.extend(report.errors.iter().cloned());
    let fate = match report.action.as_str() {
        "start" => "the job starts",
        "requeue" => "the job goes back to the queue",
        _ => "the job does not start",
    };
    lines.push(format!("{fate}; report: aimaster report {} ({place})", report.job_id));
    lines.iter().map(|line| printable(line)).collect()
}

/// What the verdict is about, in few words: the lines below it have the numbers.
fn headline(report: &Report, troubles: &[&Item]) -> String {
    let Some(first) = troubles.first() else { return report.summary.clone() };
    if !report.summary.starts_with(&*wording::brief(&first.message)) {
        // A sentence of its own, such as the one on an environment.
        return report.summary.clone();
    }
    let mut names: Vec<String> = Vec::new();
    for item in troubles.iter().filter(|item| item.status == first.status) {
        let name = match item.subject.kind.as_str() {
            "run" => item.check.clone(),
            // Their names say what they are.
            "fabric" | "fabric_rail" | "rail" | "pair_rail" => item.subject.name.clone(),
            kind => format!("{kind} {}", item.subject.name),
        };
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let more = names.len().saturating_sub(MAX_LINES);
    names.truncate(MAX_LINES);
    if more > 0 {
        names.push(format!("{more} more"));
    }
    wording::listed(&names.iter().map(String::as_str).collect::<Vec<_>>())
}

pub use crate::plain::printable;

/// Most names in the line of a phase; the report has all.
const MOST_NAMED: usize = 8;

/// The line of a phase, for live progress, with who is in the worst kind of trouble; `None` if nothing of it is known.
#[must_use]
pub fn phase_line(verdict: &Verdict, phase: Phase) -> Option<String> {
    let mine: Vec<&Finding> = verdict.findings.iter().filter(|one| one.phase == phase).collect();
    let worst = mine.iter().map(|one| one.status).max()?;
    let passed = mine.iter().any(|one| one.status == Status::Pass);
    // Nodes that sat out do not hide that the others passed.
    let worst = if worst == Status::Skip && passed { Status::Pass } else { worst };
    let mut checks: Vec<String> =
        mine.iter().filter_map(|one| one.check).map(|check| check.to_string()).collect();
    checks.dedup();
    let count = |status: Status| mine.iter().filter(|one| one.status == status).count();
    let others: Vec<String> = [Status::Fail, Status::Suspect, Status::Error, Status::Skip]
        .into_iter()
        .filter(|status| count(*status) > 0 && (*status != Status::Skip || worst != Status::Skip))
        .map(|status| format!("{} {status}", count(status)))
        .collect();
    let detail = if others.is_empty() { String::new() } else { format!(" ({})", others.join(", ")) };
    // Who it is can be acted on while the rest is measured; what it is comes with the verdict.
    let trouble = mine.iter().filter(|one| one.status == worst && worst > Status::Skip);
    let mut names: Vec<&str> = trouble.filter_map(|one| Some(one.message.split_once(": ")?.0)).collect();
    names.dedup();
    let more = names.len().saturating_sub(MOST_NAMED);
    names.truncate(MOST_NAMED);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    let who = if names.is_empty() { String::new() } else { format!(": {}{more}", names.join(", ")) };
    Some(format!(
        "{phase}: {worst} {}{detail}{who}",
        wording::listed(&checks.iter().map(String::as_str).collect::<Vec<_>>())
    ))
}
