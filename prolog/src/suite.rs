//! The loop: plan, measure, gather, until nothing is left to measure or something ends it. Every node runs it on
//! the same results and so takes the same steps.

use std::path::Path;
use std::time::Duration;

use cluster::session::{Answers, Exchanged, Session, SessionError};
use diag::check::{CheckName, Scope};
use diag::facts::{Engine, NodeFacts, NodeId, Roster};
use diag::gpu_facts::{Quiet, bounded, other_traffic};
use diag::judge::Suite;
use diag::measurement::{CheckError, ErrorKind, Measurement};
use diag::plan::Settled;
use diag::policy::Policy;
use diag::round::{NodeOutcome, Round, RoundResult, Step};
use jiff::Timestamp;
use tokio::time::Instant;

use crate::assignment::Assignment;
use crate::checks::{self, Context, Support};
use crate::history::Past;
use crate::traffic::Traffic;
use crate::watch::{Stop, Stopping};
use crate::worker_client::Worker;

/// Beyond what its checks may take, how long the slowest node's answer may be under way.
const ANSWER_SLACK: Duration = Duration::from_secs(2);

/// How long handing in may take, of that.
const HANDING_IN: Duration = Duration::from_secs(1);

/// After a measurement: with less time left for handing in, nobody looks for other traffic any more. It takes a third of a
/// second where a device hangs, and every node waits for this one.
const LOOK_ROOM: Duration = Duration::from_secs(2);

/// The last exchange ends this much before the request's deadline: whoever is silent by then is named in the verdict
/// instead of a deadline that nobody is known to have missed.
const BEFORE_DEADLINE: Duration = Duration::from_millis(500);

/// What the loop works with.
pub struct Bench<'b> {
    /// What is measured.
    pub suite: &'b Suite,
    /// The policy.
    pub policy: &'b Policy,
    /// This node.
    pub facts: &'b NodeFacts,
    /// What measures; `None`: it could not be started, as the facts say.
    pub worker: Option<&'b mut Worker>,
    /// What this node remembers of its own results.
    pub past: &'b mut Past,
    /// The look at other traffic on this node's ports.
    pub traffic: Traffic,
    /// When the request's time is over.
    pub deadline: Instant,
}

impl<'b> Bench<'b> {
    /// For what is to be done, on this node.
    #[must_use]
    pub fn new(
        assignment: &'b Assignment,
        facts: &'b NodeFacts,
        worker: Option<&'b mut Worker>,
        past: &'b mut Past,
        deadline: Instant,
    ) -> Self {
        let Assignment { suite, policy, .. } = assignment;
        Self { suite, policy, facts, worker, past, traffic: Traffic::default(), deadline }
    }
}

/// How the loop ended.
#[derive(Debug)]
pub enum Ended {
    /// Nothing is left to measure.
    Finished,
    /// Something ended it.
    Stopped(Stop),
    /// The session ended: the leader has concluded, or was lost.
    Session(SessionError),
}

/// Where this node stands while it measures.
struct Place {
    me: NodeId,
    roster: Roster,
}

/// Runs the suite. `seen` is called before each round with all results and the check that is next; `None`: there is none.
pub async fn run(
    bench: &mut Bench<'_>,
    session: &mut Session,
    stopping: &mut Stopping,
    mut seen: impl FnMut(&Session, &[RoundResult], Option<CheckName>),
) -> (Vec<RoundResult>, Ended) {
    let mut results: Vec<RoundResult> = Vec::new();
    let mut settled = Settled::default();
    loop {
        let round = match settled.next(bench.suite, session.roster(), &results) {
            Step::Finished => {
                seen(session, &results, None);
                return (results, Ended::Finished);
            }
            Step::Measure(round) => round,
        };
        seen(session, &results, Some(round.check));
        let limit = Instant::now() + checks::round_limit(bench.policy, round.check) + ANSWER_SLACK;
        let limit = limit.min(bench.deadline - BEFORE_DEADLINE);
        let place = Place { me: session.me(), roster: session.roster().clone() };
        let mine = tokio::select! {
            mine = measure(bench, &place, &round, limit - HANDING_IN) => mine,
            // A leader that is lost meanwhile does not end this: the number counts for the deputy, who leads on.
            stop = stopping.stopped() => return (results, Ended::Stopped(stop)),
            // One that has concluded does: nobody wants the number any more.
            () = session.concluded() => return (results, Ended::Session(SessionError::Concluded)),
        };
        let answers = tokio::select! {
            answers = session.exchange(round.index, &mine, limit) => answers,
            stop = stopping.stopped() => return (results, Ended::Stopped(stop)),
        };
        match answers {
            Ok(answers) => results.push(result(round, &answers)),
            Err(error) => return (results, Ended::Session(error)),
        }
    }
}

