//! All nodes by partition, as `sinfo` shows them: one call, of which nodes that are alike share a line, so that what it
//! prints grows with what is out of service, not with the cluster. Nothing is run here.
//!
//! Fields end with the separators that ASCII has for that: reasons and comments are an admin's, and hold anything else.

use diag::action::drains::{Picture, Row};
use diag::hostlist::expand;
use diag::job::NodeView;
use diag::reason;

use crate::slurm::show::{ShowError, states};

/// The fields, each with an ending of its own and no width, so that sinfo neither pads nor cuts it.
const FORMAT: &str =
    "PartitionName:\u{1f},NodeList:\u{1f},StateComplete:\u{1f},TimeStamp:\u{1f},Comment:\u{1f},Reason:\u{1e}";

/// What sinfo prints where there is no reason or comment.
const NOTHING: [&str; 2] = ["none", "(null)"];

/// What to ask sinfo for: this cluster's nodes, hidden partitions too.
#[must_use]
pub fn arguments() -> [&'static str; 5] {
    ["--noheader", "--all", "--local", "--Format", FORMAT]
}

/// The nodes in sinfo's output.
///
/// # Errors
/// There is none, or a line is none of sinfo's.
pub fn picture(said: &str) -> Result<Picture, ShowError> {
    if !said.trim_end().is_empty() && !said.trim_end().ends_with('\u{1e}') {
        let value = said.chars().rev().take(80).collect::<Vec<_>>().into_iter().rev().collect::<String>();
        return Err(unreadable("last line of sinfo", &value));
    }
    // Behind the last ending sinfo puts the end of the line; spaces and line breaks at the beginning belong to no name.
    let records = said.split('\u{1e}').map(str::trim_start).filter(|record| !record.is_empty());
    let rows: Vec<Row> = records.map(row).collect::<Result<_, _>>()?;
    if rows.is_empty() {
        return Err(ShowError::Absent("any node".to_owned()));
    }
    Ok(Picture { rows })
}

fn unreadable(field: &'static str, value: &str) -> ShowError {
    ShowError::Unreadable { of: "some nodes".to_owned(), field, value: crate::log::shown(value, 80) }
}

fn row(record: &str) -> Result<Row, ShowError> {
    let fields: Vec<&str> = record.split('\u{1f}').collect();
    let [partition, nodes, state, at, comment, reason] = fields[..] else {
        return Err(unreadable("line of sinfo", record));
    };
    // A partition without nodes has a line too.
    let names = if nodes.trim().is_empty() {
        Vec::new()
    } else {
        expand(nodes.trim()).map_err(|_| unreadable("NodeList", nodes))?
    };
    let flags = states(state.trim());
    if flags.is_empty() && !names.is_empty() {
        return Err(unreadable("State", state));
    }
    let text = |value: &str| if NOTHING.contains(&value) { String::new() } else { value.to_owned() };
    let alike = NodeView {
        name: String::new(),
        state: flags,
        reason: text(reason),
        reason_at: reason::time(at.trim()),
        comment: text(comment),
    };
    Ok(Row { partition: partition.trim().to_owned(), nodes: names, alike })
}
