//! Metrics of predictions against labels, summed in f64 in a fixed order.

use std::collections::BTreeMap;

use gnn::{Dense, Labels, Pairs, Scorer, Task};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

mod pairs;

use crate::exact;
use crate::ranking::{Query, Ranks, report};
use pairs::PairEvaluation;

/// A metric: training monitors one to choose its best epoch, and reports list all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Share of targets whose predicted class is correct. Classes only.
    Accuracy,
    /// F1 of all decisions pooled. For single-label classes it equals the accuracy.
    MicroF1,
    /// Mean of the F1 of each class or label. As in scikit-learn, a class counts if it occurs among
    /// the labels or the predictions, and without true positives its F1 is 0.
    MacroF1,
    /// Area under the ROC curve: of two classes, or the mean over the labels of a multi-label task
    /// that have both positives and negatives.
    Auc,
    /// Mean loss per target.
    Loss,
    /// Coefficient of determination. Regression only.
    R2,
    /// Mean absolute error. Regression only.
    Mae,
    /// Root of the mean squared error. Regression only.
    Rmse,
    /// Mean of the reciprocal rank of a pair among itself and its negatives. Links only, as the
    /// next ones.
    Mrr,
    /// Share of the pairs that rank first.
    #[serde(rename = "hits@1")]
    Hits1,
    /// Share of the pairs with rank 10 or better.
    #[serde(rename = "hits@10")]
    Hits10,
    /// Share of the pairs with rank 50 or better.
    #[serde(rename = "hits@50")]
    Hits50,
    /// Mean over pairs of the precision among all scores not below the pair's.
    AveragePrecision,
    /// Mean over pairs of the discounted gain `1 / log2(1 + rank)`, 0 beyond rank 10.
    #[serde(rename = "ndcg@10")]
    Ndcg10,
    /// As [`Metric::Ndcg10`], 0 beyond rank 50.
    #[serde(rename = "ndcg@50")]
    Ndcg50,
    /// Mean over queries of the share of their pairs among the best 20 nodes. Only where pairs are
    /// ranked among all nodes.
    #[serde(rename = "recall@20")]
    Recall20,
    /// Mean over queries of the normalised discounted gain of the best 20 nodes. Only where pairs
    /// are ranked among all nodes.
    #[serde(rename = "ndcg@20")]
    Ndcg20,
}

/// The cutoff of [`Metric::Recall20`] and [`Metric::Ndcg20`].
const RANKED_CUTOFF: u32 = 20;

impl Metric {
    /// Returns the name used in job files, reports and `model.json`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Accuracy => "accuracy",
            Self::MicroF1 => "micro_f1",
            Self::MacroF1 => "macro_f1",
            Self::Auc => "auc",
            Self::Loss => "loss",
            Self::R2 => "r2",
            Self::Mae => "mae",
            Self::Rmse => "rmse",
            Self::Mrr => "mrr",
            Self::Hits1 => "hits@1",
            Self::Hits10 => "hits@10",
            Self::Hits50 => "hits@50",
            Self::AveragePrecision => "average_precision",
            Self::Ndcg10 => "ndcg@10",
            Self::Ndcg50 => "ndcg@50",
            Self::Recall20 => "recall@20",
            Self::Ndcg20 => "ndcg@20",
        }
    }

    /// Tells whether a larger value is better.
    pub fn is_gain(self) -> bool {
        !matches!(self, Self::Loss | Self::Mae | Self::Rmse)
    }

    /// Says why a split with targets can have no value of the metric.
    pub(crate) fn why_undefined(self) -> &'static str {
        match self {
            Self::Auc | Self::AveragePrecision => "it has no positives, or no negatives",
            Self::Mrr
            | Self::Hits1
            | Self::Hits10
            | Self::Hits50
            | Self::Ndcg10
            | Self::Ndcg50
            | Self::Recall20
            | Self::Ndcg20 => "none of its pairs is a link",
            Self::R2 => "all of its labels are equal",
            _ => "it has no targets",
        }
    }

    /// Returns the metrics that are defined for `task` with `out_dim` outputs; the first is the
    /// default of `train.monitor`.
    pub fn of_task(task: Task, out_dim: usize) -> &'static [Self] {
        match task {
            Task::Classes if out_dim == 2 => &[
                Self::Accuracy,
                Self::MicroF1,
                Self::MacroF1,
                Self::Auc,
                Self::Loss,
            ],
            Task::Classes => &[Self::Accuracy, Self::MicroF1, Self::MacroF1, Self::Loss],
            Task::MultiLabel => &[Self::MicroF1, Self::MacroF1, Self::Auc, Self::Loss],
            Task::Regression => &[Self::Loss, Self::R2, Self::Mae, Self::Rmse],
            Task::Links(_) => &[
                Self::Mrr,
                Self::Hits1,
                Self::Hits10,
                Self::Hits50,
                Self::Ndcg10,
                Self::Ndcg50,
                Self::Auc,
                Self::AveragePrecision,
                Self::Loss,
            ],
        }
    }

    /// The metrics of pairs that are ranked among all nodes.
    pub const OF_RANKING: [Self; 2] = [Self::Recall20, Self::Ndcg20];
}

