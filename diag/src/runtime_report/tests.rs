//! What the runtime report amounts to, and its words.

use super::*;
use crate::c4d::digest::Func;
use crate::c4d::finding::{Class, Operation, State};
use crate::health::{self, Action, Part};

fn who(node: NodeId, rank: u32) -> Who {
    Who { node, pid: 4000 + rank, gpu: Some(rank), task: None, rank: Some(rank) }
}

fn hang() -> Finding {
    Finding {
        class: Class::NonCommunicationHang,
        subject: Subject::Gpu { node: 1, index: 1 },
        suspects: vec![who(1, 1)],
        suspects_total: 1,
        operation: Some(Operation {
            comm: 0xab,
            name: "dp".into(),
            nranks: 4,
            func: Some(Func::AllReduce),
            seq: Some(20),
        }),
        waiting: 3,
        compared: (4, 4),
        message: "rank 1 has not come to AllReduce 20".into(),
        evidence: vec!["its process sleeps".into()],
        confidence: 0.9,
        since_ms: 20_400,
        found_ms: 31_900,
        state: State::Confirmed,
    }
}

fn slow() -> Finding {
    Finding {
        class: Class::Straggler,
        message: "rank 2 comes last".into(),
        since_ms: 5000,
        found_ms: 15_000,
        state: State::Withdrawn { because: "it keeps up again".into() },
        ..hang()
    }
}

fn event(action: Action, class: health::Class) -> HealthEvent {
    let part = Part::Gpu { index: 1, pci: None };
    let words = "GPU 1: Xid 79 once: GPU has fallen off the bus".into();
    HealthEvent { part, what: "Xid 79".into(), class, action, turn: Turn::Began, words, age_ms: 10 }
}

fn report() -> RuntimeReport {
    let at = |second: i64| Timestamp::from_second(1_700_000_000 + second).unwrap();
    RuntimeReport {
        finished: Some(Finished { at: at(60), because: "the job's epilog ended it".into() }),
        telemetry: Telemetry { status: Status::Ok, because: Vec::new(), ranks: 2, refused: 0 },
        judged: true,
        spoke: true,
        names: [(0, "n1".into()), (1, "n2".into())].into(),
        ..RuntimeReport::new("aim", 7, 1, "n1", at(0))
    }
}

fn with(change: impl FnOnce(&mut RuntimeReport)) -> RuntimeReport {
    let mut report = report();
    change(&mut report);
    report
}

// L15.
#[test]
fn nothing_seen_is_never_healthy() {
    assert_eq!(report().outcome(), Outcome::Pass);
    for status in [Status::None, Status::Unavailable] {
        let unseen = with(|report| report.telemetry.status = status);
        assert_eq!(unseen.outcome(), Outcome::Skip, "{status:?}");
    }
    assert_eq!(with(|report| report.judged = false).outcome(), Outcome::Skip);
    assert_eq!(with(|report| report.errors.push("x".into())).outcome(), Outcome::Error);
    assert_eq!(with(|report| report.withdrawn.push(slow())).outcome(), Outcome::Pass);
    assert_eq!(with(|report| report.findings.push(hang())).outcome(), Outcome::Fail);
    let shows = |action, class| with(|report| report.hardware.push(event(action, class))).outcome();
    assert_eq!(shows(Action::Drain, health::Class::Gpu), Outcome::Fail);
    assert_eq!(shows(Action::Report, health::Class::Heat), Outcome::Suspect);
    assert_eq!(shows(Action::Report, health::Class::Application), Outcome::Pass);
    let over = HealthEvent { turn: Turn::Ended, ..event(Action::Drain, health::Class::Nvlink) };
    assert_eq!(with(|report| report.hardware.push(over)).outcome(), Outcome::Pass);

    let quiet = with(|report| report.judged = false);
    let found = with(|report| report.findings.push(hang()));
    assert_eq!(joint_outcome(&[report(), quiet.clone()]), Some(Outcome::Pass));
    assert_eq!(joint_outcome(&[quiet.clone(), found]), Some(Outcome::Fail));
    assert_eq!((joint_outcome(&[]), joint_outcome(&[quiet])), (None, Some(Outcome::Skip)));
}

