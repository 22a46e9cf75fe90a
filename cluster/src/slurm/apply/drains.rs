//! Drains that follow each other: a look at all nodes, one call for each reason, and a second look. Which drains happen
//! and which are given back is decided by `diag::action::drains`.
//!
//! A node is changed once for each look: after a call that was lost an admin may have been there, so that only a new look
//! tells whether it is still to be changed.

use std::collections::BTreeMap;
use std::time::Duration;

use diag::action::drains::{Admission, Picture, Withheld, admit, surplus};
use jiff::Timestamp;
use tokio::time::{Instant, sleep};

use super::{RETRY_PAUSE, Step, StepOutcome, Work, outcome};

/// From a drain to the second look: longer than the second that the controller writes down as its time. A drain that
/// sorts before it is there to see by then.
const SETTLE: Duration = Duration::from_millis(1100);
/// What is left for the job's own steps (a look, the requeue, its two updates) after the wait for the second look: that
/// is shorter where there is less time. Then a drain of the same second may be missed, and the budget be exceeded by those.
const FOR_THE_JOB: Duration = Duration::from_millis(2500);
/// Looks after each of which a change is tried: a controller that fails that often in between is no passing trouble.
const TRIES: u32 = 3;

/// A drain that was admitted.
#[derive(Clone)]
struct Admitted {
    /// Its place among those that were wanted.
    at: usize,
    node: String,
    reason: String,
    comment: Option<String>,
    before: String,
}

/// Drains that were asked for, and how far they are.
struct Group<'g> {
    /// Nodes and reasons.
    wanted: Vec<(&'g str, &'g str)>,
    /// What became of each.
    results: Vec<Result<String, String>>,
    /// Those that nothing became of yet.
    open: Vec<usize>,
    /// Of these the ones whose call was lost, as they were tried.
    lost: BTreeMap<usize, Admitted>,
    done: Vec<Admitted>,
}

/// What goes back.
#[derive(Default)]
struct Back {
    given: Vec<(usize, Withheld)>,
    /// Those whose call was lost.
    lost: BTreeMap<usize, Withheld>,
}

impl Group<'_> {
    fn drained(&mut self, one: Admitted) {
        self.results[one.at] = Ok(format!("{} was drained", one.node));
        self.done.push(one);
    }
}

