//! One round with Slurm: the job is looked at, what is wanted is decided, what still applies is done. It runs on a thread
//! of its own and may take its time, within bounds.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use cluster::events::Events;
use cluster::order::Order;
use cluster::slurm::apply::{Applied, Step, ThisRun, apply_then};
use cluster::slurm::scontrol::Scontrol;
use diag::admin_comment::{self, runtime_part};
use diag::c4d::decide::{self, RuntimeAction, RuntimeCase, Wanted, decide};
use diag::c4d::finding::{Class, Finding};
use diag::c4d::settings::Settings;
use diag::facts::{NodeId, Roster, RosterEntry};
use diag::job::JobView;
use diag::policy::{Actions, Policy};
use diag::request::FailAction;
use diag::topology::Leaves;
use diag::verdict::{Finding as Item, Outcome};
use jiff::Timestamp;
use tokio::time::Instant;

use crate::c4d::acts::Standing;
use crate::c4d::report::Act;

/// How long a round may take: a controller that restarts is back by then.
const ROUND: Duration = Duration::from_secs(30);

/// What does not change while the job runs.
#[derive(Debug, Clone)]
pub(super) struct Case {
    pub me: NodeId,
    pub roster: Roster,
    run: ThisRun,
    fail_action: FailAction,
    actions: Actions,
    settings: Settings,
    by_site: bool,
    /// Nobody knows what the other nodes show.
    apart: bool,
    scontrol: PathBuf,
    scancel: PathBuf,
    slurm_conf: Option<PathBuf>,
    per_call: Duration,
}

impl Case {
    pub fn new(order: &Order, policy: &Policy) -> Self {
        let entry =
            |name: &String| RosterEntry { name: name.as_str().into(), joined: None, absent_because: None };
        let (job_id, restart) = (order.job.job_id, order.job.restart);
        Self {
            me: order.me,
            roster: Roster {
                nodes: order.nodes.iter().map(entry).collect(),
                leader: 0,
                leaves: Leaves::default(),
            },
            run: ThisRun { ending: true, ..ThisRun::starting(job_id, restart, &order.nodes, policy.budget) },
            fail_action: order.fail_action,
            actions: policy.actions.clone(),
            settings: policy.c4d,
            by_site: policy.runtime.always,
            apart: order.nodes.len() > 1 && order.met.is_none(),
            scontrol: policy.paths.scontrol.clone(),
            scancel: policy.paths.scancel.clone(),
            slurm_conf: order.slurm_conf.clone(),
            per_call: Duration::from_secs(policy.time.scontrol_s.into()),
        }
    }

    fn check_number(&self) -> u32 {
        self.run.restart.saturating_add(1)
    }
}

/// What talks to Slurm, and remembers what it did.
pub(super) struct Hand {
    case: Case,
    events: Events,
    scontrol: Scontrol,
    /// Nodes that were drained, and those that were left alone: each is tried once.
    drained: Vec<String>,
    left: BTreeSet<String>,
    requeued: bool,
    comment: Option<String>,
    /// What was said already: the same obstacle is met in every round.
    said: BTreeSet<String>,
    again: bool,
}

impl Hand {
    pub fn new(case: Case, events: Events) -> Self {
        let (scontrol, scancel) = (case.scontrol.clone(), case.scancel.clone());
        let scontrol = Scontrol::new(scontrol, scancel, case.slurm_conf.clone(), case.per_call);
        Self {
            case,
            events,
            scontrol,
            drained: Vec::new(),
            left: BTreeSet::new(),
            requeued: false,
            comment: None,
            said: BTreeSet::new(),
            again: false,
        }
    }

    /// Whether the controller was not reached: another round may do what this one could not.
    pub fn wants_again(&self) -> bool {
        self.again
    }

