//! Scores pairs of embeddings, one by one or in blocks.

use super::decoder::{End, Weights};
use super::{Decoder, Pairs, loss_and_slope};
use crate::Dense;

/// Src nodes that [`Scorer::block`] scores at a time. Every product then has the same shape, and a
/// score the same bits in any block.
const BLOCK: usize = 512;

/// A decoder with its parameters.
#[derive(Clone, Debug)]
pub struct Scorer {
    decoder: Decoder,
    dim: usize,
    values: Vec<f32>,
}

impl Scorer {
    /// Makes a scorer of embeddings that are `dim` wide.
    ///
    /// # Panics
    ///
    /// If there are more or fewer parameters than the decoder has.
    #[must_use]
    pub fn new(decoder: Decoder, dim: usize, values: Vec<f32>) -> Scorer {
        let Weights { .. } = Weights::new(decoder, dim, &values);
        Scorer {
            decoder,
            dim,
            values,
        }
    }

    /// Returns the decoder.
    #[must_use]
    pub fn decoder(&self) -> Decoder {
        self.decoder
    }

    /// Returns the width of the embeddings and of the rows of their ends.
    #[must_use]
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Returns the number of src nodes of a block.
    #[must_use]
    pub fn block_rows() -> usize {
        BLOCK
    }

    fn weights(&self) -> Weights<'_, f32> {
        Weights::new(self.decoder, self.dim, &self.values)
    }

    fn ends(&self, end: End, embeddings: &Dense) -> Dense {
        assert_eq!(embeddings.cols, self.dim, "the width of the embeddings");
        Dense {
            values: self.weights().ends(end, &embeddings.values).into_owned(),
            ..*embeddings
        }
    }

    /// Turns embeddings of src nodes into the rows that [`block`](Self::block) reads.
    ///
    /// # Panics
    ///
    /// If the embeddings have another width.
    #[must_use]
    pub fn src_rows(&self, embeddings: &Dense) -> Dense {
        self.ends(End::Src, embeddings)
    }

    /// Turns embeddings of dst nodes into the rows that [`block`](Self::block) reads.
    ///
    /// # Panics
    ///
    /// If the embeddings have another width.
    #[must_use]
    pub fn dst_rows(&self, embeddings: &Dense) -> Dense {
        self.ends(End::Dst, embeddings)
    }

    /// Scores each src row of a block with each dst row: `[num_src, num_dst]`. At most
    /// [`block_rows`](Self::block_rows) src rows.
    ///
    /// The score of two rows has the same bits whatever the other rows are.
    ///
    /// # Panics
    ///
    /// If there are more src rows than a block has.
    #[must_use]
    pub fn block(&self, src: &[f32], dst: &[f32]) -> Vec<f32> {
        let mut scores = Vec::new();
        self.block_into(src, dst, &mut scores);
        scores
    }

    /// Scores a block as [`block`](Self::block) does, in place of what `scores` holds.
    ///
    /// # Panics
    ///
    /// If there are more src rows than a block has.
    pub fn block_into(&self, src: &[f32], dst: &[f32], scores: &mut Vec<f32>) {
        let (num_src, num_dst) = (src.len() / self.dim, dst.len() / self.dim);
        assert!(num_src <= BLOCK, "at most {BLOCK} src nodes are a block");
        let weights = self.weights();
        if !self.decoder.is_product() || num_src == BLOCK {
            scores.resize(num_src * num_dst, 0.0);
            weights.join_all_into(src, dst, scores);
            return;
        }
        let mut padded = src.to_vec();
        padded.resize(BLOCK * self.dim, 0.0);
        scores.resize(BLOCK * num_dst, 0.0);
        weights.join_all_into(&padded, dst, scores);
        scores.truncate(num_src * num_dst);
    }

    /// Returns the loss of pairs of rows of `embeddings`, summed with their weights.
    ///
    /// # Panics
    ///
    /// If the pairs do not fit the embeddings.
    #[must_use]
    pub fn loss(&self, embeddings: &Dense, pairs: &Pairs) -> f64 {
        loss_and_slope(self.weights(), &embeddings.values, pairs, 1.0).loss_sum
    }

    /// Scores a src row with a dst row.
    #[must_use]
    pub fn join(&self, src: &[f32], dst: &[f32]) -> f32 {
        self.weights().join(src, dst)
    }

    /// Scores pairs: row i of `src` with row i of `dst`, both embeddings.
    ///
    /// # Panics
    ///
    /// If the embeddings have another width, or there are more of one than of the other.
    #[must_use]
    pub fn scores(&self, src: &Dense, dst: &Dense) -> Vec<f32> {
        assert_eq!(src.rows, dst.rows, "a pair has two ends");
        let (src, dst, weights) = (self.src_rows(src), self.dst_rows(dst), self.weights());
        let pairs = (0..src.rows).map(|at| weights.join(src.row(at), dst.row(at)));
        pairs.collect()
    }
}
