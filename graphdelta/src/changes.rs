//! Reads tables of changes: rows of nodes and edges with a column `op`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::DeltaError;
use crate::numbers::row_error;
use schemas::{
    ChangesSpec, ColumnMeta, DELETE, EdgeRows, EdgesPlan, EdgesSpec, Features, GraphPlan, IdType,
    Ids, InputSpec, NodeRows, NodesPlan, NodesSpec, OP, Sampling, TablePath, TypePlan, UPSERT,
    WhereValue, table_key,
};

const OPS: [&str; 2] = [UPSERT, DELETE];

/// Key of the tables of changes in the job file.
const OF_CHANGES: &str = "input.changes";

/// The changes of one night, as their tables have them.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Changes of nodes; at most one entry for each type.
    pub(crate) nodes: Vec<NodeChanges>,
    /// Changes of edges; at most one entry for each table.
    pub(crate) edges: Vec<EdgeChanges>,
}

/// Changes of the nodes of a type.
#[derive(Clone, Debug)]
pub(crate) struct NodeChanges {
    pub(crate) type_idx: usize,
    pub(crate) plan: Arc<NodesPlan>,
    /// Nodes that are added or replaced.
    pub(crate) upserts: NodeList,
    /// `[upserts]`.
    pub(crate) features: Features,
    /// Nodes that are removed.
    pub(crate) deletes: NodeList,
}

/// Ids with the rows that name them.
#[derive(Clone, Debug)]
pub(crate) struct NodeList {
    pub(crate) ids: Ids,
    pub(crate) rows: Vec<u64>,
}

/// Changes of the edges of a table.
#[derive(Clone, Debug)]
pub(crate) struct EdgeChanges {
    /// Position of the relation, not of its reverse.
    pub(crate) relation: usize,
    pub(crate) plan: Arc<EdgesPlan>,
    /// Edges that replace those of the same ends.
    pub(crate) upserts: Vec<EdgeRows>,
    /// Ends whose edges are removed.
    pub(crate) deletes: Vec<EdgeRows>,
}

impl Changes {
    /// Reads the changes that tables hold; `graph` is the plan of the tables that are changed.
    /// `sampling` is that of the store, and `columns` are those of its features, by type; none if
    /// all are numbers without gaps.
    ///
    /// # Errors
    ///
    /// If a table is missing or has other columns than the table that it changes, or a value is not
    /// allowed: names key, file, column and row.
    pub fn read(
        spec: &ChangesSpec,
        base: &Path,
        graph: &GraphPlan,
        (sampling, columns): (Sampling, &[&[ColumnMeta]]),
    ) -> Result<Self, DeltaError> {
        let mut changes = Self::default();
        for (name, path) in &spec.nodes {
            let type_idx = type_idx(graph, OF_CHANGES, name)?;
            let of_type = &graph.types[type_idx];
            let columns = columns.get(type_idx).copied().unwrap_or_default();
            let read = read_nodes((base, path), type_idx, of_type, columns);
            changes
                .nodes
                .push(read.map_err(|e| e.under_key(OF_CHANGES, "nodes", name))?);
        }
        for (name, path) in &spec.edges {
            let table = EdgeTable::named((base, path), graph, name)?;
            let read = read_edges(&table, sampling);
            changes
                .edges
                .push(read.map_err(|e| e.under_key(OF_CHANGES, "edges", name))?);
        }
        Ok(changes)
    }

    /// Checks the tables of changes, but not their rows; `sampling` is that of the store.
    ///
    /// # Errors
    ///
    /// If a table is missing or has other columns than the table that it changes.
    pub fn check(
        spec: &ChangesSpec,
        base: &Path,
        graph: &GraphPlan,
        sampling: Sampling,
    ) -> Result<(), DeltaError> {
        for (name, path) in &spec.nodes {
            let table = &graph.types[type_idx(graph, OF_CHANGES, name)?].nodes;
            let opened = like_nodes((base, path), table, Some(OPS[0]));
            opened.map_err(|e| e.under_key(OF_CHANGES, "nodes", name))?;
        }
        for (name, path) in &spec.edges {
            let table = EdgeTable::named((base, path), graph, name)?;
            let opened = table.whole(sampling, Some(OPS[0]));
            opened.map_err(|e| e.under_key(OF_CHANGES, "edges", name))?;
        }
        Ok(())
    }