/// Values of every metric that is defined, by [`Metric::name`].
pub type Metrics = BTreeMap<String, f64>;

/// Collects predictions batch by batch and computes the metrics over all of them.
///
/// Accuracy and F1 need counts only. AUC needs every score: 8 bytes per target for two classes,
/// `8 * out_dim` per target for a multi-label task.
#[derive(Debug, Serialize, Deserialize)]
pub struct Evaluation {
    task: Task,
    out_dim: usize,
    num_targets: u64,
    #[serde(with = "exact")]
    loss_sum: f64,
    true_positive: Vec<u64>,
    false_positive: Vec<u64>,
    false_negative: Vec<u64>,
    /// Targets by class and predicted class, if asked for.
    #[serde(with = "entries")]
    confusion: Option<BTreeMap<(usize, usize), u64>>,
    /// Scores and truths by output, for AUC.
    #[serde(with = "exact")]
    scores: Vec<Vec<(f32, bool)>>,
    /// Sums of label, label^2, |error| and error^2.
    #[serde(with = "exact")]
    regression: [f64; 4],
    num_values: u64,
    pairs: PairEvaluation,
    ranked: RankSums,
}

/// Sums over the queries that were ranked among all nodes.
#[derive(Debug, Default, Serialize, Deserialize)]
struct RankSums {
    num_queries: u64,
    #[serde(with = "exact")]
    recall: f64,
    #[serde(with = "exact")]
    ndcg: f64,
}

/// A map whose keys are no strings, as JSON: a list of its entries.
mod entries {
    use std::collections::BTreeMap;

    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    type Map = Option<BTreeMap<(usize, usize), u64>>;

    pub(super) fn serialize<S: Serializer>(map: &Map, to: S) -> Result<S::Ok, S::Error> {
        let entries = map.as_ref().map(|map| map.iter().collect::<Vec<_>>());
        entries.serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Map, D::Error> {
        let entries = Option::<Vec<((usize, usize), u64)>>::deserialize(from)?;
        Ok(entries.map(|entries| entries.into_iter().collect()))
    }
}

impl Evaluation {
    /// Creates an empty evaluation of a task with `out_dim` outputs.
    pub fn new(task: Task, out_dim: usize) -> Self {
        let num_scores = match task {
            Task::Classes if out_dim == 2 => 1,
            Task::MultiLabel => out_dim,
            Task::Classes | Task::Regression | Task::Links(_) => 0,
        };
        Self {
            task,
            out_dim,
            num_targets: 0,
            loss_sum: 0.0,
            true_positive: vec![0; out_dim],
            false_positive: vec![0; out_dim],
            false_negative: vec![0; out_dim],
            confusion: None,
            scores: vec![Vec::new(); num_scores],
            regression: [0.0; 4],
            num_values: 0,
            pairs: PairEvaluation::default(),
            ranked: RankSums::default(),
        }
    }

    /// Also counts the pairs of class and predicted class.
    #[must_use]
    pub fn with_confusion(mut self) -> Self {
        self.confusion = Some(BTreeMap::new());
        self
    }

    /// Adds an evaluation of other targets. Sums depend on the order in which evaluations are added.
    pub(crate) fn append(&mut self, other: Self) {
        self.num_targets += other.num_targets;
        self.loss_sum += other.loss_sum;
        for (counts, more) in [
            (&mut self.true_positive, other.true_positive),
            (&mut self.false_positive, other.false_positive),
            (&mut self.false_negative, other.false_negative),
        ] {
            counts.iter_mut().zip(more).for_each(|(sum, n)| *sum += n);
        }
        if let (Some(confusion), Some(more)) = (&mut self.confusion, other.confusion) {
            for (pair, count) in more {
                *confusion.entry(pair).or_default() += count;
            }
        }
        for (scores, more) in self.scores.iter_mut().zip(other.scores) {
            scores.extend(more);
        }
        for (sum, more) in self.regression.iter_mut().zip(other.regression) {
            *sum += more;
        }
        self.num_values += other.num_values;
        self.pairs.append(other.pairs);
        self.ranked.num_queries += other.ranked.num_queries;
        self.ranked.recall += other.ranked.recall;
        self.ranked.ndcg += other.ranked.ndcg;
    }

