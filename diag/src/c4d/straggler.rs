//! Stragglers over a window: ranks that come last to nearly every operation, so that others wait for them. A rank that is
//! late because it waits for another one is a victim; what is late by its work is no fault.

use std::collections::{BTreeMap, BTreeSet};

use crate::c4d::confirm::Candidate;
use crate::c4d::finding::{Class, Finding, MAX_NAMED, Operation, State, Who};
use crate::c4d::link::{Edge, Place, hot, places};
use crate::c4d::picture::{Comm, Picture, Rank};
use crate::c4d::settings::Settings;
use crate::c4d::timing::{Late, Window};
use crate::c4d::words;
use crate::facts::NodeId;
use crate::measurement::Subject;

/// How sure a straggler is at best.
const SURE: f64 = 0.9;

/// How sure it is where only the whole pipeline is known to be late, not which stage.
const ONE_OF_PIPELINE: f64 = 0.4;

/// How much surer it is, against that, once the network's steps show a slow connection in it.
const PLACED: f64 = 2.0;

/// What is taken off where records were lost within the window.
const LOST: f64 = 0.7;

/// Most peers of a rank in a communicator that is a pipeline's: one before and one after, twice for interleaved stages. More
/// is an all-to-all.
const PIPELINE_PEERS: usize = 4;

/// Least part of its lateness that is a rank's own: three slow stages of one pipeline have a third each.
const OWN_PART: f64 = 0.25;

/// Least part, against the largest in the pipeline: waits that reach over the end of a window blur a third of it.
const NEAR_MOST: f64 = 0.6;

/// Ranks that share a GPU take turns on it, and whose turn comes later is no slower: what the others wait for such a rank
/// counts from five turns on. A turn is some 2 ms (two ranks on one H200, driver 580.159.04: 1.7 ms in the median).
const TURNS_US: u64 = 10_000;

/// A rank that is late in a communicator.
#[derive(Debug, Clone, Copy)]
struct Case {
    who: usize,
    comm: usize,
    late: Late,
    span_ms: u64,
    /// It got more work than its like, or its turn on a shared GPU comes later. It is no fault, and explains who is late because of it.
    excused: bool,
}

/// Groups of ranks: a forest of parents.
struct Groups(Vec<usize>);

impl Groups {
    fn new(count: usize) -> Self {
        Self((0..count).collect())
    }

    fn top(&mut self, mut one: usize) -> usize {
        while self.0[one] != one {
            self.0[one] = self.0[self.0[one]];
            one = self.0[one];
        }
        one
    }

    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.top(a), self.top(b));
        self.0[a.max(b)] = a.min(b);
    }
}

/// The findings about ranks that are late. `slow` are the communicators whose transport is slow.
pub(super) fn candidates(
    picture: &mut Picture,
    windows: &BTreeMap<usize, Window>,
    slow: &BTreeSet<usize>,
    now_ms: u64,
    settings: &Settings,
) -> Vec<Candidate> {
    if windows.values().all(|window| window.late.is_empty()) {
        return Vec::new();
    }
    let mut pipelines = pipelines(picture);
    let alike: BTreeSet<usize> =
        picture.live_comms().filter(|(_, comm)| !crosses(comm, &mut pipelines)).map(|(at, _)| at).collect();
    let mut cases: Vec<Case> = Vec::new();
    for (at, window) in windows.iter().filter(|(at, _)| alike.contains(at) && !slow.contains(at)) {
        let Some(comm) = picture.comm(*at) else { continue };
        for late in &window.late {
            let Some(member) = comm.members.get(late.place).and_then(Option::as_ref) else { continue };
            let excused =
                works_more(picture, comm, member.who, settings) || takes_turns(picture, member.who, late);
            cases.push(Case { who: member.who, comm: *at, late: *late, span_ms: window.span_ms, excused });
        }
    }
    let window_ms = now_ms.saturating_sub(picture.window_since_ms.unwrap_or(now_ms));
    // Communicators that are used less, or told of less, have their windows later: what the last ones showed tells who waits.
    let mut known = picture.last_windows(now_ms, settings);
    known.extend(windows.iter().map(|(at, window)| (*at, window.clone())));
    let waits = Waits::new(picture, &known, window_ms);
    let roots = without_victims(picture, &cases, &known, slow, &mut pipelines);
    join_coupled(picture, &roots, &alike, &mut pipelines);
    let groups = by_pipeline(picture, &roots, &mut pipelines);
    let mut candidates = Vec::new();
    let mut nodes: BTreeMap<NodeId, Vec<Case>> = BTreeMap::new();
    for group in groups {
        let culprits = culprits(picture, &group, &waits);
        if culprits.is_empty() && !group.iter().any(|case| case.excused) {
            let places = places_within(picture, &group, &mut pipelines, settings);
            if places.is_empty() {
                candidates.extend(finding(picture, &group, true, now_ms));
            }
            candidates.extend(places.iter().filter_map(|place| connection(picture, &group, place, now_ms)));
            want_steps(picture, &group, now_ms, settings);
        }
        for case in culprits.into_iter().filter(|case| !case.excused) {
            if let Some(rank) = picture.rank(case.who) {
                nodes.entry(rank.node).or_default().push(case);
            }
        }
    }
    candidates.extend(nodes.into_values().filter_map(|cases| finding(picture, &cases, false, now_ms)));
    candidates
}

