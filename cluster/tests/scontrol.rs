//! `scontrol` as a child process and the actions, against scripts in its place: for states that a real Slurm
//! can't be brought into at will. The real one is used by the tests of the whole cluster.
#![allow(clippy::unwrap_used)] // the helpers of tests fail like tests

mod fake_slurm;

use std::time::Duration;

use cluster::slurm::apply::{Step, apply};
use cluster::slurm::scontrol::{Scontrol, ScontrolError};
use cluster::slurm::{queue, show};
use fake_slurm::{Fake, IDLE, record, run, soon};
use proptest::prelude::*;
use tokio::time::Instant;

// C03, C05, C17, P05: drained before the job goes back, and an admin's reason stays.
#[tokio::test]
async fn a_requeue_leaves_out_old_and_new_nodes_and_touches_nobody_elses() {
    let comment = "   AdminComment=ticket 7 aimaster{requeues=1} \n";
    let job = record(
        "JobId=5 ArrayJobId=2 ArrayTaskId=1 JobName=x JobState=FAILED y",
        "RUNNING",
        0,
        "n[1-2]",
        comment,
    );
    let fake = Fake::shows(&job, IDLE);
    let drain = |node: &str| Step::Drain { node: node.into(), reason: "aimaster: gemm_flops".into() };
    let steps = [
        Step::AdminComment { part: "aimaster{requeues=2}".into() },
        drain("n1"),
        drain("n2"),
        Step::Requeue { exclude: vec!["n2".into(), "n7".into()], nice: Some(-5) },
    ];
    let applied = apply(&fake.scontrol(), &run(5), &steps, soon()).await;
    assert_eq!(
        fake.calls(),
        [
            "show job 5",
            "update JobId=2_1 AdminComment=ticket 7 aimaster{requeues=2}",
            "show node",
            "update NodeName=n2 State=DRAIN Reason=aimaster: gemm_flops Comment=aimaster{",
            "show node",
            "show job 5",
            "requeue Incomplete 2_1",
            "update JobId=2_1 ExcNodeList=n7,n8,n2 Nice=-5",
            "show job 5",
        ]
    );
    assert_eq!(applied.calls, 9);
    let results: Vec<bool> = applied.outcomes.iter().map(|one| one.result.is_ok()).collect();
    assert_eq!(results, [true, false, true, true]);
    assert!(applied.outcomes[1].result.as_ref().unwrap_err().contains("disk is bad"));
    assert!(!applied.controller_lost && applied.after.is_some());
}

#[tokio::test]
async fn a_requeue_leaves_out_the_bad_node_however_many_the_user_leaves_out() {
    let job = record("JobId=5 JobName=x", "RUNNING", 0, "n[1-2]", "");
    let fake = Fake::shows(&job.replace("ExcNodeList=n[7-8]", "ExcNodeList=gpu[0001-4000]"), IDLE);
    let steps = [Step::Requeue { exclude: vec!["n2".into()], nice: None }];
    let applied = apply(&fake.scontrol(), &run(5), &steps, soon()).await;
    let words = applied.outcomes[0].result.as_ref().unwrap();
    let update = fake.calls().into_iter().find(|call| call.starts_with("update")).expect(words);
    assert!(update.contains("ExcNodeList=gpu0001,") && update.ends_with("gpu4000,n2"));
}

#[tokio::test]
async fn nothing_is_done_to_another_run() {
    for (state, restarts, nodes, because) in [
        ("CANCELLED", 0, "n[1-2]", "CANCELLED"),
        ("PENDING", 0, "(null)", "PENDING"),
        ("RUNNING", 1, "n[1-2]", "restarted"),
        ("RUNNING", 0, "n[2-3]", "other nodes"),
    ] {
        let fake = Fake::shows(&record("JobId=5 JobName=x", state, restarts, nodes, ""), IDLE);
        let steps = [Step::Drain { node: "n2".into(), reason: "r".into() }, Step::Cancel];
        let applied = apply(&fake.scontrol(), &run(5), &steps, soon()).await;
        assert!(fake.calls().iter().all(|call| call.starts_with("show job")), "{:?}", fake.calls());
        assert!(
            applied.outcomes.iter().all(|one| one.result.as_ref().is_err_and(|text| text.contains(because)))
        );
    }
}

#[tokio::test]
async fn past_the_deadline_nobody_acts() {
    let fake = Fake::shows(&record("JobId=5 JobName=x", "RUNNING", 0, "n[1-2]", ""), IDLE);
    let applied = apply(&fake.scontrol(), &run(5), &[Step::Cancel], Instant::now()).await;
    assert!(fake.calls().is_empty() && applied.outcomes[0].result.is_err());
}

