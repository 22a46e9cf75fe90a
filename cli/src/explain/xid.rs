//! Numbers of NVIDIA's driver: what the site's table makes of them.

use diag::health::kernel_log::{Record, Said, said};
use diag::health::{Action, Class};
use diag::xid::{Family, Generation, MOST_CODE, Rule, SOURCE, Severity, XidTable};

use super::{Explained, pages};

/// What beginnings of a kernel's line stand before the driver's own words.
const DRIVER: &str = "NVRM: ";
const SWITCH: &str = "nvidia-nvswitch";

/// `Xid 79`, `xid79`, `SXid 24007`, or a line of the kernel's log.
pub fn explain(asked: &str, table: &XidTable) -> Option<Explained> {
    let (family, code) = number(asked).or_else(|| of_line(asked))?;
    let mut says = vec![told(table.rule(family, code, None, None))];
    // What differs by generation or by the driver's own word.
    for severity in [Severity::Fatal, Severity::Nonfatal] {
        differing(table, (family, code), None, Some(severity), &mut says);
    }
    for generation in [
        Generation::Volta,
        Generation::Turing,
        Generation::Ampere,
        Generation::Ada,
        Generation::Hopper,
        Generation::Blackwell,
    ] {
        differing(table, (family, code), Some(generation), None, &mut says);
    }
    says.push(format!("by runtime.xid of the policy, and {SOURCE}"));
    Some(Explained {
        title: format!("{family} {code}: a word of NVIDIA's driver in the kernel's log"),
        says,
        passages: pages::key("runtime.xid").into_iter().collect(),
        next: vec![
            "look up the number in NVIDIA's Xid catalogue, with the line of the kernel's log (dmesg -T | grep -i xid)".into(),
            "`aimaster report JOBID` of the job that met it has the line, the GPU and its PCI address".into(),
        ],
    })
}

fn differing(
    table: &XidTable,
    (family, code): (Family, u32),
    generation: Option<Generation>,
    severity: Option<Severity>,
    says: &mut Vec<String>,
) {
    let (plain, own) = (table.rule(family, code, None, None), table.rule(family, code, generation, severity));
    if plain == own {
        return;
    }
    let on = match (generation, severity) {
        (Some(generation), _) => format!("on {generation:?}"),
        (_, Some(severity)) => format!("where the driver calls it {severity:?}").to_lowercase(),
        _ => return,
    };
    says.push(format!("{on}: {}", told(own)));
}

fn told(rule: Rule) -> String {
    let whose = match rule.class {
        Class::Application => "the user's program",
        Class::Gpu => "the GPU",
        Class::Memory => "the GPU's memory",
        Class::Nvlink => "NVLink or NVSwitch",
        Class::Pcie => "the PCIe link",
        Class::Driver => "driver or firmware",
        Class::Power => "power supply",
        Class::Heat => "cooling",
        Class::Network => "the network",
        Class::Unknown => "nobody has said whose matter",
    };
    let often = match (rule.count, rule.window_s) {
        (1, _) => "once is enough".to_owned(),
        (count, 0) => format!("{count} of them in a job"),
        (count, window_s) => format!("{count} of them in {window_s} s"),
    };
    match rule.action {
        Action::Ignore => format!("{whose}; nothing is said of it"),
        Action::Report => format!("{whose}; it is told, and nobody is drained"),
        Action::Drain => {
            format!("{whose}; {often}: the node is drained where --runtime-fail-action asks for it")
        }
    }
}

fn number(asked: &str) -> Option<(Family, u32)> {
    let lower = asked.to_lowercase();
    let (family, rest) = match lower.strip_prefix("sxid") {
        Some(rest) => (Family::Sxid, rest),
        None => (Family::Xid, lower.strip_prefix("xid")?),
    };
    let code = rest.trim_start_matches([' ', ':', '=']).parse().ok()?;
    (code <= MOST_CODE).then_some((family, code))
}

/// A number inside the words of a reason, such as `..., Xid 79`.
pub fn inside(words: &str) -> Option<String> {
    let mut all = words.split([' ', ',', ';', ':', '(', ')']).filter(|word| !word.is_empty());
    while let Some(word) = all.next() {
        if word.eq_ignore_ascii_case("xid") || word.eq_ignore_ascii_case("sxid") {
            let code = all.next()?;
            return code.parse::<u32>().ok().map(|code| format!("{word} {code}"));
        }
    }
    None
}

fn of_line(asked: &str) -> Option<(Family, u32)> {
    let at = asked.find(DRIVER).or_else(|| asked.find(SWITCH))?;
    let record = Record { seq: 0, at_us: 0, of_kernel: true, text: asked[at..].to_owned() };
    match said(&record)? {
        Said::Xid { family, code, .. } => Some((family, code)),
        Said::NicFailed { .. } => None,
    }
}
