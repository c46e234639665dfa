//! The hubs of a layer, by relation.

use super::layer::{TypedLayer, TypedRounds, rows_of, widened};
use crate::InferError;
use crate::checkpoint::RoundRows;
use crate::hub_round::{HubLayer, hub_rows};
use crate::hubs::{Hubs, ReadColumns, RelationUse};
use crate::layer::HubRows;
use crate::local::Read;
use crate::threads::Threads;
use cluster::Cluster;
use gnn::typed::TypedArchitecture;
use gnn::{PartialAggregation, SharedRows, SrcRows};
use schemas::{NodeIdx, Row};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// A layer, and the rows that its relations read.
struct TypedHubLayer<'a> {
    rounds: TypedRounds<'a>,
    layer: usize,
    before: &'a RoundRows,
    /// By relation; none if the layer reads no in-edge of the relation.
    relations: Vec<Option<RelationRows>>,
    /// No rows of hubs: the layer is still to compute them.
    none: HubRows,
}

/// The aggregation of a relation, and the rows of its `from` type.
struct RelationRows {
    aggregation: Box<dyn PartialAggregation>,
    rows: SharedRows,
    scores: Option<SharedRows>,
    /// The scores of the dst nodes' type, if the source of the rows has the type.
    dst_scores: Option<SharedRows>,
}

/// Lists by relation how the layers read its in-edges; `reads` has the lists of in-edges that the
/// layers read.
pub(super) fn relation_uses(
    arch: &TypedArchitecture,
    reads: &BTreeSet<Vec<Read>>,
) -> Vec<RelationUse> {
    let mut limits: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    for &(relation, limit) in reads.iter().flatten() {
        limits.entry(relation).or_default().insert(limit);
    }
    let relations = arch.relations.iter().enumerate();
    let of_relation = relations.map(|(at, of)| RelationUse {
        columns: ReadColumns::of_relation(of),
        limits: limits.remove(&at).unwrap_or_default(),
    });
    of_relation.collect()
}

impl<'a> TypedRounds<'a> {
    /// Computes a layer's rows of own hubs from the rows of the round before.
    ///
    /// All processes call this for the same layer.
    pub(super) fn hub_rows(&self, layer: usize, before: &RoundRows) -> Result<HubRows, InferError> {
        if self.graph.hubs().num_batches() == 0 {
            return Ok(HubRows::default());
        }
        let relations = 0..self.graph.hubs().num_relations();
        let relations = relations.map(|relation| {
            let is_read = self.limit_of(layer, relation) > 0;
            let rows = is_read.then(|| self.relation_rows(layer, relation, before));
            rows.transpose()
        });
        hub_rows(&TypedHubLayer {
            rounds: *self,
            layer,
            before,
            relations: relations.collect::<Result<_, InferError>>()?,
            none: HubRows::default(),
        })
    }

    /// Returns how many in-edges of a relation a layer reads of a node: none if no row of the dst
    /// nodes' type is needed.
    fn limit_of(&self, layer: usize, relation: usize) -> usize {
        let to = self.trained.model.schema().relations[relation].to;
        match self.needed.has(layer, to) {
            true => self.limits[layer - 1][relation],
            false => 0,
        }
    }

    fn relation_rows(
        &self,
        layer: usize,
        relation: usize,
        before: &RoundRows,
    ) -> Result<RelationRows, InferError> {
        let slice = self.slice_on_processor(layer);
        let ends = &self.trained.model.schema().relations[relation];
        let used = slice.aggregated_sources(relation);
        let part = |of: usize, all: &SharedRows, node_type: usize| {
            let types = &slice.sources()[of].types;
            let first = self.graph.rows_of_types(types).start;
            let Range { start, end } = self.graph.rows_of_types(&(node_type..node_type + 1));
            all.slice(start - first..end - first)
        };
        let rows_of_source = |of: usize| match &before.sources[of].src {
            Some(src) => part(of, src, ends.from),
            // The source does not project: its rows are those of the layer before.
            None => rows_of(before).slice(self.graph.rows_of_types(&(ends.from..ends.from + 1))),
        };
        let scores = before.sources[used.rows].scores.as_ref();
        let has_dst = slice.sources()[used.rows].types.contains(&ends.to);
        Ok(RelationRows {
            aggregation: slice.aggregation(relation)?,
            rows: rows_of_source(used.rows),
            scores: match used.scores {
                Some(of) => Some(rows_of_source(of)),
                None => scores.map(|all| part(used.rows, all, ends.from)),
            },
            dst_scores: scores
                .filter(|_| has_dst)
                .map(|all| part(used.rows, all, ends.to)),
        })
    }
}

impl TypedHubLayer<'_> {
    fn relation(&self, relation: usize) -> &RelationRows {
        let of = self.relations[relation].as_ref();
        of.expect("the layer reads the relation")
    }

    /// Returns the type that a relation leads to.
    fn to(&self, relation: usize) -> usize {
        self.rounds.trained.model.schema().relations[relation].to
    }
}

impl HubLayer for TypedHubLayer<'_> {
    type OnThread<'a>
        = TypedLayer<'a>
    where
        Self: 'a;

    fn cluster(&self) -> &Cluster {
        self.rounds.graph.store().cluster()
    }

    fn threads(&self) -> &Threads {
        self.rounds.threads
    }

    fn hubs(&self) -> &Hubs {
        self.rounds.graph.hubs()
    }

    fn on_thread(&self) -> TypedLayer<'_> {
        let input = (self.before, &self.none);
        self.rounds.layer_on_processor(self.layer, input)
    }

    fn limit(&self, relation: usize) -> usize {
        self.rounds.limit_of(self.layer, relation)
    }

    fn aggregation(&self, relation: usize) -> &dyn PartialAggregation {
        &*self.relation(relation).aggregation
    }

    fn src(&self, relation: usize) -> SrcRows<'_> {
        let of = self.relation(relation);
        SrcRows {
            rows: of.rows.values(),
            scores: of.scores.as_ref().map(SharedRows::values),
            nodes: self.rounds.graph.columns(relation),
        }
    }

    fn src_row(&self, relation: usize, node: NodeIdx) -> u32 {
        let from = self.rounds.trained.model.schema().relations[relation].from;
        self.rounds.graph.row_of_type(from, node)
    }

    fn dst_row(&self, relation: usize, node: NodeIdx) -> (Row, u32) {
        let node_type = self.to(relation);
        let of_type = self.rounds.graph.row_of_type(node_type, node);
        let rows = self.rounds.graph.rows_of_types(&(node_type..node_type + 1));
        (Row::from_index(rows.start + of_type as usize), of_type)
    }

    fn query(
        &self,
        layer: &TypedLayer<'_>,
        relation: usize,
        row: Row,
    ) -> Result<Vec<f32>, InferError> {
        let node_type = self.to(relation);
        let rows = self.rounds.graph.rows_of_types(&(node_type..node_type + 1));
        let at = row.index() - rows.start;
        let scores = self.relation(relation).dst_scores.as_ref();
        let scores = scores.map(|all| all.slice(at..at + 1));
        let own = rows_of(self.before).slice(row.index()..row.index() + 1);
        let scores = scores.as_ref().map(|scores| scores.values().f32());
        Ok(layer.slice().query(relation, scores, widened(&own))?)
    }

    fn run(
        &self,
        layer: &TypedLayer<'_>,
        row: Row,
        aggregated: Vec<(usize, Vec<f32>)>,
    ) -> Result<Vec<f32>, InferError> {
        layer.run_hub(self.to(aggregated[0].0), row, &aggregated)
    }
}
