//! Decoders: functions of two embeddings, computed in a part for each end and a part for the pair.

use std::borrow::Cow;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::kernel::product::{Matrix, multiply};
use crate::kernel::{Float, LastMap};
use crate::parameter::{ParameterList, Start};

/// Rows that one thread handles at a time.
const BLOCK: usize = 256;

/// How two embeddings become the score of a pair.
///
/// A score is computed in two parts. The *ends* turn each embedding into a row: once for each node,
/// not once for each pair. The rows of a pair then *join* to the score.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Decoder {
    /// The inner product of the embeddings.
    #[default]
    Dot,
    /// The cosine of the angle between the embeddings; 0 if one of them is 0.
    Cosine,
    /// The sum of the products of the embeddings and of a learnable vector, as `PyG`'s `DistMult`
    /// (Yang et al., 2015).
    Distmult,
    /// A perceptron with one hidden layer, as wide as an embedding, on both embeddings side by
    /// side.
    Mlp,
}

/// An end of a pair.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum End {
    Src,
    Dst,
}

/// The parameters of a decoder of embeddings that are `dim` wide.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weights<'a, F> {
    pub(crate) decoder: Decoder,
    pub(crate) dim: usize,
    /// In the order of [`Decoder::parameters`].
    pub(crate) values: &'a [F],
}

impl Decoder {
    /// All decoders.
    pub const ALL: [Decoder; 4] = [
        Decoder::Dot,
        Decoder::Cosine,
        Decoder::Distmult,
        Decoder::Mlp,
    ];

    /// Returns the name in job files and `model.json`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Decoder::Dot => "dot",
            Decoder::Cosine => "cosine",
            Decoder::Distmult => "distmult",
            Decoder::Mlp => "mlp",
        }
    }

    /// Lists the parameters, for embeddings that are `dim` wide.
    pub(crate) fn parameters(self, dim: usize, list: &mut ParameterList) {
        match self {
            Decoder::Dot | Decoder::Cosine => {}
            Decoder::Distmult => list.push("rel_emb.weight", &[1, dim], Start::Ones),
            Decoder::Mlp => {
                list.linear("lin1", dim, 2 * dim, true);
                list.linear("lin2", 1, dim, true);
            }
        }
    }

    /// Returns the number of values of the parameters.
    #[must_use]
    pub fn num_values(self, dim: usize) -> usize {
        match self {
            Decoder::Dot | Decoder::Cosine => 0,
            Decoder::Distmult => dim,
            Decoder::Mlp => 2 * dim * dim + dim + dim + 1,
        }
    }

    /// Tells whether the score of two rows is their inner product.
    pub(crate) fn is_product(self) -> bool {
        self != Decoder::Mlp
    }
}

impl<'a, F: Float> Weights<'a, F> {
    /// Views parameters.
    ///
    /// # Panics
    ///
    /// If there are more or fewer than the decoder has.
    pub(crate) fn new(decoder: Decoder, dim: usize, values: &'a [F]) -> Self {
        assert_eq!(values.len(), decoder.num_values(dim), "a decoder's values");
        Self {
            decoder,
            dim,
            values,
        }
    }

    /// Views the parameters of a decoder that are the last ones of a model's.
    ///
    /// # Panics
    ///
    /// If there are fewer.
    pub(crate) fn last_of(decoder: Decoder, dim: usize, flat: &'a [F]) -> Self {
        Self::new(decoder, dim, &flat[flat.len() - decoder.num_values(dim)..])
    }

    /// Copies the half of the first map that an end uses, `[dim, dim]`.
    fn half(&self, end: End) -> Vec<F> {
        let dim = self.dim;
        let start = match end {
            End::Src => 0,
            End::Dst => dim,
        };
        let rows = self.values[..2 * dim * dim].chunks_exact(2 * dim);
        let half = rows.flat_map(|row| &row[start..start + dim]);
        half.copied().collect()
    }

