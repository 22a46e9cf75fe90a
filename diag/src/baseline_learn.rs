//! Limits from a site's own reports: what its healthy parts do, by robust statistics, as a baseline file of the form that
//! ships. It reads reports that somebody else has opened, and judges no part.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::baseline::{BaselineLimit, Baselines, NoLimit, deviation, median, model};
use crate::baseline_lint::lint;
use crate::check::{ALL, CheckName, Scope};
use crate::facts::Engine;
use crate::measurement::Metric;
use crate::report::{Item, MeasuredOn, Report};
use crate::verdict::{Outcome, Status};
use crate::wording;

/// Fewest jobs: of fewer the spread from job to job is not known.
pub const LEAST_JOBS: usize = 10;

/// Fewest nodes: a limit that one or two nodes taught would be those nodes' own state, faults and all.
pub const LEAST_NODES: usize = 3;

/// Fewest numbers: a median absolute deviation of fewer is off by a third and more.
pub const LEAST_NUMBERS: usize = 20;

/// A limit is so many scaled deviations (MAD) away from the median, or further. A job of a thousand nodes of 8 GPUs has
/// 8,000 numbers of a kind: beyond 5 deviations are 0.2 % of such jobs, beyond 4 a quarter of them.
const MADS: f64 = 5.0;

/// And never closer than this share of the median, however alike the parts are: the next driver, summer or cable costs some
/// per cent, and is no fault.
const CLOSEST: f64 = 0.9;

/// A limit below this share of the median is none: half as fast a part, with its own scatter, would pass.
const FURTHEST: f64 = 0.6;

/// The same for times, which scatter more: never closer than half as long again, and none from here on, because twice as
/// slow would pass.
const CLOSEST_TIME: f64 = 1.5;
const FURTHEST_TIME: f64 = 1.8;

/// What reports taught.
#[derive(Debug, Clone, PartialEq)]
pub struct Learned {
    /// The file.
    pub baselines: Baselines,
    /// How many limits of it were learned; the others were kept.
    pub limits: usize,
    /// What was not learned, and why.
    pub left_out: Vec<String>,
}

/// Why nothing was learned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LearnError {
    /// No report of a job that passed.
    #[error(
        "none of {reports} reports is of a job that passed, by a version that says what it measured on: at least {LEAST_JOBS} such jobs are needed"
    )]
    NothingPassed {
        /// How many there are.
        reports: usize,
    },
    /// Several engines.
    #[error("the reports are of several engines ({0}): give those of one, because a file is for one engine")]
    Engines(String),
    /// Several GPU models.
    #[error(
        "the reports are of several GPU models ({0}): choose one with --gpu, because a file is for one model"
    )]
    Models(String),
    /// None of the wanted model, or of jobs whose nodes differ.
    #[error("no report is of a job on {wanted} alone; there are {found}")]
    NoSuchGpu {
        /// The model.
        wanted: String,
        /// What there is.
        found: String,
    },
    /// No limit could be learned.
    #[error("no limit can be learned from {jobs} jobs on {nodes} nodes (needed: {LEAST_JOBS} jobs, {LEAST_NODES} nodes and {LEAST_NUMBERS} numbers of a kind):\n{}", .why.join("\n"))]
    Nothing {
        /// Jobs that passed.
        jobs: usize,
        /// Their nodes.
        nodes: usize,
        /// Kind by kind.
        why: Vec<String>,
    },
}

/// What a limit is for.
type Place = (CheckName, Metric, Option<u32>, Option<u64>, Option<bool>);

/// The numbers of one place, and where they come from.
#[derive(Default)]
struct Numbers<'r> {
    values: Vec<f64>,
    jobs: BTreeSet<Run<'r>>,
    nodes: BTreeSet<&'r str>,
    times: Option<(Timestamp, Timestamp)>,
}

/// A job's run: cluster, job, number of the check.
type Run<'r> = (&'r str, u32, u32);

fn run(report: &Report) -> Run<'_> {
    (&report.cluster, report.job_id, report.check_number)
}

