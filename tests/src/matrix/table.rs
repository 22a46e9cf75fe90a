//! The cells, as data. A new one is a row: what is done, to whom on which node, in which phases, and how the job may end
//! then. The invariants that hold for every cell are in `judge`.

use super::cell::{Cell, End, Fault, NO_EPILOG, Phase, State, Target};

use End::{BrokenOff, Forgotten, NotStarted, Ran, RanAgain, Refused};
use Fault::{Cancel, Clock, Cut, Kill, Reconfigure, Requeue, Slow, Stop, Term};
use Phase::{Act, Epilog, Facts, Join, Launch, Measure, Run, Submit};

/// Several cells that end alike.
struct Row(&'static [Fault], Target, &'static str, &'static [Phase], &'static [End]);

/// The signals.
const ALL: &[Fault] = &[Kill, Stop, Term];

/// An hour forth and back.
const JUMPS: &[Fault] = &[Clock(3600), Clock(-3600)];

/// Phases of the prolog in which nobody is at fault.
const BEFORE: &[Phase] = &[Facts, Join, Measure];

/// The job is told that something was not done, and starts.
const STARTS: &[End] = &[Ran];

/// A node is at fault, so the job goes back to the queue and starts without it; where nobody is left who acts, it starts
/// as on_error says.
const ACTED: &[End] = &[RanAgain, Ran];

/// The job loses a node or its controller: Slurm requeues it or ends it. Nothing of that is ours.
const SLURM_S: &[End] = &[Ran, RanAgain, BrokenOff, NotStarted];

/// The same where the controller may have lost what it had not yet written down.
const CONTROLLER_S: &[End] = &[Ran, RanAgain, BrokenOff, NotStarted, Refused, Forgotten];

/// The user's own command is gone, and the job with it.
const ENDS: &[End] = &[Ran, BrokenOff, NotStarted];

const ROWS: &[Row] = &[
    // The user's command.
    Row(ALL, Target::Srun, "ctl", &[Submit], &[Ran, NotStarted, Refused]),
    Row(ALL, Target::Srun, "ctl", &[Facts, Join, Measure, Act, Launch, Run], ENDS),
    // The process that holds the plugin. Slurm takes a prolog that is killed for one that failed.
    Row(ALL, Target::Host, "n1", &[Facts, Join, Measure], SLURM_S),
    Row(ALL, Target::Host, "n1", &[Act], SLURM_S),
    Row(ALL, Target::Host, "n3", &[Measure], SLURM_S),
    Row(ALL, Target::Step, "n1", &[Launch, Run], SLURM_S),
    // Our own.
    Row(ALL, Target::Coordinator, "n1", BEFORE, STARTS),
    Row(ALL, Target::Coordinator, "n3", BEFORE, STARTS),
    Row(ALL, Target::Coordinator, "n1", &[Act], ACTED),
    Row(ALL, Target::Coordinator, "n2", &[Act], &[RanAgain]),
    Row(ALL, Target::Coordinator, "n1", &[Launch], STARTS),
    Row(ALL, Target::Worker, "n1", &[Facts, Measure], STARTS),
    Row(ALL, Target::Worker, "n3", BEFORE, STARTS),
    Row(ALL, Target::Agent, "n1", &[Launch, Run, Epilog], STARTS),
    Row(ALL, Target::Agent, "n3", &[Run], STARTS),
    Row(ALL, Target::EpilogHelper, "n1", &[Epilog], STARTS),
    // Slurm's and munge's daemons.
    Row(ALL, Target::Slurmd, "n1", &[Submit, Facts, Join, Measure, Act, Launch, Run, Epilog], SLURM_S),
    Row(ALL, Target::Slurmd, "n3", &[Measure, Run], SLURM_S),
    Row(
        ALL,
        Target::Slurmctld,
        "ctl",
        &[Submit, Facts, Join, Measure, Act, Launch, Run, Epilog],
        CONTROLLER_S,
    ),
    Row(ALL, Target::Munged, "n1", &[Submit, Facts, Join, Measure, Act, Launch, Run, Epilog], SLURM_S),
    Row(ALL, Target::Munged, "n3", &[Submit, Join], SLURM_S),
    Row(ALL, Target::Munged, "ctl", &[Measure, Act], CONTROLLER_S),
    // A whole node.
    Row(ALL, Target::Node, "n1", &[Submit, Facts, Join, Measure, Act, Launch, Run, Epilog], SLURM_S),
    Row(ALL, Target::Node, "n3", &[Facts, Join, Measure, Run], SLURM_S),
    // An admin.
    Row(&[Cancel], Target::Job, "ctl", &[Facts, Join, Measure, Act], &[NotStarted]),
    Row(&[Cancel], Target::Job, "ctl", &[Launch, Run, Epilog], ENDS),
    Row(&[Requeue], Target::Job, "ctl", &[Facts, Join, Measure, Act, Launch, Run], &[RanAgain]),
    Row(&[Requeue], Target::Job, "ctl", &[Epilog], &[Ran, RanAgain]),
    Row(&[Reconfigure], Target::Job, "ctl", &[Facts, Join, Measure, Launch, Run, Epilog], STARTS),
    Row(&[Reconfigure], Target::Job, "ctl", &[Act], &[RanAgain]),
    // The controller.
    Row(&[Slow(1), Slow(5)], Target::Slurmctld, "ctl", &[Submit], STARTS),
    Row(&[Slow(1)], Target::Slurmctld, "ctl", &[Act], ACTED),
    Row(&[Slow(5)], Target::Slurmctld, "ctl", &[Act], ACTED),
    Row(&[Cut], Target::Slurmctld, "ctl", &[Join, Measure, Launch, Run, Epilog], SLURM_S),
    Row(&[Cut], Target::Slurmctld, "ctl", &[Act], SLURM_S),
    // Clocks. MUNGE takes nobody's word who is more than five minutes off, so that Slurm loses the node as long as it is.
    Row(JUMPS, Target::Node, "n1", &[Submit, Facts, Join, Measure, Act, Launch, Run, Epilog], SLURM_S),
    Row(JUMPS, Target::Node, "n3", &[Join, Measure, Run], SLURM_S),
    Row(JUMPS, Target::Slurmctld, "ctl", &[Join, Measure, Act, Launch, Run, Epilog], CONTROLLER_S),
];