    /// Returns the map that joins the hidden layers of both ends.
    fn output(&self) -> LastMap<'a, F> {
        let start = 2 * self.dim * self.dim + self.dim;
        let (weight, bias) = self.values[start..].split_at(self.dim);
        LastMap {
            weight,
            bias: bias[0],
        }
    }

    /// Turns embeddings into the rows of an end, `[_, dim]`.
    pub(crate) fn ends<'e>(&self, end: End, embeddings: &'e [F]) -> Cow<'e, [F]> {
        let dim = self.dim;
        let mut rows = Cow::Borrowed(embeddings);
        match (self.decoder, end) {
            (Decoder::Dot, _) | (Decoder::Distmult, End::Dst) => {}
            (Decoder::Cosine, _) => rows.to_mut().par_chunks_exact_mut(dim).for_each(|row| {
                let length = length(row);
                if length > 0.0 {
                    let length = F::from_f64(length);
                    row.iter_mut().for_each(|x| *x = *x / length);
                }
            }),
            (Decoder::Distmult, End::Src) => {
                rows.to_mut().par_chunks_exact_mut(dim).for_each(|row| {
                    let factors = row.iter_mut().zip(self.values);
                    factors.for_each(|(x, &factor)| *x *= factor);
                })
            }
            (Decoder::Mlp, end) => {
                let map = self.half(end);
                let bias = &self.values[2 * dim * dim..2 * dim * dim + dim];
                let blocks = rows.to_mut().par_chunks_mut(BLOCK * dim);
                blocks
                    .zip(embeddings.par_chunks(BLOCK * dim))
                    .for_each(|(out, embeddings)| {
                        let map = Matrix::new(&map, dim).transposed();
                        multiply(Matrix::new(embeddings, dim), map, out, false);
                        if end == End::Src {
                            for row in out.chunks_exact_mut(dim) {
                                row.iter_mut().zip(bias).for_each(|(x, &b)| *x += b);
                            }
                        }
                    });
            }
        }
        rows
    }

    /// Returns the gradient of embeddings, given the gradient `slopes` of the rows of an end, and
    /// adds the gradient of the parameters to `own`. `rows` are the rows of the end.
    pub(crate) fn ends_back(
        &self,
        end: End,
        (embeddings, rows): (&[F], &[F]),
        slopes: Vec<F>,
        own: &mut [F],
    ) -> Vec<F> {
        let dim = self.dim;
        let mut back = slopes;
        match (self.decoder, end) {
            (Decoder::Dot, _) | (Decoder::Distmult, End::Dst) => {}
            (Decoder::Cosine, _) => {
                let all = back.par_chunks_exact_mut(dim);
                let all = all.zip(embeddings.par_chunks_exact(dim));
                all.zip(rows.par_chunks_exact(dim))
                    .for_each(|((slope, embedding), row)| {
                        let length = F::from_f64(length(embedding));
                        if length > F::ZERO {
                            let along = product(slope, row);
                            let both = slope.iter_mut().zip(row);
                            both.for_each(|(d, &x)| *d = (*d - along * x) / length);
                        } else {
                            slope.fill(F::ZERO);
                        }
                    });
            }
            (Decoder::Distmult, End::Src) => {
                let all = back.chunks_exact_mut(dim);
                for (slope, embedding) in all.zip(embeddings.chunks_exact(dim)) {
                    for at in 0..dim {
                        own[at] += slope[at] * embedding[at];
                        slope[at] *= self.values[at];
                    }
                }
            }
            (Decoder::Mlp, end) => {
                self.half_back(end, embeddings, &back, own);
                let (map, slopes) = (self.half(end), back.clone());
                let blocks = back.par_chunks_mut(BLOCK * dim);
                blocks
                    .zip(slopes.par_chunks(BLOCK * dim))
                    .for_each(|(out, slopes)| {
                        let map = Matrix::new(&map, dim);
                        multiply(Matrix::new(slopes, dim), map, out, false);
                    });
            }
        }
        back
    }

    /// Adds the gradient of the first map and of its bias to `own`. Blocks of rows are added up in
    /// their order.
    fn half_back(&self, end: End, embeddings: &[F], slopes: &[F], own: &mut [F]) {
        let dim = self.dim;
        let blocks = slopes.par_chunks(BLOCK * dim);
        let of_block = |(slopes, embeddings): (&[F], &[F])| {
            let mut sum = vec![F::ZERO; dim * dim];
            let slopes = Matrix::new(slopes, dim).transposed();
            multiply(slopes, Matrix::new(embeddings, dim), &mut sum, false);
            sum
        };
        let blocks = blocks.zip(embeddings.par_chunks(BLOCK * dim)).map(of_block);
        let blocks: Vec<Vec<F>> = blocks.collect();
        let start = match end {
            End::Src => 0,
            End::Dst => dim,
        };
        for sum in blocks {
            for (at, row) in sum.chunks_exact(dim).enumerate() {
                let own = &mut own[at * 2 * dim + start..][..dim];
                own.iter_mut().zip(row).for_each(|(sum, &x)| *sum += x);
            }
        }
        if end == End::Src {
            let bias = &mut own[2 * dim * dim..][..dim];
            for slope in slopes.chunks_exact(dim) {
                bias.iter_mut().zip(slope).for_each(|(sum, &x)| *sum += x);
            }
        }
    }

    /// Joins the rows of a pair to its score.
    pub(crate) fn join(&self, src: &[F], dst: &[F]) -> F {
        if self.decoder.is_product() {
            return product(src, dst);
        }
        self.output().score(src, dst)
    }

    /// Scores each of some src rows with each of some dst rows: `[num_src, num_dst]`.
    pub(crate) fn join_all(&self, src: &[F], dst: &[F]) -> Vec<F> {
        let mut out = vec![F::ZERO; src.len() / self.dim * (dst.len() / self.dim)];
        self.join_all_into(src, dst, &mut out);
        out
    }

    /// Sets `out` to the scores of each of some src rows with each of some dst rows,
    /// `[num_src, num_dst]`.
    pub(crate) fn join_all_into(&self, src: &[F], dst: &[F], out: &mut [F]) {
        let dim = self.dim;
        let num_dst = dst.len() / dim;
        if num_dst == 0 {
            return;
        }
        if self.decoder.is_product() {
            let dst = Matrix::new(dst, dim).transposed();
            multiply(Matrix::new(src, dim), dst, out, false);
            return;
        }
        self.output().score_all_into(src, dst, out);
    }

    /// Adds the gradient of a score, `slope`, to the gradients of its rows and of the parameters.
    pub(crate) fn join_back(
        &self,
        slope: F,
        (src, dst): (&[F], &[F]),
        (of_src, of_dst): (&mut [F], &mut [F]),
        own: &mut [F],
    ) {
        if self.decoder.is_product() {
            add_scaled(of_src, slope, dst);
            add_scaled(of_dst, slope, src);
            return;
        }
        let weight = self.output().weight;
        let own = &mut own[2 * self.dim * self.dim + self.dim..];
        for at in 0..self.dim {
            let hidden = src[at] + dst[at];
            if hidden > F::ZERO {
                own[at] += slope * hidden;
                of_src[at] += slope * weight[at];
                of_dst[at] += slope * weight[at];
            }
        }
        own[self.dim] += slope;
    }

    /// Returns the gradients of some src rows and of some dst rows, given the gradient of each of
    /// their scores, `[num_src, num_dst]`; adds the gradient of the parameters to `own`.
    pub(crate) fn join_all_back(
        &self,
        slopes: &[F],
        (src, dst): (&[F], &[F]),
        own: &mut [F],
    ) -> (Vec<F>, Vec<F>) {
        let dim = self.dim;
        let (mut of_src, mut of_dst) = (vec![F::ZERO; src.len()], vec![F::ZERO; dst.len()]);
        let num_dst = dst.len() / dim;
        if num_dst == 0 || src.is_empty() {
            return (of_src, of_dst);
        }
        if self.decoder.is_product() {
            let by_src = Matrix::new(slopes, num_dst);
            multiply(by_src, Matrix::new(dst, dim), &mut of_src, false);
            let by_dst = by_src.transposed();
            multiply(by_dst, Matrix::new(src, dim), &mut of_dst, false);
            return (of_src, of_dst);
        }
        let rows = src.chunks_exact(dim).zip(of_src.chunks_exact_mut(dim));
        for ((src, of_src), slopes) in rows.zip(slopes.chunks_exact(num_dst)) {
            let rows = dst.chunks_exact(dim).zip(of_dst.chunks_exact_mut(dim));
            for ((dst, of_dst), &slope) in rows.zip(slopes) {
                if slope != F::ZERO {
                    self.join_back(slope, (src, dst), (&mut *of_src, of_dst), own);
                }
            }
        }
        (of_src, of_dst)
    }
}

/// Sums that are added up side by side, so that the compiler uses vectors.
const LANES: usize = 8;

/// Returns the inner product of two rows.
fn product<F: Float>(a: &[F], b: &[F]) -> F {
    let mut sums = [F::ZERO; LANES];
    for (a, b) in a.chunks(LANES).zip(b.chunks(LANES)) {
        for (sum, (&a, &b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += a * b;
        }
    }
    sums.into_iter().sum()
}

/// Adds `factor` times `row` to `sum`.
pub(crate) fn add_scaled<F: Float>(sum: &mut [F], factor: F, row: &[F]) {
    sum.iter_mut()
        .zip(row)
        .for_each(|(sum, &x)| *sum += factor * x);
}

/// Returns the Euclidean length of a row.
fn length<F: Float>(row: &[F]) -> f64 {
    row.iter().map(|x| x.to_f64().powi(2)).sum::<f64>().sqrt()
}
