//! One layer: the rows that it reads, and the rows that it computes for own nodes.

use crate::InferError;
use crate::checkpoint::RoundRows;
use crate::exchange::Crossing;
use crate::gathered::RowSet;
use crate::graph::Graph;
use crate::group::{Group, Groups, Planned};
use crate::model::TrainedModel;
use crate::slice::Slice;
use crate::spooled::Gathering;
use crate::threads::Threads;
use gnn::{
    Block, Dense, LayerSlice, Model, NodeColumns, Projected, ReadyInput, RowFormat, SharedRows,
    SrcRows,
};
use schemas::Row;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::OnceLock;

/// Graph, model, slices and threads that all rounds share.
pub(crate) struct Rounds<'a> {
    pub(crate) graph: &'a Graph,
    /// The model on the processor, which computes hubs and samples of 16-bit rows.
    pub(crate) trained: &'a TrainedModel,
    /// The model on the device that computes blocks.
    pub(crate) model: &'a Model,
    pub(crate) slices: &'a [Slice],
    pub(crate) threads: &'a Threads,
    /// How rows are kept between rounds.
    pub(crate) format: RowFormat,
    /// The layer whose rows are kept for the output, also if no later layer reads them.
    pub(crate) embedding_layer: usize,
    /// Whether the rows of all layers but the last are kept for the next version.
    pub(crate) keeps_rows: bool,
    /// How the rows that blocks read are copied group by group. None if the page cache, and a
    /// buffer of a GPU, hold the rows, and with several processes or sparse features.
    pub(crate) gathering: Option<&'a Gathering>,
}

/// The rows that a layer reads.
pub(crate) struct LayerInput {
    /// From 1.
    pub(crate) layer: usize,
    pub(crate) before: RoundRows,
    /// The layer's rows of own hubs, which are computed before its blocks.
    pub(crate) hubs: HubRows,
    /// The rows as a conv reads them; a GPU gets them once, for all threads.
    src: OnceLock<Projected<ReadyInput>>,
}

/// A conv with its input, for one thread.
pub(crate) struct Layer<'a> {
    rounds: &'a Rounds<'a>,
    slice: Slice,
    conv: LayerSlice<'a>,
    src: Projected<ReadyInput>,
    input: &'a LayerInput,
    group: Option<&'a Group>,
}

/// The rows of own hubs after a layer.
#[derive(Debug, Default)]
pub(crate) struct HubRows {
    pub(crate) by_row: BTreeMap<Row, Vec<f32>>,
    /// Bytes that processes exchanged for them.
    pub(crate) crossing: Crossing,
}

