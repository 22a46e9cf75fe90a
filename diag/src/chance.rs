//! How often a number must miss before chance is ruled out. A limit that no healthy number ever misses finds nothing: some
//! miss, and among the numbers of a thousand nodes one that misses twice is nothing rare. So the more numbers there are,
//! the more often the same one must miss, and the more often if those of others come and go.

use crate::look::Evidence;
use crate::measurement::Metric;

/// How many numbers of healthy parts miss by chance, at least, as a share: one in a hundred is far off where nobody
/// disturbs. More are reckoned with where more are seen.
const USUAL_SHARE: f64 = 0.01;

/// How many of those are off by more than half: the tail is long, but not as long as that.
const GROSS_SHARE: f64 = 0.1;

/// How often a healthy part may be blamed, in checks of a job: with a handful of checks once in some ten thousand jobs if
/// every number that can miss by chance did so as often as reckoned with.
const BLAMED_BY_CHANCE: f64 = 1e-5;

/// Misses that are more than any that can be made.
const TOO_MANY: usize = 64;

/// What a miss is worth as evidence, least first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Weight {
    /// Beyond the limit.
    Plain,
    /// Off by more than half of the limit.
    Gross,
    /// A wrong result, a closed port, a fault that the part showed of itself: no noise looks like that.
    Certain,
}

impl Weight {
    /// Of a number that misses.
    pub(crate) fn of(one: &Evidence) -> Self {
        if !scatters(one) || one.faults().next().is_some() {
            return Self::Certain;
        }
        let gross = one.limit.as_ref().is_some_and(|limit| {
            if one.metric.higher_is_better() {
                2.0 * one.value < limit.value
            } else {
                one.value > 2.0 * limit.value
            }
        });
        if gross { Self::Gross } else { Self::Plain }
    }
}

/// Whether it is a number that varies from one window to the next.
pub(crate) fn scatters(one: &Evidence) -> bool {
    !matches!(one.metric, Metric::Correct | Metric::Reachable | Metric::Fingerprint)
}

/// How often one of `numbers` must miss, where `share` of those of others are seen to come and go.
pub(crate) fn misses_to_blame(weight: Weight, numbers: usize, share: f64) -> usize {
    let share = share.max(USUAL_SHARE);
    let share = match weight {
        Weight::Plain => share,
        Weight::Gross => share * GROSS_SHARE,
        Weight::Certain => return 1,
    };
    let mut by_chance = f64::from(u32::try_from(numbers.max(1)).unwrap_or(u32::MAX));
    let mut misses = 0;
    while by_chance > BLAMED_BY_CHANCE && misses < TOO_MANY {
        by_chance *= share;
        misses += 1;
    }
    misses
}

/// How many of all numbers come and go, as a share, where so many were seen to: two standard deviations fewer, since one or
/// two among the few numbers of a small job say nothing.
pub(crate) fn share(seen: usize, all: usize) -> f64 {
    let number = |count: usize| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
    let at_least = number(seen) - 2.0 * number(seen).sqrt();
    if all == 0 { 0.0 } else { at_least.max(0.0) / number(all) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_more_numbers_the_more_misses() {
        let plain = |numbers, share| misses_to_blame(Weight::Plain, numbers, share);
        assert_eq!([1, 10, 1_000, 16_384].map(|numbers| plain(numbers, 0.0)), [3, 3, 4, 5]);
        assert_eq!([0.01, 0.05, 0.5].map(|share| plain(100, share)), [4, 6, 24]);
        assert_eq!(plain(100, 1.0), TOO_MANY, "where everything comes and goes nobody is blamed");
        assert_eq!([1, 64, 16_384].map(|numbers| misses_to_blame(Weight::Gross, numbers, 0.0)), [2, 3, 4]);
        assert_eq!(misses_to_blame(Weight::Certain, 16_384, 0.5), 1);
    }

    #[test]
    fn a_few_of_a_few_are_no_share() {
        assert_eq!([share(0, 0), share(1, 8), share(4, 12)], [0.0, 0.0, 0.0]);
        assert!((share(100, 1000) - 0.08).abs() < 1e-9);
    }
}