impl Work<'_> {
    pub(super) async fn drain(&mut self, steps: &[Step]) -> Vec<StepOutcome> {
        let (scontrol, deadline) = (self.scontrol, self.deadline);
        let wanted: Vec<(&str, &str)> = steps
            .iter()
            .filter_map(|step| match step {
                Step::Drain { node, reason } => Some((node.as_str(), reason.as_str())),
                _ => None,
            })
            .collect();
        let (results, open) = (vec![Ok(String::new()); wanted.len()], (0..wanted.len()).collect());
        let mut group = Group { wanted, results, open, lost: BTreeMap::new(), done: Vec::new() };
        for tried in 0..TRIES {
            if tried > 0 {
                sleep(RETRY_PAUSE.min(deadline.saturating_duration_since(Instant::now()))).await;
            }
            match self.call(async || scontrol.picture(deadline).await).await {
                Ok(picture) => self.drain_open(&picture, &mut group).await,
                Err(because) => {
                    for at in std::mem::take(&mut group.open) {
                        group.results[at] = Err(because.clone());
                    }
                }
            }
            if group.open.is_empty() {
                break;
            }
        }
        self.controller_lost |= !group.open.is_empty();
        for (at, withheld) in self.settle(&group.done).await {
            group.results[at] = Err(withheld.words.clone());
            self.withheld.push(withheld);
        }
        steps.iter().zip(group.results).map(|(step, result)| outcome(step, result)).collect()
    }

    /// Drains what by this look is to be drained, until a call is lost.
    async fn drain_open(&mut self, picture: &Picture, group: &mut Group<'_>) {
        let (scontrol, deadline) = (self.scontrol, self.deadline);
        let mut open = std::mem::take(&mut group.open);
        open.retain(|at| match group.lost.remove(at) {
            // The lost call had its effect.
            Some(one) if is_as_drained(picture, &one) => {
                group.drained(one);
                false
            }
            _ => true,
        });
        let wanted: Vec<(&str, &str)> = open.iter().map(|at| group.wanted[*at]).collect();
        let mut admitted = Vec::new();
        for (at, admission) in
            open.into_iter().zip(admit(&self.run.budget, picture, Timestamp::now(), &wanted))
        {
            let node = group.wanted[at].0;
            match admission {
                Admission::Drain { reason, comment, before } => {
                    admitted.push(Admitted { at, node: node.to_owned(), reason, comment, before });
                }
                Admission::Done => group.results[at] = Ok(format!("{node} was drained already by this run")),
                Admission::No(withheld) => {
                    group.results[at] = Err(withheld.words.clone());
                    self.withheld.push(withheld);
                }
            }
        }
        let mut unreached = None;
        for same in admitted.chunk_by(|a, b| a.reason == b.reason && a.comment == b.comment) {
            let nodes: Vec<String> = same.iter().map(|one| one.node.clone()).collect();
            let (reason, comment) = (same[0].reason.as_str(), same[0].comment.as_deref());
            // The look is old by the time that a call was given up.
            if unreached.is_none() {
                match self.once(async || scontrol.drain(&nodes, reason, comment, deadline).await).await {
                    Ok(()) => {
                        same.iter().for_each(|one| group.drained(one.clone()));
                        continue;
                    }
                    Err(missed) if !missed.unreached => {
                        same.iter().for_each(|one| group.results[one.at] = Err(missed.words.clone()));
                        continue;
                    }
                    Err(missed) => {
                        group.lost.extend(same.iter().map(|one| (one.at, one.clone())));
                        unreached = Some(format!("the controller was not reached: {}", missed.words));
                    }
                }
            }
            if let Some(words) = &unreached {
                same.iter().for_each(|one| group.results[one.at] = Err(words.clone()));
                group.open.extend(same.iter().map(|one| one.at));
            }
        }
    }

    /// Gives back what others drained at the same moment leave no room for; which of them, and why. It leaves the job's
    /// own steps half of the time that is left, and that it does not come about is no harm to the job.
    async fn settle(&mut self, done: &[Admitted]) -> Vec<(usize, Withheld)> {
        let (scontrol, deadline) = (self.scontrol, self.deadline);
        let mut back = Back::default();
        if done.is_empty() {
            return back.given;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        sleep(SETTLE.min(left.saturating_sub(FOR_THE_JOB))).await;
        let now = Instant::now();
        let until = now + deadline.saturating_duration_since(now) / 2;
        for _ in 0..TRIES {
            let again = match self.once(async || scontrol.picture(until).await).await {
                Ok(picture) => self.give_back(&picture, done, until, &mut back).await,
                // Without a second look what was drained stays drained: that it was bad is known.
                Err(missed) => missed.unreached,
            };
            if !again || Instant::now() + RETRY_PAUSE >= until {
                break;
            }
            sleep(RETRY_PAUSE).await;
        }
        back.given
    }

    /// Gives back what by this look is to be given back. Whether a call was lost, so that a new look is needed.
    async fn give_back(
        &mut self,
        picture: &Picture,
        done: &[Admitted],
        until: Instant,
        back: &mut Back,
    ) -> bool {
        let scontrol = self.scontrol;
        for one in done {
            // The lost call had its effect.
            if picture.node(&one.node).is_some_and(|view| !view.is_out_of_service())
                && let Some(withheld) = back.lost.remove(&one.at)
            {
                back.given.push((one.at, withheld));
            }
        }
        let mine: Vec<&str> =
            done.iter().filter(|one| is_as_drained(picture, one)).map(|one| one.node.as_str()).collect();
        for withheld in surplus(&self.run.budget, picture, Timestamp::now(), &mine) {
            let Some(one) = done.iter().find(|one| one.node == withheld.node) else { continue };
            // A drain that is given back is none to remember.
            let comment = one.comment.as_ref().map(|_| one.before.as_str());
            let nodes = [one.node.clone()];
            match self.once(async || scontrol.undrain(&nodes, comment, until).await).await {
                Ok(()) => back.given.push((one.at, withheld)),
                Err(missed) if missed.unreached => {
                    back.lost.insert(one.at, withheld);
                    return true;
                }
                Err(_) => {}
            }
        }
        false
    }
}

/// Whether a node is drained as it was drained here, its comment too: an admin may have been there meanwhile.
fn is_as_drained(picture: &Picture, one: &Admitted) -> bool {
    let comment = one.comment.as_ref().unwrap_or(&one.before);
    picture.node(&one.node).is_some_and(|view| {
        view.is_held() && view.reason == one.reason && view.comment.trim() == comment.trim()
    })
}
