//! Reads tables of settings, from JSON or TOML, field by field, and collects every mistake instead of stopping
//! at the first. It knows types, ranges, unknown keys and repeated keys; what a field means is the caller's.

use std::fmt;
use std::ops::RangeInclusive;

use crate::request::mistake::{Mistakes, Origin, known_names, quoted};

/// A value of JSON or TOML.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// JSON's null.
    Null,
    /// True or false.
    Boolean(bool),
    /// A whole number.
    Integer(i128),
    /// Any other number.
    Float(f64),
    /// Text.
    Text(String),
    /// A list.
    List(Vec<Value>),
    /// A table, in the order in which it is written; a key may be repeated.
    Table(Vec<Entry>),
    /// A TOML date or time: no setting takes one.
    Time,
}

/// One line of a table.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Its key.
    pub key: String,
    /// Where it is written, from 1, if that is known.
    pub line: Option<usize>,
    /// Its value.
    pub value: Value,
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Boolean(value) => write!(f, "{value}"),
            Self::Integer(value) => write!(f, "{value}"),
            // Debug keeps the point of 1.0 and the exponent of 1e300.
            Self::Float(value) => write!(f, "{value:?}"),
            Self::Text(text) => f.write_str(&quoted(text)),
            Self::List(_) => f.write_str("a list"),
            Self::Table(_) => f.write_str("a table"),
            Self::Time => f.write_str("a date or time"),
        }
    }
}

/// What is read; it decides how a mistake's origin is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum File {
    /// The AIMaster document.
    Document,
    /// The site's policy.
    Policy,
}

impl File {
    fn origin(self, path: &str, line: Option<usize>) -> Origin {
        match self {
            Self::Document => Origin::Document { source: String::new(), path: path.to_owned() },
            Self::Policy => Origin::Policy { path: path.to_owned(), line },
        }
    }
}

/// One value and where it stands.
#[derive(Debug, Clone)]
pub struct Field<'a> {
    file: File,
    path: String,
    line: Option<usize>,
    /// The value.
    pub value: &'a Value,
}

impl<'a> Field<'a> {
    /// The topmost value of a file.
    #[must_use]
    pub fn top(file: File, path: &str, value: &'a Value) -> Self {
        Self { file, path: path.to_owned(), line: None, value }
    }

    /// Where it stands.
    #[must_use]
    pub fn origin(&self) -> Origin {
        self.file.origin(&self.path, self.line)
    }

    /// Notes that the value is not what it should be.
    pub fn refuse(&self, mistakes: &mut Mistakes, wanted: &str) {
        mistakes.push(self.origin(), format!("{} is not accepted", self.value), format!("give {wanted}"));
    }

    fn wanted<T>(&self, value: Option<T>, mistakes: &mut Mistakes, wanted: &str) -> Option<T> {
        if value.is_none() {
            self.refuse(mistakes, wanted);
        }
        value
    }

    /// A text.
    pub fn text(&self, mistakes: &mut Mistakes, wanted: &str) -> Option<&'a str> {
        let text = if let Value::Text(text) = self.value { Some(text.as_str()) } else { None };
        self.wanted(text, mistakes, wanted)
    }

    /// True or false.
    pub fn boolean(&self, mistakes: &mut Mistakes) -> Option<bool> {
        let value = if let Value::Boolean(value) = self.value { Some(*value) } else { None };
        self.wanted(value, mistakes, "true or false")
    }

    /// A whole number in a range.
    pub fn integer<T>(&self, range: RangeInclusive<T>, mistakes: &mut Mistakes) -> Option<T>
    where
        T: TryFrom<i128> + PartialOrd + fmt::Display + Copy,
    {
        let value = if let Value::Integer(value) = self.value { T::try_from(*value).ok() } else { None };
        let value = value.filter(|value| range.contains(value));
        self.wanted(value, mistakes, &format!("a whole number from {} to {}", range.start(), range.end()))
    }

    /// A number that `accepts` takes; `wanted` says which those are.
    pub fn number(
        &self,
        accepts: impl Fn(f64) -> bool,
        mistakes: &mut Mistakes,
        wanted: &str,
    ) -> Option<f64> {
        let value = match self.value {
            // Every whole number that a setting takes is small enough to stay exact.
            #[allow(clippy::cast_precision_loss)]
            Value::Integer(value) => Some(*value as f64),
            Value::Float(value) => Some(*value),
            _ => None,
        };
        self.wanted(value.filter(|value| value.is_finite() && accepts(*value)), mistakes, wanted)
    }

    /// The items of a list.
    pub fn list(&self, mistakes: &mut Mistakes, wanted: &str) -> Option<Vec<Field<'a>>> {
        let Value::List(items) = self.value else {
            self.refuse(mistakes, wanted);
            return None;
        };
        let item = |(index, value)| Field {
            file: self.file,
            path: format!("{}[{index}]", self.path),
            line: self.line,
            value,
        };
        Some(items.iter().enumerate().map(item).collect())
    }

    /// A table.
    pub fn section(&self, mistakes: &mut Mistakes) -> Option<Section<'a>> {
        let Value::Table(entries) = self.value else {
            self.refuse(mistakes, "a table");
            return None;
        };
        Some(Section { file: self.file, path: self.path.clone(), entries, known: Vec::new() })
    }
}

/// A table that is being read: every key that is asked for counts as known.
#[derive(Debug)]
pub struct Section<'a> {
    file: File,
    path: String,
    entries: &'a [Entry],
    known: Vec<&'static str>,
}

impl<'a> Section<'a> {
    fn at(&self, entry: &'a Entry) -> Field<'a> {
        let path =
            if self.path.is_empty() { entry.key.clone() } else { format!("{}.{}", self.path, entry.key) };
        Field { file: self.file, path, line: entry.line, value: &entry.value }
    }

    /// The field with this key, if it is there; of repeated ones the first.
    pub fn field(&mut self, key: &'static str) -> Option<Field<'a>> {
        self.known.push(key);
        self.entries.iter().find(|entry| entry.key == key).map(|entry| self.at(entry))
    }

    /// The table with this key.
    pub fn section(&mut self, key: &'static str, mistakes: &mut Mistakes) -> Option<Section<'a>> {
        self.field(key)?.section(mistakes)
    }

    /// Every field, for tables whose keys are free.
    #[must_use]
    pub fn all(&self) -> Vec<(&'a str, Field<'a>)> {
        self.entries.iter().map(|entry| (entry.key.as_str(), self.at(entry))).collect()
    }

    /// Notes the keys that nobody asked for and those that are repeated.
    pub fn finish(self, mistakes: &mut Mistakes) {
        let mut seen = std::collections::BTreeSet::new();
        for entry in self.entries {
            let origin = self.at(entry).origin();
            if !self.known.contains(&entry.key.as_str()) {
                let known = known_names(&entry.key, &self.known);
                mistakes.push(origin, format!("{} is unknown here", quoted(&entry.key)), known);
            } else if !seen.insert(&entry.key) {
                mistakes.push(origin, "the key is repeated", "keep one of them");
            }
        }
    }
}
