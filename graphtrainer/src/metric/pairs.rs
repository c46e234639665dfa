//! Metrics of pairs against the negatives of each.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use super::{Metric, auc};
use crate::exact;
use crate::ranking::gain;

/// Collects the scores of pairs and of their negatives.
///
/// A pair's rank among itself and its negatives is 1 plus the number of negatives with a higher
/// score, plus half the number of those with an equal score: the mean rank of ties. AUC and average
/// precision compare each pair with its first negative, and with the pairs that are known not to
/// exist; they need 16 bytes for each pair.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct PairEvaluation {
    num_pairs: u64,
    num_candidates: u64,
    #[serde(with = "exact")]
    reciprocal_sum: f64,
    hits: [u64; HITS.len()],
    #[serde(with = "exact")]
    gains: [f64; GAINS.len()],
    #[serde(with = "exact")]
    scores: Vec<(f32, bool)>,
}

/// The metrics that count pairs up to a rank.
const HITS: [(Metric, f64); 3] = [
    (Metric::Hits1, 1.0),
    (Metric::Hits10, 10.0),
    (Metric::Hits50, 50.0),
];

/// The metrics that sum the gains of pairs up to a rank. The best gain is 1, that of rank 1.
const GAINS: [(Metric, f64); 2] = [(Metric::Ndcg10, 10.0), (Metric::Ndcg50, 50.0)];

/// Returns the mean rank of a score among itself and other scores. A score that is not a number
/// ranks last.
pub(super) fn rank(score: f32, others: impl Iterator<Item = f32>) -> f64 {
    let (mut higher, mut equal) = (0_u64, 0_u64);
    for other in others {
        match other.partial_cmp(&score) {
            Some(Ordering::Less) => {}
            Some(Ordering::Equal) => equal += 1,
            Some(Ordering::Greater) | None => higher += 1,
        }
    }
    1.0 + higher as f64 + 0.5 * equal as f64
}

impl PairEvaluation {
    /// Adds a pair that exists, with its negatives.
    pub(super) fn add(&mut self, score: f32, negatives: &[f32]) {
        let rank = rank(score, negatives.iter().copied());
        self.num_pairs += 1;
        self.num_candidates += 1 + negatives.len() as u64;
        self.reciprocal_sum += 1.0 / rank;
        for (hits, (_, most)) in self.hits.iter_mut().zip(HITS) {
            *hits += u64::from(rank <= most);
        }
        for (gains, (_, most)) in self.gains.iter_mut().zip(GAINS) {
            if rank <= most {
                *gains += gain(rank);
            }
        }
        self.scores.push((score, true));
        self.scores
            .extend(negatives.first().map(|&negative| (negative, false)));
    }

    /// Adds an evaluation of other pairs.
    pub(super) fn append(&mut self, other: Self) {
        self.num_pairs += other.num_pairs;
        self.num_candidates += other.num_candidates;
        self.reciprocal_sum += other.reciprocal_sum;
        for (hits, more) in self.hits.iter_mut().zip(other.hits) {
            *hits += more;
        }
        for (gains, more) in self.gains.iter_mut().zip(other.gains) {
            *gains += more;
        }
        self.scores.extend(other.scores);
    }

    /// Adds a pair that is known not to exist.
    pub(super) fn add_absent(&mut self, score: f32) {
        self.scores.push((score, false));
    }

    /// Returns the mean number of candidates of a pair, itself included; none without pairs.
    pub(super) fn candidates(&self) -> Option<f64> {
        let num_pairs = self.num_pairs as f64;
        (self.num_pairs > 0).then(|| self.num_candidates as f64 / num_pairs)
    }

    pub(super) fn value(&mut self, metric: Metric) -> Option<f64> {
        let num_pairs = self.num_pairs as f64;
        match metric {
            Metric::Auc => auc(&mut self.scores),
            Metric::AveragePrecision => average_precision(&mut self.scores),
            _ if self.num_pairs == 0 => None,
            Metric::Mrr => Some(self.reciprocal_sum / num_pairs),
            _ => {
                let hits = HITS.iter().zip(self.hits);
                let hits = hits.map(|((known, _), hits)| (known, hits as f64));
                let gains = GAINS.iter().zip(self.gains);
                let mut sums = hits.chain(gains.map(|((known, _), gains)| (known, gains)));
                let (_, sum) = sums.find(|(known, _)| **known == metric)?;
                Some(sum / num_pairs)
            }
        }
    }
}

