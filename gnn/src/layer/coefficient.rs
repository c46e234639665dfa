//! Constant coefficients of the aggregations: degrees, weights and the scale of samples.

use crate::Block;
use crate::Sampling;
use crate::kernel::count_of;

/// Coefficients in f64, rounded to f32 once.
pub(super) struct Coefficients<'a> {
    block: &'a Block,
    /// The block's weights, if the architecture uses them.
    weight: Option<&'a [f32]>,
}

impl<'a> Coefficients<'a> {
    pub(super) fn new(block: &'a Block, use_weights: bool) -> Coefficients<'a> {
        let weight = block.edge_weight().filter(|_| use_weights);
        Coefficients { block, weight }
    }

    fn weight(&self, edge: usize) -> f64 {
        self.weight.map_or(1.0, |weight| f64::from(weight[edge]))
    }

    /// Returns each edge's weight, or none if all are 1.
    pub(super) fn weights(&self) -> Option<Vec<f32>> {
        self.weight.map(<[f32]>::to_vec)
    }

    /// Returns each edge's weight over the number of kept in-edges of its dst node.
    pub(super) fn mean(&self) -> Vec<f32> {
        self.per_edge(|v, edge| self.weight(edge) / count_of(self.block.csr().row(v).len()))
    }

    /// Returns each edge's coefficient in a sum that estimates the one over all in-edges.
    pub(super) fn sum(&self) -> Vec<f32> {
        self.per_edge(|v, edge| self.sum_term(v, edge))
    }

    /// Scales by in-degree over kept; a weighted sample's edges each stand for the mean weight.
    fn sum_term(&self, v: usize, edge: usize) -> f64 {
        let kept = self.block.csr().row(v).len();
        let degree = self.block.in_degree()[v];
        if kept == degree as usize || self.block.sampling() == Sampling::Top {
            return self.weight(edge);
        }
        let scale = f64::from(degree) / count_of(kept);
        match (self.block.sampling(), self.weight, self.block.in_weight()) {
            (Sampling::Weighted, Some(_), Some(total)) => {
                f64::from(total[v]) / f64::from(degree) * scale
            }
            _ => self.weight(edge) * scale,
        }
    }

    /// Returns GCN's coefficients: of each edge, and of each dst node's own row.
    ///
    /// A self-loop among the kept in-edges counts nothing there: a node's self-loops, or the one
    /// added if it has none, always enter in full through its own row.
    pub(super) fn gcn(&self) -> (Vec<f32>, Vec<f32>) {
        let csr = self.block.csr();
        let inverse: Vec<f64> = (0..self.block.num_src())
            .map(|u| self.inverse_root(u))
            .collect();
        let edge = self.per_edge(|v, edge| {
            let u = csr.col[edge] as usize;
            if u == v {
                0.0
            } else {
                self.sum_term(v, edge) * inverse[u] * inverse[v]
            }
        });
        let own = (0..csr.num_rows()).map(|v| {
            let weight = self.loop_weight(v).unwrap_or(1.0);
            round(weight * inverse[v] * inverse[v])
        });
        (edge, own.collect())
    }

    /// Returns the weight of a node's self-loops, if it has any.
    fn loop_weight(&self, u: usize) -> Option<f64> {
        let weight = f64::from(self.block.self_weight()?[u]);
        (weight != 0.0).then_some(weight)
    }

    /// Returns one over the root of a node's degree in the whole graph, 0 where that is no number.
    fn inverse_root(&self, u: usize) -> f64 {
        let total = self.weight.and(self.block.in_weight());
        let in_edges = total.map_or(f64::from(self.block.in_degree()[u]), |total| {
            f64::from(total[u])
        });
        let added = if self.loop_weight(u).is_some() {
            0.0
        } else {
            1.0
        };
        let degree = in_edges + added;
        if degree > 0.0 {
            1.0 / degree.sqrt()
        } else {
            0.0
        }
    }

    fn per_edge(&self, value: impl Fn(usize, usize) -> f64) -> Vec<f32> {
        let csr = self.block.csr();
        let mut values = Vec::with_capacity(csr.num_edges());
        for v in 0..csr.num_rows() {
            values.extend(csr.row(v).map(|edge| round(value(v, edge))));
        }
        values
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "coefficients are kept as f32"
)]
fn round(value: f64) -> f32 {
    value as f32
}