    /// Returns fingerprints of the tables.
    ///
    /// # Errors
    ///
    /// If a file cannot be read.
    pub fn fingerprints(&self) -> Result<serde_json::Value, DeltaError> {
        let mut tables = Vec::new();
        for of_type in &self.nodes {
            tables.push(serde_json::json!({
                "type": of_type.type_idx,
                "files": of_type.plan.fingerprint()?,
            }));
        }
        for of_table in &self.edges {
            tables.push(serde_json::json!({
                "relation": of_table.relation,
                "files": of_table.plan.fingerprint()?,
            }));
        }
        Ok(serde_json::Value::Array(tables))
    }
}

impl DeltaError {
    /// Names the table of changes in place of the table that it changes; `list` is the key of its
    /// tables.
    pub(crate) fn under_key(self, list: &str, kind: &str, name: &str) -> Self {
        let key = table_key(list, kind, name);
        match self {
            Self::Schema(error) => Self::Schema(error.under_key(&key)),
            Self::Gap { column, id, .. } => Self::Gap {
                table: key,
                column,
                id,
            },
            other => other,
        }
    }
}

/// Returns the position of a type by its name, which is given in the tables under `list`.
pub(crate) fn type_idx(graph: &GraphPlan, list: &str, name: &str) -> Result<usize, DeltaError> {
    let found = graph.type_idx(name);
    let names = graph.types.iter().map(|of| &of.name[..]);
    found.ok_or_else(|| unknown((list, "nodes", name), "node type", names))
}

/// Returns the position of a relation with a table by its name, which is given in the tables under
/// `list`.
pub(crate) fn relation_idx(graph: &GraphPlan, list: &str, name: &str) -> Result<usize, DeltaError> {
    let relation = graph.relation_idx(name);
    let relation = relation.filter(|&at| !graph.relations[at].reversed);
    let tables = graph.relations.iter().filter(|of| !of.reversed);
    let names = tables.map(|of| &of.name[..]);
    relation.ok_or_else(|| unknown((list, "edges", name), "table of edges", names))
}

fn unknown<'a>(
    (list, kind, name): (&str, &str, &str),
    what: &str,
    names: impl Iterator<Item = &'a str>,
) -> DeltaError {
    let names: Vec<&str> = names.collect();
    let problem = match &names[..] {
        [""] => "nodes have no types; name the table itself".to_owned(),
        _ if name.is_empty() => format!("nodes have types; name one of {}", names.join(", ")),
        _ => format!(
            "there is no {what} `{name}`; allowed are {}",
            names.join(", ")
        ),
    };
    DeltaError::Unknown {
        key: table_key(list, kind, name),
        problem,
    }
}

/// Finds the first row whose `op` is none of [`OPS`]: it is in none of two ascending lists.
fn without_op(all: impl Iterator<Item = u64>, mut known: [&[u64]; 2]) -> Option<u64> {
    all.into_iter().find(|row| {
        let found = known.iter_mut().find(|list| list.first() == Some(row));
        found.map(|list| *list = &list[1..]).is_none()
    })
}

fn not_an_op(place: (std::path::PathBuf, schemas::RowPlace)) -> DeltaError {
    row_error(
        place,
        format!("column `{OP}` is neither `upsert` nor `delete`"),
    )
}

/// Opens a table with the columns of a node table, for the rows of one `op` or all.
///
/// # Errors
///
/// If it has other columns.
pub(crate) fn like_nodes(
    (base, path): (&Path, &TablePath),
    table: &NodesPlan,
    op: Option<&str>,
) -> Result<NodesPlan, DeltaError> {
    // Labels and splits reach nothing.
    let whole = NodesSpec {
        path: path.clone(),
        label: None,
        label_kind: None,
        num_classes: None,
        split: None,
        split_values: None,
        ..table.spec().clone()
    };
    let plan = with_op(&whole, op).into_plan(base)?;
    check_columns(table, &plan)?;
    Ok(plan)
}

fn with_op(spec: &NodesSpec, op: Option<&str>) -> NodesSpec {
    let mut spec = spec.clone();
    if let Some(op) = op {
        let wanted = WhereValue::Text(op.to_owned());
        spec.rows_where.insert(OP.to_owned(), wanted);
    }
    spec
}

