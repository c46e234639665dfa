//! Blocks of listed nodes of a graph without node types.

use super::{Blocks, Local, Version, ready};
use crate::InferError;
use crate::graph::completed;
use crate::kept_rows::KeptRows;
use crate::model::TrainedModel;
use gnn::{Block, Dense, Input, LayerSlice, Projected, RangeData, ReadyInput, RowValues, SrcRows};
use graphtrainer::convert;
use schemas::{Features, NodeIdx};

/// The only relation.
const RELATION: usize = 0;

/// A layer, for one thread.
pub(super) struct UntypedBlocks<'a> {
    version: &'a Version<'a>,
    trained: &'a TrainedModel,
    layer: usize,
    conv: LayerSlice<'a>,
}

impl<'a> UntypedBlocks<'a> {
    pub(super) fn new(version: &'a Version<'a>, trained: &'a TrainedModel, layer: usize) -> Self {
        let features = version.after.store().meta().graph.types[0].features;
        let is_sparse = trained.reads_sparse(layer, features);
        Self {
            version,
            trained,
            layer,
            conv: trained.model.layer_slice(layer, is_sparse),
        }
    }
}

impl Blocks for UntypedBlocks<'_> {
    fn run(&self, _: usize, nodes: &[NodeIdx], rows: &KeptRows) -> Result<Dense, InferError> {
        let mut local = Local::new(nodes);
        let read = (RELATION, self.layer);
        let data = self.version.range_data(read, nodes, &mut local);
        let columns = self.version.columns(RELATION, &local.nodes, nodes.len())?;
        let block = Block::of_range(data, &columns.into())?;
        let src = ready(self.projected(&local.nodes, rows)?)?;
        let own = self.own(nodes, rows)?;
        let mut of_block = self.conv.run(&block, &src, own)?;
        for (row, &node) in nodes.iter().enumerate() {
            if self.version.is_hub(node, self.layer) {
                let values = self.hub(node, rows)?;
                of_block.values[row * of_block.cols..][..of_block.cols].copy_from_slice(&values);
            }
        }
        Ok(of_block)
    }
}

impl UntypedBlocks<'_> {
    /// Computes the row of a hub: its in-edges are aggregated in the segments of a full run.
    fn hub(&self, node: NodeIdx, rows: &KeptRows) -> Result<Vec<f32>, InferError> {
        let edges = self.version.after.in_edges(RELATION, node, usize::MAX);
        let mut local = Local::new(&[node]);
        edges.src.iter().for_each(|&src| {
            local.add(src);
        });
        let columns = self.version.columns(RELATION, &local.nodes, 1)?;
        let projected = self.projected(&local.nodes, rows)?;
        let scores = projected.scores.as_ref();
        let src = SrcRows {
            rows: RowValues::F32(&projected.rows.values),
            scores: scores.map(|scores| RowValues::F32(&scores.values)),
            nodes: &columns,
        };
        let own = || self.own(&[node], rows);
        let query = self
            .conv
            .query(scores.map(|scores| scores.row(0)), own()?)?;
        let hub = (RELATION, node, edges);
        let aggregation = self.conv.aggregation()?;
        let merged = self
            .version
            .merged(hub, &*aggregation, (src, &local), &query);
        let edge_dim = self.version.model.edges[RELATION].dim;
        let data = RangeData {
            in_offset: vec![0, 0],
            edge_weight: self.version.model.edges[RELATION].weight.then(Vec::new),
            edge_feature: edge_dim.map(|cols| Dense::zeros(0, cols)),
            sampling: convert::sampling(self.version.after.store().meta().sampling),
            ..RangeData::default()
        };
        let block = Block::of_range(data, &columns.into())?;
        let done = self
            .conv
            .run_aggregated(&block, &ready(projected)?, own()?, merged)?;
        Ok(done.values)
    }

    /// Returns the rows of some nodes before the layer.
    fn before(&self, nodes: &[NodeIdx], rows: &KeptRows) -> Result<Input, InferError> {
        if self.layer > 1 {
            let cols = self.trained.model.architecture().input_dim(self.layer);
            return Ok(Input::Dense(rows.gather(self.layer - 1, nodes, cols)));
        }
        let after = self.version.after;
        let meta = after.store().meta().graph.types[0].features;
        let mut raw = Features::with_capacity(meta, nodes.len());
        nodes
            .iter()
            .for_each(|&node| after.features_into(node, &mut raw));
        let mut input = convert::input(raw, nodes.len());
        self.trained.transform.apply(&mut input)?;
        if let Some(embedding) = &self.trained.embedding {
            input = completed(input, embedding, nodes.iter().map(|&node| after.id(node)));
        }
        Ok(input)
    }

    /// Returns the rows of some nodes as the layer aggregates them.
    fn projected(
        &self,
        nodes: &[NodeIdx],
        rows: &KeptRows,
    ) -> Result<Projected<Dense>, InferError> {
        let before = self.before(nodes, rows)?;
        if self.conv.projects() {
            return Ok(self.conv.project(ReadyInput::new(before)?)?);
        }
        Ok(Projected {
            rows: convert::dense(before),
            scores: None,
        })
    }

    /// Returns the rows of dst nodes before the layer, if it reads them.
    fn own(&self, nodes: &[NodeIdx], rows: &KeptRows) -> Result<Option<ReadyInput>, InferError> {
        if !self.conv.reads_own() {
            return Ok(None);
        }
        Ok(Some(ReadyInput::new(self.before(nodes, rows)?)?))
    }
}
