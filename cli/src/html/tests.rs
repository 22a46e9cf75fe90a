//! Pages as a browser takes them: whole, silent, named, bounded, and the same each time; whatever a report says.

use diag::page::Page;
use diag::report::Report;
use diag::runtime_report::RuntimeReport;
use serde_json::{Value, json};

use super::*;

/// Largest page, and most of its elements, of a job of any size: what a phone opens at once.
const MOST_BYTES: usize = 400_000;
const MOST_ELEMENTS: usize = 10_000;

/// What is at stake in each text.
const HOSTILE: &str = "\"'><script>x()</script></style>{{ page }}{% x %}\u{202e}\n";

fn item(phase: &str, check: &str, (kind, node, name): (&str, &str, &str), value: f64) -> Value {
    json!({
        "phase": phase, "check": check, "subject": { "kind": kind, "node": node, "name": name }, "peers": [],
        "status": if value < 600.0 { "FAIL" } else { "PASS" }, "metric": "flops", "value": value, "unit": "TFLOP/s", "limit": 600.0,
        "limit_source": "known", "median": 700.0, "samples": [value],
        "message": format!("{name}: {check} {value} TFLOP/s; next: look at {name} [limit: known]"),
        "started_at": "2026-11-30T08:00:01Z", "finished_at": "2026-11-30T08:00:02Z",
    })
}

/// A report of so many nodes of eight GPUs, of which the last one's last is slow; `word` stands in every text.
fn report(nodes: usize, word: &str) -> Report {
    let names: Vec<String> = (0..nodes).map(|node| format!("{word}{node}")).collect();
    let mut items = Vec::new();
    for (node, name) in names.iter().enumerate() {
        for gpu in 0..8 {
            let slow = node + 1 == nodes && gpu == 7;
            let value = if slow { 311.5 } else { 700.0 + (node % 7) as f64 };
            items.push(item(
                "DeviceCheck",
                &format!("gemm{word}"),
                ("gpu", name, &format!("{name}/gpu{gpu}")),
                value,
            ));
        }
    }
    for name in &names {
        items.push(item("SingleNodeCommCheck", "all_reduce_1", ("node", name, name), 650.0));
    }
    for pair in names.chunks(2).filter(|pair| pair.len() == 2) {
        let both = format!("{}-{}", pair[0], pair[1]);
        items.push(item("TwoNodeCommCheck", "all_reduce_2", ("pair", &pair[0], &both), 640.0));
    }
    let report = json!({
        "schema": 1, "job_id": 7, "cluster": word, "check_number": 1, "engine": "cuda",
        "hardware": { "gpu": word, "gpus": 8 }, "started_at": "2026-11-30T08:00:00Z", "finished_at": "2026-11-30T08:00:09Z",
        "outcome": "FAIL", "summary": word, "action": word, "nodes": names, "items": items, "drained": [word],
        "held_back": [word], "errors": [word], "notes": [word],
    });
    serde_json::from_value(report).unwrap()
}

fn who(node: u32) -> Value {
    json!({ "node": node, "pid": 1, "gpu": 0, "task": null, "rank": node })
}

fn runtime(word: &str) -> RuntimeReport {
    let finding = |state: Value| {
        json!({
            "class": "communication_slow", "subject": { "kind": "nic", "node": 0, "name": word }, "suspects": [who(0), who(1)],
            "suspects_total": 2, "operation": null, "waiting": 3, "compared": [4, 4], "message": word, "evidence": [word],
            "confidence": 0.8, "since_ms": 5000, "found_ms": 15000, "state": state,
        })
    };
    let report = json!({
        "schema": 1, "job_id": 7, "cluster": word, "check_number": 1, "node": word, "started_at": "2026-11-30T08:01:00Z",
        "first_step_at": "2026-11-30T08:01:02Z", "finished": { "at": "2026-11-30T08:02:00Z", "because": word },
        "telemetry": { "status": "OK", "because": [], "ranks": 4, "refused": 1 }, "judged": true, "spoke": true,
        "findings": [finding(json!("confirmed"))], "withdrawn": [finding(json!({ "withdrawn": { "because": word } }))],
        "errors": [word], "blind": [word],
        "delays": [
            { "comm": 1, "from": who(0), "to": who(1), "steps": 9, "mean_us": 30000, "open": false },
            { "comm": 1, "from": who(1), "to": who(0), "steps": 9, "mean_us": 15, "open": true },
        ],
        "acts": [{ "at": "2026-11-30T08:01:20Z", "done": false, "what": word }], "names": { "0": word, "1": "n2" },
    });
    serde_json::from_value(report).unwrap()
}

fn shown(report: Option<&Report>, runtime: &[RuntimeReport]) -> String {
    render(&Page::new(report, runtime).unwrap()).unwrap()
}

/// The elements of a page with the names of their attributes: what a text can't change.
fn elements(page: &str) -> Vec<String> {
    let (_, body) = page.split_once("</style>").unwrap();
    let mut elements = Vec::new();
    let mut rest = body;
    while let Some((_, tag)) = rest.split_once('<') {
        let (mut quoted, mut shape, mut end) = (false, String::new(), tag.len());
        for (at, c) in tag.char_indices() {
            match c {
                '"' => quoted = !quoted,
                '>' if !quoted => {
                    end = at;
                    break;
                }
                _ if !quoted => shape.push(c),
                _ => {}
            }
        }
        elements.push(shape);
        rest = &tag[end..];
    }
    elements
}

