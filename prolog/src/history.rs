//! What this node remembers of its own results: read while the nodes meet, held against what is measured, and added to
//! while the verdict is made. Whether a part declines is [`diag::history`]'s; trouble with the file costs the job
//! nothing but a line in the log.

mod alone;
pub mod store;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use cluster::beside::{Beside, BesideError};
use cluster::events::Events;
use diag::facts::{NodeFacts, NodeId, Roster};
use diag::gpu_facts::reading::{GpuReading, NodeReading};
use diag::gpu_facts::{self, Fact, FactKind};
use diag::history::{Entry, Here, Key, Setting, decline, is_disturbed};
use diag::measurement::{Measurement, Subject};
use diag::round::RoundResult;
use diag::wording;

use crate::assignment::Assignment;
use store::{Kept, StoreError};

/// How long a job's prolog waits for another one that has the file, which needs some milliseconds.
const LOCK_WAIT: Duration = Duration::from_millis(500);

/// How long it waits for the disk beside that; one that needs longer is in trouble, and the job does not wait for it.
const DISK_WAIT: Duration = Duration::from_millis(500);

/// Most declines that a node tells of in one job: one part that declines shows in several checks and sizes.
const MOST_TOLD: usize = 8;

/// What is done with the disk beside everything else. A thread that it keeps waiting keeps this process from its end, and the
/// plugin does not wait for that.
struct AtDisk<T>(Result<Beside<Result<T, StoreError>>, BesideError>);

impl<T: Send + 'static> AtDisk<T> {
    fn start(work: impl FnOnce() -> Result<T, StoreError> + Send + 'static) -> Self {
        Self(Beside::start("history", work))
    }

    /// What came of it; a line in the log where nothing did.
    async fn end(self, events: &Events) -> Came<T> {
        let done = match self.0 {
            Ok(beside) => beside.within(LOCK_WAIT + DISK_WAIT).await,
            Err(error) => Err(error),
        };
        let (line, came) = match done {
            Ok(Ok(done)) => return Came::Done(done),
            Ok(Err(error)) => (cluster::chain(&error), Came::Nothing),
            Err(BesideError::Late) => ("the disk does not answer".to_owned(), Came::Late),
            Err(error) => (cluster::chain(&error), Came::Nothing),
        };
        events.log(&format!("history: {line}; the checks do without"));
        came
    }
}

/// What came of something done beside.
enum Came<T> {
    /// This.
    Done(T),
    /// Nothing.
    Nothing,
    /// Nothing yet: the disk does not answer, and would not the next time.
    Late,
}

/// The history, on its way from the disk.
pub struct Recall {
    kept: Option<AtDisk<Kept>>,
    folder: PathBuf,
    alone: Option<bool>,
}

/// Starts to read the history of this node, unless the policy keeps none.
#[must_use]
pub fn recall(assignment: &Assignment) -> Recall {
    let folder = store::folder(&assignment.policy.paths.state_dir, &assignment.job.node);
    let path = folder.clone();
    let kept =
        assignment.policy.history.enabled.then(|| AtDisk::start(move || store::read(&path, LOCK_WAIT)));
    Recall { kept, folder, alone: alone::alone(&assignment.job) }
}

/// What the node remembers, and what of it was told in this job.
pub struct Past {
    /// `None`: the policy keeps none, or the disk does not answer.
    here: Option<Here>,
    folder: PathBuf,
    job_id: u32,
    kept: Kept,
    seen: BTreeSet<Key>,
    told: Vec<String>,
}

impl Recall {
    /// Waits for the history.
    pub async fn arrive(
        self,
        assignment: &Assignment,
        (facts, reading): (&NodeFacts, Option<&NodeReading>),
        events: &Events,
    ) -> Past {
        let mut here = self.kept.is_some().then(|| here(assignment, facts, reading, self.alone));
        let kept = match self.kept {
            Some(kept) => match kept.end(events).await {
                Came::Done(kept) => kept,
                Came::Nothing => Kept::new(),
                Came::Late => {
                    // No second thread is left to it, and no second time waited for.
                    here = None;
                    Kept::new()
                }
            },
            None => Kept::new(),
        };
        let job_id = assignment.job.job_id;
        Past { here, folder: self.folder, job_id, kept, seen: BTreeSet::new(), told: Vec::new() }
    }
}

