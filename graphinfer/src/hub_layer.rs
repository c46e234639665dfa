//! The hubs of a layer of a graph without node types.

use crate::InferError;
use crate::checkpoint::RoundRows;
use crate::gathered::{Gathered, RowSet};
use crate::hub_round::{HubLayer, hub_rows};
use crate::hubs::Hubs;
use crate::layer::{Layer, LayerInput, Rounds};
use crate::threads::Threads;
use cluster::Cluster;
use gnn::{PartialAggregation, SrcRows};
use schemas::{NodeIdx, Row};

/// A layer, and the rows that it reads.
struct UntypedLayer<'a> {
    rounds: &'a Rounds<'a>,
    input: &'a LayerInput,
    aggregation: Box<dyn PartialAggregation>,
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

    fn gather(
        &self,
        batches: &mut dyn Iterator<Item = Vec<NodeIdx>>,
    ) -> Result<Option<(usize, Gathered)>, InferError> {
        let Some(bytes) = self.rounds.gather_bytes else {
            return Ok(None);
        };
        let graph = self.rounds.graph;
        let rows_max = bytes / self.input.row_bytes().max(1);
        let (mut set, mut count) = (RowSet::new(graph.num_rows()), 0);
        for nodes in batches {
            let mut wider = set.clone();
            let rows = nodes.into_iter().map(|node| graph.row(node).raw());
            rows.for_each(|row| wider.insert(row));
            if count > 0 && wider.len() > rows_max {
                break;
            }
            (set, count) = (wider, count + 1);
        }
        let gathered = Gathered::new(set, None, self.input, graph.columns())?;
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
