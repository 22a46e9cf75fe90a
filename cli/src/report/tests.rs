//! What is shown of a job of which there is a report, what its agents said, or both.

use diag::facts::Engine;
use diag::runtime_report::{Status, Telemetry};
use jiff::Timestamp;

use super::*;

fn before(outcome: Outcome) -> (Report, String) {
    let report = Report {
        schema: 1,
        job_id: 7,
        cluster: "aim".into(),
        check_number: 1,
        engine: Engine::Host,
        hardware: None,
        started_at: Timestamp::UNIX_EPOCH,
        finished_at: Timestamp::UNIX_EPOCH,
        outcome,
        summary: "well".into(),
        action: "start".into(),
        nodes: vec!["n1".into()],
        items: Vec::new(),
        held_back: Vec::new(),
        drained: Vec::new(),
        errors: Vec::new(),
        notes: Vec::new(),
    };
    let text = serde_json::to_string_pretty(&report).unwrap() + "\n";
    (report, text)
}

fn during(node: &str, status: Status, errors: &[&str]) -> RuntimeReport {
    RuntimeReport {
        telemetry: Telemetry { status, because: Vec::new(), ranks: 2, refused: 0 },
        judged: true,
        spoke: true,
        errors: errors.iter().map(|&error| error.to_owned()).collect(),
        ..RuntimeReport::new("aim", 7, 1, node, Timestamp::UNIX_EPOCH)
    }
}

fn found(report: Option<Outcome>, runtime: Vec<RuntimeReport>) -> Found {
    Found { report: report.map(before), runtime, troubles: Vec::new() }
}

#[test]
fn json_that_its_user_wrote_moves_no_cursor() {
    let hostile = "{\n  \"summary\": \"a\u{9b}31m\u{202e}\u{7f}\u{e0041}ü\"\n}\n";
    let shown = escaped(hostile);
    assert_eq!(shown, "{\n  \"summary\": \"a\\u009b31m\\u202e\\u007f\\udb40\\udc41ü\"\n}\n");
    let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    assert_eq!(read(&shown), read(hostile));
}

#[test]
fn the_exit_code_is_the_worst_of_both() {
    let well = || vec![during("n1", Status::Ok, &[])];
    let unseen = || vec![during("n1", Status::None, &[])];
    let blind = || vec![during("n1", Status::Ok, &["x"])];
    for (report, runtime, expected) in [
        (Some(Outcome::Pass), vec![], 0),
        (Some(Outcome::Skip), vec![], 3),
        (Some(Outcome::Pass), well(), 0),
        (Some(Outcome::Pass), unseen(), 0),
        (Some(Outcome::Pass), blind(), 3),
        (Some(Outcome::Fail), blind(), 1),
        (Some(Outcome::Skip), well(), 3),
        (None, well(), 0),
        (None, unseen(), 3),
    ] {
        assert_eq!(code(&found(report, runtime.clone())), expected, "{report:?} {runtime:?}");
    }
}

#[test]
fn both_are_shown_and_a_report_alone_is_as_it_ever_was() {
    let alone = found(Some(Outcome::Pass), vec![]);
    assert_eq!(
        (text(&alone), json(&alone).unwrap()),
        (before(Outcome::Pass).0.text(), before(Outcome::Pass).1)
    );
    let both =
        found(Some(Outcome::Pass), vec![during("n1", Status::Ok, &[]), during("n2", Status::Ok, &["x"])]);
    let shown = text(&both);
    let lines: Vec<&str> = shown.lines().collect();
    assert!(lines[0].starts_with("job 7 on aim (check 1, engine host): PASS"), "{shown}");
    assert_eq!(lines.iter().filter(|line| line.starts_with("RuntimeCheck on n")).count(), 2, "{shown}");
    let value: serde_json::Value = serde_json::from_str(&json(&both).unwrap()).unwrap();
    assert_eq!((&value["outcome"], &value["runtime"][1]["errors"][0]), (&"PASS".into(), &"x".into()));

    let only = found(None, vec![during("n1", Status::None, &[])]);
    assert!(
        text(&only)
            .starts_with("job 7 on aim (check 1): no checks before its start\nRuntimeCheck on n1: SKIP")
    );
    let value: serde_json::Value = serde_json::from_str(&json(&only).unwrap()).unwrap();
    assert_eq!((&value["job_id"], &value["runtime"][0]["node"]), (&7.into(), &"n1".into()));
}

#[test]
fn what_lies_in_the_folder_is_read_the_first_node_first() {
    let folder = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    assert!(files::read(folder.path()).unwrap_err().to_string().contains("report.json"));
    for (name, node) in [("runtime.a1.json", "a1"), ("runtime.json", "n1"), ("runtime.new", "no")] {
        put(name, &serde_json::to_string(&during(node, Status::Ok, &[])).unwrap());
    }
    put("runtime.b1.json", "{");
    std::os::unix::fs::symlink("/etc/passwd", folder.path().join("runtime.c1.json")).unwrap();
    let found = files::read(folder.path()).unwrap();
    let nodes: Vec<&str> = found.runtime.iter().map(|one| one.node.as_str()).collect();
    assert_eq!((nodes, found.troubles.len(), found.report.is_none()), (vec!["n1", "a1"], 2, true));
    put("report.json", &before(Outcome::Pass).1);
    assert!(files::read(folder.path()).unwrap().report.is_some());
    put("report.json", "{");
    assert!(files::read(folder.path()).unwrap_err().to_string().contains("is no report"));
}

#[test]
fn a_page_goes_where_it_is_wanted() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("page.html");
    let page = html(&found(Some(Outcome::Fail), vec![during("n1", Status::Ok, &["x"])])).unwrap();
    put(&page, Some(&file)).unwrap();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), page);
    assert!(page.starts_with("<!doctype html>") && page.contains("Job 7") && page.ends_with("</html>\n"));
    let error = put(&page, Some(&folder.path().join("no/page.html"))).unwrap_err().to_string();
    assert!(error.contains("can't write"), "{error}");
    assert!(html(&Found::default()).is_err());
}
