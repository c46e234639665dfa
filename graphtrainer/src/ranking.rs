//! Ranks the pairs of queries among all items, block by block, without a table of all scores.

use std::cmp::Ordering;

use gnn::{Dense, Scorer};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

/// Items of a block: with the src nodes of a block, 4 MiB of scores for each thread.
const ITEM_BLOCK: usize = 4096;

/// A src node with the items that it should find.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// Row of the node's embedding.
    pub row: u32,
    /// The items to find, ascending and distinct.
    pub wanted: Vec<u32>,
    /// Items that are no candidates, ascending and distinct, such as those of train pairs.
    pub known: Vec<u32>,
}

/// Means over all queries, or over all wanted pairs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankReport {
    /// Queries with at least one item to find.
    pub num_queries: u64,
    /// Items to find, over all queries.
    pub num_pairs: u64,
    /// Mean number of candidates of a pair: itself, and the items that the query neither wants nor
    /// knows.
    pub candidates: f64,
    /// Mean of the reciprocal rank of a pair among its candidates.
    pub mrr: f64,
    /// Mean over pairs of the share of the other candidates that the pair is above, ties counting
    /// half; 0.5 for a pair without other candidates. 0 in files of older programs.
    #[serde(default)]
    pub auc: f64,
    /// Mean over queries of the average precision of all items that are not known. 0 in files of
    /// older programs.
    #[serde(default)]
    pub average_precision: f64,
    /// By cutoff.
    pub at: Vec<RankAt>,
}

/// Metrics of the best items of each query.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankAt {
    /// Number of best items.
    pub cutoff: u32,
    /// Share of the pairs whose rank among their candidates is not above the cutoff.
    pub hits: f64,
    /// Mean over queries of the share of wanted items among the best, all other wanted items being
    /// candidates too.
    pub recall: f64,
    /// Mean over queries of the normalised discounted gain of the best items.
    pub ndcg: f64,
}

/// The ranks of the items that a query wants, in the order of the query.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ranks {
    /// Among the candidates that are neither known nor wanted.
    pub filtered: Vec<f64>,
    /// Among all items that are not known.
    pub joint: Vec<f64>,
}

/// Ranks the wanted items of each query; ties get their mean rank.
///
/// `src` and `dst` are embeddings.
///
/// # Panics
///
/// If a query names a row that there is not.
#[must_use]
pub fn rank_all(scorer: &Scorer, src: &Dense, dst: &Dense, queries: &[Query]) -> Vec<Ranks> {
    let (src, items) = (scorer.src_rows(src), scorer.dst_rows(dst));
    rank_rows(scorer, &src, &items, queries)
}

/// Ranks as [`rank_all`] does. `src` and `items` are rows of the ends, as of [`Scorer::src_rows`] and
/// [`Scorer::dst_rows`].
///
/// Query nodes run in blocks on all cores. A block is scored against the items block by block, by
/// one matrix product each.
///
/// # Panics
///
/// If a query names a row that there is not.
#[must_use]
pub fn rank_rows(scorer: &Scorer, src: &Dense, items: &Dense, queries: &[Query]) -> Vec<Ranks> {
    let blocks = queries.par_chunks(Scorer::block_rows());
    let ranks = blocks.flat_map_iter(|block| {
        let rows = block.iter().flat_map(|query| src.row(query.row as usize));
        let rows: Vec<f32> = rows.copied().collect();
        rank_block(scorer, &rows, items, block)
    });
    ranks.collect()
}

/// The scores that a query wants, descending, and how many other candidates are around them.
struct Counted {
    scores: Vec<f32>,
    /// `[num wanted + 1]`: candidates above score i and not above those before it.
    above: Vec<u64>,
    /// Candidates with score i; ties among the wanted scores count at their first.
    equal: Vec<u64>,
}

impl Counted {
    fn new(mut scores: Vec<f32>) -> Self {
        scores.sort_unstable_by(|a, b| b.total_cmp(a));
        Self {
            above: vec![0; scores.len() + 1],
            equal: vec![0; scores.len()],
            scores,
        }
    }

    /// Counts the candidates of a block. A score that is not a number counts above all others.
    fn count(&mut self, candidates: &[f32]) {
        let Some(&least) = self.scores.last() else {
            return;
        };
        let is_below = |score: f32| score.partial_cmp(&least) == Some(Ordering::Less);
        for &score in candidates.iter().filter(|score| !is_below(**score)) {
            let at = self.scores.partition_point(|&wanted| wanted > score);
            match self.scores.get(at) {
                Some(&wanted) if wanted == score => self.equal[at] += 1,
                _ => self.above[at] += 1,
            }
        }
    }

    /// Returns the ranks of a wanted score.
    fn ranks(&self, score: f32) -> (f64, f64) {
        let first = self.scores.partition_point(|&wanted| wanted > score);
        let ties = self
            .scores
            .iter()
            .filter(|&&wanted| wanted == score)
            .count();
        let above: u64 = self.above[..=first].iter().sum();
        let equal_above: u64 = self.equal[..first].iter().sum();
        let equal = self.equal.get(first).copied().unwrap_or(0);
        let filtered = 1.0 + (above + equal_above) as f64 + 0.5 * equal as f64;
        let others = first as f64 + 0.5 * ties.saturating_sub(1) as f64;
        (filtered, filtered + others)
    }
}

