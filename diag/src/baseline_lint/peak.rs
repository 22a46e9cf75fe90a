//! What chips, their links and networks can do at most, and when a lower limit beside such a peak is none.

use crate::baseline::model;

/// What a GPU can do at most.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Chip {
    /// The model, as baseline files name it.
    pub gpu: &'static str,
    /// Dense bf16, TFLOP/s.
    pub bf16_tflop_per_s: f64,
    /// Dense fp8, TFLOP/s, where it has that.
    pub fp8_tflop_per_s: Option<f64>,
    /// Its memory, TB/s.
    pub memory_tb_per_s: f64,
    /// All its NVLinks in one direction, GB/s.
    pub nvlink_gb_per_s: f64,
    /// The best all-reduce busbw inside a node that was published with NVLink multicast, GB/s. Multicast adds up in the
    /// switch, so the links alone are no bound there.
    pub best_nvls_gb_per_s: Option<f64>,
}

/// The chips, from NVIDIA's data sheets of the SXM and superchip forms (dense rates are half of those printed with
/// sparsity, NVLink half of the total of both directions); the best all-reduces as `conf/baselines` cites them.
pub const CHIPS: &[Chip] = &[
    chip("A100", (312.0, None), 2.039, 300.0, None),
    chip("H100", (989.4, Some(1978.9)), 3.35, 450.0, Some(480.0)),
    chip("H200", (989.4, Some(1978.9)), 4.8, 450.0, Some(482.0)),
    // The larger of its two memories.
    chip("GH200", (989.4, Some(1978.9)), 4.9, 450.0, None),
    chip("B200", (2250.0, Some(4500.0)), 8.0, 900.0, Some(838.0)),
    chip("B300", (2250.0, Some(4500.0)), 8.0, 900.0, None),
    chip("GB200", (2500.0, Some(5000.0)), 8.0, 900.0, None),
    chip("GB300", (2500.0, Some(5000.0)), 8.0, 900.0, None),
];

const fn chip(
    gpu: &'static str,
    (bf16_tflop_per_s, fp8_tflop_per_s): (f64, Option<f64>),
    memory_tb_per_s: f64,
    nvlink_gb_per_s: f64,
    best_nvls_gb_per_s: Option<f64>,
) -> Chip {
    Chip { gpu, bf16_tflop_per_s, fp8_tflop_per_s, memory_tb_per_s, nvlink_gb_per_s, best_nvls_gb_per_s }
}

impl Chip {
    /// The chip of a model by NVML's or a baseline file's name.
    #[must_use]
    pub fn of(name: &str) -> Option<&'static Self> {
        CHIPS.iter().find(|chip| model::is(chip.gpu, name))
    }
}

/// A node's ports for the GPUs' traffic.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Network {
    /// How many.
    pub ports: u32,
    /// What each carries in one direction, GB/s.
    pub port_gb_per_s: f64,
}

/// Rates that Ethernet and InfiniBand ports have, Gbit/s.
pub(super) const PORT_GBIT_PER_S: &[u32] = &[1, 10, 25, 40, 50, 100, 200, 400, 800, 1600];

/// Most ports for GPU traffic that a node has: two for each of 16 GPUs.
const MAX_PORTS: u32 = 32;

impl Network {
    /// Reads `8x400`: eight ports of 400 Gbit/s.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (ports, rate) = text.split_once('x')?;
        let (ports, rate) = (ports.parse().ok()?, rate.parse().ok()?);
        let known = (1..=MAX_PORTS).contains(&ports) && PORT_GBIT_PER_S.contains(&rate);
        known.then(|| Self { ports, port_gb_per_s: f64::from(rate) / 8.0 })
    }

    /// What all ports carry together, GB/s.
    pub(super) fn node(self) -> f64 {
        f64::from(self.ports) * self.port_gb_per_s
    }
}

/// A rate that a limit is about, with what bounds it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rate {
    /// bf16 products of one GPU, TFLOP/s.
    Bf16,
    /// fp8 products of one GPU, TFLOP/s.
    Fp8,
    /// Memory of one GPU, TB/s.
    Memory,
    /// All-reduce busbw over NVLink inside a node, GB/s.
    NvLink {
        /// How many GPUs.
        gpus: Option<u32>,
        /// Size of the messages.
        bytes: Option<u64>,
        /// Whether NVLink multicast is on.
        nvls: Option<bool>,
    },
}

/// A share of the peak below which even a badly broken part of a chip stays above: healthy ones reach 70 to 95 %, one
/// that lost half of its units or sits at its lowest clocks still half.
const LEAST_OF_CHIP: f64 = 0.25;

/// The same for links and messages that fill them: what is left when nine of ten lanes are gone.
const LEAST_OF_LINK: f64 = 0.1;

