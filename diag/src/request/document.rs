//! The AIMaster document, as users of PAI have it: alone, or as one key of a whole EAS service document. It is
//! read and checked by itself; flags, the policy and what is built come later, in [`super::submission`].

use std::fmt;

use serde::Deserialize;
use serde::de::{self, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::fields::{Entry, Field, File, Section, Value};
use crate::request::FailAction;
use crate::request::mistake::{Mistake, Mistakes, Origin, nearest, quoted};
use crate::request::values::{
    CheckList, RUNTIME_ACTIONS, SANITY_ACTIONS, parse_action, parse_minutes, parse_runtime_list,
    refuse_minutes,
};

/// Longest document: service documents have some 10 KiB, and it is read inside srun.
pub const MAX_DOCUMENT_BYTES: usize = 1 << 20;

/// The key that counts.
const KEY: &str = "aimaster";

/// Most other top-level keys that are looked at for a misspelt [`KEY`].
const MAX_OTHER_KEYS: usize = 100;

/// What the document says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Document {
    /// `sanity_check`, if it is there.
    pub sanity: Option<SanityPart>,
    /// `runtime_check`, if it is there.
    pub runtime: Option<RuntimePart>,
}

/// `sanity_check`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SanityPart {
    /// `micro_benchmarks`; without it the section asks for the default checks, as a bare flag does.
    pub checks: Option<CheckList>,
    /// `fail_action`.
    pub fail_action: Option<FailAction>,
    /// `timeout`.
    pub timeout_min: Option<u32>,
}

/// `runtime_check`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RuntimePart {
    /// `micro_benchmarks`: c4d (true) or off (false); without it the section asks for c4d.
    pub on: Option<bool>,
    /// `fail_action`.
    pub fail_action: Option<FailAction>,
}

/// Where a field of the document stands.
#[must_use]
pub fn origin_of(path: &str) -> Origin {
    Origin::Document { source: String::new(), path: path.to_owned() }
}

