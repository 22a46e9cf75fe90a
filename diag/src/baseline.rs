//! Limits from the baseline files, each with its source, and the rule for outliers among peers. Whether a limit makes
//! sense is asked in [`crate::baseline_lint`].

pub mod model;

use serde::{Deserialize, Serialize};

use crate::check::CheckName;
use crate::facts::Engine;
use crate::measurement::Metric;
use crate::request::mistake::{quoted, shown_words};
use crate::verdict::Limit;

/// One baseline file, such as `baselines/host.toml` or `baselines/h200.toml`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Baselines {
    /// The engine that its values were taken with.
    pub engine: Engine,
    /// The GPU model that its values are for, such as `H200` or `H100 PCIe`; without it they are for any. Only with
    /// the CUDA engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
    /// Its limits.
    #[serde(default, rename = "limit", skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<BaselineLimit>,
    /// Checks that have no limit on purpose.
    #[serde(default, rename = "none", skip_serializing_if = "Vec::is_empty")]
    pub none: Vec<NoLimit>,
}

/// One limit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BaselineLimit {
    /// The check.
    pub check: CheckName,
    /// The quantity; its unit is [`Metric::unit`].
    pub metric: Metric,
    /// Only for so many GPUs of each node that takes part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus: Option<u32>,
    /// Only for messages of this size, as nccl-tests counts it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Only with NVLink multicast (NVLS), or only without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvls: Option<bool>,
    /// Only for nodes with such ports for the GPUs' traffic: how many, and Gbit/s of each, such as `8x400`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// A lower bound where higher is better, else an upper bound.
    pub value: f64,
    /// Where the number comes from.
    pub source: String,
}

/// How a number was taken; what is not known is left out, and a limit that depends on it does not apply then.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Conditions<'c> {
    /// GPUs of each node that took part.
    pub gpus: Option<u32>,
    /// Size of the messages.
    pub bytes: Option<u64>,
    /// Whether NVLink multicast was on.
    pub nvls: Option<bool>,
    /// The nodes' ports, as [`BaselineLimit::network`] has them.
    pub network: Option<&'c str>,
}

impl BaselineLimit {
    /// Whether it holds for a number that was taken so.
    #[must_use]
    pub fn applies(&self, at: &Conditions<'_>) -> bool {
        fn holds<T: PartialEq>(wanted: Option<&T>, is: Option<&T>) -> bool {
            wanted.is_none() || wanted == is
        }
        holds(self.gpus.as_ref(), at.gpus.as_ref())
            && holds(self.bytes.as_ref(), at.bytes.as_ref())
            && holds(self.nvls.as_ref(), at.nvls.as_ref())
            && holds(self.network.as_deref().as_ref(), at.network.as_ref())
    }

    /// How much it says about when it applies: of several that do, the one that says most is meant.
    #[must_use]
    pub fn conditions(&self) -> usize {
        let said = [self.gpus.is_some(), self.bytes.is_some(), self.nvls.is_some(), self.network.is_some()];
        said.into_iter().filter(|said| *said).count()
    }
}

/// A written "no limit".
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoLimit {
    /// The check.
    pub check: CheckName,
    /// Why there is none.
    pub reason: String,
}

/// A baseline file that can't be used.
#[derive(Debug, thiserror::Error)]
pub enum BaselineError {
    /// Not TOML, an unknown key or check, or a value of the wrong type.
    #[error("baseline file: line {line}: {words}")]
    Syntax {
        /// Where, from 1.
        line: usize,
        /// The reader's words.
        words: String,
    },
    /// A number that can't be a limit.
    #[error("baseline file: {check} {metric:?}: {value} can't be a limit: it must be finite and above 0")]
    Value {
        /// The check.
        check: CheckName,
        /// The quantity.
        metric: Metric,
        /// The number.
        value: f64,
    },
    /// A GPU model in a file of the host engine, or one without a word.
    #[error("baseline file: gpu = {} names no GPU of the {engine} engine", quoted(gpu))]
    Gpu {
        /// The engine.
        engine: Engine,
        /// What it says.
        gpu: String,
    },
}

impl Baselines {
    /// A file with nothing in it.
    #[must_use]
    pub fn empty(engine: Engine) -> Self {
        Self { engine, gpu: None, limits: Vec::new(), none: Vec::new() }
    }

