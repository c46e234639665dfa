//! Metrics of pairs against the negatives of each.

use std::cmp::Ordering;

use super::{Metric, auc};

/// Collects the scores of pairs and of their negatives.
///
/// A pair's rank among itself and its negatives is 1 plus the number of negatives with a higher
/// score, plus half the number of those with an equal score: the mean rank of ties. AUC and average
/// precision compare each pair with its first negative, and with the pairs that are known not to
/// exist; they need 16 bytes for each pair.
#[derive(Debug, Default)]
pub(super) struct PairEvaluation {
    num_pairs: u64,
    num_candidates: u64,
    reciprocal_sum: f64,
    hits: [u64; HITS.len()],
    scores: Vec<(f32, bool)>,
}

/// The metrics that count pairs up to a rank.
const HITS: [(Metric, f64); 3] = [
    (Metric::Hits1, 1.0),
    (Metric::Hits10, 10.0),
    (Metric::Hits50, 50.0),
];

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
        self.scores.push((score, true));
        self.scores
            .extend(negatives.first().map(|&negative| (negative, false)));
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
                let at = HITS.iter().position(|(known, _)| *known == metric)?;
                Some(self.hits[at] as f64 / num_pairs)
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
