//! Drains that follow each other: a look at all nodes, one call for each reason, and a second look. Which drains happen
//! and which are given back is decided by `diag::action::drains`.

use std::time::Duration;

use diag::action::drains::{Admission, Picture, Withheld, admit, surplus};
use jiff::Timestamp;
use tokio::time::{Instant, sleep_until};

use super::{Step, StepOutcome, Work, outcome};

/// From a drain to the second look: longer than the second that the controller writes down as its time. A drain that
/// sorts before it is there to see by then.
const SETTLE: Duration = Duration::from_millis(1100);
/// The second look comes this long before the deadline at the latest, so that there is time to give back. Then a drain
/// of the same second may be missed, and the budget be exceeded by those.
const BEFORE_DEADLINE: Duration = Duration::from_millis(400);

/// A drain that was admitted.
struct Admitted {
    /// Its place among those that were wanted.
    at: usize,
    node: String,
    reason: String,
    comment: Option<String>,
    before: String,
}

impl Work<'_> {
    pub(super) async fn drain(&mut self, group: &[Step]) -> Vec<StepOutcome> {
        let (scontrol, deadline) = (self.scontrol, self.deadline);
        let wanted: Vec<(&str, &str)> = group
            .iter()
            .filter_map(|step| match step {
                Step::Drain { node, reason } => Some((node.as_str(), reason.as_str())),
                _ => None,
            })
            .collect();
        let picture = match self.call(async || scontrol.picture(deadline).await).await {
            Ok(picture) => picture,
            Err(because) => return group.iter().map(|step| outcome(step, Err(because.clone()))).collect(),
        };
        let mut results: Vec<Result<String, String>> = vec![Ok(String::new()); wanted.len()];
        let mut admitted = Vec::new();
        let decided = admit(&self.run.budget, &picture, Timestamp::now(), &wanted);
        for (at, admission) in decided.into_iter().enumerate() {
            match admission {
                Admission::Drain { reason, comment, before } => {
                    let node = wanted[at].0.to_owned();
                    admitted.push(Admitted { at, node, reason, comment, before });
                }
                Admission::Done => {
                    results[at] = Ok(format!("{} was drained already by this run", wanted[at].0))
                }
                Admission::No(withheld) => {
                    results[at] = Err(withheld.words.clone());
                    self.withheld.push(withheld);
                }
            }
        }
        let mut done: Vec<&Admitted> = Vec::new();
        for same in admitted.chunk_by(|a, b| a.reason == b.reason && a.comment == b.comment) {
            let nodes: Vec<String> = same.iter().map(|one| one.node.clone()).collect();
            let (reason, comment) = (same[0].reason.as_str(), same[0].comment.as_deref());
            let drained = self.call(async || scontrol.drain(&nodes, reason, comment, deadline).await).await;
            done.extend(same.iter().filter(|_| drained.is_ok()));
            for one in same {
                results[one.at] = drained.clone().map(|()| format!("{} was drained", one.node));
            }
        }
        for (one, withheld) in self.settle(&done).await {
            results[one.at] = Err(withheld.words.clone());
            self.withheld.push(withheld);
        }
        group.iter().zip(results).map(|(step, result)| outcome(step, result)).collect()
    }

    /// Gives back what others drained at the same moment leave no room for; those nodes and why.
    async fn settle<'d>(&mut self, done: &[&'d Admitted]) -> Vec<(&'d Admitted, Withheld)> {
        let (scontrol, deadline) = (self.scontrol, self.deadline);
        if done.is_empty() {
            return Vec::new();
        }
        let latest = deadline.checked_sub(BEFORE_DEADLINE).unwrap_or(deadline);
        sleep_until(latest.min(Instant::now() + SETTLE)).await;
        // Without a second look what was drained stays drained: that it was bad is known.
        let Ok(picture) = self.call(async || scontrol.picture(deadline).await).await else {
            return Vec::new();
        };
        let mine: Vec<&str> =
            done.iter().filter(|one| is_as_drained(&picture, one)).map(|one| one.node.as_str()).collect();
        let mut given = Vec::new();
        for withheld in surplus(&self.run.budget, &picture, Timestamp::now(), &mine) {
            let Some(one) = done.iter().find(|one| one.node == withheld.node) else { continue };
            // A drain that is given back is none to remember.
            let comment = one.comment.as_ref().map(|_| one.before.as_str());
            let nodes = [one.node.clone()];
            if self.call(async || scontrol.undrain(&nodes, comment, deadline).await).await.is_ok() {
                given.push((*one, withheld));
            }
        }
        given
    }
}

/// Whether a node is drained as it was drained here: an admin may have been there meanwhile.
fn is_as_drained(picture: &Picture, one: &Admitted) -> bool {
    picture.node(&one.node).is_some_and(|view| view.is_held() && view.reason == one.reason)
}
