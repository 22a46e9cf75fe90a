//! What is done and what is not, with scripts in place of Slurm's commands; and that nobody waits for them.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use cluster::order::{Met, Steps, Telemetry as Reach};
use cluster::rendezvous::JobKey;
use diag::c4d::digest::Digest;
use diag::health::{Action, Class, Part};
use diag::request::FailAction;
use jiff::Timestamp;

use super::*;
use crate::c4d::link::Telling;
use crate::c4d::report::{Status, Telemetry};

/// More than a round with scripts takes, on a busy machine.
const SOON: Duration = Duration::from_secs(20);

const JOB: &str = "JobId=5 JobName=x\n   UserId=a(1) GroupId=a(1) MCS_label=N/A\n   Priority=1 Nice=0 Account=(null) QOS=(null)\n   JobState=RUNNING Reason=None Dependency=(null)\n   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0\n   Partition=main AllocNode:Sid=ctl:0\n   ReqNodeList=(null) ExcNodeList=(null)\n   NodeList=n[1-2]\n   BatchHost=n1\n   NumNodes=2 NumCPUs=2\n   Command=(null)\n   WorkDir=/tmp\n   AdminComment=paid by x \n   StdErr=/tmp/slurm-5.out\n   Power=\n   \n\n";

struct Stage {
    folder: tempfile::TempDir,
    syslog: UnixDatagram,
    acts: Acts,
    judge: Judge,
    report: RuntimeReport,
    number: u64,
}

impl Stage {
    /// Two nodes; `answer` is what scontrol does, `$D` its folder.
    fn new(fail_action: FailAction, met: bool, answer: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let script = format!("#!/bin/sh\nD={}\necho \"$@\" >>$D/calls\n{answer}\n", folder.path().display());
        let sinfo = format!("{script}\n{}", SINFO.replace("$D", &folder.path().display().to_string()));
        for (name, script) in
            [("scontrol", &script), ("scancel", &script), ("squeue", &script), ("sinfo", &sinfo)]
        {
            // Copied by a process of its own: whoever forks meanwhile would hold the file open for writing.
            std::fs::write(path("text"), script).unwrap();
            let mut install = std::process::Command::new("install");
            assert!(install.arg("-m755").arg(path("text")).arg(path(name)).status().unwrap().success());
        }
        std::fs::write(path("job"), JOB).unwrap();
        std::fs::write(path("node"), "NodeName=n2 Arch=x86_64\n   State=ALLOCATED ThreadsPerCore=1\n")
            .unwrap();
        let syslog = UnixDatagram::bind(path("log")).unwrap();
        syslog.set_nonblocking(true).unwrap();
        std::fs::set_permissions(path("log"), std::fs::Permissions::from_mode(0o666)).unwrap();
        let mut policy = Policy::default();
        policy.paths.scontrol = path("scontrol");
        policy.paths.scancel = path("scancel");
        let order = order(folder.path(), fail_action, met);
        let events = Events::open(&path("log"), "test", "n1", 5);
        let acts = Acts::new(&order, &policy, &events);
        let judge = Judge::new(&order.nodes, policy.c4d, Instant::now());
        Self { folder, syslog, acts, judge, report: report(), number: 0 }
    }

    /// A look of the agent in which n2 tells this of its hardware.
    fn look(&mut self, health: &[HealthEvent]) {
        let digest = Digest { node: 1, number: self.number, ending: false, ranks: Vec::new() };
        self.number += 1;
        let now = Instant::now();
        self.judge.judge(&[Telling { digest, health: health.to_vec() }], now);
        self.acts.follow(&mut self.report, Some(&self.judge), now);
    }