impl Rounds<'_> {
    /// Cuts some own rows into the blocks in which a layer is computed.
    pub(crate) fn ranges_of(&self, rows: Range<usize>, layer: usize) -> Vec<Range<usize>> {
        self.graph.ranges(rows, self.limit(layer))
    }

    /// Returns how many in-edges of a node a round reads.
    pub(crate) fn limit(&self, round: usize) -> usize {
        // Round 0 reads no in-edge.
        let slice = round.checked_sub(1).map(|at| self.slices[at]);
        slice.map_or(0, |slice| slice.limit)
    }

    /// Returns the conv of a layer, for one thread.
    pub(crate) fn conv(&self, layer: usize) -> LayerSlice<'_> {
        self.model.layer_slice(layer, self.reads_sparse(layer))
    }

    /// Returns the conv of a layer on the processor.
    pub(crate) fn conv_on_processor(&self, layer: usize) -> LayerSlice<'_> {
        let model = &self.trained.model;
        model.layer_slice(layer, self.reads_sparse(layer))
    }

    fn reads_sparse(&self, layer: usize) -> bool {
        self.trained.reads_sparse(layer, self.graph.features())
    }

    /// Returns a layer with its input, for one thread. It runs on blocks of the group, if there is
    /// one.
    pub(crate) fn layer<'a>(
        &'a self,
        input: &'a LayerInput,
        group: Option<&'a Group>,
    ) -> Layer<'a> {
        let all = || input.src.get_or_init(|| input.ready()).clone();
        Layer {
            rounds: self,
            slice: self.slices[input.layer - 1],
            conv: self.conv(input.layer),
            src: group.map_or_else(all, Group::src),
            input,
            group,
        }
    }

    /// Returns a layer on the processor, for single nodes.
    pub(crate) fn layer_on_processor<'a>(&'a self, input: &'a LayerInput) -> Layer<'a> {
        Layer {
            rounds: self,
            slice: self.slices[input.layer - 1],
            conv: self.conv_on_processor(input.layer),
            src: input.ready(),
            input,
            group: None,
        }
    }

    /// Calls `run` on groups of consecutive blocks, each with its group if rows are copied group by
    /// group; else once with all blocks.
    pub(crate) fn for_each_group(
        &self,
        input: &LayerInput,
        blocks: &[Range<usize>],
        mut run: impl FnMut(Range<usize>, Option<&Group>) -> Result<(), InferError>,
    ) -> Result<(), InferError> {
        let Some(gathering) = self.gathering else {
            return run(0..blocks.len(), None);
        };
        let mut groups = Groups::new(gathering.group_bytes(), self, input);
        let mut start = 0;
        while start < blocks.len() {
            let planned = groups.plan(self, input, blocks, start)?;
            let sets: Vec<&RowSet> = planned.iter().map(Planned::set).collect();
            let spooled = gathering.rows(&sets, input)?;
            for (at, one) in planned.into_iter().enumerate() {
                let of_group = one.blocks.clone();
                let spooled = spooled.as_ref().map(|rows| (rows, at));
                let group = one.gather(self, (input, spooled), blocks)?;
                // The rows of the next group arrive while this one is computed.
                if let Some((rows, _)) = spooled {
                    rows.will_need(at + 1);
                }
                start = of_group.end;
                run(of_group, Some(&group))?;
            }
        }
        Ok(())
    }

    /// Checks that the rows of a layer hold finite numbers; `row_of` turns their positions into own
    /// rows.
    pub(crate) fn check_finite(
        &self,
        rows: &Dense,
        layer: usize,
        row_of: impl Fn(usize) -> usize,
    ) -> Result<(), InferError> {
        let Some(at) = first_not_finite(&rows.values) else {
            return Ok(());
        };
        let row = Row::from_index(row_of(at / rows.cols));
        Err(InferError::NotFinite {
            dir: self.trained.record.dir.clone(),
            layer,
            id: self.graph.ids(&[row]).display(0),
        })
    }
}

impl LayerInput {
    /// Returns the input of a layer, without rows of hubs.
    pub(crate) fn of(layer: usize, before: &RoundRows) -> Self {
        Self {
            layer,
            before: before.clone(),
            hubs: HubRows::default(),
            src: OnceLock::new(),
        }
    }

    /// Returns the rows that the layer aggregates, with their scores, as a conv reads them.
    fn ready(&self) -> Projected<ReadyInput> {
        Projected {
            rows: ReadyInput::shared(self.aggregated()),
            scores: self.scores().map(ReadyInput::shared),
        }
    }

    /// Returns the rows that the layer aggregates: of own nodes and of the halo.
    pub(crate) fn aggregated(&self) -> &SharedRows {
        let source = self.before.sources.first();
        let src = source.and_then(|source| source.src.as_ref());
        let rows = src.or(self.before.rows.as_ref());
        rows.expect("a round leaves what the next one reads")
    }

    /// Returns the attention scores of these rows, if the layer has scores.
    pub(crate) fn scores(&self) -> Option<&SharedRows> {
        let source = self.before.sources.first();
        source.and_then(|source| source.scores.as_ref())
    }

    /// Returns the width of the wider one of rows and scores.
    pub(crate) fn cols(&self) -> usize {
        let of_scores = self.scores().map_or(0, SharedRows::cols);
        self.aggregated().cols().max(of_scores)
    }

