//! What a finding becomes: what drains, what requeues, what is only reported.

use diag::c4d::decide::{RuntimeAction, RuntimeCase, Wanted, decide, hardware_item, line, most_drains};
use diag::c4d::finding::{Class, Finding, State};
use diag::c4d::picture::Coverage;
use diag::c4d::settings::Settings;
use diag::check::Phase;
use diag::facts::{Roster, RosterEntry};
use diag::findings::blank;
use diag::health::{self, Action, HealthEvent, Part, Turn};
use diag::job::JobView;
use diag::measurement::Subject;
use diag::policy::Policy;
use diag::request::FailAction::{self, Drain, Requeue, Retain};
use diag::topology::Leaves;
use diag::verdict::{FaultClass, Finding as Item, Outcome, Status};

fn roster() -> Roster {
    let entry = |name: &str| RosterEntry { name: name.into(), joined: None, absent_because: None };
    Roster { nodes: ["n1", "n2", "n3", "n4"].map(entry).into(), leader: 0, leaves: Leaves::default() }
}

fn batch() -> JobView {
    JobView { job_id: 12, batch: true, requeue: true, state: "RUNNING".into(), ..JobView::default() }
}

fn finding(class: Class, subject: Subject, confidence: f64) -> Finding {
    Finding {
        class,
        subject,
        suspects: Vec::new(),
        suspects_total: 1,
        operation: None,
        waiting: 3,
        compared: (4, 4),
        message: "rank 2 has not come".into(),
        evidence: vec!["its process sleeps".into()],
        confidence,
        since_ms: 1,
        found_ms: 2,
        state: State::Confirmed,
    }
}

/// A fault that the hardware itself shows.
fn xid(node: u32) -> Item {
    let subject = Subject::Gpu { node, index: 1 };
    let message = format!("n{}: GPU 1: Xid 79, the GPU has fallen off the bus", node + 1);
    let class = Some(FaultClass::Part);
    Item { class, phase: Phase::RuntimeCheck, ..blank(None, Status::Fail, subject, message) }
}

struct World {
    action: FailAction,
    may_drain: bool,
    by_site: bool,
    policy: Policy,
    job: Option<JobView>,
    coverage: Coverage,
}

impl World {
    fn new(action: FailAction) -> Self {
        Self {
            action,
            may_drain: false,
            by_site: false,
            policy: Policy::default(),
            job: Some(batch()),
            coverage: Coverage { known: 32, unknown: 0, gaps: Vec::new() },
        }
    }

    fn wants(&self, findings: &[Finding], hardware: &[Item]) -> Wanted {
        let settings = Settings { telemetry_may_drain: self.may_drain, ..Settings::default() };
        decide(RuntimeCase {
            fail_action: self.action,
            policy: &self.policy.actions,
            settings: &settings,
            by_site: self.by_site,
            job: self.job.as_ref(),
            roster: &roster(),
            findings,
            hardware,
            coverage: &self.coverage,
            job_id: 12,
            check_number: 1,
        })
    }
}

fn drained(wanted: &Wanted) -> Vec<&str> {
    wanted.drains.iter().map(|drain| drain.node.as_str()).collect()
}

fn hang() -> Finding {
    finding(Class::NonCommunicationHang, Subject::Gpu { node: 2, index: 1 }, 0.9)
}

