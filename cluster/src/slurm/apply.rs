//! Carries out decided steps, each after a look at Slurm. What to do was decided before; here it is only found
//! out that something no longer applies, and then it is left undone and said so.

mod drains;

use std::time::Duration;

use diag::action::drains::Withheld;
use diag::admin_comment::{is_part, with_part};
use diag::job::JobView;
use diag::policy::Budget;
use tokio::time::{Instant, sleep};

use crate::slurm::scontrol::{Scontrol, ScontrolError};

/// Calls for one job that reach the controller, besides two for each node to drain, since it may have to be given back;
/// every job of a site may come by at the same time.
pub const MAX_CALLS: u32 = 12;
/// Rest before the controller is tried again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// States that nothing follows: a job in one of them was not requeued.
const ENDED: [&str; 8] =
    ["CANCELLED", "COMPLETED", "FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "DEADLINE", "BOOT_FAIL"];

/// What is not done without AdminComment and the nodes that the job asks for or leaves out.
const UNREADABLE: &str =
    "a name or path of the job imitates Slurm's output, so that its record can't be read";

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Take a node out of service.
    Drain {
        /// Its name.
        node: String,
        /// Why, one line.
        reason: String,
    },
    /// Put the job back into the queue, without some nodes.
    Requeue {
        /// Nodes to leave out from now on, besides those that it leaves out already.
        exclude: Vec<String>,
        /// A nice value for it.
        nice: Option<i32>,
    },
    /// Replace our part of AdminComment.
    AdminComment {
        /// `aimaster{...}`.
        part: String,
    },
    /// A line to a waiting srun or salloc.
    Notify {
        /// The line.
        text: String,
    },
    /// End the job.
    Cancel,
}

/// The run that the steps were decided for.
#[derive(Debug, Clone, PartialEq)]
pub struct ThisRun {
    /// The job's own id.
    pub job_id: u32,
    /// How often it had been restarted.
    pub restart: u32,
    /// Its nodes.
    pub nodes: Vec<String>,
    /// Whether what was found of its nodes holds as well when it is just ending: a fault while it ran often ends it, and
    /// its nodes are still its own. Drains follow then; nothing is done to the job.
    pub ending: bool,
    /// What all jobs together may take out of service.
    pub budget: Budget,
}

impl ThisRun {
    /// Of a job whose prologs run.
    #[must_use]
    pub fn starting(job_id: u32, restart: u32, nodes: &[String], budget: Budget) -> Self {
        Self { job_id, restart, nodes: nodes.to_vec(), ending: false, budget }
    }
}

/// A step and what became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepOutcome {
    /// The step.
    pub step: Step,
    /// Done (what exactly), or not (why), in words.
    pub result: Result<String, String>,
}

/// What came of the steps.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Applied {
    /// In the order of the steps.
    pub outcomes: Vec<StepOutcome>,
    /// The job as Slurm showed it before.
    pub before: Option<JobView>,
    /// The job as Slurm showed it afterwards.
    pub after: Option<JobView>,
    /// Nodes that were not drained, or not in the end, and why.
    pub withheld: Vec<Withheld>,
    /// Whether something was left undone because the controller was not reached.
    pub controller_lost: bool,
    /// Calls that were made.
    pub calls: u32,
}

/// Carries out `steps` in their order, until `deadline`.
pub async fn apply(scontrol: &Scontrol, run: &ThisRun, steps: &[Step], deadline: Instant) -> Applied {
    apply_then(scontrol, run, steps, |_| Vec::new(), deadline).await
}

/// Carries out `first`, and then what follows from what came of it: which nodes were drained is known then.
pub async fn apply_then(
    scontrol: &Scontrol,
    run: &ThisRun,
    first: &[Step],
    then: impl FnOnce(&Applied) -> Vec<Step>,
    deadline: Instant,
) -> Applied {
    let drains = first.iter().filter(|step| matches!(step, Step::Drain { .. })).count();
    let for_drains = u32::try_from(drains).unwrap_or(u32::MAX).saturating_mul(2);
    let most_calls = MAX_CALLS.saturating_add(for_drains);
    let mut work = Work {
        scontrol,
        run,
        deadline,
        most_calls,
        calls: 0,
        controller_lost: false,
        looked: false,
        job: None,
        withheld: Vec::new(),
    };
    let mut applied = Applied::default();
    work.carry_out(first, &mut applied).await;
    let rest = then(&applied);
    work.carry_out(&rest, &mut applied).await;
    if applied.outcomes.iter().any(|outcome| outcome.result.is_ok()) && work.may_call().is_ok() {
        let before = scontrol.calls();
        applied.after = scontrol.show_job(run.job_id, deadline).await.ok();
        work.calls += scontrol.calls().saturating_sub(before);
    }
    if let Some(job) = applied.after.as_ref().filter(|job| ENDED.contains(&job.state.as_str())) {
        let requeues =
            |one: &&mut StepOutcome| matches!(one.step, Step::Requeue { .. }) && one.result.is_ok();
        for one in applied.outcomes.iter_mut().filter(requeues) {
            one.result = Err(format!("Slurm did not requeue it: it is {}", job.state));
        }
    }
    applied.controller_lost = work.controller_lost;
    applied.calls = work.calls;
    applied
}

