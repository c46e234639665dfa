//! Scores of a model label by label: the content of `evaluation.json`.

use std::collections::BTreeMap;
use std::path::Path;

use schemas::{GraphMeta, LabelKind};
use serde::{Deserialize, Serialize};

use crate::TrainError;
use crate::metric::{Evaluation, Metrics, f1};

/// File name of the scores, beside the model.
pub const EVALUATION_JSON: &str = "evaluation.json";

/// Largest number of labels with a confusion matrix, which then has at most 8 MB of digits.
const CONFUSION_LABELS_MAX: usize = 1024;

/// The scores of the best epoch of a training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvaluationFile {
    /// 1-based.
    pub best_epoch: u64,
    /// The scores of `train`, `val` and `test`, without empty splits.
    pub splits: BTreeMap<String, SplitScores>,
}

/// The scores of a model on a split.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SplitScores {
    /// Number of targets of the split.
    pub num_targets: u64,
    /// Every metric that is a finite number.
    pub metrics: Metrics,
    /// With pairs: mean number of nodes that a pair's dst node was ranked among, itself included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub candidates: Option<f64>,
    /// The labels that occur among targets or predictions, ascending; empty for numbers.
    pub labels: Vec<LabelScores>,
    /// For classes: how many targets have the class of the row and the predicted class of the
    /// column, both in the order of `labels`. None with more than 1024 labels.
    pub confusion: Option<Vec<Vec<u64>>>,
}

/// The scores of a model for one class, or for one of several labels.
///
/// As in scikit-learn, a quotient whose divisor is 0 is 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LabelScores {
    /// Number of the class, or position of the label in its list.
    pub label: usize,
    /// Its name, if labels are names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Share of correct ones among the targets predicted to have the label.
    pub precision: f64,
    /// Share of predicted ones among the targets that have the label.
    pub recall: f64,
    /// Harmonic mean of precision and recall.
    pub f1: f64,
    /// Number of targets that have the label.
    pub support: u64,
    /// Number of targets predicted to have the label.
    pub predicted: u64,
}

impl EvaluationFile {
    /// Reads the scores of a model; none if an older program wrote the model.
    ///
    /// # Errors
    ///
    /// If the file cannot be read or parsed.
    pub fn read(dir: &Path) -> Result<Option<Self>, TrainError> {
        let path = dir.join(EVALUATION_JSON);
        let Some(bytes) = schemas::storage::read(&path)? else {
            return Ok(None);
        };
        let file = serde_json::from_slice(&bytes);
        file.map(Some).map_err(|source| TrainError::Json {
            what: "evaluation",
            source,
        })
    }
}

impl SplitScores {
    /// Makes the scores, without metrics, of an evaluation that counted confusions.
    pub(crate) fn of(evaluation: &Evaluation, names: &[String]) -> Self {
        let share = |part: u64, whole: u64| match whole {
            0 => 0.0,
            _ => part as f64 / whole as f64,
        };
        let counts = evaluation.counts().enumerate();
        let labels: Vec<LabelScores> = counts
            .filter(|(_, counts)| counts.iter().any(|&count| count > 0))
            .map(|(label, [right, wrong, missed])| LabelScores {
                label,
                name: names.get(label).cloned(),
                precision: share(right, right + wrong),
                recall: share(right, right + missed),
                f1: f1(right, wrong, missed).unwrap_or(0.0),
                support: right + missed,
                predicted: right + wrong,
            })
            .collect();
        let pairs = evaluation
            .confusion()
            .filter(|pairs| !pairs.is_empty() && labels.len() <= CONFUSION_LABELS_MAX);
        let confusion = pairs.map(|pairs| {
            let count = |row: &LabelScores, col: &LabelScores| pairs.get(&(row.label, col.label));
            let row = |row| {
                labels
                    .iter()
                    .map(move |col| count(row, col).copied().unwrap_or(0))
            };
            labels.iter().map(|label| row(label).collect()).collect()
        });
        Self {
            num_targets: evaluation.num_targets(),
            metrics: Metrics::new(),
            candidates: None,
            labels,
            confusion,
        }
    }
}

/// Returns the names of the classes; empty if labels are not names.
pub(crate) fn label_names(graph: &GraphMeta) -> &[String] {
    match graph.target().label.as_ref().map(|label| &label.kind) {
        Some(LabelKind::ClassName { names }) => names,
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use gnn::{Dense, Labels, Task};

    use super::*;

    fn scores(task: Task, cols: usize, values: &[f32], labels: &Labels) -> SplitScores {
        let logits = Dense {
            rows: values.len() / cols,
            cols,
            values: values.to_vec(),
        };
        let mut evaluation = Evaluation::new(task, cols).with_confusion();
        evaluation.add(&logits, labels, 1.0);
        SplitScores::of(&evaluation, &["a", "b", "c", "d"].map(str::to_owned))
    }

    fn check(scores: &LabelScores, name: &str, wanted: [f64; 3], support: u64, predicted: u64) {
        assert_eq!(scores.name.as_deref(), Some(name));
        let got = [scores.precision, scores.recall, scores.f1];
        for (value, expected) in got.iter().zip(wanted) {
            assert!((value - expected).abs() < 1e-12, "{name}: {got:?}");
        }
        assert_eq!(
            (scores.support, scores.predicted),
            (support, predicted),
            "{name}"
        );
    }

    #[test]
    fn classes_are_scored_as_scikit_learn_does() {
        // Predictions 0 0 1 2 1 of truths 0 1 1 0 1; class 3 never occurs.
        let values = [
            9., 1., 1., 1., 9., 1., 1., 1., 1., 9., 1., 1., 1., 1., 9., 1., 1., 9., 1., 1.,
        ];
        let truth = Labels::Classes(vec![0, 1, 1, 0, 1]);
        let scores = scores(Task::Classes, 4, &values, &truth);
        assert_eq!((scores.num_targets, scores.labels.len()), (5, 3));
        check(&scores.labels[0], "a", [0.5, 0.5, 0.5], 2, 2);
        check(&scores.labels[1], "b", [1.0, 2.0 / 3.0, 0.8], 3, 2);
        check(&scores.labels[2], "c", [0.0, 0.0, 0.0], 0, 1);
        let rows = [[1, 0, 1], [1, 2, 0], [0, 0, 0]].map(Vec::from);
        assert_eq!(scores.confusion, Some(rows.to_vec()));
    }

    #[test]
    fn several_labels_are_scored_one_by_one_and_numbers_not_at_all() {
        let truth = Labels::MultiLabel(Dense {
            rows: 2,
            cols: 3,
            values: vec![1., 0., 0., 1., 1., 0.],
        });
        let values = [2., -1., -1., -1., 3., -1.];
        let scores = scores(Task::MultiLabel, 3, &values, &truth);
        assert_eq!((scores.labels.len(), &scores.confusion), (2, &None));
        check(&scores.labels[0], "a", [1.0, 0.5, 2.0 / 3.0], 2, 1);
        check(&scores.labels[1], "b", [1.0, 1.0, 1.0], 1, 1);
        let number = Labels::Regression(Dense {
            rows: 1,
            cols: 1,
            values: vec![1.0],
        });
        let numbers = self::scores(Task::Regression, 1, &[2.0], &number);
        assert_eq!((numbers.labels.len(), numbers.confusion), (0, None));
        assert_eq!(numbers.num_targets, 1);
    }
}
