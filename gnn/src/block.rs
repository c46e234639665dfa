//! One layer of one batch: dst nodes, src nodes and the in-edges between them.

use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};

use crate::kernel::{Csr, Partitioning, Shared};
use crate::layer::CoefficientCache;
use crate::{Dense, GnnError};

/// How the kept in-edges of a block were drawn; decides how sums are scaled.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Sampling {
    /// Every in-edge had the same chance: a sum is scaled by in-degree over kept.
    #[default]
    Uniform,
    /// In-edges were drawn in proportion to their weight, without replacement and in rank order:
    /// a model that uses the weights scales sums and means by that.
    Weighted,
    /// The heaviest in-edges were kept: nothing is scaled.
    Top,
}

/// The plain data of a [`Block`].
///
/// The dst nodes are the first `num_dst` src nodes. The in-edges of dst node `v` are
/// `in_src[in_offset[v]..in_offset[v + 1]]`, in rank order.
#[derive(Clone, Debug, Default)]
pub struct BlockData {
    /// Number of src nodes.
    pub num_src: usize,
    /// Number of dst nodes, which are the first src nodes.
    pub num_dst: usize,
    /// `[num_dst + 1]`: where the kept in-edges of each dst node start.
    pub in_offset: Vec<u32>,
    /// `[num_edges]`: src position of each in-edge.
    pub in_src: Vec<u32>,
    /// `[num_edges]`: weight of each in-edge.
    pub edge_weight: Option<Vec<f32>>,
    /// `[num_edges, edge_dim]`: features of each in-edge.
    pub edge_feature: Option<Dense>,
    /// `[num_src]`: in-degree in the whole graph, before sampling; self-loops and parallel edges count.
    pub in_degree: Vec<u32>,
    /// `[num_src]`: sum of in-edge weights in the whole graph; present exactly if `edge_weight` is.
    pub in_weight: Option<Vec<f32>>,
    /// `[num_src]`: number of a node's self-loops in the whole graph; none if no node has any.
    pub self_loops: Option<Vec<u32>>,
    /// `[num_src]`: sum of the weights of a node's self-loops in the whole graph; present exactly
    /// if `self_loops` and `edge_weight` are.
    pub self_weight: Option<Vec<f32>>,
    /// `[num_src]`: hash of each raw id, which dropout masks are a function of.
    pub node_key: Vec<u64>,
    /// How many of the first dst rows are really used; batch norm takes its statistics from them.
    pub num_active: usize,
    /// How the kept in-edges were drawn.
    pub sampling: Sampling,
}

/// What blocks need to know of their src nodes. Many blocks may share it.
#[derive(Debug)]
pub struct NodeColumns {
    in_degree: Vec<u32>,
    in_weight: Option<Vec<f32>>,
    self_loops: Option<Vec<u32>>,
    self_weight: Option<Vec<f32>>,
    /// GCN's factor of each node, without and with edge weights.
    inverse_roots: [OnceLock<Vec<f64>>; 2],
}

impl NodeColumns {
    /// Takes the columns of the nodes of a whole graph, each `[num_nodes]`; [`BlockData`] says what
    /// they hold and when they are there.
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

    fn of(
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
        }
    }

    /// Returns the in-degree of each node.
    #[must_use]
    pub fn in_degree(&self) -> &[u32] {
        &self.in_degree
    }

    /// Returns one over the root of each node's degree as GCN counts it, 0 where that is no number.
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

    /// Returns the weight of a node's one self-loop: the sum of the weights of those that it has,
    /// where weights are used (`PyG` keeps an unspecified one of them), else 1.
    pub(crate) fn own_weight(&self, u: usize, weighted: bool) -> f64 {
        let sums = self.self_weight.as_ref().filter(|_| weighted);
        match sums.filter(|_| self.num_loops(u) > 0) {
            Some(sums) => f64::from(sums[u]),
            None => 1.0,
        }
    }

    /// Returns the sum over a node's in-edges in the whole graph, its self-loops replaced by one.
    fn degree(&self, u: usize, weighted: bool) -> f64 {
        let loops = self.num_loops(u);
        match self.in_weight.as_ref().filter(|_| weighted) {
            // The sum holds the weights of the self-loops already.
            Some(total) if loops > 0 => f64::from(total[u]),
            Some(total) => f64::from(total[u]) + 1.0,
            None => f64::from(self.in_degree[u] - loops) + 1.0,
        }
    }

    fn num_loops(&self, u: usize) -> u32 {
        self.self_loops.as_ref().map_or(0, |loops| loops[u])
    }

    fn check(&self, has_weights: bool) -> Result<(), GnnError> {
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
            format!("node {above:?} has more self-loops than in-edges")
        })
    }
}

