//! From knots to findings: who is named, as what, and how sure that is.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::c4d::confirm::Candidate;
use crate::c4d::finding::{Class, Finding, MAX_NAMED, Operation, State, Who};
use crate::c4d::hang::{End, Knot};
use crate::c4d::link;
use crate::c4d::meeting::{Key, Meeting, What};
use crate::c4d::picture::{Count, Peer, Picture};
use crate::c4d::words;
use crate::facts::NodeId;
use crate::measurement::Subject;

/// How sure a finding is at best: telemetry shows who waits for whom, not why.
const SURE: f64 = 0.9;

/// What a process that is gone adds: that is seen, not concluded.
const SEEN: f64 = 0.95;

/// What is taken off for a rank whose records were lost since it moved last: it may have come.
const LOST: f64 = 0.5;

/// What is taken off without records of kernels: hosts run ahead of their GPUs.
const BLIND: f64 = 0.7;

/// What is taken off for a rank that works visibly: it may be late, not stuck.
const WORKING: f64 = 0.6;

/// How sure it is that a node that fell silent is the one that the others wait for.
const SILENT: f64 = 0.6;

/// How sure it is that most ranks lag behind few: those few may be the ones that went wrong.
const MAJORITY: f64 = 0.5;

/// How sure the transport is: kernels that starve each other look the same.
const TRANSPORT: f64 = 0.8;

/// How sure it is without anybody who could be named.
const UNDECIDED: f64 = 0.3;

/// Most evidence about single ranks.
const MAX_LINES: usize = 8;

/// What hangs, and when it is looked at.
pub(super) struct Scene<'a> {
    pub picture: &'a Picture,
    pub knot: &'a Knot,
    pub now_ms: u64,
    pub silent_ms: u64,
}

/// The findings about what hangs, not yet confirmed.
pub(super) fn of_causes(scene: &Scene<'_>) -> Vec<Candidate> {
    let ends = &scene.knot.ends;
    let with = |kind: End| -> BTreeMap<usize, BTreeSet<Key>> {
        let mut ranks: BTreeMap<usize, BTreeSet<Key>> = BTreeMap::new();
        for (_, who, key) in ends.iter().filter(|(end, ..)| *end == kind) {
            if let Some(who) = who {
                ranks.entry(*who).or_default().insert(*key);
            }
        }
        ranks
    };
    let mut candidates = Vec::new();
    for end in [End::Ended, End::Paused, End::Silent] {
        candidates.extend(by_node(scene, end, &with(end)));
    }
    let ranks = with(End::Rank);
    match lagging_majority(scene, &ranks) {
        Some(key) => candidates.push(majority(scene, key, &ranks)),
        None => candidates.extend(by_node(scene, End::Rank, &ranks)),
    }
    // Of what is stuck in one communicator the operation that stopped first shows it.
    let mut stuck: BTreeMap<usize, (u64, Key)> = BTreeMap::new();
    for (.., key) in ends.iter().filter(|(end, ..)| *end == End::Transport) {
        let moved_ms = scene.knot.meetings.get(key).map_or(0, |meeting| meeting.moved_ms);
        let first = stuck.entry(key.comm).or_insert((moved_ms, *key));
        *first = (*first).min((moved_ms, *key));
    }
    candidates.extend(stuck.into_values().map(|(_, key)| transport(scene, key)));
    if candidates.is_empty()
        && let Some((_, _, key)) = ends.iter().find(|(end, ..)| *end == End::Unknown)
    {
        candidates.push(undecided(scene, *key));
    }
    candidates
}

