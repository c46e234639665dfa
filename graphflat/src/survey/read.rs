//! Reads the whole input without a shuffle: checks every value and counts degrees.

use schemas::{
    ColumnMeta, DescribedColumns, FeatureMeta, Features, GraphMeta, GraphPlan, HopFanouts,
    NodeRows, NodeSource, Split, keep_at_hop,
};

use super::edge::Edge;
use super::kept::Kept;
use super::relation::{RelationSurvey, Taker};
use super::types::{TypeKeys, TypeSurvey, Types};
use crate::FlattenError;

/// Number of rows whose features are kept to measure their compression; narrow rows may be more.
const FEATURE_ROWS: usize = 4096;

/// Number of feature values kept of narrow rows, if these are more than [`FEATURE_ROWS`] rows.
const FEATURE_NUMBERS: usize = 1 << 18;

/// The result of reading the input tables once.
///
/// The position of a node counts the nodes of all types: those of type 0 come first, in the order
/// of their table.
pub struct Survey {
    pub(super) types: Types,
    /// One for each relation.
    pub relations: Vec<RelationSurvey>,
    /// `[num_nodes]`: positions by type and then by id.
    pub(super) order: Vec<u32>,
    /// In-edges of every node by relation, at most as many as the largest fan-out; `None` if this is
    /// too much.
    pub(super) kept: Option<Vec<Kept>>,
    /// Name of the id column of the target type.
    pub(super) id_column: String,
    /// Types and columns of the tables.
    pub meta: GraphMeta,
}

impl Survey {
    /// Reads every row of all tables, and keeps as many in-edges as the largest fan-out allows.
    ///
    /// # Errors
    ///
    /// The first value that is not allowed, with its file, column and row.
    pub fn read(
        graph: &GraphPlan,
        target_type: usize,
        fanouts: &[HopFanouts],
    ) -> Result<Survey, FlattenError> {
        let mut keys = read_keys(graph)?;
        let target = &graph.types[target_type].nodes;
        let label = target.label_meta(keys[target_type].names(), keys[target_type].max_class)?;
        let mut meta = graph.meta(target_type, label);
        for ((of_type, plan), found) in meta.types.iter_mut().zip(&graph.types).zip(&mut keys) {
            of_type.columns = plan
                .nodes
                .column_meta(std::mem::take(&mut found.categories), &[]);
        }
        let rows = read_rows(graph, &mut meta)?;
        let types = Types::new(graph, keys, rows)?;
        let order = types.order();
        let relations = meta.relations.iter();
        let relations = relations.map(|relation| RelationSurvey::new(relation, &types));
        let mut survey = Survey {
            relations: relations.collect(),
            types,
            order,
            kept: None,
            id_column: target.spec().id.clone(),
            meta,
        };
        survey.read_edges(graph, fanouts)?;
        survey.check_graphs(graph)?;
        Ok(survey)
    }

    /// Checks and counts every edge, and keeps some in-edges of every node.
    fn read_edges(
        &mut self,
        graph: &GraphPlan,
        fanouts: &[HopFanouts],
    ) -> Result<(), FlattenError> {
        let mut rank = vec![0; self.num_nodes()];
        for (at, &node) in (0u32..).zip(&self.order) {
            rank[node as usize] = at;
        }
        let limits: Vec<usize> = (0..self.relations.len())
            .map(|relation| keep_at_hop_or_none(fanouts, relation))
            .collect();
        let degrees = self.relations.iter().map(RelationSurvey::num_nodes);
        let mut kept = Kept::rooms(degrees.zip(limits.iter().copied()));
        for source in graph.edge_sources() {
            let members = source.relations().iter();
            let mut takers: Vec<Taker> = members
                .map(|&(idx, _)| Taker::new(graph, idx, limits[idx]))
                .collect();
            for unit in source.units() {
                for batch in source.batches(unit)? {
                    let tables = batch?;
                    for (taker, &(idx, table)) in takers.iter_mut().zip(source.relations()) {
                        let kept = kept.as_mut().map(|kept| &mut kept[idx]);
                        let relation = &mut self.relations[idx];
                        taker.take(&tables[table], &self.types, &rank, (relation, kept));
                    }
                }
            }
            for (taker, &(idx, _)) in takers.into_iter().zip(source.relations()) {
                let (relation, meta) = (&mut self.relations[idx], &mut self.meta.relations[idx]);
                (relation.dropped_edges, meta.self_loops) = taker.finish()?;
            }
        }
        self.kept = kept;
        Ok(())
    }