fn read_nodes(
    (base, path): (&Path, &TablePath),
    type_idx: usize,
    of_type: &TypePlan,
    stored: &[ColumnMeta],
) -> Result<NodeChanges, DeltaError> {
    let written = of_type.nodes.spec();
    let ids_only = NodesSpec {
        path: path.clone(),
        id: written.id.clone(),
        rows_where: written.rows_where.clone(),
        ..NodesSpec::default()
    };
    let upserted = like_nodes((base, path), &of_type.nodes, Some(OPS[0]))?;
    let features = read_features(&upserted, stored)?;
    let list = |op| read_list(&with_op(&ids_only, Some(op)).into_plan(base)?);
    let mut upserts = list(OPS[0])?;
    let deletes = list(OPS[1])?;
    let all = ids_only.into_plan(base)?;
    let rows = read_list(&all)?.rows;
    if let Some(row) = without_op(rows.into_iter(), [&upserts.rows, &deletes.rows]) {
        return Err(not_an_op(all.locate(row)));
    }
    let id_type = of_type.nodes.id_type();
    upserts.ids = upserts.ids.cast(id_type).map_err(|at| {
        let problem = format!("id {} does not fit {id_type}", upserts.ids.display(at));
        row_error(all.locate(upserts.rows[at]), problem)
    })?;
    Ok(NodeChanges {
        type_idx,
        plan: Arc::new(all),
        upserts,
        features,
        deletes,
    })
}

/// Returns the columns of features with the categories that the store has; `stored` is empty if all
/// are numbers without gaps.
pub(crate) fn columns_as_stored<'a>(
    plan: &NodesPlan,
    stored: &'a [ColumnMeta],
) -> Cow<'a, [ColumnMeta]> {
    match stored {
        [] => plan.column_meta(schemas::Categories::default(), &[]).into(),
        stored => stored.into(),
    }
}

/// Reads features with the categories that the store has. A column has nulls only if its column in
/// the store has.
fn read_features(changes: &NodesPlan, stored: &[ColumnMeta]) -> Result<Features, DeltaError> {
    let columns = &*columns_as_stored(changes, stored);
    let mut features = Features::empty(changes.feature_meta());
    for unit in changes.units() {
        let rows = changes.read_rows(unit, None, columns)?;
        if let Some((row, column)) = first_gap(&rows, columns) {
            return Err(DeltaError::Gap {
                table: changes.table_key(),
                column: column.name.clone(),
                id: rows.ids.display(row),
            });
        }
        features.extend(&rows.features);
    }
    Ok(features)
}

/// Finds a null in a column that has none in the store: its row and column.
pub(crate) fn first_gap<'a>(
    rows: &NodeRows,
    columns: &'a [ColumnMeta],
) -> Option<(usize, &'a ColumnMeta)> {
    let Features::Dense { dim, values } = &rows.features else {
        return None;
    };
    let mut first = 0;
    for (has_gaps, column) in rows.gaps.iter().zip(columns) {
        let of_column = first..first + column.width;
        first = of_column.end;
        if *has_gaps && !column.gaps {
            let mut of_rows = values.chunks_exact(*dim);
            let row = of_rows.position(|row| row[of_column.clone()].iter().any(|x| x.is_nan()));
            return row.map(|row| (row, column));
        }
    }
    None
}

fn read_list(plan: &NodesPlan) -> Result<NodeList, DeltaError> {
    let mut list = NodeList {
        ids: Ids::new(plan.id_type()),
        rows: Vec::new(),
    };
    for unit in plan.units() {
        let keys = plan.read_keys(unit)?;
        list.ids.extend_from(&keys.ids, 0..keys.ids.len());
        list.rows.extend(keys.rows.iter());
    }
    Ok(list)
}

fn check_columns(table: &NodesPlan, changes: &NodesPlan) -> Result<(), DeltaError> {
    let differ = |found: String, expected: String| DeltaError::Columns {
        table: table.table_key(),
        found,
        expected,
    };
    let [own, theirs] = [table, changes].map(NodesPlan::id_type);
    let is_signed = |of: &IdType| matches!(of, IdType::Int32 | IdType::Int64);
    if own.is_integer() != theirs.is_integer() || is_signed(&own) != is_signed(&theirs) {
        return Err(differ(format!("ids of type {theirs}"), own.to_string()));
    }
    let columns = table.feature_columns().into_iter();
    for (wanted, column) in columns.zip(changes.feature_columns()) {
        if wanted.kind != column.kind {
            let found = format!("a column `{}` of {}", column.name, column.kind.as_str());
            return Err(differ(found, format!("one of {}", wanted.kind.as_str())));
        }
    }
    let [own_dim, dim] = [table, changes].map(|plan| plan.feature_meta().dim());
    match own_dim == dim {
        true => Ok(()),
        false => Err(differ(format!("{dim} features"), own_dim.to_string())),
    }
}

