//! A job whose record in scontrol's output can't be believed is looked up with squeue, against scripts in their place.
#![allow(clippy::unwrap_used)] // the helpers of tests fail like tests

mod fake_slurm;

use std::time::Duration;

use cluster::slurm::apply::{Step, apply};
use cluster::slurm::queue;
use cluster::slurm::scontrol::{Scontrol, ScontrolError};
use fake_slurm::{Fake, IDLE, record, run, soon};
use tokio::time::Instant;

/// A record that its own name makes unreadable.
fn hidden() -> String {
    record("JobId=5 JobName=x\n   JobState=RUNNING Reason=None", "RUNNING", 0, "n[1-2]", "")
}

/// A scontrol that shows such a record, and a squeue.
fn hiding(squeue: &str) -> Fake {
    let fake = Fake::shows(&hidden(), IDLE);
    let folder = fake.folder.path().display().to_string();
    fake.program("squeue", &format!("D={folder}\necho \"queue $7\" >> $D/calls\n{squeue}"));
    fake
}

const QUEUED: &str = "echo '5|5|N/A|N/A|RUNNING|0|0|1|n[1-2]|'";

#[tokio::test]
async fn a_name_with_line_breaks_hides_no_job() {
    let fake = hiding(QUEUED);
    let steps = [
        Step::Drain { node: "n2".into(), reason: "aimaster: gemm_flops".into() },
        Step::Notify { text: "hello".into() },
        Step::Requeue { exclude: vec!["n2".into()], nice: None },
        Step::AdminComment { part: "aimaster{requeues=1}".into() },
        Step::Cancel,
    ];
    let applied = apply(&fake.scontrol(), &run(5), &steps, soon()).await;
    let done: Vec<bool> = applied.outcomes.iter().map(|one| one.result.is_ok()).collect();
    assert_eq!(done, [true, true, false, false, true], "{:?}", applied.outcomes);
    assert_eq!(
        fake.calls(),
        [
            "show job 5",
            "queue 5",
            "show node",
            "update NodeName=n2 State=DRAIN Reason=aimaster: gemm_flops Comment=aimaster{",
            "show node",
            "notify 5 hello",
            "queue 5", // the record is not asked for again
            "queue 5",
            "cancel 5",
            "queue 5",
        ]
    );
    // Batch or not, its comment is unknown: it never goes back to the queue.
    let batch = hiding(&QUEUED.replace("|0|0|1|", "|0|1|1|"));
    let applied = apply(&batch.scontrol(), &run(5), &steps[2..4], soon()).await;
    assert!(
        applied
            .outcomes
            .iter()
            .all(|one| { one.result.as_ref().is_err_and(|text| text.contains("imitates Slurm's output")) })
    );
    assert!(batch.calls().iter().all(|call| call.starts_with("show job") || call.starts_with("queue")));
}

#[tokio::test]
async fn what_squeue_says_of_another_run_stops_the_actions() {
    for (line, because) in [
        ("5|5|N/A|N/A|CANCELLED|0|0|1|n[1-2]|", "CANCELLED"),
        ("5|5|N/A|N/A|RUNNING|1|0|1|n[1-2]|", "restarted"),
        ("5|5|N/A|N/A|RUNNING|0|0|1|n[1-3]|", "other nodes"),
        ("6|6|N/A|N/A|RUNNING|0|0|1|n[1-2]|", "says nothing of job 5"),
        ("5|5|N/A|N/A|RUNNING|0|0|1|n[1-2]|\n5|5|N/A|N/A|RUNNING|0|0|1|n[1-2]|", "more than once"),
    ] {
        let fake = hiding(&format!("printf '{line}\\n'"));
        let applied = apply(&fake.scontrol(), &run(5), &[Step::Cancel], soon()).await;
        let result = &applied.outcomes[0].result;
        assert!(result.as_ref().is_err_and(|text| text.contains(because)), "{line}: {result:?}");
        assert!(!fake.calls().iter().any(|call| call.starts_with("cancel")) && !applied.controller_lost);
    }
}

