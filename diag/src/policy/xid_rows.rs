//! Reads `[[runtime.xid]]`: rows that add to the built-in table of [`crate::xid`], or change it.

use crate::fields::{Field, Section, Value};
use crate::health::{Action, Class};
use crate::policy::slots::{choose, read_integer};
use crate::request::mistake::Mistakes;
use crate::xid::{Family, Generation, Key, MOST_CODE, MOST_COUNT, MOST_WINDOW_S, Rule, Severity, XidTable};

const CLASSES: &[(&str, Class)] = &[
    ("application", Class::Application),
    ("gpu", Class::Gpu),
    ("memory", Class::Memory),
    ("nvlink", Class::Nvlink),
    ("pcie", Class::Pcie),
    ("driver", Class::Driver),
    ("power", Class::Power),
    ("heat", Class::Heat),
    ("unknown", Class::Unknown),
];

const ACTIONS: &[(&str, Action)] =
    &[("ignore", Action::Ignore), ("report", Action::Report), ("drain", Action::Drain)];

const GENERATIONS: &[(&str, Generation)] = &[
    ("volta", Generation::Volta),
    ("turing", Generation::Turing),
    ("ampere", Generation::Ampere),
    ("ada", Generation::Ada),
    ("hopper", Generation::Hopper),
    ("blackwell", Generation::Blackwell),
];

const SEVERITIES: &[(&str, Severity)] = &[("fatal", Severity::Fatal), ("nonfatal", Severity::Nonfatal)];

pub(super) fn read(section: &mut Section<'_>, table: &mut XidTable, m: &mut Mistakes) {
    let Some(field) = section.field("xid") else { return };
    let Some(items) = field.list(m, "a list of rows") else { return };
    let mut rows: Vec<(Key, Rule)> = items.iter().flat_map(|item| row(item, m)).collect();
    // A row for all generations takes the place of finer ones: those of this file come after it.
    rows.sort_by_key(|(key, _)| key.generation.is_some() || key.severity.is_some());
    rows.into_iter().for_each(|(key, rule)| table.replace(key, rule));
}

fn row(item: &Field<'_>, m: &mut Mistakes) -> Vec<(Key, Rule)> {
    let Some(mut section) = item.section(m) else { return Vec::new() };
    let mut codes = numbers(&mut section, "xid", Family::Xid, m);
    codes.extend(numbers(&mut section, "sxid", Family::Sxid, m));
    let generation = one_of(&mut section, "generation", GENERATIONS, m);
    let severity = one_of(&mut section, "severity", SEVERITIES, m);
    let class = one_of(&mut section, "class", CLASSES, m);
    let action = one_of(&mut section, "action", ACTIONS, m);
    let (mut count, mut window_s) = (1, 0);
    read_integer(&mut section, "count", 1..=MOST_COUNT, &mut count, m);
    read_integer(&mut section, "window_s", 0..=MOST_WINDOW_S, &mut window_s, m);
    section.finish(m);
    if codes.is_empty() {
        m.push(item.origin(), "the row names no number", "give xid = [79], or sxid = [24007]");
    }
    let (Some(class), Some(action)) = (class, action) else {
        m.push(item.origin(), "the row is not complete", "give class and action");
        return Vec::new();
    };
    if class == Class::Application && action == Action::Drain {
        m.push(
            item.origin(),
            "a fault of class application drains no node",
            "give another class if the site knows that hardware is at fault, or action = \"report\"",
        );
    }
    let rule = Rule { class, count, window_s, action };
    codes.into_iter().map(|(family, code)| (Key { family, code, generation, severity }, rule)).collect()
}

/// A number, or a list of numbers.
fn numbers(
    section: &mut Section<'_>,
    key: &'static str,
    family: Family,
    m: &mut Mistakes,
) -> Vec<(Family, u32)> {
    let Some(field) = section.field(key) else { return Vec::new() };
    let items = match field.value {
        Value::List(_) => field.list(m, "a list of numbers").unwrap_or_default(),
        _ => vec![field],
    };
    items.iter().filter_map(|item| Some((family, item.integer(1..=MOST_CODE, m)?))).collect()
}

