//! What a page about a job shows: the report of the checks before its start and what its agents said while it ran, cut to a
//! size that a person and a browser take in. Of a large job the worst is shown by name, the rest as a distribution, and what
//! is left out is counted. Texts are short, plain and in words; numbers have their units; lengths are shares from 0 to 1.
//!
//! Not how it looks: colours, pictures and markup are the caller's, and so is escaping. A report may be a user's own file, so
//! nothing in it is believed to be short, finite or in order.

mod culprits;
mod pairs;
mod phases;
mod runtime;
mod series;
mod table;

use jiff::Timestamp;
use serde::Serialize;

use crate::report::{Item, Report, printable};
use crate::runtime_report::{RuntimeReport, joint_outcome};
use crate::verdict::{Outcome, Status};
use crate::wording;

pub use culprits::Culprit;
pub use pairs::{Cell, Drawing as PairDrawing, MOST_CELLS, NodeCell, PairMap};
pub use phases::{Lane, Phases};
pub use runtime::{DelayCell, Delays, Found, Mark, RankLane, Watch};
pub use series::{Bar, Bin, Drawing as SeriesDrawing, Group, Series};
pub use table::Row;

/// Longest text in characters: a message with its evidence has some 400.
pub const MOST_TEXT: usize = 600;

/// Longest name in characters: a host name has 64 at most, and a part of it a few more.
pub const MOST_NAME: usize = 72;

/// Most lines of a list: more than that nobody reads one by one.
pub const MOST_LINES: usize = 24;

/// Most nodes whose names are shown.
const MOST_NAMED: usize = 64;

/// How something stands, for a colour and a sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Tone {
    /// Well.
    Good,
    /// Nothing was measured or seen.
    Quiet,
    /// To be known.
    Notice,
    /// A fault.
    Bad,
}

impl Tone {
    /// Of a finding.
    #[must_use]
    pub fn of(status: Status) -> Self {
        match status {
            Status::Pass => Self::Good,
            Status::Skip => Self::Quiet,
            Status::Error | Status::Suspect => Self::Notice,
            Status::Fail => Self::Bad,
        }
    }

    fn of_outcome(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Pass => Self::Good,
            Outcome::Skip => Self::Quiet,
            Outcome::Error | Outcome::Suspect | Outcome::Environment => Self::Notice,
            Outcome::Fail => Self::Bad,
        }
    }
}

/// An outcome with what it is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Stand {
    /// `Before the start`, `While it ran`.
    pub when: &'static str,
    /// The outcome.
    pub outcome: String,
    /// Its tone.
    pub tone: Tone,
    /// It in a sentence.
    pub words: String,
}

/// A list that is cut.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Lines {
    /// What is shown.
    pub shown: Vec<String>,
    /// How many are left out.
    pub more: usize,
}

impl Lines {
    fn of<'a>(lines: impl IntoIterator<Item = &'a str>, most: usize) -> Self {
        let mut all = lines.into_iter();
        let shown = all.by_ref().take(most).map(text).collect();
        Self { shown, more: all.count() }
    }
}

/// A fact with its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fact {
    /// What it is.
    pub name: &'static str,
    /// What it says.
    pub value: String,
}

/// All that is shown.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Page {
    /// The job's number.
    pub job_id: u32,
    /// The cluster.
    pub cluster: String,
    /// Outcomes: of the checks before the start, of the watch while it ran.
    pub stands: Vec<Stand>,
    /// Where and when it was measured, and what became of the job.
    pub facts: Vec<Fact>,
    /// What is at fault or not clear, the worst first.
    pub culprits: Vec<Culprit>,
    /// How many culprits are left out.
    pub more_culprits: usize,
    /// Nodes that were drained.
    pub drained: Lines,
    /// Nodes that would have been, but for the budget.
    pub held_back: Lines,
    /// What could not be done.
    pub errors: Lines,
    /// What is worth knowing.
    pub notes: Lines,
    /// A line for each number of each check.
    pub table: Vec<Row>,
    /// How many lines of the table are left out.
    pub more_rows: usize,
    /// When which check ran.
    pub phases: Option<Phases>,
    /// Numbers of GPUs and nodes beside each other.
    pub series: Vec<Series>,
    /// Numbers of pairs of nodes.
    pub pairs: Vec<PairMap>,
    /// What the agents said.
    pub watches: Vec<Watch>,
    /// How many agents' reports are left out.
    pub more_watches: usize,
    /// The nodes of the job.
    pub nodes: Lines,
}