/// Ranks that are stages of one pipeline: they send to each other, and not to everybody.
fn pipelines(picture: &Picture) -> Groups {
    let mut groups = Groups::new(picture.ranks.len());
    for (_, comm) in picture.live_comms() {
        for (_, member) in comm.known() {
            let peers: BTreeSet<u32> = member.peers.iter().map(|(peer, _)| peer.rank).collect();
            if peers.is_empty() || peers.len() > PIPELINE_PEERS || peers.contains(&member.rank) {
                continue;
            }
            let others = peers.iter().filter_map(|rank| comm.members[*comm.by_rank.get(rank)?].as_ref());
            others.for_each(|other| groups.join(member.who, other.who));
        }
    }
    groups
}

/// Whether two members are stages of one pipeline: their work differs by design.
fn crosses(comm: &Comm, pipelines: &mut Groups) -> bool {
    let mut seen = BTreeSet::new();
    comm.known().any(|(_, member)| !seen.insert(pipelines.top(member.who)))
}

/// Whether a rank got more data than its like: an expert that is asked for more.
fn works_more(picture: &Picture, comm: &Comm, who: usize, settings: &Settings) -> bool {
    let received = |who: usize| picture.rank(who).map_or(0, |rank| rank.received);
    let mut all: Vec<u64> = comm.known().map(|(_, member)| received(member.who)).collect();
    let middle = (all.len().max(1) - 1) / 2;
    if all.is_empty() {
        return false;
    }
    let median = *all.select_nth_unstable(middle).1;
    median > 0 && received(who) as f64 >= median as f64 * settings.work_ratio
}

/// Whether a rank is late by no more than its turns on a GPU that it shares.
fn takes_turns(picture: &Picture, who: usize, late: &Late) -> bool {
    late.wait_us < TURNS_US && picture.rank(who).is_some_and(|rank| rank.shares_gpu)
}

/// Leaves out ranks that are late in one communicator because they wait for a late one, or for a slow transport, in
/// another. Their pipelines are late for the same reason, so they count as one.
fn without_victims(
    picture: &Picture,
    cases: &[Case],
    known: &BTreeMap<usize, Window>,
    slow: &BTreeSet<usize>,
    pipelines: &mut Groups,
) -> Vec<Case> {
    let mut late_in: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    for case in cases {
        late_in.entry(case.comm).or_default().insert(case.who);
    }
    let in_windows: BTreeSet<usize> = late_in.keys().copied().collect();
    for (at, window) in known.iter().filter(|(at, _)| !in_windows.contains(at)) {
        let Some(comm) = picture.comm(*at).filter(|comm| !crosses(comm, pipelines)) else { continue };
        let late = window.late.iter().filter_map(|late| Some(comm.members.get(late.place)?.as_ref()?.who));
        let late: BTreeSet<usize> = late.collect();
        if !late.is_empty() {
            late_in.insert(*at, late);
        }
    }
    let mut roots = Vec::new();
    for case in cases {
        let seats = picture.rank(case.who).map(|rank| rank.seats.as_slice()).unwrap_or_default();
        let mut waits = false;
        for seat in seats.iter().filter(|seat| seat.comm != case.comm) {
            waits |= slow.contains(&seat.comm);
            let late = late_in.get(&seat.comm).filter(|late| !late.contains(&case.who));
            if let Some(late) = late {
                waits = true;
                late.iter().for_each(|other| pipelines.join(*other, case.who));
            }
        }
        if !waits {
            roots.push(*case);
        }
    }
    roots
}

/// Ranks that are late elsewhere, and meet in a communicator in which none of them is, are late together: those of a tensor
/// group, for one of them or for what one of them waits for.
fn join_coupled(picture: &Picture, roots: &[Case], alike: &BTreeSet<usize>, pipelines: &mut Groups) {
    let late: BTreeSet<(usize, usize)> = roots.iter().map(|case| (case.comm, case.who)).collect();
    let late_comms: BTreeSet<usize> = roots.iter().map(|case| case.comm).collect();
    let mut first_in: BTreeMap<usize, usize> = BTreeMap::new();
    for (_, who) in &late {
        let seats = picture.rank(*who).map(|rank| rank.seats.as_slice()).unwrap_or_default();
        for seat in seats.iter().filter(|seat| alike.contains(&seat.comm) && !late_comms.contains(&seat.comm))
        {
            let first = *first_in.entry(seat.comm).or_insert(*who);
            pipelines.join(first, *who);
        }
    }
}

