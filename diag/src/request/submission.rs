//! From what the user typed to a request: flags, environment twins and the document, in order of precedence,
//! with every mistake at once. It runs in srun, sbatch and salloc as the user; whoever calls it does the
//! reading, and whether the job is in the policy's scope is decided elsewhere.

use crate::policy::Policy;
use crate::request::document::{Document, RuntimePart, SanityPart, origin_of, parse_document};
use crate::request::mistake::{Mistake, Mistakes, Origin, shown_path};
use crate::request::values::{
    CheckList, RUNTIME_ACTIONS, SANITY_ACTIONS, parse_action, parse_minutes, parse_runtime_list,
};
use crate::request::{Ask, FailAction, Request, RuntimeRequest, SanityRequest};

use rules::{apply_policy, lone_runtime_action, refuse_unbuilt};

mod rules;
#[cfg(test)]
mod tests;

/// A flag as it stood on the command line.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Flag {
    /// Not given.
    #[default]
    Absent,
    /// Given without a value.
    Bare,
    /// Given with a value.
    Value(String),
}

/// One option: the flag and its environment twin, which counts only where the flag is absent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Given {
    /// The flag.
    pub flag: Flag,
    /// The environment variable, if it is set.
    pub twin: Option<String>,
}

/// Everything that was given.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Inputs {
    /// `--sanity-check`, `AIMASTER_SANITY_CHECK`.
    pub sanity_check: Given,
    /// `--sanity-fail-action`, `AIMASTER_SANITY_FAIL_ACTION`.
    pub sanity_fail_action: Given,
    /// `--sanity-timeout`, `AIMASTER_SANITY_TIMEOUT`.
    pub sanity_timeout: Given,
    /// `--runtime-check`, `AIMASTER_RUNTIME_CHECK`.
    pub runtime_check: Given,
    /// `--runtime-fail-action`, `AIMASTER_RUNTIME_FAIL_ACTION`.
    pub runtime_fail_action: Given,
    /// `--aimaster`, `AIMASTER_CONFIG`.
    pub aimaster: Given,
    /// What the file held that [`Inputs::document_source`] names, or why it could not be read. Reading stops
    /// at [`crate::request::document::MAX_DOCUMENT_BYTES`] + 1 bytes; more is refused anyway.
    pub document: Option<Result<Vec<u8>, String>>,
}

/// Where the document is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DocumentSource<'a> {
    /// None was given.
    None,
    /// It is the argument itself; nothing has to be read.
    Inline(&'a str),
    /// In a file that the caller has to read into [`Inputs::document`], as the user.
    File(&'a str),
}

/// A request that may be queued.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    /// What was asked for.
    pub request: Request,
    /// What the user should know, one line each.
    pub notices: Vec<String>,
}

impl Inputs {
    /// Where the document is: an argument that starts with a brace is the document itself, any other one is
    /// the path of a file.
    #[must_use]
    pub fn document_source(&self) -> DocumentSource<'_> {
        let argument = match (&self.aimaster.flag, &self.aimaster.twin) {
            (Flag::Value(argument), _) => argument,
            (Flag::Absent, Some(argument)) => argument,
            (Flag::Absent, None) | (Flag::Bare, _) => return DocumentSource::None,
        };
        match argument.trim_start() {
            "" => DocumentSource::None,
            text if text.starts_with('{') => DocumentSource::Inline(argument),
            _ => DocumentSource::File(argument),
        }
    }
}

/// The names of one option.
struct Names {
    flag: &'static str,
    twin: &'static str,
}

const SANITY_CHECK: Names = Names { flag: "--sanity-check", twin: "AIMASTER_SANITY_CHECK" };
const SANITY_FAIL_ACTION: Names = Names { flag: "--sanity-fail-action", twin: "AIMASTER_SANITY_FAIL_ACTION" };
const SANITY_TIMEOUT: Names = Names { flag: "--sanity-timeout", twin: "AIMASTER_SANITY_TIMEOUT" };
const RUNTIME_CHECK: Names = Names { flag: "--runtime-check", twin: "AIMASTER_RUNTIME_CHECK" };
const RUNTIME_FAIL_ACTION: Names =
    Names { flag: "--runtime-fail-action", twin: "AIMASTER_RUNTIME_FAIL_ACTION" };
