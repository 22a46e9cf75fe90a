//! What findings say to a person: one line each, values with their units, and what to do next.

use std::borrow::Cow;
use std::fmt;

use crate::check::CheckName;
use crate::facts::{NodeId, Roster};
use crate::judge::worse;
use crate::look::Evidence;
use crate::measurement::{Metric, Subject};
use crate::next_step::next_step;
use crate::verdict::{Finding, Limit, Outcome, Rate, Status};

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
        Metric::Launch => "launch",
        Metric::LaunchTail => "launch p99",
        Metric::Retransmits => "of segments resent",
        Metric::Fp8Flops => "in fp8",
        Metric::Flops | Metric::Busbw | Metric::Correct | Metric::Reachable | Metric::Fingerprint => "",
    }
}

/// A size of messages.
#[must_use]
pub fn size(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let whole = units.into_iter().find(|(shift, _)| bytes > 0 && bytes.trailing_zeros() >= *shift);
    whole.map_or_else(|| format!("{bytes} B"), |(shift, unit)| format!("{} {unit}", bytes >> shift))
}

/// Which of several numbers it is: its kind, and the size of its messages; with a space in front, or nothing.
#[must_use]
pub fn which(metric: Metric, bytes: Option<u64>) -> String {
    let kind = Some(kind(metric).to_owned()).filter(|kind| !kind.is_empty());
    let at = bytes.map(|bytes| format!("at {}", size(bytes)));
    kind.into_iter().chain(at).map(|word| format!(" {word}")).collect()
}

/// One of several rates, with its limit: `118 GB/s at 4 MiB ≥ 17 GB/s`.
#[must_use]
pub fn rate(one: &Rate) -> String {
    let text = format!("{}{}", quantity(one.metric, one.value), which(one.metric, one.bytes));
    let limit = one.limit.as_ref();
    let limit =
        limit.map(|limit| format!(" {} {}", sign(one.metric, one.miss), quantity(one.metric, limit.value)));
    text + &limit.unwrap_or_default()
}

/// How a value stands to its limit.
fn sign(metric: Metric, miss: bool) -> char {
    match (miss, metric.higher_is_better()) {
        (true, _) => side(metric),
        (false, true) => '≥',
        (false, false) => '≤',
    }
}

/// A subject's name for a person: `n3`, `n3/gpu5`, `n1-n3`, `n1->n3`.
#[must_use]
pub fn subject(roster: &Roster, subject: &Subject) -> String {
    subject_of(|node| roster.name(node), subject)
}

/// The same where nodes are named by something else than a roster.
pub(crate) fn subject_of<N: fmt::Display>(name: impl Fn(NodeId) -> N, subject: &Subject) -> String {
    match subject {
        Subject::Node { node } => name(*node).to_string(),
        Subject::Gpu { node, index } => format!("{}/gpu{index}", name(*node)),
        Subject::Nic { node, name: device } => format!("{}/{device}", name(*node)),
        Subject::Rail { node, index } => format!("{}/rail{index}", name(*node)),
        Subject::Pair { a, b } | Subject::Link { a, b } => format!("{}-{}", name(*a), name(*b)),
        Subject::PairRail { a, b, rail } => format!("{}-{}/rail{rail}", name(*a), name(*b)),
        Subject::Path { from, to } => format!("{}->{}", name(*from), name(*to)),
        Subject::Fabric => "fabric".into(),
        Subject::FabricRail { rail } => format!("fabric/rail{rail}"),
        Subject::Switch { name: switch } => switch.clone(),
        Subject::Run => "run".into(),
    }
}