fn outcome(step: &Step, result: Result<String, String>) -> StepOutcome {
    StepOutcome { step: step.clone(), result }
}

/// Whether the job is still the run that was judged.
fn is_this_run(job: &JobView, run: &ThisRun) -> Result<(), String> {
    let sorted = |nodes: &[String]| {
        let mut nodes = nodes.to_vec();
        nodes.sort_unstable();
        nodes
    };
    let ending = run.ending && job.is_ending() && job.restarts == run.restart;
    let elsewhere = || {
        // Of a job that is ending Slurm shows the nodes that are not free yet.
        let same = if ending {
            job.nodes.iter().all(|node| run.nodes.contains(node))
        } else {
            sorted(&job.nodes) == sorted(&run.nodes)
        };
        (!same).then(|| format!("it is on other nodes by now: {}", job.nodes.join(",")))
    };
    match job.changed(run.restart).filter(|_| !ending).or_else(elsewhere) {
        Some(words) => Err(format!("job {}: {words}", job.job_id)),
        None => Ok(()),
    }
}

/// What to call a job when a field of it alone is changed: components of a heterogeneous job have ids of their
/// own, tasks of an array may share the array's.
fn field_target(job: &JobView) -> String {
    if job.het_job_id.is_some() { job.job_id.to_string() } else { job.target() }
}

struct Work<'a> {
    scontrol: &'a Scontrol,
    run: &'a ThisRun,
    deadline: Instant,
    most_calls: u32,
    calls: u32,
    controller_lost: bool,
    /// Whether the last thing done was a look at the job.
    looked: bool,
    /// What the last look at the job showed.
    job: Option<Result<JobView, String>>,
    withheld: Vec<Withheld>,
}

/// A call that came to nothing.
struct Missed {
    /// Why.
    words: String,
    /// Whether the controller was not reached. After a timeout the call may have had its effect all the same.
    unreached: bool,
}

