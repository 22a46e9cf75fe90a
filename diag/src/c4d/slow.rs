//! Slowness over a window: a transport that takes longer than at its best or than its like, and where it is.

use std::collections::{BTreeMap, BTreeSet};

use crate::c4d::confirm::Candidate;
use crate::c4d::digest::Func;
use crate::c4d::finding::{Class, Finding, MAX_NAMED, Operation, State, Who};
use crate::c4d::link::{Place, hot, places};
use crate::c4d::picture::{Comm, Picture};
use crate::c4d::settings::Settings;
use crate::c4d::timing::{Transport, Window};
use crate::c4d::words;
use crate::facts::NodeId;
use crate::measurement::Subject;

/// How sure a slow transport is with its place, and without.
const PLACED: f64 = 0.8;

/// Without: load of others on the network looks the same.
const NOT_PLACED: f64 = 0.5;

/// Fewest communicators of a kind whose median says what is usual.
const MIN_LIKE: usize = 3;

/// For how many windows the network's steps are wanted.
const WANTED_WINDOWS: u64 = 3;

/// What communicators of a kind have in common: ranks, nodes, function, bytes.
type Kind = (u32, u32, Func, u64);

/// A communicator whose transport is slow.
#[derive(Debug, Clone)]
pub(super) struct Slow {
    pub comm: usize,
    pub shown: Transport,
    pub reference_us: u32,
    /// What that costs, as a share of the time.
    pub share: f64,
}

/// The communicators of this window whose transport is slow.
pub(super) fn slow_comms(
    picture: &Picture,
    windows: &BTreeMap<usize, Window>,
    settings: &Settings,
) -> Vec<Slow> {
    let kind = |comm: &Comm, one: &Transport| (comm.nranks, comm.nnodes, one.func, one.bytes);
    let mut like: BTreeMap<Kind, Vec<u32>> = BTreeMap::new();
    for (at, window) in windows {
        let Some(comm) = picture.comm(*at) else { continue };
        for one in &window.transport {
            like.entry(kind(comm, one)).or_default().push(one.now_us);
        }
    }
    for times in like.values_mut() {
        times.sort_unstable();
    }
    let mut slow = Vec::new();
    for (at, window) in windows {
        let Some(comm) = picture.comm(*at) else { continue };
        let worst = window.transport.iter().filter_map(|one| {
            let times = &like[&kind(comm, one)];
            let usual = (times.len() >= MIN_LIKE).then(|| times[(times.len() - 1) / 2]);
            let reference_us = one.best_us.into_iter().chain(usual).min()?;
            let excess_us = one.now_us.saturating_sub(reference_us);
            let share = f64::from(excess_us) * one.per_s / 1e6;
            let long = f64::from(one.now_us) >= f64::from(reference_us) * settings.slow_ratio;
            (long && share >= settings.slow_share).then_some(Slow {
                comm: *at,
                shown: *one,
                reference_us,
                share,
            })
        });
        slow.extend(worst.max_by(|a, b| a.share.total_cmp(&b.share)));
    }
    slow
}

/// The findings about slow transports. The steps of the network are wanted for them; once those are there, they say where.
pub(super) fn candidates(
    picture: &mut Picture,
    slow: &[Slow],
    now_ms: u64,
    settings: &Settings,
) -> Vec<Candidate> {
    for one in slow {
        if let Some(id) = picture.comm(one.comm).map(|comm| comm.id) {
            picture.matrix.want(id, now_ms + settings.window_ms * WANTED_WINDOWS);
        }
    }
    let Some(worst) = slow.iter().max_by(|a, b| a.share.total_cmp(&b.share).then(b.comm.cmp(&a.comm))) else {
        return Vec::new();
    };
    let (edges, all, median_us) = hot(picture, settings);
    let found = places(picture, &edges, &all);
    let whole = if found.is_empty() { vec![None] } else { found.iter().map(Some).collect() };
    let one = |place: Option<&Place>| {
        let finding = finding(picture, slow, worst, place, median_us, now_ms)?;
        let subject = place.map_or(Subject::Run, |place| place.subject.clone());
        Some(Candidate { key: (Class::CommunicationSlow, subject, 0), finding })
    };
    whole.into_iter().filter_map(one).collect()
}

fn finding(
    picture: &Picture,
    slow: &[Slow],
    worst: &Slow,
    place: Option<&Place>,
    median_us: u64,
    now_ms: u64,
) -> Option<Finding> {
    let comm = picture.comm(worst.comm)?;
    let operation = Operation {
        comm: comm.id,
        name: comm.name.clone(),
        nranks: comm.nranks,
        func: Some(worst.shown.func),
        seq: None,
    };
    let ranks = place.map(|place| place.ranks.as_slice()).unwrap_or_default();
    let mut suspects: Vec<Who> =
        ranks.iter().filter_map(|who| picture.rank(*who)).map(|rank| rank.named(comm)).collect();
    suspects.sort();
    let suspects_total = suspects.len();
    suspects.truncate(MAX_NAMED);
    let subject = place.map_or_else(|| common(picture, slow), |place| place.subject.clone());
    let (told, all) = (comm.by_rank.len(), comm.nranks as usize);
    let mut evidence = Vec::new();
    if let Some(place) = place {
        let waits = picture
            .matrix
            .cells
            .iter()
            .filter(|((from, to), _)| place.ranks.contains(from) || place.ranks.contains(to));
        let worst_us = waits.map(|(_, cell)| cell.mean_us()).max().unwrap_or(0);
        evidence.push(format!(
            "a step of the network waits {worst_us} µs there, {median_us} µs in the middle of all connections"
        ));
    }
    if slow.len() > 1 {
        evidence.push(format!("{} communicators are slow", slow.len()));
    }
    if told < all {
        evidence.push(format!("compared {told} of {all} ranks; the others tell nothing"));
    }
    let sure = if place.is_some() { PLACED } else { NOT_PLACED };
    let confidence = sure * told as f64 / all as f64;
    let message = words::slow(&operation, worst, place);
    let span_ms = now_ms.saturating_sub(picture.window_since_ms.unwrap_or(now_ms));
    Some(Finding {
        class: Class::CommunicationSlow,
        subject,
        suspects,
        suspects_total,
        operation: Some(operation),
        waiting: told,
        compared: (told, all),
        message,
        evidence,
        confidence,
        since_ms: now_ms.saturating_sub(span_ms),
        found_ms: now_ms,
        state: State::Confirmed,
    })
}

/// What all slow communicators share: a node, or what lies between nodes.
fn common(picture: &Picture, slow: &[Slow]) -> Subject {
    let mut nodes: Option<BTreeSet<NodeId>> = None;
    for one in slow {
        let Some(comm) = picture.comm(one.comm) else { continue };
        let members = comm.known().filter_map(|(_, member)| picture.rank(member.who));
        let own: BTreeSet<NodeId> = members.map(|rank| rank.node).collect();
        nodes = Some(nodes.map_or(own.clone(), |nodes| nodes.intersection(&own).copied().collect()));
    }
    match nodes.unwrap_or_default().into_iter().collect::<Vec<_>>().as_slice() {
        [node] => Subject::Node { node: *node },
        [a, b] => Subject::Link { a: *a, b: *b },
        _ => Subject::Fabric,
    }
}