/// Reads a document.
///
/// # Errors
/// Every mistake, by path; of a text that is not JSON the first one only, by line and column.
pub fn parse_document(bytes: &[u8]) -> Result<Document, Vec<Mistake>> {
    let refused =
        |wrong: String, right: &str| vec![Mistake { origin: origin_of(""), wrong, right: right.to_owned() }];
    if bytes.len() > MAX_DOCUMENT_BYTES {
        let wrong = format!("it is longer than {MAX_DOCUMENT_BYTES} bytes (1 MiB)");
        return Err(refused(wrong, "give only the part with the key aimaster"));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| {
        refused(format!("byte {} is not UTF-8", error.valid_up_to() + 1), "save it as UTF-8")
    })?;
    // Some editors put a byte order mark in front; JSON's readers may skip it.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.trim().is_empty() {
        return Err(refused("it is empty".into(), r#"give {"aimaster": {"sanity_check": {...}}}"#));
    }
    let top = read_top(text)?;
    let Some(first) = top.aimaster.first() else {
        let near = nearest(KEY, top.others.iter().map(String::as_str));
        let inner = top.others.iter().find(|key| ["sanity_check", "runtime_check"].contains(&key.as_str()));
        let wrong = "it has no key aimaster at the top";
        return Err(match (inner, near) {
            (Some(inner), _) => refused(wrong.into(), &format!("put {inner} inside \"aimaster\"")),
            (None, Some(near)) => refused(wrong.into(), &format!("is {} meant as aimaster?", quoted(near))),
            (None, None) => refused(wrong.into(), "put the checks inside \"aimaster\""),
        });
    };
    let mut mistakes = Mistakes::default();
    if top.aimaster.len() > 1 {
        mistakes.push(origin_of(KEY), "the key is repeated", "keep one of them");
    }
    let mut document = Document::default();
    if let Some(mut section) = Field::top(File::Document, KEY, first).section(&mut mistakes) {
        document.sanity =
            section.section("sanity_check", &mut mistakes).map(|part| read_sanity(part, &mut mistakes));
        document.runtime =
            section.section("runtime_check", &mut mistakes).map(|part| read_runtime(part, &mut mistakes));
        section.finish(&mut mistakes);
    }
    mistakes.into_result(document)
}

fn read_sanity(mut section: Section<'_>, mistakes: &mut Mistakes) -> SanityPart {
    let mut part = SanityPart::default();
    if let Some(field) = section.field("micro_benchmarks")
        && let Some(text) = field.text(mistakes, "a text: a comma-separated list of checks")
    {
        part.checks = CheckList::parse(text, &field.origin(), mistakes);
    }
    part.fail_action = read_action(&mut section, SANITY_ACTIONS, mistakes);
    if let Some(field) = section.field("timeout") {
        part.timeout_min = read_minutes(&field, mistakes);
    }
    section.finish(mistakes);
    part
}

fn read_runtime(mut section: Section<'_>, mistakes: &mut Mistakes) -> RuntimePart {
    let mut part = RuntimePart::default();
    if let Some(field) = section.field("micro_benchmarks")
        && let Some(text) = field.text(mistakes, "a text: c4d or off")
    {
        part.on = parse_runtime_list(text, &field.origin(), mistakes);
    }
    part.fail_action = read_action(&mut section, RUNTIME_ACTIONS, mistakes);
    section.finish(mistakes);
    part
}

fn read_action(
    section: &mut Section<'_>,
    known: &[FailAction],
    mistakes: &mut Mistakes,
) -> Option<FailAction> {
    let field = section.field("fail_action")?;
    let text = field.text(mistakes, "a text: the name of an action")?;
    parse_action(text, known, &field.origin(), mistakes)
}

/// Minutes as a number or as a text that holds one. JSON knows one kind of number: 5.0 is 5.
fn read_minutes(field: &Field<'_>, mistakes: &mut Mistakes) -> Option<u32> {
    let minutes = match field.value {
        Value::Text(text) => return parse_minutes(text, &field.origin(), mistakes),
        Value::Integer(value) => u32::try_from(*value).ok(),
        // In range and without a fraction: the conversion is exact.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        Value::Float(value) if value.fract() == 0.0 && (1.0..=f64::from(u32::MAX)).contains(value) => {
            Some(*value as u32)
        }
        _ => None,
    };
    let minutes = minutes.filter(|minutes| *minutes >= 1);
    if minutes.is_none() {
        refuse_minutes(&field.value.to_string(), &field.origin(), mistakes);
    }
    minutes
}

/// The topmost object: what stands under [`KEY`], as often as it stands there, and the other keys.
#[derive(Default)]
struct Top {
    aimaster: Vec<Value>,
    others: Vec<String>,
}

fn read_top(text: &str) -> Result<Top, Vec<Mistake>> {
    let refused =
        |wrong: String, right: &str| vec![Mistake { origin: origin_of(""), wrong, right: right.to_owned() }];
    let syntax = |error: &serde_json::Error| {
        let what = error.to_string();
        let what = what.split(" at line ").next().unwrap_or_default();
        let place = format!("line {}, column {}", error.line(), error.column());
        refused(format!("{place}: not JSON: {what}"), "mend the JSON there")
    };
    if !text.trim_start().starts_with('{') {
        return Err(match serde_json::from_str::<IgnoredAny>(text) {
            Ok(_) => refused("it is JSON, but not an object".into(), "give {\"aimaster\": {...}}"),
            Err(error) => syntax(&error),
        });
    }
    serde_json::from_str(text).map_err(|error| syntax(&error))
}

