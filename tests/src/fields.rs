//! Reads what `scontrol show` prints. It parses the form with one group of fields a line, not the
//! `-o` form: there the free texts (comments, names, paths, reasons) stand alone at the end of
//! their lines, so spaces and `=` in them are no riddle. It asks nobody anything.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};

/// Fields that take the rest of their line.
const FREE: [&str; 12] = [
    "JobName",
    "Comment",
    "AdminComment",
    "SystemComment",
    "Command",
    "WorkDir",
    "StdErr",
    "StdIn",
    "StdOut",
    "Extra",
    "OS",
    "Reason",
];

/// One record of `scontrol show job`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// The fields by Slurm's names.
    pub fields: BTreeMap<String, String>,
}

impl Record {
    /// A field's value; empty when it is missing or `(null)`.
    pub fn get(&self, field: &str) -> &str {
        match self.fields.get(field).map_or("", String::as_str) {
            "(null)" => "",
            value => value,
        }
    }

    /// The job's state, such as `RUNNING`.
    pub fn state(&self) -> &str {
        self.get("JobState")
    }

    /// Whether the job has ended and left its nodes.
    pub fn is_finished(&self) -> bool {
        const ENDS: [&str; 9] = [
            "COMPLETED",
            "FAILED",
            "CANCELLED",
            "TIMEOUT",
            "NODE_FAIL",
            "PREEMPTED",
            "BOOT_FAIL",
            "DEADLINE",
            "OUT_OF_MEMORY",
        ];
        ENDS.contains(&self.state())
    }

    /// A field as a number.
    ///
    /// # Errors
    /// It is missing or no number.
    pub fn number(&self, field: &str) -> Result<u64> {
        self.get(field).parse().with_context(|| format!("{field}={:?} is no number", self.get(field)))
    }
}

/// One node as the controller sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeInfo {
    /// All fields by Slurm's names.
    pub fields: BTreeMap<String, String>,
    /// The state's flags, such as `IDLE` and `DRAIN`; a trailing `*` becomes `NOT_RESPONDING`.
    pub state: BTreeSet<String>,
    /// The reason, without Slurm's `[user@time]`.
    pub reason: Option<String>,
    /// Who set the reason, and when: Slurm's `user@time`.
    pub reason_by: Option<String>,
}

impl NodeInfo {
    /// Whether a flag is part of the state.
    pub fn is(&self, flag: &str) -> bool {
        self.state.contains(flag)
    }

    pub(crate) fn from_record(record: Record) -> Self {
        let mut state = BTreeSet::new();
        for flag in record.get("State").split('+').filter(|f| !f.is_empty()) {
            if flag.ends_with('*') {
                state.insert("NOT_RESPONDING".to_owned());
            }
            state.insert(flag.trim_end_matches(|c: char| !c.is_ascii_alphanumeric()).to_owned());
        }
        let text = record.get("Reason");
        let (reason, by) = match text.strip_suffix(']').and_then(|t| t.rsplit_once(" [")) {
            Some((reason, by)) => (reason, Some(by.to_owned())),
            None => (text, None),
        };
        let reason = (!reason.is_empty()).then(|| reason.to_owned());
        Self { fields: record.fields, state, reason, reason_by: by }
    }
}

/// The records of `scontrol show job` or `scontrol show node`.
pub(crate) fn parse(text: &str) -> Vec<Record> {
    let mut records: Vec<Record> = Vec::new();
    let mut last: Option<String> = None;
    for line in text.lines() {
        if line.trim().is_empty() {
            last = None;
            continue;
        }
        let starts_record = line.starts_with("JobId=") || line.starts_with("NodeName=");
        if starts_record {
            records.push(Record::default());
        }
        let Some(record) = records.last_mut() else { continue };
        match (&last, starts_record || line.starts_with("   ")) {
            (Some(key), false) => {
                // A free text with a line break in it.
                if let Some(value) = record.fields.get_mut(key) {
                    value.push('\n');
                    value.push_str(line);
                }
            }
            _ => last = parse_line(line.trim(), &mut record.fields).or(last),
        }
    }
    records
}

/// Adds the fields of one line; gives back the key of the last.
fn parse_line(line: &str, fields: &mut BTreeMap<String, String>) -> Option<String> {
    let mut key: Option<String> = None;
    let mut at = 0;
    while at < line.len() {
        let rest = &line[at..];
        let word = rest.split(' ').next().unwrap_or(rest);
        match word.split_once('=') {
            Some((name, _)) if FREE.contains(&name) && (name != "Reason" || at == 0) => {
                fields.insert(name.to_owned(), rest[name.len() + 1..].to_owned());
                return Some(name.to_owned());
            }
            Some((name, value)) => {
                fields.insert(name.to_owned(), value.to_owned());
                key = Some(name.to_owned());
            }
            None => {
                if let Some(value) = key.as_ref().and_then(|k| fields.get_mut(k)) {
                    value.push(' ');
                    value.push_str(word);
                }
            }
        }
        at += word.len() + 1;
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_texts_keep_spaces_and_equal_signs() {
        let text = "JobId=7 ArrayJobId=5 ArrayTaskId=1 JobName=my name=x\n   JobState=PENDING Reason=Resources Dependency=(null)\n   Comment=a b=c JobState=X \n   AdminComment=aimaster{JobState=OK}\nsecond line\n   Power=\n   \n\nJobId=8 JobName=b\n   JobState=RUNNING Reason=None Dependency=(null)\n";
        let records = parse(text);
        assert_eq!(records.len(), 2);
        assert_eq!(records[0].get("JobName"), "my name=x");
        assert_eq!(records[0].state(), "PENDING");
        assert_eq!(records[0].get("Reason"), "Resources");
        assert_eq!(records[0].get("Dependency"), "");
        assert_eq!(records[0].get("Comment"), "a b=c JobState=X");
        assert_eq!(records[0].get("AdminComment"), "aimaster{JobState=OK}\nsecond line");
        assert_eq!(records[0].number("ArrayTaskId").unwrap(), 1);
        assert_eq!(records[1].state(), "RUNNING");
    }

    #[test]
    fn node_state_and_reason() {
        let text = "NodeName=n1 Arch=x86_64 CoresPerSocket=4 \n   OS=Linux 6.1 #1 SMP\n   State=DOWN*+DRAIN ThreadsPerCore=1 \n   Reason=aimaster: gpu 3 [slow] [root@2026-01-02T03:04:05]\n";
        let node = NodeInfo::from_record(parse(text).remove(0));
        assert!(node.is("DOWN") && node.is("DRAIN") && node.is("NOT_RESPONDING"));
        assert_eq!(node.reason.as_deref(), Some("aimaster: gpu 3 [slow]"));
        assert_eq!(node.reason_by.as_deref(), Some("root@2026-01-02T03:04:05"));
        assert_eq!(node.fields["OS"], "Linux 6.1 #1 SMP");
    }
}
