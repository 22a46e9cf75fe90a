//! Reads what `scontrol show job` and `scontrol show node` print. Nothing is run here.
//!
//! A job's name, comment and paths are its user's: they may hold spaces, `=` and line breaks, and so imitate any
//! line of the output, even a whole record. What the user writes can add lines, but can't remove Slurm's own. So a
//! job is believed only if the output holds one record and each field's line is there once; where Slurm shows
//! several records (an array, a heterogeneous job), [`selector`] says how to ask for one of them.

use std::collections::BTreeSet;

use diag::hostlist::expand;
use diag::job::{JobView, NodeView};
use diag::reason;
use jiff::Timestamp;

/// Why the output was not believed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ShowError {
    /// No record is about what was asked.
    #[error("it says nothing of {0}")]
    Absent(String),
    /// A field is missing.
    #[error("the record of {of} has no {field}")]
    Missing {
        /// What the record is about.
        of: String,
        /// The field.
        field: &'static str,
    },
    /// A field is there more than once.
    #[error(
        "the record of {of} has {field} more than once: a name or path of the job may imitate Slurm's output"
    )]
    Ambiguous {
        /// What the record is about.
        of: String,
        /// The field.
        field: &'static str,
    },
    /// A field can't be read.
    #[error("the record of {of} has an unreadable {field}: {value:?}")]
    Unreadable {
        /// What the record is about.
        of: String,
        /// The field.
        field: &'static str,
        /// What it holds, shortened.
        value: String,
    },
}

/// Whether a line continues a record with a field of Slurm's (three spaces, a name, `=`).
fn is_field(line: &str) -> bool {
    let name = |text: &str| text.starts_with(|c: char| c.is_ascii_uppercase());
    line.strip_prefix("   ")
        .and_then(|rest| rest.split_once('='))
        .is_some_and(|(key, _)| name(key) && !key.contains(' '))
}

struct Record<'a> {
    of: String,
    head: &'a str,
    lines: Vec<&'a str>,
}

impl<'a> Record<'a> {
    /// The only record whose first line begins with `start` and a space, or is `start`.
    fn find(text: &'a str, start: &str, of: &str) -> Result<Self, ShowError> {
        let is_head = |line: &str| {
            line.strip_prefix(start).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
        };
        let mut heads = text.split('\n').enumerate().filter(|(_, line)| is_head(line));
        let (at, head) = heads.next().ok_or_else(|| ShowError::Absent(of.to_owned()))?;
        if heads.next().is_some() {
            return Err(ShowError::Ambiguous { of: of.to_owned(), field: "first line" });
        }
        let kind = start.split_inclusive('=').next().unwrap_or(start);
        // Not only up to the next empty line: a name may hold one, and Slurm's own lines would follow it.
        let lines = text.split('\n').skip(at + 1).take_while(|line| !line.starts_with(kind)).collect();
        Ok(Self { of: of.to_owned(), head, lines })
    }

    /// The line that begins with a field, from its value on; with the lines that continue the value.
    fn line(&self, field: &'static str) -> Result<Option<String>, ShowError> {
        let value = |line: &'a str| line.strip_prefix("   ")?.strip_prefix(field)?.strip_prefix('=');
        let mut found = self.lines.iter().enumerate().filter_map(|(at, line)| Some((at, value(line)?)));
        let Some((at, first)) = found.next() else { return Ok(None) };
        if found.next().is_some() {
            return Err(ShowError::Ambiguous { of: self.of.clone(), field });
        }
        let mut text = first.to_owned();
        for more in self.lines[at + 1..].iter().take_while(|line| !is_field(line)) {
            text.push('\n');
            text.push_str(more);
        }
        Ok(Some(text.trim_end().to_owned()))
    }

    fn needed(&self, field: &'static str) -> Result<String, ShowError> {
        self.line(field)?.ok_or_else(|| ShowError::Missing { of: self.of.clone(), field })
    }

    fn unreadable(&self, field: &'static str, value: &str) -> ShowError {
        ShowError::Unreadable { of: self.of.clone(), field, value: crate::log::shown(value, 80) }
    }

    fn number(&self, field: &'static str, value: Option<&str>) -> Result<u32, ShowError> {
        let value = value.ok_or_else(|| ShowError::Missing { of: self.of.clone(), field })?;
        value.parse().map_err(|_| self.unreadable(field, value))
    }

    fn names(&self, field: &'static str, value: &str) -> Result<Vec<String>, ShowError> {
        if matches!(value, "" | "(null)") {
            return Ok(Vec::new());
        }
        expand(value).map_err(|_| self.unreadable(field, value))
    }
}

