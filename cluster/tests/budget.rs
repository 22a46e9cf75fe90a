//! The budget that all jobs share, as the leader of one of them keeps it: what is over it is not drained, and what others
//! drained at the same moment leaves no room for is given back, unless an admin was there. Scripts stand for Slurm's
//! commands.
#![allow(clippy::unwrap_used)] // the helpers of tests fail like tests

mod fake_slurm;

use std::time::Duration;

use cluster::slurm::apply::{Applied, Step, ThisRun, apply, apply_then};
use diag::action::drains::Kind;
use diag::policy::Budget;
use fake_slurm::{Fake, record};
use tokio::time::Instant;

const OURS: &str = "aimaster: gemm_flops n2 5<10TFLOP/s job=5 n=1";

fn node(name: &str, state: &str, reason: &str, at: &str) -> String {
    let reason = if reason.is_empty() { String::new() } else { format!("   Reason={reason} [root@{at}]\n") };
    // In its place stands what the drain wrote.
    let comment = if reason.contains(OURS) { "   Comment=@C@\n" } else { "" };
    format!("NodeName={name} Arch=x86_64\n   State={state} ThreadsPerCore=1\n{comment}{reason}\n")
}

fn healthy(names: &[&str]) -> String {
    names.iter().map(|name| node(name, "ALLOCATED", "", "")).collect()
}

/// A scontrol that shows `before` until something is drained, then `after`. The file `lost` is what happens in place of
/// the first call that it names.
fn slurm(before: &str, after: &str) -> Fake {
    let fake = Fake::new(
        "echo \"$@\" >> $D/calls\nif [ -e $D/lost ]; then . $D/lost; fi\n\
         drained() { c=$(printf '%s' \"$*\" | sed -n 's/.* Comment=//p'); sed \"s|@C@|$c|\" $D/after > $D/node; }\n\
         case \"$1 $2\" in\n\"show job\") cat $D/job;;\n\"show node\") cat $D/node;;\n\
         *) case \"$*\" in *State=DRAIN*) drained \"$@\"; touch $D/drained;; esac;;\nesac",
    );
    fake.put("job", &record("JobId=5 JobName=x", "RUNNING", 0, "n[1-2]", ""));
    fake.put("node", before);
    fake.put("after", after);
    fake
}

fn this_run(held_nodes: u32) -> ThisRun {
    let budget = Budget { held_nodes, held_fraction: 1.0, ..Budget::default() };
    ThisRun::starting(5, 0, &["n1".into(), "n2".into()], budget)
}

fn drain() -> Step {
    Step::Drain { node: "n2".into(), reason: OURS.into() }
}

fn later() -> Instant {
    Instant::now() + Duration::from_secs(8)
}

fn updates(fake: &Fake) -> Vec<String> {
    fake.calls().into_iter().filter(|call| call.starts_with("update NodeName")).collect()
}

fn kinds(applied: &Applied) -> Vec<Kind> {
    applied.withheld.iter().map(|one| one.kind).collect()
}

// D01.
#[tokio::test]
async fn what_is_over_the_budget_stays_in_service_and_the_rest_follows_from_that() {
    let before = healthy(&["n1", "n2", "n3"])
        + &node("n4", "IDLE+DRAIN", "aimaster: x job=1 n=1", "2026-11-29T15:00:00");
    let fake = slurm(&before, "");
    let rest = |so_far: &Applied| {
        assert_eq!(kinds(so_far), [Kind::Budget]);
        vec![Step::Notify { text: so_far.withheld[0].words.clone() }]
    };
    let applied = apply_then(&fake.scontrol(), &this_run(1), &[drain()], rest, later()).await;
    assert_eq!(updates(&fake), [""; 0]);
    let words = applied.outcomes[0].result.as_ref().unwrap_err();
    assert!(words.contains("held back by the drain budget: 1 of the 4 nodes of partition main"), "{words}");
    assert!(applied.outcomes[1].result.is_ok());
    // No second look where nothing was drained.
    assert_eq!(applied.calls, 4, "{:?}", fake.calls());
}

