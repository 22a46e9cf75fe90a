//! What `aimaster doctor` prints: the findings, or, when all is well, one page of what was looked at.

use std::fmt::Write as _;

use super::facts::{Facts, Machine};
use super::plugin::arguments;
use super::settings::major_minor;
use super::{Finding, Level};

/// The findings as text, a paragraph each.
#[must_use]
pub fn text(findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        let word = match finding.level {
            Level::Mistake => "MISTAKE",
            Level::Note => "note",
        };
        // Writing to a String can't fail.
        _ = writeln!(text, "{word}: {}", finding.found);
        _ = writeln!(text, "  change: {}", finding.change);
        _ = writeln!(text, "  why:    {}\n", finding.why);
    }
    text
}

/// What was looked at, a name and a line each.
#[must_use]
pub fn page(facts: &Facts) -> Vec<(&'static str, String)> {
    let (slurm, site, node) = (&facts.slurm, &facts.site, &facts.node);
    let get = |key: &str| slurm.get(key).unwrap_or("(nothing)").to_owned();
    let (wait_key, wait_s) = slurm.requeue_wait();
    let limit = slurm.prolog_limit();
    let limit =
        limit.map_or_else(|| "no limit of Slurm's".to_owned(), |(key, limit_s)| format!("{key} {limit_s} s"));
    let mut page = vec![
        ("prologs", format!("PrologFlags={}", get("PrologFlags"))),
        ("time", format!("checks {} s at most, {limit}", site.policy.time.max_deadline_s)),
        ("requeue", format!("a requeued job waits {wait_s} s ({wait_key})")),
    ];
    if let Some(line) = facts.plugin.lines.first() {
        let at = format!("{}:{}: {}", line.file.display(), line.line, line.text.trim());
        page.push(("plugstack", at));
    }
    if let (Some(file), Some(Ok(stamp))) = (&facts.plugin.file, &facts.plugin.stamp) {
        page.push(("plugin", format!("{}, for Slurm {}", file.path.display(), major_minor(*stamp))));
    }
    page.push(("policy", format!("{}, engine {}", site.policy_file.path.display(), site.policy.engine)));
    let own = site.policy.paths.baseline_dir.display();
    page.push((
        "limits",
        if site.has_limits { own.to_string() } else { "those that are built in".to_owned() },
    ));
    if node.munge.is_none() {
        page.push(("munge", "made and read a credential".to_owned()));
    }
    if let Some(ahead) = slurm.clock_ahead_s {
        page.push(("clock", format!("within {:.0} s of the controller's", ahead.abs().ceil())));
    }
    if let Machine::Compute { .. } = facts.machine {
        of_node(facts, &mut page);
    }
    page
}

fn of_node(facts: &Facts, page: &mut Vec<(&'static str, String)>) {
    let (site, node) = (&facts.site, &facts.node);
    let network = &site.policy.network;
    page.push(("helpers", format!("{} in {}", site.helpers.len(), arguments(facts).helpers.display())));
    page.push(("reports", site.policy.paths.report_dir.display().to_string()));
    page.push(("history", site.policy.paths.state_dir.display().to_string()));
    if let Some(Ok(address)) = &node.address {
        page.push(("address", address.to_string()));
    }
    let free = usize::from(network.port_last - network.port_first) + 1 - node.busy_ports.len();
    page.push(("ports", format!("{} to {}, {free} of them free", network.port_first, network.port_last)));
    if !node.reached.is_empty() {
        page.push(("reached", node.reached.join(", ")));
    }
    if node.gpu_devices > 0 {
        page.push(("GPUs", format!("{}, with their libraries", node.gpu_devices)));
    }
}
