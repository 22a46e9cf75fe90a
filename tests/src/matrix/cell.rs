//! What a cell of the fault matrix is: a fault, whom it hits, when, and how the job may end. The cells themselves are
//! in `table`; nothing here runs one.

use std::fmt;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// `SIGKILL`; a node loses its power.
    Kill,
    /// `SIGSTOP`, until the prologs are over; all processes of a node.
    Stop,
    /// `SIGTERM`; a node is shut down.
    Term,
    /// `scancel` of the job by an admin.
    Cancel,
    /// `scontrol requeue` of the job by an admin.
    Requeue,
    /// `scontrol reconfigure`.
    Reconfigure,
    /// Something is not as it should be on a node.
    State(State),
    /// Every answer of the controller takes so many seconds.
    Slow(u32),
    /// No packet of the nodes reaches the controller.
    Cut,
    /// The clock of a machine jumps by so many seconds, and back when the fault is over.
    Clock(i32),
}

/// A state of a node that shell scripts make and mend. They run as root on the node, with the policy of the cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// In the table, two or three words.
    pub name: &'static str,
    /// Makes it.
    pub make: &'static str,
    /// Mends it.
    pub mend: &'static str,
}

/// The state in which the epilog's helper can open no run folder.
pub const NO_EPILOG: &str = "epilog has 4 descriptors";

/// Whom it hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// The user's `srun`.
    Srun,
    /// `slurmstepd spank prolog`, in which the plugin waits for the coordinator.
    Host,
    /// `aimaster-prolog`.
    Coordinator,
    /// `aimaster-worker`.
    Worker,
    /// `slurmstepd` of the job's own step, in which the plugin reads the gate.
    Step,
    /// `aimaster-c4d`.
    Agent,
    /// `aimaster-epilog`.
    EpilogHelper,
    /// `slurmd` of a node.
    Slurmd,
    /// `slurmctld`.
    Slurmctld,
    /// `munged` of a node.
    Munged,
    /// A whole node.
    Node,
    /// The job, or Slurm as a whole: what an admin's command names.
    Job,
}

/// The nodes of a cell's job. Two more are spare.
pub const NODES: [&str; 3] = ["n1", "n2", "n3"];

/// Which of them leads.
pub const LEADER: &str = "n1";

/// When.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Before the job is submitted (a signal for srun: as soon as it runs).
    Submit,
    /// The node's worker is there and has not said what the node is like.
    Facts,
    /// Two nodes have met, the third one is still missing.
    Join,
    /// All workers measure.
    Measure,
    /// A node was found at fault, and the leader is about to drain it.
    Act,
    /// The first gate is written.
    Launch,
    /// The user's program runs.
    Run,
    /// The epilog's helper runs on the node.
    Epilog,
}

/// How a job came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// Its program ran to its end at the first start.
    Ran,
    /// The same at a later start.
    RanAgain,
    /// Its program ran, and the job ended otherwise.
    BrokenOff,
    /// It ended without its program.
    NotStarted,
    /// It was not queued, and its user was told.
    Refused,
    /// A controller that started anew does not know it.
    Forgotten,
}

/// All of them: those of a job that had no fault in the end.
const ANY: &[End] = &[End::Ran, End::RanAgain, End::BrokenOff, End::NotStarted, End::Refused, End::Forgotten];

/// One cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// What is done.
    pub fault: Fault,
    /// To whom.
    pub target: Target,
    /// On which node; the one whose state it is.
    pub at: &'static str,
    /// When.
    pub phase: Phase,
    /// The ends that are right.
    pub ends: &'static [End],
}

impl Cell {
    /// Its name, by which it is chosen on the command line: `kill coordinator n1 measure`.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{} {} {} {}", self.fault, self.target, self.at, self.phase)
    }

    /// The same for a job that the fault missed: it may end as it likes, and all else must hold.
    #[must_use]
    pub fn missed(&self) -> Self {
        Self { ends: ANY, ..*self }
    }

    /// Whether the job is one of sbatch. Faults that Slurm answers by a requeue get one that can be requeued.
    #[must_use]
    pub fn is_batch(&self) -> bool {
        match self.target {
            Target::Srun => false,
            Target::Slurmd | Target::Slurmctld | Target::Munged | Target::Node | Target::Job => true,
            _ => self.phase == Phase::Act,
        }
    }

    /// The node that has a real fault, so that there is something to act on.
    #[must_use]
    pub fn bad(&self) -> Option<&'static str> {
        (self.phase == Phase::Act).then(|| if self.at == "n3" { "n2" } else { "n3" })
    }

    /// The node that joins last, where that is the phase.
    #[must_use]
    pub fn late(&self) -> &'static str {
        if self.at == "n3" { "n2" } else { "n3" }
    }

    /// Whether no epilog may come, or one that can do nothing: what a controller ended while its clock was ahead is over only in
    /// an hour for it. What the epilog would have removed is another job's epilog to remove.
    #[must_use]
    pub fn loses_epilogs(&self) -> bool {
        match self.fault {
            Fault::Clock(1..) => self.target == Target::Slurmctld,
            Fault::State(state) => state.name == NO_EPILOG,
            _ => false,
        }
    }

    /// Whether the whole node stands still, so that nothing on it can end in time.
    #[must_use]
    pub fn freezes_node(&self) -> bool {
        (self.fault, self.target) == (Fault::Stop, Target::Node)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kill => f.write_str("kill"),
            Self::Stop => f.write_str("stop"),
            Self::Term => f.write_str("term"),
            Self::Cancel => f.write_str("scancel"),
            Self::Requeue => f.write_str("requeue"),
            Self::Reconfigure => f.write_str("reconfigure"),
            Self::State(state) => f.write_str(state.name),
            Self::Slow(seconds) => write!(f, "answers after {seconds} s"),
            Self::Cut => f.write_str("unreachable"),
            Self::Clock(seconds) => write!(f, "clock jumps by {seconds:+} s"),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Srun => "srun",
            Self::Host => "plugin's host",
            Self::Coordinator => "coordinator",
            Self::Worker => "worker",
            Self::Step => "slurmstepd",
            Self::Agent => "agent",
            Self::EpilogHelper => "epilog helper",
            Self::Slurmd => "slurmd",
            Self::Slurmctld => "slurmctld",
            Self::Munged => "munged",
            Self::Node => "node",
            Self::Job => "job",
        })
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Submit => "submit",
            Self::Facts => "facts",
            Self::Join => "join",
            Self::Measure => "measure",
            Self::Act => "act",
            Self::Launch => "launch",
            Self::Run => "run",
            Self::Epilog => "epilog",
        })
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ran => "ran",
            Self::RanAgain => "ran at a later start",
            Self::BrokenOff => "broken off",
            Self::NotStarted => "not started",
            Self::Refused => "refused",
            Self::Forgotten => "forgotten by Slurm",
        })
    }
}