#[tokio::test]
async fn squeue_is_bounded_and_its_failures_have_names() {
    let ask = async |fake: &Fake| fake.scontrol().show_job(5, soon()).await.unwrap_err();
    let slow = hiding("exec sleep 30");
    let brief = Scontrol::new(slow.path("scontrol"), slow.path("scancel"), None, Duration::from_millis(300));
    let begin = Instant::now();
    let error = brief.show_job(5, soon()).await.unwrap_err();
    assert!(error.is_unreachable() && !error.is_unread(), "{error}");
    assert!(begin.elapsed() < Duration::from_secs(2));
    let away = hiding("echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1");
    assert!(ask(&away).await.is_unreachable());
    for (squeue, because) in [
        ("exec yes", "4 MiB"),
        ("echo no luck >&2; exit 3", "no luck"),
        ("true", "says nothing of job 5"),
        ("echo '5|RUNNING|'", "unreadable line"),
    ] {
        let error = ask(&hiding(squeue)).await;
        assert!(error.is_unread() && !error.is_unreachable(), "{error}");
        let text = error.to_string();
        assert!(text.contains("JobState more than once") && text.contains(because), "{text}");
    }
    // No squeue beside scontrol.
    let error = ask(&Fake::shows(&hidden(), IDLE)).await;
    assert!(error.is_unread() && error.to_string().contains("can't run"), "{error}");
    // Records without end, as long names of many tasks can make them.
    let loud = hiding(QUEUED);
    loud.program("scontrol", "exec yes");
    assert_eq!(loud.scontrol().show_job(5, soon()).await.unwrap().nodes, ["n1", "n2"]);
    // A job that is gone is gone: squeue is not asked.
    let gone = hiding(QUEUED);
    gone.put("job", "");
    assert!(matches!(ask(&gone).await, ScontrolError::Output { .. }));
    assert_eq!(gone.calls(), ["show job 5"]);
}

// C22: no field has a width, and what was cut all the same is no shorter list.
#[test]
fn no_list_of_nodes_is_cut() {
    let format = queue::arguments("5")[8];
    assert!(format.split(',').all(|field| field.ends_with(":|")), "{format}");
    let names: Vec<String> = (0..2000).map(|node| format!("rack{}-gpu{node}", node % 7)).collect();
    let line = format!("5|5|N/A|N/A|RUNNING|0|1|1|{}|", names.join(","));
    assert_eq!(queue::job(&line, 5).unwrap().nodes, names);
    for end in 1..line.len() {
        assert!(queue::job(&line[..end], 5).is_err(), "{}", &line[..end]);
    }
}

#[test]
fn of_squeues_lines_the_own_one_counts() {
    let text = "2|2|3,8%2|N/A|PENDING|0|1|0||\n6|2|2|N/A|RUNNING|3|1|0|n[1,3]|\n3|3|N/A|3|CONFIGURING|0|1|1|n1|\n4|4|N/A|3|RUNNING|0|1|1|n2|\n";
    let task = queue::job(text, 6).unwrap();
    assert_eq!((task.target().as_str(), task.restarts, task.batch, task.requeue), ("2_2", 3, true, false));
    assert!(task.unreadable && task.nodes == ["n1", "n3"]);
    let rest = queue::job(text, 2).unwrap();
    assert_eq!((rest.array_job_id, rest.array_task_id, rest.is_starting()), (Some(2), None, false));
    let component = queue::job(text, 4).unwrap();
    assert_eq!(
        (component.het_job_id, component.array_job_id, component.target()),
        (Some(3), None, "3".into())
    );
    for odd in [
        "5|5|N/A|N/A|RUNNING|0|1|1|n1|x|",
        "5|5|N/A|N/A|RUNNING|0|1|1|n1",
        "5|5|N/A|N/A|RUNNING|0|1|(null)|n1|",
        "5|5|N/A|N/A|RUNNING|-1|1|1|n1|",
        "5|5|N/A|N/A|RUNNING|+1|1|1|n1|",
        "5|5|N/A|?|RUNNING|0|1|1|n1|",
        "5|5|N/A|N/A||0|1|1|n1|",
        "5|5|N/A|N/A|RUNNING|0|1|1|n[1|",
        "5|5|N/A|N/A|RUNNING|0|1|1|n1|\n\n",
        "|5|N/A|N/A|RUNNING|0|1|1|n1|",
    ] {
        assert!(queue::job(odd, 5).is_err(), "{odd}");
    }
}
