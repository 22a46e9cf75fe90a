//! Numbers of GPUs and nodes by themselves beside each other: each as a bar where they are few; else how they are
//! distributed, and the worst by name.

use std::collections::BTreeMap;

use serde::Serialize;

use super::table::Figures;
use super::{Tone, grouped, median, name, share};
use crate::check::Phase;
use crate::measurement::Metric;
use crate::report::Item;
use crate::wording;

/// Most bars of a picture: eight nodes of eight GPUs. More of them are thinner than a sign on them.
pub const MOST_BARS: usize = 64;

/// Most pictures: each check of single nodes with each of its numbers.
pub const MOST_SERIES: usize = 8;

/// Bins of a distribution.
const BINS: usize = 24;

/// Most subjects that are named beside a distribution.
pub(super) const MOST_WORST: usize = 12;

/// Which number: its quantity, and the size of its messages.
pub(super) type Kind = (Metric, Option<u64>);

/// One number of an item.
#[derive(Debug, Clone, Copy)]
pub(super) struct Number {
    pub kind: Kind,
    pub value: f64,
    pub limit: Option<f64>,
    pub miss: bool,
}

/// All numbers of an item that are quantities: shares of right results and the like are told in words.
pub(super) fn numbers(item: &Item) -> Vec<Number> {
    /// Most numbers of one item: three sizes or two precisions, and room.
    const MOST: usize = 8;
    let told = |metric| !matches!(metric, Metric::Correct | Metric::Reachable | Metric::Fingerprint);
    let of_rates = item.rates.iter().map(|rate| Number {
        kind: (rate.metric, rate.bytes),
        value: rate.value,
        limit: rate.limit.as_ref().map(|limit| limit.value),
        miss: rate.miss,
    });
    let alone = item.metric.zip(item.value).map(|(metric, value)| Number {
        kind: (metric, item.bytes),
        value,
        limit: item.limit,
        miss: Tone::of(item.status) >= Tone::Notice,
    });
    let alone = alone.filter(|_| item.rates.is_empty());
    of_rates.chain(alone).filter(|one| told(one.kind.0) && one.value.is_finite()).take(MOST).collect()
}

/// Numbers of one kind.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Series {
    /// The check.
    pub check: String,
    /// Which of its numbers.
    pub which: String,
    /// Their unit.
    pub unit: &'static str,
    /// `GPUs` or `nodes`.
    pub subjects: &'static str,
    /// Whether more is better.
    pub higher_is_better: bool,
    /// How many.
    pub count: String,
    /// How many of them miss.
    pub misses: usize,
    /// The end of the scale, which begins at 0.
    pub end: String,
    /// The limit: its place, and its number.
    pub limit: Option<(f64, String)>,
    /// The middle of them all.
    pub median: Option<(f64, String)>,
    /// The picture.
    pub drawing: Drawing,
}

/// How it is drawn.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Drawing {
    /// A bar each.
    Bars {
        /// In the order of the report.
        groups: Vec<Group>,
    },
    /// How many are where.
    Distribution {
        /// From the lowest number on.
        bins: Vec<Bin>,
        /// The lowest number.
        from: String,
        /// The highest.
        to: String,
        /// The limit's place between the two.
        limit: Option<f64>,
        /// The worst of them.
        worst: Vec<Bar>,
        /// How many are not named.
        more: String,
    },
}

/// A node's bars.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Group {
    /// The node.
    pub node: String,
    /// Its bars.
    pub bars: Vec<Bar>,
}

/// A number as a bar.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Bar {
    /// Whose it is.
    pub name: String,
    /// The same inside its node: `5` for a GPU; empty for the node itself.
    pub part: String,
    /// Its length.
    pub share: f64,
    /// The number.
    pub value: String,
    /// Its limit; empty where there is none.
    pub limit: String,
    /// Whether it misses that.
    pub miss: bool,
}

/// A step of a distribution.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Bin {
    /// Where it begins.
    pub from: String,
    /// Where it ends.
    pub to: String,
    /// How many are in it.
    pub count: usize,
    /// Height, as a share of the fullest.
    pub share: f64,
    /// How many of them miss their limit.
    pub misses: usize,
}

/// A number with whose it is.
type Entry<'i> = (&'i Item, Number);

/// In the order of the report.
pub(super) fn series(items: &[Item]) -> Vec<Series> {
    let mut order: Vec<(&str, Kind)> = Vec::new();
    let mut gathered: BTreeMap<(&str, Kind), Vec<Entry<'_>>> = BTreeMap::new();
    let alone = |item: &&Item| matches!(item.phase, Phase::DeviceCheck | Phase::SingleNodeCommCheck);
    for item in items.iter().filter(alone) {
        for number in numbers(item) {
            let key = (item.check.as_str(), number.kind);
            let entry = gathered.entry(key).or_insert_with(|| {
                order.push(key);
                Vec::new()
            });
            entry.push((item, number));
        }
    }
    // Of several sizes of messages the largest says most; the others where somebody misses.
    let shown = |(check, (metric, bytes)): &(&str, Kind)| {
        let largest = order
            .iter()
            .filter(|(one, kind)| one == check && kind.0 == *metric)
            .map(|(_, kind)| kind.1)
            .max();
        largest == Some(*bytes)
            || gathered[&(*check, (*metric, *bytes))].iter().any(|(_, number)| number.miss)
    };
    let wanted: Vec<(&str, Kind)> = order.iter().copied().filter(shown).take(MOST_SERIES).collect();
    wanted.iter().map(|(check, kind)| one(check, *kind, &gathered[&(*check, *kind)])).collect()
}