/// Late ranks of the same pipeline together: a slow stage makes all others late.
fn by_pipeline(picture: &Picture, roots: &[Case], pipelines: &mut Groups) -> Vec<Vec<Case>> {
    let mut groups: BTreeMap<usize, Vec<Case>> = BTreeMap::new();
    for case in roots.iter().filter(|case| picture.rank(case.who).is_some()) {
        groups.entry(pipelines.top(case.who)).or_default().push(*case);
    }
    groups.into_values().collect()
}

/// How long ranks wait for others: the share of the time that they are inside of sends, receives and collectives.
struct Waits<'a> {
    windows: &'a BTreeMap<usize, Window>,
    /// Over all communicators, by place in the picture.
    all: Vec<f64>,
}

impl<'a> Waits<'a> {
    fn new(picture: &Picture, windows: &'a BTreeMap<usize, Window>, window_ms: u64) -> Self {
        let window_us = window_ms.max(1) as f64 * 1000.0;
        let mut all = vec![0.0; picture.ranks.len()];
        for (who, rank) in picture.live_ranks() {
            all[who] = rank.p2p_us as f64 / window_us;
        }
        for (at, window) in windows {
            let Some(comm) = picture.comm(*at) else { continue };
            for (place, member) in comm.known() {
                all[member.who] += window.inside.get(place).copied().unwrap_or(0.0);
            }
        }
        Self { windows, all }
    }

    /// Everywhere but in one communicator.
    fn elsewhere(&self, at: usize, place: usize, who: usize) -> f64 {
        let here = self.windows.get(&at).and_then(|window| window.inside.get(place)).copied().unwrap_or(0.0);
        self.all[who] - here
    }
}

/// The late ranks of a pipeline that make it late: of the time that a rank is late, what it did not itself wait longer
/// than its like elsewhere is its own part. Empty: no stage stands out.
fn culprits(picture: &Picture, group: &[Case], waits: &Waits<'_>) -> Vec<Case> {
    let own_part = |case: &Case| {
        let comm = picture.comm(case.comm)?;
        let like = comm.known().map(|(place, member)| waits.elsewhere(case.comm, place, member.who));
        let mut like: Vec<f64> = like.collect();
        let middle = like.len().checked_sub(1)? / 2;
        let usual = *like.select_nth_unstable_by(middle, f64::total_cmp).1;
        let more = waits.elsewhere(case.comm, case.late.place, case.who) - usual;
        Some(1.0 - more / case.late.share.max(f64::MIN_POSITIVE))
    };
    let parts: Vec<f64> = group.iter().map(|case| own_part(case).unwrap_or(0.0)).collect();
    let most = parts.iter().copied().fold(0.0, f64::max);
    let mut ranks: BTreeMap<usize, Case> = BTreeMap::new();
    for (case, part) in group.iter().zip(parts) {
        if most >= OWN_PART && part >= most * NEAR_MOST {
            let known = ranks.entry(case.who).or_insert(*case);
            if case.late.share > known.late.share {
                *known = *case;
            }
        }
    }
    ranks.into_values().collect()
}

/// Where no stage stands out, the connections between them may be slow: their steps tell.
fn want_steps(picture: &mut Picture, group: &[Case], now_ms: u64, settings: &Settings) {
    let ranks = group.iter().filter_map(|case| picture.rank(case.who));
    let comms: BTreeSet<u64> = ranks
        .flat_map(|rank| &rank.seats)
        .filter(|seat| {
            let member = picture.comm(seat.comm).and_then(|comm| comm.members[seat.member].as_ref());
            member.is_some_and(|member| !member.peers.is_empty())
        })
        .map(|seat| seat.id)
        .collect();
    for id in comms {
        picture.matrix.want(id, now_ms + 3 * settings.window_ms);
    }
}

/// Slow connections between the stages of a pipeline that is late.
fn places_within(
    picture: &Picture,
    group: &[Case],
    pipelines: &mut Groups,
    settings: &Settings,
) -> Vec<Place> {
    let Some(top) = group.first().map(|case| pipelines.top(case.who)) else { return Vec::new() };
    let (hot, all, _) = hot(picture, settings);
    let within = |edge: &&Edge| pipelines.top(edge.0) == top && pipelines.top(edge.1) == top;
    let hot: Vec<Edge> = hot.iter().filter(within).copied().collect();
    places(picture, &hot, &all)
}

