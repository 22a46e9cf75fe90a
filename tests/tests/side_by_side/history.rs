//! What a node remembers of its own results: it outlives slurmd, is root's alone, costs no job anything whatever becomes of
//! it, and says when a part does less than it did.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop at the first surprise")]

use std::time::Duration;

use aimaster_tests::{ALICE, Cluster, NODE_DIR, Told, product, side_by_side, wait};
use diag::history::{Entry, Key};
use jiff::{SignedDuration, Timestamp};
use prolog::history::store;
use serde_json::Value;

const SOON: Duration = Duration::from_secs(60);

const POLICY: &str = "host.seconds_per_check = 0.3\n";

/// The folder of n1's state, as the policy has it by default; nodes have a /var/lib of their own.
const STATE: &str = "/var/lib/aimaster/n1";

/// A job on both nodes that is checked, once nothing of the one before it is left.
fn checked(cluster: &Cluster) -> Told {
    cluster.wait_idle(2, SOON).unwrap();
    let told = cluster.told(["-N2", "-n2", "--sanity-check=gemm_flops,all_reduce_2"]).unwrap();
    assert_eq!((told.outcome(), told.started()), ("PASS", true), "{told}");
    assert!(told.drained.is_empty(), "{told}");
    told
}

/// The same, and n1 remembers it: a disk that needs more than a second, beside six other clusters, costs a job its place there
/// and the log has a line of that.
fn kept(cluster: &Cluster) -> Told {
    let late = |line: &str| line.contains("history: the disk does not answer");
    for _ in 0..5 {
        let before = cluster.syslog("n1").lines().filter(|line| late(line)).count();
        let told = checked(cluster);
        let there = || Ok(jobs(cluster, "gemm_flops").contains(&told.job.0).then_some(()));
        if wait::until(Duration::from_secs(5), "this job in the history", there).is_ok() {
            return told;
        }
        let syslog = cluster.syslog("n1");
        assert!(syslog.lines().filter(|line| late(line)).count() > before, "{told}\n{syslog}");
    }
    panic!("this machine's disk is too slow: it did not answer five jobs within a second");
}

/// What n1 remembers, by the command of its admin.
fn remembered(cluster: &Cluster) -> Vec<(Key, Vec<Entry>)> {
    let aimaster = format!("{NODE_DIR}/aimaster");
    let shown = cluster.exec("n1", [aimaster.as_str(), "history", "--json"]).unwrap().ok().unwrap();
    let all: Vec<Value> = serde_json::from_str(&shown.stdout).unwrap();
    let series = |mut one: Value| {
        let entries =
            serde_json::from_value(one.as_object_mut().unwrap().remove("entries").unwrap()).unwrap();
        (serde_json::from_value(one).unwrap(), entries)
    };
    all.into_iter().map(series).collect()
}

/// The jobs that n1 remembers of a check.
fn jobs(cluster: &Cluster, check: &str) -> Vec<u32> {
    let all = remembered(cluster);
    let of = all.iter().filter(|(key, _)| key.check.to_string() == check);
    let mut jobs: Vec<u32> = of.flat_map(|(_, entries)| entries.iter().map(|one| one.job_id)).collect();
    jobs.sort_unstable();
    jobs
}

#[test]
fn a_node_remembers_over_restarts_and_only_root_reads_it() {
    let _machine = side_by_side().unwrap();
    let cluster = product::boot(Cluster::builder().nodes(2), POLICY).unwrap();
    let mut ran: Vec<u32> = (0..2).map(|_| kept(&cluster).job.0).collect();
    cluster.restart_slurmd("n1").unwrap();
    ran.push(kept(&cluster).job.0);
    assert_eq!((jobs(&cluster, "gemm_flops"), jobs(&cluster, "all_reduce_2")), (ran.clone(), ran.clone()));
    let all = remembered(&cluster);
    let pair = all.iter().find(|(key, _)| key.check.to_string() == "all_reduce_2").unwrap();
    assert!(pair.1.iter().all(|one| one.with.as_deref() == Some("n2")), "{pair:?}");

    let modes = ["stat", "-c", "%U %a", STATE, &format!("{STATE}/{}", store::FILE)];
    let modes = cluster.exec("n1", modes).unwrap().ok().unwrap();
    assert_eq!(modes.stdout, "root 700\nroot 600\n");
    let aimaster = format!("{NODE_DIR}/aimaster");
    let stranger = cluster.exec_as("n1", ALICE, [aimaster.as_str(), "history", STATE]).unwrap();
    assert!(!stranger.success() && stranger.stderr.contains("ermission denied"), "{stranger:?}");
    let table = cluster.exec("n1", [aimaster.as_str(), "history"]).unwrap().ok().unwrap().stdout;
    assert!(table.contains("gemm_flops") && table.contains("all_reduce_2"), "{table}");

    // A site that does not want it.
    product::set_policy(&cluster, &format!("{POLICY}history.enabled = false")).unwrap();
    checked(&cluster);
    assert_eq!(jobs(&cluster, "gemm_flops"), ran);
}