    /// Looks, decides, acts. What was done and what was not.
    pub fn round(&mut self, standing: &Standing) -> Vec<Act> {
        // In the next run of the job its own agents act.
        if self.requeued {
            return Vec::new();
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        match runtime {
            Ok(runtime) => runtime.block_on(self.bounded(standing)),
            Err(error) => self.undone(&[format!("no way to Slurm's commands: {error}")]),
        }
    }

    async fn bounded(&mut self, standing: &Standing) -> Vec<Act> {
        let deadline = Instant::now() + ROUND;
        let job = self.scontrol.show_job(self.case.run.job_id, deadline).await;
        self.again = job.as_ref().is_err_and(cluster::slurm::scontrol::ScontrolError::is_unreachable);
        let job = job.ok();
        let hardware: Vec<Item> = standing
            .hardware
            .iter()
            .map(|(node, event)| decide::hardware_item(*node, self.case.roster.name(*node), event))
            .collect();
        let (findings, beside) = self.not_beside_others(&standing.findings, deadline).await;
        let wanted = decide(RuntimeCase {
            fail_action: self.case.fail_action,
            policy: &self.case.actions,
            settings: &self.case.settings,
            by_site: self.case.by_site,
            job: job.as_ref(),
            roster: &self.case.roster,
            findings: &findings,
            hardware: &hardware,
            coverage: &standing.coverage,
            job_id: self.case.run.job_id,
            check_number: self.case.check_number(),
        });
        let line = decide::line(&standing.findings, &hardware, &self.case.roster);
        let (drains, mut obstacles) = self.drains(&wanted, job.as_ref());
        obstacles.extend(beside);
        if self.case.apart && matches!(wanted.job, RuntimeAction::Requeue { .. }) {
            obstacles.push("the job is not requeued: its nodes did not meet".into());
        }
        let rest = |so_far: &Applied| self.rest(&wanted, job.as_ref(), &line, so_far);
        let applied = apply_then(&self.scontrol, &self.case.run, &drains, rest, deadline).await;
        for line in cluster::events::withheld(&applied.withheld) {
            self.events.event(&line, true);
        }
        self.again |= applied.controller_lost;
        let mut acts = self.taken_down(&applied);
        let unwanted = if wanted.job == RuntimeAction::Keep { wanted.notes.as_slice() } else { &[] };
        acts.extend(self.undone(&[&obstacles, unwanted].concat()));
        if !acts.is_empty() {
            self.tell(&wanted, &acts);
        }
        acts
    }

    /// The findings without those that another job's load on the same node may explain, where they would be acted on; and
    /// words for these. What hangs is nobody's load.
    async fn not_beside_others(
        &self,
        findings: &[Finding],
        deadline: Instant,
    ) -> (Vec<Finding>, Vec<String>) {
        let by_load = |one: &Finding| matches!(one.class, Class::Straggler | Class::CommunicationSlow);
        let acts = self.case.settings.telemetry_may_drain && self.case.fail_action != FailAction::Retain;
        let nodes: BTreeSet<NodeId> =
            findings.iter().filter(|one| by_load(one)).flat_map(|one| one.subject.nodes()).collect();
        if !acts || nodes.is_empty() {
            return (findings.to_vec(), Vec::new());
        }
        let names: Vec<String> = nodes.iter().map(|node| self.case.roster.name(*node).to_owned()).collect();
        let others = self.scontrol.neighbours(self.case.run.job_id, &names, deadline).await;
        let mut words = Vec::new();
        let kept = findings.iter().filter(|one| {
            let on = one.subject.nodes();
            let mut named = on.iter().map(|node| self.case.roster.name(*node));
            let other = match &others {
                _ if !by_load(one) => None,
                Ok(others) => {
                    named.find_map(|name| Some(format!("job {} runs on {name} as well", others.get(name)?)))
                }
                Err(error) => {
                    Some(format!("whether other jobs run there is not known: {}", cluster::chain(error)))
                }
            };
            words.extend(other.iter().map(|why| format!("nothing is done about a {}: {why}", one.class)));
            other.is_none()
        });
        let kept = kept.cloned().collect();
        (kept, words)
    }

    /// The drains that are not done yet, which come first; and why there are no more.
    fn drains(&self, wanted: &Wanted, job: Option<&JobView>) -> (Vec<Step>, Vec<String>) {
        let (mut steps, mut obstacles) = (Vec::new(), Vec::new());
        // Before the start, or by the node that spoke before this one.
        let comment = job.map_or("", |job| job.admin_comment.as_str());
        let mut gone: BTreeSet<&str> =
            admin_comment::drained(comment, self.case.check_number()).into_iter().collect();
        gone.extend(self.drained.iter().map(String::as_str));
        let fresh: Vec<_> = wanted
            .drains
            .iter()
            .filter(|drain| !gone.contains(drain.node.as_str()) && !self.left.contains(&drain.node))
            .collect();
        let most = decide::most_drains(&self.case.actions, self.case.roster.nodes.len());
        if fresh.is_empty() {
        } else if self.case.apart {
            obstacles.push(
                "nobody is drained: the job's nodes did not meet, and what the others show is not known"
                    .into(),
            );
        } else if gone.len() + fresh.len() > most {
            obstacles.push(format!("nobody more is drained: {most} nodes are the most for this job"));
        } else {
            steps.extend(
                fresh
                    .iter()
                    .map(|drain| Step::Drain { node: drain.node.clone(), reason: drain.reason.clone() }),
            );
        }
        let drains = self.case.actions.drain_on.contains(&self.case.fail_action);
        if drains && wanted.verdict.outcome == Outcome::Environment {
            obstacles.push(format!("nobody is drained: {}", wanted.verdict.summary));
        }
        (steps, obstacles)
    }

    /// Then the job, and last our part of its comment: what is not done yet.
    fn rest(&self, wanted: &Wanted, job: Option<&JobView>, line: &str, so_far: &Applied) -> Vec<Step> {
        let mut steps = Vec::new();
        if let RuntimeAction::Requeue { exclude } = &wanted.job
            && !self.case.apart
        {
            steps.push(Step::Requeue { exclude: exclude.clone(), nice: self.case.actions.requeue_nice });
        }
        // Of a job that is ending nothing can be changed any more.
        if let Some(job) = job.filter(|job| !job.is_ending()) {
            let requeued = steps.iter().any(|step| matches!(step, Step::Requeue { .. }));
            let now = so_far.outcomes.iter().filter(|one| one.result.is_ok());
            let now = now.filter_map(|one| match &one.step {
                Step::Drain { node, .. } => Some(node.as_str()),
                _ => None,
            });
            let drained: Vec<&str> = self.drained.iter().map(String::as_str).chain(now).collect();
            let part = runtime_part(&job.admin_comment, self.case.check_number(), requeued, &drained, line);
            // A job of which there is nothing to say keeps its comment as it is.
            let tried = !steps.is_empty() || !so_far.outcomes.is_empty();
            let silent = line.is_empty() && !tried && self.comment.is_none();
            if !silent && self.comment.as_ref() != Some(&part) {
                steps.push(Step::AdminComment { part });
            }
        }
        steps
    }

    /// Remembers and words what came of the steps.
    fn taken_down(&mut self, applied: &Applied) -> Vec<Act> {
        let mut acts = Vec::new();
        for one in &applied.outcomes {
            match (&one.step, &one.result) {
                (Step::Drain { node, reason }, Ok(what)) => {
                    self.drained.push(node.clone());
                    acts.push(act(true, format!("{what}: {reason}")));
                }
                (Step::Drain { node, .. }, Err(because)) => {
                    if !applied.controller_lost {
                        self.left.insert(node.clone());
                    }
                    acts.extend(self.undone(&[format!("drain of {node}: {because}")]));
                }
                (Step::Requeue { .. }, Ok(what)) => {
                    self.requeued = true;
                    acts.push(act(true, what.clone()));
                }
                (Step::Requeue { .. }, Err(because)) => {
                    acts.extend(self.undone(&[format!("requeue: {because}")]));
                }
                (Step::AdminComment { part }, Ok(_)) => self.comment = Some(part.clone()),
                (Step::AdminComment { .. }, Err(because)) => {
                    acts.extend(self.undone(&[format!("AdminComment: {because}")]));
                }
                (Step::Notify { .. } | Step::Cancel, _) => {}
            }
        }
        acts
    }

    fn undone(&mut self, lines: &[String]) -> Vec<Act> {
        let news = lines.iter().filter(|line| self.said.insert((*line).clone()));
        news.map(|line| act(false, line.clone())).collect()
    }

    fn tell(&self, wanted: &Wanted, acts: &[Act]) {
        let of = |done: bool| -> Vec<&str> {
            acts.iter().filter(|act| act.done == done).map(|act| act.what.as_str()).collect()
        };
        let line = format!(
            "event=RuntimeCheckActed outcome={} drained={} requeued={} done={:?} not_done={:?}",
            wanted.verdict.outcome,
            self.drained.join(","),
            self.requeued,
            of(true).join("; "),
            of(false).join("; ")
        );
        self.events.event(&line, true);
    }
}

fn act(done: bool, what: String) -> Act {
    Act { at: Timestamp::now(), done, what }
}