    /// Reads a baseline file's text.
    ///
    /// # Errors
    /// When the text is not a baseline file, a limit is not a positive number, or the GPU is none of the engine's.
    pub fn parse(text: &str) -> Result<Self, BaselineError> {
        let baselines: Self = toml::from_str(text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
            BaselineError::Syntax { line, words: shown_words(error.message()) }
        })?;
        if let Some(gpu) = &baselines.gpu
            && (baselines.engine != Engine::Cuda || model::words(gpu).is_empty())
        {
            return Err(BaselineError::Gpu { engine: baselines.engine, gpu: gpu.clone() });
        }
        match baselines.limits.iter().find(|limit| !(limit.value.is_finite() && limit.value > 0.0)) {
            Some(limit) => {
                Err(BaselineError::Value { check: limit.check, metric: limit.metric, value: limit.value })
            }
            None => Ok(baselines),
        }
    }

    /// The file's text; [`Baselines::parse`] reads it back.
    ///
    /// # Errors
    /// A size that is larger than TOML's whole numbers.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(self)
    }

    /// The limit of a quantity in a check that holds however it was taken, if there is one. Right results and reached
    /// ports need no file.
    #[must_use]
    pub fn limit(&self, check: CheckName, metric: Metric) -> Option<Limit> {
        self.limit_at(check, metric, &Conditions::default())
    }

    /// The limit for a quantity that was taken so: of those that apply the one that says most about when it does, and of
    /// several of those the first.
    #[must_use]
    pub fn limit_at(&self, check: CheckName, metric: Metric, at: &Conditions<'_>) -> Option<Limit> {
        match metric {
            Metric::Correct => Some(Limit { value: 1.0, source: "every result must be right".into() }),
            Metric::Reachable => Some(Limit { value: 1.0, source: "every port must answer".into() }),
            _ => {
                let own = self.limits.iter().filter(|limit| limit.check == check && limit.metric == metric);
                let applying = own.filter(|limit| limit.applies(at));
                // `max_by_key` would give the last of several.
                let best = applying.rev().max_by_key(|limit| limit.conditions())?;
                Some(Limit {
                    value: best.value,
                    source: format!("baseline {}: {}", self.name(), best.source),
                })
            }
        }
    }

    /// What it is for, in a word: the GPU model, else the engine.
    #[must_use]
    pub fn name(&self) -> String {
        self.gpu.clone().unwrap_or_else(|| self.engine.to_string())
    }

    /// The file for a GPU by the name that NVML gives it: the one that names it most exactly, else one for any model.
    #[must_use]
    pub fn for_gpu<'b>(files: impl IntoIterator<Item = &'b Self>, name: &str) -> Option<&'b Self> {
        let cuda = files.into_iter().filter(|file| file.engine == Engine::Cuda);
        let fitting = cuda.filter_map(|file| match &file.gpu {
            None => Some((0, file)),
            Some(gpu) => model::is(gpu, name).then(|| (model::words(gpu).len(), file)),
        });
        fitting.max_by_key(|(words, _)| *words).map(|(_, file)| file)
    }
}

/// When one of several like subjects stands out: it is beyond `share` of the median and further from it than
/// `mads` median absolute deviations (scaled to a standard deviation), or beyond `far`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OutlierRule {
    /// Share of the median.
    pub share: f64,
    /// Scaled median absolute deviations.
    pub mads: f64,
    /// Share of the median below which a value stands out however much the others differ among themselves.
    pub far: f64,
}

/// Fewest like subjects among which one can stand out: the median of two is only their mean.
pub const OUTLIER_MIN_SUBJECTS: usize = 3;

/// Most subjects for which each is held against the others without itself: among more than these one value moves
/// neither median, and the work would grow with the square of the job.
pub(crate) const LEAVE_OUT_MAX: usize = 64;

/// Messages from this size on are governed by bandwidth; the time of smaller ones is mostly latency, which scatters more.
const BANDWIDTH_FROM: u64 = 64 << 20;

/// Share of the median for those smaller ones.
const LATENCY_SHARE: f64 = 0.7;

/// Makes the median absolute deviation of a normal distribution its standard deviation.
const MAD_TO_SIGMA: f64 = 1.4826;

impl OutlierRule {
    /// The rule of an engine: processors shared with other work vary far more than GPUs do.
    #[must_use]
    pub fn of(engine: Engine) -> Self {
        match engine {
            Engine::Cuda => Self { share: 0.9, mads: 4.0, far: 0.5 },
            Engine::Host => Self { share: 0.5, mads: 4.0, far: 0.1 },
        }
    }

    /// The same rule for messages of this size.
    #[must_use]
    pub fn at(self, bytes: Option<u64>) -> Self {
        let share = if bytes.is_some_and(|bytes| bytes < BANDWIDTH_FROM) { LATENCY_SHARE } else { 1.0 };
        Self { share: self.share.min(share), ..self }
    }

