//! Whether a digest keeps its bounds and does not contradict itself. The rules refuse one that does not: the node counts
//! as one whose telemetry is not known.

use std::collections::BTreeSet;

use crate::c4d::digest::{
    Comm, Digest, MAX_AGE_MS, MAX_COMM_RANKS, MAX_COMMS, MAX_FUNCS, MAX_P2P, MAX_RANKS, MAX_SAMPLES,
    MAX_STEPS, Progress, Rank, Telemetry, clean,
};

/// Most mistakes that are said of one digest; the first ones are what matters.
const MAX_MISTAKES: usize = 8;

/// Longest time of one kernel or one window that a sum may claim, in µs: a day.
const MAX_SUM_US: u64 = 24 * 3600 * 1_000_000;

/// Collects mistakes up to a bound.
#[derive(Default)]
struct Found(Vec<String>);

impl Found {
    fn unless(&mut self, holds: bool, wrong: impl FnOnce() -> String) {
        if !holds && self.0.len() < MAX_MISTAKES {
            self.0.push(wrong());
        }
    }

    fn at_most(&mut self, what: &str, count: usize, most: usize) {
        self.unless(count <= most, || format!("{count} {what}; at most {most} are taken"));
    }

    fn text(&mut self, what: &str, text: &str) {
        self.unless(clean(text) == text, || format!("{what} holds what a digest may not: {}", clean(text)));
    }
}

impl Digest {
    /// Whether it keeps its bounds.
    ///
    /// # Errors
    /// What is wrong with it, the first eight mistakes.
    pub fn check(&self) -> Result<(), Vec<String>> {
        let mut found = Found::default();
        found.at_most("ranks on one node", self.ranks.len(), MAX_RANKS);
        let mut pids = BTreeSet::new();
        for rank in self.ranks.iter().take(MAX_RANKS) {
            found.unless(pids.insert(rank.pid), || format!("process {} is there twice", rank.pid));
            of_rank(rank, &mut found);
        }
        if found.0.is_empty() { Ok(()) } else { Err(found.0) }
    }
}

fn of_rank(rank: &Rank, found: &mut Found) {
    let pid = rank.pid;
    found.text("the kernel function", &rank.process.wchan);
    if let Some(gpu) = &rank.gpu {
        found.text("a GPU's UUID", &gpu.uuid);
        found.unless(gpu.busy_percent.is_none_or(|busy| busy <= 100), || {
            format!("the GPU of process {pid} is busy for more than the whole time")
        });
    }
    if let Telemetry::Unavailable { why } = &rank.telemetry {
        found.text("a reason", why);
    }
    found.at_most("communicators of one rank", rank.comms.len(), MAX_COMMS);
    let mut ids = BTreeSet::new();
    for comm in rank.comms.iter().take(MAX_COMMS) {
        found.unless(ids.insert(comm.id), || {
            format!("communicator {:x} is there twice in process {pid}", comm.id)
        });
        of_comm(comm, found);
    }
}

fn of_comm(comm: &Comm, found: &mut Found) {
    let id = comm.id;
    found.text("a communicator's name", &comm.name);
    let sizes = (1..=MAX_COMM_RANKS).contains(&comm.nranks)
        && comm.rank < comm.nranks
        && (1..=comm.nranks).contains(&comm.nnodes);
    found.unless(sizes, || {
        let Comm { rank, nranks, nnodes, .. } = comm;
        format!("communicator {id:x}: rank {rank} of {nranks} ranks on {nnodes} nodes can't be")
    });
    found.unless(comm.age_ms <= MAX_AGE_MS, || format!("communicator {id:x} is too old"));
    found.at_most("functions of one communicator", comm.collectives.len(), MAX_FUNCS);
    found.at_most("peers of one communicator", comm.p2p.len(), MAX_P2P);
    found.at_most("samples of one communicator", comm.samples.len(), MAX_SAMPLES);
    found.at_most("steps of one communicator", comm.steps.len(), MAX_STEPS);
    let mut funcs = BTreeSet::new();
    for one in comm.collectives.iter().take(MAX_FUNCS) {
        found.unless(funcs.insert(one.func), || {
            format!("{} is there twice in communicator {id:x}", one.func.text())
        });
        of_progress(id, &one.progress, found);
    }
    let mut peers = BTreeSet::new();
    for one in comm.p2p.iter().take(MAX_P2P) {
        found.unless(one.peer < comm.nranks, || format!("communicator {id:x} has no rank {}", one.peer));
        found.unless(peers.insert((one.peer, one.send)), || {
            format!("peer {} is there twice in communicator {id:x}", one.peer)
        });
        of_progress(id, &one.progress, found);
    }
    for one in comm.steps.iter().take(MAX_STEPS) {
        found.unless(one.peer < comm.nranks, || format!("communicator {id:x} has no rank {}", one.peer));
        found.unless([one.gpu_us, one.credit_us, one.wire_us].iter().all(|wait| *wait <= MAX_SUM_US), || {
            format!("a wait in communicator {id:x} is longer than a day")
        });
    }
}

fn of_progress(id: u64, one: &Progress, found: &mut Found) {
    found.unless(one.finished <= one.started && one.started <= one.enqueued, || {
        let Progress { enqueued, started, finished, .. } = one;
        format!("communicator {id:x}: {enqueued} enqueued, {started} started, {finished} finished can't be")
    });
    let ages = [one.enqueued_age_ms, one.started_age_ms, one.finished_age_ms];
    found.unless(ages.iter().all(|age| *age <= MAX_AGE_MS), || {
        format!("an age in communicator {id:x} is too old")
    });
}
