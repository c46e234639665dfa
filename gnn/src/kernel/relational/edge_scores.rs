//! Scores of edges: a sum of one number of each end and one of the edge or its relation.

use std::sync::Arc;

use crate::kernel::attention::{leaky, leaky_slope};
use crate::kernel::heads::{add_scaled, row};
use crate::kernel::split::{fixed_pieces, for_rows, map, pieces, split_mut, sum_in_order};
use crate::kernel::{Csr, Float, Forward, Kernel, Saved, Shared};

/// The third term of an edge's score.
#[derive(Clone, Debug)]
pub enum EdgeTerm {
    /// None: the third input is not read.
    None,
    /// The third input has a row for each edge.
    Edge,
    /// The third input has a row for each relation; the relation of each edge is given.
    Relation(Shared<u32>),
}

/// `out[e, head] = leaky(src[col[e], first + head] + dst[v, head] + z[head])` for each edge `e` of
/// row `v`, where `z` is the row of the edge, or of its relation.
///
/// Inputs are `src: [num_cols, any]`, `dst: [num_rows, heads]` and `z: [num_edges, heads]` or
/// `[num_relations, heads]`.
#[derive(Clone, Debug)]
pub struct EdgeScores {
    /// The edges.
    pub csr: Arc<Csr>,
    /// Number of heads.
    pub heads: usize,
    /// First column of `src` that is read.
    pub first: usize,
    /// What the third input holds.
    pub term: EdgeTerm,
}

impl EdgeScores {
    /// Returns the row of `z` of an edge.
    #[inline(always)]
    fn term_row(&self, edge: usize) -> Option<usize> {
        match &self.term {
            EdgeTerm::None => None,
            EdgeTerm::Edge => Some(edge),
            EdgeTerm::Relation(relation) => Some(relation[edge] as usize),
        }
    }

    /// Sets `out` to the score of an edge of row `v` before the non-linearity.
    #[inline(always)]
    fn read<F: Float>(&self, inputs: &[&[F]], v: usize, edge: usize, out: &mut [F]) {
        let (src, heads) = (inputs[0], self.heads);
        let stride = src.len() / self.csr.num_cols;
        let start = self.csr.col[edge] as usize * stride + self.first;
        let ends = src[start..start + heads]
            .iter()
            .zip(row(inputs[1], v, heads));
        for (out, (&src, &dst)) in out.iter_mut().zip(ends) {
            *out = src + dst;
        }
        if let Some(at) = self.term_row(edge) {
            add_scaled(out, F::ONE, row(inputs[2], at, heads));
        }
    }

    /// Turns the slopes of the scores into slopes of the sums; returns those of `dst` and of `z`.
    fn backward_rows<F: Float>(&self, inputs: &[&[F]], slopes: &mut [F]) -> [Vec<F>; 2] {
        let (csr, heads) = (&*self.csr, self.heads);
        let mut dst = vec![F::ZERO; csr.num_rows() * heads];
        let num_terms = if matches!(self.term, EdgeTerm::Relation(_)) {
            inputs[2].len()
        } else {
            0
        };
        let ranges = fixed_pieces(&csr.offset);
        let edges = split_mut(slopes, &ranges, |v| csr.offset[v] as usize * heads);
        let dsts = split_mut(&mut dst, &ranges, |v| v * heads);
        let tasks = ranges
            .into_iter()
            .zip(edges.into_iter().zip(dsts))
            .collect();
        let partial = map::<F, _, _>(
            tasks,
            #[inline(always)]
            |(range, (slopes, dsts))| {
                let range: std::ops::Range<usize> = range;
                let mut of_terms = vec![F::ZERO; num_terms];
                let mut inner = vec![F::ZERO; heads];
                let first = csr.offset[range.start] as usize;
                for (v, dst) in range.zip(dsts.chunks_exact_mut(heads)) {
                    for edge in csr.row(v) {
                        let slope = &mut slopes[(edge - first) * heads..][..heads];
                        self.read(inputs, v, edge, &mut inner);
                        for (slope, &inner) in slope.iter_mut().zip(&inner) {
                            *slope *= leaky_slope(inner);
                        }
                        add_scaled(dst, F::ONE, slope);
                        if let EdgeTerm::Relation(relation) = &self.term {
                            let term = &mut of_terms[relation[edge] as usize * heads..][..heads];
                            add_scaled(term, F::ONE, slope);
                        }
                    }
                }
                of_terms
            },
        );
        [dst, sum_in_order(partial)]
    }
}

impl Kernel for EdgeScores {
    fn forward<F: Float>(&self, inputs: &[&[F]]) -> Forward<F> {
        let (csr, heads) = (&*self.csr, self.heads);
        let mut out = vec![F::ZERO; csr.num_edges() * heads];
        let ranges = pieces(&csr.offset, csr.partitioning, heads);
        let parts = split_mut(&mut out, &ranges, |v| csr.offset[v] as usize * heads);
        map::<F, _, _>(
            ranges.into_iter().zip(parts).collect(),
            #[inline(always)]
            |(range, part)| {
                let range: std::ops::Range<usize> = range;
                let edges = range.flat_map(|v| csr.row(v).map(move |edge| (v, edge)));
                for ((v, edge), out) in edges.zip(part.chunks_exact_mut(heads)) {
                    self.read(inputs, v, edge, out);
                    out.iter_mut().for_each(|score| *score = leaky(*score));
                }
            },
        );
        Forward::of(out, heads)
    }

    fn backward<F: Float>(
        &self,
        inputs: &[&[F]],
        _saved: &Saved<F>,
        grad: &[F],
        _needed: &[bool],
    ) -> Vec<Vec<F>> {
        let (csr, heads) = (&*self.csr, self.heads);
        let mut slopes = grad.to_vec();
        let [dst, of_relations] = self.backward_rows(inputs, &mut slopes);
        let transposed = csr.transposed();
        let mut src = vec![F::ZERO; inputs[0].len()];
        let stride = inputs[0].len() / csr.num_cols;
        let ranges = pieces(&transposed.offset, csr.partitioning, heads);
        for_rows::<F, _, _>(
            &mut src,
            stride,
            ranges,
            || (),
            #[inline(always)]
            |(), u, out| {
                let out = &mut out[self.first..self.first + heads];
                for at in transposed.col(u) {
                    add_scaled(
                        out,
                        F::ONE,
                        row(&slopes, transposed.edge[at] as usize, heads),
                    );
                }
            },
        );
        let z = match self.term {
            EdgeTerm::None => vec![F::ZERO; inputs[2].len()],
            EdgeTerm::Edge => slopes,
            EdgeTerm::Relation(_) => of_relations,
        };
        vec![src, dst, z]
    }
}
