//! Numbers of pairs of nodes: of few nodes a matrix; of many, each node with the worst pair that it is in, and the worst pairs
//! by name. A level says how far below the middle of the pairs a number is.

use std::collections::BTreeMap;

use serde::Serialize;

use super::series::{Kind, MOST_WORST, Number, numbers};
use super::table::Figures;
use super::{Tone, grouped, median, name};
use crate::check::Phase;
use crate::report::Item;
use crate::wording;

/// Most nodes of a matrix: cells of more are too small for a finger.
pub const MOST_MATRIX: usize = 32;

/// Most cells of the picture of nodes; of more nodes several share one.
pub const MOST_CELLS: usize = 1024;

/// Most pictures: each check between pairs has one.
pub const MOST_MAPS: usize = 6;

/// Nodes that are looked at: more than any cluster has.
const MOST_NODES: usize = 65_536;

/// From which share of the middle on a number has which level; below the last it has level 4.
const LEVELS: [f64; 4] = [0.95, 0.85, 0.7, 0.5];

/// The pairs of one check.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PairMap {
    /// The check.
    pub check: String,
    /// Which of its numbers.
    pub which: String,
    /// Their unit.
    pub unit: &'static str,
    /// How many pairs have a number.
    pub count: String,
    /// How many pairs or nodes miss.
    pub misses: usize,
    /// The middle of them.
    pub median: String,
    /// Whether more is better.
    pub higher_is_better: bool,
    /// The picture.
    pub drawing: Drawing,
    /// The worst pairs.
    pub worst: Vec<Worst>,
    /// How many pairs are not named in a list or a cell.
    pub more: String,
}

/// How it is drawn.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Drawing {
    /// A cell each.
    Matrix {
        /// The nodes, along both sides.
        nodes: Vec<String>,
        /// Those that were measured; row before column.
        cells: Vec<Cell>,
    },
    /// A cell a node, or some nodes.
    Nodes {
        /// How many nodes share a cell.
        per_cell: usize,
        /// In the order of the job's nodes.
        cells: Vec<NodeCell>,
    },
}

/// A pair in a matrix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Cell {
    /// Places of its nodes.
    pub row: usize,
    /// The higher one.
    pub column: usize,
    /// 0: as the middle or better, to 4.
    pub level: usize,
    /// The number without its unit.
    pub value: String,
    /// The pair, its number, what was found.
    pub words: String,
    /// Whether it misses its limit.
    pub miss: bool,
}

/// A node, or some.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeCell {
    /// The node, or the first and the last.
    pub name: String,
    /// Of its worst pair; `None`: no pair of it has a number.
    pub level: Option<usize>,
    /// Its worst pair, with its number.
    pub words: String,
    /// Whether something of it misses.
    pub miss: bool,
}

/// One of the worst pairs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Worst {
    /// The pair, or what of it.
    pub name: String,
    /// Its number.
    pub value: String,
    /// Its limit; empty where there is none.
    pub limit: String,
    /// That in per cent of the middle.
    pub share: String,
    /// Whether it misses.
    pub miss: bool,
}

/// What is known of two nodes.
#[derive(Debug, Clone)]
struct Pair<'i> {
    item: &'i Item,
    number: Option<Number>,
    miss: bool,
    /// The node at fault, where it is one of the two.
    blamed: Option<usize>,
}

type Pairs<'i> = BTreeMap<(usize, usize), Pair<'i>>;

/// In the order of the report.
pub(super) fn pairs(nodes: &[String], items: &[Item]) -> Vec<PairMap> {
    let between: Vec<&Item> = items.iter().filter(|item| item.phase == Phase::TwoNodeCommCheck).collect();
    let mut checks: Vec<&str> = Vec::new();
    for item in &between {
        if !checks.contains(&item.check.as_str()) && checks.len() < MOST_MAPS {
            checks.push(&item.check);
        }
    }
    let nodes = &nodes[..nodes.len().min(MOST_NODES)];
    let places: BTreeMap<&str, usize> = nodes.iter().map(String::as_str).zip(0..).collect();
    let of_check = |check: &&str| {
        let items: Vec<&Item> = between.iter().copied().filter(|item| item.check == *check).collect();
        map(check, nodes, &places, &items)
    };
    checks.iter().filter_map(of_check).collect()
}