#[test]
fn the_text_says_what_holds_and_when() {
    let text = with(|report| {
        report.findings.push(hang());
        report.withdrawn.push(slow());
        report.elsewhere.push(OfNode { node: 1, event: event(Action::Drain, health::Class::Gpu) });
        report.blind.push("NVML does not answer".into());
        let at = report.started_at;
        report.acts.push(Act { at, done: true, what: "n2 was drained".into() });
        let delay = |from, to, mean_us, open| Delay { comm: 1, from, to, steps: 9, mean_us, open };
        report.delays.push(delay(who(0, 0), who(1, 1), 900, false));
        report.delays.push(delay(who(1, 1), who(0, 0), 0, true));
    })
    .text();
    let expected = "\
RuntimeCheck on n1: FAIL; 2 ranks told what they do; the watch ended after 60 s: the job's epilog ended it
  FAIL    non_communication_hang: rank 1 has not come to AllReduce 20
          n2/gpu1; since 20.4 s, found 31.9 s; confidence 90 %; 3 wait, communicator 0xab \"dp\" of 4 ranks
          suspect: rank 1 on n2, process 4001, GPU 1
          - its process sleeps
  withdrawn straggler: rank 2 comes last (since 5.0 s; it keeps up again)
  FAIL    hardware of n2: GPU 1: Xid 79 once: GPU has fallen off the bus
  done: n2 was drained
  not seen: NVML does not answer
  delays: what a step of the network waits, us; senders down, receivers across, the worst of those looked into
                   n1/gpu0     n2/gpu1
       n1/gpu0           .         900
       n2/gpu1       stuck           .
  time line, seconds after 2023-11-14T22:13:20Z
        5.0 began: straggler n2/gpu1
       15.0 found: straggler n2/gpu1, withdrawn later
       20.4 began: non_communication_hang n2/gpu1
       31.9 found: non_communication_hang n2/gpu1
";
    assert_eq!(text, expected);
}

#[test]
fn what_a_file_claims_can_t_move_the_cursor_or_take_memory() {
    let text = with(|report| {
        report.findings.push(Finding { message: "a\u{1b}[2Jb\nRuntimeCheck on n9: PASS".into(), ..hang() });
        report.names.insert(NodeId::MAX, "far".into());
        report.blind = vec!["x".into(); MOST_ENTRIES];
    })
    .text();
    assert!(
        !text.contains('\u{1b}') && !text.lines().skip(1).any(|line| line.starts_with("Runtime")),
        "{text}"
    );
    assert!(text.contains("1000 things that were not seen in all") && text.lines().count() < 60, "{text}");
}

#[test]
fn news_is_told_once() {
    let first = with(|report| {
        report.telemetry.status = Status::None;
        report.finished = None;
    });
    assert_eq!(first.news(None), ["telemetry: no rank came yet"]);
    assert_eq!(first.news(Some(&first)), Vec::<String>::new());
    let second = RuntimeReport { telemetry: report().telemetry, findings: vec![hang()], ..first.clone() };
    let told = second.news(Some(&first));
    assert_eq!(told.len(), 2, "{told:?}");
    assert_eq!(
        told[1],
        "FAIL non_communication_hang: rank 1 has not come to AllReduce 20 (since 20.4 s) [rank 1 on n2, process 4001, GPU 1]"
    );
    let mut third = RuntimeReport { findings: Vec::new(), withdrawn: vec![slow()], ..second.clone() };
    third.hardware.push(event(Action::Drain, health::Class::Gpu));
    third.acts.push(Act {
        at: third.started_at,
        done: false,
        what: "drain of n2: it is DRAIN already".into(),
    });
    let told = third.news(Some(&second));
    assert_eq!(told.len(), 3, "{told:?}");
    assert!(
        told[0].starts_with("withdrawn straggler") && told[1].starts_with("FAIL    hardware of n1"),
        "{told:?}"
    );
    let mut aged = third.clone();
    aged.hardware[0].age_ms += 1000;
    assert_eq!(aged.news(Some(&third)), Vec::<String>::new());
    aged.finished = report().finished;
    assert_eq!(aged.news(Some(&third)), ["the watch ended: the job's epilog ended it"]);
}

#[test]
fn an_older_file_is_read() {
    let mut value = serde_json::to_value(report()).unwrap();
    for later in ["spoke", "hardware", "elsewhere", "blind", "delays", "acts", "names"] {
        value.as_object_mut().unwrap().remove(later);
    }
    let read: RuntimeReport = serde_json::from_value(value).unwrap();
    assert_eq!(
        read,
        with(|report| {
            report.names.clear();
            report.spoke = false;
        })
    );
}
