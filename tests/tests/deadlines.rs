//! Whatever happens to a node, its prolog ends in time: within 5 s of the deadline, and a second or two after its
//! slurmd is gone. No node is blamed for a time that ran out, and no process stays.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop at the first surprise")]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

use aimaster_tests::{Cluster, JobId, Output, Running, Serial, Signal, product, side_by_side, wait};
use serde_json::Value;

const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];

/// The deadline; the checks below take longer.
const DEADLINE: Duration = Duration::from_secs(6);

/// What the specification allows after the deadline.
const AFTER_DEADLINE: Duration = Duration::from_secs(5);

/// The specification's "a second or two", counted from the end of slurmd.
const AFTER_SLURMD: Duration = Duration::from_secs(2);

/// How often the nodes' processes are listed, and what seeing late adds to a measured time.
const LOOK: Duration = Duration::from_millis(100);
const SLACK: Duration = Duration::from_millis(300);

/// From the start of the workers until the meeting is over and the first window has begun.
const FIRST_WINDOW: Duration = Duration::from_millis(700);

/// How often a job is started until it is still measuring when this machine gets to its fault.
const ATTEMPTS: usize = 5;

/// Bound on everything that has no bound of its own here.
const SOON: Duration = Duration::from_secs(60);

/// Three checks of 3 s are not done in 6 s.
const SHORT: &str = "time = { join_s = 3, scontrol_s = 2, max_deadline_s = 6 }\nhost.seconds_per_check = 3.0";

/// All checks fit.
const LONG: &str = "time = { join_s = 3, max_deadline_s = 40 }\nhost.seconds_per_check = 2.0";

/// When the helper of each node was seen first, and when the last process of ours was seen.
type Lives = BTreeMap<&'static str, (Instant, Instant)>;

struct Site {
    cluster: Cluster,
    jobs: Cell<u32>,
    _machine: Serial,
}

impl Site {
    fn boot(policy: &str) -> Self {
        let machine = side_by_side().unwrap();
        let cluster = product::boot(Cluster::builder().nodes(4), policy).unwrap();
        Self { cluster, jobs: Cell::new(0), _machine: machine }
    }

    /// Starts a job that prints `begun`.
    fn start(&self, fail_action: &str) -> Running {
        self.cluster.wait_idle(4, SOON).unwrap();
        self.jobs.set(self.jobs.get() + 1);
        let action = format!("--sanity-fail-action={fail_action}");
        self.cluster.srun(["-N4", "--sanity-check", &action, "echo", "begun"]).spawn().unwrap()
    }

    fn last(&self) -> JobId {
        JobId(self.jobs.get())
    }

    fn report(&self) -> Value {
        self.cluster.report(self.last(), 1).unwrap()
    }

    fn ours(&self, node: &str) -> usize {
        let processes = self.cluster.processes(node).unwrap();
        processes.iter().filter(|process| process.comm.starts_with("aimaster")).count()
    }

    /// Looks at all nodes until every helper has come and gone.
    fn lives(&self) -> Lives {
        self.lives_with(|| ()).0
    }

    /// Starts a job that prints `begun`, does something when its nodes are measuring, and looks until every helper is gone.
    /// A job whose checks were over too early is not it: what was done is undone, and another one is started.
    fn hit<T>(&self, fail_action: &str, inject: impl Fn() -> T, undo: impl Fn(T)) -> (Running, Lives, T) {
        for _ in 0..ATTEMPTS {
            let job = self.start(fail_action);
            let (lives, injected) = self.lives_with(&inject);
            match injected {
                Some((injected, true)) => return (job, lives, injected),
                Some((injected, false)) => undo(injected),
                None => {}
            }
            eprintln!("job {}: its checks were over before anything was done to them", self.jobs.get());
            job.wait(SOON).unwrap();
        }
        panic!("this machine is too slow: {ATTEMPTS} jobs were not caught measuring");
    }

