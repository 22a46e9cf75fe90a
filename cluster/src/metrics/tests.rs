//! Files of metrics as node_exporter finds them, and the dashboard and rules that read them.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;

use diag::metrics::{BEFORE, RUNTIME};
use diag::report::Report;
use diag::runtime_report::{RuntimeReport, Telemetry};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::*;

fn report(outcome: &str) -> Report {
    let report = json!({
        "schema": 1, "job_id": 7, "cluster": "c", "check_number": 1, "engine": "host", "started_at": "2026-11-30T08:00:00Z",
        "finished_at": "2026-11-30T08:00:09.5Z", "outcome": outcome, "summary": "s", "action": "end", "nodes": ["n1", "n2"],
        "items": [{
            "phase": "TwoNodeCommCheck", "check": "all_reduce_2", "subject": { "kind": "node", "node": "n2", "name": "n2" },
            "peers": [], "status": outcome, "metric": "busbw", "value": 0.025, "unit": "GB/s", "limit": 0.05, "limit_source": "x",
            "median": null, "samples": [], "message": "m", "started_at": null, "finished_at": null,
        }],
        "drained": [], "errors": [],
    });
    serde_json::from_value(report).unwrap()
}

fn runtime() -> RuntimeReport {
    let finding = json!({
        "class": "straggler", "subject": { "kind": "node", "node": 0 }, "suspects": [], "suspects_total": 0, "operation": null,
        "waiting": 1, "compared": [2, 2], "message": "m", "evidence": [], "confidence": 0.9, "since_ms": 1, "found_ms": 2,
        "state": "confirmed",
    });
    let fault = json!({
        "part": { "gpu": { "index": 0, "pci": null } }, "what": "Xid 79", "class": "gpu", "action": "drain", "turn": "began",
        "words": "w", "age_ms": 1,
    });
    RuntimeReport {
        telemetry: Telemetry {
            ranks: 2,
            ..RuntimeReport::new("c", 7, 1, "n1", Timestamp::UNIX_EPOCH).telemetry
        },
        findings: vec![serde_json::from_value(finding).unwrap()],
        hardware: vec![serde_json::from_value(fault).unwrap()],
        spoke: true,
        finished: Some(diag::runtime_report::Finished { at: Timestamp::UNIX_EPOCH, because: "x".into() }),
        ..RuntimeReport::new("c", 7, 1, "n1", Timestamp::UNIX_EPOCH)
    }
}

/// Both files as they are after a job.
fn both() -> String {
    let before = text(BEFORE, Tally::before(&report("FAIL"))).unwrap();
    before + &text(RUNTIME, Tally::runtime(&runtime())).unwrap()
}

#[test]
fn the_text_is_what_the_collector_reads() {
    let shown = text(BEFORE, Tally::before(&report("FAIL"))).unwrap();
    for line in [
        "# HELP aimaster_checks_total Checks before a job's start that this node led",
        "# TYPE aimaster_checks_total counter",
        "aimaster_checks_total{outcome=\"fail\"} 1.0",
        "aimaster_checks_total{outcome=\"pass\"} 0.0",
        "aimaster_findings_total{check=\"all_reduce_2\",status=\"fail\"} 1.0",
        "# TYPE aimaster_last_check_limit_ratio gauge",
        "aimaster_last_check_limit_ratio{check=\"all_reduce_2\"} 0.5",
        "aimaster_check_duration_seconds_total 9.5",
        "aimaster_last_check_timestamp_seconds 1796025609.5",
    ] {
        assert!(shown.lines().any(|own| own == line), "no {line:?} in {shown}");
    }
    // Each line is a comment, or a series that reads back.
    let read = Tally::read(&shown, BEFORE);
    let series: usize = BEFORE.iter().map(|family| read.series(family).count()).sum();
    assert_eq!(shown.lines().filter(|line| !line.starts_with("# ")).count(), series, "{shown}");
    assert_eq!(text(BEFORE, read).unwrap(), shown);
}