/// Most agents whose reports are shown whole: the one that speaks for the job, and some that found something themselves.
const MOST_WATCHES: usize = 4;

impl Page {
    /// The page about a job of which there is a report, or something that its agents said, or both; `None`: neither.
    #[must_use]
    pub fn new(report: Option<&Report>, runtime: &[RuntimeReport]) -> Option<Self> {
        let (job_id, cluster) = match (report, runtime.first()) {
            (Some(report), _) => (report.job_id, &report.cluster),
            (None, Some(first)) => (first.job_id, &first.cluster),
            (None, None) => return None,
        };
        let items: &[Item] = report.map_or(&[], |report| &report.items);
        let list = |of: fn(&Report) -> &Vec<String>, most: usize| {
            report
                .map_or_else(Lines::default, |report| Lines::of(of(report).iter().map(String::as_str), most))
        };
        let (culprits, more_culprits) = culprits::culprits(items);
        let (table, more_rows) = table::table(items);
        let nodes: &[String] = report.map_or(&[], |report| &report.nodes);
        let mut speakers: Vec<&RuntimeReport> = runtime.iter().collect();
        // Who speaks for the job first; the order of the files else.
        speakers.sort_by_key(|one| !one.spoke);
        Some(Self {
            job_id,
            cluster: name(cluster),
            stands: stands(report, &culprits, runtime),
            facts: report.map_or_else(Vec::new, facts),
            culprits,
            more_culprits,
            drained: list(|report| &report.drained, MOST_LINES),
            held_back: list(|report| &report.held_back, MOST_LINES),
            errors: list(|report| &report.errors, MOST_LINES),
            notes: list(|report| &report.notes, MOST_LINES),
            table,
            more_rows,
            phases: report.and_then(phases::phases),
            series: series::series(items),
            pairs: pairs::pairs(nodes, items),
            watches: speakers.iter().take(MOST_WATCHES).map(|one| runtime::watch(one)).collect(),
            more_watches: runtime.len().saturating_sub(MOST_WATCHES),
            nodes: list(|report| &report.nodes, MOST_NAMED),
        })
    }
}

fn stands(report: Option<&Report>, culprits: &[Culprit], runtime: &[RuntimeReport]) -> Vec<Stand> {
    let before = report.map(|report| (report.outcome, at_fault(report, culprits)));
    let during = joint_outcome(runtime).map(|outcome| {
        let named =
            runtime.iter().flat_map(|one| one.findings.iter().map(|found| runtime::named(one, found)));
        let named: Vec<String> = named.collect();
        let words = match (outcome, named.len()) {
            (Outcome::Pass, _) => "what its ranks told was judged, and nothing holds against them".to_owned(),
            (Outcome::Skip, _) => {
                text(&runtime.first().map_or_else(String::new, RuntimeReport::unknown_because))
            }
            (_, 0) => "the hardware, or the watch itself, shows something".to_owned(),
            (_, _) => format!("Found: {}", listed(&named)),
        };
        (outcome, words)
    });
    let stand = |when, (outcome, words): (Outcome, String)| Stand {
        when,
        outcome: outcome.to_string(),
        tone: Tone::of_outcome(outcome),
        words,
    };
    let before = before.map(|one| stand("Before the start", one));
    before.into_iter().chain(during.map(|one| stand("While it ran", one))).collect()
}