/// The same for small messages, whose time is latency, and for networks, which are shared.
pub(super) const LEAST: f64 = 0.01;

/// Messages that fill a link: on 2 H200 64 MiB reached 60 % of it, 4 MiB a quarter.
const FILLS_LINK: u64 = 64 << 20;

/// How far the best node that nobody published may be above the best that somebody did.
const UNPUBLISHED: f64 = 1.05;

impl Rate {
    /// The peak of this rate on a chip, with the words for it; `None`: it has none.
    fn peak(self, chip: &Chip) -> Option<(f64, String)> {
        let gpu = chip.gpu;
        match self {
            Self::Bf16 => {
                Some((chip.bf16_tflop_per_s, format!("{gpu} does {} TFLOP/s of bf16", chip.bf16_tflop_per_s)))
            }
            Self::Fp8 => {
                let peak = chip.fp8_tflop_per_s?;
                Some((peak, format!("{gpu} does {peak} TFLOP/s of fp8")))
            }
            Self::Memory => {
                Some((chip.memory_tb_per_s, format!("{gpu}'s memory does {} TB/s", chip.memory_tb_per_s)))
            }
            Self::NvLink { gpus, nvls: Some(true), .. } => {
                let factor = gpus.map_or(2.0, |gpus| 2.0 * (f64::from(gpus) - 1.0) / f64::from(gpus));
                let (link, best) = (chip.nvlink_gb_per_s, chip.best_nvls_gb_per_s);
                let (adds, known) = (factor * link, best.map(|best| best * UNPUBLISHED));
                Some(match known.filter(|known| *known < adds) {
                    Some(known) => {
                        (known, format!("the best that was published of {gpu} is {}", known / UNPUBLISHED))
                    }
                    None => (
                        adds,
                        format!(
                            "{gpu}'s NVLinks carry {link} GB/s a direction, which the switch makes {adds:.0}"
                        ),
                    ),
                })
            }
            Self::NvLink { .. } => {
                let link = chip.nvlink_gb_per_s;
                Some((link, format!("{gpu}'s NVLinks carry {link} GB/s a direction")))
            }
        }
    }

    /// The share of the peak that a limit has to reach to be one.
    fn least(self) -> f64 {
        match self {
            Self::Bf16 | Self::Fp8 | Self::Memory => LEAST_OF_CHIP,
            Self::NvLink { bytes, .. } if bytes.is_none_or(|bytes| bytes >= FILLS_LINK) => LEAST_OF_LINK,
            Self::NvLink { .. } => LEAST,
        }
    }

    /// What is wrong with `value` as a lower limit of this rate on `chip`.
    #[must_use]
    pub fn wrong(self, chip: &Chip, value: f64) -> Option<String> {
        let Some((peak, words)) = self.peak(chip) else {
            return Some(format!("{} has no such rate", chip.gpu));
        };
        beyond(value, peak, self.least(), &words)
    }
}

/// What is wrong with a lower limit beside a peak.
pub(super) fn beyond(value: f64, peak: f64, least: f64, words: &str) -> Option<String> {
    if value >= peak {
        Some(format!("no part can reach it: {words}"))
    } else if value < least * peak {
        Some(format!(
            "a broken part reaches it too: it is below {:.0} % of the peak, and {words}",
            least * 100.0
        ))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chip_of(name: &str) -> &'static Chip {
        Chip::of(name).unwrap()
    }

    #[test]
    fn chips_are_known_by_nvmls_names() {
        for (name, gpu) in
            [("NVIDIA H100 80GB HBM3", "H100"), ("NVIDIA GB200", "GB200"), ("NVIDIA B200", "B200")]
        {
            assert_eq!(chip_of(name).gpu, gpu);
        }
        assert_eq!(Chip::of("NVIDIA H100 PCIe"), None);
    }

    #[test]
    fn a_chips_own_rates_bound_its_limits_from_above_and_below() {
        for (rate, gpu, low, right, high) in [
            (Rate::Bf16, "H200", 240.0, 620.0, 990.0),
            (Rate::Bf16, "A100", 70.0, 225.0, 312.0),
            (Rate::Fp8, "B200", 1_000.0, 3_000.0, 4_500.0),
            (Rate::Memory, "GH200", 1.0, 3.0, 5.0),
        ] {
            let wrong = |value| rate.wrong(chip_of(gpu), value);
            assert!(
                wrong(low).is_some() && wrong(right).is_none() && wrong(high).is_some(),
                "{rate:?} {gpu}"
            );
        }
        assert_eq!(Rate::Fp8.wrong(chip_of("A100"), 300.0).unwrap(), "A100 has no such rate");
    }
}