    /// Visits every edge again, and the reverse of every undirected one: `visit` gets the position
    /// of the relation, and the edge.
    ///
    /// # Errors
    ///
    /// If a table cannot be read any more.
    pub(super) fn each_edge(
        &self,
        graph: &GraphPlan,
        mut visit: impl FnMut(usize, Edge),
    ) -> Result<(), FlattenError> {
        for source in graph.edge_sources() {
            for unit in source.units() {
                for batch in source.end_batches(unit)? {
                    let tables = batch?;
                    for &(idx, table) in source.relations() {
                        let plan = &graph.relations[idx];
                        self.types
                            .each_row(plan, &tables[table], |edge| visit(idx, edge));
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the number of nodes of all types.
    pub fn num_nodes(&self) -> usize {
        self.types.num_nodes()
    }

    /// Returns each type with its rows.
    pub fn types(&self) -> &[TypeSurvey] {
        self.types.all()
    }

    /// Returns the relations that lead to the type of a node.
    pub(super) fn relations_to(&self, node: u32) -> impl Iterator<Item = usize> {
        self.meta.relations_to(self.types.at(node).0)
    }

    /// Returns the rows of the target type.
    pub fn target(&self) -> &TypeSurvey {
        &self.types.all()[self.meta.target_type]
    }

    /// Returns the number of edges of all relations: an undirected edge counts twice, a dropped edge
    /// not at all.
    pub fn num_edges(&self) -> u64 {
        self.relations
            .iter()
            .map(|relation| relation.num_edges)
            .sum()
    }

    /// Returns the number of edge rows that were dropped because an end is not a node.
    pub fn dropped_edges(&self) -> u64 {
        self.relations
            .iter()
            .map(|relation| relation.dropped_edges)
            .sum()
    }

    /// Returns the mean bytes of a node's features in memory.
    pub fn feature_bytes(&self) -> f64 {
        self.mean(|of_type| match &of_type.features {
            Features::None => 0.0,
            Features::Dense { dim, .. } => *dim as f64 * 4.0,
            Features::Sparse { offset, index, .. } => {
                let rows = offset.len().saturating_sub(1).max(1);
                8.0 * (1.0 + index.len() as f64 / rows as f64)
            }
        })
    }

    /// Returns the mean number of a node's features that are not zero.
    pub fn stored_features(&self) -> f64 {
        self.mean(|of_type| match &of_type.features {
            Features::None => 0.0,
            Features::Dense { dim, values } => {
                let rows = values.len() / (*dim).max(1);
                let stored = values.iter().filter(|&&value| value != 0.0).count();
                stored as f64 / rows.max(1) as f64
            }
            Features::Sparse { offset, index, .. } => {
                let rows = offset.len().saturating_sub(1).max(1);
                index.len() as f64 / rows as f64
            }
        })
    }

    /// Returns the mean bytes of a node's id.
    pub fn id_bytes(&self) -> f64 {
        self.mean(|of_type| of_type.ids.size_bytes() as f64 / of_type.ids.len().max(1) as f64)
    }

    /// Returns the mean over the nodes of a number of their types.
    fn mean(&self, of: impl Fn(&TypeSurvey) -> f64) -> f64 {
        let all = self.types.all().iter();
        let sum: f64 = all
            .map(|of_type| of_type.ids.len() as f64 * of(of_type))
            .sum();
        match self.num_nodes() {
            // The types of an empty graph count the same.
            0 => self.types.all().iter().map(of).fold(0.0, f64::max),
            num_nodes => sum / num_nodes as f64,
        }
    }
}

fn keep_at_hop_or_none(fanouts: &[HopFanouts], relation: usize) -> usize {
    match fanouts {
        [] => 0,
        fanouts => keep_at_hop(fanouts, relation, 0),
    }
}

/// Reads the ids and classes of each type.
fn read_keys(graph: &GraphPlan) -> Result<Vec<TypeKeys>, FlattenError> {
    let types = graph.types.iter();
    let mut keys: Vec<TypeKeys> = types.map(|of_type| TypeKeys::new(&of_type.nodes)).collect();
    for source in graph.node_sources() {
        for unit in source.units() {
            let of_unit = source.read_keys(unit)?;
            for ((idx, nodes), found) in source.types().iter().zip(of_unit) {
                keys[*idx].add(nodes, found)?;
            }
        }
    }
    Ok(keys)
}

/// Reads all columns: returns the splits and some features of each type, and marks the columns with
/// missing values.
fn read_rows(
    graph: &GraphPlan,
    meta: &mut GraphMeta,
) -> Result<Vec<(Vec<Split>, Features)>, FlattenError> {
    let types = meta.types.iter();
    let mut rows: Vec<(Vec<Split>, Features)> = types
        .map(|of_type| (Vec::new(), Features::empty(of_type.features)))
        .collect();
    let mut gaps: Vec<Vec<bool>> = vec![Vec::new(); meta.types.len()];
    for source in graph.node_sources() {
        for unit in source.units() {
            let of_unit = read_unit(&source, unit, meta)?;
            for ((idx, plan), found) in source.types().iter().zip(of_unit) {
                let (split, kept) = &mut rows[*idx];
                let stride = stride(plan.feature_meta(), plan.num_rows());
                for (at, row) in (0..).zip(split.len()..split.len() + found.ids.len()) {
                    if row % stride == 0 {
                        kept.push_from(&found.features, at);
                    }
                }
                split.extend(found.split);
                gaps[*idx].resize(found.gaps.len(), false);
                for (of_column, has_gaps) in gaps[*idx].iter_mut().zip(found.gaps) {
                    *of_column |= has_gaps;
                }
            }
        }
    }
    for (of_type, found) in meta.types.iter_mut().zip(gaps) {
        let mut columns = std::mem::take(&mut of_type.columns);
        for (column, has_gaps) in columns.iter_mut().zip(found) {
            column.gaps = has_gaps;
        }
        of_type.columns = ColumnMeta::of_graph(columns);
    }
    Ok(rows)
}

/// Reads a unit's rows of each type.
fn read_unit(
    source: &NodeSource,
    unit: &schemas::Unit,
    meta: &GraphMeta,
) -> Result<Vec<NodeRows>, FlattenError> {
    let members = source.types().iter();
    let described: Vec<DescribedColumns<'_>> = members
        .map(|(idx, _)| &meta.types[*idx])
        .map(|of_type| (of_type.label.as_ref(), &of_type.columns[..]))
        .collect();
    if let ([(_, plan)], [(label, columns)]) = (source.types(), &described[..]) {
        return Ok(vec![plan.read_rows(unit, *label, columns)?]);
    }
    let tables = source.types().iter().zip(&described);
    let mut rows: Vec<NodeRows> = tables
        .map(|((_, plan), (label, _))| plan.no_rows(*label, 0))
        .collect();
    let mut reader = source.reader(unit, &described)?;
    reader.read_each(unit.num_rows.max(1), &mut rows)?;
    Ok(rows)
}

/// Returns how many rows there are for each row whose features are kept.
fn stride(features: FeatureMeta, num_rows: u64) -> usize {
    let width = match features {
        FeatureMeta::Dense { dim } => dim.max(1),
        FeatureMeta::None | FeatureMeta::Sparse { .. } => FEATURE_NUMBERS,
    };
    let most = (FEATURE_NUMBERS / width).max(FEATURE_ROWS);
    usize::try_from(num_rows)
        .unwrap_or(usize::MAX)
        .div_ceil(most)
        .max(1)
}