/// What the checks before the start say, in a line: who it is, where that is the whole of it.
fn at_fault(report: &Report, culprits: &[Culprit]) -> String {
    let first = report.items.iter().filter(|item| item.status > Status::Skip).max_by(|a, b| {
        // Of equal ones the first of the report.
        a.status.cmp(&b.status).then(std::cmp::Ordering::Greater)
    });
    // Else it is a sentence of its own, such as the one on an environment.
    let of_it = first.is_some_and(|item| report.summary.starts_with(&*wording::brief(&item.message)));
    let Some(worst) = culprits.first().filter(|_| of_it) else { return text(&report.summary) };
    let named = culprits.iter().filter(|one| one.status == worst.status);
    let named: Vec<String> = named.map(|one| format!("{} {}", one.kind, one.name)).collect();
    let what = match worst.status.as_str() {
        "FAIL" => "At fault",
        "SUSPECT" => "Not clear",
        _ => "Not measured",
    };
    format!("{what}: {}", listed(&named))
}

/// Some names, and how many more there are.
fn listed(names: &[String]) -> String {
    /// Most that a line is read with.
    const MOST: usize = 6;
    let mut shown: Vec<&str> = names.iter().take(MOST).map(String::as_str).collect();
    let more = format!("{} more", names.len() - shown.len());
    if names.len() > MOST {
        shown.push(&more);
    }
    text(&wording::listed(&shown))
}

fn facts(report: &Report) -> Vec<Fact> {
    let fate = match report.action.as_str() {
        "start" => "starts".to_owned(),
        "requeue" => "goes back to the queue".to_owned(),
        "end" => "does not start".to_owned(),
        other => name(other),
    };
    let hardware = report.hardware.as_ref();
    let gpus = hardware.and_then(|one| Some((one.gpu.as_deref()?, one.gpus?)));
    let gpus = gpus
        .map(|(model, gpus)| Fact { name: "GPUs of a node", value: format!("{gpus} × {}", name(model)) });
    let mut facts = vec![
        Fact { name: "The job", value: fate },
        Fact { name: "Nodes", value: grouped(report.nodes.len()) },
    ];
    facts.extend(gpus);
    facts.extend([
        Fact { name: "Engine", value: report.engine.to_string() },
        Fact { name: "Check", value: report.check_number.to_string() },
        Fact { name: "Began", value: moment(report.started_at) },
        Fact { name: "Took", value: format!("{} s", seconds(report.seconds())) },
    ]);
    facts
}

/// A moment, to the second.
fn moment(at: Timestamp) -> String {
    format!("{at:.0}").replace('T', " ").replace('Z', " UTC")
}

/// Seconds with one decimal; of a clock that was far off no more than a large number.
fn seconds(seconds: f64) -> String {
    if seconds.abs() < 1e7 { format!("{seconds:.1}") } else { wording::number(seconds) }
}

/// A whole number with its thousands apart, by a space that does not break.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push('\u{202f}');
        }
        out.push(digit);
    }
    out
}

/// A text as it may be shown.
fn text(line: &str) -> String {
    let end = line.char_indices().nth(MOST_TEXT).map_or(line.len(), |(at, _)| at);
    let shown = printable(&line[..end]);
    if end < line.len() { shown + "…" } else { shown }
}

/// A name as it may be shown: of a long one the end, which tells parts of a node apart.
fn name(line: &str) -> String {
    match line.char_indices().rev().nth(MOST_NAME - 1) {
        Some((at, _)) if at > 0 => format!("…{}", printable(&line[at..])),
        _ => printable(line),
    }
}

/// A part of a whole, from 0 to 1, whatever the two are.
fn share(part: f64, whole: f64) -> f64 {
    let share = part / whole;
    if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 }
}

/// The middle of some numbers.
fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        even if even.is_multiple_of(2) => Some(f64::midpoint(values[middle - 1], values[middle])),
        _ => Some(values[middle]),
    }
}
