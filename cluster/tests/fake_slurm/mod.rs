//! Scripts in place of Slurm's commands, for states that a real Slurm can't be brought into at will.
#![allow(
    clippy::unwrap_used,
    dead_code,
    reason = "helpers of tests fail like tests; each file uses its part"
)]

use std::path::PathBuf;
use std::time::Duration;

use cluster::slurm::apply::ThisRun;
use cluster::slurm::scontrol::Scontrol;
use diag::policy::Budget;
use tempfile::TempDir;
use tokio::time::Instant;

/// What 22.05 prints for a running batch job.
pub fn record(head: &str, state: &str, restarts: u32, nodes: &str, comment: &str) -> String {
    format!(
        "{head}\n   UserId=a(1) GroupId=a(1) MCS_label=N/A\n   Priority=4294901759 Nice=0 Account=(null) QOS=(null)\n   \
         JobState={state} Reason=None Dependency=(null)\n   \
         Requeue=1 Restarts={restarts} BatchFlag=1 Reboot=0 ExitCode=0:0\n   Partition=main AllocNode:Sid=ctl:0\n   \
         ReqNodeList=(null) ExcNodeList=n[7-8]\n   NodeList={nodes}\n   BatchHost=n1\n   NumNodes=1 NumCPUs=1\n   \
         Command=(null)\n   WorkDir=/tmp\n{comment}   StdErr=/tmp/slurm-1.out\n   Power=\n   \n\n"
    )
}

/// sinfo's own form of the nodes that scontrol shows, all in one partition.
const SINFO: &str = r#"
shown=$($D/scontrol show node) || exit $?
printf '%s\n' "$shown" | awk '
function flush() {
  if (name != "") printf "main\037%s\037%s\037%s\037%s\037%s\036\n", name, state, at, comment, reason
}
/^NodeName=/ { flush(); split($1, word, "="); name = word[2]; state = ""; at = "Unknown"; comment = "(null)"; reason = "none" }
/^   State=/ { state = $1; sub(/^State=/, "", state) }
/^   Comment=/ { comment = $0; sub(/^   Comment=/, "", comment) }
/^   Reason=/ {
  reason = $0; sub(/^   Reason=/, "", reason); at = reason
  sub(/.*@/, "", at); sub(/\]$/, "", at); sub(/ \[[^\[]*\]$/, "", reason)
}
END { flush() }'"#;

/// More than any test drains.
pub fn wide() -> Budget {
    Budget { held_nodes: 1000, held_fraction: 1.0, new_nodes: 1000, ..Budget::default() }
}

/// A folder with a scontrol that answers `show` from files and writes down every call.
pub struct Fake {
    pub folder: TempDir,
}

impl Fake {
    pub fn new(script: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let fake = Self { folder };
        let folder = fake.folder.path().display();
        fake.program("scontrol", &format!("D={folder}\n{script}"));
        fake.program("sinfo", &format!("D={folder}{SINFO}"));
        fake.program("scancel", &format!("echo cancel \"$@\" >> {folder}/calls"));
        fake
    }

    /// Shows `job` and `node`; everything else succeeds.
    pub fn shows(job: &str, node: &str) -> Self {
        let fake = Self::new(
            "echo \"$@\" >> $D/calls\ncase \"$1 $2\" in\n\"show job\") cat $D/job;;\n\"show node\") cat $D/node;;\nesac",
        );
        fake.put("job", job);
        fake.put("node", node);
        fake
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn put(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    /// Copied by a process of its own: a test that forks meanwhile would hold the file open for writing, and then
    /// it can't be run.
    pub fn program(&self, name: &str, script: &str) {
        self.put("text", &format!("#!/bin/sh\n{script}\n"));
        let mut install = std::process::Command::new("install");
        assert!(install.arg(self.path("text")).arg(self.path(name)).status().unwrap().success());
    }

    /// The calls; the times and the checksum of what is remembered of a node are left out.
    pub fn calls(&self) -> Vec<String> {
        let calls = std::fs::read_to_string(self.path("calls")).unwrap_or_default();
        let timeless = |call: &str| match call.split_once("aimaster{drained=") {
            Some((head, tail)) => {
                format!("{head}aimaster{{{}", tail.split_once('}').map_or(tail, |(_, rest)| rest))
            }
            None => call.to_owned(),
        };
        calls.lines().map(timeless).collect()
    }

    pub fn scontrol(&self) -> Scontrol {
        Scontrol::new(self.path("scontrol"), self.path("scancel"), None, Duration::from_secs(2))
    }
}

/// More than these calls take.
pub fn soon() -> Instant {
    Instant::now() + Duration::from_secs(4)
}

/// The run that the actions were decided for.
pub fn run(job_id: u32) -> ThisRun {
    ThisRun::starting(job_id, 0, &["n1".into(), "n2".into()], wide())
}

/// Two nodes, one of them with an admin's reason.
pub const IDLE: &str = "NodeName=n1 Arch=x86_64\n   State=MIXED+DRAIN ThreadsPerCore=1\n   \
    Reason=disk is bad [root@2026-11-29T15:00:00]\n\nNodeName=n2 Arch=x86_64\n   State=ALLOCATED ThreadsPerCore=1\n";
