//! The dashboard and the alerts ask only for what is written, and the page on metrics lists all of it.

use std::collections::BTreeSet;

use diag::metrics::{BEFORE, Family, RUNTIME};
use serde_json::Value;

use super::both;

const DASHBOARD: &str = include_str!("../../../../conf/grafana/aimaster.json");
const RULES: &str = include_str!("../../../../conf/prometheus/aimaster.rules.yml");
const PAGE: &str = include_str!("../../../../docs/metrics.md");

/// What Prometheus adds to every series.
const ADDED: [&str; 2] = ["instance", "job"];

/// An expression, and the texts that name labels of its result.
struct Query {
    expression: String,
    words: Vec<String>,
}

fn families() -> impl Iterator<Item = &'static Family> {
    BEFORE.iter().chain(RUNTIME)
}

/// The names of ours in a text: what a query asks for.
fn names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("aimaster_")).collect()
}

/// What stands behind each of some words, up to a sign.
fn behind<'a>(text: &'a str, word: &'a str, end: char) -> impl Iterator<Item = &'a str> {
    text.split(word).skip(1).filter_map(move |rest| Some(rest.split_once(end)?.0))
}

fn queries() -> Vec<Query> {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut all = Vec::new();
    let panels = dashboard["panels"].as_array().unwrap();
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{panel}");
        for target in targets {
            let words = vec![text(&target["legendFormat"])];
            all.push(Query { expression: text(&target["expr"]), words });
        }
    }
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        all.push(Query { expression: text(&variable["query"]["query"]), words: Vec::new() });
    }
    for rule in RULES.split("- alert: ").skip(1) {
        let expression = behind(rule, "expr: ", '\n').next().unwrap().to_owned();
        all.push(Query { expression, words: rule.lines().map(str::to_owned).collect() });
    }
    all
}

/// Whether a label of a family can have this value: as a report of each kind has it.
fn is_written(written: &str, family: &Family, label: &str, value: &str) -> bool {
    let wanted = format!("{label}=\"{value}\"");
    written.lines().any(|line| {
        let labels = line.strip_prefix(family.name).and_then(|rest| rest.strip_prefix('{'));
        labels.is_some_and(|labels| labels.contains(&wanted))
    })
}

/// What is wrong with the `{label="value"}` behind the names of an expression.
fn wrong_selectors(expression: &str, written: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    for family in families() {
        for rest in expression.split(family.name).skip(1) {
            let Some((inside, _)) = rest.strip_prefix('{').and_then(|rest| rest.split_once('}')) else {
                continue;
            };
            for selected in inside.split(',') {
                let label = selected.split(['=', '!', '~']).next().unwrap_or_default().trim();
                let value = selected.split_once("=\"").map(|(_, value)| value.trim_end_matches('"'));
                if ADDED.contains(&label) {
                    continue;
                }
                let known = family.labels.contains(&label)
                    && value.is_none_or(|value| is_written(written, family, label, value));
                if !known {
                    wrong.push(format!("{} has no {selected}", family.name));
                }
            }
        }
    }
    wrong
}

/// What is wrong with an expression, and with what is said of its result.
fn wrong(query: &Query, written: &str) -> Vec<String> {
    let there: BTreeSet<&str> =
        written.lines().filter(|line| !line.starts_with('#')).flat_map(names).collect();
    let asked = names(&query.expression);
    let mut wrong = wrong_selectors(&query.expression, written);
    wrong.extend(asked.difference(&there).map(|name| format!("nobody writes {name}")));
    let own = families().filter(|family| asked.contains(family.name)).flat_map(|family| family.labels);
    let labels: BTreeSet<&str> = own.copied().chain(ADDED).collect();
    let split = |list: &str| list.split(',').map(|one| one.trim().to_owned()).collect::<Vec<_>>();
    let groups: Vec<String> = behind(&query.expression, "by (", ')').flat_map(split).collect();
    wrong.extend(
        groups
            .iter()
            .filter(|one| !labels.contains(one.as_str()))
            .map(|one| format!("no label {one} to group by")),
    );
    for words in &query.words {
        let of_rule = behind(words, "{{ $labels.", ' ');
        let of_legend = behind(words, "{{", '}').filter(|word| !word.contains('$'));
        for label in of_rule.chain(of_legend).map(str::trim) {
            let kept = groups.is_empty() && labels.contains(label) || groups.iter().any(|one| one == label);
            if !kept {
                wrong.push(format!("{words:?}: its result has no label {label}"));
            }
        }
    }
    wrong
}

#[test]
fn the_dashboard_and_the_rules_ask_only_for_what_there_is() {
    let (queries, written) = (queries(), both());
    assert!(queries.iter().all(|query| !names(&query.expression).is_empty() || query.expression.is_empty()));
    let asked: BTreeSet<&str> = queries.iter().flat_map(|query| names(&query.expression)).collect();
    assert!(asked.len() >= 12, "{asked:?}");
    let mistakes: Vec<String> = queries
        .iter()
        .flat_map(|query| {
            wrong(query, &written).into_iter().map(|one| format!("{}: {one}", query.expression))
        })
        .collect();
    assert!(mistakes.is_empty(), "{mistakes:#?}");
}

#[test]
fn each_mistake_of_a_query_is_told() {
    let told = |expression: &str, words: &str| {
        wrong(&Query { expression: expression.to_owned(), words: vec![words.to_owned()] }, &both()).join("; ")
    };
    for (expression, words, mistake) in [
        ("aimaster_check_total", "", "nobody writes aimaster_check_total"),
        ("aimaster_checks_total{result=\"fail\"}", "", "has no result"),
        (
            "aimaster_checks_total{instance=~\"$instance\",outcome=\"failed\"}",
            "",
            "has no outcome=\"failed\"",
        ),
        ("sum by (check) (aimaster_checks_total)", "", "no label check to group by"),
        ("sum by (outcome) (aimaster_checks_total)", "{{instance}}", "no label instance"),
        ("sum by (outcome) (aimaster_checks_total)", "x {{ $labels.check }}", "no label check"),
    ] {
        assert!(told(expression, words).contains(mistake), "{expression}: {}", told(expression, words));
    }
    let right = "sum by (outcome, instance) (aimaster_checks_total{instance=~\"$i\",outcome=\"fail\"}) > 0";
    assert_eq!(told(right, "{{outcome}} {{ $labels.instance }}"), "");
}

#[test]
fn the_page_lists_what_is_written() {
    let rows = PAGE.lines().filter_map(|line| line.strip_prefix("| `aimaster_"));
    let listed: Vec<(String, String)> = rows
        .map(|row| {
            let mut cells = row.split('|').map(str::trim);
            let name = cells.next().unwrap().trim_end_matches('`');
            (format!("aimaster_{name}"), cells.next().unwrap().to_owned())
        })
        .filter(|(name, _)| !name.ends_with(".prom"))
        .collect();
    let wanted: Vec<(String, String)> =
        families().map(|family| (family.name.to_owned(), family.labels.join(", "))).collect();
    assert_eq!(listed, wanted);
}
