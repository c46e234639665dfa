//! The best items of queries: blocked products, of which only the best scores are kept.

use std::ops::Range;

use gnn::Scorer;
use gnn::kernel::BestItems;
use rayon::prelude::*;
use schemas::Ids;

use crate::ScoreError;
use crate::known::RowLists;
use crate::rows::{EndPart, EndRows};

/// Items whose scores are computed at once: with the queries of a block 512 KiB, which stay in the
/// cache while the best are looked for.
const TILE: usize = 256;

/// What the best items of queries are found by.
pub(crate) struct BestSearch<'a> {
    pub(crate) scorer: &'a Scorer,
    pub(crate) queries: &'a EndRows<'a>,
    pub(crate) items: &'a EndRows<'a>,
    /// Whether queries and items are of one type; a node is no item of its own.
    pub(crate) are_of_one_type: bool,
    pub(crate) top_k: usize,
    /// The known items of each query, which are left out; none are, if it is empty.
    pub(crate) known: &'a RowLists,
}

/// The best items of some queries, the best first.
pub(crate) struct FoundItems {
    pub(crate) queries: Ids,
    /// The end of each query's items.
    pub(crate) ends: Vec<usize>,
    /// Rows of the items.
    pub(crate) items: Vec<u32>,
    pub(crate) scores: Vec<f32>,
}

impl BestSearch<'_> {
    /// Finds the best items of a range of queries, on all cores.
    ///
    /// # Errors
    ///
    /// If embeddings cannot be read, or a score is not a finite number.
    pub(crate) fn run(&self, range: Range<usize>) -> Result<FoundItems, ScoreError> {
        let queries = self.queries.slice(range.clone())?;
        let mut best: Vec<BestItems> = range.clone().map(|_| BestItems::new(self.top_k)).collect();
        let block_rows = Scorer::block_rows();
        for part in 0..self.items.num_parts() {
            let read = self.items.part(part)?;
            let items = (self.items.range(part).start, &*read);
            let blocks = best.par_chunks_mut(block_rows).enumerate();
            blocks.for_each_init(Vec::new, |scores, (block, own)| {
                let first = block * block_rows;
                let cols = queries.rows.cols;
                let rows = &queries.rows.values[first * cols..(first + own.len()) * cols];
                self.block((range.start + first, rows), items, own, scores);
            });
        }
        let found = best.into_par_iter().map(BestItems::finish);
        let found: Vec<Vec<(u32, f32)>> = found.collect();
        let mut all = FoundItems {
            queries: queries.ids,
            ends: Vec::with_capacity(found.len()),
            items: Vec::new(),
            scores: Vec::new(),
        };
        for (at, of_query) in found.into_iter().enumerate() {
            self.check(range.start + at, &of_query, || all.queries.display(at))?;
            all.items.extend(of_query.iter().map(|(item, _)| item));
            all.scores.extend(of_query.iter().map(|(_, score)| score));
            all.ends.push(all.items.len());
        }
        Ok(all)
    }

    /// Offers the items of a part to a block of queries, whose first row is given.
    fn block(
        &self,
        (first_query, rows): (usize, &[f32]),
        (first_item, items): (usize, &EndPart),
        best: &mut [BestItems],
        scores: &mut Vec<f32>,
    ) {
        let cols = items.rows.cols;
        let known = |at: usize| self.known.of(first_query + at);
        let skip = |list: &[u32]| list.partition_point(|&item| (item as usize) < first_item);
        let mut cursors: Vec<usize> = (0..best.len()).map(|at| skip(known(at))).collect();
        for start in (0..items.rows.rows).step_by(TILE) {
            let end = items.rows.rows.min(start + TILE);
            let of_items = &items.rows.values[start * cols..end * cols];
            self.scorer.block_into(rows, of_items, scores);
            let tile = first_item + start..first_item + end;
            let of_queries = scores.chunks_exact_mut(end - start).enumerate();
            for ((at, scores), (own, cursor)) in of_queries.zip(best.iter_mut().zip(&mut cursors)) {
                let list = known(at);
                while let Some(item) = list.get(*cursor).map(|&item| item as usize) {
                    if item >= tile.end {
                        break;
                    }
                    scores[item - tile.start] = f32::NEG_INFINITY;
                    *cursor += 1;
                }
                let query = first_query + at;
                if self.are_of_one_type && tile.contains(&query) {
                    scores[query - tile.start] = f32::NEG_INFINITY;
                }
                own.offer(
                    u32::try_from(tile.start).expect("nodes fit 32 bits"),
                    scores,
                );
            }
        }
    }

    /// Checks that a query has all the items that it should have, with finite scores.
    fn check(
        &self,
        query: usize,
        found: &[(u32, f32)],
        id: impl Fn() -> String,
    ) -> Result<(), ScoreError> {
        let known = self.known.of(query);
        let own = u32::try_from(query).ok().filter(|_| self.are_of_one_type);
        let left_out = own.filter(|own| known.binary_search(own).is_err());
        let num_items = self.items.len() - known.len() - left_out.iter().count();
        let is_finite = found.iter().all(|(_, score)| score.is_finite());
        match is_finite && found.len() == num_items.min(self.top_k) {
            true => Ok(()),
            false => Err(self.queries.not_finite(&id())),
        }
    }
}