/// Learns limits from the reports of jobs that passed; others are passed over. `gpu`: only jobs on this model. `kept` are
/// the limits that hold now: those of them stay that nothing was learned for.
///
/// # Errors
/// The reports are of several engines or models, or too few of them say something.
pub fn learn(
    reports: &[Report],
    gpu: Option<&str>,
    kept: impl Fn(Engine, Option<&str>) -> Option<Baselines>,
) -> Result<Learned, LearnError> {
    let mut seen = BTreeSet::new();
    let passed = |report: &&Report| report.outcome == Outcome::Pass && report.hardware.is_some();
    let passed: Vec<&Report> = reports.iter().filter(passed).filter(|one| seen.insert(run(one))).collect();
    if passed.is_empty() {
        return Err(LearnError::NothingPassed { reports: reports.len() });
    }
    let engines = counted(passed.iter().map(|one| one.engine.to_string()));
    let [(engine, _)] = engines.as_slice() else { return Err(LearnError::Engines(listed(&engines))) };
    let engine = if *engine == Engine::Cuda.to_string() { Engine::Cuda } else { Engine::Host };
    let (passed, name) = if engine == Engine::Cuda { of_one_model(passed, gpu)? } else { (passed, None) };
    let kept = kept(engine, name.as_deref());
    let empty = Baselines::empty(engine);
    let base = kept.as_ref().unwrap_or(&empty);
    let own = name.map(|name| base.gpu.clone().unwrap_or_else(|| model::words(&name).join(" ")));

    let mut left_out = Vec::new();
    let numbers = numbers(&passed, &mut left_out);
    let mut learned = Baselines { gpu: own, ..empty.clone() };
    for (place, numbers) in &numbers {
        match limit(*place, numbers) {
            Ok(limit) => learned.limits.push(limit),
            Err(why) => left_out.push(format!("{}: {why}", called(*place))),
        }
    }
    // What physics rules out was not measured by healthy parts.
    let wrong = lint(&learned);
    let wrong: Vec<_> = wrong.iter().filter(|one| one.is_error()).collect();
    left_out.extend(wrong.iter().map(ToString::to_string));
    learned.limits.retain(|limit| {
        let is = |one: &&&crate::baseline_lint::Implausible| {
            (one.check, one.metric, one.value) == (Some(limit.check), Some(limit.metric), Some(limit.value))
        };
        !wrong.iter().any(|one| is(&one))
    });
    if learned.limits.is_empty() {
        let nodes: BTreeSet<&String> = passed.iter().flat_map(|one| &one.nodes).collect();
        return Err(LearnError::Nothing { jobs: passed.len(), nodes: nodes.len(), why: left_out });
    }
    let limits = learned.limits.len();
    Ok(Learned { baselines: with_kept(learned, base), limits, left_out })
}

/// The reports of jobs on one model, and its name as NVML has it.
fn of_one_model<'r>(
    passed: Vec<&'r Report>,
    gpu: Option<&str>,
) -> Result<(Vec<&'r Report>, Option<String>), LearnError> {
    fn gpu_of(report: &Report) -> Option<&str> {
        report.hardware.as_ref()?.gpu.as_deref()
    }
    let name = |report: &Report| gpu_of(report).unwrap_or("several models in a job").to_owned();
    let all = counted(passed.iter().map(|one| name(one)));
    let wanted = |report: &&Report| {
        gpu_of(report).is_some_and(|name| gpu.is_none_or(|gpu| gpu == name || model::is(gpu, name)))
    };
    let fitting: Vec<&Report> = passed.into_iter().filter(wanted).collect();
    let models = counted(fitting.iter().filter_map(|one| gpu_of(one)).map(str::to_owned));
    match models.as_slice() {
        [] => {
            Err(LearnError::NoSuchGpu { wanted: gpu.unwrap_or("one model").to_owned(), found: listed(&all) })
        }
        [(one, _)] => Ok((fitting, Some(one.clone()))),
        _ => Err(LearnError::Models(listed(&models))),
    }
}

