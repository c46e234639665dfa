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
    /// Every node has one self-loop, as `PyG`'s `add_remaining_self_loops` leaves it, which enters
    /// in full through its own row; those among the kept in-edges count nothing there.
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
        let own = (0..csr.num_rows()).map(|v| round(self.own_weight(v) * inverse[v] * inverse[v]));
        (edge, own.collect())
    }

    fn num_loops(&self, u: usize) -> u32 {
        self.block.self_loops().map_or(0, |loops| loops[u])
    }

    /// Returns the weight of a node's one self-loop: the sum of the weights of those that it has,
    /// where weights are used (`PyG` keeps an unspecified one of them), else 1.
    fn own_weight(&self, u: usize) -> f64 {
        let sums = self.weight.and(self.block.self_weight());
        match sums.filter(|_| self.num_loops(u) > 0) {
            Some(sums) => f64::from(sums[u]),
            None => 1.0,
        }
    }

    /// Returns the sum over a node's in-edges in the whole graph, its self-loops replaced by one.
    fn degree(&self, u: usize) -> f64 {
        let loops = self.num_loops(u);
        match self.weight.and(self.block.in_weight()) {
            // The sum holds the weights of the self-loops already.
            Some(total) if loops > 0 => f64::from(total[u]),
            Some(total) => f64::from(total[u]) + 1.0,
            None => f64::from(self.block.in_degree()[u] - loops) + 1.0,
        }
    }

    /// Returns one over the root of a node's degree, 0 where that is no number.
    fn inverse_root(&self, u: usize) -> f64 {
        let degree = self.degree(u);
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
