//! The training pass of a `LightGCN` of links on the processor, without a recorded graph of operations.
//!
//! A layer has neither weights nor non-linearities, so its gradient is the same sum along the
//! reversed edges. With `y[0] = x` and `y[l + 1] = A[l] y[l] + x`, the embeddings are
//! `y[K] / (K + 1)`. Their gradient g gives `r[K] = g / (K + 1)` and `r[l] = A[l]^T r[l + 1]`, and x
//! has the gradient `r[0] + ... + r[K]`.

use std::sync::Arc;

use burn::tensor::DType;
use rayon::prelude::*;

use crate::kernel::propagate::EdgeLists;
use crate::kernel::{Csr, Float, Shared, count_of};
use crate::layer::read;
use crate::link::{Decoder, PairSlopes, Weights, loss_and_slope};
use crate::model::{LossAndGradient, ModelState};
use crate::tensor::ReadyFeatures;
use crate::{Block, Coefficients, Dense, Pairs, ReadyInput};

/// The sum over the in-edges of one relation.
#[derive(Clone, Debug)]
pub(crate) struct LightSum {
    /// Types of src and dst nodes.
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) csr: Arc<Csr>,
    /// `[num_edges]`: coefficients.
    pub(crate) edge: Shared<f32>,
    /// `[num_edges]`: coefficients in the order of the src nodes.
    pub(crate) back: Shared<f32>,
}

/// One layer: the sums over in-edges, and the numbers of nodes by type.
#[derive(Clone, Debug)]
pub(crate) struct LightLayer {
    pub(crate) num_src: Vec<usize>,
    pub(crate) num_dst: Vec<usize>,
    /// In the order of the relations.
    pub(crate) sums: Vec<LightSum>,
}

/// The layers of a batch.
pub(crate) struct Light<'a> {
    pub(crate) layers: &'a [LightLayer],
    pub(crate) dim: usize,
}

/// The rows of the last layer that are read, by type and ascending; none: all of them.
type Read = Vec<Option<Vec<u32>>>;

/// Values that one thread scales at a time.
const CHUNK: usize = 1 << 14;

/// A list of rows pays if fewer than one in so many rows are read.
const FEW: usize = 4;

impl LightLayer {
    /// Returns the layer of a block without types.
    pub(crate) fn of_block(block: &Block) -> Self {
        let coefficients = Coefficients::new(block, false);
        let sum = LightSum {
            from: 0,
            to: 0,
            csr: Arc::clone(block.csr()),
            edge: coefficients.light(),
            back: coefficients.light_back(),
        };
        Self {
            num_src: vec![block.num_src()],
            num_dst: vec![block.num_dst()],
            sums: vec![sum],
        }
    }
}

/// Returns the learnable rows of a type, which may have no nodes; none if they are not dense numbers
/// of 32 bits.
pub(crate) fn start_rows(input: Option<&ReadyInput>) -> Option<Vec<f32>> {
    match input.map(|input| &input.features) {
        None => Some(Vec::new()),
        Some(ReadyFeatures::Dense(rows)) if rows.dtype() == DType::F32 => read(rows.clone()).ok(),
        Some(ReadyFeatures::Dense(_) | ReadyFeatures::Sparse(_)) => None,
    }
}

/// The loss of a batch and its gradient.
pub(crate) struct LightSlopes<F> {
    pub(crate) loss_sum: f64,
    /// Of the decoder's parameters.
    pub(crate) parameters: Vec<F>,
    /// By type, `[num_src of the first layer, dim]`: of the learnable rows.
    pub(crate) start: Vec<Vec<F>>,
    /// `[num_dst of the last layer, dim]`, type after type: the embeddings, zeros if they are not read.
    pub(crate) embeddings: Vec<F>,
}

