//! The graph that inference reads: nodes in the order of ids, computed in blocks.

use crate::InferError;
use crate::exchange::Exchange;
use crate::gather::find;
use crate::halo::Halo;
use crate::hubs::{Hubs, ReadColumns, RelationUse, is_hub};
use crate::lists;
use crate::local::own_nodes;
use crate::locate::locate;
use crate::model::TrainedModel;
use crate::node_columns::node_columns;
use cluster::Cluster;
use gnn::{Architecture, Block, Input, NodeColumns};
use graphtrainer::{NodeEmbeddings, convert, with_rows};
use schemas::{FeatureMeta, Features, Ids, LocalIdx, NodeIdx, Row};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use store::InEdges;
use store::{Partition, Store};

/// The size of the blocks in which a layer is computed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockSize {
    /// Most nodes in a block.
    pub(crate) nodes: usize,
    /// In-edges of a block: the node that reaches this number is its last node.
    pub(crate) edges: usize,
}

impl BlockSize {
    /// Rows of these blocks stay in the cache between the steps of a layer.
    pub(crate) const OF_PROCESSOR: Self = Self {
        nodes: 1 << 10,
        edges: 1 << 16,
    };

    /// A GPU starts few kernels on blocks of this size.
    const OF_GPU: Self = Self {
        nodes: 1 << 16,
        edges: 1 << 20,
    };

    /// Returns the size of blocks on a device, for rows of up to `widest` numbers. On a GPU, the rows
    /// that several blocks read fit one buffer.
    pub(crate) fn on(device: &gnn::Device, widest: usize) -> Self {
        if !device.is_gpu() {
            return Self::OF_PROCESSOR;
        }
        let rows = (device.matrix_rows(widest) / BLOCKS_IN_BUFFER).max(1);
        Self {
            nodes: Self::OF_GPU.nodes.min(rows),
            edges: Self::OF_GPU.edges.min(rows),
        }
    }
}

/// Blocks whose rows fit one buffer of a GPU, if each in-edge reads another row.
const BLOCKS_IN_BUFFER: usize = 8;

/// A store with the node columns, hubs and rows that all blocks share.
///
/// In one process every node has a row. Of several processes, each has rows of its own nodes and
/// of the nodes that these read.
pub(crate) struct Graph {
    store: Store,
    columns: Arc<NodeColumns>,
    hubs: Hubs,
    /// None in one process.
    halo: Option<Halo>,
    blocks: BlockSize,
}

impl Graph {
    /// Collects the columns of all nodes that a model reads, finds the hubs and lists the halo.
    ///
    /// `limits`: how many in-edges of a node each round reads.
    pub(crate) fn new(
        store: &Store,
        arch: &Architecture,
        limits: &BTreeSet<usize>,
        blocks: BlockSize,
    ) -> Result<Self, InferError> {
        let is_alone = store.cluster().num_processes() == 1;
        let own = (!is_alone).then(|| own_nodes(store));
        let relation = RelationUse {
            columns: ReadColumns::of(arch),
            limits: limits.clone(),
        };
        let mut hubs = Hubs::find(store, vec![relation], own.as_deref())?;
        let halo = own
            .map(|own| Halo::new(store, own, limits, &mut hubs))
            .transpose()?;
        let columns = node_columns(store, halo.as_ref(), arch)?;
        Ok(Self {
            store: store.clone(),
            columns: Arc::new(columns),
            hubs,
            halo,
            blocks,
        })
    }

    /// Returns the size of the blocks in which layers are computed.
    pub(crate) fn block_size(&self) -> BlockSize {
        self.blocks
    }

    /// Returns the store.
    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// Returns the nodes whose in-edges are aggregated in segments.
    pub(crate) fn hubs(&self) -> &Hubs {
        &self.hubs
    }

    /// Returns the columns of the nodes that have a row.
    pub(crate) fn columns(&self) -> &NodeColumns {
        &self.columns
    }

    /// Returns the row of a node of this process or of its halo.
    pub(crate) fn row(&self, node: NodeIdx) -> Row {
        let halo = self.halo.as_ref();
        halo.map_or(row_alone(node), |halo| halo.local.row(node))
    }

    /// Returns the number of nodes of the whole graph.
    pub(crate) fn num_nodes(&self) -> usize {
        self.store.placement().num_nodes()
    }

    /// Returns the number of own nodes. Their rows come before the rows of the halo.
    pub(crate) fn num_own(&self) -> usize {
        let halo = self.halo.as_ref();
        halo.map_or(self.num_nodes(), |halo| halo.local.own().len())
    }

