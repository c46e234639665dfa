//! One layer of one batch: dst nodes, src nodes and the in-edges between them.

mod cache;
mod check;
mod data;
mod nodes;
mod relation;
#[cfg(test)]
mod tests;

pub use data::{BlockData, RangeData, Sampling};
pub use nodes::NodeColumns;
pub(crate) use nodes::light_root;

use std::sync::Arc;

use self::cache::CoefficientCache;
use crate::GnnError;
use crate::kernel::{Csr, EdgeFeatures, Partitioning, Shared};

/// A checked block, cheap to clone.
#[derive(Clone, Debug)]
pub struct Block {
    data: Arc<BlockData>,
    nodes: Arc<NodeColumns>,
    csr: Arc<Csr>,
    node_key: Shared<u64>,
    edge_feature: Option<Arc<EdgeFeatures>>,
    coefficients: Arc<CoefficientCache>,
}

impl Block {
    /// Makes a block of `data`, after checking it.
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
        Ok(Self::wrap(data, 0, false, Arc::new(nodes)))
    }

    /// Makes a block whose dst nodes are a range of the src nodes, for forward passes without
    /// dropout.
    ///
    /// A gradient needs a block from [`Block::new`], whose dst nodes are its first src nodes.
    ///
    /// # Errors
    ///
    /// [`GnnError::Block`] names the first field that contradicts the others.
    pub fn of_range(data: RangeData, nodes: &Arc<NodeColumns>) -> Result<Block, GnnError> {
        let (first, data) = Self::range_data(data, nodes.in_degree().len(), nodes)?;
        Ok(Self::wrap(data, first, false, Arc::clone(nodes)))
    }

    fn wrap(mut data: BlockData, first: usize, bipartite: bool, nodes: Arc<NodeColumns>) -> Block {
        let offset = std::mem::take(&mut data.in_offset);
        let src = std::mem::take(&mut data.in_src);
        let mut csr = Csr::new(offset, src, data.num_src);
        (csr.first, csr.bipartite) = (first, bipartite);
        let node_key = std::mem::take(&mut data.node_key).into();
        let edge_feature = data.edge_feature.take();
        Block {
            data: Arc::new(data),
            nodes,
            csr: Arc::new(csr),
            node_key,
            edge_feature: edge_feature.map(|rows| Arc::new(rows.into())),
            coefficients: Arc::default(),
        }
    }

    /// Sets how kernels split the rows of the block over threads.
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

    /// Returns how many dst rows, from the first on, the targets need.
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
    pub fn edge_feature(&self) -> Option<&Arc<EdgeFeatures>> {
        self.edge_feature.as_ref()
    }

    /// Returns the in-degree of each src node in the whole graph; in a block of a relation between
    /// two types, of each node of the dst nodes' type.
    #[must_use]
    pub fn in_degree(&self) -> &[u32] {
        self.nodes.in_degree()
    }

    /// Returns the sum of in-edge weights of each src node in the whole graph.
    #[must_use]
    pub fn in_weight(&self) -> Option<&[f32]> {
        self.nodes.in_weight()
    }

    /// Returns the number of self-loops of each src node in the whole graph.
    #[must_use]
    pub fn self_loops(&self) -> Option<&[u32]> {
        self.nodes.self_loops()
    }

    /// Returns the sum of self-loop weights of each src node in the whole graph.
    #[must_use]
    pub fn self_weight(&self) -> Option<&[f32]> {
        self.nodes.self_weight()
    }

    /// Returns the hash of each src node's raw id; in a block of a relation between two types,
    /// followed by those of the dst nodes.
    #[must_use]
    pub fn node_key(&self) -> &[u64] {
        &self.node_key
    }

    /// Returns the columns of the src nodes.
    pub(crate) fn nodes(&self) -> &NodeColumns {
        &self.nodes
    }

    /// Returns the cache of the block's coefficients.
    pub(crate) fn cached_coefficients(&self) -> &CoefficientCache {
        &self.coefficients
    }

    /// Returns [`node_key`](Block::node_key) in the form that operations keep.
    #[must_use]
    pub fn shared_key(&self) -> &Shared<u64> {
        &self.node_key
    }
}
