//! The AIMaster document, as users of PAI have it.

use diag::request::document::{Document, parse_document};
use diag::request::values::CheckList;
use serde_json::{Map, Value, json};

use crate::holds;

/// What is read can be written again and is the same; what is refused says so in lines.
pub fn run(data: &[u8]) {
    let read = parse_document(data);
    assert_eq!(read, parse_document(data));
    let document = match read {
        Ok(document) => document,
        Err(list) => return holds::mistakes(&list),
    };
    let again = parse_document(written(&document).to_string().as_bytes()).unwrap();
    assert_eq!(without_spelling(again), without_spelling(document));
}

fn written(document: &Document) -> Value {
    let mut sections = Map::new();
    if let Some(part) = &document.sanity {
        let mut section = Map::new();
        if let Some(checks) = &part.checks {
            section.insert("micro_benchmarks".into(), checks.to_string().into());
        }
        if let Some(action) = part.fail_action {
            section.insert("fail_action".into(), action.text().into());
        }
        if let Some(minutes) = part.timeout_min {
            assert!(minutes >= 1);
            section.insert("timeout".into(), minutes.into());
        }
        sections.insert("sanity_check".into(), section.into());
    }
    if let Some(part) = &document.runtime {
        let mut section = Map::new();
        if let Some(on) = part.on {
            section.insert("micro_benchmarks".into(), if on { "c4d" } else { "off" }.into());
        }
        if let Some(action) = part.fail_action {
            section.insert("fail_action".into(), action.text().into());
        }
        sections.insert("runtime_check".into(), section.into());
    }
    json!({ "aimaster": sections })
}

/// A list that is written out names its checks, whichever way it was said before.
fn without_spelling(mut document: Document) -> Document {
    if let Some(CheckList::Checks { names, spelled_out }) =
        document.sanity.as_mut().and_then(|part| part.checks.as_mut())
    {
        assert!(!names.is_empty() && names.is_sorted_by(|a, b| a < b));
        *spelled_out = true;
    }
    document
}
