//! Which of the wanted drains may happen, given all nodes as the controller shows them, and which have to be given back:
//! the budget that all jobs share. Pure; what is asked of Slurm, and when, is `cluster`'s.
//!
//! Jobs that fail at the same moment don't know of each other. So there are two looks. Before: what is over the budget
//! already is not drained. After, once the second in which it drained has passed: all drains that were in that second or
//! before are there to see, and everybody ranks them alike, by time and name. Whoever finds one of his own beyond the
//! budget gives it back. So the budget is kept exactly where everybody takes the second look.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use crate::drain_memory::Memory;
use crate::job::NodeView;
use crate::policy::Budget;
use crate::reason::Ours;

/// Nodes that one partition shows alike.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Row {
    /// The partition.
    pub partition: String,
    /// The nodes.
    pub nodes: Vec<String>,
    /// State, reason and the like, of each of them.
    pub alike: NodeView,
}

/// All nodes, by partition. A node is in one row of each of its partitions.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Picture {
    /// In no particular order.
    pub rows: Vec<Row>,
}

/// What one partition holds of ours.
struct Tally<'p> {
    size: usize,
    /// Nodes that we hold, in order of time, then name.
    held: Vec<(Timestamp, &'p str)>,
    /// Of these the ones that were drained in the window.
    new: Vec<(Timestamp, &'p str)>,
    /// Drains of the window beside those: of nodes that were returned since, or drained again.
    returned: usize,
}

impl Picture {
    /// One node.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<NodeView> {
        let row = self.rows.iter().find(|row| row.nodes.iter().any(|node| node == name))?;
        Some(NodeView { name: name.to_owned(), ..row.alike.clone() })
    }

    /// Nodes that we hold, also those to whose reasons somebody added something.
    #[must_use]
    pub fn held(&self) -> BTreeSet<&str> {
        let rows = self.rows.iter().filter(|row| row.alike.is_held());
        rows.flat_map(|row| row.nodes.iter().map(String::as_str)).collect()
    }

    fn partitions(&self, node: &str) -> BTreeSet<&str> {
        let rows = self.rows.iter().filter(|row| row.nodes.iter().any(|other| other == node));
        rows.map(|row| row.partition.as_str()).collect()
    }

    fn tally(&self, partition: &str, since: Timestamp) -> Tally<'_> {
        let mut tally = Tally { size: 0, held: Vec::new(), new: Vec::new(), returned: 0 };
        for row in self.rows.iter().filter(|row| row.partition == partition) {
            tally.size += row.nodes.len();
            let mut before = Memory::of(&row.alike.comment).count(since);
            if row.alike.is_held() {
                // A reason without a time is none that was given lately.
                let at = row.alike.reason_at.unwrap_or(Timestamp::MIN);
                let named = row.nodes.iter().map(|node| (at, node.as_str()));
                if at >= since {
                    tally.new.extend(named.clone());
                    // This drain is remembered as well.
                    before = before.saturating_sub(1);
                }
                tally.held.extend(named);
            }
            tally.returned += before * row.nodes.len();
        }
        tally.held.sort_unstable();
        tally.new.sort_unstable();
        tally
    }
}

/// What kind of obstacle it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It is somebody else's already, or not known.
    Taken,
    /// The budget of all jobs is used up.
    Budget,
    /// It was drained so often that a person has to look.
    Person,
}

/// Why a node is not drained.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Withheld {
    /// The node.
    pub node: String,
    /// What kind of obstacle it is.
    pub kind: Kind,
    /// In words.
    pub words: String,
}

/// What is done about a wanted drain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admission {
    /// It happens.
    Drain {
        /// The reason, which also says if it is not the first time.
        reason: String,
        /// The node's whole comment from now on; `None`: it stays as it is.
        comment: Option<String>,
        /// The node's comment until now.
        before: String,
    },
    /// This very run of the job drained it already, by another node that spoke for it and was lost.
    Done,
    /// It does not.
    No(Withheld),
}

fn ago(now: Timestamp, seconds: u32) -> Timestamp {
    now.checked_sub(SignedDuration::from_secs(i64::from(seconds))).unwrap_or(Timestamp::MIN)
}

/// Decides on each wanted drain, a node and the reason for it, in their order.
#[must_use]
pub fn admit(budget: &Budget, picture: &Picture, now: Timestamp, wanted: &[(&str, &str)]) -> Vec<Admission> {
    let mut admitted: Vec<&str> = Vec::new();
    wanted.iter().map(|one| admission(budget, picture, now, *one, &mut admitted)).collect()
}