/// The plain data of a [`Block`] whose src nodes are all nodes of a graph and whose dst nodes are
/// some that follow each other; see [`BlockData`] for the fields of the same names.
#[derive(Clone, Debug, Default)]
pub struct RangeData {
    /// The first dst node.
    pub first: usize,
    /// `[num_dst + 1]`.
    pub in_offset: Vec<u32>,
    /// `[num_edges]`: the node that each in-edge comes from.
    pub in_src: Vec<u32>,
    /// `[num_edges]`.
    pub edge_weight: Option<Vec<f32>>,
    /// `[num_edges, edge_dim]`.
    pub edge_feature: Option<Dense>,
    /// How the kept in-edges were drawn.
    pub sampling: Sampling,
}

/// A checked block, cheap to clone.
#[derive(Clone, Debug)]
pub struct Block {
    data: Arc<BlockData>,
    nodes: Arc<NodeColumns>,
    csr: Arc<Csr>,
    node_key: Shared<u64>,
    coefficients: Arc<CoefficientCache>,
}

impl Block {
    /// Checks `data` and wraps it.
    ///
    /// # Errors
    ///
    /// [`GnnError::Block`] names the first field that contradicts the others.
    pub fn new(mut data: BlockData) -> Result<Block, GnnError> {
        data.check()?;
        let nodes = NodeColumns::of(
            std::mem::take(&mut data.in_degree),
            data.in_weight.take(),
            data.self_loops.take(),
            data.self_weight.take(),
        );
        nodes.check(data.edge_weight.is_some())?;
        Ok(Self::wrap(data, 0, Arc::new(nodes)))
    }

    /// Checks `data` and wraps it, for forward passes without dropout: gradients flow only through
    /// blocks whose dst nodes are their first src nodes.
    ///
    /// # Errors
    ///
    /// [`GnnError::Block`] names the first field that contradicts the others.
    pub fn of_range(data: RangeData, nodes: &Arc<NodeColumns>) -> Result<Block, GnnError> {
        let (num_src, first) = (nodes.in_degree.len(), data.first);
        let num_dst = data.in_offset.len().saturating_sub(1);
        let end = first.saturating_add(num_dst);
        ensure(end <= num_src, "first", || {
            format!("{num_dst} dst nodes from {first} on are not among {num_src} src nodes")
        })?;
        let data = BlockData {
            num_src,
            num_dst,
            in_offset: data.in_offset,
            in_src: data.in_src,
            edge_weight: data.edge_weight,
            edge_feature: data.edge_feature,
            num_active: num_dst,
            sampling: data.sampling,
            ..BlockData::default()
        };
        ensure(
            nodes.in_weight.is_some() || data.edge_weight.is_none(),
            "in_weight",
            || "must be present where edge_weight is".to_owned(),
        )?;
        data.check_edges(&nodes.in_degree[first..end])?;
        Ok(Self::wrap(data, first, Arc::clone(nodes)))
    }

    fn wrap(mut data: BlockData, first: usize, nodes: Arc<NodeColumns>) -> Block {
        let offset = std::mem::take(&mut data.in_offset);
        let src = std::mem::take(&mut data.in_src);
        let mut csr = Csr::new(offset, src, data.num_src);
        csr.first = first;
        let node_key = std::mem::take(&mut data.node_key).into();
        Block {
            data: Arc::new(data),
            nodes,
            csr: Arc::new(csr),
            node_key,
            coefficients: Arc::default(),
        }
    }