impl Scene<'_> {
    pub fn who(&self, who: usize, key: Key) -> Option<Who> {
        let rank = self.picture.rank(who)?;
        let seat = rank.seats.iter().find(|seat| seat.comm == key.comm);
        let member = seat.and_then(|seat| self.picture.comm(seat.comm)?.members[seat.member].as_ref());
        Some(Who {
            node: rank.node,
            pid: rank.pid,
            gpu: rank.gpu,
            task: rank.task,
            rank: member.map(|member| member.rank),
        })
    }

    fn meeting(&self, key: Key) -> Meeting {
        self.knot.meetings.get(&key).cloned().unwrap_or_default()
    }

    fn operation(&self, key: Key) -> Option<Operation> {
        let comm = self.picture.comm(key.comm)?;
        let func = if let What::Collective(func) = key.what { Some(func) } else { None };
        let seq = Some(self.meeting(key).seq);
        Some(Operation { comm: comm.id, name: comm.name.clone(), nranks: comm.nranks, func, seq })
    }

    /// The operation that shows best what these ranks do: one that they called, then the one that stopped first, then the
    /// one in which most wait.
    fn shows_best(&self, keys: &BTreeSet<Key>, ranks: &[usize]) -> Option<Key> {
        keys.iter().copied().min_by_key(|key| {
            let meeting = self.knot.meetings.get(key);
            let seq = meeting.map_or(0, |meeting| meeting.seq);
            let called = |who: &usize| self.count(*who, *key).is_some_and(|count| count.enqueued > seq);
            let waiting = meeting.map_or(0, |meeting| meeting.waiting.len());
            let moved_ms = meeting.map_or(0, |meeting| meeting.moved_ms);
            (!ranks.iter().any(called), moved_ms, Reverse(waiting), *key)
        })
    }

    /// How far a rank is with the kind of an operation.
    pub fn count(&self, who: usize, key: Key) -> Option<Count> {
        let rank = self.picture.rank(who)?;
        let seat = rank.seats.iter().find(|seat| seat.comm == key.comm)?;
        let member = self.picture.comm(seat.comm)?.members[seat.member].as_ref()?;
        Some(match key.what {
            What::Collective(func) => member.count(func),
            What::Pair { from, to } => {
                let send = member.rank == from;
                member.peer(Peer { rank: if send { to } else { from }, send }).unwrap_or_default()
            }
        })
    }

    /// A finding about some ranks that an operation shows.
    fn finding(&self, class: Class, subject: Subject, suspects: &[usize], key: Key) -> Finding {
        let meeting = self.meeting(key);
        let told = meeting.waiting.len() + meeting.missing.len();
        let all = told + meeting.unknown.len() + meeting.unheard;
        let mut named: Vec<Who> = suspects.iter().filter_map(|who| self.who(*who, key)).collect();
        named.sort();
        let suspects_total = named.len();
        named.truncate(MAX_NAMED);
        let moved = suspects.iter().filter_map(|who| self.picture.rank(*who)).map(|rank| rank.moved_ms).max();
        let since_ms = moved.unwrap_or(meeting.moved_ms).min(self.now_ms);
        let evidence = suspects.iter().take(MAX_LINES).filter_map(|who| words::rank_shows(self, *who, key));
        let mut evidence: Vec<String> = evidence.collect();
        if told < all {
            evidence.push(format!("compared {told} of {all} ranks; the others tell nothing"));
        }
        let share = if all == 0 { 1.0 } else { told as f64 / all as f64 };
        Finding {
            class,
            subject,
            suspects: named,
            suspects_total,
            operation: self.operation(key),
            waiting: meeting.waiting.len(),
            compared: (told, all),
            message: String::new(),
            evidence,
            confidence: SURE * share,
            since_ms,
            found_ms: self.now_ms,
            state: State::Confirmed,
        }
    }

    /// What the state of the ranks takes off a finding.
    fn doubt(&self, suspects: &[usize]) -> f64 {
        let ranks = || suspects.iter().filter_map(|who| self.picture.rank(*who));
        let lost = ranks().any(|rank| rank.lost_ms.is_some_and(|lost| lost >= rank.moved_ms));
        let blind = ranks().any(|rank| !rank.kernels);
        let recent = |at: u64| self.now_ms.saturating_sub(at) < self.silent_ms;
        let working = ranks().any(|rank| rank.worked_ms.is_some_and(recent));
        [(lost, LOST), (blind, BLIND), (working, WORKING)]
            .into_iter()
            .filter(|(holds, _)| *holds)
            .fold(1.0, |all, (_, part)| all * part)
    }
}

/// The ranks of each node together: what stops a node stops all of them.
fn by_node(scene: &Scene<'_>, end: End, ranks: &BTreeMap<usize, BTreeSet<Key>>) -> Vec<Candidate> {
    let mut nodes: BTreeMap<NodeId, Vec<usize>> = BTreeMap::new();
    for who in ranks.keys() {
        if let Some(rank) = scene.picture.rank(*who) {
            nodes.entry(rank.node).or_default().push(*who);
        }
    }
    let mut candidates = Vec::new();
    for (node, suspects) in nodes {
        let keys: BTreeSet<Key> = suspects.iter().flat_map(|who| &ranks[who]).copied().collect();
        let Some(key) = scene.shows_best(&keys, &suspects) else { continue };
        let (class, confidence) = match end {
            End::Paused => (Class::Paused, SEEN),
            End::Ended => (Class::NonCommunicationHang, SEEN),
            End::Silent => (Class::NonCommunicationHang, SILENT),
            _ => (Class::NonCommunicationHang, SURE),
        };
        let gpu = scene.picture.rank(suspects[0]).and_then(|rank| rank.gpu);
        let subject = match (suspects.as_slice(), gpu, end) {
            ([_], Some(index), End::Rank | End::Ended | End::Paused) => Subject::Gpu { node, index },
            _ => Subject::Node { node },
        };
        let mut finding = scene.finding(class, subject, &suspects, key);
        finding.confidence *= confidence / SURE;
        if end == End::Rank {
            finding.confidence *= scene.doubt(&suspects);
        }
        if keys.len() > 1 {
            finding.evidence.push(format!("{} other operations wait for them too", keys.len() - 1));
        }
        finding.message = words::missing(scene, &finding, end, key, &suspects);
        candidates.push(Candidate { key: (class, Subject::Node { node }, end as u64), finding });
    }
    candidates
}

