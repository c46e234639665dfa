//! The hubs of a layer of a graph without node types.

use crate::InferError;
use crate::checkpoint::RoundRows;
use crate::gathered::{Gathered, RowSet};
use crate::hub_round::{HubLayer, hub_rows};
use crate::hubs::Hubs;
use crate::layer::{Layer, LayerInput, Rounds};
use crate::spooled::{Gathering, SpooledRows};
use crate::threads::Threads;
use cluster::Cluster;
use gnn::{PartialAggregation, SrcRows};
use schemas::{NodeIdx, Row};
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// A layer, and the rows that it reads.
struct UntypedLayer<'a> {
    rounds: &'a Rounds<'a>,
    input: &'a LayerInput,
    aggregation: Box<dyn PartialAggregation>,
    /// Groups of pieces whose rows are copied.
    ahead: Mutex<PiecesAhead>,
}

/// Groups of consecutive pieces of hubs, whose rows were copied in one pass.
#[derive(Default)]
struct PiecesAhead {
    /// The number of pieces, the rows that they read, and the bucket of these.
    groups: VecDeque<(usize, RowSet, usize)>,
    rows: Option<SpooledRows>,
}

impl Rounds<'_> {
    /// Returns the input of a layer: the rows of the round before, and the layer's rows of own
    /// hubs, which it computes.
    ///
    /// All processes call this for the same layer.
    pub(crate) fn open(&self, layer: usize, before: &RoundRows) -> Result<LayerInput, InferError> {
        let mut input = LayerInput::of(layer, before);
        if self.graph.hubs().num_batches() == 0 {
            return Ok(input);
        }
        let hubs = hub_rows(&UntypedLayer {
            rounds: self,
            input: &input,
            aggregation: self.conv_on_processor(layer).aggregation()?,
            ahead: Mutex::default(),
        })?;
        input.hubs = hubs;
        Ok(input)
    }
}

impl HubLayer for UntypedLayer<'_> {
    type OnThread<'a>
        = Layer<'a>
    where
        Self: 'a;

    fn cluster(&self) -> &Cluster {
        self.rounds.graph.cluster()
    }

    fn threads(&self) -> &Threads {
        self.rounds.threads
    }

    fn hubs(&self) -> &Hubs {
        self.rounds.graph.hubs()
    }

    fn on_thread(&self) -> Layer<'_> {
        self.rounds.layer_on_processor(self.input)
    }

    fn limit(&self, _relation: usize) -> usize {
        self.rounds.limit(self.input.layer)
    }

    fn aggregation(&self, _relation: usize) -> &dyn PartialAggregation {
        &*self.aggregation
    }

    fn rows_at_once(&self) -> usize {
        let gathering = self.gathering();
        gathering.map_or(usize::MAX, |of| self.rows_max(of).max(1))
    }

    fn gather(
        &self,
        pieces: &mut dyn Iterator<Item = Vec<NodeIdx>>,
    ) -> Result<Option<(usize, Gathered)>, InferError> {
        let Some(gathering) = self.gathering() else {
            return Ok(None);
        };
        let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        if ahead.groups.is_empty() {
            *ahead = PiecesAhead::default();
            *ahead = self.read_ahead(gathering, pieces)?;
        }
        let Some((count, set, bucket)) = ahead.groups.pop_front() else {
            return Ok(None);
        };
        let spooled = ahead.rows.as_ref().map(|rows| (rows, bucket));
        let columns = self.rounds.graph.columns();
        let gathered = Gathered::new(set, None, (self.input, spooled), columns)?;
        Ok(Some((count, gathered)))
    }

    fn src(&self, _relation: usize) -> SrcRows<'_> {
        self.input.src(self.rounds.graph.columns())
    }

    fn src_row(&self, _relation: usize, node: NodeIdx) -> u32 {
        self.rounds.graph.row(node).raw()
    }

    fn dst_row(&self, _relation: usize, node: NodeIdx) -> (Row, u32) {
        let row = self.rounds.graph.own_row(node);
        let row = row.expect("a node of this process");
        (row, row.raw())
    }

    fn query(&self, layer: &Layer<'_>, _relation: usize, row: Row) -> Result<Vec<f32>, InferError> {
        layer.query(row)
    }

    fn run(
        &self,
        layer: &Layer<'_>,
        row: Row,
        mut aggregated: Vec<(usize, Vec<f32>)>,
    ) -> Result<Vec<f32>, InferError> {
        let (_, merged) = aggregated.pop().expect("the only relation");
        layer.run_hub(row, merged)
    }
}

impl UntypedLayer<'_> {
    /// Returns how rows are copied; none if the page cache holds them. The processor aggregates hubs,
    /// so a buffer of a GPU need not hold the rows.
    fn gathering(&self) -> Option<&Gathering> {
        let gathering = self.rounds.gathering;
        gathering.filter(|of| of.spooled.is_some())
    }

    /// Returns how many rows of a group fit in memory.
    fn rows_max(&self, gathering: &Gathering) -> usize {
        gathering.group_bytes() / self.input.row_bytes().max(1)
    }

    /// Joins the next pieces to groups whose rows fit in memory, and copies the rows of as many
    /// groups as share a pass over the file.
    fn read_ahead(
        &self,
        gathering: &Gathering,
        pieces: &mut dyn Iterator<Item = Vec<NodeIdx>>,
    ) -> Result<PiecesAhead, InferError> {
        let graph = self.rounds.graph;
        let rows_max = self.rows_max(gathering);
        let mut groups: Vec<(usize, RowSet)> = Vec::new();
        for nodes in pieces {
            let rows = || nodes.iter().map(|&node| graph.row(node).raw());
            if let Some((count, set)) = groups.last_mut() {
                if set.insert_up_to(rows(), rows_max) {
                    *count += 1;
                    continue;
                }
                if !gathering.has_room_for(groups.iter().map(|group| &group.1)) {
                    break;
                }
            }
            let mut set = RowSet::new(graph.num_rows());
            rows().for_each(|row| set.insert(row));
            groups.push((1, set));
        }
        let sets: Vec<&RowSet> = groups.iter().map(|(_, set)| set).collect();
        let rows = gathering.rows(&sets, self.input)?;
        let groups = groups.into_iter().enumerate();
        let groups = groups.map(|(bucket, (count, set))| (count, set, bucket));
        Ok(PiecesAhead {
            groups: groups.collect(),
            rows,
        })
    }
}