    /// Returns the block with its kernels' rows split over threads as told.
    ///
    /// # Panics
    ///
    /// If the block has been cloned: set this right after [`Block::new`].
    #[must_use]
    pub fn with_partitioning(mut self, partitioning: Partitioning) -> Block {
        let csr = Arc::get_mut(&mut self.csr).expect("set before the block is shared");
        csr.partitioning = partitioning;
        self
    }

    /// Returns the number of src nodes.
    #[must_use]
    pub fn num_src(&self) -> usize {
        self.data.num_src
    }

    /// Returns the number of dst nodes.
    #[must_use]
    pub fn num_dst(&self) -> usize {
        self.data.num_dst
    }

    /// Returns the number of kept in-edges.
    #[must_use]
    pub fn num_edges(&self) -> usize {
        self.csr.num_edges()
    }

    /// Returns how many of the first dst rows are really used.
    #[must_use]
    pub fn num_active(&self) -> usize {
        self.data.num_active
    }

    /// Returns how the kept in-edges were drawn.
    #[must_use]
    pub fn sampling(&self) -> Sampling {
        self.data.sampling
    }

    /// Returns the in-edges by dst node.
    #[must_use]
    pub fn csr(&self) -> &Arc<Csr> {
        &self.csr
    }

    /// Returns the weight of each in-edge.
    #[must_use]
    pub fn edge_weight(&self) -> Option<&[f32]> {
        self.data.edge_weight.as_deref()
    }

    /// Returns the features of each in-edge.
    #[must_use]
    pub fn edge_feature(&self) -> Option<&Dense> {
        self.data.edge_feature.as_ref()
    }

    /// Returns the in-degree of each src node in the whole graph.
    #[must_use]
    pub fn in_degree(&self) -> &[u32] {
        &self.nodes.in_degree
    }

    /// Returns the sum of in-edge weights of each src node in the whole graph.
    #[must_use]
    pub fn in_weight(&self) -> Option<&[f32]> {
        self.nodes.in_weight.as_deref()
    }

    /// Returns the number of self-loops of each src node in the whole graph.
    #[must_use]
    pub fn self_loops(&self) -> Option<&[u32]> {
        self.nodes.self_loops.as_deref()
    }

    /// Returns the sum of self-loop weights of each src node in the whole graph.
    #[must_use]
    pub fn self_weight(&self) -> Option<&[f32]> {
        self.nodes.self_weight.as_deref()
    }

    /// Returns the hash of each src node's raw id.
    #[must_use]
    pub fn node_key(&self) -> &[u64] {
        &self.node_key
    }

    /// Returns what is known of the src nodes.
    pub(crate) fn nodes(&self) -> &NodeColumns {
        &self.nodes
    }

    /// Returns what was computed of the block's coefficients.
    pub(crate) fn coefficients(&self) -> &CoefficientCache {
        &self.coefficients
    }

    /// Returns the features of each in-edge on a device.
    ///
    /// # Panics
    ///
    /// If there are none.
    #[cfg(feature = "gpu")]
    pub(crate) fn edge_feature_on_gpu(
        &self,
        device: &burn_cubecl::CubeDevice,
    ) -> burn_cubecl::tensor::CubeTensor {
        let feature = self.edge_feature().expect("the block has edge features");
        let kept = &self.coefficients.edge_feature;
        kept.get(device, || &feature.values)
    }

    /// Returns the node keys, for an operation to keep.
    pub(crate) fn shared_key(&self) -> &Shared<u64> {
        &self.node_key
    }
}

impl BlockData {
    fn check(&self) -> Result<(), GnnError> {
        let (num_src, num_dst) = (self.num_src, self.num_dst);
        ensure(num_dst <= num_src, "num_dst", || {
            format!("{num_dst} dst nodes cannot be a prefix of {num_src} src nodes")
        })?;
        ensure(self.num_active <= num_dst, "num_active", || {
            format!("{} of {num_dst} dst rows cannot be active", self.num_active)
        })?;
        same_length("in_degree", self.in_degree.len(), num_src)?;
        same_length("node_key", self.node_key.len(), num_src)?;
        self.check_edges(&self.in_degree[..num_dst])
    }