const AIMASTER: Names = Names { flag: "--aimaster", twin: "AIMASTER_CONFIG" };

/// A value and where it was said.
#[derive(Debug, Clone)]
struct Said<T> {
    value: T,
    origin: Origin,
}

impl Given {
    /// The text that counts. A bare flag gives `bare`; where that is `None` it is a mistake.
    fn text(&self, names: &Names, bare: Option<&str>, mistakes: &mut Mistakes) -> Option<Said<String>> {
        let (text, origin) = match (&self.flag, &self.twin) {
            (Flag::Value(text), _) => (text.clone(), Origin::Flag(names.flag)),
            (Flag::Absent, Some(text)) => (text.clone(), Origin::Environment(names.twin)),
            (Flag::Absent, None) => return None,
            (Flag::Bare, _) => {
                let origin = Origin::Flag(names.flag);
                let Some(text) = bare else {
                    mistakes.push(origin, "the value is missing", format!("give {}=VALUE", names.flag));
                    return None;
                };
                (text.to_owned(), origin)
            }
        };
        Some(Said { value: text, origin })
    }
}

/// Reads the text of an option.
fn typed<T>(
    text: Option<Said<String>>,
    mistakes: &mut Mistakes,
    read: impl FnOnce(&str, &Origin, &mut Mistakes) -> Option<T>,
) -> Option<Said<T>> {
    let Said { value, origin } = text?;
    let value = read(&value, &origin, mistakes)?;
    Some(Said { value, origin })
}

/// Everything that was said, each by whom it counts from.
struct Merged {
    checks: Option<Said<CheckList>>,
    fail_action: Option<Said<FailAction>>,
    timeout_min: Option<Said<u32>>,
    runtime: Option<Said<bool>>,
    runtime_fail_action: Option<Said<FailAction>>,
}

/// Makes a request of everything that was given.
///
/// # Errors
/// Every mistake in every input that counts: an environment twin whose flag is given does not.
pub fn resolve(inputs: &Inputs, policy: Option<&Policy>) -> Result<Resolved, Vec<Mistake>> {
    let mut mistakes = Mistakes::default();
    let mut notices = Vec::new();
    let document = read_document(inputs, &mut mistakes);
    let merged = merge(inputs, document, &mut notices, &mut mistakes);
    lone_runtime_action(&merged, &mut notices);
    if let Some(checks) = &merged.checks {
        refuse_unbuilt(checks, policy, &mut mistakes);
    }
    if let Some(policy) = policy {
        apply_policy(&merged, policy, &mut notices, &mut mistakes);
    }
    let request = request_of(merged);
    mistakes.into_result(Resolved { request, notices })
}

/// Reads the document, wherever it is; its mistakes say how it was given.
fn read_document(inputs: &Inputs, mistakes: &mut Mistakes) -> Document {
    let Some(Said { origin, .. }) = inputs.aimaster.text(&AIMASTER, None, mistakes) else {
        return Document::default();
    };
    let parsed = match inputs.document_source() {
        DocumentSource::None => {
            mistakes.push(origin, "the value is empty", "give a file or {\"aimaster\": {...}}");
            return Document::default();
        }
        DocumentSource::Inline(text) => parse_document(text.as_bytes()),
        DocumentSource::File(path) => match &inputs.document {
            Some(Ok(bytes)) => parse_document(bytes),
            unread => {
                let why =
                    unread.as_ref().and_then(|read| read.as_ref().err()).map_or("nobody did", |why| why);
                let wrong = format!("{} can't be read: {}", shown_path(path), shown_path(why));
                mistakes.push(origin, wrong, "give a readable file, or the JSON itself");
                return Document::default();
            }
        },
    };
    let source = match inputs.document_source() {
        DocumentSource::File(path) => format!("{origin}={path}"),
        _ => origin.to_string(),
    };
    parsed.unwrap_or_else(|mut list| {
        for mistake in &mut list {
            if let Origin::Document { source: how, .. } = &mut mistake.origin {
                how.clone_from(&source);
            }
        }
        mistakes.extend(list);
        Document::default()
    })
}

