//! What is done, and left undone, where Slurm's commands hang, print nothing or print half, where nodes are taken
//! already, and in a job of a thousand nodes. Scripts stand for Slurm's commands.
#![allow(clippy::unwrap_used)] // the helpers of tests fail like tests

mod fake_slurm;

use std::time::Duration;

use cluster::slurm::apply::{Applied, Step, ThisRun, apply};
use cluster::slurm::scontrol::Scontrol;
use fake_slurm::{Fake, IDLE, record, run, soon, wide};
use tokio::time::Instant;

fn drain(node: &str) -> Step {
    Step::Drain { node: node.into(), reason: format!("aimaster: gemm_flops {node}") }
}

/// A scontrol that writes its calls down and does this for `show job` and `show node`.
fn answering(job: &str, node: &str) -> Fake {
    let fake = Fake::new(&format!(
        "echo \"$@\" >> $D/calls\ncase \"$1 $2\" in\n\"show job\") {job};;\n\"show node\") {node};;\nesac"
    ));
    fake.put("job", &record("JobId=5 JobName=x", "RUNNING", 0, "n[1-2]", ""));
    fake.put("node", IDLE);
    fake
}

/// The steps on n1 and n2 with little patience for each call, and half a second for a controller to come back.
async fn applied(fake: &Fake, steps: &[Step]) -> Applied {
    let (scontrol, scancel) = (fake.path("scontrol"), fake.path("scancel"));
    let impatient = Scontrol::new(scontrol, scancel, None, Duration::from_millis(300));
    apply(&impatient, &run(5), steps, Instant::now() + Duration::from_millis(2500)).await
}

fn changes(fake: &Fake) -> Vec<String> {
    fake.calls().into_iter().filter(|call| !call.starts_with("show")).collect()
}

/// In place of an answer: silence, nothing, a part, a failure after all of it.
fn useless(file: &str) -> [String; 5] {
    [
        "exec sleep 30".to_owned(),
        "true".to_owned(),
        format!("head -c 40 $D/{file}"),
        format!("cat $D/{file}; exit 1"),
        format!("cat $D/{file} >&2"),
    ]
}

// A35, C11, C23, F02: without a word of Slurm's nothing is known, and what is not known is left alone.
#[tokio::test]
async fn nothing_is_done_on_an_answer_of_no_use() {
    let steps = [drain("n2"), Step::Cancel];
    for answer in useless("job") {
        let fake = answering(&answer, "cat $D/node");
        let applied = applied(&fake, &steps).await;
        assert!(applied.outcomes.iter().all(|one| one.result.is_err()), "{answer}: {applied:?}");
        assert_eq!(changes(&fake), [""; 0], "{answer}");
    }
    for answer in useless("node") {
        let fake = answering("cat $D/job", &answer);
        let applied = applied(&fake, &steps[..1]).await;
        assert!(applied.outcomes[0].result.is_err(), "{answer}: {applied:?}");
        assert_eq!(changes(&fake), [""; 0], "{answer}");
    }
}

// F03: warnings have a channel of their own.
#[tokio::test]
async fn what_stderr_says_does_not_get_into_an_answer() {
    let noise = "echo '   JobState=CANCELLED Reason=None' >&2; echo '   State=DOWN' >&2";
    let fake = answering(&format!("{noise}; cat $D/job"), &format!("cat $D/node; {noise}"));
    let applied = applied(&fake, &[drain("n2")]).await;
    assert!(applied.outcomes[0].result.is_ok(), "{applied:?}");
    assert_eq!(
        changes(&fake),
        ["update NodeName=n2 State=DRAIN Reason=aimaster: gemm_flops n2 Comment=aimaster{"]
    );
}