#[tokio::test]
async fn a_controller_that_comes_back_is_waited_for() {
    let fake = Fake::new(
        "echo \"$@\" >> $D/calls\nif [ ! -e $D/up ]; then touch $D/up; \
         echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1; fi\ncat $D/job",
    );
    fake.put("job", &record("JobId=5 JobName=x", "RUNNING", 0, "n[1-2]", ""));
    let applied = apply(&fake.scontrol(), &run(5), &[Step::Notify { text: "hello".into() }], soon()).await;
    assert!(applied.outcomes[0].result.is_ok() && !applied.controller_lost, "{applied:?}");
    assert_eq!(fake.calls(), ["show job 5", "show job 5", "notify 5 hello", "show job 5"]);
}

// C01, A35.
#[tokio::test]
async fn a_controller_that_stays_away_is_reported_in_time() {
    let fake = Fake::new("echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1");
    let begin = Instant::now();
    let deadline = begin + Duration::from_millis(2500);
    let applied = apply(&fake.scontrol(), &run(5), &[Step::Cancel], deadline).await;
    assert!(applied.controller_lost && begin.elapsed() < Duration::from_secs(3));
    assert!(applied.outcomes[0].result.as_ref().is_err_and(|text| text.contains("was not reached")));
}

/// `requeue Incomplete` of a job that has just ended succeeds and does nothing.
#[tokio::test]
async fn a_requeue_that_slurm_did_not_do_is_not_called_done() {
    let fake = Fake::new(
        "echo \"$@\" >> $D/calls\n[ \"$1\" = requeue ] && cp $D/ended $D/job\n[ \"$1\" = show ] && cat $D/job || true",
    );
    fake.put("job", &record("JobId=5 JobName=x", "RUNNING", 0, "n[1-2]", ""));
    fake.put("ended", &record("JobId=5 JobName=x", "CANCELLED", 0, "n[1-2]", ""));
    let steps = [Step::Requeue { exclude: vec![], nice: None }];
    let applied = apply(&fake.scontrol(), &run(5), &steps, soon()).await;
    assert!(applied.outcomes[0].result.as_ref().is_err_and(|text| text.contains("CANCELLED")));
}

#[tokio::test]
async fn jobs_that_cannot_go_back_stay() {
    let job = record("JobId=5 JobName=x", "RUNNING", 0, "n[1-2]", "");
    for (job, because) in [
        (job.replace("BatchFlag=1", "BatchFlag=0"), "only batch jobs"),
        (job.replace("Requeue=1 ", "Requeue=0 "), "--no-requeue"),
        (job.replace("ReqNodeList=(null)", "ReqNodeList=n[1-2]"), "asks for n2 by name"),
    ] {
        let fake = Fake::shows(&job, IDLE);
        let steps = [Step::Requeue { exclude: vec!["n2".into()], nice: None }];
        let applied = apply(&fake.scontrol(), &run(5), &steps, soon()).await;
        assert!(applied.outcomes[0].result.as_ref().is_err_and(|text| text.contains(because)));
        assert!(fake.calls().iter().all(|call| call.starts_with("show")));
    }
}

// A31, A35, F03.
#[tokio::test]
async fn a_child_is_bounded_and_its_words_are_kept() {
    let slow = Fake::new("sleep 30");
    let scontrol =
        Scontrol::new(slow.path("scontrol"), slow.path("scancel"), None, Duration::from_millis(200));
    let begin = Instant::now();
    let error = scontrol.show_job(1, soon()).await.unwrap_err();
    assert!(matches!(error, ScontrolError::Timeout { .. }) && error.is_unreachable());
    assert!(begin.elapsed() < Duration::from_secs(1));
    let loud = Fake::new("yes");
    let nodes = loud.scontrol().show_nodes(&["n1".into()], soon()).await;
    assert!(matches!(nodes, Err(ScontrolError::TooMuch { .. })));
    let failing = Fake::new("echo no luck >&2; exit 3");
    let error = failing.scontrol().show_job(1, soon()).await.unwrap_err().to_string();
    assert!(
        error.contains("show job 1") && error.contains("exit status: 3") && error.contains("no luck"),
        "{error}"
    );
    // An empty answer is not "no such job".
    let empty = Fake::new("true");
    assert!(matches!(empty.scontrol().show_job(1, soon()).await, Err(ScontrolError::Output { .. })));
    let clean = Fake::new("env | grep -v -e ^LC_ALL=C -e ^TZ=UTC0 -e ^PWD= -e ^_= -e ^SHLVL= >&2; exit 1");
    assert!(clean.scontrol().show_job(1, soon()).await.unwrap_err().to_string().ends_with(": "));
}