    /// Returns the number of rows: own nodes and halo.
    pub(crate) fn num_rows(&self) -> usize {
        let halo = self.halo.as_ref().map(|halo| halo.local.halo().len());
        self.num_own() + halo.unwrap_or_default()
    }

    /// Returns the exchange of rows for a round that reads the first `limit` in-edges of a node;
    /// none in one process.
    pub(crate) fn exchange(&self, limit: usize) -> Option<&Arc<Exchange>> {
        let halo = self.halo.as_ref();
        halo.map(|halo| &halo.exchanges[&limit])
    }

    /// Returns the processes that share the work.
    pub(crate) fn cluster(&self) -> &Cluster {
        self.store.cluster()
    }

    /// Returns the own rows among nodes `nodes` of the whole graph.
    pub(crate) fn own_rows(&self, nodes: Range<usize>) -> Range<usize> {
        let Some(halo) = &self.halo else {
            return nodes;
        };
        let there = |end: usize| {
            let own = halo.local.own();
            own.partition_point(|&node| node.index() < end)
        };
        there(nodes.start)..there(nodes.end)
    }

    /// Returns the row of a node; none if another process owns the node.
    pub(crate) fn own_row(&self, node: NodeIdx) -> Option<Row> {
        let Some(halo) = &self.halo else {
            return Some(row_alone(node));
        };
        let found = halo.local.own().binary_search(&node);
        found.ok().map(Row::from_index)
    }

    /// Returns the node of an own row.
    pub(crate) fn node(&self, row: Row) -> NodeIdx {
        match &self.halo {
            None => NodeIdx::from_raw(row.raw()),
            Some(halo) => halo.local.own()[row.index()],
        }
    }

    /// Lists the own rows with their nodes.
    pub(crate) fn own(&self) -> impl Iterator<Item = (Row, NodeIdx)> {
        let rows = (0..self.num_own()).map(Row::from_index);
        rows.map(|row| (row, self.node(row)))
    }

    /// Returns the number of in-edges that a layer reads for some rows: at most `limit` of each.
    pub(crate) fn num_in_edges(&self, rows: Range<usize>, limit: usize) -> u64 {
        let degrees = self.columns.in_degree()[rows].iter();
        degrees
            .map(|&degree| u64::from(degree).min(limit as u64))
            .sum()
    }

    /// Returns the number of in-edges that the blocks of some rows hold: at most `limit` of each
    /// row, and none of hubs.
    pub(crate) fn num_edges_in_blocks(&self, rows: Range<usize>, limit: usize) -> usize {
        let degrees = self.columns.in_degree()[rows].iter();
        let held = degrees.filter(|&&degree| !is_hub(degree, limit));
        held.map(|&degree| (degree as usize).min(limit)).sum()
    }

    /// Cuts some rows into blocks of bounded size. The in-degrees, `limit` and the kind of device decide
    /// the cuts.
    pub(crate) fn ranges(&self, rows: Range<usize>, limit: usize) -> Vec<Range<usize>> {
        cut_blocks(rows, self.blocks, |row| {
            (self.columns.in_degree()[row] as usize).min(limit)
        })
    }

    /// Builds the block of some own rows: the first `limit` in-edges of each row in rank order, and
    /// no in-edges of hubs.
    pub(crate) fn block(
        &self,
        rows: Range<usize>,
        limit: usize,
        arch: &Architecture,
    ) -> Result<Block, InferError> {
        let places: Vec<(&Partition, LocalIdx)> = self.places(rows.clone()).collect();
        let in_degrees = &self.columns.in_degree()[rows.clone()];
        let lists = lists::look_up(&places, in_degrees, (0, limit));
        let add_rows = |to: &mut Vec<u32>, srcs: &[NodeIdx]| match &self.halo {
            None => to.extend_from_slice(NodeIdx::raw_slice(srcs)),
            Some(halo) => to.extend(srcs.iter().map(|&src| halo.local.row(src).raw())),
        };
        let data = lists::join(
            rows.start,
            &lists,
            ReadColumns::of(arch),
            self.sampling(),
            add_rows,
        );
        Ok(Block::of_range(data, &self.columns)?)
    }

