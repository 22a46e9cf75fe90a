//! What is done about a verdict: by action, kind of job, policy and cap.

use std::collections::BTreeSet;

use crate::simulated::noise::Noise;
use crate::simulated::{Job, Run};
use diag::action::{Case, Decision, JobAction, decide};
use diag::check::CheckName::{self, AllReduce2, GemmFlops, NetworkConnectivity};
use diag::conclude::Caps;
use diag::job::JobView;
use diag::measurement::Subject;
use diag::policy::{ControllerLost, Policy, Undecided};
use diag::request::FailAction::{self, Drain, Fail, Requeue, Retain};
use diag::verdict::{Finding, Outcome, Status};

fn batch() -> JobView {
    JobView { job_id: 12, batch: true, requeue: true, state: "RUNNING".into(), ..JobView::default() }
}

fn run(job: &Job) -> Run {
    run_under(job, &[GemmFlops, AllReduce2], &Policy::default())
}

fn run_under(job: &Job, checks: &[CheckName], Policy { actions, .. }: &Policy) -> Run {
    let caps =
        Caps { max_drain_nodes: actions.max_drain_nodes, max_drain_fraction: actions.max_drain_fraction };
    job.run_with(checks, caps)
}

fn decision(job: &Job, view: Option<&JobView>, action: FailAction, policy: &Policy) -> Decision {
    decision_on(job, &[GemmFlops, AllReduce2], view, action, policy)
}

fn decision_on(
    job: &Job,
    checks: &[CheckName],
    view: Option<&JobView>,
    action: FailAction,
    policy: &Policy,
) -> Decision {
    let done = run_under(job, checks, policy);
    decide(Case {
        fail_action: action,
        site_checks: &BTreeSet::new(),
        policy: &policy.actions,
        job: view,
        unread: false,
        roster: &job.roster(),
        verdict: &done.verdict,
        job_id: 12,
        check_number: 1,
    })
}

fn slow_third() -> Job {
    Job { slow_network: [2].into(), noise: Noise::default(), ..Job::of(4) }
}

fn drained(decision: &Decision) -> Vec<&str> {
    decision.drains.iter().map(|drain| drain.node.as_str()).collect()
}

#[test]
fn each_action_does_what_the_manual_says_for_a_batch_job() {
    let policy = Policy::default();
    for (action, job, nodes) in [
        (Retain, JobAction::Start, vec![]),
        (Drain, JobAction::Start, vec!["n3"]),
        (Fail, JobAction::End { cancel: false }, vec!["n3"]),
        (Requeue, JobAction::Requeue { exclude: vec!["n3".into()] }, vec!["n3"]),
    ] {
        let done = decision(&slow_third(), Some(&batch()), action, &policy);
        assert_eq!((&done.job, drained(&done)), (&job, nodes), "{action:?}");
    }
}

// C06, P06.
#[test]
fn the_reason_can_be_read_and_parsed() {
    let done = decision(&slow_third(), Some(&batch()), Fail, &Policy::default());
    assert_eq!(done.drains[0].reason, "aimaster: all_reduce_2 n3 0.002<0.05GB/s job=12 n=1");
    let wrong = Job { wrong: [1].into(), ..Job::of(4) };
    let done = decision(&wrong, Some(&batch()), Fail, &Policy::default());
    assert_eq!(done.drains[0].reason, "aimaster: gemm_flops n2 wrong result job=12 n=1");
    assert_eq!(done.comment.as_deref(), Some("aimaster{n=1 outcome=FAIL requeues=0 drained=n2}"));
}

// C18.
#[test]
fn interactive_jobs_are_cancelled_because_they_cannot_be_requeued() {
    let interactive = JobView { batch: false, ..batch() };
    for action in [Fail, Requeue] {
        let done = decision(&slow_third(), Some(&interactive), action, &Policy::default());
        assert_eq!(done.job, JobAction::End { cancel: true });
        assert_eq!(done.notes.is_empty(), action == Fail, "{:?}", done.notes);
    }
}