#[tokio::test]
async fn odd_arguments_never_reach_slurm() {
    let fake = Fake::shows("", "");
    let scontrol = fake.scontrol();
    for node in ["", "-a", "n1 State=DOWN", "n1,n2", "n[1-9]", "ALL=x"] {
        assert!(scontrol.drain(&[node.to_owned()], "r", None, soon()).await.is_err());
    }
    assert!(scontrol.drain(&["n1".into()], "two\nlines", None, soon()).await.is_err());
    assert!(scontrol.drain(&["n1".into()], "r", Some("two\nlines"), soon()).await.is_err());
    assert!(scontrol.undrain(&["n1".into()], Some("two\nlines"), soon()).await.is_err());
    assert!(scontrol.notify(1, "-v", soon()).await.is_err());
    for target in ["", "_", "1_", "1+0", "-1", "1 2", "+1", "1_[0-3]"] {
        assert!(
            scontrol.requeue(target, soon()).await.is_err() && scontrol.cancel(target, soon()).await.is_err()
        );
    }
    assert!(fake.calls().is_empty());
}

#[test]
fn hostile_names_and_comments_are_not_believed() {
    let fine = record(
        "JobId=1 JobName=x JobState=FAILED Restarts=9",
        "RUNNING",
        0,
        "n[01-02]",
        "   Comment=NodeList=n9\n",
    );
    let view = show::job(&fine, 1).unwrap();
    assert_eq!((view.state.as_str(), view.restarts, view.nodes.len()), ("RUNNING", 0, 2));
    assert_eq!(view.excluded_nodes, ["n7", "n8"]);
    let odd_but_clear = record("JobId=1 JobName=two\nlines", "RUNNING", 0, "n1", "");
    assert_eq!(show::job(&odd_but_clear, 1).unwrap().state, "RUNNING");
    let name = "evil\n   JobState=COMPLETED Reason=None\n   Requeue=1 Restarts=7";
    assert!(show::job(&record(&format!("JobId=1 JobName={name}"), "RUNNING", 0, "n1", ""), 1).is_err());
    let comment = "   Comment=hi\n   NodeList=n9 \n";
    assert!(show::job(&record("JobId=1 JobName=x", "RUNNING", 0, "n1", comment), 1).is_err());
    // A whole record in the name, closed off from the real one.
    let inner = record("JobId=1 JobName=y", "COMPLETED", 0, "n9", "");
    for name in [inner.clone(), format!("z\n\n{inner}JobId=77 JobName=q")] {
        assert!(show::job(&record(&format!("JobId=1 JobName={name}"), "RUNNING", 0, "n1", ""), 1).is_err());
    }
}

#[test]
fn of_several_records_the_own_one_counts() {
    let text = record("JobId=5 ArrayJobId=2 ArrayTaskId=0 JobName=x", "RUNNING", 0, "n1", "")
        + &record(
            "JobId=2 ArrayJobId=2 ArrayTaskId=1 JobName=x",
            "RUNNING",
            3,
            "n2",
            "   AdminComment=a=b c d\nlala   x \n",
        );
    assert_eq!(show::selector(&text, 2).as_deref(), Some("2_1"));
    assert_eq!(show::selector(&text, 5).as_deref(), Some("2_0"));
    assert!(show::job(&text, 2).is_err());
    let alone = text[text.find("\nJobId=2 ").unwrap() + 1..].to_owned();
    assert_eq!(show::selector(&alone, 2), None);
    let view = show::job(&alone, 2).unwrap();
    assert_eq!((view.target().as_str(), view.restarts, view.nodes), ("2_1", 3, vec!["n2".to_owned()]));
    assert_eq!(view.admin_comment, "a=b c d\nlala   x");
    let het = record("JobId=4 HetJobId=3 HetJobOffset=1 JobName=wrap", "RUNNING", 0, "n1", "");
    assert_eq!(show::job(&het, 4).unwrap().target(), "3");
    let both = record("JobId=3 HetJobId=3 HetJobOffset=0 JobName=wrap", "RUNNING", 0, "n1", "") + &het;
    assert_eq!(show::selector(&both, 3).as_deref(), Some("3+0"));
    assert!(show::job(&text, 99).is_err());
}

