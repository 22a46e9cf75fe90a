//! Limits held against physics: what no healthy part can reach, or what no broken one can miss, is no limit. It judges
//! baseline files, never a measurement.

mod peak;

use std::fmt;

use crate::baseline::{BaselineLimit, Baselines};
use crate::check::CheckName;
use crate::facts::Engine;
use crate::measurement::Metric;
use crate::request::mistake::{quoted, shown};
pub use peak::{CHIPS, Chip, Network, Rate};
use peak::{LEAST, PORT_GBIT_PER_S, beyond};

/// A limit that is none.
#[derive(Debug, Clone, PartialEq)]
pub struct Implausible {
    /// The check; `None`: the file as a whole.
    pub check: Option<CheckName>,
    /// The quantity.
    pub metric: Option<Metric>,
    /// The limit.
    pub value: Option<f64>,
    /// What is wrong with it.
    pub why: String,
}

impl Implausible {
    /// Whether a file with it can't be used; else it is only worth knowing.
    #[must_use]
    pub fn is_error(&self) -> bool {
        self.check.is_some()
    }
}

impl fmt::Display for Implausible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(check) = self.check {
            write!(f, "{check}")?;
        }
        if let (Some(metric), Some(value)) = (self.metric, self.value) {
            write!(f, " {value} {}", metric.unit())?;
        }
        let separator = if self.check.is_some() { ": " } else { "" };
        write!(f, "{separator}{}", self.why)
    }
}

/// Everything in a baseline file that is no limit.
#[must_use]
pub fn lint(baselines: &Baselines) -> Vec<Implausible> {
    let mut found = Vec::new();
    let chip = baselines.gpu.as_deref().and_then(Chip::of);
    if let Some(gpu) = baselines.gpu.as_ref().filter(|_| chip.is_none()) {
        let why = format!("no peak rates of a {} are known here: its rates can't be checked", shown(gpu));
        found.push(Implausible { check: None, metric: None, value: None, why });
    }
    for (at, limit) in baselines.limits.iter().enumerate() {
        let twice = baselines.limits[..at].iter().any(|earlier| same_place(earlier, limit));
        let twice = twice.then(|| "it stands there twice, and only the first counts".to_owned());
        let wrong = conditions(baselines.engine, limit).or_else(|| value(baselines.engine, chip, limit));
        found.extend(twice.into_iter().chain(wrong).map(|why| Implausible {
            check: Some(limit.check),
            metric: Some(limit.metric),
            value: Some(limit.value),
            why,
        }));
    }
    found
}

fn same_place(one: &BaselineLimit, other: &BaselineLimit) -> bool {
    let place = |limit: &BaselineLimit| (limit.check, limit.metric, limit.gpus, limit.bytes, limit.nvls);
    place(one) == place(other) && one.network == other.network
}

/// Conditions that no measurement has.
fn conditions(engine: Engine, limit: &BaselineLimit) -> Option<String> {
    let network = limit.network.as_deref().filter(|text| Network::parse(text).is_none());
    if let Some(text) = network {
        return Some(format!("network = {} is none: ports x Gbit/s, such as \"8x400\"", quoted(text)));
    }
    if engine == Engine::Host && limit.conditions() > 0 {
        return Some("the host engine knows no such conditions, so it never applies".to_owned());
    }
    let alone = limit.check == CheckName::AllReduce1 && limit.gpus == Some(1);
    if alone || limit.gpus == Some(0) || limit.bytes == Some(0) {
        return Some("there is nothing to send, so it never applies".to_owned());
    }
    None
}

fn value(engine: Engine, chip: Option<&Chip>, limit: &BaselineLimit) -> Option<String> {
    match limit.metric {
        Metric::Flops => match (engine, chip) {
            (Engine::Cuda, Some(chip)) => Rate::Bf16.wrong(chip, limit.value),
            _ => None,
        },
        Metric::Fp8Flops if engine == Engine::Host => {
            Some("the host engine measures no fp8, so it never applies".to_owned())
        }
        Metric::Fp8Flops => chip.and_then(|chip| Rate::Fp8.wrong(chip, limit.value)),
        Metric::Busbw => busbw(engine, chip, limit),
        Metric::Correct | Metric::Reachable => {
            Some("it needs no limit: everything must be right and reached".to_owned())
        }
        metric => time_or_share(engine, metric, limit.value),
    }
}

/// Bus bandwidth: over NVLink inside a node, over the network between nodes.
fn busbw(engine: Engine, chip: Option<&Chip>, limit: &BaselineLimit) -> Option<String> {
    let BaselineLimit { gpus, bytes, nvls, value, .. } = *limit;
    if engine == Engine::Host || limit.check == CheckName::PytorchGloo2 {
        let fastest = f64::from(PORT_GBIT_PER_S.iter().copied().max().unwrap_or(0)) / 8.0;
        let words = format!("the fastest port carries {fastest} GB/s");
        return beyond(value, fastest, 0.0, &words);
    }
    if matches!(limit.check, CheckName::AllReduce1 | CheckName::CompCommOverlap) {
        return chip.and_then(|chip| Rate::NvLink { gpus, bytes, nvls }.wrong(chip, value));
    }
    let over_links = chip.and_then(|chip| {
        let twice = 2.0 * chip.nvlink_gb_per_s;
        let words = format!("{}'s NVLinks carry {} GB/s a direction", chip.gpu, chip.nvlink_gb_per_s);
        beyond(value, twice, 0.0, &words)
    });
    over_links.or_else(|| over_network(Network::parse(limit.network.as_deref()?)?, limit))
}