/// The value against its limit, and the peers' median.
fn against(one: &Evidence) -> String {
    let mut text = match one.metric {
        Metric::Correct => format!("only {} of the results are right", quantity(one.metric, one.value)),
        Metric::Reachable => one.detail.to_string(),
        _ => format!("{}{}", quantity(one.metric, one.value), which(one.metric, one.bytes)),
    };
    if let Some(limit) = limit(one) {
        let sign = sign(one.metric, worse(one.metric, one.value, limit.value));
        text.push_str(&format!(" {sign} {}", quantity(one.metric, limit.value)));
    }
    let told = one.metric.is_rate() || (one.miss && limit(one).is_some());
    if let Some(median) = one.median.filter(|_| told) {
        text.push_str(&format!(", median of the others {}", quantity(one.metric, median)));
    }
    for fault in one.faults() {
        text.push_str(&format!("; {fault}"));
    }
    text
}

/// The limit where it says something: shares of right results and of reached ports have an obvious one.
fn limit(one: &Evidence) -> Option<&Limit> {
    one.limit.as_deref().filter(|_| !matches!(one.metric, Metric::Correct | Metric::Reachable))
}

/// What a reader of the whole report also wants to know, in brackets at the end of a message: where the limit comes
/// from, and how it was measured. [`brief`] leaves it out.
fn background(one: &Evidence) -> String {
    let mut parts = Vec::new();
    parts.extend(limit(one).map(|limit| format!("limit: {}", limit.source)));
    parts.extend((!one.detail.is_empty() && one.metric != Metric::Reachable).then(|| one.detail.to_string()));
    if parts.is_empty() { String::new() } else { format!(" [{}]", parts.join("; ")) }
}

/// A message before its background, the background, and what was added behind it.
fn split(message: &str) -> Option<(&str, &str, &str)> {
    let (head, tail) = message.rsplit_once(" [")?;
    let (background, rest) = tail.rsplit_once(']')?;
    (rest.is_empty() || rest.starts_with("; ")).then_some((head, background, rest))
}

/// A message without its background in brackets: what fits on a user's screen.
#[must_use]
pub fn brief(message: &str) -> Cow<'_, str> {
    match split(message) {
        Some((head, _, "")) => head.into(),
        Some((head, _, rest)) => format!("{head}{rest}").into(),
        None => message.into(),
    }
}

/// Adds to a message in front of its background, which a user's screen has no room for.
pub(crate) fn add(message: &mut String, words: &str) {
    let at = split(message).map_or(message.len(), |(head, ..)| head.len());
    message.insert_str(at, words);
}

/// What stands before the first thing to do.
const NEXT: &str = "; next: ";

/// A message in its parts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Parts {
    /// Whose it is, and what happened.
    pub what: String,
    /// What to do first; empty where the message does not say.
    pub next: String,
    /// Where the limit comes from, and how it was measured; empty where the message does not say.
    pub background: String,
}

/// The parts of a message, whatever was added behind its background.
#[must_use]
pub fn parts(message: &str) -> Parts {
    let (head, background, rest) = split(message).unwrap_or((message, "", ""));
    let (what, next) = head.split_once(NEXT).unwrap_or((head, ""));
    Parts { what: format!("{what}{rest}"), next: next.to_owned(), background: background.to_owned() }
}

/// A node that missed in each of so many windows.
#[must_use]
pub fn node_failed(name: &str, check: CheckName, one: &Evidence, windows: usize) -> String {
    let next = next_step(check, one.metric, &one.subject);
    format!("{name}: {check} {}; measured {windows} times; next: {next}{}", against(one), background(one))
}

/// A node or rail, `of` the finding, that missed with several good partners.
#[must_use]
pub fn node_failed_with(
    name: &str,
    check: CheckName,
    one: &Evidence,
    partners: &[&str],
    of: &Subject,
) -> String {
    let (value, partners, next) = (against(one), listed(partners), next_step(check, one.metric, of));
    format!(
        "{name}: {check} {value}; missed with {partners}, each fine with others; next: {next}{}",
        background(one)
    )
}