#[test]
fn telemetry_alone_is_reported_and_acts_only_where_the_policy_lets_it() {
    for action in [Retain, Drain, Requeue] {
        let wanted = World::new(action).wants(&[hang()], &[]);
        assert_eq!((wanted.verdict.outcome, &wanted.job), (Outcome::Fail, &RuntimeAction::Keep), "{action}");
        assert!(wanted.drains.is_empty(), "{action}");
        assert_eq!(wanted.verdict.findings[0].class, Some(FaultClass::Telemetry));
        assert_eq!(wanted.verdict.findings[0].phase, Phase::RuntimeCheck);
    }
    let trusting = |action| World { may_drain: true, ..World::new(action) };
    assert!(trusting(Retain).wants(&[hang()], &[]).drains.is_empty());
    let wanted = trusting(Drain).wants(&[hang()], &[]);
    assert_eq!((drained(&wanted), &wanted.job), (vec!["n3"], &RuntimeAction::Keep));
    let reason = "aimaster: c4d non_communication_hang: rank 2 has not come job=12 n=1";
    assert_eq!(wanted.drains[0].reason, reason);
    let wanted = trusting(Requeue).wants(&[hang()], &[]);
    assert_eq!(drained(&wanted), ["n3"]);
    assert_eq!(wanted.job, RuntimeAction::Requeue { exclude: vec!["n3".into()] });
    // One that is not sure is not enough.
    let doubtful = Finding { confidence: 0.45, ..hang() };
    let wanted = trusting(Requeue).wants(&[doubtful], &[]);
    assert_eq!((drained(&wanted), &wanted.job), (vec![], &RuntimeAction::Keep));
}

#[test]
fn what_is_no_part_of_a_node_acts_never() {
    let run = Subject::Run;
    let path = Subject::Path { from: 0, to: 2 };
    for (one, status, class) in [
        (finding(Class::Paused, Subject::Gpu { node: 2, index: 1 }, 0.95), Status::Skip, None),
        (finding(Class::Undecided, run.clone(), 0.3), Status::Error, None),
        (finding(Class::Deadlock, run.clone(), 0.9), Status::Suspect, None),
        (finding(Class::CommunicationHang, path.clone(), 0.9), Status::Fail, Some(FaultClass::Link)),
        (finding(Class::CommunicationSlow, Subject::Fabric, 0.9), Status::Fail, Some(FaultClass::Fabric)),
        (finding(Class::NonCommunicationHang, run, 0.9), Status::Fail, Some(FaultClass::Telemetry)),
    ] {
        let wanted = World { may_drain: true, ..World::new(Requeue) }.wants(std::slice::from_ref(&one), &[]);
        let item = &wanted.verdict.findings[0];
        assert_eq!((item.status, item.class), (status, class), "{one:?}");
        assert_eq!((drained(&wanted), &wanted.job), (vec![], &RuntimeAction::Keep), "{one:?}");
    }
}

#[test]
fn hardware_evidence_acts_by_the_request_and_the_policy() {
    let wanted = World::new(Retain).wants(&[], &[xid(1)]);
    assert_eq!((drained(&wanted), &wanted.job), (vec![], &RuntimeAction::Keep));
    let wanted = World::new(Drain).wants(&[hang()], &[xid(1)]);
    assert_eq!((drained(&wanted), &wanted.job), (vec!["n2"], &RuntimeAction::Keep));
    let wanted = World::new(Requeue).wants(&[hang()], &[xid(1)]);
    assert_eq!(drained(&wanted), ["n2"]);
    // The node that only telemetry names is not left out.
    assert_eq!(wanted.job, RuntimeAction::Requeue { exclude: vec!["n2".into()] });

    let mut strict = World::new(Drain);
    strict.policy.actions.drain_on_user_request = false;
    assert!(strict.wants(&[], &[xid(1)]).drains.is_empty());
    strict.by_site = true;
    assert_eq!(drained(&strict.wants(&[], &[xid(1)])), ["n2"]);
    strict.policy.actions.drain_on = vec![Requeue];
    assert!(strict.wants(&[], &[xid(1)]).drains.is_empty());
}

#[test]
fn over_the_cap_nobody_is_drained() {
    let wanted = World::new(Requeue).wants(&[], &[xid(0), xid(1), xid(2)]);
    assert_eq!(wanted.verdict.outcome, Outcome::Environment);
    assert_eq!((drained(&wanted), &wanted.job), (vec![], &RuntimeAction::Keep));
    assert!(wanted.verdict.summary.contains("no single node"), "{}", wanted.verdict.summary);
}