/// Computes the average precision: the mean, over positives, of the precision among all scores not
/// below the positive's, as in scikit-learn. `None` without positives or without negatives.
pub(super) fn average_precision(scores: &mut [(f32, bool)]) -> Option<f64> {
    scores.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
    let (mut positives, mut seen, mut sum) = (0_u64, 0_u64, 0.0);
    for ties in scores.chunk_by(|a, b| a.0 == b.0) {
        let more = ties.iter().filter(|(_, truth)| *truth).count() as u64;
        positives += more;
        seen += ties.len() as u64;
        sum += more as f64 * positives as f64 / seen as f64;
    }
    (positives > 0 && seen > positives).then(|| sum / positives as f64)
}

#[cfg(test)]
mod tests {
    use gnn::{Decoder, Dense, Scorer};

    use super::*;
    use crate::ranking::{Query, rank_all, report};

    /// Means of a few quotients.
    const TOLERANCE: f64 = 1e-12;

    /// Pairs with their negatives: whole numbers, so that some are equal. The ranks of the pairs are
    /// 1, 3, 2, 12.5 and 61.
    fn pairs() -> Vec<(f32, Vec<f32>)> {
        let some = |range: std::ops::Range<u16>| range.map(f32::from).collect::<Vec<f32>>();
        vec![
            (70.0, some(0..60)),
            (5.0, vec![4.0, 5.0, 9.0, 5.0, 1.0]),
            (1.0, vec![2.0]),
            (48.0, some(0..60)),
            (-1.0, some(0..60)),
        ]
    }

    fn evaluated() -> PairEvaluation {
        let mut evaluation = PairEvaluation::default();
        for (score, negatives) in pairs() {
            evaluation.add(score, &negatives);
        }
        evaluation
    }

    #[test]
    fn metrics_of_ranks_are_those_of_the_formulas() {
        let gain = |rank: f64| 1.0 / (1.0 + rank).log2();
        let within_10 = gain(1.0) + gain(3.0) + gain(2.0);
        for (metric, wanted) in [
            (Metric::Mrr, 1.0 + 1.0 / 3.0 + 0.5 + 1.0 / 12.5 + 1.0 / 61.0),
            (Metric::Hits1, 1.0),
            (Metric::Hits10, 3.0),
            (Metric::Hits50, 4.0),
            (Metric::Ndcg10, within_10),
            (Metric::Ndcg50, within_10 + gain(12.5)),
        ] {
            let found = evaluated().value(metric).unwrap();
            let is_close = (found - wanted / 5.0).abs() < TOLERANCE;
            assert!(is_close, "{}: {found}, not {}", metric.name(), wanted / 5.0);
        }
        assert_eq!(PairEvaluation::default().value(Metric::Ndcg10), None);
    }

    /// `[score]` ranks the pairs of a query. With one pair in each query it has the same metrics, and
    /// recall is the share of hits.
    #[test]
    fn metrics_are_those_of_queries_with_one_pair() {
        let scorer = Scorer::new(Decoder::Dot, 1, Vec::new());
        let (mut hits, mut recall, mut ndcg) = (0.0, 0.0, 0.0);
        for (score, negatives) in pairs() {
            let column = |values: Vec<f32>| Dense {
                rows: values.len(),
                cols: 1,
                values,
            };
            let items = column([vec![score], negatives].concat());
            let query = Query {
                row: 0,
                wanted: vec![0],
                known: Vec::new(),
            };
            let queries = [query];
            let ranks = rank_all(&scorer, &column(vec![1.0]), &items, &queries);
            let at = &report(&queries, &ranks, items.rows, &[10]).at[0];
            (hits, recall, ndcg) = (hits + at.hits, recall + at.recall, ndcg + at.ndcg);
        }
        for (metric, wanted) in [
            (Metric::Hits10, hits),
            (Metric::Hits10, recall),
            (Metric::Ndcg10, ndcg),
        ] {
            let found = evaluated().value(metric).unwrap();
            assert!(
                (found - wanted / 5.0).abs() < TOLERANCE,
                "{}",
                metric.name()
            );
        }
    }
}