#[test]
fn jobs_add_up_and_the_file_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let (folder, file) = (folder.path(), folder.path().join(BEFORE_FILE));
    // Root is not hindered by modes, but a link is nobody's file.
    std::os::unix::fs::symlink("/etc/passwd", &file).unwrap();
    for _ in 0..3 {
        add_now(folder, BEFORE_FILE, BEFORE, Tally::before(&report("FAIL"))).unwrap();
    }
    let shown = std::fs::read_to_string(&file).unwrap();
    assert!(shown.contains("aimaster_checks_total{outcome=\"fail\"} 3.0"), "{shown}");
    assert_eq!(std::fs::symlink_metadata(&file).unwrap().permissions().mode() & 0o7777, 0o644);
    // What is broken begins again.
    std::fs::write(&file, [0xff, b'\n']).unwrap();
    add_now(folder, BEFORE_FILE, BEFORE, Tally::before(&report("PASS"))).unwrap();
    assert!(std::fs::read_to_string(&file).unwrap().contains("aimaster_checks_total{outcome=\"pass\"} 1.0"));
    assert_eq!(std::fs::read_dir(folder).unwrap().count(), 1);
    let gone = add_now(&folder.join("no"), BEFORE_FILE, BEFORE, Tally::default()).unwrap_err();
    assert!(gone.to_string().contains("paths.metrics_dir"), "{gone}");
}

#[test]
fn writers_at_once_lose_no_job() {
    let folder = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                add_now(folder.path(), BEFORE_FILE, BEFORE, Tally::before(&report("FAIL"))).unwrap()
            });
        }
    });
    let shown = std::fs::read_to_string(folder.path().join(BEFORE_FILE)).unwrap();
    assert!(shown.contains("aimaster_checks_total{outcome=\"fail\"} 8.0"), "{shown}");
    let held = openat(CWD, folder.path(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    flock(&held, FlockOperation::LockExclusive).unwrap();
    let locked = add_now(folder.path(), BEFORE_FILE, BEFORE, Tally::default());
    assert!(matches!(locked, Err(MetricsError::Locked)), "{locked:?}");
}

/// The names of ours in a text: what a query asks for.
fn names(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("aimaster_")).map(str::to_owned).collect()
}

#[test]
fn the_dashboard_and_the_rules_ask_only_for_what_there_is() {
    let shown = both();
    let series = shown.lines().filter(|line| !line.starts_with('#'));
    let there: BTreeSet<String> = series.flat_map(names).collect();
    let dashboard: Value = serde_json::from_str(include_str!("../../../conf/grafana/aimaster.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let queries: Vec<&str> = panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().into_iter().flatten())
        .map(|target| target["expr"].as_str().unwrap())
        .collect();
    assert!(queries.len() >= panels.iter().filter(|panel| panel["type"] != "row").count());
    let rules = include_str!("../../../conf/prometheus/aimaster.rules.yml");
    let expressions: String = rules.lines().filter(|line| line.trim_start().starts_with("expr:")).collect();
    let asked: BTreeSet<String> =
        queries.iter().flat_map(|query| names(query)).chain(names(&expressions)).collect();
    assert!(asked.len() >= 10, "{asked:?}");
    let missing: Vec<&String> = asked.difference(&there).collect();
    assert!(missing.is_empty(), "{missing:?} are asked for and not written");
    // Labels too: what a query says of one is a label of its family.
    for family in BEFORE.iter().chain(RUNTIME) {
        for query in queries.iter().copied().chain([expressions.as_str()]) {
            for (_, rest) in
                query.match_indices(family.name).map(|(at, name)| query.split_at(at + name.len()))
            {
                let selected = rest.strip_prefix('{').and_then(|rest| rest.split_once('}'));
                for label in selected.into_iter().flat_map(|(inside, _)| inside.split(',')) {
                    let label = label.split(['=', '!', '~']).next().unwrap_or_default().trim();
                    let known = family.labels.contains(&label) || ["instance", "job"].contains(&label);
                    assert!(known, "{query}: {} has no label {label}", family.name);
                }
            }
        }
    }
}

/// Whether promtool takes it: `check metrics` reads its standard input, which `text` is.
fn promtool(arguments: &[&str], text: &str) -> String {
    let mut command = std::process::Command::new("promtool");
    command.args(arguments).env_clear().stdin(std::process::Stdio::piped());
    let mut child =
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{arguments:?}: {said}");
    said
}

// `cargo test -p cluster -- --ignored promtool`
#[test]
#[ignore = "needs promtool, of Debian's package prometheus"]
fn promtool_takes_metrics_and_rules() {
    // It says what breaks the conventions, and fails for it.
    assert_eq!(promtool(&["check", "metrics"], &both()), "");
    let rules = concat!(env!("CARGO_MANIFEST_DIR"), "/../conf/prometheus/aimaster.rules.yml");
    assert!(promtool(&["check", "rules", rules], "").contains("8 rules found"));
}
