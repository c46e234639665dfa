//! Blocks of listed nodes of a graph with node types.

use super::{Blocks, Local, Version};
use crate::InferError;
use crate::graph::completed;
use crate::kept_rows::KeptRows;
use crate::model::TypedTrained;
use gnn::typed::{RelationRange, Source, TypedBlock, TypedLayerSlice, TypedProjection};
use gnn::{Dense, Input, Projected, ReadyInput, RowValues, SrcRows};
use graphtrainer::convert;
use schemas::{FeatureMeta, Features, NodeIdx};
use std::sync::Arc;

/// A layer, for one thread.
pub(super) struct TypedBlocks<'a> {
    version: &'a Version<'a>,
    trained: &'a TypedTrained,
    projection: TypedProjection<'a>,
    /// Layers up to this one.
    slices: Vec<TypedLayerSlice<'a>>,
}

impl<'a> TypedBlocks<'a> {
    pub(super) fn new(version: &'a Version<'a>, trained: &'a TypedTrained, layer: usize) -> Self {
        let slices = (1..=layer).map(|of| trained.model.layer_slice(of));
        Self {
            version,
            trained,
            projection: trained.model.projection(),
            slices: slices.collect(),
        }
    }
}

impl Blocks for TypedBlocks<'_> {
    fn run(
        &self,
        node_type: usize,
        nodes: &[NodeIdx],
        rows: &KeptRows,
    ) -> Result<Dense, InferError> {
        let (block, local) = self.block(node_type, nodes)?;
        let src = self.src(node_type, &local, rows)?;
        let own = self.own(node_type, nodes, rows)?;
        let mut of_block = self.slice().run(&block, &src, &own)?;
        for (row, &node) in nodes.iter().enumerate() {
            if self.version.is_hub(node, self.layer()) {
                let values = self.hub(node_type, node, rows)?;
                of_block.values[row * of_block.cols..][..of_block.cols].copy_from_slice(&values);
            }
        }
        Ok(of_block)
    }
}

impl<'a> TypedBlocks<'a> {
    fn layer(&self) -> usize {
        self.slices.len()
    }

