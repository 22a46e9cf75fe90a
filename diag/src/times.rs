//! Where the seconds of a suite went: each check beside what the same work takes at the peak of the chip or its links, and
//! what was no measuring.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use jiff::Timestamp;

use crate::baseline_lint::Chip;
use crate::check::CheckName;
use crate::measurement::Metric;
use crate::plain::printable;
use crate::report::{Item, Report};

/// One check of a suite.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckTime {
    /// Its name.
    pub check: String,
    /// From the suite's start to its first reading, s.
    pub begins_s: f64,
    /// While readings of it were taken, s; readings side by side count once.
    pub measured_s: f64,
    /// The same work at the peak rate of the data sheet, s; `None` where no peak is known.
    pub at_peak_s: Option<f64>,
}

/// All of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Times {
    /// In the order in which they began.
    pub checks: Vec<CheckTime>,
    /// From the start of the leader's prolog to the verdict, s.
    pub total_s: f64,
    /// While any reading was taken, s.
    pub measured_s: f64,
}

/// What the items of one check say.
#[derive(Default)]
struct Readings {
    /// From and to, s after the suite's start.
    spans: Vec<(f64, f64)>,
    /// Of the peak rate, by the slowest.
    share: Option<f64>,
}

impl Times {
    /// Of a report. Times of items outside of the suite's own, as a clock that was set leaves them, are cut.
    #[must_use]
    pub fn of(report: &Report) -> Self {
        let span = |item: &Item| {
            let seconds = |at: Timestamp| at.duration_since(report.started_at).as_secs_f64();
            let (from, to) = (seconds(item.started_at?), seconds(item.finished_at?));
            let (from, to) = (from.clamp(0.0, report.seconds()), to.clamp(0.0, report.seconds()));
            (from < to).then_some((from, to))
        };
        let chip = report.hardware.as_ref().and_then(|on| Chip::of(on.gpu.as_deref()?));
        let mut of_checks: BTreeMap<&str, Readings> = BTreeMap::new();
        for item in &report.items {
            let Some(span) = span(item) else { continue };
            let Readings { spans, share } = of_checks.entry(&item.check).or_default();
            spans.push(span);
            // Of parts that worked side by side the slowest: the others waited for it.
            *share = match (*share, chip.and_then(|chip| share_of_peak(item, chip))) {
                (Some(one), Some(other)) => Some(one.min(other)),
                (one, other) => one.or(other),
            };
        }
        let all: Vec<(f64, f64)> = of_checks.values().flat_map(|of| of.spans.iter().copied()).collect();
        let mut checks: Vec<CheckTime> = of_checks
            .into_iter()
            .map(|(check, Readings { spans, share })| {
                let measured_s = covered(&spans);
                CheckTime {
                    check: check.to_owned(),
                    begins_s: spans.iter().map(|(from, _)| *from).fold(f64::INFINITY, f64::min),
                    measured_s,
                    at_peak_s: share.map(|share| share * measured_s),
                }
            })
            .collect();
        checks.sort_by(|one, other| one.begins_s.total_cmp(&other.begins_s));
        Self { checks, total_s: report.seconds(), measured_s: covered(&all) }
    }

    /// The share of the suite in which nothing was measured, 0 to 1: nodes that meet, libraries, contexts, communicators, the
    /// verdict. 0 for a suite without any time.
    #[must_use]
    pub fn share_beside(&self) -> f64 {
        if self.total_s > 0.0 { 1.0 - self.measured_s / self.total_s } else { 0.0 }
    }

    /// As a table.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!(
            "{:<22} {:>9} {:>11} {:>11} {:>7}\n",
            "check", "begins, s", "measured, s", "at peak, s", "gap, s"
        );
        for one in &self.checks {
            let seconds =
                |value: Option<f64>| value.map_or_else(|| "-".into(), |value| format!("{value:.2}"));
            let gap = one.at_peak_s.map(|floor| one.measured_s - floor);
            // Writing to a String can't fail.
            _ = writeln!(
                text,
                "{:<22} {:>9.2} {:>11.2} {:>11} {:>7}",
                printable(&one.check),
                one.begins_s,
                one.measured_s,
                seconds(one.at_peak_s),
                seconds(gap)
            );
        }
        _ = writeln!(
            text,
            "{:.2} s in all, {:.2} s of it measuring; the rest, {:.0} %: nodes that meet, libraries, contexts, communicators",
            self.total_s,
            self.measured_s,
            100.0 * self.share_beside()
        );
        text
    }
}

