//! GINE's sum of messages `relu(x[u] + lin(edge feature))`.

use std::sync::Arc;

use super::edge_projection::{EdgeProjection, transposed};
use super::prefetch::{AHEAD, prefetch};
use super::split::{fixed_pieces, for_rows, map, pieces, sum_in_order};
use super::{Csr, EdgeFeatures, Float, Forward, Gather, Kernel, Saved, Shared, Stored};

/// `out[v] = x[v] + sum over edges of edge[e] * relu(x[col[e]] + weight * feature[e] + bias)`,
/// without `x[v]` if no column is the row's own node.
///
/// Inputs are `x: [num_cols, dim]`, `weight: [dim, edge_dim]` and `bias: [dim]`.
#[derive(Clone, Debug)]
pub struct Gine {
    /// Which rows of the input each output row reads.
    pub csr: Arc<Csr>,
    /// `[num_edges, edge_dim]`.
    pub feature: Arc<EdgeFeatures>,
    /// `[num_edges]`: coefficient of each edge.
    pub edge: Shared<f32>,
}

/// The inputs, and the buffers that a thread reuses for each edge.
struct GineScratch<'a, F, S> {
    op: &'a Gine,
    x: &'a [S],
    bias: &'a [F],
    projection: &'a EdgeProjection<'a, F>,
    feature: Vec<F>,
    message: Vec<F>,
}

impl<F: Float, S: Stored<F>> GineScratch<'_, F, S> {
    /// Computes the message of an edge before the non-linearity.
    #[inline(always)]
    fn message(&mut self, edge: usize, u: usize) {
        let dim = self.message.len();
        let own = self.x[u * dim..(u + 1) * dim].iter().zip(self.bias);
        for (message, (x, &bias)) in self.message.iter_mut().zip(own) {
            *message = x.load() + bias;
        }
        self.projection.read(edge, &mut self.feature);
        self.projection.add(&self.feature, &mut self.message);
    }

    #[inline(always)]
    fn forward(&mut self, csr: &Csr, v: usize, out: &mut [F]) {
        let dim = out.len();
        match csr.own_col(v) {
            Some(own) => {
                let own = self.x[own * dim..][..dim].iter();
                out.iter_mut().zip(own).for_each(|(out, x)| *out = x.load());
            }
            None => out.fill(F::ZERO),
        }
        for edge in csr.row(v) {
            prefetch(self.x, csr.col.get(edge + AHEAD), dim);
            self.message(edge, csr.col[edge] as usize);
            let coefficient = F::from_f32(self.op.edge[edge]);
            for (out, &message) in out.iter_mut().zip(&self.message) {
                *out += if message > F::ZERO {
                    coefficient * message
                } else {
                    F::ZERO
                };
            }
        }
    }

    /// Replaces the message of an edge by its slope, computed from the slope of its row.
    #[inline(always)]
    fn slope(&mut self, edge: usize, u: usize, grad: &[F]) {
        self.message(edge, u);
        let coefficient = F::from_f32(self.op.edge[edge]);
        for (message, &grad) in self.message.iter_mut().zip(grad) {
            *message = if *message > F::ZERO {
                coefficient * grad
            } else {
                F::ZERO
            };
        }
    }
}

impl Gine {
    fn projection<F: Float>(&self, weight: &[F]) -> EdgeProjection<'_, F> {
        EdgeProjection::new(&self.feature, weight)
    }

    fn work<'a, F: Float, S: Stored<F>>(
        &'a self,
        x: &'a [S],
        inputs: &[&'a [F]],
        projection: &'a EdgeProjection<'a, F>,
    ) -> GineScratch<'a, F, S> {
        let dim = inputs[2].len();
        GineScratch {
            op: self,
            x,
            bias: inputs[2],
            projection,
            feature: vec![F::ZERO; projection.weight.len() / dim],
            message: vec![F::ZERO; dim],
        }
    }

    /// Sums the slopes of the transposed weight and of the bias over all edges.
    fn backward_weight<F: Float>(
        &self,
        inputs: &[&[F]],
        projection: &EdgeProjection<'_, F>,
        grad: &[F],
    ) -> (Vec<F>, Vec<F>) {
        let (csr, dim) = (&self.csr, inputs[2].len());
        let partial = map::<F, _, _>(
            fixed_pieces(&csr.offset),
            #[inline(always)]
            |range| {
                let mut work = self.work(inputs[0], inputs, projection);
                let mut weight = vec![F::ZERO; projection.weight.len()];
                let mut bias = vec![F::ZERO; dim];
                for v in range {
                    for edge in csr.row(v) {
                        work.slope(edge, csr.col[edge] as usize, &grad[v * dim..(v + 1) * dim]);
                        projection.add_slope(&work.feature, &work.message, &mut weight);
                        bias.iter_mut()
                            .zip(&work.message)
                            .for_each(|(sum, &slope)| *sum += slope);
                    }
                }
                (weight, bias)
            },
        );
        let (weight, bias): (Vec<_>, Vec<_>) = partial.into_iter().unzip();
        (sum_in_order(weight), sum_in_order(bias))
    }
}

impl Gather for Gine {
    const GATHERED: usize = 0;

    fn gather<F: Float, S: Stored<F>>(&self, x: &[S], inputs: &[&[F]]) -> Forward<F> {
        let (csr, dim) = (&self.csr, inputs[2].len());
        let projection = self.projection(inputs[1]);
        let mut out = vec![F::ZERO; csr.num_rows() * dim];
        let ranges = pieces(&csr.offset, csr.partitioning, dim);
        let work = || self.work(x, inputs, &projection);
        for_rows::<F, _, _>(
            &mut out,
            dim,
            ranges,
            work,
            #[inline(always)]
            |work, v, out| {
                work.forward(csr, v, out);
            },
        );
        Forward::of(out, dim)
    }
}

impl Kernel for Gine {
    fn forward<F: Float>(&self, inputs: &[&[F]]) -> Forward<F> {
        self.gather(inputs[0], inputs)
    }

    fn backward<F: Float>(
        &self,
        inputs: &[&[F]],
        _saved: &Saved<F>,
        grad: &[F],
        needed: &[bool],
    ) -> Vec<Vec<F>> {
        let (csr, dim) = (&self.csr, inputs[2].len());
        let projection = self.projection(inputs[1]);
        let (weight, bias) = self.backward_weight(inputs, &projection, grad);
        let weight = transposed(&weight, projection.weight.len() / dim);
        if !needed[0] {
            return vec![Vec::new(), weight, bias];
        }
        let transpose = csr.transposed();
        let mut out = vec![F::ZERO; inputs[0].len()];
        let ranges = pieces(&transpose.offset, csr.partitioning, dim);
        let work = || self.work(inputs[0], inputs, &projection);
        for_rows::<F, _, _>(
            &mut out,
            dim,
            ranges,
            work,
            #[inline(always)]
            |work, u, out| {
                if let Some(v) = csr.own_row(u) {
                    out.copy_from_slice(&grad[v * dim..(v + 1) * dim]);
                }
                for at in transpose.col(u) {
                    let v = transpose.row[at] as usize;
                    work.slope(
                        transpose.edge[at] as usize,
                        u,
                        &grad[v * dim..(v + 1) * dim],
                    );
                    out.iter_mut()
                        .zip(&work.message)
                        .for_each(|(sum, &slope)| *sum += slope);
                }
            },
        );
        vec![out, weight, bias]
    }
}
