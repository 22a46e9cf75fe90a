//! Readers of single policy values: each puts what it reads into the slot that holds the default, or notes a
//! mistake and leaves the slot alone. Which keys there are is in [`super::read`].

use std::ops::RangeInclusive;
use std::path::PathBuf;

use crate::fields::{Field, Section};
use crate::request::FailAction;
use crate::request::mistake::{Mistakes, known_names, quoted};
use crate::request::values::parse_action;

/// Longest path in Linux (PATH_MAX less its end).
const MAX_PATH_BYTES: usize = 4095;

/// Reads one of a few words.
pub(super) fn choose<T: Copy>(field: &Field<'_>, choices: &[(&str, T)], slot: &mut T, m: &mut Mistakes) {
    let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
    let Some(text) = field.text(m, &format!("one of: {}", names.join(", "))) else { return };
    match choices.iter().find(|(name, _)| *name == text) {
        Some((_, value)) => *slot = *value,
        None => m.push(field.origin(), format!("{} is unknown", quoted(text)), known_names(text, &names)),
    }
}

pub(super) fn read_boolean(section: &mut Section<'_>, key: &'static str, slot: &mut bool, m: &mut Mistakes) {
    if let Some(value) = section.field(key).and_then(|field| field.boolean(m)) {
        *slot = value;
    }
}

pub(super) fn read_integer<T>(
    section: &mut Section<'_>,
    key: &'static str,
    range: RangeInclusive<T>,
    slot: &mut T,
    m: &mut Mistakes,
) where
    T: TryFrom<i128> + PartialOrd + std::fmt::Display + Copy,
{
    if let Some(value) = section.field(key).and_then(|field| field.integer(range, m)) {
        *slot = value;
    }
}

/// Reads a number that `rule.0` accepts; `rule.1` says which those are.
pub(super) fn read_number(
    section: &mut Section<'_>,
    key: &'static str,
    rule: (impl Fn(f64) -> bool, &str),
    slot: &mut f64,
    m: &mut Mistakes,
) {
    if let Some(value) = section.field(key).and_then(|field| field.number(rule.0, m, rule.1)) {
        *slot = value;
    }
}

/// Reads a text that `rule.0` accepts; `rule.1` says which those are.
pub(super) fn read_text(
    section: &mut Section<'_>,
    key: &'static str,
    rule: (impl Fn(&str) -> bool, &str),
    slot: &mut String,
    m: &mut Mistakes,
) {
    let Some(field) = section.field(key) else { return };
    let Some(text) = field.text(m, rule.1) else { return };
    if rule.0(text) {
        text.clone_into(slot);
    } else {
        field.refuse(m, rule.1);
    }
}

/// What a path must look like.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PathRule {
    Absolute,
    /// Or empty.
    AbsoluteOrNone,
    /// Or a file name that the loader looks for.
    AbsoluteOrName,
}

pub(super) fn read_path(
    section: &mut Section<'_>,
    key: &'static str,
    rule: PathRule,
    slot: &mut PathBuf,
    m: &mut Mistakes,
) {
    let wanted = match rule {
        PathRule::Absolute => "an absolute path",
        PathRule::AbsoluteOrNone => "an absolute path, or nothing",
        PathRule::AbsoluteOrName => "an absolute path, or the name of a library",
    };
    let accepts = |text: &str| {
        let free = match rule {
            PathRule::Absolute => false,
            PathRule::AbsoluteOrNone => text.is_empty(),
            PathRule::AbsoluteOrName => !text.is_empty() && !text.contains('/'),
        };
        text.len() <= MAX_PATH_BYTES && !text.contains(char::is_control) && (free || text.starts_with('/'))
    };
    let Some(field) = section.field(key) else { return };
    let Some(text) = field.text(m, wanted) else { return };
    if accepts(text) {
        *slot = text.into();
    } else {
        field.refuse(m, wanted);
    }
}

pub(super) fn read_words(
    section: &mut Section<'_>,
    key: &'static str,
    slot: &mut Vec<String>,
    m: &mut Mistakes,
) {
    let Some(field) = section.field(key) else { return };
    let Some(items) = field.list(m, "a list of names") else { return };
    slot.clear();
    for item in items {
        let wanted = "a name without spaces and commas";
        let Some(text) = item.text(m, wanted) else { continue };
        if text.is_empty() || text.contains(|c: char| c == ',' || c.is_whitespace() || c.is_control()) {
            item.refuse(m, wanted);
        } else if !slot.iter().any(|known| known == text) {
            slot.push(text.to_owned());
        }
    }
}

pub(super) fn read_action_list(
    section: &mut Section<'_>,
    key: &'static str,
    known: &[FailAction],
    slot: &mut Vec<FailAction>,
    m: &mut Mistakes,
) {
    let Some(field) = section.field(key) else { return };
    let Some(items) = field.list(m, "a list of actions") else { return };
    slot.clear();
    for item in items {
        if let Some(text) = item.text(m, "the name of an action")
            && let Some(action) = parse_action(text, known, &item.origin(), m)
            && !slot.contains(&action)
        {
            slot.push(action);
        }
    }
}