#[test]
fn no_text_of_a_report_becomes_an_element_or_an_attribute() {
    let page = |word: &str| shown(Some(&report(4, word)), &[runtime(word)]);
    let (harmless, hostile) = (page("word"), page(HOSTILE));
    assert!(hostile.matches("&lt;script&gt;").count() > 30, "the texts are not there");
    assert!(!hostile.contains("<script") && !hostile.contains('\u{202e}'));
    let (hostile, harmless) = (elements(&hostile), elements(&harmless));
    let differs = hostile.iter().zip(&harmless).find(|(one, other)| one != other);
    assert_eq!((differs, hostile.len()), (None, harmless.len()));
    assert!(harmless.len() > 300);
}

#[test]
fn a_page_asks_for_nothing_and_names_everything() {
    let page = shown(Some(&report(4, "n")), &[runtime("n")]);
    // Nothing but its own style, whatever else is tried.
    let policy = "http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src ";
    let (_, rest) = page.split_once(policy).unwrap();
    let allowed = rest.split_once('"').unwrap().0.split(';').skip(1);
    assert!(allowed.clone().all(|one| one.ends_with(" 'none'")) && allowed.count() == 2, "{rest:.99}");
    for word in [
        "http:", "https:", "src=", "href=", "url(", "@import", "<link", "<script", "<iframe", "style=\"",
        " on",
    ] {
        let found = page
            .match_indices(word)
            .find(|(at, _)| word != " on" || page[*at..].find('=') < page[*at..].find([' ', '<']));
        assert_eq!(found, None, "{word}");
    }
    for svg in page.split("<svg").skip(1) {
        let (tag, _) = svg.split_once('>').unwrap();
        assert!(
            tag.contains("role=\"img\"") && !tag.contains("aria-label=\"\"") && tag.contains("aria-label="),
            "{tag}"
        );
    }
    for table in page.split("<table").skip(1) {
        let table = table.split("</table>").next().unwrap();
        assert!(table.contains("<caption>") && !table.contains("<caption></caption>"), "{table}");
        assert!(
            table.split("<th ").skip(1).all(|th| th.starts_with("scope=")) && !table.contains("<th>"),
            "{table}"
        );
    }
    assert!(page.matches("<svg").count() > 8 && page.matches("<table").count() >= 5);
}

#[test]
fn a_large_job_makes_no_large_page_and_says_what_is_left_out() {
    let whole = report(1024, "node");
    let page = shown(Some(&whole), &[]);
    let count = elements(&page).iter().filter(|one| !one.starts_with('/')).count();
    assert!(page.len() < MOST_BYTES && count < MOST_ELEMENTS, "{} bytes, {count} elements", page.len());
    for words in ["node1023&#x2f;gpu7", "8\u{202f}180 more", "500 more are not named", "960 more"] {
        assert!(page.contains(words), "{words}");
    }
    // All of them miss: as many as are shown of any list.
    let mut bad = whole;
    bad.items.iter_mut().for_each(|item| item.status = diag::verdict::Status::Fail);
    let page = shown(Some(&bad), &[]);
    let count = elements(&page).iter().filter(|one| !one.starts_with('/')).count();
    assert!(page.len() < MOST_BYTES && count < MOST_ELEMENTS, "{} bytes, {count} elements", page.len());
    assert!(page.contains("more subjects are not shown"));
}

#[test]
fn a_page_has_the_parts_that_there_is_something_for() {
    let ids = ["at-fault", "done", "phases", "series", "pairs", "watch", "numbers"];
    let has = |page: &str| ids.map(|id| page.contains(&format!("id=\"{id}\"")));
    let whole = report(2, "n");
    assert_eq!(has(&shown(Some(&whole), &[runtime("n")])), [true; 7]);
    assert_eq!(has(&shown(Some(&whole), &[])), [true, true, true, true, true, false, true]);
    assert_eq!(has(&shown(None, &[runtime("n")])), [false, false, false, false, false, true, false]);
    let mut empty = report(1, "n");
    (empty.items, empty.drained, empty.held_back) = (Vec::new(), Vec::new(), Vec::new());
    (empty.errors, empty.notes) = (Vec::new(), Vec::new());
    assert_eq!(has(&shown(Some(&empty), &[])), [false; 7]);
    assert_eq!(Page::new(None, &[]), None);
}

#[test]
fn the_same_report_is_the_same_page() {
    let (one, other) = (report(40, "n"), report(40, "n"));
    let text = serde_json::to_string(&one).unwrap();
    let again: Report = serde_json::from_str(&text).unwrap();
    let pages = [&one, &other, &again].map(|report| shown(Some(report), &[runtime("n")]));
    assert!(pages.iter().all(|page| *page == pages[0]));
}

// A list of all nodes up to the highest number, made for each finding, takes minutes for this.
#[test]
fn a_finding_about_a_node_of_a_high_number_is_named_like_any_other() {
    let mut far = runtime("n");
    let node = diag::facts::NodeId::MAX;
    far.names = [(node, "far".to_owned())].into();
    let finding = &mut far.findings[0];
    finding.subject = diag::measurement::Subject::Pair { a: node, b: 60_000 };
    far.findings = vec![finding.clone(); 50_000];
    let page = shown(None, &[far]);
    assert!(page.contains("far-node 60000") && page.len() < MOST_BYTES, "{} bytes", page.len());
}
