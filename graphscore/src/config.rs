//! Table `[score]` as written.

use std::path::PathBuf;

use schemas::PairListSpec;
use serde::{Deserialize, Serialize};

use crate::ScoreError;

/// Most items of a query.
pub const TOP_K_MAX: u32 = 65_536;

/// Most queries of a part: the greatest number of nodes in a graph.
const ROWS_MAX: usize = u32::MAX as usize - 1;

/// Numbers of best items that metrics are reported for, unless the job names others.
const CUTOFFS: [u32; 5] = [1, 10, 20, 50, 100];

/// Table `[score]` as written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScoreSpec {
    /// Directory to write.
    pub output: PathBuf,
    /// Directory of the embeddings. Default: the output of `[infer]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<PathBuf>,
    /// Directory of the model, whose decoder scores. Default: the model of `[infer]`, or else the
    /// output of `[train]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<PathBuf>,
    /// Node type of the queries: that of an end of the pairs. Default: that of the src ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queries: Option<String>,
    /// Number of best items of each query. Default: none are searched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_k: Option<u32>,
    /// Whether known pairs are left out of the best items. Default: false.
    #[serde(default)]
    pub exclude_known: bool,
    /// Queries in one part file. Default: 65536, or fewer with a large `top_k`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows_per_part: Option<usize>,
    /// Pairs to score.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pairs: Option<PairListSpec>,
    /// Whether val and test pairs are ranked among all items. Default: false.
    #[serde(default)]
    pub evaluate: bool,
    /// Numbers of best items that the metrics of the ranking are reported for. Default: 1, 10, 20,
    /// 50 and 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cutoffs: Option<Vec<u32>>,
}

impl ScoreSpec {
    /// Returns all mistakes in the table, one error each. `has_input`, `has_model` and `has_pairs`
    /// tell whether the job names embeddings, a model and `[input.pairs]`.
    pub fn mistakes(&self, has_input: bool, has_model: bool, has_pairs: bool) -> Vec<ScoreError> {
        let mut found = Vec::new();
        let mut wrong = |key, problem: String| found.push(ScoreError::Key { key, problem });
        if !has_pairs {
            let problem = "needs [input.pairs], which says what pairs are scored";
            wrong("score", problem.to_owned());
        }
        if !has_input {
            let problem = "is missing: a directory with embeddings, where the job has no table \
                           [infer]";
            wrong("score.input", problem.to_owned());
        }
        if !has_model {
            let problem = "is missing: a directory with a trained model, where the job has no \
                           tables [infer] and [train]";
            wrong("score.model", problem.to_owned());
        }
        if self.top_k.is_none() && self.pairs.is_none() && !self.evaluate {
            let problem = "has nothing to do; allowed are `top_k`, `pairs` and `evaluate = true`";
            wrong("score", problem.to_owned());
        }
        found.extend(self.wrong_values());
        found
    }

    /// Returns the mistakes in single keys, and in keys that need another one.
    fn wrong_values(&self) -> Vec<ScoreError> {
        let mut found = Vec::new();
        let mut wrong = |key, problem: String| found.push(ScoreError::Key { key, problem });
        let needs = [
            (
                self.queries.is_some(),
                "score.queries",
                "top_k",
                self.top_k.is_some(),
            ),
            (
                self.exclude_known,
                "score.exclude_known",
                "top_k",
                self.top_k.is_some(),
            ),
            (
                self.rows_per_part.is_some(),
                "score.rows_per_part",
                "top_k",
                self.top_k.is_some(),
            ),
            (
                self.cutoffs.is_some(),
                "score.cutoffs",
                "evaluate",
                self.evaluate,
            ),
        ];
        for (is_given, key, needed, is_there) in needs {
            if is_given && !is_there {
                wrong(key, format!("is given; it needs `{needed}`"));
            }
        }
        if let Some(top_k) = self.top_k.filter(|top_k| !(1..=TOP_K_MAX).contains(top_k)) {
            wrong(
                "score.top_k",
                format!("is {top_k}; allowed is 1 to {TOP_K_MAX}"),
            );
        }
        if let Some(rows) = self
            .rows_per_part
            .filter(|rows| !(1..=ROWS_MAX).contains(rows))
        {
            wrong(
                "score.rows_per_part",
                format!("is {rows}; allowed is 1 to {ROWS_MAX}"),
            );
        }
        if let Some(cutoffs) = &self.cutoffs {
            let is_ascending = cutoffs.windows(2).all(|pair| pair[0] < pair[1]);
            if cutoffs.is_empty() || cutoffs[0] == 0 || !is_ascending {
                let problem = format!("is {cutoffs:?}; allowed are ascending numbers from 1");
                wrong("score.cutoffs", problem);
            }
        }
        found
    }

    pub(crate) fn cutoffs(&self) -> Vec<u32> {
        self.cutoffs.clone().unwrap_or(CUTOFFS.to_vec())
    }
}