    /// The limit that the other subjects' values imply for the one that has `value`; `None` with too few values, or
    /// for a metric where peers say nothing (shares are judged by their limit alone, and so are times, whose spread
    /// on a healthy network is wider than any fault).
    #[must_use]
    pub fn limit(self, metric: Metric, value: f64, values: &[f64]) -> Option<Limit> {
        if values.len() < OUTLIER_MIN_SUBJECTS || !metric.is_rate() {
            return None;
        }
        let all = others(value, values);
        let rough = median(&all)?;
        // Another culprit among the others must not widen the spread that this one has to exceed; but one that is left
        // alone is no measure: it may be the one that differs.
        let kept: Vec<f64> = all.iter().copied().filter(|other| *other >= self.share * rough).collect();
        let others = if kept.len() + 1 < OUTLIER_MIN_SUBJECTS { all } else { kept };
        let middle = median(&others)?;
        let spread = self.mads * deviation(&others, middle)?;
        let (by_share, by_spread) = (self.share * middle, middle - spread);
        let far = self.far * middle;
        let (value, rule) = if by_share <= by_spread {
            (by_share, format!("{:.0} % of", self.share * 100.0))
        } else if by_spread >= far {
            (by_spread, format!("{} scaled deviations (MAD) below", self.mads))
        } else {
            (far, format!("{:.0} % of", self.far * 100.0))
        };
        let source = format!("peers: {rule} the median of {} others", others.len());
        (value > 0.0).then_some(Limit { value, source })
    }
}

/// The values of the other subjects: in a small job a culprit's own value would widen the spread that it has to
/// exceed.
#[must_use]
pub fn others(value: f64, values: &[f64]) -> Vec<f64> {
    let mut others = values.to_vec();
    let own = values.iter().position(|other| other.total_cmp(&value).is_eq());
    if let Some(own) = own.filter(|_| values.len() <= LEAVE_OUT_MAX) {
        others.swap_remove(own);
    }
    others
}

/// Median absolute deviation from `middle`, scaled to the standard deviation of a normal distribution; `None` of none.
#[must_use]
pub fn deviation(values: &[f64], middle: f64) -> Option<f64> {
    let deviations: Vec<f64> = values.iter().map(|value| (value - middle).abs()).collect();
    Some(MAD_TO_SIGMA * median(&deviations)?)
}

