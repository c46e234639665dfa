//! Ranks val and test pairs among all items.

use std::collections::BTreeMap;

use cluster::{Cluster, gather_processes};
use gnn::{Dense, Scorer};
use graphtrainer::ranking::{Query, RankReport, Ranks, rank_rows, report};
use schemas::Split;
use serde::{Deserialize, Serialize};

use crate::ScoreError;
use crate::known::{KnownPairs, RowLists};
use crate::rows::EndRows;

/// The content of `ranking.json`: the ranks of val and test pairs among all items.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankingFile {
    /// By name of the split.
    pub splits: BTreeMap<String, RankReport>,
}

impl RankingFile {
    /// Returns the metrics of all splits by name, such as `test_recall@20`.
    #[must_use]
    pub fn metrics(&self) -> BTreeMap<String, f64> {
        let mut metrics = BTreeMap::new();
        for (split, of_split) in &self.splits {
            metrics.insert(format!("{split}_mrr"), of_split.mrr);
            metrics.insert(format!("{split}_auc"), of_split.auc);
            let precision = of_split.average_precision;
            metrics.insert(format!("{split}_average_precision"), precision);
            for at in &of_split.at {
                let named = [("hits", at.hits), ("recall", at.recall), ("ndcg", at.ndcg)];
                for (name, value) in named {
                    metrics.insert(format!("{split}_{name}@{}", at.cutoff), value);
                }
            }
        }
        metrics
    }
}

/// What pairs are ranked by.
pub(crate) struct Ranking<'a> {
    pub(crate) scorer: &'a Scorer,
    pub(crate) src: &'a EndRows<'a>,
    pub(crate) dst: &'a EndRows<'a>,
    pub(crate) known: &'a KnownPairs,
    /// Whether both ends are of one type; a node is no candidate of its own.
    pub(crate) are_of_one_type: bool,
    pub(crate) cutoffs: &'a [u32],
}

impl Ranking<'_> {
    /// Ranks the links of the val and the test split; each process ranks a part of the queries.
    ///
    /// # Errors
    ///
    /// If embeddings cannot be read, or another process fails.
    pub(crate) fn run(&self, cluster: &Cluster) -> Result<RankingFile, ScoreError> {
        let positions: Vec<u32> = (0..).take(self.dst.len()).collect();
        let items = self.dst.gather(&positions)?;
        let mut ranking = RankingFile::default();
        for (at, split) in [(1, Split::Val), (2, Split::Test)] {
            if self.known.links[at].is_empty() {
                continue;
            }
            let ranked = self.split(at, &items, cluster)?;
            ranking.splits.insert(split.as_str().to_owned(), ranked);
        }
        Ok(ranking)
    }

    fn split(
        &self,
        split: usize,
        items: &Dense,
        cluster: &Cluster,
    ) -> Result<RankReport, ScoreError> {
        let wanted = RowLists::new(self.src.len(), self.known.links[split].clone());
        let known = self.known.before(split, self.src.len());
        let asked = (0..self.src.len()).filter(|&row| !wanted.of(row).is_empty());
        let rows: Vec<u32> = asked
            .map(|row| u32::try_from(row).expect("nodes fit 32 bits"))
            .collect();
        let queries = (0..).zip(&rows).map(|(position, &row)| {
            let wanted = wanted.of(row as usize).to_vec();
            let mut known = known.of(row as usize).to_vec();
            if let (true, Err(at)) = (self.are_of_one_type, known.binary_search(&row)) {
                known.insert(at, row);
            }
            // A link of this split is wanted, even if it is also one of an earlier split.
            known.retain(|item| wanted.binary_search(item).is_err());
            Query {
                row: position,
                wanted,
                known,
            }
        });
        let queries: Vec<Query> = queries.collect();
        let share = queries.len().div_ceil(cluster.num_processes());
        let own = queries.iter().skip(cluster.process() * share).take(share);
        let own: Vec<Query> = own.cloned().collect();
        let src = self.src.gather(&rows)?;
        let ranks = rank_rows(self.scorer, &src, items, &own);
        let ranks: Vec<Ranks> = gather_processes(cluster, ranks)?.concat();
        Ok(report(&queries, &ranks, items.rows, self.cutoffs))
    }
}