impl<'de> Deserialize<'de> for Top {
    fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TopVisitor;
        impl<'de> Visitor<'de> for TopVisitor {
            type Value = Top;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Top, A::Error> {
                let mut top = Top::default();
                while let Some(key) = map.next_key::<String>()? {
                    if key == KEY {
                        top.aimaster.push(map.next_value()?);
                        continue;
                    }
                    map.next_value::<IgnoredAny>()?;
                    if top.others.len() < MAX_OTHER_KEYS {
                        top.others.push(key);
                    }
                }
                Ok(top)
            }
        }
        deserializer.deserialize_map(TopVisitor)
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

/// Builds a [`Value`]; unlike a map it keeps repeated keys, so that they can be refused.
struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Boolean(value))
    }
    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Integer(value.into()))
    }
    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Integer(value.into()))
    }
    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Float(value))
    }
    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::Text(value.to_owned()))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::List(list))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut table = Vec::new();
        while let Some((key, value)) = map.next_entry()? {
            table.push(Entry { key, line: None, value });
        }
        Ok(Value::Table(table))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::CheckName;
    use crate::request::PAI_CHECKS;
    use proptest::prelude::*;

    fn wrong(text: &str) -> Vec<String> {
        parse_document(text.as_bytes()).unwrap_err().iter().map(ToString::to_string).collect()
    }

    /// A document with these lines in `sanity_check`.
    fn sanity(inner: &str) -> String {
        format!(r#"{{"aimaster":{{"sanity_check":{{{inner}}}}}}}"#)
    }

    fn timeout(value: &str) -> Option<u32> {
        let text = sanity(&format!(r#""timeout":{value}"#));
        match parse_document(text.as_bytes()) {
            Ok(document) => document.sanity.unwrap().timeout_min,
            Err(list) => {
                assert_eq!(list.len(), 1, "{value}");
                assert!(list[0].to_string().contains("aimaster.sanity_check.timeout: "), "{}", list[0]);
                None
            }
        }
    }

    #[test]
    fn the_example_is_accepted_word_for_word() {
        let document = parse_document(include_bytes!("../../../conf/aimaster.json")).unwrap();
        let sanity = document.sanity.unwrap();
        let names = PAI_CHECKS.to_vec();
        assert_eq!(sanity.checks, Some(CheckList::Checks { names, spelled_out: true }));
        assert_eq!(sanity.fail_action, Some(FailAction::Retain));
        assert_eq!(sanity.timeout_min, Some(100));
        let runtime = RuntimePart { on: Some(true), fail_action: Some(FailAction::Retain) };
        assert_eq!(document.runtime, Some(runtime));
    }

    #[test]
    fn other_keys_of_a_service_document_are_ignored() {
        let text = r#"{"metadata": {"name": "x", "name": 1e999, "deep": [[{"aimaster": 1}]]}, "aimaster":
            {"sanity_check": {"micro_benchmarks": "GEMM_flops "}}, "cloud": null, "cloud": null}"#;
        let document = parse_document(text.as_bytes()).unwrap();
        let names = vec![CheckName::GemmFlops];
        assert_eq!(document.sanity.unwrap().checks, Some(CheckList::Checks { names, spelled_out: true }));
        assert_eq!(document.runtime, None);
    }

    #[test]
    fn all_mistakes_come_at_once_by_path() {
        let lines = wrong(
            r#"{"aimaster": {"sanity_chek": {}, "sanity_check": {"micro_benchmarks": "gemm_flop", "fail_action":
            "explode", "timeout": 1.5, "time_out": 3}, "runtime_check": {"micro_benchmarks": 7, "fail_action":
            "fail"}, "sanity_check": {}}, "aimaster": {}}"#,
        );
        let starts = [
            "document: aimaster: the key is repeated",
            "document: aimaster.sanity_check.micro_benchmarks: there is no check \"gemm_flop\"; did you mean gemm_flops?",
            "document: aimaster.sanity_check.fail_action: \"explode\" is not an action",
            "document: aimaster.sanity_check.timeout: 1.5 is not a timeout; give whole minutes",
            "document: aimaster.sanity_check.time_out: \"time_out\" is unknown here; did you mean timeout?",
            "document: aimaster.runtime_check.micro_benchmarks: 7 is not accepted; give a text: c4d or off",
            "document: aimaster.runtime_check.fail_action: \"fail\" is not an action that can stand here",
            "document: aimaster.sanity_chek: \"sanity_chek\" is unknown here; did you mean sanity_check?",
            "document: aimaster.sanity_check: the key is repeated",
        ];
        assert_eq!(lines.len(), starts.len(), "{lines:#?}");
        for (line, start) in lines.iter().zip(starts) {
            assert!(line.starts_with(start), "{line}\n{start}");
        }
    }

    #[test]
    fn a_timeout_is_a_whole_number_of_minutes_or_a_text_that_holds_one() {
        for (value, minutes) in [("1", 1), ("100", 100), ("\"7\"", 7), ("5.0", 5), ("1e2", 100)] {
            assert_eq!(timeout(value), Some(minutes), "{value}");
        }
        assert_eq!(timeout("4294967295"), Some(u32::MAX));
        let refused =
            ["0", "-1", "0.0", "-0", "1.5", "\"1.5\"", "\"\"", "null", "true", "[5]", "{}", "4294967296"];
        for value in refused.into_iter().chain(["99999999999999999999999", "1e30", "\"five\""]) {
            assert_eq!(timeout(value), None, "{value}");
        }
    }

    #[test]
    fn a_syntax_error_has_a_line_and_a_column() {
        let lines = wrong("{\n  \"aimaster\": {,}\n}");
        assert_eq!(lines.len(), 1);
        assert!(lines[0].contains("line 2, column 16"), "{}", lines[0]);
        assert!(wrong("{\"aimaster\": {}} x")[0].contains("line 1, column 18"));
        assert!(wrong("{\"aimaster\": {}")[0].contains("EOF"));
        assert!(wrong("nonsense")[0].contains("line 1, column"));
        assert!(wrong(&sanity("\"timeout\": 1e999"))[0].contains("line 1, column"));
    }

    #[test]
    fn what_is_no_document_is_refused_with_a_reason() {
        assert!(wrong("")[0].contains("empty"));
        assert!(wrong(" \n\t")[0].contains("empty"));
        assert!(wrong("[1]")[0].contains("not an object"));
        assert!(wrong("\"x\"")[0].contains("not an object"));
        assert!(wrong("{}")[0].contains("no key aimaster"));
        assert!(wrong(r#"{"aimastr": {}}"#)[0].contains("\"aimastr\" meant as aimaster?"));
        assert!(wrong(r#"{"sanity_check": {}}"#)[0].contains("put sanity_check inside"));
        assert!(wrong(r#"{"aimaster": "x"}"#)[0].contains("give a table"));
        assert!(wrong(&sanity(r#""micro_benchmarks": """#))[0].contains("empty"));
        let list = parse_document(b"{\"aimaster\": \"\xff\"}").unwrap_err();
        assert!(list[0].wrong.contains("byte 15 is not UTF-8"), "{}", list[0]);
        let padded = |bytes: usize| format!("{{\"aimaster\": {{}}{}}}", " ".repeat(bytes - 16));
        assert!(parse_document(padded(MAX_DOCUMENT_BYTES).as_bytes()).is_ok());
        assert!(wrong(&padded(MAX_DOCUMENT_BYTES + 1))[0].contains("1048576 bytes"));
    }

    #[test]
    fn hostile_documents_end_soon() {
        assert!(wrong(&"[".repeat(MAX_DOCUMENT_BYTES))[0].contains("EOF"));
        assert!(wrong(&format!("{{\"aimaster\":{}", "[".repeat(500_000)))[0].contains("recursion"));
        assert!(wrong(&"{\"aimaster\":".repeat(80_000))[0].contains("recursion"));
        let keys: Vec<String> = (0..60_000).map(|index| format!("\"sanity{index}\":0")).collect();
        let many = wrong(&format!("{{\"aimaster\":{{{}}}}}", keys.join(",")));
        assert_eq!(many.len(), crate::request::mistake::MAX_MISTAKES);
        let long = wrong(&format!("{{\"aimaster\":{{\"{}\":1}}}}", "\\u001b".repeat(100_000)));
        assert!(long[0].len() < 3000 && !long[0].contains('\u{1b}'), "{}", long[0].len());
    }

    proptest! {
        #[test]
        fn any_bytes_give_a_document_or_mistakes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Err(list) = parse_document(&bytes) {
                prop_assert!(!list.is_empty());
            }
        }

        #[test]
        fn a_cut_example_is_refused(cut in 0usize..400) {
            let example = include_str!("../../../conf/aimaster.json").trim_end();
            prop_assume!(cut < example.len());
            prop_assert_eq!(parse_document(&example.as_bytes()[..cut]).unwrap_err().len(), 1);
        }
    }
}
