//! What `scontrol`, `squeue` and `sinfo` print, of which a job's name, comment and paths are its user's.
//!
//! The first byte says which: `j`, `n`, `q`, `s` bytes in place of what they print of jobs, nodes, the queue and all nodes;
//! `u` a list of a job's name, comment and folder inside of what Slurm itself prints.

use cluster::slurm::{picture, queue, show};
use diag::hostlist::MAX_NAMES;

use crate::holds;

/// Longest line about what can't be believed.
const MOST_BYTES: usize = 1024;

/// Whatever is printed is read or refused in a line, and a user can hide his job's record, but not change it.
pub fn run(data: &[u8]) {
    let Some((kind, rest)) = data.split_first() else { return };
    let text = holds::text(rest);
    match kind {
        b'j' => {
            told(show::job(&text, 5));
            told(show::gres(&text, 5));
            if let Some(selector) = show::selector(&text, 5) {
                assert!(selector.chars().all(|c| c.is_ascii_digit() || "_+".contains(c)), "{selector}");
            }
            _ = show::other_components_start(&text, 5);
        }
        b'n' => {
            if let Some(node) = told(show::node(&text, "n1")) {
                assert!(node.name == "n1" && !node.state.is_empty());
                _ = node.is_taken();
            }
            told(show::place(&text, "n1"));
            for flag in show::states(&text) {
                assert!(!flag.is_empty() && flag == flag.to_ascii_uppercase());
            }
        }
        b'q' => {
            if let Some(job) = told(queue::job(&text, 5)) {
                assert!(job.unreadable && job.admin_comment.is_empty() && job.nodes.len() <= MAX_NAMES);
            }
            told(queue::neighbours(&text));
        }
        b's' => {
            if let Some(seen) = told(picture::picture(&text)) {
                assert!(!seen.rows.is_empty());
                _ = seen.held();
            }
        }
        b'u' => users_words(rest),
        _ => {}
    }
}

fn told<T>(read: Result<T, show::ShowError>) -> Option<T> {
    read.map_err(|error| holds::line(&error.to_string(), MOST_BYTES)).ok()
}

fn users_words(data: &[u8]) {
    let mut parts = holds::parts(data).map(holds::text);
    // Slurm's strings end with a NUL.
    let mut next = || parts.next().unwrap_or_default().replace('\0', "");
    let (name, comment, folder) = (next(), next(), next());
    let text = record(&name, &comment, &folder, ADMIN_COMMENT);
    // Where no admin noted anything Slurm shows no such line, and a user's words can stand for one: that is all they can.
    if let Ok(mut job) = show::job(&record(&name, &comment, &folder, ""), 5) {
        job.admin_comment.clear();
        assert_eq!(job, show::job(&record("x", "x", "/tmp", ""), 5).unwrap(), "without a note in {text}");
    }
    let Some(job) = told(show::job(&text, 5)) else { return };
    assert_eq!(job, show::job(&record("x", "x", "/tmp", ADMIN_COMMENT), 5).unwrap(), "in {text}");
    if let Some(gres) = told(show::gres(&text, 5)) {
        assert_eq!(gres.into_iter().collect::<Vec<_>>(), ["gpu"], "in {text}");
    }
    // No other record can be asked for in its name.
    assert_eq!(show::selector(&text, 5), None);
}

/// What an admin and this software noted of a job.
const ADMIN_COMMENT: &str = "   AdminComment=aimaster{n=3 requeues=2} \n";

/// A job as Slurm 22.05 prints it with details, with what its user wrote, and what an admin noted.
fn record(name: &str, comment: &str, folder: &str, note: &str) -> String {
    format!(
        "JobId=5 JobName={name}\n   UserId=a(1) GroupId=a(1) MCS_label=N/A\n   \
         Priority=4294901759 Nice=0 Account=(null) QOS=(null)\n   \
         JobState=RUNNING Reason=None Dependency=(null)\n   \
         Requeue=1 Restarts=3 BatchFlag=1 Reboot=0 ExitCode=0:0\n   Partition=main AllocNode:Sid=ctl:0\n   \
         ReqNodeList=n[1-2] ExcNodeList=n[7-8]\n   NodeList=n[1-2]\n   BatchHost=n1\n   NumNodes=2 NumCPUs=2\n   \
         JOB_GRES=gpu:2\n     Nodes=n[1-2] CPU_IDs=0 Mem=0 GRES=gpu:1\n   \
         Command={folder}/run\n   WorkDir={folder}\n{note}   \
         Comment={comment} \n   StdErr={folder}/slurm-5.out\n   Power=\n   \n\n"
    )
}
