//! Turns TOML into the tree that [`crate::fields`] reads, with the line of every key. What a key means is not
//! known here.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::fields::{Entry, Value};
use crate::request::mistake::{Mistakes, Origin, shown_path};

/// Longest policy: a map of addresses for the largest cluster, about 60 bytes a node.
pub const MAX_POLICY_BYTES: usize = 4 << 20;

/// Where the lines of a text start.
struct Lines(Vec<usize>);

impl Lines {
    fn of(text: &str) -> Self {
        Self(std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect())
    }

    /// The line that a byte is in, from 1.
    fn line(&self, at: usize) -> usize {
        self.0.partition_point(|start| *start <= at)
    }
}

/// The tree of a text, or mistakes: all that the parser can tell apart.
pub(super) fn read_toml(text: &str, mistakes: &mut Mistakes) -> Option<Value> {
    let whole = |line| Origin::Policy { path: String::new(), line };
    if text.len() > MAX_POLICY_BYTES {
        let wrong = format!("it is longer than {MAX_POLICY_BYTES} bytes (4 MiB)");
        mistakes.push(whole(None), wrong, "give less");
        return None;
    }
    let lines = Lines::of(text);
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        let line = error.span().map(|span| lines.line(span.start));
        let wrong = format!("not TOML: {}", shown_path(error.message()));
        mistakes.push(whole(line), wrong, "mend the line");
    }
    errors.is_empty().then(|| tree_of_table(table.get_ref(), &lines))
}

fn tree_of_table(table: &DeTable<'_>, lines: &Lines) -> Value {
    let mut entries: Vec<(usize, Entry)> = table
        .iter()
        .map(|(key, value): (&Spanned<_>, &Spanned<DeValue<'_>>)| {
            let at = key.span().start;
            let entry = Entry {
                key: key.get_ref().to_string(),
                line: Some(lines.line(at)),
                value: tree_of(value.get_ref(), lines),
            };
            (at, entry)
        })
        .collect();
    // The parser sorts by key; people read mistakes in the order of the file.
    entries.sort_by_key(|(at, _)| *at);
    Value::Table(entries.into_iter().map(|(_, entry)| entry).collect())
}

/// The parser bounds how deep values nest, and with that this recursion.
fn tree_of(value: &DeValue<'_>, lines: &Lines) -> Value {
    match value {
        DeValue::String(text) => Value::Text(text.to_string()),
        // More than 128 bits are out of every range; infinity says so.
        DeValue::Integer(number) => i128::from_str_radix(number.as_str(), number.radix())
            .map_or(Value::Float(f64::INFINITY), Value::Integer),
        DeValue::Float(number) => Value::Float(number.as_str().parse().unwrap_or(f64::NAN)),
        DeValue::Boolean(value) => Value::Boolean(*value),
        DeValue::Datetime(_) => Value::Time,
        DeValue::Array(items) => {
            Value::List(items.iter().map(|item| tree_of(item.get_ref(), lines)).collect())
        }
        DeValue::Table(table) => tree_of_table(table, lines),
    }
}
