//! What is returned and what is left where an admin is there at the same moment, with scripts in place of Slurm's commands.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::json;

use super::*;

const REASON: &str = "aimaster: gemm_flops n2 5<10TFLOP/s job=12 n=1";

/// A folder with Slurm's commands, a policy that names them and a report of job 20.
struct Stage {
    folder: tempfile::TempDir,
}

impl Stage {
    /// sinfo shows this state and reason of n2; scontrol, asked afterwards, `later`. What is returned is IDLE from then on.
    fn new(state: &str, reason: &str, later: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let stage = Self { folder };
        let path = |name: &str| stage.folder.path().join(name);
        let at = "2026-11-29T15:00:00";
        stage.put("row", &format!("main\u{1f}n2\u{1f}{state}\u{1f}{at}\u{1f}(null)\u{1f}{reason}\u{1e}\n"));
        let node = |state: &str, reason: &str| {
            format!(
                "NodeName=n2 Arch=x86_64\n   State={state} ThreadsPerCore=1\n   NodeAddr=n2 NodeHostName=n2\n   \
                 Gres=gpu:h200:8(S:0-1)\n   Reason={reason} [root@{at}]\n"
            )
        };
        stage.put("node", &node(state, later));
        stage.put("returned", "NodeName=n2 Arch=x86_64\n   State=IDLE ThreadsPerCore=1\n");
        let folder = stage.folder.path().display();
        stage.program("sinfo", &format!("cat {folder}/row"));
        stage.program(
            "scontrol",
            &format!(
                "echo \"$@\" >>{folder}/calls\ncase $1 in\nshow) cat {folder}/node;;\n\
                 update) cp {folder}/returned {folder}/node;;\nesac"
            ),
        );
        let policy = format!(
            "[paths]\nscontrol = '{folder}/scontrol'\nreport_dir = '{folder}/reports'\nsyslog = '{folder}/log'\n"
        );
        stage.put("policy", &policy);
        std::fs::create_dir_all(path("reports/aim/20/1")).unwrap();
        stage.put("reports/aim/20/1/report.json", &report().to_string());
        stage
    }

    fn put(&self, name: &str, text: &str) {
        std::fs::write(self.folder.path().join(name), text).unwrap();
    }

    /// Copied by a process of its own: whoever forks meanwhile would hold the file open for writing.
    fn program(&self, name: &str, script: &str) {
        self.put("text", &format!("#!/bin/sh\n{script}\n"));
        let path = |name: &str| self.folder.path().join(name);
        let mut install = std::process::Command::new("install");
        assert!(install.arg("-m755").arg(path("text")).arg(path(name)).status().unwrap().success());
    }

    /// Whether all were returned, and what was changed.
    fn undrain(&self, dry_run: bool) -> (bool, Vec<String>) {
        let arguments = Arguments {
            nodes: Some("n2".into()),
            all: false,
            dry_run,
            after_pass: Some(20),
            check: false,
            cluster: None,
            report_dir: None,
            helpers: None,
            json: false,
        };
        let code = undrain(&arguments, &self.folder.path().join("policy")).unwrap();
        let calls = std::fs::read_to_string(self.folder.path().join("calls")).unwrap_or_default();
        let changes = calls.lines().filter(|call| call.starts_with("update")).map(str::to_owned).collect();
        (code == ExitCode::SUCCESS, changes)
    }
}

fn report() -> serde_json::Value {
    let item = json!({
        "phase": "DeviceCheck", "check": "gemm_flops",
        "subject": { "kind": "node", "node": "n2", "name": "n2" }, "peers": [], "status": "PASS",
        "value": null, "unit": null, "limit": null, "limit_source": null, "median": null, "samples": [],
        "message": "fine", "started_at": null, "finished_at": null
    });
    json!({
        "schema": 1, "job_id": 20, "cluster": "aim", "check_number": 1, "engine": "host",
        "started_at": "2026-11-29T16:00:00Z", "finished_at": "2026-11-29T16:01:00Z", "outcome": "PASS",
        "summary": "fine", "action": "start", "nodes": ["n2"], "items": [item], "drained": [], "errors": []
    })
}

#[test]
fn what_is_ours_and_passed_is_returned_and_a_dry_run_changes_nothing() {
    let stage = Stage::new("IDLE+DRAIN", REASON, REASON);
    assert_eq!(stage.undrain(true), (true, vec![]));
    assert_eq!(stage.undrain(false), (true, vec!["update NodeName=n2 State=UNDRAIN".to_owned()]));
}

// C05, C11: between the first look and the update an admin was there.
#[test]
fn what_an_admin_changed_meanwhile_is_his() {
    let noted = format!("{REASON}; a new one is ordered");
    for later in ["fan 3 is loud", &noted, &REASON.replace("job=12", "job=13")] {
        assert_eq!(Stage::new("IDLE+DRAIN", REASON, later).undrain(false), (false, vec![]), "{later}");
    }
}

// C06: the job may have had other GPUs of the node.
#[test]
fn a_job_of_some_gpus_shows_nothing_of_the_node_as_a_whole() {
    for (held, returned) in [(2, false), (8, true)] {
        let reason = REASON.replace("gemm_flops", "all_reduce_1");
        let stage = Stage::new("IDLE+DRAIN", &reason, &reason);
        let mut report = report();
        report["engine"] = "cuda".into();
        report["hardware"] = json!({ "gpus": held });
        report["items"][0]["check"] = "all_reduce_1".into();
        stage.put("reports/aim/20/1/report.json", &report.to_string());
        assert_eq!(stage.undrain(false).0, returned, "{held}");
    }
}

// C11, A35: who can't look does nothing.
#[test]
fn without_an_answer_nothing_is_returned() {
    let stage = Stage::new("IDLE+DRAIN", REASON, REASON);
    stage.program("scontrol", "exit 1");
    assert_eq!(stage.undrain(false), (false, vec![]));
    stage.program("sinfo", "true");
    let policy = stage.folder.path().join("policy");
    let all = Arguments {
        nodes: None,
        all: true,
        dry_run: true,
        after_pass: None,
        check: false,
        cluster: None,
        report_dir: None,
        helpers: None,
        json: false,
    };
    assert!(undrain(&all, &policy).is_err());
}

// A report that its user could have written.
#[test]
fn a_report_that_is_not_root_s_shows_nothing() {
    let stage = Stage::new("IDLE+DRAIN", REASON, REASON);
    let file = stage.folder.path().join("reports/aim/20/1/report.json");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    // Only root can give a file away.
    if std::os::unix::fs::chown(&file, Some(1001), None).is_err() {
        return;
    }
    let policy = config::read(&stage.folder.path().join("policy")).unwrap();
    let arguments = Arguments {
        nodes: Some("n2".into()),
        all: false,
        dry_run: false,
        after_pass: Some(20),
        check: false,
        cluster: None,
        report_dir: None,
        helpers: None,
        json: false,
    };
    let error = evidence::of_job(20, &arguments, &policy.paths).unwrap_err().to_string();
    assert!(error.contains("who could have written anything"), "{error}");
}