/// The finding about a slow connection between stages.
fn connection(picture: &Picture, group: &[Case], place: &Place, now_ms: u64) -> Option<Candidate> {
    let Candidate { finding: late, .. } = finding(picture, group, true, now_ms)?;
    let edge = |(from, to): &Edge| place.ranks.contains(from) && place.ranks.contains(to);
    let cell = picture.matrix.cells.iter().find(|(ends, _)| edge(ends))?.1;
    let comm = picture.comm(cell.comm)?;
    let operation =
        Operation { comm: comm.id, name: comm.name.clone(), nranks: comm.nranks, func: None, seq: None };
    let ranks = place.ranks.iter().filter_map(|who| picture.rank(*who));
    let mut suspects: Vec<Who> = ranks.map(|rank| rank.named(comm)).collect();
    suspects.sort();
    let worst = group.iter().max_by(|a, b| a.late.share.total_cmp(&b.late.share))?;
    let finding = Finding {
        class: Class::CommunicationSlow,
        subject: place.subject.clone(),
        suspects_total: suspects.len(),
        suspects,
        message: words::slow_pipeline(&operation, &worst.late, place),
        confidence: late.confidence * PLACED,
        // It is judged with the communicators that are late for it.
        operation: late.operation.clone(),
        ..late
    };
    Some(Candidate { key: (Class::CommunicationSlow, place.subject.clone(), 1), finding })
}

impl Rank {
    /// How a finding names it.
    pub fn named(&self, comm: &Comm) -> Who {
        let seat = self.seats.iter().find(|seat| seat.id == comm.id);
        let member = seat.and_then(|seat| comm.members[seat.member].as_ref());
        Who {
            node: self.node,
            pid: self.pid,
            gpu: self.gpu,
            task: self.task,
            rank: member.map(|member| member.rank),
        }
    }
}

/// The finding about late ranks of one node, or about a pipeline of which one stage is late.
fn finding(picture: &Picture, cases: &[Case], pipeline: bool, now_ms: u64) -> Option<Candidate> {
    let worst =
        cases.iter().max_by(|a, b| a.late.share.total_cmp(&b.late.share).then(b.comm.cmp(&a.comm)))?;
    let comm = picture.comm(worst.comm)?;
    let ranks: BTreeSet<usize> = cases.iter().map(|case| case.who).collect();
    let mut suspects: Vec<Who> =
        ranks.iter().filter_map(|who| picture.rank(*who)).map(|rank| rank.named(comm)).collect();
    suspects.sort();
    let suspects_total = suspects.len();
    suspects.truncate(MAX_NAMED);
    let first = suspects.first()?.clone();
    let nodes: BTreeSet<NodeId> = suspects.iter().map(|who| who.node).collect();
    let node = first.node;
    let subject = match (first.gpu, suspects_total, nodes.len()) {
        (Some(index), 1, _) => Subject::Gpu { node, index },
        (_, _, 1) => Subject::Node { node },
        _ => Subject::Run,
    };
    let lost = ranks
        .iter()
        .filter_map(|who| picture.rank(*who))
        .any(|rank| rank.lost_ms.is_some_and(|lost| now_ms.saturating_sub(lost) < worst.span_ms));
    let (told, all) = (comm.by_rank.len(), comm.nranks as usize);
    let sure = if pipeline { ONE_OF_PIPELINE } else { SURE } * if lost { LOST } else { 1.0 };
    let mut evidence: Vec<String> =
        cases.iter().take(8).map(|case| words::late(picture, case.who, case.comm, &case.late)).collect();
    if told < all {
        evidence.push(format!("compared {told} of {all} ranks; the others tell nothing"));
    }
    let operation =
        Operation { comm: comm.id, name: comm.name.clone(), nranks: comm.nranks, func: None, seq: None };
    let message = words::straggler(picture, (&suspects, suspects_total), &operation, &worst.late, pipeline);
    let finding = Finding {
        class: Class::Straggler,
        subject: subject.clone(),
        suspects,
        suspects_total,
        operation: Some(operation),
        waiting: told.saturating_sub(suspects_total),
        compared: (told, all),
        message,
        evidence,
        confidence: sure * told as f64 / all as f64,
        since_ms: now_ms.saturating_sub(worst.span_ms),
        found_ms: now_ms,
        state: State::Confirmed,
    };
    let place = if pipeline { Subject::Run } else { Subject::Node { node } };
    Some(Candidate { key: (Class::Straggler, place, if pipeline { u64::from(node) } else { 0 }), finding })
}
