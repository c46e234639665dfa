//! One layer: the rows that it reads, and the rows that it computes for nodes of a type.

use super::graph::TypedGraph;
use super::need::NeededTypes;
use super::reads::LayerReads;
use crate::InferError;
use crate::checkpoint::RoundRows;
use crate::layer::{HubRows, first_not_finite};
use crate::model::TypedTrained;
use crate::threads::Threads;
use gnn::typed::{TypedLayerSlice, TypedModel};
use gnn::{Dense, Input, Projected, ReadyInput, RowFormat, SharedRows};
use schemas::Row;
use std::ops::Range;

/// Graph, model and threads that all rounds share.
#[derive(Clone, Copy)]
pub(super) struct TypedRounds<'a> {
    pub(super) graph: &'a TypedGraph<'a>,
    /// The model on the processor, which computes hubs.
    pub(super) trained: &'a TypedTrained,
    /// The model on the device that computes blocks.
    pub(super) model: &'a TypedModel,
    /// By layer and relation: how many in-edges of a node are read.
    pub(super) limits: &'a [Vec<usize>],
    pub(super) needed: &'a NeededTypes,
    pub(super) threads: &'a Threads,
    /// How rows are kept between rounds.
    pub(super) format: RowFormat,
    /// The layer whose rows are kept for the output, also if no later layer reads them.
    pub(super) embedding_layer: usize,
    /// Whether the rows of all layers but the last are kept for the next version.
    pub(super) keeps_rows: bool,
}

/// By type: the matrices that its nodes read, by source.
pub(super) type TypedSources = Vec<Vec<Option<Projected<ReadyInput>>>>;

/// A layer with its input, for one thread.
pub(super) struct TypedLayer<'a> {
    rounds: TypedRounds<'a>,
    layer: usize,
    slice: TypedLayerSlice<'a>,
    src: TypedSources,
    before: &'a RoundRows,
    hubs: &'a HubRows,
}

impl<'a> TypedRounds<'a> {
    /// Returns a slice of the model, for one thread.
    pub(super) fn slice(&self, layer: usize) -> TypedLayerSlice<'a> {
        self.model.layer_slice(layer)
    }

    /// Returns a slice of the model on the processor.
    pub(super) fn slice_on_processor(&self, layer: usize) -> TypedLayerSlice<'a> {
        self.trained.model.layer_slice(layer)
    }

    /// Returns how many in-edges of each relation a round reads of a node; none for round 0.
    pub(super) fn limits(&self, round: usize) -> Option<&'a [usize]> {
        let layer = round.checked_sub(1);
        layer.map(|layer| &self.limits[layer][..])
    }

    /// Returns the in-edges that a layer reads.
    pub(super) fn reads(&self, layer: usize) -> LayerReads {
        let schema = self.trained.model.schema();
        let limits = &self.limits[layer - 1];
        LayerReads::new(
            &self.slice_on_processor(layer),
            schema,
            (layer, self.needed, limits),
        )
    }

    /// Returns what a layer aggregates: by type, the matrices that its nodes read, by source. A GPU
    /// gets each matrix once, for all threads.
    pub(super) fn sources(&self, layer: usize, before: &RoundRows) -> TypedSources {
        let slice = self.slice_on_processor(layer);
        let all = slice.sources().iter().zip(&before.sources);
        let all = all.map(|(source, files)| {
            let rows = self.graph.rows_of_types(&source.types);
            let src = match &files.src {
                Some(src) => src.clone(),
                None if source.projects => return None, // no type that is computed reads it
                None => rows_of(before).slice(rows),
            };
            Some(Projected {
                rows: ready(&src),
                scores: files.scores.as_ref().map(ready),
            })
        });
        let all: Vec<Option<Projected<ReadyInput>>> = all.collect();
        let of_type = |node_type| {
            let mut src = vec![None; all.len()];
            for at in slice.sources_of(node_type) {
                src[at].clone_from(&all[at]);
            }
            src
        };
        let types = 0..self.trained.model.schema().types.len();
        types.map(of_type).collect()
    }

    /// Returns a layer with its input, for one thread: what it aggregates, the rows of the round
    /// before, and the layer's rows of own hubs.
    pub(super) fn layer(
        self,
        layer: usize,
        (src, before, hubs): (&TypedSources, &'a RoundRows, &'a HubRows),
    ) -> TypedLayer<'a> {
        TypedLayer {
            rounds: self,
            layer,
            src: src.clone(),
            slice: self.slice(layer),
            before,
            hubs,
        }
    }

    /// Returns a layer on the processor, for single nodes.
    pub(super) fn layer_on_processor(
        self,
        layer: usize,
        (before, hubs): (&'a RoundRows, &'a HubRows),
    ) -> TypedLayer<'a> {
        TypedLayer {
            rounds: self,
            layer,
            src: self.sources(layer, before),
            slice: self.slice_on_processor(layer),
            before,
            hubs,
        }
    }

    /// Checks that the rows of a layer hold finite numbers; `row_of` turns their positions into
    /// rows of the graph.
    pub(super) fn check_finite(
        &self,
        rows: &Dense,
        (layer, node_type): (usize, usize),
        row_of: impl Fn(usize) -> usize,
    ) -> Result<(), InferError> {
        let Some(at) = first_not_finite(&rows.values) else {
            return Ok(());
        };
        let ids = [Row::from_index(row_of(at / rows.cols))];
        let name = &self.trained.model.schema().types[node_type];
        Err(InferError::NotFinite {
            dir: self.trained.record.dir.clone(),
            layer,
            id: format!(
                "{} of type `{name}`",
                self.graph.ids(node_type, &ids).display(0)
            ),
        })
    }
}

