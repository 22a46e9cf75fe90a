//! What findings say to a person: one line each, values with their units, and what to do next.

use crate::check::CheckName;
use crate::judge::Evidence;
use crate::measurement::Metric;
use crate::verdict::{Finding, Outcome, Status};

/// A number with four significant digits at most, without trailing zeros.
#[must_use]
pub fn number(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return format!("{value}");
    }
    let magnitude = value.abs().log10().floor();
    let decimals = (3.0 - magnitude).clamp(0.0, 6.0);
    // Counting up avoids a float-to-integer cast.
    let decimals = (0..6).take_while(|count| f64::from(*count) < decimals).count();
    let text = format!("{value:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// A number with its unit; shares are shown as percentages.
#[must_use]
pub fn quantity(metric: Metric, value: f64) -> String {
    match metric.unit() {
        "ratio" => format!("{} %", number(value * 100.0)),
        unit => format!("{} {unit}", number(value)),
    }
}

/// `<` or `>`: which side of a limit a miss is on.
#[must_use]
pub fn side(metric: Metric) -> char {
    if metric.higher_is_better() { '<' } else { '>' }
}

/// What a number is, for a check that takes several kinds; empty where the check's name says it.
#[must_use]
pub fn kind(metric: Metric) -> &'static str {
    match metric {
        Metric::Connect => "to connect",
        Metric::RoundTrip => "round trip",
        Metric::Retransmits => "of segments resent",
        Metric::Flops | Metric::Busbw | Metric::Correct | Metric::Reachable => "",
    }
}

/// The value against its limit, with the limit's source and the peers' median.
fn against(one: &Evidence) -> String {
    let mut text = match one.metric {
        Metric::Correct => format!("only {} of the results are right", quantity(one.metric, one.value)),
        Metric::Reachable => one.detail.clone(),
        _ => format!("{} {}", quantity(one.metric, one.value), kind(one.metric)).trim_end().to_owned(),
    };
    if let (Some(limit), false) = (&one.limit, matches!(one.metric, Metric::Correct | Metric::Reachable)) {
        let sign = if one.miss {
            side(one.metric)
        } else if side(one.metric) == '<' {
            '≥'
        } else {
            '≤'
        };
        text.push_str(&format!(" {sign} {} ({})", quantity(one.metric, limit.value), limit.source));
    }
    if let Some(median) = one.median.filter(|_| matches!(one.metric, Metric::Flops | Metric::Busbw)) {
        text.push_str(&format!(", median {}", quantity(one.metric, median)));
    }
    if !one.detail.is_empty() && one.metric != Metric::Reachable {
        text.push_str(&format!(" [{}]", one.detail));
    }
    text
}

/// A node that missed in two windows.
#[must_use]
pub fn node_failed(name: &str, check: CheckName, one: &Evidence) -> String {
    format!("{name}: {check} {}; measured twice", against(one))
}

/// A node that missed with several good partners.
#[must_use]
pub fn node_failed_with(name: &str, check: CheckName, one: &Evidence, partners: &[&str]) -> String {
    format!("{name}: {check} {}; missed with {}, each fine with others", against(one), listed(partners))
}

/// A node whose ports can't be reached, or that can't reach anybody's.
#[must_use]
pub fn node_blocked(name: &str, check: CheckName, one: &Evidence, partners: &[&str]) -> String {
    format!(
        "{}: {check}; seen between {name} and each of {}, which reach others: a setting, no broken part; open the \
         port range of aimaster.toml in the firewalls on this way, or mend the address of {name}",
        one.detail,
        listed(partners)
    )
}

/// A link whose two ends are fine with others.
#[must_use]
pub fn link_failed((a, b): (&str, &str), check: CheckName, one: &Evidence) -> String {
    format!(
        "{a} - {b}: {check} {}; measured twice, both nodes are fine with others: look at what lies between them",
        against(one)
    )
}

/// A port that can't be reached.
#[must_use]
pub fn path_blocked(check: CheckName, one: &Evidence) -> String {
    format!(
        "{}: {check}; tried twice: a setting, no broken part; open the port range of aimaster.toml between the nodes",
        one.detail
    )
}

/// Two nodes that can't be told apart.
#[must_use]
pub fn suspect((a, b): (&str, &str), check: CheckName, one: &Evidence) -> String {
    format!(
        "{a} or {b} or what lies between them: {check} {}; which of them is not known: no third node that is fine \
         could meet them",
        against(one)
    )
}

/// A miss that time did not allow to confirm.
#[must_use]
pub fn not_confirmed(name: &str, check: CheckName, one: &Evidence) -> String {
    format!("{name}: {check} {}; seen once, not confirmed", against(one))
}

/// A node that is fine.
#[must_use]
pub fn fine(name: &str, check: CheckName, one: &Evidence, again: bool) -> String {
    let note = if again { "; missed once, fine when measured again" } else { "" };
    format!("{name}: {check} {}{note}", against(one))
}

/// A pair that is fine.
#[must_use]
pub fn pair_fine((a, b): (&str, &str), check: CheckName, one: &Evidence, again: bool) -> String {
    let note = if again { "; missed once, fine when measured again" } else { "" };
    format!("{a} - {b}: {check} {}{note}", against(one))
}

/// The outcome in a sentence: the most important finding first.
#[must_use]
pub fn summary(outcome: Outcome, nodes: usize, findings: &[Finding]) -> String {
    let wanted = match outcome {
        Outcome::Fail | Outcome::Environment => Status::Fail,
        Outcome::Suspect => Status::Suspect,
        Outcome::Error => Status::Error,
        Outcome::Pass => return format!("{nodes} nodes are fine"),
        Outcome::Skip => Status::Skip,
    };
    let mut lines = findings.iter().filter(|one| one.status == wanted);
    let first = lines.next().map_or("nothing was measured", |one| one.message.as_str());
    match lines.count() {
        0 => first.to_owned(),
        more => format!("{first} (and {more} more)"),
    }
}

/// `a`, `a and b`, `a, b and c`.
#[must_use]
pub fn listed(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [head @ .., last] => format!("{} and {last}", head.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_keep_four_digits() {
        for (value, text) in [
            (0.00213, "0.00213"),
            (0.05, "0.05"),
            (412.34, "412.3"),
            (12345.6, "12346"),
            (1.0, "1"),
            (0.0, "0"),
        ] {
            assert_eq!(number(value), text);
        }
        assert_eq!(quantity(Metric::Retransmits, 0.0456), "4.56 %");
    }
}