// C14, C18.
#[test]
fn a_requeue_that_is_not_possible_ends_the_job_and_says_why() {
    let cases = [
        (JobView { requeue: false, ..batch() }, "--no-requeue"),
        (JobView { required_nodes: vec!["n1".into(), "n3".into()], ..batch() }, "asks for n3 by name"),
        (JobView { admin_comment: "x aimaster{n=4 outcome=FAIL requeues=3}".into(), ..batch() }, "3 times"),
    ];
    for (view, words) in cases {
        let done = decision(&slow_third(), Some(&view), Requeue, &Policy::default());
        assert_eq!(done.job, JobAction::End { cancel: false });
        assert!(done.notes[0].contains(words), "{:?}", done.notes);
        assert_eq!(drained(&done), ["n3"], "the node is bad all the same");
    }
    // Restarts for other reasons count nothing.
    let view = JobView { restarts: 9, admin_comment: "aimaster{requeues=2}".into(), ..batch() };
    let done = decision(&slow_third(), Some(&view), Requeue, &Policy::default());
    assert!(matches!(done.job, JobAction::Requeue { .. }));
    assert!(done.comment.unwrap().contains("requeues=3"));
}

#[test]
fn a_component_of_a_heterogeneous_job_is_ended_through_its_leader() {
    let view = JobView { het_job_id: Some(10), ..batch() };
    let done = decision(&slow_third(), Some(&view), Fail, &Policy::default());
    assert_eq!(done.job, JobAction::End { cancel: true });
    assert_eq!(view.target(), "10");
}

// A17.
#[test]
fn one_task_of_an_array_is_addressed_as_a_task() {
    let view = JobView { array_job_id: Some(12), array_task_id: Some(3), ..batch() };
    assert_eq!(view.target(), "12_3");
}

#[test]
fn a_bad_link_drains_nobody_and_a_requeue_leaves_out_one_end() {
    let job = Job { slow_links: [(0, 1)].into(), ..Job::of(4) };
    let done = decision(&job, Some(&batch()), Requeue, &Policy::default());
    assert_eq!(done.job, JobAction::Requeue { exclude: vec!["n2".into()] });
    assert_eq!(drained(&done), Vec::<&str>::new());
}

#[test]
fn fabric_and_environment_never_requeue_and_never_drain() {
    let everybody = Job { slow_network: (0..4).collect(), ..Job::of(4) };
    for (action, rule, expected) in [
        (Requeue, None, JobAction::End { cancel: false }),
        (Retain, None, JobAction::Start),
        (Requeue, Some(Undecided::Start), JobAction::Start),
        (Retain, Some(Undecided::Fail), JobAction::End { cancel: false }),
    ] {
        let mut policy = Policy::default();
        policy.actions.on_environment = rule;
        let done = decision(&everybody, Some(&batch()), action, &policy);
        assert_eq!(done.job, expected, "{action:?} {rule:?}");
        assert_eq!(drained(&done), Vec::<&str>::new());
    }
}

#[test]
fn errors_and_suspects_start_unless_the_policy_says_otherwise() {
    let absent = Job { absent: [3].into(), ..Job::of(4) };
    let suspect = Job { slow_network: [0].into(), ..Job::of(2) };
    let mut strict = Policy::default();
    strict.actions.on_error = Undecided::Fail;
    strict.actions.on_suspect = Undecided::Fail;
    for (job, outcome) in [(absent, Outcome::Error), (suspect, Outcome::Suspect)] {
        assert_eq!(run(&job).verdict.outcome, outcome);
        let done = decision(&job, Some(&batch()), Requeue, &Policy::default());
        assert_eq!(done.job, JobAction::Start);
        let done = decision(&job, Some(&batch()), Requeue, &strict);
        assert_eq!(done.job, JobAction::End { cancel: false });
        assert_eq!(drained(&done), Vec::<&str>::new());
    }
}

#[test]
fn an_absent_node_is_left_out_of_a_requeue_for_another_reason() {
    let job = Job { slow_network: [2].into(), absent: [4].into(), ..Job::of(6) };
    let done = decision(&job, Some(&batch()), Requeue, &Policy::default());
    assert_eq!(done.job, JobAction::Requeue { exclude: vec!["n3".into(), "n5".into()] });
    assert_eq!(drained(&done), ["n3"]);
}

#[test]
fn a_site_may_forbid_drains_on_a_users_word() {
    let mut policy = Policy::default();
    policy.actions.drain_on_user_request = false;
    let done = decision(&slow_third(), Some(&batch()), Fail, &policy);
    assert_eq!(drained(&done), Vec::<&str>::new());
    assert_eq!(done.job, JobAction::End { cancel: false });
}