fn counted(names: impl Iterator<Item = String>) -> Vec<(String, usize)> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for name in names {
        *counts.entry(name).or_default() += 1;
    }
    counts.into_iter().collect()
}

fn listed(counts: &[(String, usize)]) -> String {
    let words: Vec<String> = counts.iter().map(|(name, count)| format!("{count} of {name}")).collect();
    wording::listed(&words.iter().map(String::as_str).collect::<Vec<_>>())
}

/// All numbers that a limit can be made of, by what it would be for.
fn numbers<'r>(passed: &[&'r Report], left_out: &mut Vec<String>) -> BTreeMap<Place, Numbers<'r>> {
    let mut all: BTreeMap<Place, Numbers<'r>> = BTreeMap::new();
    let mut unlearned: BTreeSet<CheckName> = BTreeSet::new();
    for report in passed {
        for item in report.items.iter().filter(|item| item.status == Status::Pass) {
            let Some(check) = CheckName::parse(&item.check) else { continue };
            if check.spec().scope == Scope::All {
                unlearned.insert(check);
                continue;
            }
            for (metric, bytes, value) in shown(item) {
                let MeasuredOn { gpus, nvls, .. } = report.hardware.clone().unwrap_or_default();
                let numbers = all.entry((check, metric, gpus, bytes, nvls)).or_default();
                numbers.values.push(value);
                numbers.jobs.insert(run(report));
                match check.spec().scope {
                    Scope::Node => _ = numbers.nodes.insert(&item.subject.node),
                    // Everybody is in a pair.
                    Scope::Pair | Scope::All => numbers.nodes.extend(report.nodes.iter().map(String::as_str)),
                }
                let (first, last) = numbers.times.unwrap_or((report.finished_at, report.finished_at));
                numbers.times = Some((first.min(report.finished_at), last.max(report.finished_at)));
            }
        }
    }
    for check in unlearned {
        left_out.push(format!(
            "{check}: what all nodes reach together falls with how many they are, and a limit says nothing of that"
        ));
    }
    // A report shows the one that is nearer to its limit: where that changes, each is shown on its worse days only.
    let both = |all: &BTreeMap<Place, Numbers<'_>>, check: CheckName| {
        let has = |metric: Metric| all.keys().any(|place| (place.0, place.1) == (check, metric));
        has(Metric::Launch) && has(Metric::LaunchTail)
    };
    let checks: BTreeSet<CheckName> = all.keys().map(|place| place.0).collect();
    for check in checks.into_iter().filter(|check| both(&all, *check)).collect::<Vec<_>>() {
        all.retain(|place, _| place.0 != check || place.1.is_rate());
        left_out.push(format!(
            "{check}: some reports show its median and some its tail, so neither can be learned"
        ));
    }
    all
}

/// The numbers of a finding that may become limits: rates and times of launches. Times of the network have floors that
/// hold everywhere.
fn shown(item: &Item) -> Vec<(Metric, Option<u64>, f64)> {
    let rates = item.rates.iter().map(|rate| (rate.metric, rate.bytes, rate.value));
    let decisive = item.metric.zip(item.value).map(|(metric, value)| (metric, item.bytes, value));
    let decisive = decisive.filter(|one| item.rates.is_empty() || !one.0.is_rate());
    let is_learned =
        |metric: Metric| metric.is_rate() || matches!(metric, Metric::Launch | Metric::LaunchTail);
    rates.chain(decisive).filter(|one| is_learned(one.0) && one.2.is_finite() && one.2 > 0.0).collect()
}