#[test]
fn whatever_becomes_of_the_file_the_job_starts() {
    let _machine = side_by_side().unwrap();
    let cluster = product::boot(Cluster::builder().nodes(2), POLICY).unwrap();
    kept(&cluster);
    let file = format!("{STATE}/{}", store::FILE);

    // F01, F03: garbage is set aside, said once, and the job at hand begins anew.
    cluster.write_file("n1", &file, "this is no store\n").unwrap();
    let job = kept(&cluster).job.0;
    assert_eq!(jobs(&cluster, "gemm_flops"), [job]);
    let aside = cluster.read_file("n1", &format!("{STATE}/{}", store::ASIDE)).unwrap();
    assert_eq!(aside, "this is no store\n");
    let said = |line: &str| line.contains("history: ") && line.contains("was no history");
    cluster.wait_syslog("n1", said, SOON).unwrap();
    assert_eq!(cluster.syslog("n1").lines().filter(|line| said(line)).count(), 1);

    // A disk that is full, and one that can't be written to.
    for (options, word) in [("size=16k,mode=700", "can't be used"), ("ro,mode=700", "can't be opened")] {
        cluster.exec("n1", ["mount", "-t", "tmpfs", "-o", options, "state", STATE]).unwrap().ok().unwrap();
        // A disk that answered too late said something else.
        let said = (0..5).any(|_| {
            checked(&cluster);
            let line = |line: &str| line.contains("history: ") && line.contains(word);
            cluster.wait_syslog("n1", line, Duration::from_secs(3)).is_ok()
        });
        assert!(said, "{word}\n{}", cluster.syslog("n1"));
        cluster.exec("n1", ["umount", STATE]).unwrap().ok().unwrap();
    }
    // What was there before is there again.
    let last = kept(&cluster).job.0;
    assert_eq!(jobs(&cluster, "gemm_flops"), [job, last]);
}

/// A store in which n1 was so many times as fast until two jobs ago as it is now.
fn plant(cluster: &Cluster, times: f64) {
    let mut entries = Vec::new();
    for (key, series) in remembered(cluster) {
        let Some(last) = series.last().filter(|_| key.check.to_string() == "gemm_flops") else { continue };
        let at = |days: i64| Timestamp::now() - SignedDuration::from_hours(24 * days);
        let entry = |days: i64, value: f64| (key.clone(), Entry { at: at(days), value, ..last.clone() });
        // Twelve jobs that differ by some per cent.
        let before = (0..12_i32)
            .map(|day| entry(40 - i64::from(day), last.value * times * (1.0 + 0.003 * f64::from(day))));
        entries.extend(before.chain([entry(2, last.value), entry(1, last.value)]));
    }
    assert!(!entries.is_empty());
    // A folder that only root can change, as the store wants it.
    let made = std::process::Command::new("mktemp")
        .args(["-d", "/var/lib/aimaster-planted-XXXXXX"])
        .output()
        .unwrap();
    let folder = std::path::PathBuf::from(String::from_utf8(made.stdout).unwrap().trim());
    let planted = store::folder(&folder, "n1");
    let added = store::add(&planted, &entries, SOON);
    let shared = cluster.base().join("planted.redb");
    let copied = added.is_ok() && std::fs::copy(planted.join(store::FILE), &shared).is_ok();
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(copied, "{added:?}");
    let (from, to) = (shared.display().to_string(), format!("{STATE}/{}", store::FILE));
    cluster.exec("n1", ["cp", &from, &to]).unwrap().ok().unwrap();
}

#[test]
fn a_node_that_was_faster_is_told_of_and_not_drained() {
    let _machine = side_by_side().unwrap();
    let cluster = product::boot(Cluster::builder().nodes(2), POLICY).unwrap();
    let notes = |told: &Told| told.report["notes"].to_string();
    let calm = kept(&cluster);
    assert!(!notes(&calm).contains("declining"), "{calm}");

    plant(&cluster, 50.0);
    let told = kept(&cluster);
    println!("{told}");
    let said = notes(&told);
    assert!(said.contains("n1: gemm_flops is declining") && said.contains("in 12 earlier ones"), "{told}");
    assert!(!said.contains("n2:"), "{told}");
    let event = |line: &str| line.contains("event=PartDeclining") && line.contains("gemm_flops is declining");
    cluster.wait_syslog("n1", event, SOON).unwrap();
    let shown = cluster.aimaster(["report", &told.job.to_string()]).run().unwrap();
    assert!(shown.success() && shown.stdout.contains("note: n1: gemm_flops is declining"), "{shown:?}");
    let aimaster = format!("{NODE_DIR}/aimaster");
    let table = cluster.exec("n1", [aimaster.as_str(), "history"]).unwrap().ok().unwrap().stdout;
    assert!(table.contains("declining since"), "{table}");
}
