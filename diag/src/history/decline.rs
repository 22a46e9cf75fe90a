//! Whether a part does less than it once did. The rule looks at one series; it names, and drains nobody.

use jiff::{SignedDuration, Timestamp};

use super::{Entry, FIRST};
use crate::baseline::{deviation, median};
use crate::measurement::Metric;
use crate::wording;

/// Fewest earlier jobs that a part is held against: of fewer the spread is not known.
pub const LEAST: usize = 10;

/// Over how many of the last jobs, the one at hand among them, a decline must hold, and by how many scaled deviations (MAD)
/// of the earlier jobs each of them must show it. The first finds soon what a part lost that scatters by less than 2 %; the
/// second takes two jobs more for one that scatters as much as the least that counts. A deviation of ten jobs is off by a third, and
/// three slow jobs in a row are no rarity in a large cluster: hence three deviations there (`diag/tests/rules/history.rs` has the
/// numbers).
const RUNS: [(usize, f64); 2] = [(3, 3.0), (5, 1.5)];

/// The shortest of them.
pub const RECENT: usize = RUNS[0].0;

/// The earlier jobs must have begun so long ago: what differs within a day is the room's heat and its load.
const LEAST_AGE: SignedDuration = SignedDuration::from_hours(24);

/// The least that counts: 5 % less, four times what like GPUs scatter from job to job.
const SHARE: f64 = 0.05;

/// The same for times of launches, which follow the host's clocks and settings more than the GPU's.
const TIME_SHARE: f64 = 0.25;

/// A part that does less than it did.
#[derive(Debug, Clone, PartialEq)]
pub struct Decline {
    /// Median of the earlier jobs.
    pub earlier: f64,
    /// How many those were.
    pub jobs: usize,
    /// Median of the recent jobs.
    pub now: f64,
    /// How many those are.
    pub recent: usize,
    /// How much worse that is, as a share of the earlier median.
    pub share: f64,
    /// When the first job of those that show it was measured.
    pub since: Timestamp,
    /// That job.
    pub since_job: u32,
    /// What was changed between the earlier jobs and now: that explains it, and no part declines.
    pub changed: Vec<String>,
    /// The other node, where it was the same one in all jobs that show it: it may be the one.
    pub always_with: Option<String>,
}

/// Whether the number at hand and the last ones before it show a decline of what `series` shows of earlier jobs.
/// `series` is in the order of time, and all of one key.
#[must_use]
pub fn decline(metric: Metric, series: &[Entry], now: &Entry) -> Option<Decline> {
    // What seems to be later was noted by a clock that has been set back since.
    let series = &series[..series.partition_point(|one| one.at <= now.at)];
    RUNS.iter().find_map(|run| over(*run, metric, series, now))
}

/// The same by one rule: so many jobs, so many deviations.
fn over((jobs, mads): (usize, f64), metric: Metric, series: &[Entry], now: &Entry) -> Option<Decline> {
    let (before, recent) = series.split_at((series.len() + 1).checked_sub(jobs)?);
    // Those of the same setting if there are enough of them; else the others, and then the change explains it.
    let alike: Vec<&Entry> = before.iter().filter(|one| one.setting.is_like(&now.setting)).collect();
    let before = if alike.len() >= LEAST { alike } else { before.iter().collect() };
    let before = &before[..before.len().min(FIRST)];
    let first = before.first()?;
    if before.len() < LEAST || now.at.duration_since(first.at) < LEAST_AGE {
        return None;
    }
    let values: Vec<f64> = before.iter().map(|one| one.value).collect();
    let earlier = median(&values)?;
    let share = if metric.is_rate() { SHARE } else { TIME_SHARE };
    let gap = (share * earlier).max(mads * deviation(&values, earlier)?);
    let lost =
        |one: &Entry| if metric.higher_is_better() { earlier - one.value } else { one.value - earlier };
    let recent: Vec<&Entry> = recent.iter().chain([now]).collect();
    if recent.iter().any(|one| lost(one) < gap) {
        return None;
    }
    let level = median(&recent.iter().map(|one| one.value).collect::<Vec<_>>())?;
    // It began with the first of those without a good one after it.
    let half = |one: &&Entry| lost(one) >= gap / 2.0;
    let tail: Vec<&Entry> = series.iter().chain([now]).rev().take_while(half).collect();
    let since = tail.last()?;
    let with = now.with.as_ref().filter(|with| recent.iter().all(|one| one.with.as_ref() == Some(with)));
    let changes = before.iter().rev().map(|one| one.setting.changes(&now.setting));
    Some(Decline {
        earlier,
        jobs: before.len(),
        now: level,
        recent: jobs,
        share: (level - earlier).abs() / earlier,
        since: since.at,
        since_job: since.job_id,
        changed: changes.into_iter().find(|changes| !changes.is_empty()).unwrap_or_default(),
        always_with: with.cloned(),
    })
}

impl Decline {
    /// One line for a person; `name` is the part's, `check` the check's with what tells its numbers apart.
    #[must_use]
    pub fn words(&self, name: &str, check: &str, metric: Metric) -> String {
        let quantity = |value: f64| wording::quantity(metric, value);
        let percent = wording::number((self.share * 1000.0).round() / 10.0);
        let worse = if metric.higher_is_better() { "less" } else { "more" };
        let since = self.since.strftime("%Y-%m-%d");
        let numbers = format!(
            "{} in the last {} jobs, {} in {} earlier ones, {percent} % {worse} since {since} (job {})",
            quantity(self.now),
            self.recent,
            quantity(self.earlier),
            self.jobs,
            self.since_job
        );
        if !self.changed.is_empty() {
            let changed = self.changed.join(", ");
            return format!(
                "{name}: {check} is not what it was: {numbers}; in between changed: {changed}, which may be the reason"
            );
        }
        let advice = match &self.always_with {
            Some(other) => format!("always measured with {other}: either of the two"),
            None => "no reason to drain it yet; look at its heat, clocks and links".to_owned(),
        };
        format!("{name}: {check} is declining: {numbers}; {advice}")
    }
}
