//! From hot cells of the delay matrix to a place: a connection, the sender's side, the receiver's side.

use std::collections::{BTreeMap, BTreeSet};

use crate::c4d::digest::StepState;
use crate::c4d::matrix::MIN_STEPS;
use crate::c4d::meeting::{Key, Meeting, What};
use crate::c4d::picture::Picture;
use crate::c4d::settings::Settings;
use crate::c4d::suspects::Scene;
use crate::facts::NodeId;
use crate::measurement::Subject;

/// Of four connections of one side three must be hot before that side is: one may be inside the node, or idle.
const MOST: (usize, usize) = (3, 4);

/// Sender and receiver, by their places in the picture.
pub(super) type Edge = (usize, usize);

/// Where the network is slow or stuck.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Place {
    pub subject: Subject,
    /// The ranks at it.
    pub ranks: Vec<usize>,
    /// Which side, in words.
    pub words: String,
}

/// The cells whose mean wait stands out.
pub(super) fn hot(picture: &Picture, settings: &Settings) -> (Vec<Edge>, Vec<Edge>, u64) {
    let cells: Vec<(Edge, u64)> = picture
        .matrix
        .cells
        .iter()
        .filter(|(_, cell)| cell.steps >= MIN_STEPS)
        .map(|(edge, cell)| (*edge, cell.mean_us()))
        .collect();
    let mut waits: Vec<u64> = cells.iter().map(|(_, wait)| *wait).collect();
    if waits.is_empty() {
        return (Vec::new(), Vec::new(), 0);
    }
    // The lower of two middle ones: of two cells one can stand out.
    let middle = (waits.len() - 1) / 2;
    let median = *waits.select_nth_unstable(middle).1;
    let limit = settings.hot_us.max(scaled(median, settings.hot_ratio));
    let all: Vec<Edge> = cells.iter().map(|(edge, _)| *edge).collect();
    let hot = cells.iter().filter(|(_, wait)| *wait >= limit).map(|(edge, _)| *edge).collect();
    (hot, all, median)
}

#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "µs of a day"
)]
fn scaled(value: u64, factor: f64) -> u64 {
    (value as f64 * factor) as u64
}

/// Where the hot connections lie: first what a node's side explains, then a rank's side, then connections.
pub(super) fn places(picture: &Picture, hot: &[Edge], all: &[Edge]) -> Vec<Place> {
    let node = |who: usize| picture.rank(who).map_or(NodeId::MAX, |rank| rank.node);
    let rank = |who: usize| who;
    let mut left: BTreeSet<Edge> = hot.iter().copied().collect();
    let mut places = Vec::new();
    let across: Vec<Edge> = all.iter().filter(|(from, to)| node(*from) != node(*to)).copied().collect();
    for sends in [true, false] {
        for (at, edges) in sides(&left, &across, sends, node) {
            let name = picture.name(at);
            let side = if sends { "sends" } else { "receives" };
            let words =
                format!("everything that {name} {side} is slow, to whomever it is: its side of the network");
            let words = if sends { words } else { words.replace("to whomever", "from whomever") };
            places.push(Place { subject: Subject::Node { node: at }, ranks: ends(&edges, sends), words });
            left.retain(|edge| !edges.contains(edge));
        }
    }
    for sends in [true, false] {
        for (who, edges) in sides(&left, all, sends, rank) {
            let Some(rank) = picture.rank(who) else { continue };
            let (name, side) = (picture.name(rank.node), if sends { "sends" } else { "receives" });
            let gpu = rank.gpu.map_or_else(|| format!("process {}", rank.pid), |gpu| format!("GPU {gpu}"));
            let words =
                format!("everything that {gpu} of {name} {side} is slow: its side, or its network device");
            let subject = match rank.gpu {
                Some(index) => Subject::Gpu { node: rank.node, index },
                None => Subject::Node { node: rank.node },
            };
            places.push(Place { subject, ranks: vec![who], words });
            left.retain(|edge| !edges.contains(edge));
        }
    }
    let mut ways: BTreeMap<(NodeId, NodeId), Vec<Edge>> = BTreeMap::new();
    for edge in left {
        ways.entry((node(edge.0), node(edge.1))).or_default().push(edge);
    }
    places.extend(ways.into_iter().map(|((from, to), edges)| connection(picture, from, to, &edges)));
    places
}