/// A table with the columns of the edge table of a relation.
#[derive(Clone, Copy)]
pub(crate) struct EdgeTable<'a> {
    pub(crate) base: &'a Path,
    pub(crate) path: &'a TablePath,
    pub(crate) graph: &'a GraphPlan,
    /// Position of the relation, not of its reverse.
    pub(crate) relation: usize,
}

impl<'a> EdgeTable<'a> {
    /// Returns the table of the relation with this name.
    fn named(
        (base, path): (&'a Path, &'a TablePath),
        graph: &'a GraphPlan,
        name: &str,
    ) -> Result<Self, DeltaError> {
        Ok(Self {
            base,
            path,
            graph,
            relation: relation_idx(graph, OF_CHANGES, name)?,
        })
    }

    /// Returns the table as a job file names it.
    fn spec(&self) -> EdgesSpec {
        EdgesSpec {
            path: self.path.clone(),
            reverse: None,
            ..self.graph.relations[self.relation].edges.spec().clone()
        }
    }

    /// Returns the table with the columns of ends alone.
    fn ends_only(&self) -> EdgesSpec {
        EdgesSpec {
            weight: None,
            features: Vec::new(),
            ..self.spec()
        }
    }

    /// Opens the table for the rows of one `op` or all.
    fn open(&self, mut spec: EdgesSpec, op: Option<&str>) -> Result<Arc<EdgesPlan>, DeltaError> {
        if let Some(op) = op {
            let wanted = WhereValue::Text(op.to_owned());
            spec.rows_where.insert(OP.to_owned(), wanted);
        }
        // The tables of nodes give the ends their types of ids.
        let types = self.graph.types.iter();
        let nodes = types.map(|of| (of.name.clone(), of.nodes.spec().clone()));
        let name = self.graph.relations[self.relation].name.clone();
        let input = InputSpec {
            nodes: nodes.collect(),
            edges: BTreeMap::from([(name, spec)]),
            ..InputSpec::default()
        };
        Ok(Arc::clone(&input.into_plan(self.base)?.relations[0].edges))
    }

    /// Opens the table with all columns, for the rows of one `op` or all; `sampling` is that of the
    /// store.
    ///
    /// # Errors
    ///
    /// If it has other columns.
    pub(crate) fn whole(
        &self,
        sampling: Sampling,
        op: Option<&str>,
    ) -> Result<Arc<EdgesPlan>, DeltaError> {
        let mut plan = self.open(self.spec(), op)?;
        if sampling == Sampling::Weighted {
            plan = Arc::new(plan.as_ref().clone().with_non_negative_weights());
        }
        let table = &self.graph.relations[self.relation].edges;
        if plan.feature_dim() != table.feature_dim() {
            let dim = |of: &EdgesPlan| of.feature_dim().unwrap_or(0);
            return Err(DeltaError::Columns {
                table: table.table_key(),
                found: format!("{} features an edge", dim(&plan)),
                expected: dim(table).to_string(),
            });
        }
        Ok(plan)
    }
}

fn read_edges(table: &EdgeTable<'_>, sampling: Sampling) -> Result<EdgeChanges, DeltaError> {
    let upserted = table.whole(sampling, Some(OPS[0]))?;
    let deleted = table.open(table.ends_only(), Some(OPS[1]))?;
    let all = table.open(table.ends_only(), None)?;
    let read = |of: &EdgesPlan| -> Result<Vec<EdgeRows>, DeltaError> {
        let units = of.units().iter().map(|unit| Ok(of.read(unit)?));
        units.collect()
    };
    let ends = || rayon::join(|| read(&deleted), || read(&all));
    let (upserts, (deletes, every)) = rayon::join(|| read(&upserted), ends);
    let (upserts, deletes) = (upserts?, deletes?);
    let rows = |of: &[EdgeRows]| {
        of.iter()
            .flat_map(|rows| rows.rows.iter())
            .collect::<Vec<_>>()
    };
    let every = rows(&every?);
    if let Some(row) = without_op(every.into_iter(), [&rows(&upserts), &rows(&deletes)]) {
        return Err(not_an_op(all.locate(row)));
    }
    Ok(EdgeChanges {
        relation: table.relation,
        plan: all,
        upserts,
        deletes,
    })
}