/// How near a rate is to the most that the chip or its links do, where that is known; links between nodes are not.
fn share_of_peak(item: &Item, chip: &Chip) -> Option<f64> {
    let rate = item.value.filter(|value| *value > 0.0)?;
    let peak = match (CheckName::parse(&item.check)?, item.metric?) {
        (CheckName::GemmFlops, Metric::Flops) => chip.bf16_tflop_per_s,
        (CheckName::GemmFlops, Metric::Fp8Flops) => chip.fp8_tflop_per_s?,
        (CheckName::AllReduce1, Metric::Busbw) => chip.nvlink_gb_per_s,
        _ => return None,
    };
    Some((rate / peak).min(1.0))
}

/// How long at least one of these spans lasts, s.
fn covered(spans: &[(f64, f64)]) -> f64 {
    let mut sorted = spans.to_vec();
    sorted.sort_by(|one, other| one.0.total_cmp(&other.0));
    let (mut sum, mut end) = (0.0, 0.0_f64);
    for (from, to) in sorted {
        sum += (to - from.max(end)).max(0.0);
        end = end.max(to);
    }
    sum
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn item(check: &str, metric: &str, value: f64, from: &str, to: &str) -> Value {
        json!({
            "phase": "DeviceCheck", "check": check, "subject": {"kind": "gpu", "node": "n1", "name": "n1/gpu0"},
            "peers": [], "status": "PASS", "metric": metric, "value": value, "unit": null, "limit": null,
            "limit_source": null, "median": null, "samples": [], "message": "",
            "started_at": format!("2026-01-01T00:00:{from}Z"), "finished_at": format!("2026-01-01T00:00:{to}Z"),
        })
    }

    fn report(items: &[Value]) -> Report {
        serde_json::from_value(json!({
            "schema": 1, "job_id": 1, "cluster": "c", "check_number": 1, "engine": "cuda",
            "hardware": {"gpu": "NVIDIA H200", "gpus": 2},
            "started_at": "2026-01-01T00:00:00Z", "finished_at": "2026-01-01T00:00:10Z",
            "outcome": "PASS", "summary": "", "action": "start", "nodes": ["n1"], "items": items,
            "drained": [], "errors": [],
        }))
        .unwrap()
    }

    #[test]
    fn readings_side_by_side_count_once_and_the_slowest_is_held_against_the_peak() {
        let times = Times::of(&report(&[
            item("all_reduce_1", "busbw", 225.0, "06", "08"),
            item("gemm_flops", "flops", 989.4, "01", "03"),
            item("gemm_flops", "flops", 494.7, "02", "05"),
        ]));
        let [gemm, reduce] = &times.checks[..] else { panic!("{times:?}") };
        assert_eq!((gemm.check.as_str(), gemm.begins_s, gemm.measured_s), ("gemm_flops", 1.0, 4.0));
        assert_eq!((gemm.at_peak_s, reduce.at_peak_s), (Some(2.0), Some(1.0)));
        assert_eq!((times.total_s, times.measured_s), (10.0, 6.0));
        assert!((times.share_beside() - 0.4).abs() < 1e-9);
        assert!(
            times.text().contains("10.00 s in all, 6.00 s of it measuring; the rest, 40 %"),
            "{}",
            times.text()
        );
    }

    #[test]
    fn what_has_no_peak_or_no_time_is_not_made_up() {
        let odd = item("all_reduce_2", "busbw", 40.0, "01", "02");
        let mut skipped = item("kernel_launch", "launch", 3.0, "01", "02");
        skipped["started_at"] = Value::Null;
        // A clock that was set: outside of the suite's own time.
        let before = item("network_connectivity", "connect", 1.0, "40", "50");
        let times = Times::of(&report(&[odd, skipped, before]));
        let names: Vec<&str> = times.checks.iter().map(|one| one.check.as_str()).collect();
        assert_eq!(names, ["all_reduce_2"]);
        assert_eq!(times.checks[0].at_peak_s, None);
        assert!((times.share_beside() - 0.9).abs() < 1e-9);
    }
}