#[tokio::test]
async fn a_drain_that_others_leave_no_room_for_is_given_back() {
    let now = "2026-11-29T15:00:01";
    let before = healthy(&["n1", "n2", "n3"]);
    let other = node("n3", "IDLE+DRAIN", "aimaster: y job=6 n=1", "2026-11-29T15:00:00");
    let after = healthy(&["n1"]) + &node("n2", "ALLOCATED+DRAIN", OURS, now) + &other;
    let fake = slurm(&before, &after);
    let applied = apply(&fake.scontrol(), &this_run(1), &[drain()], later()).await;
    assert_eq!(
        updates(&fake),
        [
            &format!("update NodeName=n2 State=DRAIN Reason={OURS} Comment=aimaster{{"),
            "update NodeName=n2 State=UNDRAIN Comment=",
        ]
    );
    assert_eq!(kinds(&applied), [Kind::Budget]);
    assert!(applied.outcomes[0].result.as_ref().is_err_and(|words| words.starts_with("given back")));
    // Whoever was first keeps his.
    let earlier = healthy(&["n1"]) + &node("n2", "ALLOCATED+DRAIN", OURS, "2026-11-29T14:59:59") + &other;
    let fake = slurm(&before, &earlier);
    let applied = apply(&fake.scontrol(), &this_run(1), &[drain()], later()).await;
    assert!(applied.outcomes[0].result.is_ok() && updates(&fake).len() == 1, "{:?}", fake.calls());
    // One whose reason an admin changed meanwhile is not given back: it is his.
    let noted = format!("{OURS}; a new one is ordered");
    let taken = healthy(&["n1"]) + &node("n2", "ALLOCATED+DRAIN", &noted, now) + &other;
    let fake = slurm(&before, &taken);
    apply(&fake.scontrol(), &this_run(1), &[drain()], later()).await;
    assert_eq!(updates(&fake).len(), 1, "{:?}", fake.calls());
}

// A35: who can't see, does not guess.
#[tokio::test]
async fn without_a_look_nothing_is_drained_and_without_a_second_one_nothing_is_given_back() {
    let fake = slurm("", "");
    let applied = apply(&fake.scontrol(), &this_run(9), &[drain()], later()).await;
    assert!(applied.outcomes[0].result.is_err() && updates(&fake).is_empty());
    let fake = slurm(&healthy(&["n1", "n2"]), "");
    let applied = apply(&fake.scontrol(), &this_run(9), &[drain()], later()).await;
    assert!(applied.outcomes[0].result.is_ok() && applied.withheld.is_empty());
    assert_eq!(updates(&fake).len(), 1);
}

/// Another job's drain, which was first; ours of n2 beside it.
fn full() -> String {
    node("n1", "IDLE+DRAIN", "aimaster: y job=6 n=1", "2026-11-29T15:00:00")
        + &node("n2", "ALLOCATED+DRAIN", OURS, "2026-11-29T15:00:01")
}

fn requeue() -> Step {
    Step::Requeue { exclude: vec!["n2".into()], nice: None }
}

// The time that is left when the checks used up theirs.
#[tokio::test]
async fn a_deadline_that_is_near_leaves_time_to_give_back_and_to_the_job() {
    const NEAR: Duration = Duration::from_secs(2);
    let fake = slurm(&healthy(&["n1", "n2"]), &full());
    let begin = Instant::now();
    let applied = apply(&fake.scontrol(), &this_run(1), &[drain(), requeue()], begin + NEAR).await;
    assert!(begin.elapsed() < NEAR + Duration::from_millis(200), "{:?}", begin.elapsed());
    assert_eq!(updates(&fake).len(), 2, "{:?}", fake.calls());
    assert!(applied.outcomes[1].result.is_ok() && !applied.controller_lost, "{applied:?}");

    // A second look that hangs takes half of it at most.
    let fake = slurm(&healthy(&["n1", "n2"]), &full());
    std::fs::rename(fake.path("sinfo"), fake.path("answers")).unwrap();
    let folder = fake.folder.path().display();
    fake.program(
        "sinfo",
        &format!("if [ -e {folder}/drained ]; then exec sleep 30; fi\nexec {folder}/answers"),
    );
    let applied = apply(&fake.scontrol(), &this_run(1), &[drain(), requeue()], Instant::now() + NEAR).await;
    let results: Vec<bool> = applied.outcomes.iter().map(|one| one.result.is_ok()).collect();
    assert_eq!(results, [true, true], "{applied:?}");
    assert!(!applied.controller_lost && applied.withheld.is_empty());
    assert_eq!(updates(&fake).len(), 1, "{:?}", fake.calls());
}