fn one(check: &str, (metric, bytes): Kind, entries: &[Entry<'_>]) -> Series {
    let mut values: Vec<f64> = entries.iter().map(|(_, number)| number.value).collect();
    let middle = median(&mut values);
    let mut limits: Vec<f64> = entries.iter().filter_map(|(_, number)| number.limit).collect();
    let limit = median(&mut limits);
    let most = values
        .last()
        .copied()
        .unwrap_or_default()
        .max(limit.filter(|_| metric.higher_is_better()).unwrap_or(0.0));
    // Where less is better a limit far above all numbers would make them all look like nothing.
    let end = match limit {
        Some(limit) if !metric.higher_is_better() && limit < 8.0 * most => most.max(limit),
        _ => most,
    };
    let end = end * 1.04;
    let figures = Figures::of(metric, middle.unwrap_or_default());
    let gpus = entries.iter().any(|(item, _)| item.subject.kind == "gpu");
    Series {
        check: name(check),
        which: wording::which(metric, bytes).trim_start().to_owned(),
        unit: figures.unit(),
        subjects: if gpus { "GPUs" } else { "nodes" },
        higher_is_better: metric.higher_is_better(),
        count: grouped(entries.len()),
        misses: entries.iter().filter(|(_, number)| number.miss).count(),
        end: figures.whole(end),
        limit: limit.map(|limit| (if limit > end { 2.0 } else { share(limit, end) }, figures.whole(limit))),
        median: middle.map(|middle| (share(middle, end), figures.whole(middle))),
        drawing: if entries.len() <= MOST_BARS {
            Drawing::Bars { groups: groups(figures, end, entries) }
        } else {
            distribution(metric, figures, entries, limit)
        },
    }
}

fn bar(figures: Figures, end: f64, (item, number): Entry<'_>) -> Bar {
    let part = item.subject.name.strip_prefix(&item.subject.node).unwrap_or_default();
    Bar {
        name: name(&item.subject.name),
        part: name(part.trim_start_matches('/').trim_start_matches("gpu")),
        share: share(number.value, end),
        value: figures.whole(number.value),
        limit: number.limit.map_or_else(String::new, |limit| figures.whole(limit)),
        miss: number.miss,
    }
}

fn groups(figures: Figures, end: f64, entries: &[Entry<'_>]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for same in entries.chunk_by(|one, next| one.0.subject.node == next.0.subject.node) {
        let bars = same.iter().map(|entry| bar(figures, end, *entry)).collect();
        let node = same.first().map_or_else(String::new, |(item, _)| name(&item.subject.node));
        groups.push(Group { node, bars });
    }
    groups
}

fn distribution(metric: Metric, figures: Figures, entries: &[Entry<'_>], limit: Option<f64>) -> Drawing {
    let values = || entries.iter().map(|(_, number)| number.value);
    let (from, to) = (values().fold(f64::MAX, f64::min), values().fold(f64::MIN, f64::max));
    let width = (to - from) / BINS as f64;
    let edge = |bin: usize| figures.bare(from + width * bin as f64);
    let mut counts = [(0, 0); BINS];
    for (_, number) in entries {
        // The bin whose upper edge is the first above it; counting avoids a float-to-integer cast.
        let bin = (1..BINS).take_while(|bin| number.value >= from + width * *bin as f64).count();
        counts[bin].0 += 1;
        counts[bin].1 += usize::from(number.miss);
    }
    let fullest = counts.iter().map(|(count, _)| *count).max().unwrap_or(1);
    let bins = (0..BINS).zip(counts).map(|(bin, (count, misses))| Bin {
        from: edge(bin),
        to: format!("{} {}", edge(bin + 1), figures.unit()),
        count,
        share: share(count as f64, fullest as f64),
        misses,
    });
    let mut worst: Vec<Entry<'_>> = entries.to_vec();
    let order = |value: f64| if metric.higher_is_better() { value } else { -value };
    // Of equal ones the first of the report: the sort is stable.
    worst.sort_by(|(_, a), (_, b)| b.miss.cmp(&a.miss).then(order(a.value).total_cmp(&order(b.value))));
    worst.truncate(MOST_WORST);
    let within = |limit: f64| (from..=to).contains(&limit).then(|| share(limit - from, to - from));
    Drawing::Distribution {
        bins: bins.collect(),
        from: figures.whole(from),
        to: figures.whole(to),
        limit: limit.and_then(within),
        more: grouped(entries.len() - worst.len()),
        worst: worst.into_iter().map(|entry| bar(figures, to, entry)).collect(),
    }
}