/// A state that holds on a node from before the submission until the job is over.
const fn state(name: &'static str, make: &'static str, mend: &'static str) -> Fault {
    Fault::State(State { name, make, mend })
}

/// A limit under which a program of ours starts (`ulimit`).
const fn limit(name: &'static str, make: &'static str, mend: &'static str) -> Fault {
    state(name, make, mend)
}

/// A memory group in which a program of ours starts, with all that it starts: the kernel kills what needs more than is left.
macro_rules! memory {
    ($name:literal, $bytes:literal, $program:literal) => {
        state(
            $name,
            concat!(
                memory!(), "mkdir -p $group; echo ", $bytes, " >$group/$file; \
                 echo \"echo \\$\\$ >$group/cgroup.procs\" >/run/limit.", $program
            ),
            concat!(
                "rm /run/limit.*; ", memory!(),
                "for i in {1..100}; do rmdir $group && exit; sleep 0.1; done; exit 1"
            ),
        )
    };
    () => {
        "top=/sys/fs/cgroup/memory; file=memory.limit_in_bytes; \
         if [ ! -d $top ]; then top=/sys/fs/cgroup; file=memory.max; echo +memory >$top/cgroup.subtree_control; fi; \
         group=$top/aimaster-tests-memory${DIR//\\//-}; "
    };
}

