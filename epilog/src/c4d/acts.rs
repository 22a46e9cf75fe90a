//! What follows from what was found: events in syslog, our part of AdminComment, drains, a requeue. What is wanted decides
//! [`diag::c4d::decide`]; how Slurm is asked, and that everything is looked at before, is `cluster::slurm::apply`'s.
//!
//! The agent's loop only compares what stands with what stood, and hands it over: a thread talks to Slurm, one round after
//! the other, and of what it was told meanwhile the newest counts. There is none as long as nothing is found.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cluster::events::Events;
use cluster::order::Order;
use diag::c4d::decide;
use diag::c4d::finding::{Finding, Who};
use diag::c4d::picture::Coverage;
use diag::facts::NodeId;
use diag::health::{Action, HealthEvent, Turn};
use diag::policy::Policy;
use diag::verdict::{Outcome, Status as Weight};

use crate::c4d::judge::Judge;
use crate::c4d::report::{Act, MOST_ENTRIES, OfNode, RuntimeReport};
use crate::c4d::round::{Case, Hand};

/// Pause between two rounds with Slurm, at first; it doubles. Findings that come and go cost the controller nothing.
const FIRST_PAUSE: Duration = Duration::from_secs(10);

/// Longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(600);

/// Most rounds of a run of a job for what ranks tell, and as many for what the hardware shows: the first can be made by a
/// user's process, which must not use up what a node that breaks later needs.
const MOST_ROUNDS: u32 = 50;

/// How long the agent's end waits for a round: with the second that it takes to tell the other nodes shorter than
/// [`super::lock::TERM_WAIT`], after which it is killed. A round takes some ten milliseconds, and a second more where it
/// drains; one that hangs has its command go on by itself.
const END_WAIT: Duration = Duration::from_millis(2500);

/// Most acts of a run that are told.
const MOST_ACTS: usize = 100;

/// What stands, for one round.
#[derive(Debug, Clone)]
pub(super) struct Standing {
    pub findings: Vec<Finding>,
    pub hardware: Vec<(NodeId, HealthEvent)>,
    pub coverage: Coverage,
}

/// What tells one standing from another: not how long it lasts.
#[derive(Debug, Clone, PartialEq, Default)]
struct Mark {
    findings: Vec<(diag::c4d::finding::Class, diag::measurement::Subject, Vec<Who>)>,
    hardware: Vec<(NodeId, HealthEvent)>,
}

impl Mark {
    fn of(findings: &[Finding], hardware: &[(NodeId, HealthEvent)]) -> Self {
        let findings = findings.iter().map(|one| (one.class, one.subject.clone(), one.suspects.clone()));
        let ageless = |(node, event): &(NodeId, HealthEvent)| {
            let turn = if event.turn == Turn::Ended { Turn::Ended } else { Turn::Began };
            (*node, HealthEvent { age_ms: 0, turn, words: String::new(), ..event.clone() })
        };
        Self { findings: findings.collect(), hardware: hardware.iter().map(ageless).collect() }
    }

    /// Whether it has a fault of the hardware that drains and was not there before.
    fn drains_beside(&self, before: &Self) -> bool {
        let mut drains = self.hardware.iter().filter(|(_, event)| event.action == Action::Drain);
        drains.any(|one| !before.hardware.contains(one))
    }
}

