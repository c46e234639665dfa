//! The softmax over the edges of each row, whatever their relation.

use std::ops::Range;
use std::sync::Arc;

use crate::kernel::attention::softmax;
use crate::kernel::split::{map, pieces, split_mut};
use crate::kernel::{Csr, Float, Forward, Kernel, Mask, Saved, Shared};

/// Dropout of coefficients.
#[derive(Clone, Debug)]
pub struct EdgeDropout {
    /// The mask.
    pub mask: Mask,
    /// The keys of the nodes, as a block holds them.
    pub key: Shared<u64>,
    /// `[num_edges]`: the relation of each edge, if rows have edges of several relations.
    pub relation: Option<Shared<u32>>,
}

/// `out[e, head] = factor[e, head] * softmax over the edges of row v of score[e, head]`, where
/// `factor` is the edge's weight times its dropout.
///
/// The input is `score: [num_edges, heads]`.
#[derive(Clone, Debug)]
pub struct EdgeSoftmax {
    /// The edges.
    pub csr: Arc<Csr>,
    /// Number of heads.
    pub heads: usize,
    /// `[num_edges]`: factor of each coefficient, after the softmax.
    pub weight: Option<Shared<f32>>,
    /// Dropout of coefficients, if there is one.
    pub dropout: Option<EdgeDropout>,
}

impl EdgeSoftmax {
    /// Multiplies the values of a row's edges by weight and dropout.
    #[inline(always)]
    fn scale<F: Float>(&self, v: usize, values: &mut [F]) {
        let (csr, heads) = (&*self.csr, self.heads);
        if let Some(weight) = &self.weight {
            for (edge, values) in csr.row(v).zip(values.chunks_exact_mut(heads)) {
                let weight = F::from_f32(weight[edge]);
                values.iter_mut().for_each(|value| *value *= weight);
            }
        }
        let Some(dropout) = &self.dropout else { return };
        // An edge is named by its relation and its rank among the row's edges of that relation,
        // which are the same in every batch.
        let dst = dropout.key[csr.own_key(v)];
        let (mut last, mut rank) = (None, 0);
        for (edge, values) in csr.row(v).zip(values.chunks_exact_mut(heads)) {
            let relation = dropout
                .relation
                .as_ref()
                .map_or(0, |of| u64::from(of[edge]));
            rank = if last == Some(relation) { rank + 1 } else { 0 };
            last = Some(relation);
            let src = dropout.key[csr.col[edge] as usize];
            let mask = dropout.mask.edge(dst, src, (relation << 32) + rank);
            for (value, head) in values.iter_mut().zip(0_u32..) {
                *value *= mask.factor(head);
            }
        }
    }

    /// Runs `set` on the values of each row's edges.
    fn each_row<F: Float>(&self, values: &mut [F], set: impl Fn(usize, &mut [F]) + Send + Sync) {
        let (csr, heads) = (&*self.csr, self.heads);
        let ranges = pieces(&csr.offset, csr.partitioning, heads);
        let start = |v: usize| csr.offset[v] as usize * heads;
        let parts = split_mut(values, &ranges, start);
        map::<F, _, _>(
            ranges.into_iter().zip(parts).collect(),
            #[inline(always)]
            |(range, part)| {
                let range: Range<usize> = range;
                let first = start(range.start);
                for v in range {
                    set(v, &mut part[start(v) - first..start(v + 1) - first]);
                }
            },
        );
    }
}

impl Kernel for EdgeSoftmax {
    fn forward<F: Float>(&self, inputs: &[&[F]]) -> Forward<F> {
        let heads = self.heads;
        let mut alpha = inputs[0].to_vec();
        self.each_row(
            &mut alpha,
            #[inline(always)]
            |_, alpha| softmax(alpha, heads),
        );
        // The backward pass reads the coefficients before they are scaled.
        let mut out = alpha.clone();
        if self.weight.is_some() || self.dropout.is_some() {
            self.each_row(
                &mut out,
                #[inline(always)]
                |v, out| self.scale(v, out),
            );
        }
        Forward {
            out,
            cols: heads,
            saved: Saved {
                values: alpha,
                positions: Vec::new(),
            },
        }
    }

    fn backward<F: Float>(
        &self,
        _inputs: &[&[F]],
        saved: &Saved<F>,
        grad: &[F],
        _needed: &[bool],
    ) -> Vec<Vec<F>> {
        let (csr, heads) = (&*self.csr, self.heads);
        let mut slopes = grad.to_vec();
        self.each_row(
            &mut slopes,
            #[inline(always)]
            |v, slopes| {
                self.scale(v, slopes);
                let own = csr.row(v);
                let alpha = &saved.values[own.start * heads..own.end * heads];
                let mut sums = vec![F::ZERO; heads];
                let rows = alpha.chunks_exact(heads);
                for (alpha, slope) in rows.clone().zip(slopes.chunks_exact(heads)) {
                    for (sum, (&alpha, &slope)) in sums.iter_mut().zip(alpha.iter().zip(slope)) {
                        *sum += alpha * slope;
                    }
                }
                for (alpha, slope) in rows.zip(slopes.chunks_exact_mut(heads)) {
                    for (slope, (&alpha, &sum)) in slope.iter_mut().zip(alpha.iter().zip(&sums)) {
                        *slope = alpha * (*slope - sum);
                    }
                }
            },
        );
        vec![slopes]
    }
}