/// One way between two nodes, or inside of one.
fn connection(picture: &Picture, from: NodeId, to: NodeId, edges: &[Edge]) -> Place {
    let ranks: BTreeSet<usize> = edges.iter().flat_map(|(from, to)| [*from, *to]).collect();
    let gpus = |who: usize| {
        picture.rank(who).and_then(|rank| rank.gpu).map_or("?".to_owned(), |gpu| gpu.to_string())
    };
    let pairs: Vec<String> =
        edges.iter().take(4).map(|(from, to)| format!("GPU {} to GPU {}", gpus(*from), gpus(*to))).collect();
    let words = if from == to {
        format!("the connections inside {} ({})", picture.name(from), pairs.join(", "))
    } else {
        format!("the connection from {} to {} ({})", picture.name(from), picture.name(to), pairs.join(", "))
    };
    let subject = if from == to { Subject::Node { node: from } } else { Subject::Path { from, to } };
    Place { subject, ranks: ranks.into_iter().collect(), words }
}

/// Ends of which most connections are hot, to several others.
fn sides<E: Ord + Copy>(
    hot: &BTreeSet<Edge>,
    all: &[Edge],
    sends: bool,
    end: impl Fn(usize) -> E,
) -> Vec<(E, Vec<Edge>)> {
    let own = |edge: &Edge| end(if sends { edge.0 } else { edge.1 });
    let other = |edge: &Edge| end(if sends { edge.1 } else { edge.0 });
    let mut totals: BTreeMap<E, (usize, Vec<Edge>)> = BTreeMap::new();
    for edge in all {
        let total = totals.entry(own(edge)).or_default();
        total.0 += 1;
        if hot.contains(edge) {
            total.1.push(*edge);
        }
    }
    let stands_out = |(total, edges): &(usize, Vec<Edge>)| {
        let others: BTreeSet<E> = edges.iter().map(other).collect();
        others.len() > 1 && edges.len() * MOST.1 >= total * MOST.0
    };
    totals.into_iter().filter(|(_, one)| stands_out(one)).map(|(end, (_, edges))| (end, edges)).collect()
}

fn ends(edges: &[Edge], sends: bool) -> Vec<usize> {
    let ends: BTreeSet<usize> = edges.iter().map(|edge| if sends { edge.0 } else { edge.1 }).collect();
    ends.into_iter().collect()
}

/// Where an operation to which all have come is stuck, if its steps tell.
pub(super) fn stuck(scene: &Scene<'_>, key: Key, meeting: &Meeting) -> Option<Place> {
    let picture = scene.picture;
    if let What::Pair { from, to } = key.what {
        let comm = picture.comm(key.comm)?;
        let who = |rank: u32| Some(comm.members[*comm.by_rank.get(&rank)?].as_ref()?.who);
        let edge = (who(from)?, who(to)?);
        let node = |who: usize| picture.rank(who).map(|rank| rank.node);
        return Some(connection(picture, node(edge.0)?, node(edge.1)?, &[edge]));
    }
    let waiting: BTreeSet<usize> = meeting.waiting.iter().copied().collect();
    let fresh = |at: u64| scene.now_ms.saturating_sub(at) < scene.silent_ms;
    let of_it =
        picture.matrix.cells.iter().filter(|((from, to), cell)| {
            cell.comm == key.comm && waiting.contains(from) && waiting.contains(to)
        });
    let of_it: Vec<(Edge, Option<StepState>)> = of_it
        .map(|(edge, cell)| (*edge, cell.open.filter(|(_, at)| fresh(*at)).map(|(state, _)| state)))
        .collect();
    let all: Vec<Edge> = of_it.iter().map(|(edge, _)| *edge).collect();
    let wire = of_it.iter().filter(|(_, state)| *state == Some(StepState::Wire));
    let wire: Vec<Edge> = wire.map(|(edge, _)| *edge).collect();
    // Behind a stuck connection all wait for data or for room; only its sender waits for the network.
    let mut found = places(picture, &wire, &all).into_iter();
    let first = found.next()?;
    let words = first.words.replace(" is slow", " is stuck");
    let others = found.count();
    let more = if others > 0 { format!("; {others} other places wait too") } else { String::new() };
    Some(Place { words: format!("{words}{more}"), ..first })
}
