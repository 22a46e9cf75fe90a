//! Files of metrics as node_exporter finds them.

mod dashboard;

use std::os::unix::fs::PermissionsExt;

use diag::metrics::{BEFORE, RUNTIME};
use diag::report::Report;
use diag::runtime_report::{RuntimeReport, Telemetry};
use jiff::Timestamp;
use serde_json::json;

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
    let mut left: Vec<String> = names_in(folder);
    left.sort();
    assert_eq!(left, [LOCK_FILE, BEFORE_FILE]);
    let gone = add_now(&folder.join("no"), BEFORE_FILE, BEFORE, Tally::default()).unwrap_err();
    assert!(gone.to_string().contains("paths.metrics_dir"), "{gone}");
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries.map(|one| one.unwrap().file_name().into_string().unwrap()).collect()
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
    let add = || add_now(folder.path(), BEFORE_FILE, BEFORE, Tally::default());
    // Whoever can list the folder can lock it, and none of the files that he can open.
    let listed = openat(CWD, folder.path(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    flock(&listed, FlockOperation::LockExclusive).unwrap();
    let shown = File::open(folder.path().join(BEFORE_FILE)).unwrap();
    flock(&shown, FlockOperation::LockExclusive).unwrap();
    add().unwrap();
    let path = folder.path().join(LOCK_FILE);
    let mode = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(), 0o600);
    // One that was opened to readers is closed again.
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
    add().unwrap();
    assert_eq!(mode(), 0o600);
    let held = File::open(&path).unwrap();
    flock(&held, FlockOperation::LockExclusive).unwrap();
    let locked = add();
    assert!(matches!(locked, Err(MetricsError::Locked)), "{locked:?}");
}

#[test]
fn a_folder_that_others_can_write_into_is_refused_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let add = || add_now(folder.path(), BEFORE_FILE, BEFORE, Tally::default());
    let set = |name: &str, mode: u32| {
        std::fs::set_permissions(folder.path().join(name), PermissionsExt::from_mode(mode)).unwrap();
    };
    for mode in [0o757, 0o775, 0o1777] {
        set("", mode);
        let refused = add().unwrap_err();
        assert!(matches!(refused, MetricsError::Open { what: "the folder", .. }), "{mode:o}: {refused}");
        assert!(refused.to_string().contains("chmod go-w"), "{refused}");
        assert_eq!(names_in(folder.path()), Vec::<String>::new());
    }
    set("", 0o755);
    add().unwrap();
    set(LOCK_FILE, 0o666);
    assert!(matches!(add(), Err(MetricsError::Open { what: "the lock", .. })));
    set(LOCK_FILE, 0o600);
    add().unwrap();
    // The rest needs another user.
    let owned = |name: &str| std::os::unix::fs::chown(folder.path().join(name), Some(65_534), None);
    if owned("").is_ok() {
        assert!(matches!(add(), Err(MetricsError::Open { owner: 65_534, .. })));
        std::os::unix::fs::chown(folder.path(), Some(0), None).unwrap();
        owned(LOCK_FILE).unwrap();
        assert!(matches!(add(), Err(MetricsError::Open { what: "the lock", owner: 65_534, .. })));
    }
}

#[test]
fn a_pipe_in_place_of_the_file_holds_nobody_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(BEFORE_FILE);
    rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    // Somebody who keeps it open and writes nothing.
    let _other = File::options().read(true).write(true).open(&path).unwrap();
    add_now(folder.path(), BEFORE_FILE, BEFORE, Tally::before(&report("PASS"))).unwrap();
    assert!(std::fs::metadata(&path).unwrap().is_file());
    assert!(std::fs::read_to_string(&path).unwrap().contains("aimaster_checks_total{outcome=\"pass\"} 1.0"));
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