#[test]
fn without_a_word_from_the_controller_a_requeue_is_what_the_policy_says() {
    let mut policy = Policy::default();
    let done = decision(&slow_third(), None, Requeue, &policy);
    assert_eq!(done.job, JobAction::Start);
    assert!(done.notes[0].contains("controller"), "{:?}", done.notes);
    policy.actions.on_controller_lost = ControllerLost::Hold;
    let done = decision(&slow_third(), None, Requeue, &policy);
    assert_eq!(done.job, JobAction::End { cancel: false });
    // To fail, a job needs the gate only.
    assert_eq!(decision(&slow_third(), None, Fail, &policy).job, JobAction::End { cancel: false });
}

#[test]
fn a_heterogeneous_batch_job_fails_through_the_gate_where_its_script_runs() {
    for (job_id, cancel) in [(12, false), (13, true)] {
        let view = JobView { job_id, het_job_id: Some(12), ..batch() };
        let done = decision(&slow_third(), Some(&view), Fail, &Policy::default());
        assert_eq!(done.job, JobAction::End { cancel }, "component {job_id}");
    }
}

#[test]
fn a_node_whose_ways_out_are_blocked_is_the_one_that_a_requeue_leaves_out() {
    for bad in 0..5 {
        let others = || (0..5).filter(move |node| *node != bad);
        let outward = others().map(|node| (bad, node)).collect();
        let inward = others().map(|node| (node, bad)).collect();
        for blocked in [outward, inward] {
            let job = Job { blocked, ..Job::of(5) };
            for checks in [&[AllReduce2][..], &[NetworkConnectivity], &[NetworkConnectivity, AllReduce2]] {
                let done = decision_on(&job, checks, Some(&batch()), Requeue, &Policy::default());
                let exclude = vec![format!("n{}", bad + 1)];
                assert_eq!(done.job, JobAction::Requeue { exclude }, "{checks:?} {:?}", job.blocked);
                assert_eq!(drained(&done), Vec::<&str>::new());
            }
        }
    }
}

#[test]
fn a_site_that_never_drains_still_names_the_node() {
    let mut policy = Policy::default();
    policy.actions.max_drain_nodes = 0;
    let done = decision(&slow_third(), Some(&batch()), Requeue, &policy);
    assert_eq!(done.job, JobAction::Requeue { exclude: vec!["n3".into()] });
    assert_eq!(drained(&done), Vec::<&str>::new());
    assert!(done.comment.unwrap().contains("outcome=FAIL"));
}

#[test]
fn a_job_whose_requeues_cannot_be_counted_is_not_requeued() {
    let view = JobView { admin_comment: "first\nsecond".into(), ..batch() };
    let done = decision(&slow_third(), Some(&view), Requeue, &Policy::default());
    assert_eq!(done.job, JobAction::End { cancel: false });
    assert!(done.notes[0].contains("AdminComment"), "{:?}", done.notes);
    // Nor is one whose comment is hidden by its own name; its nodes are drained all the same.
    let view = JobView { unreadable: true, ..batch() };
    let done = decision(&slow_third(), Some(&view), Requeue, &Policy::default());
    assert_eq!((done.job, done.drains.len()), (JobAction::End { cancel: false }, 1));
    assert!(done.notes[0].contains("imitates Slurm's output"), "{:?}", done.notes);
}

#[test]
fn a_requeue_leaves_out_a_node_of_which_one_gpu_could_not_be_measured() {
    let (job, policy, view) = (slow_third(), Policy::default(), batch());
    let mut done = run(&job);
    let fault = done.verdict.findings.iter().find(|one| one.status == Status::Fail).unwrap();
    let unopened =
        Finding { subject: Subject::Gpu { node: 3, index: 5 }, status: Status::Error, ..fault.clone() };
    done.verdict.findings.push(unopened);
    let done = decide(Case {
        fail_action: Requeue,
        site_checks: &BTreeSet::new(),
        policy: &policy.actions,
        job: Some(&view),
        unread: false,
        roster: &job.roster(),
        verdict: &done.verdict,
        job_id: 12,
        check_number: 1,
    });
    assert_eq!(done.job, JobAction::Requeue { exclude: vec!["n3".into(), "n4".into()] });
    assert_eq!(drained(&done), ["n3"]);
}
