//! A line for each number of each check: how many subjects have it, how they stand, and between what the numbers lie.

use std::collections::BTreeMap;

use serde::Serialize;

use super::series::Kind;
use super::{grouped, median, name};
use crate::check::Phase;
use crate::measurement::Metric;
use crate::report::Item;
use crate::verdict::Status;
use crate::wording;

/// Most lines: thirteen checks with up to four numbers each, and room for those of later versions.
const MOST_ROWS: usize = 64;

/// A line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Row {
    /// The phase.
    pub phase: String,
    /// The check.
    pub check: String,
    /// Which of its numbers.
    pub which: String,
    /// How many subjects stand how, such as `31 PASS, 1 FAIL`.
    pub stands: Vec<String>,
    /// The worst of them.
    pub status: String,
    /// The lowest number.
    pub least: String,
    /// The middle one.
    pub median: String,
    /// The highest one.
    pub most: String,
    /// Their unit.
    pub unit: String,
}

#[derive(Default)]
struct Gathered {
    by_status: BTreeMap<Status, usize>,
    values: BTreeMap<Kind, Vec<f64>>,
}

/// In the order of the report; and how many lines are left out.
pub(super) fn table(items: &[Item]) -> (Vec<Row>, usize) {
    let mut order: Vec<(Phase, &str)> = Vec::new();
    let mut gathered: BTreeMap<(Phase, &str), Gathered> = BTreeMap::new();
    for item in items {
        let key = (item.phase, item.check.as_str());
        let entry = gathered.entry(key).or_insert_with(|| {
            order.push(key);
            Gathered::default()
        });
        *entry.by_status.entry(item.status).or_default() += 1;
        for number in super::series::numbers(item) {
            entry.values.entry(number.kind).or_default().push(number.value);
        }
    }
    let mut rows: Vec<Row> = Vec::new();
    for (phase, check) in order {
        let Some(one) = gathered.remove(&(phase, check)) else { continue };
        let stands: Vec<String> =
            one.by_status.iter().map(|(status, count)| format!("{} {status}", grouped(*count))).collect();
        let worst = one.by_status.keys().max().map_or_else(String::new, ToString::to_string);
        let row = |which: String| Row {
            phase: phase.to_string(),
            check: if check.is_empty() { "the meeting of the nodes".to_owned() } else { name(check) },
            which,
            stands: stands.clone(),
            status: worst.clone(),
            least: String::new(),
            median: String::new(),
            most: String::new(),
            unit: String::new(),
        };
        if one.values.is_empty() {
            rows.push(row(String::new()));
        }
        for ((metric, bytes), mut values) in one.values {
            let middle = median(&mut values);
            let figures = Figures::of(metric, middle.unwrap_or_default());
            let shown = |value: Option<f64>| value.map_or_else(String::new, |value| figures.bare(value));
            rows.push(Row {
                least: shown(values.first().copied()),
                median: shown(middle),
                most: shown(values.last().copied()),
                unit: figures.unit().to_owned(),
                ..row(wording::which(metric, bytes).trim_start().to_owned())
            });
        }
    }
    let more = rows.len().saturating_sub(MOST_ROWS);
    rows.truncate(MOST_ROWS);
    (rows, more)
}

/// How numbers of one kind are written: all with as many decimals, so that they stand below each other.
#[derive(Debug, Clone, Copy)]
pub(super) struct Figures {
    metric: Metric,
    decimals: usize,
}

impl Figures {
    /// With three or four digits of a usual number.
    pub fn of(metric: Metric, usual: f64) -> Self {
        let usual = if metric.unit() == "ratio" { usual * 100.0 } else { usual };
        let steps = [1000.0, 10.0, 1.0, 0.1, 0.01];
        let decimals = steps.iter().take_while(|step| usual.abs() < **step).count();
        Self { metric, decimals }
    }

    /// A number without its unit.
    pub fn bare(self, value: f64) -> String {
        let value = if self.metric.unit() == "ratio" { value * 100.0 } else { value };
        // No number of ours has so many digits.
        if value.abs() < 1e9 { format!("{value:.0$}", self.decimals) } else { wording::number(value) }
    }

    /// A number with its unit.
    pub fn whole(self, value: f64) -> String {
        format!("{} {}", self.bare(value), self.unit())
    }

    /// Its unit; shares are shown as percentages.
    pub fn unit(self) -> &'static str {
        if self.metric.unit() == "ratio" { "%" } else { self.metric.unit() }
    }
}
