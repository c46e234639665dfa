//! Constant coefficients of the aggregations: degrees, weights and the scale of samples.

use std::sync::OnceLock;

use crate::kernel::propagate::against;
use crate::kernel::{Shared, count_of};
use crate::{Block, Sampling};

/// Coefficients of a block's in-edges: computed in f64, rounded to f32 once, cached in the block.
#[derive(Clone, Copy, Debug)]
pub struct Coefficients<'a> {
    block: &'a Block,
    /// The block's weights, if the architecture uses them.
    weight: Option<&'a [f32]>,
}

impl<'a> Coefficients<'a> {
    /// Makes the coefficients of `block`, which depend on its edge weights only if `use_weights` is
    /// set.
    #[must_use]
    pub fn new(block: &'a Block, use_weights: bool) -> Coefficients<'a> {
        let weight = block.edge_weight().filter(|_| use_weights);
        Coefficients { block, weight }
    }

    fn weight(&self, edge: usize) -> f64 {
        self.weight.map_or(1.0, |weight| f64::from(weight[edge]))
    }

    fn cached<'c, T>(&self, of: &'c [OnceLock<T>; 2]) -> &'c OnceLock<T> {
        &of[usize::from(self.weight.is_some())]
    }

    /// Returns each edge's weight, or none if all are 1.
    #[must_use]
    pub fn weights(&self) -> Option<Shared<f32>> {
        let weight = self.weight?;
        let cache = self.block.cached_coefficients();
        let shared = cache.weights.get_or_init(|| weight.to_vec().into());
        Some(shared.clone())
    }

    /// Returns each edge's coefficient in a mean that estimates the mean over all in-edges.
    #[must_use]
    pub fn mean(&self) -> Shared<f32> {
        let compute = || Shared::from(self.per_row_term(|v, sum_term| sum_term / self.mean_of(v)));
        let cache = self.cached(&self.block.cached_coefficients().mean);
        cache.get_or_init(compute).clone()
    }

    /// Returns each edge's coefficient in a sum that estimates the sum over all in-edges.
    #[must_use]
    pub fn sum(&self) -> Shared<f32> {
        let compute = || Shared::from(self.per_row_term(|_, sum_term| sum_term));
        let cache = self.cached(&self.block.cached_coefficients().sum);
        cache.get_or_init(compute).clone()
    }

    /// Returns the divisor of a row's mean: the kept in-edges if the heaviest were kept, else all.
    fn mean_of(&self, v: usize) -> f64 {
        match self.block.sampling() {
            Sampling::Top => count_of(self.block.csr().row(v).len()),
            Sampling::Uniform | Sampling::Weighted => {
                f64::from(self.block.in_degree()[self.block.csr().own(v)])
            }
        }
    }

    /// Returns the coefficients of row `v` in a sum that estimates the sum over all in-edges.
    ///
    /// A uniform sample is scaled by in-degree / number of kept in-edges. A weighted sample is a
    /// sequence of draws without replacement, each in proportion to the weight. If draw i gives
    /// edge e, then the sum of the `w x` drawn before, plus `x[e]` times the weight not drawn
    /// before, is an unbiased estimate of the sum of `w x` (Des Raj, 1956). The coefficients are
    /// the mean of these estimates over the draws.
    fn sum_terms(&self, v: usize) -> impl Iterator<Item = f64> {
        let row = self.block.csr().row(v);
        let own = self.block.csr().own(v);
        let (kept, degree) = (row.len(), self.block.in_degree()[own]);
        let is_sample = kept != degree as usize && self.block.sampling() != Sampling::Top;
        let total = self.weight.and(self.block.in_weight());
        let total = total.filter(|_| self.block.sampling() == Sampling::Weighted);
        let mut left = total.map(|total| f64::from(total[own]));
        row.enumerate().map(move |(draw, edge)| {
            let weight = self.weight(edge);
            match &mut left {
                _ if !is_sample => weight,
                // An edge of weight 0 is drawn after all others: the estimates before it are exact.
                Some(_) if weight == 0.0 => 0.0,
                Some(left) => {
                    let drawn_later = count_of(kept - 1 - draw);
                    let term = (*left + drawn_later * weight) / count_of(kept);
                    *left -= weight;
                    term
                }
                None => weight * f64::from(degree) / count_of(kept),
            }
        })
    }

    /// Returns GCN's coefficients: of each edge, and of each dst node's own row.
    ///
    /// Every node has one self-loop, as after `PyG`'s `add_remaining_self_loops`. It counts through
    /// the node's own row; the self-loops among the kept in-edges have coefficient 0.
    #[must_use]
    pub fn gcn(&self) -> (Shared<f32>, Shared<f32>) {
        let compute = || self.compute_gcn();
        let cache = self.cached(&self.block.cached_coefficients().gcn);
        cache.get_or_init(compute).clone()
    }

    fn compute_gcn(&self) -> (Shared<f32>, Shared<f32>) {
        let (csr, nodes) = (self.block.csr(), self.block.nodes());
        let is_weighted = self.weight.is_some();
        let inverse = nodes.inverse_roots(is_weighted);
        let edge = self.per_edge(|v, edge, sum_term| {
            let (u, own) = (csr.col[edge] as usize, csr.own(v));
            if u == own {
                0.0
            } else {
                sum_term * inverse[u] * inverse[own]
            }
        });
        let own = (0..csr.num_rows()).map(|v| csr.own(v));
        let own_weight = |v| nodes.own_weight(v, is_weighted);
        let own = own.map(|v| round(own_weight(v) * inverse[v] * inverse[v]));
        (edge.into(), own.collect::<Vec<f32>>().into())
    }

    /// Returns `LightGCN`'s coefficient of each edge; self-loops are edges as all others.
    #[must_use]
    pub fn light(&self) -> Shared<f32> {
        let cache = &self.block.cached_coefficients().light;
        let compute = || {
            let (csr, roots) = (self.block.csr(), self.block.nodes().light_roots());
            let plain = Coefficients {
                weight: None,
                ..*self
            };
            let of_edge = |v, edge: usize, term: f64| {
                let src = csr.col[edge] as usize;
                term * roots[src] * roots[csr.own(v)]
            };
            plain.per_edge(of_edge).into()
        };
        cache.get_or_init(compute).clone()
    }

    /// Returns [`light`](Self::light) in the order of the src nodes.
    pub(crate) fn light_back(&self) -> Shared<f32> {
        let compute = || against(self.block.csr(), &self.light());
        let cache = &self.block.cached_coefficients().light_back;
        cache.get_or_init(compute).clone()
    }

    /// Computes a value of each edge from its row and its term of the row's sum.
    fn per_row_term(&self, value: impl Fn(usize, f64) -> f64) -> Vec<f32> {
        if self.weight.is_some() {
            return self.per_edge(|v, _, term| value(v, term));
        }
        // All terms of a row are the same.
        let csr = self.block.csr();
        let mut values = Vec::with_capacity(csr.num_edges());
        for v in 0..csr.num_rows() {
            if let Some(term) = self.sum_terms(v).next() {
                values.resize(csr.row(v).end, round(value(v, term)));
            }
        }
        values
    }

    /// Computes a value of each edge from its row, its position and its term of the row's sum.
    fn per_edge(&self, value: impl Fn(usize, usize, f64) -> f64) -> Vec<f32> {
        let csr = self.block.csr();
        let mut values = Vec::with_capacity(csr.num_edges());
        for v in 0..csr.num_rows() {
            let terms = csr.row(v).zip(self.sum_terms(v));
            values.extend(terms.map(|(edge, term)| round(value(v, edge, term))));
        }
        values
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "coefficients are kept as f32"
)]
pub(crate) fn round(value: f64) -> f32 {
    value as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BlockData;

    /// In-edges of one node, from nodes 1, 2, ...; one has weight 0.
    const WEIGHTS: [f32; 5] = [0.5, 3.0, 1.0, 0.0, 2.5];

    /// A block of node 0 and its in-edges at the positions `kept`, in rank order.
    fn block(kept: &[usize], sampling: Sampling) -> Block {
        let num_src = WEIGHTS.len() + 1;
        let mut in_degree = vec![0; num_src];
        in_degree[0] = 5;
        let mut in_weight = vec![0.0; num_src];
        in_weight[0] = WEIGHTS.iter().sum();
        Block::new(BlockData {
            num_src,
            num_dst: 1,
            num_active: 1,
            in_offset: vec![0, u32::try_from(kept.len()).unwrap()],
            in_src: kept
                .iter()
                .map(|&at| u32::try_from(at).unwrap() + 1)
                .collect(),
            edge_weight: Some(kept.iter().map(|&at| WEIGHTS[at]).collect()),
            in_degree,
            in_weight: Some(in_weight),
            node_key: vec![0; num_src],
            sampling,
            ..BlockData::default()
        })
        .unwrap()
    }

    /// Every sequence of `len` draws without replacement, with its probability.
    fn sequences(len: usize, weights: [f64; 5]) -> Vec<(Vec<usize>, f64)> {
        let mut all = vec![(Vec::new(), 1.0)];
        for _ in 0..len {
            let longer = all
                .iter()
                .flat_map(|(drawn, probability): &(Vec<usize>, f64)| {
                    let is_left = |at: &usize| !drawn.contains(at);
                    let left: f64 = (0..5).filter(is_left).map(|at| weights[at]).sum();
                    let next = (0..5).filter(is_left).map(move |at| {
                        let longer = [&drawn[..], &[at]].concat();
                        (
                            longer,
                            probability * if left > 0.0 { weights[at] / left } else { 1.0 },
                        )
                    });
                    next.collect::<Vec<_>>()
                });
            all = longer
                .filter(|(_, probability)| *probability > 0.0)
                .collect();
        }
        all
    }

    /// The expected coefficient of each in-edge over all samples.
    fn expected(
        len: usize,
        (sampling, use_weights): (Sampling, bool),
        of: fn(&Coefficients<'_>) -> Shared<f32>,
    ) -> [f64; 5] {
        let weights = match sampling {
            Sampling::Weighted => WEIGHTS.map(f64::from),
            _ => [1.0; 5],
        };
        let mut mean = [0.0; 5];
        for (drawn, probability) in sequences(len, weights) {
            let block = block(&drawn, sampling);
            let coefficients = of(&Coefficients::new(&block, use_weights));
            for (at, &coefficient) in drawn.into_iter().zip(&*coefficients) {
                mean[at] += probability * f64::from(coefficient);
            }
        }
        mean
    }

    #[test]
    fn sums_and_means_of_a_sample_are_expected_to_be_those_of_all_in_edges() {
        for len in 1..=5 {
            for (sampling, use_weights) in [
                (Sampling::Uniform, false),
                (Sampling::Uniform, true),
                (Sampling::Weighted, true),
            ] {
                let wanted = WEIGHTS.map(|w| if use_weights { f64::from(w) } else { 1.0 });
                let sum = expected(len, (sampling, use_weights), |of| of.sum());
                let mean = expected(len, (sampling, use_weights), |of| of.mean());
                for at in 0..5 {
                    let what = format!("{len} of 5, {sampling:?}, edge {at}");
                    assert!((sum[at] - wanted[at]).abs() < 1e-5, "{what}: sum {sum:?}");
                    assert!(
                        (mean[at] - wanted[at] / 5.0).abs() < 1e-5,
                        "{what}: mean {mean:?}"
                    );
                }
            }
        }
    }

    /// What versions of embeddings rely on: another in-degree changes no row by itself.
    #[test]
    fn the_in_degree_cancels_from_the_mean_of_a_sample() {
        for kept in (1..=200).chain([255, 256, 1000, 4095]) {
            for more in [0, 1, 2, 3, 7, 100, 999, 65_537, 10_000_019] {
                let mut in_degree = vec![0; kept + 1];
                in_degree[0] = u32::try_from(kept).unwrap() + more;
                let block = Block::new(BlockData {
                    num_src: kept + 1,
                    num_dst: 1,
                    num_active: 1,
                    in_offset: vec![0, u32::try_from(kept).unwrap()],
                    in_src: (1..=u32::try_from(kept).unwrap()).collect(),
                    in_degree,
                    node_key: vec![0; kept + 1],
                    sampling: Sampling::Uniform,
                    ..BlockData::default()
                })
                .unwrap();
                let mean = Coefficients::new(&block, false).mean();
                let expected = round(1.0 / count_of(kept)).to_bits();
                let what = format!("{kept} of {}", kept + more as usize);
                assert!(mean.iter().all(|of| of.to_bits() == expected), "{what}");
            }
        }
    }
}