    /// Returns the bytes of a row with its scores.
    pub(crate) fn row_bytes(&self) -> usize {
        let bytes = |rows: &SharedRows| rows.format().num_bytes() * rows.cols();
        bytes(self.aggregated()) + self.scores().map_or(0, bytes)
    }

    /// Returns these rows as plain slices, with the scores and the columns of the nodes.
    pub(crate) fn src<'a>(&'a self, nodes: &'a NodeColumns) -> SrcRows<'a> {
        SrcRows {
            rows: self.aggregated().values(),
            scores: self.scores().map(SharedRows::values),
            nodes,
        }
    }
}

impl Layer<'_> {
    /// Computes the rows of some own nodes.
    pub(crate) fn run(&self, own_rows: Range<usize>) -> Result<Dense, InferError> {
        let block = self.block(own_rows.clone())?;
        let own = self.own(own_rows.clone())?;
        let mut rows = self.conv.run(&block, &self.src, own)?;
        for (row, values) in self.input.hubs.of(own_rows.clone()) {
            let at = (row - own_rows.start) * rows.cols;
            rows.values[at..at + rows.cols].copy_from_slice(values);
        }
        let layer = self.slice.layer;
        self.rounds
            .check_finite(&rows, layer, |row| own_rows.start + row)?;
        Ok(rows)
    }

    /// Computes the row of an own hub from its aggregated in-edges.
    pub(crate) fn run_hub(&self, row: Row, aggregated: Vec<f32>) -> Result<Vec<f32>, InferError> {
        let rows = row.index()..row.index() + 1;
        let (block, own) = (self.block(rows.clone())?, self.own(rows)?);
        let done = self
            .conv
            .run_aggregated(&block, &self.src, own, aggregated)?;
        Ok(done.values)
    }

    /// Returns the query that attention needs to aggregate the in-edges of an own node.
    pub(crate) fn query(&self, row: Row) -> Result<Vec<f32>, InferError> {
        let row = row.index();
        let scores = self.input.scores();
        let scores = scores.map(|scores| scores.slice(row..row + 1));
        let scores = scores.as_ref().map(|scores| scores.values().f32());
        Ok(self.conv.query(scores, self.own(row..row + 1)?)?)
    }

    fn block(&self, own_rows: Range<usize>) -> Result<Block, InferError> {
        if let Some(group) = self.group {
            return group.block(self.rounds, own_rows);
        }
        let arch = self.rounds.trained.model.architecture();
        self.rounds.graph.block(own_rows, self.slice.limit, arch)
    }

    /// Returns the rows of dst nodes, if the conv reads them.
    fn own(&self, own_rows: Range<usize>) -> Result<Option<ReadyInput>, InferError> {
        if !self.conv.reads_own() {
            return Ok(None);
        }
        if let Some(rows) = &self.input.before.rows {
            return Ok(Some(ReadyInput::widened(&rows.slice(own_rows))));
        }
        let input = self.rounds.graph.input(own_rows, self.rounds.trained)?;
        Ok(Some(ReadyInput::new(input)?))
    }
}

impl HubRows {
    /// Returns the rows of the hubs among some own rows, each with its row number.
    pub(crate) fn of(&self, rows: Range<usize>) -> impl Iterator<Item = (usize, &[f32])> {
        let found = self
            .by_row
            .range(Row::from_index(rows.start)..Row::from_index(rows.end));
        found.map(|(&row, values)| (row.index(), &values[..]))
    }
}

/// Returns the position of the first number that is not finite.
pub(crate) fn first_not_finite(values: &[f32]) -> Option<usize> {
    // The exponent of such a number is all ones. The loop has no branches, so it becomes vector
    // code.
    const EXPONENT: u32 = 0x7f80_0000;
    let greatest = values.iter().map(|value| value.to_bits() & EXPONENT);
    if greatest.fold(0, u32::max) < EXPONENT {
        return None;
    }
    values.iter().position(|value| !value.is_finite())
}
