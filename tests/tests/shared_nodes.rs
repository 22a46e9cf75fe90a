//! Jobs of all sizes, and several at a time on the same nodes: each gets its own verdict, and nobody is blamed for
//! the others' load.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::collections::BTreeSet;
use std::time::Duration;

use aimaster_tests::{Cluster, JobId, product, serial};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(90);

/// Short windows: many jobs share this machine.
const POLICY: &str = "host.seconds_per_check = 0.2";

/// Longer than the scheduler may take from one job's start to the next one's.
const LONG_WINDOWS: &str = "host.seconds_per_check = 1.5";

/// Tasks of the array; some nodes get several at once.
const TASKS: usize = 20;

fn statuses<'r>(report: &'r Value, check: &str) -> Vec<(&'r str, &'r str)> {
    let items = report["items"].as_array().unwrap().iter().filter(|item| item["check"] == check);
    items.map(|item| (item["status"].as_str().unwrap(), item["message"].as_str().unwrap())).collect()
}

fn assert_blames_nobody(cluster: &Cluster, report: &Value) {
    assert!(report["items"].as_array().unwrap().iter().all(|item| item["status"] != "FAIL"), "{report:#}");
    assert_eq!(report["drained"].as_array().unwrap().len(), 0, "{report:#}");
    let drained = cluster.drained().unwrap();
    assert!(drained.is_empty(), "{drained:?} {report:#}");
}

fn sizes(cluster: &Cluster) {
    for (job, nodes) in [(1, 1), (2, 3), (3, 5), (4, 6)] {
        let size = format!("-N{nodes}");
        let output = cluster.srun([&size, "--sanity-check", "hostname"]).timeout(SOON).run().unwrap();
        assert!(output.success(), "{output:?}");
        assert_eq!(output.stdout.lines().collect::<BTreeSet<_>>().len(), nodes);
        let report = cluster.report(JobId(job), 1).unwrap();
        assert_eq!(report["outcome"], "PASS", "{report:#}");
        assert_blames_nobody(cluster, &report);
        let pairs = statuses(&report, "all_reduce_2");
        if nodes == 1 {
            assert_eq!(pairs.len(), 1, "{pairs:?}");
            assert!(pairs[0].0 == "SKIP" && pairs[0].1.contains("node"), "a skip says why: {pairs:?}");
            continue;
        }
        // An odd node has no partner of its own; it meets one that has.
        assert!(pairs.len() >= nodes.div_ceil(2), "{report:#}");
        assert!(pairs.iter().all(|(status, _)| *status == "PASS"), "{pairs:?}");
        let mut met = BTreeSet::new();
        for item in report["items"].as_array().unwrap().iter().filter(|item| item["check"] == "all_reduce_2")
        {
            met.extend(item["subject"]["name"].as_str().unwrap().split('-'));
        }
        assert_eq!(met.len(), nodes, "every node met another: {met:?}");
    }
}

// Neither job's end touches the other's processes, though both are one user's.
fn two_at_once(cluster: &Cluster) {
    product::set_policy(cluster, LONG_WINDOWS).unwrap();
    let submit = || {
        let args = ["-N2", "-w", "n[1-2]", "-n2", "--sanity-check"];
        cluster.submit("srun hostname; sleep 1", args).unwrap()
    };
    let jobs = [submit(), submit()];
    let mut spans = Vec::new();
    for job in jobs {
        let record = cluster.wait_end(job, SOON).unwrap();
        assert_eq!(record.state(), "COMPLETED", "{}", cluster.job_output(job).unwrap());
        let report = cluster.report(job, 1).unwrap();
        assert_eq!(report["nodes"], serde_json::json!(["n1", "n2"]));
        assert_blames_nobody(cluster, &report);
        let time = |field: &str| report[field].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
        spans.push((time("started_at"), time("finished_at")));
    }
    assert!(spans[0].0 < spans[1].1 && spans[1].0 < spans[0].1, "they were not checked at once: {spans:?}");
    product::set_policy(cluster, POLICY).unwrap();
}

fn burst(cluster: &Cluster) {
    let array = format!("--array=0-{}", TASKS - 1);
    let script = "touch $HOME/task.$SLURM_ARRAY_TASK_ID";
    let job = cluster.submit(script, ["-N1", "-n1", &array, "--sanity-check"]).unwrap();
    let tasks = aimaster_tests::wait::until(SOON, "the array ends", || {
        let tasks = cluster.jobs(job)?;
        Ok((tasks.len() == TASKS && tasks.iter().all(|task| task.is_finished())).then_some(tasks))
    })
    .unwrap();
    for task in tasks {
        assert_eq!(task.state(), "COMPLETED", "{task:?}");
        let id = JobId(task.number("JobId").unwrap().try_into().unwrap());
        let report = cluster.report(id, 1).unwrap();
        assert_eq!(report["outcome"], "PASS", "{report:#}");
        assert_blames_nobody(cluster, &report);
        let index = task.get("ArrayTaskId");
        cluster.read_file("n1", &format!("/home/alice/task.{index}")).unwrap();
    }
}

// A03: a burst of tasks; E15: two jobs of one user at once.
#[test]
fn jobs_of_all_sizes_alone_and_together() {
    let _machine = serial().unwrap();
    let cluster = product::boot(Cluster::builder().nodes(6), POLICY).unwrap();
    sizes(&cluster);
    two_at_once(&cluster);
    burst(&cluster);
}
