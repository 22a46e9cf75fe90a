//! What is shown of a store that the prolog's own code wrote.

use diag::check::CheckName;
use diag::facts::Engine;
use diag::history::{Like, Setting};
use diag::measurement::Metric;
use jiff::{SignedDuration, Timestamp};

use super::*;

fn key(part: &str, alone: Option<bool>) -> Key {
    let like = Like { alone, ranks: 8, nodes: 1, nvls: false };
    Key {
        engine: Engine::Cuda,
        check: CheckName::GemmFlops,
        metric: Metric::Flops,
        bytes: None,
        part: part.into(),
        like,
    }
}

fn entry(day: u32, value: f64) -> Entry {
    let at = Timestamp::UNIX_EPOCH + SignedDuration::from_hours(24 * i64::from(day));
    Entry { at, job_id: 100 + day, value, with: None, setting: Setting::default() }
}

#[test]
fn the_table_has_a_line_a_series_and_says_what_declines() {
    let well: Vec<Entry> = (0..12).map(|day| entry(day, 700.0)).collect();
    let mut slow = well.clone();
    slow.extend((12..15).map(|day| entry(day, 600.0)));
    let (a, b) = (key("GPU-a", Some(true)), key("GPU-b", None));
    let shown = table(&[Series { key: &a, entries: &well }, Series { key: &b, entries: &slow }]);
    let lines: Vec<&str> = shown.lines().collect();
    assert!(lines[0].starts_with("part   check       how"), "{shown}");
    let words = |line: usize| {
        lines[line].split("  ").map(str::trim).filter(|word| !word.is_empty()).collect::<Vec<_>>()
    };
    assert_eq!(
        words(1),
        [
            "GPU-a",
            "gemm_flops",
            "cuda 8, alone",
            "12",
            "700 TFLOP/s",
            "700 TFLOP/s",
            "1970-01-01",
            "111 on 1970-01-12"
        ]
    );
    assert_eq!(
        words(2)[2..],
        [
            "cuda 8",
            "15",
            "700 TFLOP/s",
            "600 TFLOP/s",
            "1970-01-01",
            "114 on 1970-01-15",
            "declining since 1970-01-13"
        ]
    );
}

#[test]
fn the_only_node_needs_no_name() {
    let Ok(state) = tempfile::Builder::new().prefix("aimaster-history-").tempdir_in("/var/lib") else {
        assert!(!rustix::process::geteuid().is_root());
        return;
    };
    assert!(format!("{:#}", only(&state.path().join("none")).unwrap_err()).contains("login node"));
    assert!(only(state.path()).unwrap_err().to_string().contains("no node has a history"));
    let first = store::folder(state.path(), "n1");
    store::add(&first, &[(key("GPU-a", None), entry(1, 700.0))], WAIT).unwrap();
    std::fs::create_dir(state.path().join("other")).unwrap();
    assert_eq!(only(state.path()).unwrap(), first);
    for json in [false, true] {
        let arguments = Arguments { folder: Some(first.clone()), json };
        assert_eq!(show(&arguments, Path::new("/nowhere")).unwrap(), ExitCode::SUCCESS);
    }
    store::add(&store::folder(state.path(), "n2"), &[(key("GPU-a", None), entry(1, 1.0))], WAIT).unwrap();
    assert!(only(state.path()).unwrap_err().to_string().contains("name one of n1, n2"));
    let nothing = Arguments { folder: Some(state.path().join("n9")), json: false };
    assert!(show(&nothing, Path::new("/nowhere")).unwrap_err().to_string().contains("remembers nothing"));
}