/// The limit of a place; why there is none.
fn limit(place: Place, numbers: &Numbers<'_>) -> Result<BaselineLimit, String> {
    let (check, metric, gpus, bytes, nvls) = place;
    let (jobs, nodes, count) = (numbers.jobs.len(), numbers.nodes.len(), numbers.values.len());
    if jobs < LEAST_JOBS || nodes < LEAST_NODES || count < LEAST_NUMBERS {
        return Err(format!(
            "{count} numbers of {jobs} jobs on {nodes} nodes: {LEAST_NUMBERS} of {LEAST_JOBS} jobs on {LEAST_NODES} \
             nodes are needed"
        ));
    }
    let middle = median(&numbers.values).unwrap_or_default();
    let spread = deviation(&numbers.values, middle).unwrap_or_default();
    let (closest, furthest, by_spread) = if metric.is_rate() {
        (CLOSEST, FURTHEST, 1.0 - MADS * spread / middle)
    } else {
        (CLOSEST_TIME, FURTHEST_TIME, 1.0 + MADS * spread / middle)
    };
    let further = |a: f64, b: f64| if metric.is_rate() { a < b } else { a > b };
    let share = if further(by_spread, closest) { by_spread } else { closest };
    let quantity = |value: f64| wording::quantity(metric, value);
    if further(share, furthest) {
        return Err(format!(
            "the numbers scatter too much (median {}, scaled MAD {}): a limit beyond that would let a part pass that is \
             half as fast; are nodes of several kinds among them?",
            quantity(middle),
            quantity(spread)
        ));
    }
    let best = numbers.values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let least = numbers.values.iter().copied().fold(f64::INFINITY, f64::min);
    let worst = if metric.is_rate() { least } else { best };
    let rule = if share == closest {
        format!("{:.0} % of the median", closest * 100.0)
    } else {
        format!("{MADS} scaled MAD from the median")
    };
    let day = |at: Timestamp| at.strftime("%Y-%m-%d").to_string();
    let days = numbers.times.map(|(first, last)| format!(", {} to {}", day(first), day(last)));
    let source = format!(
        "learned: {rule}; {count} numbers of {jobs} jobs on {nodes} nodes{}: median {}, scaled MAD {}, worst {}",
        days.unwrap_or_default(),
        quantity(middle),
        quantity(spread),
        quantity(worst)
    );
    let value = rounded(share * middle, metric.is_rate());
    Ok(BaselineLimit { check, metric, gpus, bytes, nvls, network: None, value, source })
}

/// Three digits, away from the median.
fn rounded(value: f64, down: bool) -> f64 {
    let step = 10_f64.powf(value.log10().floor() - 2.0);
    let steps = value / step;
    let whole = if down { steps.floor() } else { steps.ceil() } * step;
    // Without the last bits that the division left.
    format!("{whole:.2e}").parse().unwrap_or(value)
}

fn called((check, metric, gpus, bytes, _): Place) -> String {
    let gpus = gpus.map_or_else(String::new, |gpus| format!(" of {gpus} GPUs"));
    format!("{check}{}{gpus}", wording::which(metric, bytes))
}

/// What was learned, and of the limits that hold now those that nothing was learned for.
fn with_kept(mut learned: Baselines, base: &Baselines) -> Baselines {
    let place = |one: &BaselineLimit| (one.check, one.metric, one.gpus, one.bytes, one.nvls);
    let taken: BTreeSet<Place> = learned.limits.iter().map(place).collect();
    let stays = |one: &&BaselineLimit| one.network.is_some() || !taken.contains(&place(one));
    learned.limits.extend(base.limits.iter().filter(stays).cloned());
    learned.limits.sort_by_key(place);
    for spec in ALL.iter().filter(|spec| learned.limits.iter().all(|one| one.check != spec.name)) {
        let written = base.none.iter().find(|none| none.check == spec.name);
        let reason = written
            .map_or_else(|| "no limit was learned: too few numbers".to_owned(), |one| one.reason.clone());
        learned.none.push(NoLimit { check: spec.name, reason });
    }
    learned
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_have_three_digits_away_from_the_median() {
        for (value, down, wanted) in [
            (619.97, true, 619.0),
            (620.0, true, 620.0),
            (0.043_21, true, 0.0432),
            (14.21, false, 14.3),
            (9.0, false, 9.0),
        ] {
            assert_eq!(rounded(value, down), wanted, "{value}");
        }
    }
}
