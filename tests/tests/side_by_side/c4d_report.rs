//! What becomes of a finding: it is told, kept with the reports and shown; a node is drained for it only where the policy
//! says so. The ranks are played; the plugin, its ring and the agent are real.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use aimaster_tests::c4d::{self, FLAG, PLAYER};
use aimaster_tests::{ALICE, Cluster, JobId, NODE_DIR, Output, Running, Signal, product, side_by_side, wait};
use serde_json::Value;

/// For a job to start or end, and for what an agent or an epilog writes.
const SOON: Duration = Duration::from_secs(60);

/// From a rank's stop to its name, on a busy machine.
const NAMED: Duration = Duration::from_secs(40);

/// How long a job runs well before something happens: past its first operations.
const WELL: Duration = Duration::from_secs(4);

/// Between two all-reduces, ms.
const EVERY_MS: &str = "200";

/// A job of two ranks on one node, or of one rank on each of several.
struct Play<'a> {
    cluster: &'a Cluster,
    nodes: &'static [&'static str],
    job: JobId,
    srun: Running,
    folder: String,
}

impl<'a> Play<'a> {
    fn start(cluster: &'a Cluster, name: &str, fail_action: &str) -> Self {
        Self::on(cluster, &["n1"], name, fail_action)
    }

    fn on(cluster: &'a Cluster, nodes: &'static [&'static str], name: &str, fail_action: &str) -> Self {
        let folder = format!("/home/alice/{name}");
        cluster.exec_as("n1", ALICE, ["mkdir", &folder]).unwrap().ok().unwrap();
        let ranks = nodes.len().max(2);
        let action = format!("--runtime-fail-action={fail_action}");
        let srun = cluster
            .srun([
                &format!("-N{}", nodes.len()),
                &format!("-n{ranks}"),
                "-u",
                "-K0",
                FLAG,
                &action,
                PLAYER,
                &folder,
                EVERY_MS,
            ])
            .timeout(Duration::from_secs(300))
            .spawn()
            .unwrap();
        cluster.wait_agents(nodes, SOON).unwrap();
        let job = cluster.last_job().unwrap();
        let play = Self { cluster, nodes, job, srun, folder };
        for node in nodes {
            play.wait_report(node, "its ranks tell", |report| {
                report["telemetry"]["ranks"] == ranks / nodes.len() && report["judged"] == true
            });
        }
        std::thread::sleep(WELL);
        play
    }

    fn wait_report(&self, node: &str, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        let found = wait::until(NAMED, what, || {
            last = self.cluster.runtime_report(node, self.job, 0).unwrap_or_default();
            Ok(is(&last).then_some(()))
        });
        assert!(found.is_ok(), "{node}: {what}: {last:#}\n{}", self.cluster.syslog(node));
        last
    }

    /// Holds rank 1 back until it is named on this node.
    fn hold(&self, node: &str) {
        self.cluster.write_file("n1", &format!("{}/stop", self.folder), "1").unwrap();
        self.wait_report(node, "rank 1 is named", |report| report["findings"][0]["suspects"][0]["task"] == 1);
    }

    fn end(self) -> JobId {
        self.cluster.write_file("n1", &format!("{}/end", self.folder), "").unwrap();
        let output = self.srun.wait(SOON).unwrap();
        assert!(output.success(), "{output:?}");
        self.cluster.wait_no_trace(self.nodes, SOON).unwrap();
        self.job
    }

    fn cancel(self) -> JobId {
        self.cluster.scancel([self.job.to_string()]).ok().unwrap();
        self.srun.wait(SOON).unwrap();
        self.cluster.wait_no_trace(self.nodes, SOON).unwrap();
        self.job
    }
}

fn kept_at(cluster: &Cluster, job: JobId) -> PathBuf {
    PathBuf::from(product::report_dir(cluster)).join(format!("aim/{job}/1/runtime.json"))
}

/// What is kept of a job that is over.
fn kept(cluster: &Cluster, job: JobId) -> Value {
    let path = kept_at(cluster, job);
    let text = wait::until(SOON, path.display(), || Ok(std::fs::read_to_string(&path).ok())).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn admin_comment(cluster: &Cluster, job: JobId) -> String {
    let record = cluster.scontrol(["show", "job", &job.to_string()]).ok().unwrap();
    let line = record.stdout.lines().find_map(|line| line.trim().strip_prefix("AdminComment="));
    line.unwrap_or_default().trim().to_owned()
}

fn wait_comment(cluster: &Cluster, job: JobId, part: &str) {
    let mut last = String::new();
    let found = wait::until(SOON, "AdminComment", || {
        last = admin_comment(cluster, job);
        Ok(last.contains(part).then_some(()))
    });
    assert!(found.is_ok(), "no {part:?} in {last:?}: {}", cluster.syslog("n1"));
}

/// How often an event was told of a job.
fn told(cluster: &Cluster, job: JobId, event: &str) -> usize {
    let of = |line: &&str| line.contains(&format!("job={job} ")) && line.contains(event);
    cluster.syslog("n1").lines().filter(of).count()
}

fn report(cluster: &Cluster, job: JobId) -> Output {
    cluster.aimaster(["report", &job.to_string()]).run().unwrap()
}

#[test]
fn a_finding_is_told_kept_shown_and_followed_and_drains_nobody_by_itself() {
    let _machine = side_by_side().unwrap();
    let cluster = c4d::boot_players(Cluster::builder().nodes(1).cpus(4), "").unwrap();
    let play = Play::start(&cluster, "held", "drain");
    let job = play.job;
    let foreign = format!("jobid={job}");
    cluster.scontrol(["update", &foreign, "AdminComment=paid by lab 7"]).ok().unwrap();
    let aimaster = format!("{NODE_DIR}/aimaster");
    let follow = cluster.command("n1", [&aimaster, "report", &job.to_string(), "--follow"]).spawn().unwrap();
    follow.wait_line(|line| line == "telemetry: ranks tell what they do", SOON).unwrap();
    // Only root reads what the agent says, and only on the node: both are said.
    let refused = cluster.aimaster(["report", &job.to_string(), "--follow"]).run().unwrap();
    assert!(!refused.success() && refused.stderr.contains("as root on n1"), "{refused:?}");
    let refused = cluster.exec_as("n1", ALICE, [&aimaster, "report", &job.to_string(), "--follow"]).unwrap();
    assert!(!refused.success() && refused.stderr.contains("as root on n1"), "{refused:?}");

    play.hold("n1");
    follow.wait_line(|line| line.starts_with("FAIL non_communication_hang: "), SOON).unwrap();
    wait_comment(&cluster, job, "paid by lab 7 aimaster{n=1 requeues=0 c4d=non_communication_hang:n1");
    play.cancel();

    let report_of = kept(&cluster, job);
    let named =
        |finding: &Value| finding["class"] == "non_communication_hang" && finding["suspects"][0]["task"] == 1;
    assert!(report_of["findings"].as_array().unwrap().iter().any(named), "{report_of:#}");
    assert_eq!(report_of["finished"]["because"], "the job's epilog ended it", "{report_of:#}");
    let file = kept_at(&cluster, job).display().to_string();
    let owner = cluster.exec("n1", ["stat", "-c", "%U %G %a", &file]).unwrap().ok().unwrap();
    assert_eq!(owner.stdout.trim(), "root alice 640");
    let shown = report(&cluster, job);
    assert_eq!(shown.code(), 1, "{shown:?}");
    for part in
        ["RuntimeCheck on n1: FAIL", "suspect: task 1 on n1", "time line", "found: non_communication_hang"]
    {
        assert!(shown.stdout.contains(part), "no {part:?} in {}", shown.stdout);
    }
    let json = cluster.aimaster(["report", &job.to_string(), "--json"]).run().unwrap();
    let json: Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(json["runtime"][0], report_of);
    let followed = follow.wait(SOON).unwrap();
    assert!(followed.stdout.contains("RuntimeCheck on n1: FAIL"), "{followed:?}");
    assert_eq!(told(&cluster, job, "event=RuntimeCheckFailed class=non_communication_hang"), 1);
    assert!(cluster.drained().unwrap().is_empty(), "telemetry alone drains nobody");

    // Where the policy trusts it, the node leaves service, with a reason that a person can read.
    product::set_policy(&cluster, "c4d.telemetry_may_drain = true").unwrap();
    let play = Play::start(&cluster, "trusted", "drain");
    play.hold("n1");
    let drained = wait::until(SOON, "n1 is drained", || {
        let drained = cluster.drained()?;
        Ok((!drained.is_empty()).then_some(drained))
    });
    let drained = drained.unwrap_or_else(|error| panic!("{error:#}: {}", cluster.syslog("n1")));
    let reason = &drained[0].1;
    assert!(reason.starts_with("aimaster: c4d non_communication_hang: "), "{reason}");
    assert!(reason.contains(&format!(" job={} n=1", play.job)), "{reason}");
    let job = play.job;
    wait_comment(&cluster, job, "requeues=0 drained=n1 c4d=non_communication_hang:n1");
    play.cancel();
    let report_of = kept(&cluster, job);
    assert_eq!(
        (&report_of["acts"][0]["done"], report_of["acts"].as_array().unwrap().len()),
        (&true.into(), 1)
    );
    assert!(report(&cluster, job).stdout.contains("done: n1 was drained: aimaster: c4d"), "{report_of:#}");
    assert_eq!(told(&cluster, job, "event=RuntimeCheckActed outcome=FAIL drained=n1"), 1);
    cluster.put_back().unwrap();
}

#[test]
fn the_node_that_stood_in_for_the_first_has_a_report_of_its_own() {
    let _machine = side_by_side().unwrap();
    let cluster = c4d::boot_players(Cluster::builder().nodes(3).cpus(4), "").unwrap();
    let play = Play::on(&cluster, &["n1", "n2", "n3"], "headless", "drain");
    assert_eq!(cluster.signal_processes("n1", c4d::AGENT, Signal::KILL).unwrap().len(), 1);
    play.hold("n2");
    wait_comment(&cluster, play.job, "aimaster{n=1 requeues=0 c4d=non_communication_hang:n2");
    let job = play.cancel();
    let first = kept(&cluster, job);
    assert!(first["finished"].is_null() && first["findings"].as_array().unwrap().is_empty(), "{first:#}");
    let shown = wait::until(SOON, "the other node's report", || {
        let shown = report(&cluster, job);
        Ok(shown.stdout.contains("RuntimeCheck on n2: FAIL").then_some(shown))
    })
    .unwrap();
    assert_eq!(shown.code(), 1, "{shown:?}");
    assert!(shown.stdout.contains("RuntimeCheck on n1: "), "{shown:?}");
    assert!(kept_at(&cluster, job).with_file_name("runtime.n2.json").exists());
    // The third found nothing and spoke for nobody.
    assert!(!kept_at(&cluster, job).with_file_name("runtime.n3.json").exists());
    assert!(cluster.drained().unwrap().is_empty());
}

// C17, P05.
#[test]
fn a_job_goes_back_to_the_queue_without_the_node_that_is_at_fault() {
    let _machine = side_by_side().unwrap();
    let policy = "c4d.telemetry_may_drain = true";
    let cluster = c4d::boot_players(Cluster::builder().nodes(2).cpus(4), policy).unwrap();
    let folder = "/home/alice/requeued";
    cluster.exec_as("n1", ALICE, ["mkdir", folder]).unwrap().ok().unwrap();
    // In its second run it plays for itself alone.
    let script = format!(
        "mkdir -p {folder}/$SLURM_RESTART_COUNT.x; srun -n2 {PLAYER} {folder}/$SLURM_RESTART_COUNT.x {EVERY_MS}"
    );
    let job =
        cluster.submit(&script, ["-N1", "-n2", "--requeue", FLAG, "--runtime-fail-action=requeue"]).unwrap();
    cluster.wait_agents(&["n1"], SOON).unwrap();
    wait::until(NAMED, "its ranks tell", || {
        let report = cluster.runtime_report("n1", job, 0).unwrap_or_default();
        Ok((report["telemetry"]["ranks"] == 2).then_some(()))
    })
    .unwrap();
    std::thread::sleep(WELL);
    cluster.write_file("n1", &format!("{folder}/.x/stop"), "1").unwrap();
    let again = |record: &aimaster_tests::Record| record.get("Restarts") == "1";
    let found = cluster.wait_job(job, "it is back in the queue", again, NAMED);
    assert!(found.is_ok(), "{found:?}: {}", cluster.syslog("n1"));
    let drained = cluster.drained().unwrap();
    assert_eq!(drained.len(), 1, "{drained:?}");
    assert!(drained[0].0 == "n1" && drained[0].1.starts_with("aimaster: c4d "), "{drained:?}");
    cluster.wait_agents(&["n2"], SOON).unwrap();
    wait_comment(&cluster, job, "aimaster{n=1 requeues=1 drained=n1 c4d=");
    let record = cluster.job(job).unwrap();
    assert_eq!(record.get("ExcNodeList"), "n1", "{record:?}");
    let report_of = kept(&cluster, job);
    let acts: Vec<&str> =
        report_of["acts"].as_array().unwrap().iter().filter_map(|act| act["what"].as_str()).collect();
    assert!(acts.iter().any(|what| what.contains("was requeued; it leaves out n1")), "{report_of:#}");
    cluster.scancel([job.to_string()]).ok().unwrap();
    cluster.wait_no_trace(&["n1", "n2"], SOON).unwrap();
    assert_eq!(told(&cluster, job, "event=RuntimeCheckActed outcome=FAIL drained=n1 requeued=true"), 1);
}

// L15: what told nothing is unknown.
#[test]
fn a_clean_job_a_blind_one_and_storage_that_is_not_there() {
    let _machine = side_by_side().unwrap();
    let cluster = c4d::boot_players(Cluster::builder().nodes(1).cpus(4), "").unwrap();
    let job = Play::start(&cluster, "clean", "retain").end();
    let report_of = kept(&cluster, job);
    assert!(report_of["findings"].as_array().unwrap().is_empty(), "{report_of:#}");
    let shown = report(&cluster, job);
    assert!(shown.success() && shown.stdout.contains("RuntimeCheck on n1: PASS; 2 ranks told"), "{shown:?}");
    assert_eq!(told(&cluster, job, "event=RuntimeCheckSucceeded ranks=2 withdrawn=0"), 1);
    assert_eq!(admin_comment(&cluster, job), "", "a job without a finding is left alone");

    // Nothing is known of a program without NCCL, and that is no pass. The list of denied versions reaches it.
    let output = cluster.srun([FLAG, "sh", "-c", "echo $AIMASTER_C4D_NCCL_DENY"]).ok().unwrap();
    assert_eq!(output.text(), "2.28.3-2.28.8", "{output:?}");
    let job = cluster.last_job().unwrap();
    cluster.wait_no_trace(&["n1"], SOON).unwrap();
    assert_eq!(kept(&cluster, job)["telemetry"]["status"], "NONE");
    let shown = report(&cluster, job);
    assert_eq!(shown.code(), 3, "{shown:?}");
    assert!(shown.stdout.contains("RuntimeCheck on n1: SKIP; unknown: no rank came"), "{shown:?}");
    assert_eq!(told(&cluster, job, "event=RuntimeCheckSkipped because=\"no rank came"), 1);

    // Reports can't be kept: the node is free all the same, and slurmd's log says why.
    let folder = product::report_dir(&cluster);
    std::fs::remove_dir_all(&folder).unwrap();
    std::fs::write(&folder, "no folder").unwrap();
    std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o600)).unwrap();
    cluster.srun([FLAG, "true"]).ok().unwrap();
    let log = cluster.log_file("slurmd.n1.log");
    wait::until(SOON, "slurmd's log says it", || {
        let said = std::fs::read_to_string(&log)?.contains("the runtime report was not written");
        Ok(said.then_some(()))
    })
    .unwrap();
    cluster.wait_no_trace(&["n1"], SOON).unwrap();
    cluster.wait_idle(1, SOON).unwrap();
}
