//! The degrees and some edges of a relation.

use schemas::{EdgeRows, GraphPlan, RelationMeta, RelationPlan};

use super::kept::Kept;
use super::types::{Lost, Types};
use crate::FlattenError;

/// Edge rows whose weights are kept to measure their compression.
const WEIGHT_ROWS: u64 = 1 << 16;

/// What the survey knows of a relation.
pub struct RelationSurvey {
    /// `[nodes of the type that edges lead to]`.
    pub in_degree: Vec<u32>,
    /// Number of edges: an undirected edge counts twice, a dropped edge not at all.
    pub num_edges: u64,
    /// Edge rows dropped because an end is not a node.
    pub dropped_edges: u64,
    /// Position of the first node that `in_degree` counts.
    pub(super) first: u32,
    /// `[nodes of that type]`: place, in the order of types and ids, of the node's source that comes
    /// first; `u32::MAX` if the node has no in-edges.
    pub(super) least_src: Vec<u32>,
    /// Weights of some edge rows, spread over the table.
    pub(super) weights: Vec<f32>,
}

impl RelationSurvey {
    pub(super) fn new(relation: &RelationMeta, types: &Types) -> Self {
        let of_type = &types.all()[relation.to];
        Self {
            in_degree: vec![0; of_type.ids.len()],
            num_edges: 0,
            dropped_edges: 0,
            first: of_type.first,
            least_src: vec![u32::MAX; of_type.ids.len()],
            weights: Vec::new(),
        }
    }

    /// Returns the number of nodes of the type that edges lead to.
    pub(super) fn num_nodes(&self) -> usize {
        self.in_degree.len()
    }

    /// Returns the row of a node among those that edges lead to.
    pub(super) fn row(&self, node: u32) -> usize {
        (node - self.first) as usize
    }
}

/// Counts the edges of a relation while its table is read.
pub(super) struct Taker<'a> {
    plan: &'a RelationPlan,
    /// In-edges of a node that are kept.
    limit: usize,
    /// Rows for each row whose weight is kept.
    stride: u64,
    has_loops: bool,
    lost: Lost,
}

impl<'a> Taker<'a> {
    pub(super) fn new(graph: &'a GraphPlan, relation: usize, limit: usize) -> Self {
        let plan = &graph.relations[relation];
        Self {
            plan,
            limit,
            stride: plan.edges.num_rows().div_ceil(WEIGHT_ROWS).max(1),
            has_loops: false,
            lost: Lost::default(),
        }
    }

    /// Counts the edges of some rows; `rank` is the place of each node in the order of types and
    /// ids.
    pub(super) fn take(
        &mut self,
        rows: &EdgeRows,
        types: &Types,
        rank: &[u32],
        (relation, mut kept): (&mut RelationSurvey, Option<&mut Kept>),
    ) {
        let lost = types.each_row(self.plan, rows, |edge| {
            let row = (edge.dst - relation.first) as usize;
            let least = &mut relation.least_src[row];
            *least = (*least).min(rank[edge.src as usize]);
            if let Some(kept) = &mut kept {
                let seen = relation.in_degree[row];
                kept.add(row, edge, (seen, self.limit));
            }
            relation.in_degree[row] += 1;
            relation.num_edges += 1;
            self.has_loops |= edge.src == edge.dst;
        });
        self.lost.add(lost);
        let weights = rows.rows.iter().zip(rows.weight.iter().flatten());
        let spread = weights.filter(|(row, _)| row % self.stride == 0);
        relation.weights.extend(spread.map(|(_, weight)| weight));
    }

    /// Returns the number of dropped rows, and whether some edge leads from a node to itself. The
    /// dropped rows of a table count for its relation, not for the reverse.
    ///
    /// # Errors
    ///
    /// If an end of an edge is no node, and the job does not drop such rows.
    pub(super) fn finish(self) -> Result<(u64, bool), FlattenError> {
        let dropped = self.lost.refuse(self.plan)?;
        Ok((if self.plan.reversed { 0 } else { dropped }, self.has_loops))
    }
}