/// A later field of a line whose values hold no spaces.
fn word<'a>(line: &'a str, field: &str) -> Option<&'a str> {
    line.split_whitespace().find_map(|word| word.strip_prefix(field)?.strip_prefix('='))
}

/// First word of a line.
fn first(line: &str) -> &str {
    line.split_whitespace().next().unwrap_or("")
}

/// How to ask for the job alone, where the output shows others as well: `ARRAY_TASK` or `HET+OFFSET`.
#[must_use]
pub fn selector(text: &str, id: u32) -> Option<String> {
    if text.split('\n').filter(|line| line.starts_with("JobId=")).count() < 2 {
        return None;
    }
    let record = Record::find(text, &format!("JobId={id}"), "").ok()?;
    let head = record.head.split(" JobName=").next().unwrap_or("");
    let number = |field: &str| word(head, field)?.parse::<u32>().ok();
    match (number("ArrayJobId"), number("ArrayTaskId"), number("HetJobId"), number("HetJobOffset")) {
        (Some(array), Some(task), ..) => Some(format!("{array}_{task}")),
        (_, _, Some(het), Some(offset)) => Some(format!("{het}+{offset}")),
        _ => None,
    }
}

/// Whether the output shows another component of this heterogeneous job that is in its prologs. A name that imitates
/// a record can make its own job wait, no more, so nothing is refused here.
#[must_use]
pub fn other_components_start(text: &str, leader: u32) -> bool {
    let het = leader.to_string();
    let mut other = false;
    text.split('\n').any(|line| {
        if line.starts_with("JobId=") {
            other = word(line, "HetJobId") == Some(&het) && word(line, "JobId") != Some(&het);
        }
        let state = line.strip_prefix("   JobState=").map(first);
        other
            && (state == Some("CONFIGURING")
                || (state == Some("RUNNING") && word(line, "Reason") == Some("Prolog")))
    })
}

/// The job `id` in the output of `scontrol show job`, which has to be about this job alone.
///
/// # Errors
/// It is not there, or the output can't be believed.
pub fn job(text: &str, id: u32) -> Result<JobView, ShowError> {
    let record = Record::find(text, &format!("JobId={id}"), &format!("job {id}"))?;
    if text.split('\n').filter(|line| line.starts_with("JobId=")).count() > 1 {
        return Err(ShowError::Ambiguous { of: record.of, field: "JobId" });
    }
    // What stands before the name is Slurm's.
    let head = record.head.split(" JobName=").next().unwrap_or("");
    let optional = |field: &'static str| match word(head, field) {
        None => Ok(None),
        value => record.number(field, value).map(Some),
    };
    let requeue = record.needed("Requeue")?;
    let wanted = record.needed("ReqNodeList")?;
    let flag = |field: &'static str, value: Option<&str>| Ok(record.number(field, value)? != 0);
    Ok(JobView {
        job_id: id,
        array_job_id: optional("ArrayJobId")?,
        // A pending rest of an array reads `3-7`: it has no task id of its own.
        array_task_id: word(head, "ArrayTaskId").and_then(|task| task.parse().ok()),
        het_job_id: optional("HetJobId")?,
        state: first(&record.needed("JobState")?).to_owned(),
        restarts: record.number("Restarts", word(&requeue, "Restarts"))?,
        nodes: record.names("NodeList", first(&record.needed("NodeList")?))?,
        batch: flag("BatchFlag", word(&requeue, "BatchFlag"))?,
        requeue: flag("Requeue", Some(first(&requeue)))?,
        required_nodes: record.names("ReqNodeList", first(&wanted))?,
        excluded_nodes: record.names("ExcNodeList", word(&wanted, "ExcNodeList").unwrap_or(""))?,
        admin_comment: record.line("AdminComment")?.filter(|text| text != "(null)").unwrap_or_default(),
        unreadable: false,
    })
}

/// The kinds of GRES that the job `id` holds, such as `gpu` or `shard`, in the output of `scontrol --details show job`.
///
/// # Errors
/// The job is not there, or the output can't be believed.
pub fn gres(text: &str, id: u32) -> Result<BTreeSet<String>, ShowError> {
    let record = Record::find(text, &format!("JobId={id}"), &format!("job {id}"))?;
    // With details this line is always there, so that a name that imitates it makes two of them.
    let all = record.needed("JOB_GRES")?;
    let kinds = first(&all).split(',').map(|one| {
        let one = one.strip_prefix("gres:").or_else(|| one.strip_prefix("gres/")).unwrap_or(one);
        one.split([':', '=', '(']).next().unwrap_or("").to_owned()
    });
    Ok(kinds.filter(|kind| !kind.is_empty()).collect())
}