const STATES: &[Fault] = &[
    state(
        "state folder is full",
        "mkdir -p /var/lib/aimaster; mount -t tmpfs -o size=16k,mode=755 x /var/lib/aimaster; \
         head -c 64k /dev/zero >/var/lib/aimaster/fill; true",
        "umount -l /var/lib/aimaster",
    ),
    state(
        "state folder is read-only",
        "mkdir -p /var/lib/aimaster; mount -t tmpfs -o ro,mode=755 x /var/lib/aimaster",
        "umount -l /var/lib/aimaster",
    ),
    state(
        "state folder is a file",
        "rm -rf /var/lib/aimaster; touch /var/lib/aimaster",
        "rm -f /var/lib/aimaster",
    ),
    state(
        "run folder is full",
        "mkdir -p /run/aimaster; mount -t tmpfs -o size=4k,nr_inodes=2,mode=755 x /run/aimaster; \
         head -c 64k /dev/zero >/run/aimaster/fill; true",
        "umount -l /run/aimaster",
    ),
    state(
        "run folder is read-only",
        "mkdir -p /run/aimaster; mount -t tmpfs -o ro,mode=755 x /run/aimaster",
        "umount -l /run/aimaster",
    ),
    state(
        "report folder is full",
        "mkdir -p $REPORTS; mount -t tmpfs -o size=4k,nr_inodes=2,mode=755 x $REPORTS; \
         head -c 64k /dev/zero >$REPORTS/fill; true",
        "umount -l $REPORTS",
    ),
    state(
        "report folder is read-only",
        "mkdir -p $REPORTS; mount -t tmpfs -o ro,mode=755 x $REPORTS",
        "umount -l $REPORTS",
    ),
    state("/tmp is read-only", "mount -t tmpfs -o ro,mode=1777 x /tmp", "umount -l /tmp"),
    state(
        "no /dev/shm",
        "umount -l /dev/shm; umount -l $DIR/dev/shm; rmdir /dev/shm",
        "mkdir /dev/shm; mount -t tmpfs -o mode=1777 shm $DIR/dev/shm; mount --bind $DIR/dev/shm /dev/shm",
    ),
    state("no /dev/log", "mv /dev/log /dev/log.away", "mv /dev/log.away /dev/log"),
    state("no policy", "mount -t tmpfs -o mode=755 x /etc/aimaster", "umount -l /etc/aimaster"),
    state(
        "policy is no TOML",
        "mount -t tmpfs -o mode=755 x /etc/aimaster; echo '[[[' >/etc/aimaster/aimaster.toml",
        "umount -l /etc/aimaster",
    ),
    state(
        "own name is loopback",
        "(echo 127.0.0.1 localhost $NODE; cat /etc/hosts) >/run/hosts; mount --bind /run/hosts /etc/hosts",
        "umount -l /etc/hosts; rm /run/hosts",
    ),
    state("no host names", "mount --bind /dev/null /etc/hosts", "umount -l /etc/hosts"),
    limit("coordinator has 4 descriptors", "echo ulimit -n 4 >/run/limit.aimaster-prolog", "rm /run/limit.*"),
    limit("coordinator has 8 descriptors", "echo ulimit -n 8 >/run/limit.aimaster-prolog", "rm /run/limit.*"),
    limit(
        "coordinator has 12 descriptors",
        "echo ulimit -n 12 >/run/limit.aimaster-prolog",
        "rm /run/limit.*",
    ),
    limit(
        "coordinator has 16 descriptors",
        "echo ulimit -n 16 >/run/limit.aimaster-prolog",
        "rm /run/limit.*",
    ),
    limit(
        "coordinator has 24 descriptors",
        "echo ulimit -n 24 >/run/limit.aimaster-prolog",
        "rm /run/limit.*",
    ),
    limit("coordinator has 8 MB", "echo ulimit -v 8000 >/run/limit.aimaster-prolog", "rm /run/limit.*"),
    limit("coordinator has 16 MB", "echo ulimit -v 16000 >/run/limit.aimaster-prolog", "rm /run/limit.*"),
    limit("coordinator has 32 MB", "echo ulimit -v 32000 >/run/limit.aimaster-prolog", "rm /run/limit.*"),
    limit("coordinator writes no file", "echo ulimit -f 0 >/run/limit.aimaster-prolog", "rm /run/limit.*"),
    limit("worker has 6 descriptors", "echo ulimit -n 6 >/run/limit.aimaster-worker", "rm /run/limit.*"),
    limit("worker has 16 MB", "echo ulimit -v 16000 >/run/limit.aimaster-worker", "rm /run/limit.*"),
    limit("worker has 100 MB", "echo ulimit -v 100000 >/run/limit.aimaster-worker", "rm /run/limit.*"),
    memory!("coordinator's group has 6 MB", "6M", "aimaster-prolog"),
    limit(NO_EPILOG, "echo ulimit -n 4 >/run/limit.aimaster-epilog", "rm /run/limit.*"),
    limit("epilog has 8 descriptors", "echo ulimit -n 8 >/run/limit.aimaster-epilog", "rm /run/limit.*"),
    limit("epilog has 8 MB", "echo ulimit -v 8000 >/run/limit.aimaster-epilog", "rm /run/limit.*"),
];

/// All cells, in the order of the table.
#[must_use]
pub fn cells() -> Vec<Cell> {
    let signals = ROWS.iter().flat_map(|Row(faults, target, at, phases, ends)| {
        phases.iter().flat_map(move |phase| {
            faults.iter().map(move |fault| Cell { fault: *fault, target: *target, at, phase: *phase, ends })
        })
    });
    let states = STATES.iter().flat_map(|fault| {
        ["n1", "n3"].map(|at| Cell { fault: *fault, target: Target::Node, at, phase: Submit, ends: STARTS })
    });
    signals.chain(states).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_cell_is_there_once() {
        let all = cells();
        let names: BTreeSet<String> = all.iter().map(Cell::name).collect();
        assert_eq!(names.len(), all.len());
    }
}