/// The same of a node that was not seen to miss with those next to it.
#[must_use]
pub fn node_unsure(name: &str, check: CheckName, one: &Evidence, partners: &[&str]) -> String {
    format!(
        "{name} or what lies between it and others: {check} {}; missed with {}, each fine with others; which of them is not known: it \
         differs too much by partner, or was not seen often enough with the nodes next to it{}",
        against(one),
        listed(partners),
        background(one)
    )
}

/// The same of a node that is the only one below its leaf.
#[must_use]
pub fn node_alone(name: &str, check: CheckName, one: &Evidence, partners: &[&str], leaf: &str) -> String {
    format!(
        "{name} or {leaf}: {check} {}; missed with {}, each fine with others; no other node of the job is below {leaf}, so that \
         it can't be told from it: a job with two nodes there would tell{}",
        against(one),
        listed(partners),
        background(one)
    )
}

/// A leaf below which several nodes of the job are, or one of several; on some `rails` only, if any are given.
#[must_use]
pub fn switch_failed(
    leaves: &[String],
    rails: &[u32],
    check: CheckName,
    one: &Evidence,
    nodes: usize,
) -> String {
    let names: Vec<&str> = leaves.iter().map(String::as_str).collect();
    let rails: Vec<String> = rails.iter().map(u32::to_string).collect();
    let rails: Vec<&str> = rails.iter().map(String::as_str).collect();
    let on = if rails.is_empty() { String::new() } else { format!(" on rail {}", listed(&rails)) };
    let who =
        if let [one] = names[..] { one.to_owned() } else { format!("{} or what joins them", listed(&names)) };
    format!(
        "{who}{on}: {check} {}; all {nodes} nodes of the job below it missed with nodes below others that are fine elsewhere: no \
         node is blamed; next: look at {}, its uplinks and their counters{}",
        against(one),
        listed(&names),
        background(one)
    )
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
pub fn link_failed((a, b): (&str, &str), check: CheckName, one: &Evidence, looks: usize) -> String {
    format!(
        "{a} - {b}: {check} {}; measured {looks} times, both nodes are fine with others; next: look at what lies between them (cables, switch ports, routing){}",
        against(one),
        background(one)
    )
}

/// Most ways that a message names.
const MOST_WAYS: usize = 8;

/// Ways that share a node, whose nodes do far better or are fine with others.
#[must_use]
pub fn ways_failed(ways: &[String], check: CheckName, one: &Evidence) -> String {
    let mut names: Vec<&str> = ways.iter().take(MOST_WAYS).map(String::as_str).collect();
    let more = format!("{} more", ways.len().saturating_sub(MOST_WAYS));
    if ways.len() > MOST_WAYS {
        names.push(&more);
    }
    format!(
        "{}: {check} {}; each of these nodes does better with others: no node is blamed; next: look at what these ways share \
         (switches, uplinks, congestion, routing){}",
        listed(&names),
        against(one),
        background(one)
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
         could meet them{}",
        against(one),
        background(one)
    )
}

/// One of several that differ, and nobody knows which of them is right.
#[must_use]
pub fn tied(name: &str, check: CheckName, one: &Evidence) -> String {
    format!(
        "{name}: {check} {}: one of them computes wrongly; more nodes in a job would tell which",
        one.detail
    )
}

/// A miss that time did not allow to confirm.
#[must_use]
pub fn not_confirmed(name: &str, check: CheckName, one: &Evidence) -> String {
    format!("{name}: {check} {}; seen once, not confirmed{}", against(one), background(one))
}

/// A node that is fine.
#[must_use]
pub fn fine(name: &str, check: CheckName, one: &Evidence, again: bool) -> String {
    let note = if again { "; missed once, fine when measured again" } else { "" };
    format!("{name}: {check} {}{note}{}", against(one), background(one))
}

/// A pair that is fine.
#[must_use]
pub fn pair_fine((a, b): (&str, &str), check: CheckName, one: &Evidence, again: bool) -> String {
    let note = if again { "; missed once, fine when measured again" } else { "" };
    format!("{a} - {b}: {check} {}{note}{}", against(one), background(one))
}

/// All nodes together are fine.
#[must_use]
pub fn all_fine(nodes: usize, check: CheckName, one: &Evidence, again: bool) -> String {
    let note = if again { "; missed once, fine when measured again" } else { "" };
    format!("{nodes} nodes together: {check} {}{note}{}", against(one), background(one))
}

/// All nodes together miss, and no single part explains it: pairs of neighbours are fine, or several `links` that
/// don't share a node are slow as well.
#[must_use]
pub fn fabric_failed(nodes: usize, check: CheckName, one: &Evidence, links: &[String]) -> String {
    let pairs = if links.is_empty() {
        "pairs of neighbours are fine".to_owned()
    } else {
        let links: Vec<&str> = links.iter().map(String::as_str).collect();
        format!("each node is fine with a neighbour, but {} are slow as well", listed(&links))
    };
    format!(
        "{nodes} nodes together: {check} {}; measured twice; {pairs}; next: look at what all nodes share (switches, uplinks, \
         congestion, routing){}",
        against(one),
        background(one)
    )
}

/// The outcome in a sentence: the most important finding first.
#[must_use]
pub fn summary(outcome: Outcome, nodes: usize, findings: &[Finding]) -> String {
    let wanted = match outcome {
        Outcome::Fail | Outcome::Environment => Status::Fail,
        Outcome::Suspect => Status::Suspect,
        Outcome::Error => Status::Error,
        Outcome::Pass if nodes == 1 => return "1 node is fine".to_owned(),
        Outcome::Pass => return format!("{nodes} nodes are fine"),
        Outcome::Skip => Status::Skip,
    };
    let mut lines = findings.iter().filter(|one| one.status == wanted);
    let first = lines.next().map_or(Cow::from("nothing was measured"), |one| brief(&one.message));
    match lines.count() {
        0 => first.into_owned(),
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
    fn the_brief_form_has_no_background() {
        assert_eq!(brief("n2: 1 < 2; measured twice [limit: peers; 3 rounds]"), "n2: 1 < 2; measured twice");
        // What was added behind it is told, and it is not.
        assert_eq!(brief("n2: 1 < 2 [limit: peers]; fine in all_reduce"), "n2: 1 < 2; fine in all_reduce");
        for whole in ["n2: refused ([fe80::1])", "n2 [x] is gone", ""] {
            assert_eq!(brief(whole), whole);
        }
    }

    #[test]
    fn words_are_added_in_front_of_the_background() {
        for (message, with) in [
            ("n2: 1 < 2 [limit: x]; fine in b", "n2: 1 < 2; why [limit: x]; fine in b"),
            ("n2: 1 < 2 [limit: x]", "n2: 1 < 2; why [limit: x]"),
            ("n2: gone", "n2: gone; why"),
        ] {
            let mut own = message.to_owned();
            add(&mut own, "; why");
            assert_eq!(own, with);
        }
    }

    #[test]
    fn a_message_comes_apart() {
        let of = |what: &str, next: &str, background: &str| Parts {
            what: what.into(),
            next: next.into(),
            background: background.into(),
        };
        assert_eq!(
            parts("n2: 1 < 2; next: look [limit: x]; fine in b"),
            of("n2: 1 < 2; fine in b", "look", "limit: x")
        );
        assert_eq!(parts("n2: 1 < 2 [limit: x]"), of("n2: 1 < 2", "", "limit: x"));
        for whole in ["n2: refused ([fe80::1])", "n2 [x] is gone", ""] {
            assert_eq!(parts(whole), of(whole, "", ""));
        }
    }

    #[test]
    fn a_job_that_passed_says_how_many_nodes() {
        assert_eq!(summary(Outcome::Pass, 1, &[]), "1 node is fine");
        assert_eq!(summary(Outcome::Pass, 2, &[]), "2 nodes are fine");
    }

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