impl Light<'_> {
    /// Returns the loss of pairs and its gradient, as [`crate::Model::loss_and_gradient`] does.
    pub(crate) fn loss_and_gradient(
        &self,
        (state, decoder): (&ModelState, Decoder),
        start: &[Vec<f32>],
        pairs: &Pairs,
        normalizer: f64,
    ) -> LossAndGradient {
        let weights = Weights::last_of(decoder, self.dim, &state.flat);
        let start: Vec<&[f32]> = start.iter().map(|rows| &rows[..]).collect();
        let slopes = self.loss_and_slopes(weights, &start, pairs, normalizer);
        let cols = self.dim;
        let dense = |values: Vec<f32>| Dense {
            rows: values.len() / cols,
            cols,
            values,
        };
        let of_type = |values: Vec<f32>| (!values.is_empty()).then(|| dense(values));
        LossAndGradient {
            loss_sum: slopes.loss_sum,
            gradient: slopes.parameters,
            rows: slopes.start.into_iter().map(of_type).collect(),
            logits: dense(slopes.embeddings),
            buffers: state.buffers.clone(),
        }
    }

    /// Returns the loss sum of pairs, and the gradient of `loss sum / normalizer`. `start` has the
    /// learnable rows by type.
    pub(crate) fn loss_and_slopes<F: Float>(
        &self,
        weights: Weights<'_, F>,
        start: &[&[F]],
        pairs: &Pairs,
        normalizer: f64,
    ) -> LightSlopes<F> {
        let read = self.read(pairs);
        let embeddings = self.forward(start, &read);
        let PairSlopes {
            loss_sum,
            rows,
            parameters,
        } = loss_and_slope(weights, &embeddings, pairs, normalizer);
        LightSlopes {
            loss_sum,
            parameters,
            start: self.backward(rows, &read),
            embeddings,
        }
    }

    fn last(&self) -> &LightLayer {
        self.layers.last().expect("a model has a layer")
    }

    /// Returns 1 / (number of layers + 1).
    fn share<F: Float>(&self) -> F {
        F::from_f64(1.0 / count_of(self.layers.len() + 1))
    }

    /// Lists the rows that pairs read.
    fn read(&self, pairs: &Pairs) -> Read {
        let num_dst = &self.last().num_dst;
        let mut is_read = vec![false; num_dst.iter().sum()];
        for rows in [&pairs.src, &pairs.dst, &pairs.negative, &pairs.all] {
            rows.iter().for_each(|&row| is_read[row as usize] = true);
        }
        let mut of_types = &is_read[..];
        let of_type = |&len: &usize| {
            let (own, rest) = of_types.split_at(len);
            of_types = rest;
            let rows = (0..).zip(own);
            let rows: Vec<u32> = rows
                .filter_map(|(row, &read)| read.then_some(row))
                .collect();
            (rows.len() < len / FEW).then_some(rows)
        };
        num_dst.iter().map(of_type).collect()
    }

    /// Returns the embeddings of the dst nodes of the last layer, type after type.
    pub(crate) fn forward<F: Float>(&self, start: &[&[F]], read: &Read) -> Vec<F> {
        let dim = self.dim;
        let mut rows: Vec<F> = Vec::new();
        for (at, layer) in self.layers.iter().enumerate() {
            let is_last = at + 1 == self.layers.len();
            let src = match at {
                0 => start.to_vec(),
                _ => split(&rows, &layer.num_src, dim),
            };
            let scale = if is_last { self.share() } else { F::ONE };
            let num_dst: usize = layer.num_dst.iter().sum();
            let mut next = vec![F::ZERO; num_dst * dim];
            let outs = split_mut(&mut next, &layer.num_dst, dim);
            for (to, out) in outs.into_iter().enumerate() {
                let onto = &start[to][..out.len()];
                let into: Vec<&LightSum> = layer.sums.iter().filter(|sum| sum.to == to).collect();
                let Some((last, others)) = into.split_last() else {
                    let both = out.iter_mut().zip(onto);
                    both.for_each(|(sum, &x)| *sum = x * scale);
                    continue;
                };
                let few = read[to].as_ref().filter(|_| is_last);
                let mut onto = Some(onto);
                let all = others.iter().map(|&sum| (sum, F::ONE));
                for (sum, factor) in all.chain([(*last, scale)]) {
                    let lists = EdgeLists::along(&sum.csr, &sum.edge);
                    let x = (src[sum.from], dim);
                    match few {
                        Some(few) => lists.sum_some_onto(few, x, onto, factor, out),
                        None => lists.sum_onto(x, onto, factor, out),
                    }
                    onto = None;
                }
            }
            rows = next;
        }
        rows
    }

    /// Returns the gradient of the learnable rows, by type, given the gradient of the embeddings.
    pub(crate) fn backward<F: Float>(&self, mut slopes: Vec<F>, read: &Read) -> Vec<Vec<F>> {
        let (dim, share) = (self.dim, self.share());
        let scale = |some: &mut [F]| some.iter_mut().for_each(|slope| *slope *= share);
        slopes.par_chunks_mut(CHUNK).for_each(scale);
        let mut totals: Vec<Vec<F>> = Vec::new();
        let of_types = split(&slopes, &self.last().num_dst, dim);
        for (&num_src, own) in self.layers[0].num_src.iter().zip(of_types) {
            let mut total = own.to_vec();
            total.resize(num_src * dim, F::ZERO);
            totals.push(total);
        }
        for (at, layer) in self.layers.iter().enumerate().rev() {
            let of_dst = split(&slopes, &layer.num_dst, dim);
            let is_last = at + 1 == self.layers.len();
            let num_src: usize = layer.num_src.iter().sum();
            let mut next = vec![F::ZERO; if at == 0 { 0 } else { num_src * dim }];
            let lens = if at == 0 {
                vec![0; totals.len()]
            } else {
                layer.num_src.clone()
            };
            let outs = split_mut(&mut next, &lens, dim)
                .into_iter()
                .zip(&mut totals);
            for (from, (out, total)) in outs.enumerate() {
                let total = &mut total[..layer.num_src[from] * dim];
                let mut adds = false;
                for sum in layer.sums.iter().filter(|sum| sum.from == from) {
                    let x = (of_dst[sum.to], dim);
                    if let Some(few) = read[sum.to].as_ref().filter(|_| is_last) {
                        let lists = EdgeLists::along(&sum.csr, &sum.edge);
                        lists.scatter_some(few, x, total);
                        if at > 0 {
                            lists.scatter_some(few, x, out);
                        }
                    } else {
                        let lists = EdgeLists::against(&sum.csr, &sum.back);
                        match at {
                            0 => lists.sum_onto(x, None, F::ONE, total),
                            _ => lists.sum_and_total(x, adds, out, total),
                        }
                    }
                    adds = true;
                }
            }
            slopes = next;
        }
        totals
    }
}

/// Cuts rows by type.
fn split<'a, F>(mut rows: &'a [F], lens: &[usize], dim: usize) -> Vec<&'a [F]> {
    let of_type = |&len: &usize| {
        let (own, rest) = rows.split_at(len * dim);
        rows = rest;
        own
    };
    lens.iter().map(of_type).collect()
}

/// Cuts rows by type.
fn split_mut<'a, F>(mut rows: &'a mut [F], lens: &[usize], dim: usize) -> Vec<&'a mut [F]> {
    let mut parts = Vec::with_capacity(lens.len());
    for len in lens {
        let (own, rest) = rows.split_at_mut(len * dim);
        parts.push(own);
        rows = rest;
    }
    parts
}

#[cfg(test)]
mod tests;