    /// Looks at all nodes until every helper is gone; tells whether they were measuring until what is done to them was done.
    fn lives_with<T>(&self, inject: impl Fn() -> T) -> (Lives, Option<(T, bool)>) {
        let begun = Instant::now();
        let mut lives = Lives::new();
        let mut measuring = None;
        let mut injected = None;
        loop {
            let counts: Vec<usize> = NODES.iter().map(|node| self.look(node, &mut lives)).collect();
            if measuring.is_none() && counts.iter().all(|count| *count >= 2) {
                measuring = Some(Instant::now());
            }
            let due = measuring.is_some_and(|since: Instant| since.elapsed() >= FIRST_WINDOW);
            if injected.is_none() && due && counts.iter().all(|count| *count >= 2) {
                let done = inject();
                injected = Some((done, self.ours("n4") >= 2));
            }
            if lives.len() == NODES.len() && counts.iter().all(|count| *count == 0) {
                return (lives, injected);
            }
            assert!(begun.elapsed() < SOON, "{lives:?} are still there\n{}", self.cluster.log_tails());
            sleep(LOOK);
        }
    }

    /// How many processes of ours a node has now.
    fn look(&self, node: &'static str, lives: &mut Lives) -> usize {
        let count = self.ours(node);
        let now = Instant::now();
        if count > 0 {
            lives.entry(node).or_insert((now, now)).1 = now;
        }
        count
    }

    /// Waits until the helpers of all nodes measure.
    fn wait_measuring(&self) {
        wait::until(SOON, "workers on all nodes", || {
            let all = NODES.iter().all(|node| self.ours(node) >= 2);
            Ok(all.then_some(()))
        })
        .unwrap();
        sleep(FIRST_WINDOW);
    }

    fn assert_nobody_drained(&self) {
        let drained = self.cluster.drained().unwrap();
        assert!(drained.is_empty(), "{drained:?}\n{:#}", self.report());
    }

    /// The time ran out, and no node is blamed for it.
    fn assert_ran_out(&self, report: &Value) {
        assert_eq!(report["outcome"], "FAIL", "{report:#}");
        assert!(report["summary"].as_str().unwrap().contains("ran out"), "{report:#}");
        assert_eq!(report["drained"].as_array().unwrap().len(), 0, "{report:#}");
        let blamed = |item: &&Value| item["status"] == "FAIL" && item["subject"]["kind"] != "run";
        assert_eq!(report["items"].as_array().unwrap().iter().find(blamed), None, "{report:#}");
        self.assert_nobody_drained();
    }
}

fn assert_in_time(lives: &Lives) {
    for (node, (first, last)) in lives {
        let lived = *last - *first;
        eprintln!("{node}: {lived:?}");
        assert!(lived <= DEADLINE + AFTER_DEADLINE + SLACK, "{node}: the prolog took {lived:?}");
    }
}

fn assert_not_started(output: &Output) {
    assert!(!output.success() && !output.stdout.contains("begun"), "{output:?}");
}

fn assert_started(output: &Output) {
    assert!(output.success(), "{output:?}");
    assert_eq!(output.stdout.matches("begun").count(), 4, "{output:?}");
}

// A02, A25, M13: also with a helper that is frozen.
#[test]
fn a_deadline_shorter_than_the_checks_holds_on_every_node() {
    let site = Site::boot(SHORT);

    let job = site.start("fail");
    assert_in_time(&site.lives());
    assert_not_started(&job.wait(SOON).unwrap());
    site.assert_ran_out(&site.report());

    let freeze = |node| site.cluster.stop_processes(node, "aimaster-prolog").unwrap();
    let (job, lives, frozen) = site.hit("retain", || freeze("n3"), drop);
    assert_in_time(&lives);
    drop(frozen);
    assert_started(&job.wait(SOON).unwrap());
    site.assert_ran_out(&site.report());

    // The leader: nobody is left who could act, but everybody ends.
    let (job, lives, frozen) = site.hit("retain", || freeze("n1"), drop);
    assert_in_time(&lives);
    drop(frozen);
    assert_started(&job.wait(SOON).unwrap());
    site.assert_nobody_drained();
}