fn one_of<T: Copy>(
    section: &mut Section<'_>,
    key: &'static str,
    choices: &[(&str, T)],
    m: &mut Mistakes,
) -> Option<T> {
    let mut slot = None;
    let choices: Vec<(&str, Option<T>)> = choices.iter().map(|(name, value)| (*name, Some(*value))).collect();
    if let Some(field) = section.field(key) {
        choose(&field, &choices, &mut slot, m);
    }
    slot
}

#[cfg(test)]
mod tests {
    //! Field case I06: a site adds and changes rows.

    use proptest::prelude::*;

    use super::*;
    use crate::policy::Policy;

    fn wrong(text: &str) -> Vec<String> {
        Policy::parse(text).unwrap_err().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_site_s_rows_add_to_the_built_in_ones() {
        let policy = Policy::parse(
            r#"
            [[runtime.xid]]
            xid = [149, 150]
            severity = "fatal"
            generation = "blackwell"
            class = "nvlink"
            action = "report"
            [[runtime.xid]]
            xid = 43
            class = "gpu"
            count = 5
            window_s = 600
            action = "drain"
            [[runtime.xid]]
            sxid = [20034]
            class = "nvlink"
            action = "ignore"
            [[runtime.xid]]
            xid = 149
            class = "nvlink"
            action = "ignore"
            "#,
        )
        .unwrap();
        let table = &policy.runtime.xid;
        let blackwell = Some(Generation::Blackwell);
        let of = |code, severity| table.rule(Family::Xid, code, blackwell, severity).action;
        assert_eq!((of(149, Some(Severity::Fatal)), of(149, None)), (Action::Report, Action::Ignore));
        // The built-in row without a generation is not as fine as the site's.
        assert_eq!((of(150, Some(Severity::Fatal)), of(79, None)), (Action::Report, Action::Drain));
        let rule = table.rule(Family::Xid, 43, None, None);
        assert_eq!(rule, Rule { class: Class::Gpu, count: 5, window_s: 600, action: Action::Drain });
        assert_eq!(table.rule(Family::Sxid, 20_034, None, Some(Severity::Fatal)).action, Action::Ignore);
        assert_eq!(Policy::parse(&policy.to_toml().unwrap()).unwrap(), policy);
    }

    #[test]
    fn every_mistake_of_a_row_is_told() {
        let found = wrong(
            "[runtime]\nxid = [{ xid = 0, class = \"gpus\", action = \"drain\", count = 0, windows = 1 }, { class = \"gpu\", action = \"report\" }, 7]",
        );
        for part in [
            "runtime.xid[0].xid",
            "runtime.xid[0].class",
            "runtime.xid[0].count",
            "runtime.xid[0].windows",
            "runtime.xid[1]: the row names no number",
            "runtime.xid[2]",
        ] {
            assert!(found.iter().any(|line| line.contains(part)), "{part}: {found:#?}");
        }
        // I01.
        let found = wrong("[[runtime.xid]]\nxid = 13\nclass = \"application\"\naction = \"drain\"");
        assert!(found[0].contains("application drains no node"), "{found:?}");
    }

    proptest! {
        #[test]
        fn what_is_shown_reads_back(
            rows in proptest::collection::vec(
                (1..=200_u32, 0..7_usize, 0..3_usize, 1..9_usize, 0..3_usize, 1..=MOST_COUNT, 0..=MOST_WINDOW_S),
                0..12,
            ),
        ) {
            let mut policy = Policy::default();
            for (code, generation, severity, class, action, count, window_s) in rows {
                let key = Key {
                    family: if code % 2 == 0 { Family::Xid } else { Family::Sxid },
                    code,
                    generation: GENERATIONS.get(generation).map(|(_, it)| *it),
                    severity: SEVERITIES.get(severity).map(|(_, it)| *it),
                };
                let rule = Rule { class: CLASSES[class].1, count, window_s, action: ACTIONS[action].1 };
                policy.runtime.xid.replace(key, rule);
            }
            prop_assert_eq!(Policy::parse(&policy.to_toml().unwrap()).unwrap(), policy);
        }
    }
}