/// Between two nodes half of what is gathered or reduced crosses the network, so busbw may be twice what the ports
/// carry; more nodes make it less. An all-to-all's is that of one rank, and a rail's is that of its port.
fn over_network(network: Network, limit: &BaselineLimit) -> Option<String> {
    let node = network.node();
    let a_gpu = node / f64::from(limit.gpus.unwrap_or(network.ports).max(1));
    let (peak, of) = match limit.check {
        CheckName::AllToAll2 => (2.0 * a_gpu, "a GPU's share of the ports"),
        CheckName::MultiAllReduce2 | CheckName::MultiAllReduce => (a_gpu, "a GPU's share of the ports"),
        _ => (2.0 * node, "the ports"),
    };
    let carries = if peak > node { node } else { a_gpu };
    let words = format!("{of} carry {carries} GB/s, so that the most is {peak}");
    beyond(limit.value, peak, LEAST, &words)
}

/// Times and shares are upper limits: the least that physics allows, and the most that still means anything.
fn time_or_share(engine: Engine, metric: Metric, value: f64) -> Option<String> {
    let (least, most, unit) = match (metric, engine) {
        // A launch writes to a GPU over PCIe, and its kernel's start is read back: a microsecond at the least. One that
        // takes a millisecond is two hundred times a healthy one.
        (Metric::Launch, Engine::Cuda) => (1.0, 1e3, "µs"),
        (Metric::LaunchTail, Engine::Cuda) => (1.0, 1e4, "µs"),
        // A thread can't wake faster than a context switch; one that needs a second is not running.
        (Metric::Launch | Metric::LaunchTail, Engine::Host) => (1.0, 1e6, "µs"),
        // Light needs 5 µs for a kilometre and back; a minute is longer than any attempt to connect lasts.
        (Metric::Connect, _) => (0.005, 6e4, "ms"),
        (Metric::RoundTrip, _) => (0.005, 1e4, "ms"),
        // With half of all segments lost nothing arrives at all.
        (Metric::Retransmits, _) => (0.0, 0.5, ""),
        _ => return None,
    };
    if value < least {
        Some(format!("no part can keep it: less than {least} {unit} is not possible"))
    } else if value >= most {
        Some(format!("no part can miss it: {most} {unit} or more means nothing works at all"))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(gpu: &str, check: &str, metric: &str, rest: &str) -> Vec<String> {
        let text = format!(
            "engine='cuda'\ngpu='{gpu}'\n[[limit]]\ncheck='{check}'\nmetric='{metric}'\nsource='x'\n{rest}"
        );
        lint(&Baselines::parse(&text).unwrap()).iter().map(ToString::to_string).collect()
    }

    // G05.
    #[test]
    fn published_limits_that_are_plainly_wrong_are_refused() {
        // Each with what is right beside it.
        let memory = |gpu: &str, mb_per_s: f64| Rate::Memory.wrong(Chip::of(gpu).unwrap(), mb_per_s / 1e6);
        assert!(memory("H200", 2_333.0).unwrap().contains("a broken part reaches it too"));
        assert_eq!(memory("H200", 2_333_000.0), None);
        assert!(memory("A100", 137_500.0).unwrap().contains("a broken part reaches it too"));
        assert_eq!(memory("A100", 1_375_000.0), None);
        for nvls in ["", "nvls=true", "nvls=false"] {
            for (gpu, wrong, right) in [("H100", 800, 330), ("B200", 900, 600)] {
                let all_reduce = |value: u32| {
                    found(gpu, "all_reduce_1", "busbw", &format!("gpus=8\nvalue={value}.0\n{nvls}"))
                };
                let said = all_reduce(wrong);
                assert!(
                    said.len() == 1 && said[0].contains("no part can reach it"),
                    "{gpu} {nvls}: {said:?}"
                );
                assert_eq!(all_reduce(right), Vec::<String>::new(), "{gpu} {nvls}");
            }
        }
    }

    #[test]
    fn a_products_limit_is_held_against_the_chip() {
        let at = |value: f64| found("H200", "gemm_flops", "flops", &format!("value={value:.1}"));
        assert!(
            at(6.2)[0].starts_with("gemm_flops 6.2 TFLOP/s: a broken part reaches it too"),
            "{:?}",
            at(6.2)
        );
        assert_eq!(at(620.0), Vec::<String>::new());
        assert!(
            at(1979.0)[0].contains("no part can reach it: H200 does 989.4 TFLOP/s of bf16"),
            "{:?}",
            at(1979.0)
        );
    }

    #[test]
    fn fp8_is_held_against_the_chips_own_rate() {
        let at = |gpu: &str, value: f64| {
            found(gpu, "gemm_flops", "fp8_flops", &format!("value={value:.1}")).join("; ")
        };
        assert!(at("H200", 62.0).contains("a broken part reaches it too"));
        assert_eq!(at("H200", 985.0), "");
        assert!(at("H200", 1979.0).contains("H200 does 1978.9 TFLOP/s of fp8"));
        assert!(at("A100", 300.0).contains("A100 has no such rate"));
    }

    #[test]
    fn small_messages_may_be_slow_and_large_ones_may_not() {
        let at = |bytes: u64, value: f64| {
            found("H200", "all_reduce_1", "busbw", &format!("gpus=2\nbytes={bytes}\nvalue={value:.1}")).len()
        };
        assert_eq!((at(4096, 5.0), at(4096, 4.0)), (0, 1));
        assert_eq!((at(1 << 30, 46.0), at(1 << 30, 44.0)), (0, 1));
        // With multicast the links are no bound, the best that was published is.
        let nvls = |value: f64| {
            found("H200", "all_reduce_1", "busbw", &format!("gpus=8\nnvls=true\nvalue={value:.1}")).len()
        };
        assert_eq!((nvls(470.0), nvls(510.0)), (0, 1));
        // Nothing was published of a GB200's node: twice (n - 1) / n of the link.
        let unpublished = |value: f64| {
            found("GB200", "all_reduce_1", "busbw", &format!("gpus=4\nnvls=true\nvalue={value:.1}")).len()
        };
        assert_eq!((unpublished(1300.0), unpublished(1350.0)), (0, 1));
    }

    #[test]
    fn a_network_bounds_what_crosses_it() {
        let at = |check: &str, network: &str, value: f64| {
            let rest = format!("gpus=8\nnetwork='{network}'\nvalue={value:.1}");
            found("H100", check, "busbw", &rest)
        };
        for (check, network, low, right, high) in [
            ("all_gather_2", "4x200", 0.9, 60.0, 200.0),
            ("all_reduce", "8x200", 1.9, 75.0, 400.0),
            ("all_to_all_2", "8x400", 0.9, 55.0, 100.0),
            ("multi_all_reduce_2", "8x400", 0.4, 31.0, 50.0),
        ] {
            assert_eq!(at(check, network, low).len(), 1, "{check} {low}");
            assert_eq!(at(check, network, right), Vec::<String>::new(), "{check} {right}");
            assert_eq!(at(check, network, high).len(), 1, "{check} {high}");
        }
        for network in ["8x401", "0x400", "400", "8 x 400", "64x400"] {
            assert!(at("all_gather_2", network, 60.0)[0].contains("ports x Gbit/s"), "{network}");
        }
        // More than the links behind the ports carry.
        assert!(at("all_gather_2", "8x1600", 900.0)[0].contains("NVLinks"));
    }

    #[test]
    fn times_and_shares_have_a_least_and_a_most() {
        for (check, metric, low, right, high) in [
            ("kernel_launch", "launch", 0.5, 20.0, 1000.0),
            ("kernel_launch", "launch_tail", 0.5, 100.0, 10_000.0),
            ("network_connectivity", "connect", 0.001, 1000.0, 60_000.0),
            ("network_connectivity", "round_trip", 0.001, 50.0, 10_000.0),
        ] {
            let at = |value: f64| found("H200", check, metric, &format!("value={value}")).len();
            assert_eq!((at(low), at(right), at(high)), (1, 0, 1), "{metric}");
        }
        assert_eq!(found("H200", "network_connectivity", "retransmits", "value=0.5").len(), 1);
        assert!(found("H200", "gemm_flops", "correct", "value=0.9")[0].contains("needs no limit"));
    }

    #[test]
    fn what_never_applies_stands_twice_or_cannot_be_checked_is_said() {
        assert!(found("H200", "all_reduce_1", "busbw", "gpus=1\nvalue=300.0")[0].contains("nothing to send"));
        assert!(
            found("L40S", "gemm_flops", "flops", "value=200.0")[0].starts_with("no peak rates of a L40S")
        );
        let twice = "[[limit]]\ncheck='gemm_flops'\nmetric='flops'\nvalue=620.0\nsource='x'\n".repeat(2);
        let said = lint(&Baselines::parse(&format!("engine='cuda'\ngpu='H200'\n{twice}")).unwrap());
        assert_eq!(said.len(), 1);
        assert_eq!(
            said[0].to_string(),
            "gemm_flops 620 TFLOP/s: it stands there twice, and only the first counts"
        );
        let host = "engine='host'\n[[limit]]\ncheck='all_reduce_2'\nmetric='busbw'\nsource='x'\n";
        let said = |rest: &str| lint(&Baselines::parse(&format!("{host}{rest}")).unwrap());
        assert_eq!(said("value=0.05"), []);
        assert!(said("value=0.05\ngpus=8")[0].why.contains("never applies"));
        assert!(said("value=200.0")[0].why.contains("the fastest port carries 200 GB/s"));
    }
}