/// Slows what one node sends for the checks, ports 45056 to 45183, to 1 kbit/s; Slurm's own words pass.
const STARVE: &str = "set -e
tc qdisc add dev eth0 root handle 1: htb default 2
tc class add dev eth0 parent 1: classid 1:2 htb rate 100gbit quantum 60000
tc class add dev eth0 parent 1: classid 1:3 htb rate 1kbit quantum 1500
for end in sport dport; do
  tc filter add dev eth0 parent 1: protocol ip prio 1 u32 match ip $end 45056 0xff80 flowid 1:3
done";

// N02.
#[test]
fn a_nearly_dead_network_does_not_hold_the_prolog() {
    let policy = format!("{SHORT}\nnetwork = {{ port_first = 45056, port_last = 45183 }}");
    let site = Site::boot(&policy);

    site.cluster.exec("n3", ["bash", "-c", STARVE]).unwrap().ok().unwrap();
    let job = site.start("fail");
    assert_in_time(&site.lives());
    assert_not_started(&job.wait(SOON).unwrap());
    site.assert_ran_out(&site.report());
    site.cluster.exec("n3", ["tc", "qdisc", "del", "dev", "eth0", "root"]).unwrap().ok().unwrap();

    // All of the leader's network, half way.
    let (job, lives, dead) = site.hit("fail", || site.cluster.rate("n1", 1).unwrap(), drop);
    assert_in_time(&lives);
    dead.undo().unwrap();
    assert_not_started(&job.wait(SOON).unwrap());
    site.assert_nobody_drained();
}

/// What the report says of a node, or of a path or pair with it: status and message.
fn said_of(report: &Value, node: &str) -> Vec<String> {
    let items = report["items"].as_array().unwrap().iter();
    items
        .filter(|item| item["subject"]["node"] == node)
        .map(|item| format!("{} {}", item["status"].as_str().unwrap(), item["message"].as_str().unwrap()))
        .collect()
}

// A06.
#[test]
fn a_helper_whose_slurmd_is_gone_ends_and_blames_nobody() {
    let site = Site::boot(LONG);

    let kill = || {
        let hit = site.cluster.signal_processes("n2", "slurmd -N", Signal::KILL).unwrap();
        assert_eq!(hit.len(), 1, "{hit:?}");
        Instant::now()
    };
    let (job, lives, killed) = site.hit("fail", kill, |_| site.cluster.start_slurmd("n2").unwrap());
    let after = lives["n2"].1.saturating_duration_since(killed);
    eprintln!("n2 ended {after:?} after its slurmd");
    assert!(after <= AFTER_SLURMD + SLACK, "{after:?}\n{}", site.cluster.log_tails());
    site.assert_nobody_drained();
    site.cluster.start_slurmd("n2").unwrap();
    drop(job);
    site.cluster.scancel([site.last().to_string()]).run().unwrap();
    site.cluster.wait_end(site.last(), SOON).unwrap();

    let job = site.start("fail");
    site.wait_measuring();
    // slurmd waits for its prolog as long as systemd lets it; the helper is done, or has noticed.
    site.cluster.restart_slurmd("n2").unwrap();
    wait::until(AFTER_SLURMD, "no process of ours on n2", || Ok((site.ours("n2") == 0).then_some(())))
        .unwrap();
    drop(job);
    site.cluster.scancel([site.last().to_string()]).run().unwrap();
    site.cluster.wait_end(site.last(), SOON).unwrap();
    site.assert_nobody_drained();

    // SIGTERM to the helper alone: an ERROR of that node, and the job starts (on_error).
    let terminate = || {
        site.cluster.signal_processes("n2", "aimaster-prolog", Signal::TERM).unwrap();
        Instant::now()
    };
    let (job, lives, terminated) = site.hit("fail", terminate, drop);
    let after = lives["n2"].1.saturating_duration_since(terminated);
    assert!(after <= AFTER_SLURMD + SLACK, "{after:?}");
    assert_started(&job.wait(SOON).unwrap());
    let report = site.report();
    assert_eq!(report["outcome"], "ERROR", "{report:#}");
    let said = said_of(&report, "n2");
    assert!(said.iter().any(|line| line.starts_with("ERROR ")), "{said:?}");
    site.assert_nobody_drained();
}
