//! The commands on files; what makes a limit is tested in `diag/tests/rules/learn.rs`.

use diag::check::{CheckName, Phase};
use diag::measurement::Metric;
use diag::report::{Item, ItemSubject, MeasuredOn};
use diag::verdict::{Outcome, Status};
use jiff::Timestamp;

use super::*;

fn item(node: &str, value: f64) -> Item {
    Item {
        phase: Phase::DeviceCheck,
        check: CheckName::GemmFlops.to_string(),
        subject: ItemSubject { kind: "node".into(), node: node.into(), name: node.into() },
        peers: Vec::new(),
        status: Status::Pass,
        metric: Some(Metric::Flops),
        value: Some(value),
        bytes: None,
        unit: Some("TFLOP/s".into()),
        limit: None,
        limit_source: None,
        median: None,
        samples: vec![value],
        rates: Vec::new(),
        message: String::new(),
        started_at: None,
        finished_at: None,
    }
}

/// Puts reports where the prolog puts them.
fn write_reports(folder: &Path, jobs: u32) {
    for job_id in 1..=jobs {
        let nodes = ["n1", "n2", "n3"];
        let report = Report {
            schema: 1,
            job_id,
            cluster: "aim".into(),
            check_number: 1,
            engine: Engine::Host,
            hardware: Some(MeasuredOn::default()),
            started_at: Timestamp::UNIX_EPOCH,
            finished_at: Timestamp::UNIX_EPOCH,
            outcome: Outcome::Pass,
            summary: String::new(),
            action: "start".into(),
            nodes: nodes.map(str::to_owned).into(),
            items: nodes.iter().map(|node| item(node, 0.04 + 0.0001 * f64::from(job_id % 3))).collect(),
            drained: Vec::new(),
            held_back: Vec::new(),
            errors: Vec::new(),
            notes: Vec::new(),
        };
        let place = folder.join(format!("aim/{job_id}/1"));
        std::fs::create_dir_all(&place).unwrap();
        std::fs::write(place.join(REPORT_FILE), serde_json::to_string(&report).unwrap()).unwrap();
    }
}

#[test]
fn what_was_learned_passes_lint_and_the_policy_s_check() {
    let folder = tempfile::tempdir().unwrap();
    let (reports, out) = (folder.path().join("reports"), folder.path().join("baselines/host.toml"));
    std::fs::create_dir(out.parent().unwrap()).unwrap();
    let policy = folder.path().join("aimaster.toml");
    std::fs::write(&policy, format!("engine='host'\npaths.baseline_dir={:?}", out.parent().unwrap()))
        .unwrap();
    let arguments = LearnArguments { reports: vec![reports.clone()], out: Some(out.clone()), gpu: None };
    let learn = Command::Learn(arguments);

    write_reports(&reports, 4);
    let error = run(&learn, &policy).unwrap_err().to_string();
    assert!(
        error.contains("12 numbers of 4 jobs on 3 nodes: 20 of 10 jobs on 3 nodes are needed"),
        "{error}"
    );
    assert!(!out.exists());

    write_reports(&reports, 12);
    // One that is none, among others, is passed over.
    std::fs::write(reports.join("aim/5/1").join(REPORT_FILE), "{").unwrap();
    assert_eq!(run(&learn, &policy).unwrap(), ExitCode::SUCCESS);
    let file = Baselines::parse(&std::fs::read_to_string(&out).unwrap()).unwrap();
    let limit = file.limit(CheckName::GemmFlops, Metric::Flops).unwrap();
    assert!(limit.value == 0.036 && limit.source.contains("33 numbers of 11 jobs on 3 nodes"), "{limit:?}");
    // The floors that hold without a file of the site's are kept.
    assert!(file.limit(CheckName::AllReduce2, Metric::Busbw).unwrap().source.contains("floor"));
    for path in [out.clone(), out.parent().unwrap().to_owned()] {
        assert_eq!(run(&Command::Lint { path, json: false }, &policy).unwrap(), ExitCode::SUCCESS);
    }
    assert_eq!(config::show(&config::Arguments::default(), &policy).unwrap(), ExitCode::SUCCESS);

    // It is not written over.
    assert!(format!("{:#}", run(&learn, &policy).unwrap_err()).contains("File exists"));
    let none = LearnArguments { reports: vec![out], out: None, gpu: None };
    assert!(format!("{:#}", run(&Command::Learn(none), &policy).unwrap_err()).contains("is no report"));
}

#[test]
fn lint_says_what_no_part_can_reach() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("h200.toml");
    let lint = || run(&Command::Lint { path: path.clone(), json: false }, Path::new("/nowhere"));
    assert!(format!("{:#}", lint().unwrap_err()).contains("can't read"));
    let limit = |value: &str| {
        format!(
            "engine='cuda'\ngpu='H200'\n[[limit]]\ncheck='gemm_flops'\nmetric='flops'\nvalue={value}\nsource='x'"
        )
    };
    for (text, code) in [
        (limit("620.0"), 0),
        (limit("6200.0"), FAULT),
        ("x".to_owned(), FAULT),
        (limit("620.0").replace("H200", "L40S"), 0),
    ] {
        std::fs::write(&path, text).unwrap();
        assert_eq!(lint().unwrap(), ExitCode::from(code));
    }
    let empty = Command::Lint { path: tempfile::tempdir().unwrap().path().to_owned(), json: true };
    assert!(run(&empty, Path::new("/nowhere")).is_err());
}