    /// Checks the in-edges against the in-degrees of the dst nodes.
    fn check_edges(&self, in_degree: &[u32]) -> Result<(), GnnError> {
        let (num_src, num_dst, num_edges) = (self.num_src, self.num_dst, self.in_src.len());
        same_length("in_offset", self.in_offset.len(), num_dst + 1)?;
        let ascends = self.in_offset.windows(2).all(|pair| pair[0] <= pair[1]);
        let spans = self.in_offset[0] == 0 && self.in_offset[num_dst] as usize == num_edges;
        ensure(ascends && spans, "in_offset", || {
            format!("does not ascend from 0 to the {num_edges} in-edges")
        })?;
        let greatest = self.in_src.iter().max();
        let outside = greatest.filter(|&&src| src as usize >= num_src);
        ensure(outside.is_none(), "in_src", || {
            format!("position {outside:?} is not below {num_src} src nodes")
        })?;
        for (v, (pair, degree)) in self.in_offset.windows(2).zip(in_degree).enumerate() {
            let kept = pair[1] - pair[0];
            ensure(kept <= *degree, "in_degree", || {
                format!("node {v} keeps {kept} in-edges but has only {degree} in the whole graph")
            })?;
        }
        if let Some(weight) = &self.edge_weight {
            same_length("edge_weight", weight.len(), num_edges)?;
        }
        if let Some(feature) = &self.edge_feature {
            same_length("edge_feature", feature.rows, num_edges)?;
            same_length(
                "edge_feature",
                feature.values.len(),
                feature.rows * feature.cols,
            )?;
        }
        Ok(())
    }
}

fn same_length(field: &'static str, got: usize, wanted: usize) -> Result<(), GnnError> {
    ensure(got == wanted, field, || {
        format!("has {got} entries but needs {wanted}")
    })
}

fn ensure(
    holds: bool,
    field: &'static str,
    problem: impl FnOnce() -> String,
) -> Result<(), GnnError> {
    if holds {
        Ok(())
    } else {
        Err(GnnError::Block {
            field,
            problem: problem(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> BlockData {
        BlockData {
            num_src: 2,
            num_dst: 1,
            in_offset: vec![0, 1],
            in_src: vec![1],
            in_degree: vec![3, 0],
            node_key: vec![5, 6],
            num_active: 1,
            ..BlockData::default()
        }
    }

    fn check(change: impl FnOnce(&mut BlockData), expected: &str) {
        let mut data = pair();
        change(&mut data);
        let got = Block::new(data).map_or_else(|error| error.to_string(), |_| "ok".to_owned());
        assert_eq!(got, expected);
    }

    #[test]
    fn contradictions_are_named() {
        check(|_| {}, "ok");
        check(
            |data| data.num_dst = 3,
            "block field `num_dst`: 3 dst nodes cannot be a prefix of 2 src nodes",
        );
        check(
            |data| data.in_offset = vec![0, 2],
            "block field `in_offset`: does not ascend from 0 to the 1 in-edges",
        );
        check(
            |data| data.in_src = vec![2],
            "block field `in_src`: position Some(2) is not below 2 src nodes",
        );
        check(
            |data| data.in_degree = vec![0, 0],
            "block field `in_degree`: node 0 keeps 1 in-edges but has only 0 in the whole graph",
        );
        check(
            |data| data.edge_weight = Some(vec![1.0]),
            "block field `in_weight`: must be present exactly if edge_weight is",
        );
        check(
            |data| data.self_weight = Some(vec![1.0, 0.0]),
            "block field `self_weight`: must be present exactly if self_loops and edge_weight are",
        );
        check(
            |data| data.self_loops = Some(vec![1, 1]),
            "block field `self_loops`: node Some(1) has more self-loops than in-edges",
        );
        check(
            |data| data.node_key = vec![],
            "block field `node_key`: has 0 entries but needs 2",
        );
    }

    #[test]
    fn a_block_without_nodes_is_fine() {
        let empty = BlockData {
            in_offset: vec![0],
            ..BlockData::default()
        };
        assert_eq!(Block::new(empty).unwrap().num_edges(), 0);
    }
}