/// Puts flags and twins over the document, field by field.
fn merge(inputs: &Inputs, document: Document, notices: &mut Vec<String>, mistakes: &mut Mistakes) -> Merged {
    let checks = inputs.sanity_check.text(&SANITY_CHECK, Some("default"), mistakes);
    let checks = typed(checks, mistakes, CheckList::parse);
    let action = |text: Option<Said<String>>, known, mistakes: &mut Mistakes| {
        typed(text, mistakes, |text, origin, mistakes| parse_action(text, known, origin, mistakes))
    };
    let text = inputs.sanity_fail_action.text(&SANITY_FAIL_ACTION, None, mistakes);
    let fail_action = action(text, SANITY_ACTIONS, mistakes);
    let timeout = inputs.sanity_timeout.text(&SANITY_TIMEOUT, None, mistakes);
    let timeout = typed(timeout, mistakes, parse_minutes);
    let runtime = inputs.runtime_check.text(&RUNTIME_CHECK, Some("c4d"), mistakes);
    let runtime = typed(runtime, mistakes, parse_runtime_list);
    let text = inputs.runtime_fail_action.text(&RUNTIME_FAIL_ACTION, None, mistakes);
    let runtime_fail_action = action(text, RUNTIME_ACTIONS, mistakes);

    let (asks_sanity, asks_runtime) = (document.sanity.is_some(), document.runtime.is_some());
    let SanityPart { checks: list, fail_action: sanity_action, timeout_min } =
        document.sanity.unwrap_or_default();
    let RuntimePart { on, fail_action: runtime_action } = document.runtime.unwrap_or_default();
    let mut merged = Merged {
        checks: over(checks, list, "sanity_check.micro_benchmarks", CheckList::to_string, notices),
        fail_action: over(fail_action, sanity_action, "sanity_check.fail_action", text_of, notices),
        timeout_min: over(timeout, timeout_min, "sanity_check.timeout", u32::to_string, notices),
        runtime: over(runtime, on, "runtime_check.micro_benchmarks", |on| on_or_off(*on), notices),
        runtime_fail_action: over(
            runtime_fail_action,
            runtime_action,
            "runtime_check.fail_action",
            text_of,
            notices,
        ),
    };
    // A section without a list asks for what the bare flag asks for.
    if asks_sanity && merged.checks.is_none() {
        let origin = origin_of("aimaster.sanity_check");
        merged.checks = Some(Said { value: CheckList::default_checks(), origin });
    }
    if asks_runtime && merged.runtime.is_none() {
        merged.runtime = Some(Said { value: true, origin: origin_of("aimaster.runtime_check") });
    }
    merged
}

fn text_of(action: &FailAction) -> String {
    action.text().to_owned()
}

fn on_or_off(on: bool) -> String {
    (if on { "c4d" } else { "off" }).to_owned()
}

/// What was typed wins over the document; a notice says so where the two disagree.
fn over<T>(
    typed: Option<Said<T>>,
    document: Option<T>,
    field: &str,
    show: impl Fn(&T) -> String,
    notices: &mut Vec<String>,
) -> Option<Said<T>> {
    let path = format!("aimaster.{field}");
    match (typed, document) {
        (Some(typed), Some(document)) => {
            let (here, there) = (show(&typed.value), show(&document));
            if here != there {
                notices.push(format!("{}: {here} wins over the document's {path}: {there}", typed.origin));
            }
            Some(typed)
        }
        (Some(typed), None) => Some(typed),
        (None, document) => document.map(|value| Said { value, origin: origin_of(&path) }),
    }
}

/// The request; an action or a time limit without checks of the user's own stands alone.
fn request_of(merged: Merged) -> Request {
    let fail_action = merged.fail_action.map(|said| said.value);
    let timeout_min = merged.timeout_min.map(|said| said.value);
    let mut request = Request::default();
    match merged.checks.map(|said| said.value) {
        Some(CheckList::Checks { names: checks, .. }) => {
            request.sanity = Ask::On(SanityRequest { checks, fail_action, timeout_min });
        }
        other => {
            request.sanity = if other.is_some() { Ask::Off } else { Ask::Site };
            request.lone_fail_action = fail_action;
            request.lone_timeout_min = timeout_min;
        }
    }
    request.runtime = match merged.runtime.map(|said| said.value) {
        None => Ask::Site,
        Some(false) => Ask::Off,
        Some(true) => {
            Ask::On(RuntimeRequest { fail_action: merged.runtime_fail_action.map(|said| said.value) })
        }
    };
    request
}