    /// Returns the first `limit` in-edges of an own row in rank order.
    pub(crate) fn in_edges(&self, row: Row, limit: usize) -> InEdges<'_> {
        let (partition, local) = self.place(row);
        partition.in_edges(0, 0, local, limit)
    }

    /// Returns how the store's in-edges were drawn.
    pub(crate) fn sampling(&self) -> gnn::Sampling {
        convert::sampling(self.store.meta().sampling)
    }

    /// Returns the kind and width of the raw features.
    pub(crate) fn features(&self) -> FeatureMeta {
        self.store.meta().graph.types[0].features
    }

    /// Gathers the raw features of some own rows and applies the model's transform. Learnable rows
    /// come after the features.
    pub(crate) fn input(
        &self,
        rows: Range<usize>,
        trained: &TrainedModel,
    ) -> Result<Input, InferError> {
        self.input_of_rows(rows, trained)
    }

    /// Gathers the raw features of listed own rows, as [`input`](Self::input) does.
    pub(crate) fn input_of(
        &self,
        rows: &[usize],
        trained: &TrainedModel,
    ) -> Result<Input, InferError> {
        self.input_of_rows(rows.iter().copied(), trained)
    }

    /// Applies the model's transform to dense features of some own rows, `[num_rows * dim]`, as
    /// [`input`](Self::input) does.
    pub(crate) fn input_of_dense(
        &self,
        rows: Range<usize>,
        values: Vec<f32>,
        trained: &TrainedModel,
    ) -> Result<Input, InferError> {
        let dim = values.len() / rows.len().max(1);
        self.transformed(Features::Dense { dim, values }, rows, trained)
    }

    fn input_of_rows(
        &self,
        rows: impl ExactSizeIterator<Item = usize> + Clone,
        trained: &TrainedModel,
    ) -> Result<Input, InferError> {
        let num_rows = rows.len();
        let mut features =
            Features::with_capacity(self.store.meta().graph.types[0].features, num_rows);
        for (partition, local) in self.places(rows.clone()) {
            partition.features_into(local, &mut features);
        }
        self.transformed(features, rows, trained)
    }

    /// Applies the model's transform to the raw features of some own rows and adds learnable rows.
    fn transformed(
        &self,
        features: Features,
        rows: impl ExactSizeIterator<Item = usize>,
        trained: &TrainedModel,
    ) -> Result<Input, InferError> {
        let mut input = convert::input(features, rows.len());
        trained.transform.apply(&mut input)?;
        let ids = self
            .places(rows)
            .map(|(partition, local)| partition.id(local));
        Ok(match &trained.embedding {
            Some(embedding) => completed(input, embedding, ids),
            None => input,
        })
    }

    /// Returns the ids of some own rows.
    pub(crate) fn ids(&self, rows: &[Row]) -> Ids {
        let mut ids = Ids::with_capacity(self.store.meta().graph.types[0].id_type, rows.len());
        for &row in rows {
            let (partition, local) = self.place(row);
            let (of_type, type_row) = partition.id(local);
            ids.push_from(of_type, type_row);
        }
        ids
    }

    /// Finds the nodes with some ids, ascending and without duplicates. The inner error is the
    /// position of an id that no node has.
    pub(crate) fn find(&self, ids: &Ids) -> Result<Result<Vec<NodeIdx>, usize>, InferError> {
        let id = |row| {
            let (partition, local) = self.place(row);
            partition.id(local)
        };
        find(self.cluster(), ids, 0..self.num_own(), id, |row| {
            self.node(row)
        })
    }

    fn places(
        &self,
        rows: impl Iterator<Item = usize>,
    ) -> impl Iterator<Item = (&Partition, LocalIdx)> {
        rows.map(|row| self.place(Row::from_index(row)))
    }

    /// Returns the partition of an own row and the row's position there.
    fn place(&self, row: Row) -> (&Partition, LocalIdx) {
        locate(&self.store, self.node(row))
    }
}

/// Returns features with the trained rows of nodes behind them, given each node's id.
pub(crate) fn completed<'a>(
    features: Input,
    embedding: &NodeEmbeddings,
    ids: impl Iterator<Item = (&'a Ids, usize)>,
) -> Input {
    let rows: Vec<&[f32]> = ids.map(|(ids, at)| embedding.row(ids, at)).collect();
    let features = convert::dense(features);
    Input::Dense(with_rows(
        Some(&features),
        embedding.dim(),
        rows.into_iter(),
    ))
}

/// Cuts rows into blocks of bounded size; `num_in_edges` returns how many in-edges of a row a layer
/// reads.
pub(crate) fn cut_blocks(
    rows: Range<usize>,
    size: BlockSize,
    num_in_edges: impl Fn(usize) -> usize,
) -> Vec<Range<usize>> {
    let mut blocks = Vec::new();
    let (mut start, mut edges) = (rows.start, 0);
    for row in rows.clone() {
        edges += num_in_edges(row);
        let end = row + 1;
        if end - start == size.nodes || edges >= size.edges || end == rows.end {
            blocks.push(start..end);
            (start, edges) = (end, 0);
        }
    }
    blocks
}

/// Returns the row of a node in one process: all nodes have rows, in the order of ids.
fn row_alone(node: NodeIdx) -> Row {
    Row::from_raw(node.raw())
}