/// In place of a call: this is done, and the caller hears nothing of it.
fn lose(fake: &Fake, call: &str, meanwhile: &str) {
    let lost = format!(
        "case \"$*\" in *State={call}*) mv $D/lost $D/was; {meanwhile}\n\
         echo 'slurm_update error: Socket timed out on send/recv operation' >&2; exit 1;; esac"
    );
    fake.put("lost", &lost);
}

// C05, C11: after a call that was lost an admin may have been there.
#[tokio::test]
async fn a_drain_that_was_lost_is_tried_again_only_after_a_new_look() {
    let ours = healthy(&["n1"]) + &node("n2", "ALLOCATED+DRAIN", OURS, "2026-11-29T15:00:01");
    let admin = healthy(&["n1"]) + &node("n2", "ALLOCATED+DRAIN", "fan 3 is loud", "2026-11-29T15:00:01");
    let effect = "c=$(printf '%s' \"$*\" | sed -n 's/.* Comment=//p'); sed \"s|@C@|$c|\" $D/after > $D/node";
    for (meanwhile, drains, done) in [("true", 2, true), (effect, 1, true), ("cp $D/admin $D/node", 1, false)]
    {
        let fake = slurm(&healthy(&["n1", "n2"]), &ours);
        fake.put("admin", &admin);
        lose(&fake, "DRAIN", meanwhile);
        let applied = apply(&fake.scontrol(), &this_run(9), &[drain()], later()).await;
        assert_eq!(updates(&fake).len(), drains, "{meanwhile}: {:?}", fake.calls());
        assert_eq!(applied.outcomes[0].result.is_ok(), done, "{meanwhile}: {applied:?}");
        assert!(!applied.controller_lost);
    }
    // It ends, and then the controller was not there for it.
    let fake = slurm(&healthy(&["n1", "n2"]), &ours);
    fake.put(
        "lost",
        "case \"$*\" in *State=DRAIN*) echo 'Unable to contact slurm controller' >&2; exit 1;; esac",
    );
    let applied = apply(&fake.scontrol(), &this_run(9), &[drain()], later()).await;
    assert_eq!(updates(&fake).len(), 3, "{:?}", fake.calls());
    assert!(applied.controller_lost && applied.outcomes[0].result.is_err(), "{applied:?}");
}

// C05, C11.
#[tokio::test]
async fn a_node_is_given_back_again_only_if_it_is_still_as_it_was_drained() {
    let idle = full().replace("ALLOCATED+DRAIN", "ALLOCATED");
    for (meanwhile, undrains, given) in [
        ("true", 2, true),
        ("cp $D/idle $D/node", 1, true),
        ("sed -i 's/n2 5<10TFLOP/n2 ask Bob 5<10TFLOP/' $D/node", 1, false),
        ("sed -i 's/Comment=/Comment=ask Bob /' $D/node", 1, false),
    ] {
        let fake = slurm(&healthy(&["n1", "n2"]), &full());
        fake.put("idle", &idle);
        lose(&fake, "UNDRAIN", meanwhile);
        let applied = apply(&fake.scontrol(), &this_run(1), &[drain()], later()).await;
        let calls = updates(&fake);
        let undrained = calls.iter().filter(|call| call.contains("State=UNDRAIN")).count();
        assert_eq!((calls.len(), undrained), (1 + undrains, undrains), "{meanwhile}: {:?}", fake.calls());
        assert_eq!(applied.outcomes[0].result.is_err(), given, "{meanwhile}: {applied:?}");
        assert_eq!(kinds(&applied).len(), usize::from(given));
        assert!(!applied.controller_lost);
    }
}