fn result(round: Round, answers: &Answers<Option<NodeOutcome>>) -> RoundResult {
    let participants = round.participants();
    let outcomes = answers
        .iter()
        .filter(|(node, _)| participants.contains(node))
        .map(|(node, answer)| {
            let outcome = match answer {
                Exchanged::Answer(Some(outcome)) => outcome.clone(),
                Exchanged::Answer(None) => NodeOutcome::Error(CheckError {
                    kind: ErrorKind::Worker,
                    message: format!("{}: it took no part", round.check),
                }),
                Exchanged::Lost { because } => NodeOutcome::Lost { because: because.clone() },
            };
            (node, outcome)
        })
        .collect();
    RoundResult { round, outcomes }
}

/// This node's part of a round; `None`: it has none. A worker that ended is replaced before this node hands in, if
/// that can be done by `until`: the others will look for its ranks in the next round.
async fn measure(bench: &mut Bench<'_>, place: &Place, round: &Round, until: Instant) -> Option<NodeOutcome> {
    round.groups_of(place.me).next()?;
    let error = |kind: ErrorKind, message: String| Some(NodeOutcome::Error(CheckError { kind, message }));
    let Some(check) = checks::get(round.check) else {
        return error(ErrorKind::Environment, format!("this build can't measure {}", round.check));
    };
    if let Support::No(why) = check.supported(bench.facts) {
        return error(ErrorKind::Environment, format!("{}: {why}", round.check));
    }
    let Some(worker) = bench.worker.as_deref_mut() else {
        return error(ErrorKind::Worker, "the worker did not start".into());
    };
    let mut context = Context {
        round,
        me: place.me,
        roster: &place.roster,
        policy: bench.policy,
        worker,
        now: &Timestamp::now,
        parts: Vec::new(),
    };
    let ports = between_gpus(bench.suite, round.check);
    let before = if ports { bench.traffic.quiet(Path::new("/")).await } else { None };
    let measured = check.run(&mut context).await.map(finite);
    let parts = context.parts;
    let room = before.is_some() && Instant::now() + LOOK_ROOM < until;
    let after = if room { bench.traffic.quiet(Path::new("/")).await } else { None };
    match measured {
        Ok(numbers) => match numbers.iter().find(|one| !one.value.is_finite()) {
            // JSON has no such number: it would not reach the others.
            Some(broken) => error(ErrorKind::Worker, format!("{}: measured {}", round.check, broken.value)),
            None => {
                let mut numbers = match before.zip(after) {
                    Some((before, after)) => with_traffic(bench, place, numbers, (&before, &after)),
                    None => numbers,
                };
                bench.past.compare(&place.roster, &mut numbers);
                Some(match parts.is_empty() {
                    true => NodeOutcome::Measured(numbers),
                    false => NodeOutcome::Partly { numbers, parts },
                })
            }
        },
        Err(error) => {
            if let Some(worker) = bench.worker.as_deref_mut() {
                // The next round says what is wrong if it does not come back.
                _ = worker.revive(until).await;
            }
            Some(NodeOutcome::Error(error))
        }
    }
}

/// Whether a check sends anything over the ports of GPUs: only then other traffic there is looked for.
fn between_gpus(suite: &Suite, check: CheckName) -> bool {
    suite.engine == Engine::Cuda && check.spec().scope != Scope::Node
}

/// Tells with one of the numbers which ports carry other traffic; it stands for all numbers of the round.
fn with_traffic(
    bench: &Bench<'_>,
    place: &Place,
    mut numbers: Vec<Measurement>,
    (before, after): (&Quiet, &Quiet),
) -> Vec<Measurement> {
    let me = (place.me, place.roster.name(place.me));
    let named = &bench.suite.hardware.rdma;
    let facts = other_traffic(me, &bench.facts.known.compared, named, before, after);
    if let Some(first) = numbers.first_mut() {
        first.facts.extend(bounded(facts));
    }
    numbers
}

fn finite(mut numbers: Vec<Measurement>) -> Vec<Measurement> {
    for number in &mut numbers {
        number.samples.retain(|sample| sample.is_finite());
    }
    numbers
}
