//! The scores of listed pairs.

use gnn::Scorer;
use rayon::prelude::*;
use schemas::{EdgeRows, Ids, Output, PairListPlan, PairScoreRows, PartEntry, ScoresWriter, Unit};

use crate::ScoreError;
use crate::rows::{EndRows, find};

/// Pairs that are scored at once; with their embeddings, 128 MiB at a width of 64.
const PAIRS: usize = 1 << 18;

/// What listed pairs are scored by.
pub(crate) struct ListedPairs<'a> {
    pub(crate) scorer: &'a Scorer,
    pub(crate) list: &'a PairListPlan,
    /// Rows of the src and the dst ends, and the ids of these rows.
    pub(crate) src: (&'a EndRows<'a>, Ids),
    pub(crate) dst: (&'a EndRows<'a>, Ids),
}

impl ListedPairs<'_> {
    /// Writes the scores of the pairs of a unit as part `index` of the table, in the order of the
    /// rows.
    ///
    /// # Errors
    ///
    /// If the pairs or embeddings cannot be read, an end has no embedding, or the part cannot be
    /// written.
    pub(crate) fn write(
        &self,
        output: &Output,
        index: usize,
        unit: &Unit,
    ) -> Result<PartEntry, ScoreError> {
        let types = [self.src.1.id_type(), self.dst.1.id_type()];
        let mut writer = ScoresWriter::pairs(output, index, types)?;
        let mut waiting: Vec<EdgeRows> = Vec::new();
        let mut num_waiting = 0;
        for batch in self.list.batches(unit)? {
            let batch = batch?;
            num_waiting += batch.src.len();
            waiting.push(batch);
            if num_waiting >= PAIRS {
                writer.write_pairs(&self.score(&waiting)?)?;
                waiting.clear();
                num_waiting = 0;
            }
        }
        if num_waiting > 0 {
            writer.write_pairs(&self.score(&waiting)?)?;
        }
        Ok(writer.finish()?)
    }

    fn score(&self, batches: &[EdgeRows]) -> Result<PairScoreRows, ScoreError> {
        let mut src = Ids::new(self.src.1.id_type());
        let mut dst = Ids::new(self.dst.1.id_type());
        for batch in batches {
            src.extend_from(&batch.src, 0..batch.src.len());
            dst.extend_from(&batch.dst, 0..batch.dst.len());
        }
        let numbers = |at: usize| {
            let mut before = 0;
            let of = batches.iter().find(|of| {
                let is_here = at < before + of.src.len();
                before += if is_here { 0 } else { of.src.len() };
                is_here
            });
            of.expect("the pair is in a batch").rows.row(at - before)
        };
        let rows = |(_, ids): &(&EndRows<'_>, Ids), wanted: &Ids, is_src: bool| {
            let unknown = |at| self.list.unknown(numbers(at), is_src, &wanted.display(at));
            find(ids, wanted).map_err(|at| ScoreError::from(unknown(at)))
        };
        let (src_rows, dst_rows) = (rows(&self.src, &src, true)?, rows(&self.dst, &dst, false)?);
        let ends = [(self.src.0, src_rows), (self.dst.0, dst_rows)];
        let [(src_ends, src_at), (dst_ends, dst_at)] = ends.map(|(of, mut wanted)| {
            let mut distinct = wanted.clone();
            distinct.par_sort_unstable();
            distinct.dedup();
            let find = |row: &mut u32| {
                let at = distinct.binary_search(row).expect("it is one of them");
                *row = u32::try_from(at).expect("nodes fit 32 bits");
            };
            wanted.par_iter_mut().for_each(find);
            (of.gather(&distinct), wanted)
        });
        let (src_ends, dst_ends) = (src_ends?, dst_ends?);
        let pairs = src_at.par_iter().zip(&dst_at);
        let scores = pairs.map(|(&of_src, &of_dst)| {
            let rows = (src_ends.row(of_src as usize), dst_ends.row(of_dst as usize));
            self.scorer.join(rows.0, rows.1)
        });
        let scores: Vec<f32> = scores.collect();
        if let Some(at) = scores.iter().position(|score| !score.is_finite()) {
            return Err(self.src.0.not_finite(&src.display(at)));
        }
        Ok(PairScoreRows { src, dst, scores })
    }
}