fn admission<'w>(
    budget: &Budget,
    picture: &Picture,
    now: Timestamp,
    (node, reason): (&'w str, &str),
    admitted: &mut Vec<&'w str>,
) -> Admission {
    let no = |kind, words| Admission::No(Withheld { node: node.to_owned(), kind, words });
    let Some(view) = picture.node(node) else {
        return no(Kind::Taken, "left alone: Slurm shows it in no partition".to_owned());
    };
    let run = |reason: &str| Ours::parse(reason).map(|ours| (ours.job_id, ours.check_number));
    if view.is_held() && run(reason).is_some() && run(&view.reason) == run(reason) {
        return Admission::Done;
    }
    if view.is_taken() {
        let state = view.state.iter().map(String::as_str).collect::<Vec<_>>().join("+");
        let words = if view.is_out_of_service() {
            format!("left alone: it is {state} already, reason {:?}", view.reason)
        } else {
            // Since Slurm 24.11 a reason outlives its drain.
            format!(
                "left alone: it is {state} and has the reason {:?}; if that is an old one, `scontrol update \
                 nodename={node} reason=' '` takes it away",
                view.reason
            )
        };
        return no(Kind::Taken, words);
    }
    let memory = Memory::of(&view.comment);
    let times = memory.count(ago(now, budget.same_node_window_s));
    let window = span(budget.same_node_window_s);
    if times >= budget.same_node as usize {
        let words = format!(
            "not drained again: it needs a person: this software drained it {times} times in {window} already \
             (budget.same_node)"
        );
        return no(Kind::Person, words);
    }
    if let Some(words) = over(budget, picture, now, node, admitted) {
        return no(Kind::Budget, format!("held back by the drain budget: {words}"));
    }
    admitted.push(node);
    let reason = match Ours::parse(reason) {
        Some(ours) if times > 0 => ours.with(&format!("{} time in {window}", ordinal(times + 1))).to_string(),
        _ => reason.to_owned(),
    };
    let comment = memory.and(now, &reason).into_comment(&view.comment);
    Admission::Drain { reason, comment, before: view.comment }
}

/// Why the budget has no room for one node more, in words.
fn over(budget: &Budget, picture: &Picture, now: Timestamp, node: &str, admitted: &[&str]) -> Option<String> {
    picture.partitions(node).into_iter().find_map(|partition| {
        let tally = picture.tally(partition, ago(now, budget.new_window_s));
        let mine = admitted.iter().filter(|other| picture.partitions(other).contains(partition)).count();
        let most = budget.most_held(tally.size);
        let held = tally.held.len() + mine;
        if held >= most {
            return Some(full(partition, tally.size, held, most));
        }
        let new = tally.new.len() + tally.returned + mine;
        (new >= budget.new_nodes as usize).then(|| used_up(partition, new, budget))
    })
}

fn full(partition: &str, size: usize, held: usize, most: usize) -> String {
    format!(
        "{held} of the {size} nodes of partition {partition} are drained by this software already, {most} are the most \
         (budget.held_nodes, held_fraction)"
    )
}

fn used_up(partition: &str, new: usize, budget: &Budget) -> String {
    format!(
        "this software drained {new} nodes of partition {partition} in the last {} already, {} are the most \
         (budget.new_nodes)",
        span(budget.new_window_s),
        budget.new_nodes
    )
}

/// Which of the nodes that were just drained (`mine`) have to be given back, by what is there to see afterwards.
#[must_use]
pub fn surplus(budget: &Budget, picture: &Picture, now: Timestamp, mine: &[&str]) -> Vec<Withheld> {
    let beyond = |node: &str| {
        picture.partitions(node).into_iter().find_map(|partition| {
            let tally = picture.tally(partition, ago(now, budget.new_window_s));
            let place = |list: &[(Timestamp, &str)]| list.iter().position(|(_, other)| *other == node);
            let most = budget.most_held(tally.size);
            if place(&tally.held).is_some_and(|before| before >= most) {
                return Some(full(partition, tally.size, tally.held.len(), most));
            }
            let late =
                place(&tally.new).is_some_and(|before| before + tally.returned >= budget.new_nodes as usize);
            late.then(|| used_up(partition, tally.new.len() + tally.returned, budget))
        })
    };
    let back = |node: &&str| {
        let words = beyond(node)?;
        let words = format!("given back: other jobs drained nodes at the same moment: {words}");
        Some(Withheld { node: (*node).to_owned(), kind: Kind::Budget, words })
    };
    mine.iter().filter_map(back).collect()
}

fn ordinal(count: usize) -> String {
    match count {
        1 => "first".to_owned(),
        2 => "second".to_owned(),
        3 => "third".to_owned(),
        more if matches!(more % 100, 11..=13) => format!("{more}th"),
        more if more % 10 == 1 => format!("{more}st"),
        more if more % 10 == 2 => format!("{more}nd"),
        more if more % 10 == 3 => format!("{more}rd"),
        more => format!("{more}th"),
    }
}

/// A time of so many seconds in the unit in which it is short.
fn span(seconds: u32) -> String {
    match seconds {
        s if s % 86_400 == 0 && s > 86_400 => format!("{} days", s / 86_400),
        s if s % 3600 == 0 => format!("{} h", s / 3600),
        s if s % 60 == 0 => format!("{} min", s / 60),
        s => format!("{s} s"),
    }
}
