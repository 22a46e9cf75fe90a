//! A job of several nodes is judged as one: the agents bring together what their ranks tell, the first of them names who is
//! at fault, and the second does where the first is gone. The ranks are played; the plugin, its ring and the agents are
//! real.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::time::{Duration, Instant};

use aimaster_tests::c4d::{self, AGENT, FLAG, PLAYER};
use aimaster_tests::{ALICE, Cluster, JobId, Running, Signal, side_by_side, wait};
use serde_json::Value;

/// For a job to start, and for agents to be seen.
const SOON: Duration = Duration::from_secs(60);

/// From a rank's stop to its name: what the runtime check promises.
const TARGET: Duration = Duration::from_secs(15);

/// What a busy machine adds to it.
const SLACK: Duration = Duration::from_secs(10);

/// The deputy waits for the head's word for five seconds; what the rules then need runs meanwhile.
const TAKEN_OVER: Duration = Duration::from_secs(5);

/// How long a job runs well before something happens: past its first operations, and windows that are compared.
const WELL: Duration = Duration::from_secs(8);

const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];

/// Ranks are dealt out in blocks of two.
const RANKS: u32 = 8;

/// Between two all-reduces, ms.
const EVERY_MS: &str = "200";

/// A job whose ranks are played.
struct Play<'a> {
    cluster: &'a Cluster,
    job: JobId,
    srun: Running,
    folder: String,
}

impl<'a> Play<'a> {
    /// Starts it, and waits until the agents have brought all of its ranks together.
    fn start(cluster: &'a Cluster, name: &str) -> Self {
        let folder = format!("/home/alice/{name}");
        cluster.exec_as("n1", ALICE, ["mkdir", &folder]).unwrap().ok().unwrap();
        let ranks = format!("-n{RANKS}");
        let srun = cluster
            .srun(["-N4", &ranks, "--ntasks-per-node=2", "-u", "-K0", FLAG, PLAYER, &folder, EVERY_MS])
            .timeout(Duration::from_secs(400))
            .spawn()
            .unwrap();
        cluster.wait_agents(&NODES, SOON).unwrap();
        let job = cluster.last_job().unwrap();
        let play = Self { cluster, job, srun, folder };
        for node in NODES {
            play.wait_report(node, "it is judged, and its ranks tell", SOON, |report| {
                report["judged"] == true && report["telemetry"]["ranks"] == 2
            });
        }
        play
    }

    fn report(&self, node: &str) -> Value {
        self.cluster.runtime_report(node, self.job, 0).unwrap_or_default()
    }

    fn wait_report(&self, node: &str, what: &str, within: Duration, is: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        let found = wait::until(within, what, || {
            last = self.report(node);
            Ok(is(&last).then_some(()))
        });
        assert!(
            found.is_ok(),
            "{node}: {what}: not within {within:?}: {last:#}\n{}",
            self.cluster.syslog(node)
        );
        last
    }

    /// The process of a rank, on its node.
    fn pid(&self, rank: u32) -> u32 {
        let line = format!("rank {rank} is process ");
        let said = self.srun.wait_line(|said| said.starts_with(&line), SOON).unwrap();
        said.rsplit(' ').next().unwrap().parse().unwrap()
    }

    /// Holds a rank back from its next all-reduce; when it was.
    fn hold(&self, rank: u32) -> Instant {
        let path = format!("{}/stop", self.folder);
        self.cluster.write_file("n1", &path, &rank.to_string()).unwrap();
        let held = format!("rank {rank} does not come to ");
        self.srun.wait_line(|said| said.starts_with(&held), SOON).unwrap();
        Instant::now()
    }

    fn release(&self) {
        let path = format!("{}/stop", self.folder);
        self.cluster.exec("n1", ["rm", &path]).unwrap().ok().unwrap();
    }

    fn end(self) {
        self.cluster.write_file("n1", &format!("{}/end", self.folder), "").unwrap();
        let output = self.srun.wait(SOON).unwrap();
        assert!(output.success(), "{output:?}");
        self.cluster.wait_no_trace(&NODES, SOON).unwrap();
        self.cluster.wait_idle(NODES.len(), SOON).unwrap();
    }
}

/// Whether a report holds just one finding, of this class, that names just this rank.
fn names(report: &Value, class: &str, rank: u32, pid: u32) -> bool {
    let Some([finding]) = report["findings"].as_array().map(Vec::as_slice) else { return false };
    let Some([suspect]) = finding["suspects"].as_array().map(Vec::as_slice) else { return false };
    finding["class"] == class
        && suspect["node"] == rank / 2
        && suspect["pid"] == pid
        && suspect["task"] == rank
        && suspect["rank"] == rank
}

fn told(cluster: &Cluster, node: &str, what: &str) -> usize {
    cluster.syslog(node).lines().filter(|line| line.contains(what)).count()
}

/// Events about a finding on each node.
fn tellers(cluster: &Cluster) -> [usize; 4] {
    NODES.map(|node| told(cluster, node, "event=RuntimeCheckFailed"))
}