fn map(check: &str, nodes: &[String], places: &BTreeMap<&str, usize>, items: &[&Item]) -> Option<PairMap> {
    let kind = usual_kind(items)?;
    let (metric, bytes) = kind;
    let of_kind = |item: &Item| numbers(item).into_iter().find(|number| number.kind == kind);
    let worse = |a: &Number, b: &Number| (a.value < b.value) == metric.higher_is_better();
    let mut pairs: Pairs<'_> = BTreeMap::new();
    for item in items {
        let number = of_kind(item);
        let miss = Tone::of(item.status) >= Tone::Notice;
        let of_one = !matches!(item.subject.kind.as_str(), "pair" | "pair_rail" | "link" | "path");
        let blamed = places.get(item.subject.node.as_str()).copied().filter(|_| miss && of_one);
        for ends in ends(item, places) {
            let new = Pair { item, number, miss, blamed };
            let known = pairs.entry(ends).or_insert_with(|| new.clone());
            // Of several rails or findings the worst stands for the pair; what misses hides nothing that was measured.
            let replaces = match (&known.number, &number) {
                (Some(old), Some(new)) => (miss, worse(new, old)) > (known.miss, false),
                (old, new) => new.is_some() || (old.is_none() && miss),
            };
            if replaces {
                *known = Pair { miss: miss || known.miss, ..new };
            } else {
                known.miss |= miss;
            }
        }
    }
    let mut values: Vec<f64> = pairs.values().filter_map(|pair| Some(pair.number?.value)).collect();
    let middle = median(&mut values)?;
    let relative = |number: &Number| {
        let share = if metric.higher_is_better() { number.value / middle } else { middle / number.value };
        if share.is_finite() { share } else { 1.0 }
    };
    let figures = Figures::of(metric, middle);
    let scale = Scale { figures, relative: &relative, nodes };
    let worst = scale.worst(&pairs);
    Some(PairMap {
        check: name(check),
        which: wording::which(metric, bytes).trim_start().to_owned(),
        unit: figures.unit(),
        count: grouped(values.len()),
        misses: items.iter().filter(|item| Tone::of(item.status) >= Tone::Notice).count(),
        median: figures.whole(middle),
        higher_is_better: metric.higher_is_better(),
        more: grouped(values.len().saturating_sub(worst.len())),
        drawing: if nodes.len() <= MOST_MATRIX { scale.matrix(&pairs) } else { scale.of_nodes(&pairs) },
        worst,
    })
}

/// The number that most items have; of several sizes of messages the largest.
fn usual_kind(items: &[&Item]) -> Option<Kind> {
    let mut counts: BTreeMap<Kind, usize> = BTreeMap::new();
    for number in items.iter().flat_map(|item| numbers(item)) {
        *counts.entry(number.kind).or_default() += 1;
    }
    let most = counts.values().copied().max()?;
    counts.into_iter().filter(|(_, count)| 2 * count >= most).map(|(kind, _)| kind).max_by_key(|kind| kind.1)
}

/// Between which nodes: those of a pair, or a node at fault with each that it missed with.
fn ends(item: &Item, places: &BTreeMap<&str, usize>) -> Vec<(usize, usize)> {
    let place = |name: &str| places.get(name).copied();
    let Some(one) = place(&item.subject.node) else { return Vec::new() };
    let partners: Vec<usize> = match item.subject.kind.as_str() {
        "pair" | "pair_rail" | "link" | "path" => {
            // A name may hold any of the signs between two names: the rest must be the name of a node.
            let rest = item.subject.name.strip_prefix(&item.subject.node);
            let rest = rest.map(|rest| rest.trim_start_matches("->").trim_start_matches('-'));
            let rail = |rest: &str| rest.rsplit_once("/rail").map(|(node, _)| node.to_owned());
            rest.and_then(|rest| place(rest).or_else(|| place(&rail(rest)?))).into_iter().collect()
        }
        _ => item.peers.iter().filter_map(|peer| place(peer)).collect(),
    };
    partners.into_iter().filter(|other| *other != one).map(|other| (one.min(other), one.max(other))).collect()
}