/// Ranks the wanted items of a block of queries.
fn rank_block(scorer: &Scorer, src: &[f32], items: &Dense, block: &[Query]) -> Vec<Ranks> {
    let wanted = wanted_scores(scorer, src, items, block);
    let mut counted: Vec<Counted> = wanted.iter().cloned().map(Counted::new).collect();
    for start in (0..items.rows).step_by(ITEM_BLOCK) {
        let end = items.rows.min(start + ITEM_BLOCK);
        let of_items = &items.values[start * items.cols..end * items.cols];
        let mut scores = scorer.block(src, of_items);
        let rows = scores.chunks_exact_mut(end - start);
        for ((query, own), of_query) in block.iter().zip(&mut counted).zip(rows) {
            for out in [&query.known, &query.wanted] {
                let first = out.partition_point(|&item| (item as usize) < start);
                let inside = out[first..]
                    .iter()
                    .take_while(|&&item| (item as usize) < end);
                inside.for_each(|&item| of_query[item as usize - start] = f32::NEG_INFINITY);
            }
            own.count(of_query);
        }
    }
    let ranks = wanted.iter().zip(&counted).map(|(scores, own)| {
        let both = scores.iter().map(|&score| own.ranks(score));
        let (filtered, joint) = both.unzip();
        Ranks { filtered, joint }
    });
    ranks.collect()
}

/// Returns the scores of the wanted items of a block of queries, with the bits that they have among
/// all items.
fn wanted_scores(scorer: &Scorer, src: &[f32], items: &Dense, block: &[Query]) -> Vec<Vec<f32>> {
    let mut distinct: Vec<u32> = block
        .iter()
        .flat_map(|query| &query.wanted)
        .copied()
        .collect();
    distinct.sort_unstable();
    distinct.dedup();
    let mut found: Vec<Vec<f32>> = vec![Vec::new(); block.len()];
    for some in distinct.chunks(ITEM_BLOCK) {
        let of_items = some.iter().flat_map(|&item| items.row(item as usize));
        let of_items: Vec<f32> = of_items.copied().collect();
        let scores = scorer.block(src, &of_items);
        let rows = scores.chunks_exact(some.len());
        for ((query, own_scores), row) in block.iter().zip(&mut found).zip(rows) {
            // Both lists ascend, so each query's scores come in its order.
            let own = query
                .wanted
                .iter()
                .filter_map(|item| some.binary_search(item).ok());
            own_scores.extend(own.map(|at| row[at]));
        }
    }
    found
}

/// Returns the means of some ranks; `num_items` is the number of all items.
#[must_use]
pub fn report(queries: &[Query], ranks: &[Ranks], num_items: usize, cutoffs: &[u32]) -> RankReport {
    let asked = || {
        queries
            .iter()
            .zip(ranks)
            .filter(|(query, _)| !query.wanted.is_empty())
    };
    let num_queries = asked().count();
    let num_pairs: usize = asked().map(|(query, _)| query.wanted.len()).sum();
    let (of_queries, of_pairs) = (num_queries.max(1) as f64, num_pairs.max(1) as f64);
    let others = |query: &Query| {
        let known = query.known.iter();
        let known = known.filter(|item| query.wanted.binary_search(item).is_err());
        num_items - query.wanted.len() - known.count()
    };
    let (mut candidates, mut auc) = (0.0, 0.0);
    for (query, of_query) in asked() {
        let (wanted, others) = (query.wanted.len() as f64, others(query) as f64);
        candidates += wanted * (1.0 + others);
        let above = of_query.filtered.iter().map(|rank| rank - 1.0);
        auc += match others {
            0.0 => 0.5 * wanted,
            _ => wanted - above.sum::<f64>() / others,
        };
    }
    let precision = asked().map(|(_, of_query)| average_precision(&of_query.joint));
    let filtered = || asked().flat_map(|(_, of_query)| &of_query.filtered);
    let at = cutoffs.iter().map(|&cutoff| {
        let within = |rank: &&f64| **rank <= f64::from(cutoff);
        let recall = asked().map(|(query, of_query)| {
            let found = of_query.joint.iter().filter(within).count();
            found as f64 / query.wanted.len() as f64
        });
        let ndcg = asked().map(|(query, of_query)| {
            let most = query.wanted.len().min(cutoff as usize);
            let best: f64 = (0..most).map(|at| gain(1.0 + at as f64)).sum();
            let found = of_query.joint.iter().filter(within).map(|&rank| gain(rank));
            total(found) / best
        });
        RankAt {
            cutoff,
            hits: filtered().filter(within).count() as f64 / of_pairs,
            recall: total(recall) / of_queries,
            ndcg: total(ndcg) / of_queries,
        }
    });
    RankReport {
        num_queries: num_queries as u64,
        num_pairs: num_pairs as u64,
        candidates: candidates / of_pairs,
        mrr: total(filtered().map(|rank| 1.0 / rank)) / of_pairs,
        auc: auc / of_pairs,
        average_precision: total(precision) / of_queries,
        at: at.collect(),
    }
}

/// Returns a sum. That of no values is 0; [`Iterator::sum`] gives -0, which reports would show.
fn total(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(0.0, |sum, value| sum + value)
}

/// Returns the discounted gain of an item with a rank.
pub(crate) fn gain(rank: f64) -> f64 {
    1.0 / (1.0 + rank).log2()
}

/// Returns the mean over wanted items of the share of wanted items among those up to its rank.
fn average_precision(joint: &[f64]) -> f64 {
    let mut ascending = joint.to_vec();
    ascending.sort_unstable_by(f64::total_cmp);
    let share = |&rank: &f64| ascending.partition_point(|&other| other <= rank) as f64 / rank;
    joint.iter().map(share).sum::<f64>() / joint.len().max(1) as f64
}

#[cfg(test)]
mod tests;
