//! What chance can do to the pairs of one check: how many numbers they have, and how often those come and go.

use std::collections::BTreeSet;

use crate::chance::{Weight, misses_to_blame, scatters, share};
use crate::facts::NodeId;
use crate::look::View;
use crate::seen::{Missed, Seen, Tally, ordered};
use crate::switches::Switches;

/// Looks that a link must have missed before it is at fault.
pub(crate) const LOOKS_AT_A_LINK: usize = 2;

/// How many numbers the checks of pairs have, and how often they come and go by themselves.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Odds {
    numbers: usize,
    share: f64,
}

impl Odds {
    pub(crate) fn of(
        (looks, seen): (&[View<'_>], &Tally<'_>),
        good: &BTreeSet<NodeId>,
        channels: usize,
        switches: &Switches<'_>,
    ) -> Self {
        let scattering = |look: &View<'_>| look.evidence.iter().filter(|one| scatters(one)).count();
        let numbers: usize = looks.iter().map(scattering).sum();
        // A pair that missed though both of its nodes are fine with others met a slow moment, or is a bad link: then it misses each
        // time, and says nothing of what comes and goes.
        let stays =
            |a, b| seen.between(a, b).is_some_and(|seen| seen.fine == 0 && seen.miss >= LOOKS_AT_A_LINK);
        let both_good = |look: &&View<'_>| match *look.group {
            [a, b] => {
                let good = good.contains(&a) && good.contains(&b);
                good && !stays(a, b) && !switches.may_explain(ordered(a, b))
            }
            _ => false,
        };
        let missed = looks.iter().filter(both_good).flat_map(View::misses);
        let passing = missed.filter(|one| scatters(one)).count();
        // Each pair's number speaks against either node.
        Self { numbers: 2 * numbers * channels, share: share(passing, numbers) }
    }

    /// The same for one pair or node that is looked at for a reason, not picked out of all.
    pub(crate) fn of_one(self) -> Self {
        Self { numbers: 1, ..self }
    }

    /// Whether so many misses of one number, each worth as much at least, are more than chance.
    pub(crate) fn exclude(self, weight: Weight, misses: usize) -> bool {
        misses >= misses_to_blame(weight, self.numbers, self.share)
    }

    /// Whether so many misses of the same numbers are more than chance.
    pub(crate) fn exclude_any(self, missed: &Missed, misses: usize) -> bool {
        missed.values().any(|weight| self.exclude(*weight, misses))
    }

    /// Whether so many misses of one pair that is looked at for a reason are more than chance.
    pub(crate) fn exclude_of_one(self, seen: &Seen<'_>, misses: usize) -> bool {
        self.of_one().exclude_any(&seen.always, misses)
    }
}