/// A node in the output of `scontrol show node`.
///
/// # Errors
/// It is not there, or the output can't be believed.
pub fn node(text: &str, name: &str) -> Result<NodeView, ShowError> {
    let record = Record::find(text, &format!("NodeName={name}"), &format!("node {name}"))?;
    let state = states(first(&record.needed("State")?));
    if state.is_empty() {
        return Err(record.unreadable("State", ""));
    }
    let shown = record.line("Reason")?.unwrap_or_default();
    let (own, reason_at) = without_signature(&shown);
    let comment = record.line("Comment")?.unwrap_or_default();
    Ok(NodeView { name: name.to_owned(), state, reason: own.to_owned(), reason_at, comment })
}

/// Where a node is, and what a check of it by itself has to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodePlace {
    /// Name of the machine.
    pub host: String,
    /// GPUs that Slurm says it has.
    pub gpus: u32,
    /// Whether jobs are on it.
    pub busy: bool,
}

/// The same of a node in the output of `scontrol show node`.
///
/// # Errors
/// It is not there, or the output can't be believed.
pub fn place(text: &str, name: &str) -> Result<NodePlace, ShowError> {
    let record = Record::find(text, &format!("NodeName={name}"), &format!("node {name}"))?;
    let address = record.needed("NodeAddr")?;
    let host = word(&address, "NodeHostName").unwrap_or_else(|| first(&address)).to_owned();
    let gres = record.line("Gres")?.unwrap_or_default();
    // `gpu:h200:8(S:0-1),shard:16(S:0-1)`.
    let count = |one: &str| one.strip_prefix("gpu:")?.rsplit(':').next()?.parse::<u32>().ok();
    let gpus = without_parentheses(&gres).split(',').filter_map(|one| count(one.trim())).sum();
    let state = states(first(&record.needed("State")?));
    let busy = ["ALLOCATED", "MIXED", "COMPLETING"].iter().any(|flag| state.contains(*flag));
    Ok(NodePlace { host, gpus, busy })
}

fn without_parentheses(text: &str) -> String {
    let mut depth = 0_u32;
    let kept = text.chars().filter(|c| {
        match c {
            '(' => depth += 1,
            ')' => {
                depth = depth.saturating_sub(1);
                return false;
            }
            _ => (),
        }
        depth == 0
    });
    kept.collect()
}

/// A reason without `[user@time]`, which Slurm adds to its first line, and that time.
fn without_signature(shown: &str) -> (&str, Option<Timestamp>) {
    let cut = || {
        let (own, signature) = shown.strip_suffix(']')?.rsplit_once(" [")?;
        let at = reason::time(signature.rsplit_once('@')?.1)?;
        Some((own, Some(at)))
    };
    cut().unwrap_or((shown, None))
}

/// State flags, whichever way they are written: `IDLE+DRAIN`, `DOWN*`, `MIXED~`, `drained`.
#[must_use]
pub fn states(text: &str) -> BTreeSet<String> {
    let mut flags = BTreeSet::new();
    for part in text.split('+') {
        let base = part.trim_end_matches(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        for mark in part[base.len()..].chars() {
            flags.extend(mark_means(mark).map(str::to_owned));
        }
        let base = base.to_ascii_uppercase();
        match base.as_str() {
            "" => (),
            "DRAINED" | "DRAINING" | "DRNG" => {
                flags.insert("DRAIN".to_owned());
            }
            "FAILING" | "FAILG" => {
                flags.insert("FAIL".to_owned());
            }
            "ALLOC" => {
                flags.insert("ALLOCATED".to_owned());
            }
            "NO_RESPOND" => {
                flags.insert("NOT_RESPONDING".to_owned());
            }
            _ => {
                flags.insert(base);
            }
        }
    }
    flags
}

/// The marks that sinfo's manual page lists.
fn mark_means(mark: char) -> Option<&'static str> {
    Some(match mark {
        '*' => "NOT_RESPONDING",
        '~' => "POWERED_DOWN",
        '#' => "POWERING_UP",
        '!' => "POWER_DOWN",
        '%' => "POWERING_DOWN",
        '$' => "MAINTENANCE",
        '@' => "REBOOT_REQUESTED",
        '^' => "REBOOT_ISSUED",
        '-' => "PLANNED",
        _ => return None,
    })
}