impl TypedLayer<'_> {
    /// Computes some rows of a type.
    pub(super) fn run(&self, node_type: usize, rows: Range<usize>) -> Result<Dense, InferError> {
        let limits = &self.rounds.limits[self.layer - 1];
        let block = self.rounds.graph.block(node_type, rows.clone(), limits)?;
        let own = widened(&rows_of(self.before).slice(rows.clone()));
        let mut computed = self.slice.run(&block, &self.src[node_type], &own)?;
        for (row, values) in self.hubs.of(rows.clone()) {
            let at = (row - rows.start) * computed.cols;
            computed.values[at..at + computed.cols].copy_from_slice(values);
        }
        let place = (self.layer, node_type);
        self.rounds
            .check_finite(&computed, place, |row| rows.start + row)?;
        Ok(computed)
    }

    /// Computes the row of an own hub of a type from its aggregated in-edges, by relation.
    pub(super) fn run_hub(
        &self,
        node_type: usize,
        row: Row,
        aggregated: &[(usize, Vec<f32>)],
    ) -> Result<Vec<f32>, InferError> {
        let rows = row.index()..row.index() + 1;
        let limits = &self.rounds.limits[self.layer - 1];
        let block = self.rounds.graph.block(node_type, rows.clone(), limits)?;
        let own = widened(&rows_of(self.before).slice(rows));
        let src = &self.src[node_type];
        let done = self.slice.run_aggregated(&block, src, &own, aggregated)?;
        Ok(done.values)
    }

    pub(super) fn slice(&self) -> &TypedLayerSlice<'_> {
        &self.slice
    }

    /// Returns the scores of some rows that the next layer mixes in, if this layer has scores.
    pub(super) fn scores(&self, rows: Range<usize>) -> Option<SharedRows> {
        // Only kinds with one source for all types mix them in.
        let source = self.before.sources.first()?;
        let scores = source.scores.as_ref()?;
        Some(scores.slice(rows))
    }
}

/// Returns the rows of the round before.
pub(super) fn rows_of(before: &RoundRows) -> &SharedRows {
    let rows = before.rows.as_ref();
    rows.expect("a round leaves what the next one reads")
}

/// Returns mapped rows as a layer aggregates them.
pub(super) fn ready(rows: &SharedRows) -> ReadyInput {
    if rows.rows() > 0 {
        return ReadyInput::shared(rows);
    }
    no_rows(rows)
}

/// Returns mapped rows as a layer reads those of its dst nodes.
pub(super) fn widened(rows: &SharedRows) -> ReadyInput {
    if rows.rows() > 0 {
        return ReadyInput::widened(rows);
    }
    no_rows(rows)
}

fn no_rows(rows: &SharedRows) -> ReadyInput {
    // An empty file is not mapped.
    let none = ReadyInput::new(Input::Dense(Dense::zeros(0, rows.cols())));
    none.expect("a matrix without rows has no numbers that could be wrong")
}