// C21, P01
#[test]
fn states_are_flags_whatever_decorates_them() {
    let flags = |text| show::states(text).into_iter().collect::<Vec<_>>().join(",");
    assert_eq!(flags("IDLE+DRAIN"), "DRAIN,IDLE");
    assert_eq!(flags("DOWN*+DRAIN"), "DOWN,DRAIN,NOT_RESPONDING");
    assert_eq!(flags("IDLE~"), "IDLE,POWERED_DOWN");
    assert_eq!(flags("MIXED+CLOUD+NOT_RESPONDING+POWERING_UP"), "CLOUD,MIXED,NOT_RESPONDING,POWERING_UP");
    assert_eq!(flags("IDLE+DRAIN+REBOOT_ISSUED"), "DRAIN,IDLE,REBOOT_ISSUED");
    assert_eq!(flags("drained^"), "DRAIN,REBOOT_ISSUED");
    let node = show::node(IDLE, "n1").unwrap();
    assert_eq!(node.reason, "disk is bad");
    assert!(node.is_taken() && !show::node(IDLE, "n2").unwrap().is_taken());
    assert!(show::node(IDLE, "n").is_err() && show::node(&format!("{IDLE}\n{IDLE}"), "n1").is_err());
}

proptest! {
    /// Whatever a user puts into name and comment, the job is read rightly or not at all.
    #[test]
    fn a_user_cannot_fake_fields(
        name in "(x|\n|   JobState=COMPLETED |   NodeList=n9|   Requeue=1 Restarts=5 BatchFlag=0|JobId=1 |JobId=77 JobName=q\n|\n\n|R|   ReqNodeList=n1 ExcNodeList=n2|=| ){0,9}",
        comment in "(x|\n|   JobState=COMPLETED |   NodeList=n9|JobId=1 |JobId=2 |R|=| ){0,9}",
    ) {
        // R: a whole record.
        let inner = record("JobId=1 JobName=y", "COMPLETED", 5, "n9", "");
        let (name, comment) = (name.replace('R', &inner), comment.replace('R', &inner));
        let text = record(&format!("JobId=1 JobName={name}"), "RUNNING", 0, "n1", &format!("   Comment={comment}\n"));
        if let Ok(view) = show::job(&text, 1) {
            prop_assert_eq!(view.state, "RUNNING");
            prop_assert_eq!((view.restarts, view.batch), (0, true));
            prop_assert_eq!(view.nodes, ["n1"]);
            prop_assert!(view.required_nodes.is_empty());
        }
    }

    #[test]
    fn any_output_is_read_or_refused(text in ".{0,400}") {
        let _ = show::job(&text, 1);
        let _ = show::node(&text, "n1");
        let _ = queue::job(&text, 1);
        let _ = show::states(&text);
    }
}

#[test]
fn a_component_in_its_prologs_is_seen() {
    let of = |id: u32, state: &str| {
        let head = format!("JobId={id} HetJobId=5 HetJobOffset={} JobName=x", id - 5);
        record(&head, state, 0, "n1", "")
    };
    let prolog = |text: String| text.replace("Reason=None", "Reason=Prolog");
    let first = prolog(of(5, "RUNNING"));
    for (second, wait) in [
        (prolog(of(6, "RUNNING")), true),
        (of(6, "CONFIGURING"), true),
        (of(6, "RUNNING"), false),
        // A job that was cancelled keeps the reason.
        (prolog(of(6, "CANCELLED")), false),
        (String::new(), false),
    ] {
        assert_eq!(show::other_components_start(&format!("{first}{second}"), 5), wait, "{second}");
    }
}

#[tokio::test]
async fn the_kinds_of_gres_stand_in_slurms_own_line() {
    let shown = |line: &str| {
        let fake = Fake::new("echo \"$@\" >> $D/calls; cat $D/job");
        fake.put("job", &record("JobId=5 JobName=x", "RUNNING", 0, "n1", line));
        fake
    };
    for (line, kinds) in [
        ("   JOB_GRES=gpu:1\n", vec!["gpu"]),
        ("   JOB_GRES=gpu:h200:2,shard:3\n", vec!["gpu", "shard"]),
        ("   JOB_GRES=gres:shard:2(S:0)\n     Nodes=n1 CPU_IDs=0 Mem=0 GRES=shard:2\n", vec!["shard"]),
        ("   JOB_GRES=(null)\n", vec![]),
    ] {
        let fake = shown(line);
        let gres = fake.scontrol().job_gres(5, soon()).await.unwrap();
        assert_eq!(gres.iter().map(String::as_str).collect::<Vec<_>>(), kinds, "{line}");
        assert_eq!(fake.calls(), ["--details show job 5"]);
    }
    for line in ["", "   JOB_GRES=gpu:1\n   JOB_GRES=shard:1\n"] {
        let refused = shown(line).scontrol().job_gres(5, soon()).await;
        assert!(matches!(refused, Err(ScontrolError::Output { .. })), "{line:?}");
    }
}