fn here(
    assignment: &Assignment,
    facts: &NodeFacts,
    reading: Option<&NodeReading>,
    alone: Option<bool>,
) -> Here {
    let gpus = || reading.into_iter().flat_map(|reading| &reading.gpus);
    let by_number = |text: &dyn Fn(&GpuReading) -> Option<String>| -> BTreeMap<u32, String> {
        gpus().filter_map(|gpu| Some((gpu_facts::number(&gpu.device), text(gpu)?))).collect()
    };
    let driver = reading.and_then(|reading| reading.driver_version.clone());
    let setting = Setting {
        version: facts.version.clone(),
        libraries: facts.libraries.clone(),
        driver: driver.unwrap_or_default(),
        clocks: String::new(),
    };
    let caused = facts.known.facts.iter().filter(|fact| fact.kind == FactKind::Cause);
    Here {
        me: assignment.job.me,
        engine: assignment.policy.engine,
        uuids: by_number(&|gpu| gpu.device.uuid.clone()),
        alone,
        ranks: crate::engine::ranks(assignment),
        nvls: assignment.policy.cuda.nvls,
        setting,
        clocks: by_number(&clocks),
        caused: caused.map(|fact| fact.subject.clone()).collect(),
    }
}

/// How somebody has set a GPU's clocks and power.
fn clocks(gpu: &GpuReading) -> Option<String> {
    let clock = gpu.clocks.sm_set_mhz.map(|mhz| format!("{mhz} MHz"));
    let power = gpu.power.enforced_limit_mw.map(|limit| format!("{} W", limit / 1000));
    let parts: Vec<String> = clock.into_iter().chain(power).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

impl Past {
    /// Of a check that is no job's: nothing is held against it, and nothing kept.
    #[must_use]
    pub fn none() -> Self {
        Self {
            here: None,
            folder: PathBuf::new(),
            job_id: 0,
            kept: Kept::new(),
            seen: BTreeSet::new(),
            told: Vec::new(),
        }
    }

    /// Adds to the numbers of this node what its history says of them: a note each, once in a job.
    pub fn compare(&mut self, roster: &Roster, numbers: &mut [Measurement]) {
        let Some(here) = &self.here else { return };
        if is_disturbed(numbers) {
            return;
        }
        for one in numbers {
            let Some((key, with)) = here.key(roster, one) else { continue };
            let series = self.kept.get(&key).map_or(&[][..], Vec::as_slice);
            let now = Entry {
                at: one.finished_at,
                job_id: self.job_id,
                value: one.value,
                with,
                setting: here.setting_of(&one.subject),
            };
            if self.told.len() >= MOST_TOLD || !self.seen.insert(key) {
                continue;
            }
            let Some(found) = decline(one.metric, series, &now) else { continue };
            let part = own_part(here.me, &one.subject);
            let check = format!("{}{}", one.check, wording::which(one.metric, one.bytes));
            let words = found.words(&wording::subject(roster, &part), &check, one.metric);
            self.told.push(words.clone());
            one.facts.push(Fact { subject: part, kind: FactKind::Note, words });
            one.facts = gpu_facts::bounded(std::mem::take(&mut one.facts));
        }
    }

    /// What was told in this job, one line each.
    #[must_use]
    pub fn told(&self) -> &[String] {
        &self.told
    }

    /// Starts to keep this node's numbers.
    #[must_use]
    pub fn keep(self, roster: &Roster, results: &[RoundResult]) -> Keeping {
        let entries = self.here.map(|here| here.entries(roster, results, self.job_id)).unwrap_or_default();
        let folder = self.folder;
        if entries.is_empty() {
            return Keeping(None);
        }
        Keeping(Some(AtDisk::start(move || store::add(&folder, &entries, LOCK_WAIT))))
    }
}

/// The part of this node that a number says something of.
fn own_part(me: NodeId, subject: &Subject) -> Subject {
    match subject {
        Subject::Pair { .. } => Subject::Node { node: me },
        Subject::PairRail { rail, .. } => Subject::Rail { node: me, index: *rail },
        own => own.clone(),
    }
}

/// This node's numbers, on their way to the disk.
pub struct Keeping(Option<AtDisk<()>>);

impl Keeping {
    /// Waits until they are there, or is done without.
    pub async fn end(self, events: &Events) {
        if let Some(keeping) = self.0 {
            _ = keeping.end(events).await;
        }
    }
}