/// The operation, if any, in which more ranks are missing than wait.
fn lagging_majority(scene: &Scene<'_>, ranks: &BTreeMap<usize, BTreeSet<Key>>) -> Option<Key> {
    let keys: BTreeSet<Key> = ranks.values().flatten().copied().collect();
    let all: Vec<usize> = ranks.keys().copied().collect();
    let key = scene.shows_best(&keys, &all)?;
    let meeting = scene.knot.meetings.get(&key)?;
    let missing = meeting.missing.iter().filter(|who| ranks.contains_key(who)).count();
    (missing > meeting.waiting.len() && missing + meeting.waiting.len() > 2).then_some(key)
}

/// Few are ahead of many: both are named (which of them went wrong, the operation does not say).
fn majority(scene: &Scene<'_>, key: Key, ranks: &BTreeMap<usize, BTreeSet<Key>>) -> Candidate {
    let suspects: Vec<usize> = ranks.keys().copied().collect();
    let nodes: BTreeSet<NodeId> =
        suspects.iter().filter_map(|who| scene.picture.rank(*who)).map(|rank| rank.node).collect();
    let subject = match nodes.first() {
        Some(node) if nodes.len() == 1 => Subject::Node { node: *node },
        _ => Subject::Run,
    };
    let mut finding = scene.finding(Class::NonCommunicationHang, subject.clone(), &suspects, key);
    finding.confidence *= MAJORITY / SURE * scene.doubt(&suspects);
    finding.message = words::majority(scene, &finding, key);
    let id = finding.operation.as_ref().map_or(0, |operation| operation.comm);
    Candidate { key: (Class::NonCommunicationHang, subject, id), finding }
}

fn transport(scene: &Scene<'_>, key: Key) -> Candidate {
    let meeting = scene.meeting(key);
    let place = link::stuck(scene, key, &meeting);
    let (subject, suspects) = match &place {
        Some(place) => (place.subject.clone(), place.ranks.clone()),
        None => (whole(scene, &meeting), Vec::new()),
    };
    let mut finding = scene.finding(Class::CommunicationHang, subject.clone(), &suspects, key);
    finding.since_ms = meeting.moved_ms;
    finding.confidence *= TRANSPORT / SURE;
    finding.message = words::stuck(scene, &finding, key, place.as_ref());
    let id = finding.operation.as_ref().map_or(0, |operation| operation.comm);
    Candidate { key: (Class::CommunicationHang, Subject::Run, id), finding }
}

/// What all ranks of an operation share.
fn whole(scene: &Scene<'_>, meeting: &Meeting) -> Subject {
    let ranks = meeting.waiting.iter().filter_map(|who| scene.picture.rank(*who));
    let nodes: BTreeSet<NodeId> = ranks.map(|rank| rank.node).collect();
    match nodes.into_iter().collect::<Vec<_>>().as_slice() {
        [node] => Subject::Node { node: *node },
        [a, b] => Subject::Link { a: *a, b: *b },
        _ => Subject::Fabric,
    }
}

fn undecided(scene: &Scene<'_>, key: Key) -> Candidate {
    let mut finding = scene.finding(Class::Undecided, Subject::Run, &[], key);
    finding.confidence = UNDECIDED;
    finding.message = words::undecided(&finding, key);
    let id = finding.operation.as_ref().map_or(0, |operation| operation.comm);
    Candidate { key: (Class::Undecided, Subject::Run, id), finding }
}

/// Everybody waits for somebody who waits: a circle. One finding, about the operation with the fewest that wait.
pub(super) fn of_circle(scene: &Scene<'_>) -> Option<Candidate> {
    let meetings = scene.knot.meetings.iter().filter(|(_, meeting)| !meeting.missing.is_empty());
    let (key, meeting) = meetings.min_by_key(|(key, meeting)| (meeting.waiting.len(), **key))?;
    let suspects: BTreeSet<usize> = meeting.waiting.iter().chain(&meeting.missing).copied().collect();
    let suspects: Vec<usize> = suspects.into_iter().collect();
    let mut finding = scene.finding(Class::Deadlock, Subject::Run, &suspects, *key);
    finding.confidence *= MAJORITY / SURE;
    finding.message = words::deadlock(scene, &finding, *key);
    let id = finding.operation.as_ref().map_or(0, |operation| operation.comm);
    Some(Candidate { key: (Class::Deadlock, Subject::Run, id), finding })
}
