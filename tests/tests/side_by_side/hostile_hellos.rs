//! Strangers on every port of a job, before and while it is checked: its report says what it says without them, and
//! the system log says that they were there.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::time::Duration;

use aimaster_tests::{ALICE, Cluster, Install, JobId, NODE_DIR, Running, product, side_by_side};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(60);

const FIRST_PORT: u32 = 45_000;
const LAST_PORT: u32 = 45_063;

/// Fewer ports than a site has: the strangers come back to each sooner.
const POLICY: &str = "
network = { port_first = 45000, port_last = 45063 }
host.seconds_per_check = 1.5
";

/// Limits that anything keeps which works at all, and two nodes have no peers to stand out from: a busy machine is not
/// looked at twice, and what a report says does not depend on how busy it is.
const BASELINES: &str = "
engine = 'host'
[[limit]]
check = 'all_reduce_2'
metric = 'busbw'
value = 0.0001
source = 'anything that works'
";

/// Lines that one node may log about strangers, however many there are: more would be an attack on the log.
const MOST_LINES: usize = 150;

/// The report without what differs between any two runs: times, values, words that hold values.
fn essence(report: &Value) -> Value {
    let items = report["items"].as_array().unwrap().iter();
    let items: Vec<Value> = items
        .map(|item| json!([item["phase"], item["check"], item["subject"], item["peers"], item["status"]]))
        .collect();
    json!({
        "outcome": report["outcome"], "action": report["action"], "nodes": report["nodes"],
        "drained": report["drained"], "errors": report["errors"], "items": items,
    })
}

fn run_job(cluster: &Cluster, job: u32) -> Value {
    let output = cluster
        .srun(["-N2", "-w", "n[1-2]", "--sanity-check=default,network_connectivity", "echo", "begun"])
        .timeout(SOON)
        .run()
        .unwrap();
    assert!(
        output.success() && output.stdout.matches("begun").count() == 2,
        "{output:?}\n{}",
        cluster.log_tails()
    );
    cluster.report(JobId(job), 1).unwrap()
}

/// A hello of the job `job`, from a node that took root of n1 for its leader.
fn recorded_hello(cluster: &Cluster, job: u32) -> String {
    let port = FIRST_PORT + job % (LAST_PORT - FIRST_PORT + 1);
    let stranger = format!("{NODE_DIR}/stranger");
    let args = [port.to_string(), "aim".into(), job.to_string(), "2".into(), "n1".into()];
    let args = [stranger, "record".into()].into_iter().chain(args);
    let recorder = cluster.command("n1", args).spawn().unwrap();
    recorder.wait_line(|line| line == "listening", SOON).unwrap();
    run_job(cluster, job);
    let line = recorder.wait_line(|line| line.starts_with("hello "), SOON).unwrap();
    line["hello ".len()..].to_owned()
}

/// Sets a stranger on n3 upon the ports of the job `job`.
fn attack(cluster: &Cluster, user: &str, job: u32, hello: &str) -> Running {
    let mut args =
        vec![format!("{NODE_DIR}/stranger"), "attack".into(), "aim".into(), job.to_string(), "2".into()];
    args.extend([FIRST_PORT.to_string(), LAST_PORT.to_string(), hello.to_owned()]);
    for node in ["n1", "n2"] {
        args.push(format!("{node}={}", cluster.address(node).unwrap()));
    }
    let stranger = cluster.command("n3", args).user(user).keep_stdin().spawn().unwrap();
    stranger.wait_line(|line| line == "attacking", SOON).unwrap();
    stranger
}

/// Ends a stranger; how many connections it made.
fn end(mut stranger: Running) -> usize {
    stranger.close_stdin();
    let output = stranger.wait(SOON).unwrap();
    output.stdout.lines().find_map(|line| line.strip_prefix("made ")).unwrap().parse().unwrap()
}

// J15: what answers on a port is not believed for that.
#[test]
fn strangers_on_every_port_change_nothing_and_are_logged() {
    let _machine = side_by_side().unwrap();
    let install = Install::from_target().unwrap().program(env!("CARGO_BIN_EXE_stranger"));
    let cluster = product::boot_with(Cluster::builder().nodes(3), install, POLICY).unwrap();

    cluster.set_baselines("host", BASELINES).unwrap();

    let calm = essence(&run_job(&cluster, 1));
    assert_eq!(calm["outcome"], "PASS");
    let hello = recorded_hello(&cluster, 2);

    // An ordinary user, and root of a node that belongs to other jobs.
    let strangers = [attack(&cluster, ALICE, 3, &hello), attack(&cluster, "root", 3, &hello)];
    let attacked = run_job(&cluster, 3);
    let made = strangers.map(end);
    assert!(made.iter().all(|made| *made > 100), "the strangers hardly came through: {made:?}");
    eprintln!("connections of strangers: {made:?}");
    assert_eq!(essence(&attacked), calm, "{}", attacked["items"]);
    assert!(cluster.drained().unwrap().is_empty());

    let log = std::fs::read_to_string(cluster.log_file("syslog.n1")).unwrap();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("job=3 ")).collect();
    let from = cluster.address("n3").unwrap();
    for why in
        ["not made with the same key", "its claim is for job", "can't be read", "longer than the limit"]
    {
        let found = lines.iter().any(|line| line.contains(&from) && line.contains(why));
        assert!(found, "{why:?} from {from}: {lines:#?}");
    }
    assert!(lines.len() < MOST_LINES, "{} lines", lines.len());
}