    /// Looks until a round is over.
    fn settled(&mut self, health: &[HealthEvent]) {
        let until = Instant::now() + SOON;
        self.look(health);
        while Instant::now() < until {
            self.look(health);
            let state = self.acts.shared.as_ref().map(|shared| {
                let state = shared.lock();
                state.busy || state.next.is_some()
            });
            if state != Some(true) {
                self.look(health);
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("the round does not end");
    }

    fn changes(&self) -> Vec<String> {
        let calls = std::fs::read_to_string(self.folder.path().join("calls")).unwrap_or_default();
        let changes =
            calls.lines().filter(|call| !call.starts_with("show") && !call.starts_with("--noheader"));
        // Without what is remembered of the node: it has a time.
        changes.map(|call| call.split(" Comment=aimaster{drained=").next().unwrap().to_owned()).collect()
    }

    fn events(&self) -> Vec<String> {
        let mut buffer = [0; 4096];
        let next = || self.syslog.recv(&mut buffer).ok().map(|length| buffer[..length].to_vec());
        std::iter::from_fn(next).map(|line| String::from_utf8_lossy(&line).into_owned()).collect()
    }

    fn acts(&self) -> Vec<(bool, &str)> {
        self.report.acts.iter().map(|act| (act.done, act.what.as_str())).collect()
    }
}

fn order(folder: &Path, fail_action: FailAction, met: bool) -> Order {
    Order {
        version: env!("CARGO_PKG_VERSION").into(),
        job: JobKey { cluster: "aim".into(), job_id: 5, restart: 0 },
        uid: 1000,
        gid: None,
        nodes: vec!["n1".into(), "n2".into()],
        me: 0,
        gpus: Vec::new(),
        folder: folder.to_owned(),
        slurm_conf: None,
        steps: Steps { folder: folder.to_owned(), lasting: true },
        telemetry: Reach::Socket("x".into()),
        fail_action,
        policy: String::new(),
        met: met.then(|| Met { key: [1; 32], joined: vec![0, 1], addresses: [].into() }),
    }
}

fn report() -> RuntimeReport {
    RuntimeReport {
        telemetry: Telemetry { status: Status::Ok, because: Vec::new(), ranks: 2, refused: 0 },
        judged: true,
        ..RuntimeReport::new("aim", 5, 1, "n1", Timestamp::now())
    }
}

fn xid(action: Action) -> HealthEvent {
    HealthEvent {
        part: Part::Gpu { index: 1, pci: None },
        what: "Xid 79".into(),
        class: Class::Gpu,
        action,
        turn: Turn::Began,
        words: "GPU 1: Xid 79 once: GPU has fallen off the bus".into(),
        age_ms: 1,
    }
}

/// sinfo's own form of the one node that scontrol shows.
const SINFO: &str = r#"
state=$(sed -n 's/^   State=\([^ ]*\).*/\1/p' $D/node)
name=$(sed -n 's/^NodeName=\([^ ]*\).*/\1/p' $D/node)
reason=$(sed -n 's/^   Reason=\(.*\) \[.*/\1/p' $D/node)
printf 'main\037%s\037%s\037Unknown\037(null)\037%s\036\n' "$name" "$state" "${reason:-none}"
"#;

const ANSWER: &str = "case \"$1 $2\" in\n\"show job\") cat $D/job;;\n\"show node\") cat $D/node;;\nesac";

const REASON: &str = "aimaster: c4d hardware: n2: GPU 1: Xid 79 once: GPU has fallen off the bus job=5 n=1";

#[test]
fn hardware_evidence_drains_once_and_is_told() {
    let mut stage = Stage::new(FailAction::Drain, true, ANSWER);
    stage.look(&[]);
    assert!(stage.acts.shared.is_none(), "nothing is found, and there is a thread");
    stage.settled(&[xid(Action::Drain)]);
    let comment =
        "update JobId=5 AdminComment=paid by x aimaster{n=1 requeues=0 drained=n2 c4d=hardware:n2/gpu1}";
    assert_eq!(stage.changes(), [&format!("update NodeName=n2 State=DRAIN Reason={REASON}"), comment]);
    assert_eq!(stage.acts(), [(true, format!("n2 was drained: {REASON}").as_str())]);
    assert_eq!((stage.report.elsewhere.len(), stage.report.outcome()), (1, Outcome::Fail));
    assert_eq!(stage.report.names.get(&1).unwrap(), "n2");
    // It stands: nothing more is done, nor when it is told again with another age.
    let calls = std::fs::read_to_string(stage.folder.path().join("calls")).unwrap();
    stage.settled(&[HealthEvent { age_ms: 9000, ..xid(Action::Drain) }]);
    assert_eq!(std::fs::read_to_string(stage.folder.path().join("calls")).unwrap(), calls);
    let events = stage.events();
    assert_eq!(events.len(), 1, "{events:#?}");
    assert!(
        events[0].contains("event=RuntimeCheckActed outcome=FAIL drained=n2 requeued=false"),
        "{events:?}"
    );
}

// Faults of the hardware often end the job: its node leaves service all the same, and nothing is asked for in vain.
#[test]
fn a_job_that_is_ending_has_its_bad_node_drained() {
    let mut stage = Stage::new(FailAction::Requeue, true, ANSWER);
    let ending = JOB.replace("JobState=RUNNING", "JobState=COMPLETING").replace("n[1-2]", "n1");
    std::fs::write(stage.folder.path().join("job"), ending).unwrap();
    stage.look(&[xid(Action::Drain)]);
    stage.acts.end(&mut stage.report);
    assert_eq!(stage.changes(), [format!("update NodeName=n2 State=DRAIN Reason={REASON}")]);
    let acts = stage.acts();
    assert!(acts.contains(&(false, "requeue: the job is ending")) && acts[0].0, "{acts:?}");
}

#[test]
fn what_broke_since_the_last_look_is_acted_on_at_the_end() {
    let mut stage = Stage::new(FailAction::Drain, true, ANSWER);
    stage.look(&[]);
    stage.report.hardware = vec![xid(Action::Drain)];
    let node = "NodeName=n1 Arch=x86_64\n   State=ALLOCATED ThreadsPerCore=1\n";
    std::fs::write(stage.folder.path().join("node"), node).unwrap();
    stage.acts.end(&mut stage.report);
    let drains: Vec<String> = stage.changes().into_iter().filter(|call| call.contains("DRAIN")).collect();
    assert_eq!(drains, [format!("update NodeName=n1 State=DRAIN Reason={}", REASON.replace("n2", "n1"))]);
    let events = stage.events();
    assert!(events[0].contains("event=RuntimeCheckFailed class=hardware outcome=FAIL node=n1"), "{events:?}");

    // One that is silent leaves it to the one that speaks.
    let mut stage = Stage::new(FailAction::Drain, true, ANSWER);
    stage.report.hardware = vec![xid(Action::Drain)];
    stage.acts.end(&mut stage.report);
    assert_eq!((stage.changes(), stage.events()), (Vec::new(), Vec::<String>::new()));
}

#[test]
fn what_is_only_told_or_only_retained_drains_nobody() {
    for (fail_action, action) in [(FailAction::Retain, Action::Drain), (FailAction::Drain, Action::Report)] {
        let mut stage = Stage::new(fail_action, true, ANSWER);
        stage.settled(&[xid(action)]);
        let comment = "update JobId=5 AdminComment=paid by x aimaster{n=1 requeues=0 c4d=hardware:n2/gpu1}";
        assert_eq!(stage.changes(), [comment], "{fail_action} {action:?}");
        assert_eq!(stage.acts(), []);
    }
}

#[test]
fn a_requeue_leaves_the_bad_node_out_and_is_counted() {
    let mut stage = Stage::new(FailAction::Requeue, true, ANSWER);
    stage.settled(&[xid(Action::Drain)]);
    let part = "aimaster{n=1 requeues=1 drained=n2 c4d=hardware:n2/gpu1}";
    let expected = [
        format!("update NodeName=n2 State=DRAIN Reason={REASON}"),
        "requeue Incomplete 5".to_owned(),
        "update JobId=5 ExcNodeList=n2".to_owned(),
        format!("update JobId=5 AdminComment=paid by x {part}"),
    ];
    assert_eq!(stage.changes(), expected);
    // The next run is its own agents' matter.
    stage.acts.end(&mut stage.report);
    assert_eq!(stage.changes().len(), 4);
}

#[test]
fn an_admin_s_node_is_left_alone_and_that_is_said_once() {
    let mut stage = Stage::new(FailAction::Drain, true, ANSWER);
    let taken = "NodeName=n2 Arch=x86_64\n   State=ALLOCATED+DRAIN ThreadsPerCore=1\n   Reason=fan [root@2026-11-29T15:00:00]\n";
    std::fs::write(stage.folder.path().join("node"), taken).unwrap();
    stage.settled(&[xid(Action::Drain)]);
    assert!(stage.changes().iter().all(|call| !call.contains("DRAIN")), "{:?}", stage.changes());
    let acts = stage.acts();
    assert!(acts.len() == 1 && !acts[0].0 && acts[0].1.contains("left alone"), "{acts:?}");
}

#[test]
fn nodes_that_did_not_meet_drain_nobody() {
    let mut stage = Stage::new(FailAction::Requeue, false, ANSWER);
    stage.settled(&[xid(Action::Drain)]);
    assert!(stage.changes().iter().all(|call| call.contains("AdminComment")), "{:?}", stage.changes());
    assert_eq!(stage.acts().iter().filter(|(done, what)| !done && what.contains("did not meet")).count(), 2);
}

// A deadline: the loop of an agent never waits, its end waits shorter than the epilog does.
#[test]
fn slurm_that_hangs_holds_nobody_up() {
    let mut stage = Stage::new(FailAction::Drain, true, "exec sleep 60");
    let begun = Instant::now();
    stage.look(&[xid(Action::Drain)]);
    stage.look(&[]);
    stage.look(&[xid(Action::Drain)]);
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    let begun = Instant::now();
    stage.acts.end(&mut stage.report);
    assert!(begun.elapsed() < super::super::lock::TERM_WAIT, "{:?}", begun.elapsed());
    assert_eq!(stage.acts(), []);
}

#[test]
fn the_end_is_told_as_what_it_is() {
    for (status, ranks, name) in [
        (Status::Ok, 2, "event=RuntimeCheckSucceeded ranks=2 withdrawn=0"),
        (Status::None, 0, "event=RuntimeCheckSkipped because=\"no rank came"),
    ] {
        let mut stage = Stage::new(FailAction::Drain, true, ANSWER);
        stage.report.telemetry = Telemetry { status, because: Vec::new(), ranks, refused: 0 };
        stage.look(&[]);
        stage.acts.end(&mut stage.report);
        let events = stage.events();
        assert!(events.len() == 1 && events[0].contains(name), "{events:?}");
    }
    // A thousand nodes of a job do not all say it.
    let mut stage = Stage::new(FailAction::Drain, true, ANSWER);
    stage.acts.follow(&mut stage.report, None, Instant::now());
    stage.acts.end(&mut stage.report);
    assert_eq!(stage.events(), Vec::<String>::new());
    assert!(!stage.report.spoke);
}

#[test]
fn an_event_of_the_hardware_says_how_much_it_weighs() {
    let over = HealthEvent { turn: Turn::Ended, ..xid(Action::Drain) };
    let program = HealthEvent { class: Class::Application, ..xid(Action::Report) };
    for (event, line, warning) in [
        (
            xid(Action::Drain),
            "event=RuntimeCheckFailed class=hardware outcome=FAIL node=n2 part=\"GPU 1\"",
            true,
        ),
        (xid(Action::Report), "event=RuntimeCheckFailed class=hardware outcome=SUSPECT node=n2", true),
        (program, "event=RuntimeCheckNoticed class=hardware outcome=SKIP node=n2", false),
        (over, "event=RuntimeCheckWithdrawn class=hardware outcome=FAIL node=n2", false),
    ] {
        let told = hardware_event("n2", &event);
        assert!(told.0.starts_with(line) && told.1 == warning, "{told:?}");
    }
}

/// A finding of telemetry alone about n2.
fn finding(class: diag::c4d::finding::Class) -> Finding {
    Finding {
        class,
        subject: diag::measurement::Subject::Node { node: 1 },
        suspects: Vec::new(),
        suspects_total: 1,
        operation: None,
        waiting: 1,
        compared: (2, 2),
        message: "rank 1 is late".into(),
        evidence: Vec::new(),
        confidence: 0.9,
        since_ms: 1,
        found_ms: 2,
        state: diag::c4d::finding::State::Confirmed,
    }
}

#[test]
fn another_job_s_load_drains_nobody_and_what_hangs_is_no_load() {
    use diag::c4d::finding::Class::{NonCommunicationHang, Straggler};
    for (others, class, drained) in [
        ("5|n[1-2]|", Straggler, true),
        ("5|n[1-2]|\n9|n2|", Straggler, false),
        ("5|n[1-2]|\n9|n2|", NonCommunicationHang, true),
        ("squeue: error: no", Straggler, false),
    ] {
        let answer = format!("case $0 in *squeue) printf '{others}\n';; esac\n{ANSWER}");
        let stage = Stage::new(FailAction::Drain, true, &answer);
        let folder = stage.folder.path();
        let mut policy = Policy::default();
        policy.paths.scontrol = folder.join("scontrol");
        policy.c4d.telemetry_may_drain = true;
        let case = Case::new(&order(folder, FailAction::Drain, true), &policy);
        let mut hand = Hand::new(case, Events::open(&folder.join("log"), "test", "n1", 5));
        let coverage = Coverage { known: 2, unknown: 0, gaps: Vec::new() };
        let acts = hand.round(&Standing { findings: vec![finding(class)], hardware: Vec::new(), coverage });
        assert_eq!(acts.iter().any(|act| act.done), drained, "{others} {class}: {acts:?}");
        assert_eq!(acts.iter().any(|act| act.what.contains("nothing is done about a straggler")), !drained);
        // What was found stands in the comment all the same.
        let comment = stage.changes().into_iter().find(|call| call.contains("AdminComment")).unwrap();
        assert!(comment.contains(&format!("c4d={class}:n2")), "{comment}");
    }
}

// What ranks tell is their user's word: however often it changes, a node that breaks later leaves service.
#[test]
fn rounds_for_what_ranks_tell_use_up_none_of_the_hardware_s() {
    let coverage = Coverage { known: 0, unknown: 0, gaps: Vec::new() };
    let standing = Standing { findings: Vec::new(), hardware: Vec::new(), coverage };
    let shared = Shared::default();
    let hand = |urgent: bool| {
        let mut state = shared.lock();
        state.next = Some(standing.clone());
        state.urgent |= urgent;
    };
    let kind = |may| take(&shared, may).map(|(_, kind)| kind);
    hand(false);
    assert_eq!(kind([true; 2]), Some(Kind::Told));
    // What is newer takes the place of what drains, and holds it too.
    hand(true);
    hand(false);
    assert_eq!(kind([false, true]), Some(Kind::Urgent));
    // What the controller was not asked waits for it, however long that takes.
    shared.lock().again = true;
    hand(false);
    assert_eq!(kind([false; 2]), Some(Kind::Again));
    hand(false);
    shared.lock().ending = true;
    assert_eq!(kind([false, true]), None);
    let at = |events: &[HealthEvent]| {
        let events: Vec<_> = events.iter().map(|event| (1, event.clone())).collect();
        Mark::of(&[], &events)
    };
    let (told, drains) = (at(&[xid(Action::Report)]), at(&[xid(Action::Drain)]));
    assert!(drains.drains_beside(&told) && drains.drains_beside(&Mark::default()));
    assert!(!drains.drains_beside(&drains) && !told.drains_beside(&drains));
}

// Of two nodes that speak one after the other the second knows what the first did.
#[test]
fn what_another_node_drained_counts() {
    for (drained, number, drains) in [("n1", 1, false), ("n2", 1, false), ("n1", 2, true)] {
        let mut stage = Stage::new(FailAction::Drain, true, ANSWER);
        let part = format!("AdminComment=aimaster{{n={number} requeues=0 drained={drained}}}");
        std::fs::write(stage.folder.path().join("job"), JOB.replace("AdminComment=paid by x ", &part))
            .unwrap();
        stage.settled(&[xid(Action::Drain)]);
        let changes = stage.changes();
        let drain = changes.iter().any(|change| change.contains("State=DRAIN"));
        assert_eq!(drain, drains, "{drained} in run {number}: {changes:?}");
        let refused = stage.acts().iter().any(|(_, what)| what.contains("the most for this job"));
        assert_eq!(refused, !drains && drained == "n1", "{:?}", stage.acts());
    }
}