struct Scale<'s> {
    figures: Figures,
    relative: &'s dyn Fn(&Number) -> f64,
    nodes: &'s [String],
}

impl Scale<'_> {
    fn level(&self, number: &Number) -> usize {
        let share = (self.relative)(number);
        LEVELS.iter().take_while(|least| share < **least).count()
    }

    fn node(&self, place: usize) -> String {
        self.nodes.get(place).map_or_else(String::new, |node| name(node))
    }

    fn words(&self, (a, b): (usize, usize), pair: &Pair<'_>) -> String {
        let value =
            pair.number.map_or_else(|| "no number".to_owned(), |number| self.figures.whole(number.value));
        let found = if pair.miss {
            format!(", {} of {}", pair.item.status, name(&pair.item.subject.name))
        } else {
            String::new()
        };
        format!("{} and {}: {value}{found}", self.node(a), self.node(b))
    }

    fn matrix(&self, pairs: &Pairs<'_>) -> Drawing {
        let cells = pairs.iter().map(|(&(row, column), pair)| Cell {
            row,
            column,
            level: pair.number.as_ref().map_or(0, |number| self.level(number)),
            value: pair.number.map_or_else(String::new, |number| self.figures.bare(number.value)),
            words: self.words((row, column), pair),
            miss: pair.miss,
        });
        Drawing::Matrix { nodes: self.nodes.iter().map(|node| name(node)).collect(), cells: cells.collect() }
    }

    fn of_nodes(&self, pairs: &Pairs<'_>) -> Drawing {
        let per_cell = self.nodes.len().div_ceil(MOST_CELLS);
        let count = self.nodes.len().div_ceil(per_cell);
        let mut worst: Vec<Option<((usize, usize), &Pair<'_>)>> = vec![None; count];
        let rank = |pair: &Pair<'_>| pair.number.as_ref().map_or(f64::MAX, |number| (self.relative)(number));
        for (ends, pair) in pairs {
            // A node at fault is marked, its partners are not.
            for end in [ends.0, ends.1].into_iter().filter(|end| pair.blamed.is_none_or(|it| it == *end)) {
                let slot = &mut worst[end / per_cell];
                let worse = slot.is_none_or(|(_, old)| (!pair.miss, rank(pair)) < (!old.miss, rank(old)));
                if worse {
                    *slot = Some((*ends, pair));
                }
            }
        }
        let cells = (0..count).zip(worst).map(|(cell, worst)| {
            let (first, last) = (cell * per_cell, ((cell + 1) * per_cell).min(self.nodes.len()) - 1);
            let names = if first == last {
                self.node(first)
            } else {
                format!("{} to {}", self.node(first), self.node(last))
            };
            NodeCell {
                name: names,
                level: worst.and_then(|(_, pair)| Some(self.level(pair.number.as_ref()?))),
                words: worst.map_or_else(|| "no number".to_owned(), |(ends, pair)| self.words(ends, pair)),
                miss: worst.is_some_and(|(_, pair)| pair.miss),
            }
        });
        Drawing::Nodes { per_cell, cells: cells.collect() }
    }

    fn worst(&self, pairs: &Pairs<'_>) -> Vec<Worst> {
        let mut all: Vec<((usize, usize), &Pair<'_>, Number)> =
            pairs.iter().filter_map(|(ends, pair)| Some((*ends, pair, pair.number?))).collect();
        all.sort_by(|a, b| {
            b.1.miss.cmp(&a.1.miss).then((self.relative)(&a.2).total_cmp(&(self.relative)(&b.2)))
        });
        all.truncate(MOST_WORST);
        let one = |((a, b), pair, number): ((usize, usize), &Pair<'_>, Number)| {
            let rail = pair
                .item
                .subject
                .name
                .rsplit_once("/rail")
                .map_or_else(String::new, |(_, rail)| format!(", rail {rail}"));
            Worst {
                name: name(&format!("{} – {}{rail}", self.node(a), self.node(b))),
                value: self.figures.whole(number.value),
                limit: number.limit.map_or_else(String::new, |limit| self.figures.whole(limit)),
                share: format!("{:.0} %", 100.0 * (self.relative)(&number).min(99.0)),
                miss: pair.miss,
            }
        };
        all.into_iter().map(one).collect()
    }
}