/// Median of finite values; `None` of none.
#[must_use]
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        length if length % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_fast_gpu_of_three_condemns_nobody() {
        let rule = OutlierRule::of(Engine::Cuda);
        let failed = |values: &[f64]| -> Vec<f64> {
            let misses =
                |value: f64| rule.limit(Metric::Flops, value, values).is_some_and(|one| value < one.value);
            values.iter().copied().filter(|value| misses(*value)).collect()
        };
        assert!(failed(&[610.0, 615.0, 800.0]).is_empty());
        assert_eq!(failed(&[400.0, 700.0, 702.0]), [400.0]);
    }

    // G11.
    #[test]
    fn an_outlier_needs_three_peers_and_a_wide_gap() {
        let rule = OutlierRule::of(Engine::Host);
        assert_eq!(rule.limit(Metric::Flops, 1.0, &[1.0, 10.0]), None);
        let limit = rule.limit(Metric::Flops, 1.0, &[1.0, 10.0, 10.0, 10.0]).unwrap();
        assert!((limit.value - 5.0).abs() < 1e-9, "{limit:?}");
        assert_eq!(limit.source, "peers: 50 % of the median of 3 others");
        // A wide spread widens the gap that is needed.
        let limit = rule.limit(Metric::Flops, 4.0, &[4.0, 7.0, 10.0, 13.0]).unwrap();
        assert!(limit.value < 4.0, "{limit:?}");
        let limit = rule.limit(Metric::Flops, 1.0, &[1.0, 8.5, 10.0, 11.5]).unwrap();
        assert!(limit.value < 5.0 && limit.source.contains("4 scaled deviations"), "{limit:?}");
    }

    #[test]
    fn a_value_far_below_all_others_stands_out_however_they_scatter() {
        // As measured on nodes that share two cores.
        let measured = [0.74, 1.26, 0.59, 0.00125];
        let rule = OutlierRule::of(Engine::Host);
        for value in measured {
            let limit = rule.limit(Metric::Busbw, value, &measured).unwrap();
            assert_eq!(value < limit.value, value < 0.1, "{value} {limit:?}");
        }
    }

    #[test]
    fn culprits_do_not_hide_behind_the_spread_that_they_make() {
        // Two slow ones of six, as measured: each must stand out from the others.
        let measured = [7.3, 33.7, 40.1, 7.3, 32.6, 32.3];
        let rule = OutlierRule::of(Engine::Host);
        for value in measured {
            let limit = rule.limit(Metric::Flops, value, &measured);
            assert_eq!(limit.is_some_and(|limit| value < limit.value), value < 10.0, "{value}");
        }
    }

    #[test]
    fn what_is_wrong_is_one_line_with_its_place() {
        let said = |text: &str| Baselines::parse(text).unwrap_err().to_string();
        let unknown = said("engine='host'\n\nlimits=[]\n");
        assert!(unknown.starts_with("baseline file: line 3: unknown field `limits`"), "{unknown}");
        let check = said("engine='host'\n[[none]]\ncheck='x'\nreason=''\n");
        assert!(
            check.starts_with("baseline file: line 3: ") && check.contains("multi_all_reduce"),
            "{check}"
        );
        let long = "\u{1b}[2J\u{202e}\n".repeat(400);
        let gpu = format!("engine='cuda'\ngpu='{}'", "-\u{202e}".repeat(999));
        for text in [long.clone(), format!("{long:?} = 1"), gpu] {
            let line = said(&text);
            assert!(line.len() < 8000 && !line.contains(['\u{1b}', '\n', '\u{202e}']), "{line}");
        }
    }

    // F10.
    #[test]
    fn a_limit_of_zero_or_nan_is_refused() {
        for value in ["0.0", "-1.0", "nan", "inf"] {
            let text = format!(
                "engine='host'\n[[limit]]\ncheck='gemm_flops'\nmetric='flops'\nvalue={value}\nsource='x'"
            );
            assert!(matches!(Baselines::parse(&text), Err(BaselineError::Value { .. })), "{value}");
        }
        assert!(Baselines::parse("engine='host'\nlimits=[]").is_err());
    }

    // G06.
    #[test]
    fn the_file_that_names_a_gpu_most_exactly_is_taken() {
        let file =
            |gpu: Option<&str>| Baselines { gpu: gpu.map(str::to_owned), ..Baselines::empty(Engine::Cuda) };
        let files = [
            file(Some("H100")),
            Baselines::empty(Engine::Host),
            file(None),
            file(Some("H100 PCIe")),
            file(Some("H100 80GB")),
        ];
        let taken = |name| Baselines::for_gpu(&files, name).map(Baselines::name);
        assert_eq!(taken("NVIDIA H100 80GB HBM3").as_deref(), Some("H100 80GB"));
        assert_eq!(taken("NVIDIA H100 96GB HBM3").as_deref(), Some("H100"));
        assert_eq!(taken("NVIDIA H100 PCIe").as_deref(), Some("H100 PCIe"));
        assert_eq!(taken("NVIDIA L40S").as_deref(), Some("cuda"));
        assert_eq!(Baselines::for_gpu(&files[..2], "NVIDIA L40S"), None);
    }

    // G07.
    #[test]
    fn a_limit_applies_only_where_all_that_it_says_is_known_and_so() {
        let entry = |conditions: &str, value: u32| {
            format!(
                "[[limit]]\ncheck='all_reduce_1'\nmetric='busbw'\n{conditions}\nvalue={value}.0\nsource='x'\n"
            )
        };
        let text = ["engine='cuda'\ngpu='H200'\n".to_owned()]
            .into_iter()
            .chain([
                entry("gpus=8", 100),
                entry("gpus=8\nbytes=1024", 110),
                entry("gpus=8\nbytes=1024\nnvls=true", 120),
                entry("gpus=8\nnvls=false", 130),
                entry("network='8x400'", 140),
            ])
            .collect::<String>();
        let baselines = Baselines::parse(&text).unwrap();
        let at = |gpus, bytes, nvls, network| {
            let at = Conditions { gpus, bytes, nvls, network };
            baselines.limit_at(CheckName::AllReduce1, Metric::Busbw, &at).map(|limit| limit.value)
        };
        assert_eq!(at(Some(8), Some(1024), Some(true), None), Some(120.0));
        assert_eq!(at(Some(8), Some(1024), None, None), Some(110.0));
        // Two that say equally much: the first.
        assert_eq!(at(Some(8), Some(1024), Some(false), None), Some(110.0));
        assert_eq!(at(Some(8), Some(2048), Some(false), None), Some(130.0));
        assert_eq!(at(Some(8), Some(2048), Some(true), None), Some(100.0));
        assert_eq!(at(Some(4), Some(1024), Some(true), None), None);
        assert_eq!(at(Some(4), None, None, Some("8x400")), Some(140.0));
        assert_eq!(at(Some(4), None, None, Some("8x200")), None);
        assert_eq!(baselines.limit(CheckName::AllReduce1, Metric::Busbw), None);
        let source = baselines.limit_at(
            CheckName::AllReduce1,
            Metric::Busbw,
            &Conditions { gpus: Some(8), ..Conditions::default() },
        );
        assert_eq!(source.unwrap().source, "baseline H200: x");
    }

    #[test]
    fn a_gpu_in_a_file_of_the_host_engine_is_refused() {
        for text in ["engine='host'\ngpu='H200'", "engine='cuda'\ngpu='NVIDIA'"] {
            assert!(matches!(Baselines::parse(text), Err(BaselineError::Gpu { .. })), "{text}");
        }
    }
}
