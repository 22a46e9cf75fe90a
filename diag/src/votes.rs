//! Which of several like parts computes wrongly: all multiply the same matrices by the same algorithm, so their products
//! have the same bits, and one that differs from most of them is wrong.

use std::collections::BTreeMap;

use crate::judge::Evidence;
use crate::measurement::{Measurement, Metric, Subject};
use crate::verdict::Limit;

/// The fingerprints of a round, by what their details say is alike.
pub(crate) struct Votes<'m>(BTreeMap<&'m str, Tally>);

#[derive(Default)]
struct Tally {
    total: usize,
    by_bits: BTreeMap<u64, usize>,
}

impl Tally {
    /// What more than half of them, and more than one, have. Without such a majority nobody is known to be wrong: of
    /// two that differ each may be right.
    fn majority(&self) -> Option<(u64, usize)> {
        let most = self.by_bits.iter().max_by_key(|(_, count)| **count)?;
        (*most.1 > 1 && 2 * most.1 > self.total).then_some((*most.0, *most.1))
    }
}

impl<'m> Votes<'m> {
    pub(crate) fn of(measurements: impl Iterator<Item = &'m Measurement>) -> Self {
        let mut tallies: BTreeMap<&str, Tally> = BTreeMap::new();
        for one in measurements.filter(|one| one.metric == Metric::Fingerprint) {
            let tally = tallies.entry(&one.detail).or_default();
            tally.total += 1;
            *tally.by_bits.entry(one.value.to_bits()).or_default() += 1;
        }
        Self(tallies)
    }

    /// A fingerprint as a result that is right or wrong.
    pub(crate) fn verdict(&self, subject: Subject, measurement: &Measurement) -> Evidence {
        let tally = self.0.get(measurement.detail.as_str());
        let total = tally.map_or(0, |tally| tally.total);
        let majority = tally.and_then(Tally::majority);
        let miss = majority.is_some_and(|(bits, _)| bits != measurement.value.to_bits());
        // Some of those without a majority compute wrongly; nobody knows which. One without a vote is known to.
        let voted = tally.is_some_and(|tally| tally.by_bits.contains_key(&measurement.value.to_bits()));
        let tied = total > 1 && majority.is_none() && voted;
        let model = &measurement.detail;
        let detail = match majority {
            Some((_, most)) if miss => {
                format!("its product has other bits than that of {most} others of model {model}")
            }
            Some((_, most)) => {
                format!("its product has the same bits as on {most} of {total} of model {model}")
            }
            None if total > 1 => {
                format!("the products of {total} of model {model} differ, and none of them has a majority")
            }
            None => format!("the only one of model {model}: nothing to compare the bits of its product with"),
        };
        Evidence {
            metric: Metric::Correct,
            bytes: None,
            subject,
            value: if miss { 0.0 } else { 1.0 },
            limit: Some(Limit { value: 1.0, source: "like parts compute alike".into() }),
            median: None,
            miss,
            tied,
            samples: Vec::new(),
            detail,
            facts: Vec::new(),
            started_at: measurement.started_at,
            finished_at: measurement.finished_at,
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::check::CheckName;

    fn verdicts(products: &[(&str, f64)]) -> Vec<Evidence> {
        let measured: Vec<Measurement> = (0..)
            .zip(products)
            .map(|(index, (model, value))| Measurement {
                check: CheckName::GemmFlops,
                metric: Metric::Fingerprint,
                subject: Subject::Gpu { node: 0, index },
                peers: Vec::new(),
                value: *value,
                bytes: None,
                samples: Vec::new(),
                detail: (*model).to_owned(),
                facts: Vec::new(),
                started_at: Timestamp::UNIX_EPOCH,
                finished_at: Timestamp::UNIX_EPOCH,
            })
            .collect();
        let votes = Votes::of(measured.iter());
        measured.iter().map(|one| votes.verdict(one.subject.clone(), one)).collect()
    }

    fn those(products: &[(&str, f64)], are: fn(&Evidence) -> bool) -> Vec<u32> {
        (0..).zip(verdicts(products)).filter(|(_, verdict)| are(verdict)).map(|(index, _)| index).collect()
    }

    fn wrong(products: &[(&str, f64)]) -> Vec<u32> {
        those(products, |one| one.miss)
    }

    fn tied(products: &[(&str, f64)]) -> Vec<u32> {
        those(products, |one| one.tied)
    }

    #[test]
    fn the_one_that_differs_from_most_is_wrong() {
        for bad in 0..5_u32 {
            let products: Vec<(&str, f64)> =
                (0..5).map(|at| ("H", if at == bad { 8.0 } else { 7.0 })).collect();
            assert_eq!(wrong(&products), [bad]);
        }
    }

    #[test]
    fn models_are_not_compared_and_ties_blame_nobody() {
        assert!(wrong(&[("H", 7.0), ("H", 7.0), ("A", 8.0), ("A", 8.0)]).is_empty());
        assert!(wrong(&[("H", 7.0), ("H", 8.0)]).is_empty());
        assert!(wrong(&[("H", 7.0), ("H", 7.0), ("H", 8.0), ("H", 8.0)]).is_empty());
        assert!(wrong(&[("H", 7.0)]).is_empty());
        // Three that all differ: none is known to be right.
        assert!(wrong(&[("H", 7.0), ("H", 8.0), ("H", 9.0)]).is_empty());
        // But all of them are tied, and those of another model are not.
        assert_eq!(tied(&[("H", 7.0), ("H", 8.0), ("A", 8.0)]), [0, 1]);
        assert_eq!(tied(&[("H", 7.0), ("H", 7.0), ("H", 8.0), ("H", 8.0)]), [0, 1, 2, 3]);
        assert!(tied(&[("H", 7.0), ("H", 7.0), ("H", 8.0)]).is_empty());
        assert!(tied(&[("H", 7.0)]).is_empty() && tied(&[("H", 7.0), ("A", 8.0)]).is_empty());
    }
}