/// The hands of an agent that judges.
pub struct Acts {
    case: Case,
    events: Events,
    last: Mark,
    /// What was handed over last.
    latest: Option<Standing>,
    /// Whether this node spoke for the job at the last look.
    speaks: bool,
    shared: Option<Arc<Shared>>,
    /// Whether it was said that there can be no thread. There may be one later.
    unstarted_said: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    next: Option<Standing>,
    /// Whether it has a fault of the hardware that is new and drains: that waits for the shortest pause only.
    urgent: bool,
    /// Whether it is another try, since the controller was not reached: no round is used up by that.
    again: bool,
    busy: bool,
    ending: bool,
    /// Nobody takes what is handed over.
    gone: bool,
    done: Vec<Act>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Acts {
    /// By the order and the policy in it. Nothing is started.
    #[must_use]
    pub fn new(order: &Order, policy: &Policy, events: &Events) -> Self {
        Self {
            case: Case::new(order, policy),
            events: events.clone(),
            last: Mark::default(),
            latest: None,
            speaks: false,
            shared: None,
            unstarted_said: false,
        }
    }

    /// Once a second: takes what stands where this node speaks for the job, and has what follows done where something
    /// changed. It waits for nothing.
    pub fn follow(&mut self, report: &mut RuntimeReport, judge: Option<&Judge>, now: Instant) {
        self.speaks = judge.is_some();
        report.spoke |= self.speaks;
        if let Some(judge) = judge {
            let (findings, hardware) = (judge.standing().cloned().collect::<Vec<_>>(), judge.hardware());
            if report.delays != judge.delays() {
                report.delays = judge.delays().to_vec();
            }
            self.name(report, &findings);
            let mark = Mark::of(&findings, &hardware);
            if mark != self.last {
                let urgent = mark.drains_beside(&self.last);
                self.last = mark;
                self.show_elsewhere(report, &hardware);
                self.hand_over(Standing { findings, hardware, coverage: judge.coverage(now) }, urgent);
            } else if self.shared.is_none() {
                // What could not be handed over.
                self.pass_on(true);
            }
        }
        self.collect(report);
    }

    /// The agent's end: waits a moment for a round, takes what came of it, and says how the watch ended.
    pub fn end(&mut self, report: &mut RuntimeReport) {
        self.last_look(report);
        if let Some(shared) = &self.shared {
            let mut state = shared.lock();
            state.ending = true;
            shared.changed.notify_all();
            let is_busy = |state: &mut State| !state.gone && (state.busy || state.next.is_some());
            let waited = shared.changed.wait_timeout_while(state, END_WAIT, is_busy);
            drop(waited.map_err(PoisonError::into_inner));
        }
        self.collect(report);
        if self.speaks {
            self.last_event(report);
        }
    }

    /// What this node's hardware showed since the last look: a GPU that breaks ends many a job at once.
    fn last_look(&mut self, report: &RuntimeReport) {
        let standing = self.latest.clone().unwrap_or_else(|| {
            let coverage = Coverage { known: 0, unknown: 0, gaps: Vec::new() };
            Standing { findings: Vec::new(), hardware: Vec::new(), coverage }
        });
        let key = |event: &HealthEvent| (event.part.clone(), event.what.clone(), event.action);
        let is_known = |event: &HealthEvent| {
            let mut known = standing.hardware.iter().filter(|(node, _)| *node == self.case.me);
            known.any(|(_, other)| key(other) == key(event))
        };
        let holds = report.hardware.iter().filter(|event| event.turn != Turn::Ended);
        let fresh: Vec<HealthEvent> = holds.filter(|event| !is_known(event)).cloned().collect();
        if !self.speaks || fresh.is_empty() {
            return;
        }
        for event in &fresh {
            let (line, warning) = hardware_event(&report.node, event);
            self.events.event(&line, warning);
        }
        let me = self.case.me;
        let hardware = standing.hardware.iter().cloned().chain(fresh.into_iter().map(|one| (me, one)));
        let hardware = hardware.collect();
        self.hand_over(Standing { hardware, ..standing }, true);
    }

    /// What the hardware of other nodes shows. That it gets older is no reason to write the report again.
    fn show_elsewhere(&self, report: &mut RuntimeReport, hardware: &[(NodeId, HealthEvent)]) {
        let elsewhere = hardware.iter().filter(|(node, _)| *node != self.case.me).take(MOST_ENTRIES);
        report.elsewhere =
            elsewhere.map(|(node, event)| OfNode { node: *node, event: event.clone() }).collect();
        let nodes = report.elsewhere.iter().map(|one| one.node).collect();
        self.put_names(report, nodes);
    }

    /// Names for the nodes of which the report speaks.
    fn name(&self, report: &mut RuntimeReport, findings: &[Finding]) {
        let found = findings
            .iter()
            .flat_map(|one| one.subject.nodes().into_iter().chain(one.suspects.iter().map(|who| who.node)));
        let delayed = report.delays.iter().flat_map(|one| [one.from.node, one.to.node]);
        let nodes = found.chain(delayed).collect();
        self.put_names(report, nodes);
    }

    fn put_names(&self, report: &mut RuntimeReport, nodes: BTreeSet<NodeId>) {
        for node in nodes {
            let name = self.case.roster.name(node);
            report.names.entry(node).or_insert_with(|| name.to_owned());
        }
    }

    fn hand_over(&mut self, standing: Standing, urgent: bool) {
        self.latest = Some(standing);
        self.pass_on(urgent);
    }

    /// Hands the newest standing to the thread, which is started where there is none.
    fn pass_on(&mut self, urgent: bool) {
        let Some(standing) = self.latest.clone() else { return };
        if self.shared.is_none() {
            match start(&self.case, &self.events) {
                Ok(shared) => self.shared = Some(shared),
                Err(_) if self.unstarted_said => return,
                Err(error) => {
                    self.unstarted_said = true;
                    let what = "nothing is done yet about what was found: no thread can be started";
                    return self.events.log(&format!("{what}: {error}"));
                }
            }
        }
        let Some(shared) = &self.shared else { return };
        let mut state = shared.lock();
        state.next = Some(standing);
        state.urgent |= urgent;
        drop(state);
        shared.changed.notify_all();
    }

    fn collect(&self, report: &mut RuntimeReport) {
        let Some(shared) = &self.shared else { return };
        let mut state = shared.lock();
        let room = MOST_ACTS.saturating_sub(report.acts.len());
        report.acts.extend(state.done.drain(..).take(room));
    }

    fn last_event(&self, report: &RuntimeReport) {
        let outcome = report.outcome();
        let (withdrawn, ranks) = (report.withdrawn.len(), report.telemetry.ranks);
        match outcome {
            Outcome::Pass => {
                let line = format!("event=RuntimeCheckSucceeded ranks={ranks} withdrawn={withdrawn}");
                self.events.event(&line, false);
            }
            Outcome::Skip => {
                let line = format!("event=RuntimeCheckSkipped because={:?}", report.unknown_because());
                self.events.event(&line, false);
            }
            // What holds was said when it was found.
            Outcome::Fail | Outcome::Suspect | Outcome::Environment => {}
            Outcome::Error => {
                let why = report.errors.first().cloned().unwrap_or_default();
                let line = format!("event=RuntimeCheckFailed outcome={outcome} summary={why:?}");
                self.events.event(&line, true);
            }
        }
    }
}

/// An event for syslog about a fault of a node's hardware that is new or over, and whether somebody should look.
#[must_use]
pub fn hardware_event(node: &str, event: &HealthEvent) -> (String, bool) {
    let (weight, _) = decide::weight(event);
    let over = event.turn == Turn::Ended;
    let word = match weight {
        _ if over => "RuntimeCheckWithdrawn",
        Weight::Pass | Weight::Skip => "RuntimeCheckNoticed",
        Weight::Error | Weight::Suspect | Weight::Fail => "RuntimeCheckFailed",
    };
    let HealthEvent { part, what, words, .. } = event;
    let part = part.to_string();
    let line = format!(
        "event={word} class=hardware outcome={weight} node={node} part={part:?} what={what:?} summary={words:?}"
    );
    (line, weight > Weight::Skip && !over)
}

/// The thread that talks to Slurm. It is not joined: it ends with the agent, whatever hangs.
fn start(case: &Case, events: &Events) -> std::io::Result<Arc<Shared>> {
    let shared = Arc::new(Shared::default());
    let mut hand = Hand::new(case.clone(), events.clone());
    let theirs = Arc::clone(&shared);
    std::thread::Builder::new().name("acts".into()).spawn(move || work(&theirs, &mut hand))?;
    Ok(shared)
}

fn work(shared: &Shared, hand: &mut Hand) {
    let mut pause = FIRST_PAUSE;
    // Of what ranks tell, and of what the hardware shows.
    let mut rounds = [0; 2];
    while let Some((standing, kind)) = take(shared, rounds.map(|made| made < MOST_ROUNDS)) {
        rounds
            .iter_mut()
            .zip([Kind::Told, Kind::Urgent])
            .for_each(|(made, of)| *made += u32::from(kind == of));
        let acts = hand.round(&standing);
        let mut state = shared.lock();
        state.done.extend(acts);
        state.busy = false;
        // What the controller could not be asked is tried again, unless there is something newer.
        if hand.wants_again() && !state.ending && state.next.is_none() {
            state.next = Some(standing);
            state.again = true;
        }
        shared.changed.notify_all();
        state = rest(shared, state, FIRST_PAUSE, |state| !state.ending);
        drop(rest(shared, state, pause - FIRST_PAUSE, |state| !state.ending && !state.urgent));
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
    shared.lock().gone = true;
    shared.changed.notify_all();
}

fn rest<'a>(
    shared: &'a Shared,
    state: MutexGuard<'a, State>,
    pause: Duration,
    may: impl Fn(&State) -> bool,
) -> MutexGuard<'a, State> {
    let waited = shared.changed.wait_timeout_while(state, pause, |state| may(state));
    waited.unwrap_or_else(PoisonError::into_inner).0
}

/// Why there is a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Ranks tell something else, or something is over.
    Told,
    /// The hardware shows what drains.
    Urgent,
    /// The controller was not reached by the one before.
    Again,
}

/// The next round's task, and why; `None`: there will be none. `may`: whether there may be rounds of the first two kinds.
fn take(shared: &Shared, may: [bool; 2]) -> Option<(Standing, Kind)> {
    let mut state = shared.lock();
    loop {
        let (urgent, again) = (std::mem::take(&mut state.urgent), std::mem::take(&mut state.again));
        let kind = match (urgent, again) {
            (true, _) if may[1] => Some(Kind::Urgent),
            (_, true) => Some(Kind::Again),
            (false, _) if may[0] => Some(Kind::Told),
            _ => None,
        };
        match (state.next.take(), kind) {
            (Some(next), Some(kind)) => {
                state.busy = true;
                return Some((next, kind));
            }
            // Whoever waits for it need not.
            (Some(_), None) => shared.changed.notify_all(),
            (None, _) => {}
        }
        if state.ending || may == [false; 2] {
            return None;
        }
        state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
    }
}

#[cfg(test)]
mod tests;