#[test]
fn a_rank_that_does_not_come_or_is_stopped_is_named_on_the_head_and_a_clean_job_is_not_blamed() {
    let _machine = side_by_side().unwrap();
    let cluster = c4d::boot_players(Cluster::builder().nodes(4).cpus(8), "").unwrap();

    // Clean, past several windows.
    let play = Play::start(&cluster, "clean");
    std::thread::sleep(3 * WELL);
    for node in NODES {
        let report = play.report(node);
        let nothing = [&report["findings"], &report["withdrawn"], &report["errors"]];
        assert!(nothing.iter().all(|list| list.as_array().unwrap().is_empty()), "{report:#}");
    }
    play.end();
    assert_eq!(tellers(&cluster), [0; 4], "a clean job was blamed");

    // A rank of another node than the head's does not come, and comes again.
    let play = Play::start(&cluster, "held");
    std::thread::sleep(WELL);
    let (pid, since) = (play.pid(5), play.hold(5));
    play.wait_report("n1", "rank 5 is named", TARGET + SLACK, |report| {
        names(report, "non_communication_hang", 5, pid)
    });
    println!("a rank that does not come was named after {:?}", since.elapsed());
    // The deputy knows as well, and says nothing.
    let deputy = play.report("n2");
    assert!(deputy["judged"] == true && deputy["findings"].as_array().unwrap().is_empty(), "{deputy:#}");
    play.release();
    play.wait_report("n1", "it is taken back", SOON, |report| {
        report["findings"].as_array().is_some_and(Vec::is_empty)
            && report["withdrawn"].as_array().is_some_and(|list| list.len() == 1)
    });
    play.end();

    // One that is stopped by a signal is named as that. Another job: one that broke a long silence by itself may do so again.
    let play = Play::start(&cluster, "stopped");
    std::thread::sleep(WELL);
    let pid = play.pid(6).to_string();
    cluster.exec("n4", ["kill", "-STOP", &pid]).unwrap().ok().unwrap();
    play.wait_report("n1", "rank 6 is paused", TARGET + SLACK, |report| {
        names(report, "paused", 6, pid.parse().unwrap())
    });
    cluster.exec("n4", ["kill", "-CONT", &pid]).unwrap().ok().unwrap();
    play.wait_report("n1", "it goes on", SOON, |report| {
        report["findings"].as_array().is_some_and(Vec::is_empty)
    });
    play.end();
    assert_eq!(tellers(&cluster), [2, 0, 0, 0], "who told");
    assert!(cluster.drained().unwrap().is_empty());
}

#[test]
fn the_deputy_speaks_while_the_head_s_agent_is_frozen_or_killed_and_without_both_nobody_judges() {
    let _machine = side_by_side().unwrap();
    let cluster = c4d::boot_players(Cluster::builder().nodes(4).cpus(8), "").unwrap();
    let play = Play::start(&cluster, "headless");
    std::thread::sleep(WELL);
    // The head's agent is frozen for a while: its deputy speaks, and is silent again.
    let speaker = |words: &str| {
        let line = format!("event=RuntimeCheckSpeaker summary=\"this node {words}");
        wait::until(SOON, &line, || Ok((told(&cluster, "n2", &line) == 1).then_some(()))).unwrap();
    };
    cluster.signal_processes("n1", AGENT, Signal::STOP).unwrap();
    speaker("speaks for the job");
    cluster.signal_processes("n1", AGENT, Signal::CONT).unwrap();
    speaker("is silent");
    assert_eq!(tellers(&cluster), [0; 4], "an agent that was frozen is no fault of the job's");

    // It is killed.
    assert_eq!(cluster.signal_processes("n1", AGENT, Signal::KILL).unwrap().len(), 1);
    let (pid, since) = (play.pid(5), play.hold(5));
    play.wait_report("n2", "rank 5 is named", TARGET + TAKEN_OVER + SLACK, |report| {
        report["judged"] == true && names(report, "non_communication_hang", 5, pid)
    });
    println!("the deputy named it after {:?}", since.elapsed());
    // The event comes by a thread of its own, after the report.
    let told_by_deputy = || Ok((tellers(&cluster) == [0, 1, 0, 0]).then_some(()));
    wait::until(SOON, "the deputy's event, and nobody else's", told_by_deputy).unwrap();
    assert_eq!(play.report("n3")["judged"], true);

    // Without both the others follow, and say that nobody judges.
    assert_eq!(cluster.signal_processes("n2", AGENT, Signal::KILL).unwrap().len(), 1);
    for node in ["n3", "n4"] {
        play.wait_report(node, "nobody judges", SOON, |report| report["judged"] == false);
    }
    let line = "nobody judges what ranks tell: n1: ";
    wait::until(SOON, "it is said", || Ok((told(&cluster, "n3", line) == 1).then_some(()))).unwrap();
    play.end();
    assert!(cluster.drained().unwrap().is_empty());
}