    fn slice(&self) -> &TypedLayerSlice<'a> {
        self.slices.last().expect("layers count from 1")
    }

    /// Builds the block of some nodes of a type, without the in-edges of hubs. Returns it with the
    /// nodes of each type that it reads.
    fn block(
        &self,
        node_type: usize,
        nodes: &[NodeIdx],
    ) -> Result<(TypedBlock, Vec<Local>), InferError> {
        let schema = self.trained.model.schema();
        let types = 0..schema.types.len();
        let own = |of: usize| if of == node_type { nodes } else { &[] };
        let mut local: Vec<Local> = types.map(|of| Local::new(own(of))).collect();
        let mut of_relations = Vec::new();
        for relation in schema.into_type(node_type) {
            let read = (relation, self.layer());
            let from = &mut local[schema.relations[relation].from];
            of_relations.push((relation, self.version.range_data(read, nodes, from)));
        }
        let to = &local[node_type].nodes;
        let edges = of_relations.into_iter().map(|(relation, edges)| {
            let columns = self.version.columns(relation, to, nodes.len())?;
            Ok::<_, InferError>(RelationRange {
                relation,
                edges,
                nodes: Arc::new(columns),
            })
        });
        let edges = edges.collect::<Result<_, _>>()?;
        let num_nodes: Vec<usize> = local.iter().map(|of| of.nodes.len()).collect();
        let range = (node_type, 0..nodes.len());
        let block = TypedBlock::of_range(schema, &num_nodes, range, edges)?;
        Ok((block, local))
    }

    /// Computes the row of a node that is a hub of some relations: their in-edges are aggregated in the
    /// segments of a full run.
    fn hub(
        &self,
        node_type: usize,
        node: NodeIdx,
        rows: &KeptRows,
    ) -> Result<Vec<f32>, InferError> {
        let mut aggregated = Vec::new();
        for (relation, limit) in self.version.reads(node, self.layer()) {
            if self.version.is_hub_of(relation, node, limit) {
                aggregated.push((relation, self.merged(relation, node, rows)?));
            }
        }
        let (block, local) = self.block(node_type, &[node])?;
        let src = self.src(node_type, &local, rows)?;
        let own = self.own(node_type, &[node], rows)?;
        let done = self
            .slice()
            .run_aggregated(&block, &src, &own, &aggregated)?;
        Ok(done.values)
    }

    /// Aggregates all in-edges of a relation of a node.
    fn merged(
        &self,
        relation: usize,
        node: NodeIdx,
        rows: &KeptRows,
    ) -> Result<Vec<f32>, InferError> {
        let (slice, schema) = (self.slice(), self.trained.model.schema());
        let ends = &schema.relations[relation];
        let edges = self.version.after.in_edges(relation, node, usize::MAX);
        let is_inner = ends.from == ends.to;
        let only = [node];
        let mut local = Local::new(if is_inner { &only } else { &[] });
        edges.src.iter().for_each(|&src| {
            local.add(src);
        });
        let to = if is_inner { &local.nodes[..] } else { &only };
        let columns = self.version.columns(relation, to, 1)?;
        let used = slice.aggregated_sources(relation);
        let from = (ends.from, &local.nodes[..]);
        let projected = self.of_source(used.rows, from, rows)?;
        let scores = match used.scores {
            Some(source) => Some(self.of_source(source, from, rows)?.rows),
            None => projected.scores,
        };
        let own_scores = match slice.sources()[used.rows].types.contains(&ends.to) {
            true => self.of_source(used.rows, (ends.to, &[node]), rows)?.scores,
            false => None,
        };
        let own = self.own(ends.to, &[node], rows)?;
        let query = slice.query(relation, own_scores.as_ref().map(|of| of.row(0)), own)?;
        let src = SrcRows {
            rows: RowValues::F32(&projected.rows.values),
            scores: scores.as_ref().map(|of| RowValues::F32(&of.values)),
            nodes: &columns,
        };
        let hub = (relation, node, edges);
        let aggregation = slice.aggregation(relation)?;
        Ok(self
            .version
            .merged(hub, &*aggregation, (src, &local), &query))
    }

    /// Returns the rows of some nodes of a type before a layer.
    fn before(
        &self,
        layer: usize,
        (node_type, nodes): (usize, &[NodeIdx]),
        rows: &KeptRows,
    ) -> Result<Dense, InferError> {
        if layer > 1 {
            let cols = self.trained.model.architecture().input_dim(layer);
            return Ok(rows.gather(layer - 1, nodes, cols));
        }
        let after = self.version.after;
        let meta = after.store().meta().graph.types[node_type].features;
        let embedding = self.trained.embeddings[node_type].as_ref();
        let input = match (meta, embedding) {
            (FeatureMeta::None, None) => None,
            _ => {
                let mut raw = Features::with_capacity(meta, nodes.len());
                nodes
                    .iter()
                    .for_each(|&node| after.features_into(node, &mut raw));
                let mut input = convert::input(raw, nodes.len());
                self.trained.transforms[node_type].apply(&mut input)?;
                if let Some(of) = embedding {
                    input = completed(input, of, nodes.iter().map(|&node| after.id(node)));
                }
                Some(ReadyInput::new(input)?)
            }
        };
        // Only lightgcn reads degrees here, and its rows are not kept.
        Ok(self.projection.run(node_type, nodes.len(), input, &[])?)
    }

    /// Returns the rows of some nodes of a type as a layer aggregates them, from one of its sources;
    /// `before` has their rows before the layer.
    fn projected(
        &self,
        (layer, source): (usize, usize),
        (of, before): ((usize, &[NodeIdx]), ReadyInput),
        rows: &KeptRows,
    ) -> Result<Projected<Dense>, InferError> {
        let slice = &self.slices[layer - 1];
        let ready = |dense: Dense| ReadyInput::new(Input::Dense(dense));
        let carried = match slice.carried_dim() {
            // Only kinds with one source for all types mix in the scores of the layer before.
            Some(_) => {
                let earlier = ready(self.before(layer - 1, of, rows)?)?;
                self.projected((layer - 1, 0), (of, earlier), rows)?.scores
            }
            None => None,
        };
        let carried = carried.map(ready).transpose()?;
        Ok(slice.project(source, of.0, before, carried)?)
    }

    /// As [`Self::projected`] of this layer; a source that neither projects nor scores has the rows
    /// before the layer.
    fn of_source(
        &self,
        source: usize,
        of: (usize, &[NodeIdx]),
        rows: &KeptRows,
    ) -> Result<Projected<Dense>, InferError> {
        let before = self.before(self.layer(), of, rows)?;
        if is_plain(&self.slice().sources()[source]) {
            return Ok(Projected {
                rows: before,
                scores: None,
            });
        }
        let before = ReadyInput::new(Input::Dense(before))?;
        self.projected((self.layer(), source), (of, before), rows)
    }

    /// Returns the matrices that nodes of a type read, by source: the rows of all its types.
    fn src(
        &self,
        node_type: usize,
        local: &[Local],
        rows: &KeptRows,
    ) -> Result<Vec<Option<Projected<ReadyInput>>>, InferError> {
        let slice = self.slice();
        let mut src = vec![None; slice.sources().len()];
        // Several sources may have rows of one type.
        let mut before: Vec<Option<ReadyInput>> = vec![None; local.len()];
        for at in slice.sources_of(node_type) {
            let source = &slice.sources()[at];
            for of in source.types.clone() {
                if before[of].is_none() {
                    before[of] = Some(self.own(of, &local[of].nodes, rows)?);
                }
            }
            let ready = |of: usize| before[of].clone().expect("it was made above");
            let first = source.types.start;
            if is_plain(source) && source.types.len() == 1 {
                src[at] = Some(Projected {
                    rows: ready(first),
                    scores: None,
                });
                continue;
            }
            let of_types = source.types.clone().map(|of| {
                let of_type = (of, &local[of].nodes[..]);
                self.projected((self.layer(), at), (of_type, ready(of)), rows)
            });
            let of_types: Vec<Projected<Dense>> = of_types.collect::<Result<_, _>>()?;
            let scores = of_types.iter().filter_map(|of| of.scores.as_ref());
            src[at] = Some(super::ready(Projected {
                scores: (scores.clone().count() > 0).then(|| joined(scores)),
                rows: joined(of_types.iter().map(|of| &of.rows)),
            })?);
        }
        Ok(src)
    }

    /// Returns the rows of dst nodes of a type before the layer.
    fn own(
        &self,
        node_type: usize,
        nodes: &[NodeIdx],
        rows: &KeptRows,
    ) -> Result<ReadyInput, InferError> {
        let own = self.before(self.layer(), (node_type, nodes), rows)?;
        Ok(ReadyInput::new(Input::Dense(own))?)
    }
}

/// Tells whether a source has the rows that the layer reads, and no scores.
fn is_plain(source: &Source) -> bool {
    !source.projects && source.scores_dim.is_none()
}

/// Joins matrices of one width, one below the other.
fn joined<'a>(parts: impl Iterator<Item = &'a Dense> + Clone) -> Dense {
    Dense {
        rows: parts.clone().map(|of| of.rows).sum(),
        cols: parts.clone().next().map_or(0, |of| of.cols),
        values: parts.flat_map(|of| &of.values).copied().collect(),
    }
}