#[test]
fn a_job_that_cant_be_requeued_goes_on_and_says_why() {
    let asks = JobView { required_nodes: vec!["n2".into()], ..batch() };
    let often = JobView { admin_comment: "aimaster{n=4 outcome=FAIL requeues=3}".into(), ..batch() };
    for (job, why) in [
        (None, "controller"),
        (Some(JobView { batch: false, ..batch() }), "batch jobs only"),
        (Some(JobView { requeue: false, ..batch() }), "--no-requeue"),
        (Some(asks), "n2 by name"),
        (Some(often), "max_requeues"),
    ] {
        let wanted = World { job, ..World::new(Requeue) }.wants(&[], &[xid(1)]);
        assert_eq!(wanted.job, RuntimeAction::Keep, "{why}");
        assert!(wanted.notes[0].contains("goes on") && wanted.notes[0].contains(why), "{:?}", wanted.notes);
        assert_eq!(drained(&wanted), ["n2"], "it leaves service all the same");
    }
}

#[test]
fn what_is_not_seen_is_unknown_and_never_healthy() {
    let outcome = |known, unknown| {
        let gaps = if unknown > 0 { vec!["n3: nothing was heard of it".to_owned()] } else { Vec::new() };
        let world = World { coverage: Coverage { known, unknown, gaps }, ..World::new(Retain) };
        world.wants(&[], &[]).verdict
    };
    let whole = outcome(32, 0);
    assert_eq!((whole.outcome, whole.summary.as_str()), (Outcome::Pass, "nothing was found at 32 ranks"));
    assert_eq!(outcome(0, 0).outcome, Outcome::Error);
    let part = outcome(24, 8);
    assert_eq!(part.outcome, Outcome::Error);
    assert!(part.summary.contains("8 ranks told nothing"), "{}", part.summary);
    assert_eq!(part.notes, ["n3: nothing was heard of it"]);
}

#[test]
fn a_withdrawn_finding_is_a_note() {
    let over = Finding { state: State::Withdrawn { because: "things move again".into() }, ..hang() };
    let verdict = World::new(Drain).wants(&[over], &[xid(1)]).verdict;
    assert_eq!(verdict.findings.len(), 1);
    assert!(verdict.notes[0].contains("withdrawn: things move again"));
}

#[test]
fn the_short_line_stays_short() {
    let roster = roster();
    assert_eq!(line(&[], &[], &roster), "");
    let slow = finding(Class::Straggler, Subject::Node { node: 0 }, 0.5);
    let two = [slow.clone(), hang()];
    assert_eq!(line(&two, &[], &roster), "c4d=non_communication_hang:n3/gpu1 c4d=straggler:n1");
    let many = vec![slow; 40];
    let text = line(&many, &[], &roster);
    assert!(text.len() <= 165 && text.contains(" +3"), "{text}");
    let text = line(&two[..1], &[xid(1), xid(1)], &roster);
    assert_eq!(text, "c4d=hardware:n2/gpu1 c4d=straggler:n1");
}

#[test]
fn what_the_hardware_shows_weighs_by_its_table() {
    let event = |class, action| HealthEvent {
        part: Part::Gpu { index: 1, pci: None },
        what: "Xid 79".into(),
        class,
        action,
        turn: Turn::Began,
        words: "GPU 1: Xid 79 once".into(),
        age_ms: 5,
    };
    let broken = hardware_item(1, "n2", &event(health::Class::Gpu, Action::Drain));
    assert_eq!((broken.status, broken.class), (Status::Fail, Some(FaultClass::Part)));
    let wanted = World::new(Drain).wants(&[], &[broken]);
    assert_eq!(wanted.drains[0].reason, "aimaster: c4d hardware: n2: GPU 1: Xid 79 once job=12 n=1");
    for (class, status) in
        [(health::Class::Heat, Status::Suspect), (health::Class::Application, Status::Skip)]
    {
        let told = hardware_item(1, "n2", &event(class, Action::Report));
        assert_eq!((told.status, told.class), (status, None));
        let wanted = World { may_drain: true, ..World::new(Requeue) }.wants(&[], &[told]);
        assert_eq!((drained(&wanted), &wanted.job), (vec![], &RuntimeAction::Keep));
    }
    assert_eq!(
        (most_drains(&Policy::default().actions, 1), most_drains(&Policy::default().actions, 100)),
        (1, 4)
    );
}
