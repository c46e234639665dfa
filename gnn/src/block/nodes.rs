//! Columns of nodes that blocks share: degrees, sums of weights, self-loops.

use std::sync::OnceLock;

use super::check::{ensure, same_length};
use crate::GnnError;

/// Degrees, sums of weights and self-loops of src nodes. Many blocks may share them.
#[derive(Debug)]
pub struct NodeColumns {
    in_degree: Vec<u32>,
    in_weight: Option<Vec<f32>>,
    self_loops: Option<Vec<u32>>,
    self_weight: Option<Vec<f32>>,
    /// GCN's factor of each node, without and with edge weights.
    inverse_roots: [OnceLock<Vec<f64>>; 2],
    light_roots: OnceLock<Vec<f64>>,
}

/// Returns the factor of a node in `LightGCN`: `1 / sqrt(degree)`, 0 without in-edges.
pub(crate) fn light_root(degree: f64) -> f64 {
    if degree > 0.0 {
        1.0 / degree.sqrt()
    } else {
        0.0
    }
}

impl NodeColumns {
    /// Makes the columns of all nodes of a graph, each `[num_nodes]`; `BlockData` says what each
    /// holds and when it is present.
    ///
    /// # Errors
    ///
    /// [`GnnError::Block`] names the first column that contradicts the others.
    pub fn new(
        in_degree: Vec<u32>,
        in_weight: Option<Vec<f32>>,
        self_loops: Option<Vec<u32>>,
        self_weight: Option<Vec<f32>>,
    ) -> Result<NodeColumns, GnnError> {
        let columns = Self::of(in_degree, in_weight, self_loops, self_weight);
        columns.check(columns.in_weight.is_some())?;
        Ok(columns)
    }

    pub(super) fn of(
        in_degree: Vec<u32>,
        in_weight: Option<Vec<f32>>,
        self_loops: Option<Vec<u32>>,
        self_weight: Option<Vec<f32>>,
    ) -> NodeColumns {
        NodeColumns {
            in_degree,
            in_weight,
            self_loops,
            self_weight,
            inverse_roots: Default::default(),
            light_roots: OnceLock::new(),
        }
    }

    /// Returns the columns of some nodes, given by their positions.
    ///
    /// # Panics
    ///
    /// If a position is out of range.
    #[must_use]
    pub fn pick(&self, nodes: &[u32]) -> NodeColumns {
        let counts = |of: &Vec<u32>| nodes.iter().map(|&u| of[u as usize]).collect::<Vec<u32>>();
        let floats = |of: &Vec<f32>| nodes.iter().map(|&u| of[u as usize]).collect::<Vec<f32>>();
        Self::of(
            counts(&self.in_degree),
            self.in_weight.as_ref().map(floats),
            self.self_loops.as_ref().map(counts),
            self.self_weight.as_ref().map(floats),
        )
    }

    /// Returns the in-degree of each node.
    #[must_use]
    pub fn in_degree(&self) -> &[u32] {
        &self.in_degree
    }

    /// Returns the sum of in-edge weights of each node.
    #[must_use]
    pub fn in_weight(&self) -> Option<&[f32]> {
        self.in_weight.as_deref()
    }

    /// Returns the number of self-loops of each node; none if no node has any.
    #[must_use]
    pub fn self_loops(&self) -> Option<&[u32]> {
        self.self_loops.as_deref()
    }

    /// Returns the sum of self-loop weights of each node.
    #[must_use]
    pub fn self_weight(&self) -> Option<&[f32]> {
        self.self_weight.as_deref()
    }

    /// Returns `1 / sqrt(degree)` of each node, by the degree that GCN uses; 0 if that is not above
    /// 0.
    pub(crate) fn inverse_roots(&self, weighted: bool) -> &[f64] {
        let root = |u: usize| {
            let degree = self.degree(u, weighted);
            if degree > 0.0 {
                1.0 / degree.sqrt()
            } else {
                0.0
            }
        };
        let all = || (0..self.in_degree.len()).map(root).collect();
        self.inverse_roots[usize::from(weighted)].get_or_init(all)
    }

    /// Returns `1 / sqrt(in-degree)` of each node, 0 without in-edges.
    pub(crate) fn light_roots(&self) -> &[f64] {
        let all = || {
            self.in_degree
                .iter()
                .map(|&degree| light_root(degree.into()))
        };
        self.light_roots.get_or_init(|| all().collect())
    }

    /// Returns the weight of a node's one self-loop. With edge weights, a node with self-loops has
    /// the sum of their weights (`PyG` keeps an unspecified one of them); otherwise the weight is
    /// 1.
    pub(crate) fn own_weight(&self, u: usize, weighted: bool) -> f64 {
        let sums = self.self_weight.as_ref().filter(|_| weighted);
        match sums.filter(|_| self.num_loops(u) > 0) {
            Some(sums) => f64::from(sums[u]),
            None => 1.0,
        }
    }

    /// Returns the degree that GCN uses: the weights of a node's in-edges in the whole graph, added
    /// up, with its self-loops replaced by one.
    fn degree(&self, u: usize, weighted: bool) -> f64 {
        let loops = self.num_loops(u);
        match self.in_weight.as_ref().filter(|_| weighted) {
            // The sum contains the weights of the self-loops.
            Some(total) if loops > 0 => f64::from(total[u]),
            Some(total) => f64::from(total[u]) + 1.0,
            None => f64::from(self.in_degree[u] - loops) + 1.0,
        }
    }

    fn num_loops(&self, u: usize) -> u32 {
        self.self_loops.as_ref().map_or(0, |loops| loops[u])
    }

    pub(super) fn check(&self, has_weights: bool) -> Result<(), GnnError> {
        let num_src = self.in_degree.len();
        ensure(self.in_weight.is_some() == has_weights, "in_weight", || {
            "must be present exactly if edge_weight is".to_owned()
        })?;
        if let Some(weight) = &self.in_weight {
            same_length("in_weight", weight.len(), num_src)?;
        }
        let wanted = self.self_loops.is_some() && has_weights;
        ensure(self.self_weight.is_some() == wanted, "self_weight", || {
            "must be present exactly if self_loops and edge_weight are".to_owned()
        })?;
        if let Some(weight) = &self.self_weight {
            same_length("self_weight", weight.len(), num_src)?;
        }
        let Some(loops) = &self.self_loops else {
            return Ok(());
        };
        same_length("self_loops", loops.len(), num_src)?;
        let above = (0..num_src).find(|&u| loops[u] > self.in_degree[u]);
        ensure(above.is_none(), "self_loops", || {
            let node = above.unwrap_or_default();
            format!("node {node} has more self-loops than in-edges")
        })
    }
}