impl Work<'_> {
    async fn carry_out(&mut self, steps: &[Step], applied: &mut Applied) {
        let mut at = 0;
        while at < steps.len() {
            let drains = steps[at..].iter().take_while(|step| matches!(step, Step::Drain { .. })).count();
            let group = &steps[at..at + drains.max(1)];
            let again = !self.looked && matches!(group[0], Step::Requeue { .. } | Step::Cancel);
            let job = match self.job.take().filter(|_| !again) {
                Some(job) => job,
                None => self.look().await,
            };
            if applied.outcomes.is_empty() {
                applied.before = job.as_ref().ok().cloned();
            }
            match &job {
                Err(because) => {
                    applied.outcomes.extend(group.iter().map(|step| outcome(step, Err(because.clone()))));
                }
                Ok(_) if drains > 0 => applied.outcomes.extend(self.drain(group).await),
                Ok(view) => applied.outcomes.push(outcome(&group[0], self.one(&group[0], view).await)),
            }
            self.job = Some(job);
            self.looked = false;
            at += group.len();
        }
        applied.withheld.append(&mut self.withheld);
    }

    fn may_call(&self) -> Result<(), String> {
        if Instant::now() >= self.deadline {
            return Err("the time for it is over".to_owned());
        }
        if self.calls >= self.most_calls {
            return Err(format!("{} calls were made already", self.calls));
        }
        Ok(())
    }

    /// Makes a call once. One that does not reach the controller costs it nothing and is not counted.
    async fn once<T>(&mut self, make: impl AsyncFn() -> Result<T, ScontrolError>) -> Result<T, Missed> {
        self.may_call().map_err(|words| Missed { words, unreached: false })?;
        let before = self.scontrol.calls();
        let result = make().await;
        let made = self.scontrol.calls().saturating_sub(before);
        let error = match result {
            Ok(value) => {
                self.calls += made;
                return Ok(value);
            }
            Err(error) => error,
        };
        let unreached = error.is_unreachable();
        if !unreached {
            self.calls += made;
        }
        Err(Missed { words: crate::chain(&error), unreached })
    }

    /// Makes a call, again while the controller is not reached, until the deadline.
    async fn call<T>(&mut self, make: impl AsyncFn() -> Result<T, ScontrolError>) -> Result<T, String> {
        loop {
            let words = match self.once(&make).await {
                Ok(value) => return Ok(value),
                Err(missed) if !missed.unreached => return Err(missed.words),
                Err(missed) => missed.words,
            };
            if Instant::now() + RETRY_PAUSE >= self.deadline {
                self.controller_lost = true;
                return Err(format!("the controller was not reached in time: {words}"));
            }
            sleep(RETRY_PAUSE).await;
        }
    }

    /// The job, if it is still this run.
    async fn look(&mut self) -> Result<JobView, String> {
        let (scontrol, run, deadline) = (self.scontrol, self.run, self.deadline);
        let job = self.call(async || scontrol.show_job(run.job_id, deadline).await).await?;
        self.looked = true;
        is_this_run(&job, run)?;
        Ok(job)
    }

    /// An action that must not be repeated blindly: before a further try the job is looked at again.
    async fn act(&mut self, make: impl AsyncFn() -> Result<(), ScontrolError>) -> Result<(), String> {
        self.may_call()?;
        let (scontrol, run, deadline) = (self.scontrol, self.run, self.deadline);
        self.call(async || match make().await {
            Err(error) if error.is_unreachable() => {
                sleep(RETRY_PAUSE.min(deadline.saturating_duration_since(Instant::now()))).await;
                match scontrol.show_job(run.job_id, deadline).await {
                    // The lost call had its effect.
                    Ok(job) if is_this_run(&job, run).is_err() => Ok(()),
                    _ => Err(error),
                }
            }
            other => other,
        })
        .await
    }

    async fn one(&mut self, step: &Step, job: &JobView) -> Result<String, String> {
        let (scontrol, deadline) = (self.scontrol, self.deadline);
        let target = job.target();
        // Slurm takes no change of it any more.
        if job.is_ending() {
            return Err("the job is ending".to_owned());
        }
        match step {
            Step::Requeue { exclude, nice } => self.requeue(job, exclude, *nice).await,
            Step::AdminComment { part } => {
                if !is_part(part) {
                    return Err("the new part of AdminComment is malformed".to_owned());
                }
                if job.unreadable {
                    return Err(UNREADABLE.to_owned());
                }
                if job.admin_comment.contains('\n') {
                    return Err(
                        "AdminComment holds line breaks and can't be read exactly: left alone".to_owned()
                    );
                }
                let text = with_part(&job.admin_comment, part);
                let fields = [("AdminComment", text.as_str())];
                let field_target = field_target(job);
                self.call(async || scontrol.update_job(&field_target, &fields, deadline).await).await?;
                Ok("AdminComment holds the verdict".to_owned())
            }
            Step::Notify { text } => {
                self.call(async || scontrol.notify(job.job_id, text, deadline).await).await?;
                Ok("the user was told".to_owned())
            }
            Step::Cancel => {
                self.act(async || scontrol.cancel(&target, deadline).await).await?;
                Ok(format!("job {target} was cancelled"))
            }
            Step::Drain { .. } => Err("drains come in groups".to_owned()),
        }
    }

    async fn requeue(
        &mut self,
        job: &JobView,
        exclude: &[String],
        nice: Option<i32>,
    ) -> Result<String, String> {
        if !job.batch {
            return Err("only batch jobs can go back to the queue".to_owned());
        }
        if job.unreadable {
            return Err(UNREADABLE.to_owned());
        }
        if !job.requeue {
            return Err("the job does not allow it (--no-requeue)".to_owned());
        }
        if let Some(node) = exclude.iter().find(|node| job.required_nodes.contains(node)) {
            return Err(format!("the job asks for {node} by name"));
        }
        let (scontrol, deadline, target) = (self.scontrol, self.deadline, job.target());
        self.act(async || scontrol.requeue(&target, deadline).await).await?;
        let mut excluded = job.excluded_nodes.clone();
        excluded.extend(exclude.iter().filter(|node| !job.excluded_nodes.contains(node)).cloned());
        let (list, nice) = (excluded.join(","), nice.map(|nice| nice.to_string()));
        let mut fields: Vec<(&str, &str)> = Vec::new();
        if !exclude.is_empty() {
            fields.push(("ExcNodeList", &list));
        }
        fields.extend(nice.as_deref().map(|nice| ("Nice", nice)));
        if fields.is_empty() {
            return Ok(format!("job {target} was requeued"));
        }
        let field_target = field_target(job);
        match self.call(async || scontrol.update_job(&field_target, &fields, deadline).await).await {
            Ok(()) => Ok(format!("job {target} was requeued; it leaves out {list}")),
            Err(because) => {
                Ok(format!("job {target} was requeued; its excluded nodes could not be set: {because}"))
            }
        }
    }
}