// C05, C07, C21, P01: an admin's word stays, Slurm's own too, and nobody is put back into service.
#[tokio::test]
async fn a_node_that_is_taken_is_left_alone() {
    for state in [
        "State=IDLE+DRAIN",
        "State=MIXED+DRAIN",
        "State=DOWN*",
        "State=DOWN+DRAIN",
        "State=DRAINED*",
        "State=ALLOCATED+FAIL",
        "State=IDLE+DRAIN+REBOOT_ISSUED",
        "State=DRAINED^",
        "State=IDLE ThreadsPerCore=1\n   Reason=fan 3 is loud [root@2026-11-29T15:00:00]",
        "State=IDLE ThreadsPerCore=1\n   Reason=Kill task failed [root@2026-11-29T15:00:00]",
    ] {
        let fake = answering("cat $D/job", "cat $D/node");
        fake.put(
            "node",
            &format!("NodeName=n1 Arch=x86_64\n   {state}\n\nNodeName=n2 Arch=x86_64\n   State=IDLE\n"),
        );
        let applied = applied(&fake, &[drain("n1"), drain("n2")]).await;
        let words = applied.outcomes[0].result.as_ref().unwrap_err();
        assert!(words.contains("left alone"), "{state}: {words}");
        // The other one is drained all the same; no other state is ever asked for.
        let only = "update NodeName=n2 State=DRAIN Reason=aimaster: gemm_flops n2 Comment=aimaster{";
        assert_eq!(changes(&fake), [only], "{state}");
    }
}

// A fault that ended the job is a fault of its nodes all the same, as long as they are the job's.
#[tokio::test]
async fn a_job_that_is_ending_is_left_alone_and_its_nodes_are_not() {
    let steps = [
        drain("n2"),
        Step::Requeue { exclude: vec!["n2".into()], nice: None },
        Step::AdminComment { part: "aimaster{n=1 requeues=0}".into() },
    ];
    let fake = answering("cat $D/job", "cat $D/node");
    for (ending, restarts, nodes, done) in [
        (true, 0, "n[1-2]", [true, false, false]),
        // n2 is free already.
        (true, 0, "n1", [true, false, false]),
        (true, 0, "n3", [false; 3]),
        (false, 0, "n[1-2]", [false; 3]),
        (true, 1, "n[1-2]", [false; 3]),
    ] {
        fake.put("job", &record("JobId=5 JobName=x", "COMPLETING", restarts, nodes, ""));
        let this_run = ThisRun { ending, ..run(5) };
        let applied =
            apply(&fake.scontrol(), &this_run, &steps, Instant::now() + Duration::from_secs(4)).await;
        let results: Vec<bool> = applied.outcomes.iter().map(|one| one.result.is_ok()).collect();
        assert_eq!(results, done, "{applied:#?}");
    }
    assert!(fake.calls().iter().all(|call| !call.starts_with("requeue")), "{:?}", fake.calls());
}

// A34, D05: one call for each node that fails, none for those that don't, and none at all where nothing is done.
#[tokio::test]
async fn a_job_of_a_thousand_nodes_costs_as_many_calls_as_it_has_bad_nodes() {
    const BAD: u32 = 20;
    let show =
        "for node in $(seq 1000); do printf 'NodeName=n%s Arch=x\\n   State=ALLOCATED X=1\\n\\n' $node; done";
    let fake = answering("cat $D/job", show);
    fake.put("job", &record("JobId=5 JobName=x", "RUNNING", 0, "n[1-1000]", ""));
    let all: Vec<String> = (1..=1000).map(|node| format!("n{node}")).collect();
    let this_run = ThisRun::starting(5, 0, &all, wide());
    let nothing = apply(&fake.scontrol(), &this_run, &[], soon()).await;
    assert_eq!((nothing.calls, fake.calls().len()), (0, 0));

    let bad: Vec<String> = (1..=BAD).map(|node| format!("n{}", node * 50)).collect();
    let mut steps: Vec<Step> = bad.iter().map(|node| drain(node)).collect();
    steps.push(Step::Requeue { exclude: bad.clone(), nice: None });
    steps.push(Step::AdminComment { part: "aimaster{requeues=1}".into() });
    let applied = apply(&fake.scontrol(), &this_run, &steps, Instant::now() + Duration::from_secs(20)).await;
    for one in &applied.outcomes {
        assert!(one.result.is_ok(), "{one:?}");
    }
    assert_eq!(applied.calls as usize, fake.calls().len());
    // Looks at the job before, between and after, two at all the nodes, the requeue, its list, the comment.
    assert!(applied.calls <= BAD + 8, "{:#?}", fake.calls());
    // C17: when the job is back in the queue its bad nodes are out of service already.
    let calls = fake.calls();
    let requeued = calls.iter().position(|call| call.starts_with("requeue")).unwrap();
    let drained = calls.iter().rposition(|call| call.contains("State=DRAIN")).unwrap();
    assert!(drained < requeued, "{calls:#?}");
}
