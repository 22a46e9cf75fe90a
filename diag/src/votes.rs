//! Which of several like parts computes wrongly: all multiply the same matrices by the same algorithm, so their products
//! have the same bits, and one that differs from most of them is wrong.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::look::Evidence;
use crate::measurement::{Measurement, Metric};
use crate::verdict::Limit;

/// The fingerprints of a round, by what their details say is alike.
pub(crate) struct Votes<'m> {
    tallies: BTreeMap<&'m str, Tally>,
    limit: Arc<Limit>,
}

#[derive(Default)]
struct Tally {
    total: usize,
    by_bits: BTreeMap<u64, usize>,
    /// Said of those that have the bits of the majority, or where there is none, and of the others: the same for many.
    words: Option<(Arc<str>, Arc<str>)>,
}

impl Tally {
    /// What more than half of them, and more than one, have. Without such a majority nobody is known to be wrong: of
    /// two that differ each may be right.
    fn majority(&self) -> Option<(u64, usize)> {
        let most = self.by_bits.iter().max_by_key(|(_, count)| **count)?;
        (*most.1 > 1 && 2 * most.1 > self.total).then_some((*most.0, *most.1))
    }

    fn put_into_words(&mut self, model: &str) {
        let total = self.total;
        let (usual, odd) = match self.majority() {
            Some((_, most)) => (
                format!("its product has the same bits as on {most} of {total} of model {model}"),
                format!("its product has other bits than that of {most} others of model {model}"),
            ),
            None if total > 1 => (
                format!("the products of {total} of model {model} differ, and none of them has a majority"),
                String::new(),
            ),
            None => (alone(model), String::new()),
        };
        self.words = Some((usual.into(), odd.into()));
    }
}

fn alone(model: &str) -> String {
    format!("the only one of model {model}: nothing to compare the bits of its product with")
}

impl<'m> Votes<'m> {
    pub(crate) fn of(measurements: impl Iterator<Item = &'m Measurement>) -> Self {
        let mut tallies: BTreeMap<&str, Tally> = BTreeMap::new();
        for one in measurements.filter(|one| one.metric == Metric::Fingerprint) {
            let tally = tallies.entry(&one.detail).or_default();
            tally.total += 1;
            *tally.by_bits.entry(one.value.to_bits()).or_default() += 1;
        }
        tallies.iter_mut().for_each(|(model, tally)| tally.put_into_words(model));
        Self { tallies, limit: Arc::new(Limit { value: 1.0, source: "like parts compute alike".into() }) }
    }

    /// A fingerprint as a result that is right or wrong.
    pub(crate) fn verdict(&self, measurement: &Measurement) -> Evidence {
        let bits = measurement.value.to_bits();
        let tally = self.tallies.get(measurement.detail.as_str());
        let majority = tally.and_then(Tally::majority);
        let miss = majority.is_some_and(|(most, _)| most != bits);
        // Some of those without a majority compute wrongly; nobody knows which. One without a vote is known to.
        let tied =
            majority.is_none() && tally.is_some_and(|all| all.total > 1 && all.by_bits.contains_key(&bits));
        let words = tally.and_then(|tally| tally.words.as_ref());
        let detail = match words {
            Some((_, odd)) if miss => Arc::clone(odd),
            Some((usual, _)) => Arc::clone(usual),
            None => alone(&measurement.detail).into(),
        };
        Evidence {
            metric: Metric::Correct,
            bytes: None,
            subject: measurement.subject.clone(),
            value: if miss { 0.0 } else { 1.0 },
            limit: Some(Arc::clone(&self.limit)),
            median: None,
            miss,
            tied,
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
    use crate::measurement::Subject;

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
        measured.iter().map(|one| votes.verdict(one)).collect()
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
