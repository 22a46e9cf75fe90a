//! Baseline files: a site's own limits.

use diag::baseline::{Baselines, Conditions};
use diag::baseline_lint::lint;
use diag::check::ALL;
use diag::measurement::Metric;

use crate::holds;

/// What is read can be written and reads the same, and every limit is a number that something can be held against.
pub fn run(data: &[u8]) {
    let text = holds::text(data);
    let read = match Baselines::parse(&text) {
        Ok(read) => read,
        Err(error) => return holds::line(&error.to_string(), 8192),
    };
    for spec in ALL {
        for metric in [Metric::Busbw, Metric::Correct] {
            for at in [
                Conditions::default(),
                Conditions { gpus: Some(8), bytes: Some(1 << 20), ..Conditions::default() },
            ] {
                if let Some(limit) = read.limit_at(spec.name, metric, &at) {
                    assert!(limit.value.is_finite() && limit.value > 0.0);
                }
            }
        }
    }
    for odd in lint(&read) {
        holds::line(&odd.to_string(), 8192);
    }
    // Whole numbers of TOML have 63 bits.
    let Ok(written) = read.to_toml() else { return };
    assert_eq!(Baselines::parse(&written).unwrap(), read);
}