    /// Adds the predictions of one batch.
    ///
    /// # Shapes
    ///
    /// - `logits`: `[>= num_targets, out_dim]`; rows after the labels are not targets
    ///
    /// # Panics
    ///
    /// If `labels` are of another kind than the task.
    pub fn add(&mut self, logits: &Dense, labels: &Labels, loss_sum: f64) {
        self.loss_sum += loss_sum;
        match (self.task, labels) {
            (Task::Classes, Labels::Classes(classes)) => self.add_classes(logits, classes),
            (Task::MultiLabel, Labels::MultiLabel(truth)) => self.add_multi(logits, truth),
            (Task::Regression, Labels::Regression(truth)) => self.add_numbers(logits, truth),
            _ => panic!("labels were checked against the task when the data set was opened"),
        }
    }

    /// Adds the pairs of one batch. `embeddings` has the rows of the batch.
    ///
    /// # Panics
    ///
    /// If the pairs name rows that there are not.
    pub fn add_pairs(&mut self, scorer: &Scorer, embeddings: &Dense, pairs: &Pairs, loss_sum: f64) {
        self.loss_sum += loss_sum;
        self.num_targets += pairs.len() as u64;
        let (src, dst) = (scorer.src_rows(embeddings), scorer.dst_rows(embeddings));
        let scores = |pair: usize| {
            let own = std::iter::once(pairs.dst[pair]);
            let negatives = pairs.own_negatives(pair).iter().copied();
            let rows = own.chain(negatives.filter(|&row| !pairs.is_hit(pair, row)));
            let src = src.row(pairs.src[pair] as usize);
            rows.map(|row| scorer.join(src, dst.row(row as usize)))
                .collect()
        };
        let scores: Vec<Vec<f32>> = (0..pairs.len()).into_par_iter().map(scores).collect();
        for (pair, of_pair) in scores.iter().enumerate() {
            match pairs.exists(pair) {
                true => self.pairs.add(of_pair[0], &of_pair[1..]),
                false => self.pairs.add_absent(of_pair[0]),
            }
        }
    }

    /// Adds queries that were ranked among `num_items` nodes.
    pub(crate) fn add_ranks(&mut self, queries: &[Query], ranks: &[Ranks], num_items: usize) {
        let means = report(queries, ranks, num_items, &[RANKED_CUTOFF]);
        let num_queries = means.num_queries as f64;
        self.ranked.num_queries += means.num_queries;
        self.ranked.recall += num_queries * means.at[0].recall;
        self.ranked.ndcg += num_queries * means.at[0].ndcg;
    }

    /// Returns the mean number of candidates that a pair was ranked among; none without pairs.
    pub fn candidates(&self) -> Option<f64> {
        self.pairs.candidates()
    }

    fn add_classes(&mut self, logits: &Dense, classes: &[u32]) {
        self.num_targets += classes.len() as u64;
        for (row, &class) in logits.values.chunks_exact(self.out_dim).zip(classes) {
            let truth = class as usize;
            let predicted = argmax(row);
            if let Some(confusion) = &mut self.confusion {
                *confusion.entry((truth, predicted)).or_default() += 1;
            }
            if predicted == truth {
                self.true_positive[truth] += 1;
            } else {
                self.false_positive[predicted] += 1;
                self.false_negative[truth] += 1;
            }
            if let Some(scores) = self.scores.first_mut() {
                scores.push((row[1] - row[0], truth == 1));
            }
        }
    }

    fn add_multi(&mut self, logits: &Dense, labels: &Dense) {
        self.num_targets += labels.rows as u64;
        let rows = logits.values.chunks_exact(self.out_dim);
        for (row, truths) in rows.zip(labels.values.chunks_exact(self.out_dim)) {
            for (label, (&score, &truth)) in row.iter().zip(truths).enumerate() {
                let truth = truth > 0.5;
                match (score > 0.0, truth) {
                    (true, true) => self.true_positive[label] += 1,
                    (true, false) => self.false_positive[label] += 1,
                    (false, true) => self.false_negative[label] += 1,
                    (false, false) => {}
                }
                self.scores[label].push((score, truth));
            }
        }
    }

    fn add_numbers(&mut self, logits: &Dense, labels: &Dense) {
        self.num_targets += labels.rows as u64;
        self.num_values += labels.values.len() as u64;
        for (&predicted, &label) in logits.values.iter().zip(&labels.values) {
            let label = f64::from(label);
            let error = f64::from(predicted) - label;
            let terms = [label, label * label, error.abs(), error * error];
            for (sum, term) in self.regression.iter_mut().zip(terms) {
                *sum += term;
            }
        }
    }

    /// Returns the number of targets added.
    pub(crate) fn num_targets(&self) -> u64 {
        self.num_targets
    }

    /// Returns true positives, false positives and false negatives of each label.
    pub(crate) fn counts(&self) -> impl Iterator<Item = [u64; 3]> {
        let of = |label| {
            [
                &self.true_positive,
                &self.false_positive,
                &self.false_negative,
            ]
            .map(|counts| counts[label])
        };
        (0..self.out_dim).map(of)
    }

    /// Returns how many targets have each pair of class and predicted class, if counted.
    pub(crate) fn confusion(&self) -> Option<&BTreeMap<(usize, usize), u64>> {
        self.confusion.as_ref()
    }

    /// Computes every metric of the task that is defined on the added targets: none without
    /// targets, no AUC if all labels are equal.
    pub fn finish(mut self) -> Metrics {
        if self.num_targets == 0 {
            return Metrics::new();
        }
        let all = Metric::of_task(self.task, self.out_dim).iter();
        all.chain(&Metric::OF_RANKING)
            .filter_map(|&metric| Some((metric.name().to_owned(), self.value(metric)?)))
            .collect()
    }

    fn value(&mut self, metric: Metric) -> Option<f64> {
        let ranked = |sum: f64| sum / self.ranked.num_queries as f64;
        match metric {
            Metric::Recall20 | Metric::Ndcg20 if self.ranked.num_queries == 0 => return None,
            Metric::Recall20 => return Some(ranked(self.ranked.recall)),
            Metric::Ndcg20 => return Some(ranked(self.ranked.ndcg)),
            _ => {}
        }
        if matches!(self.task, Task::Links(_)) && metric != Metric::Loss {
            return self.pairs.value(metric);
        }
        let [label, label_square, error, error_square] = self.regression;
        let num_targets = self.num_targets as f64;
        let num_values = self.num_values as f64;
        Some(match metric {
            Metric::Accuracy => self.true_positive.iter().sum::<u64>() as f64 / num_targets,
            Metric::MicroF1 => f1(
                self.true_positive.iter().sum(),
                self.false_positive.iter().sum(),
                self.false_negative.iter().sum(),
            )
            .unwrap_or(0.0),
            Metric::MacroF1 => self.macro_f1(),
            Metric::Auc => return mean(self.scores.iter_mut().filter_map(|scores| auc(scores))),
            Metric::Loss => self.loss_sum / num_targets,
            Metric::R2 => {
                let spread = label_square - label * label / num_values;
                match (error_square, spread) {
                    (0.0, _) => 1.0,
                    (_, spread) if spread <= 0.0 => 0.0,
                    (errors, spread) => 1.0 - errors / spread,
                }
            }
            Metric::Mae => error / num_values,
            Metric::Rmse => (error_square / num_values).sqrt(),
            Metric::Mrr
            | Metric::Hits1
            | Metric::Hits10
            | Metric::Hits50
            | Metric::Ndcg10
            | Metric::Ndcg50
            | Metric::AveragePrecision
            | Metric::Recall20
            | Metric::Ndcg20 => return None,
        })
    }

    fn macro_f1(&self) -> f64 {
        let by_class = (0..self.out_dim).filter_map(|class| {
            let value = f1(
                self.true_positive[class],
                self.false_positive[class],
                self.false_negative[class],
            );
            // In a multi-label task, a label that is neither present nor predicted still counts,
            // with 0.
            match self.task {
                Task::MultiLabel => Some(value.unwrap_or(0.0)),
                Task::Classes | Task::Regression | Task::Links(_) => value,
            }
        });
        mean(by_class).unwrap_or(0.0)
    }
}

/// Returns the position of the largest value, the first of equal ones.
fn argmax(row: &[f32]) -> usize {
    let mut best = 0;
    for (idx, value) in row.iter().enumerate() {
        if *value > row[best] {
            best = idx;
        }
    }
    best
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0_u64), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / count as f64)
}

pub(crate) fn f1(true_positive: u64, false_positive: u64, false_negative: u64) -> Option<f64> {
    let denominator = 2 * true_positive + false_positive + false_negative;
    (denominator > 0).then(|| 2.0 * true_positive as f64 / denominator as f64)
}

/// Computes the area under the ROC curve: the chance that a positive scores above a negative, where
/// a tie counts half. `None` without positives or without negatives.
fn auc(scores: &mut [(f32, bool)]) -> Option<f64> {
    scores.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let (mut wins, mut negatives_below) = (0.0, 0_u64);
    // -0.0 and 0.0 are one score, so ties are found by `==`, not by the order's equality.
    for ties in scores.chunk_by(|a, b| a.0 == b.0) {
        let positives = ties.iter().filter(|(_, truth)| *truth).count() as u64;
        let negatives = ties.len() as u64 - positives;
        wins += positives as f64 * (negatives_below as f64 + 0.5 * negatives as f64);
        negatives_below += negatives;
    }
    let positives = scores.len() as u64 - negatives_below;
    (positives > 0 && negatives_below > 0)
        .then(|| wins / (positives as f64 * negatives_below as f64))
}

#[cfg(test)]
mod tests;
