//! Reads tables of changes: rows of nodes and edges with a column `op`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::DeltaError;
use crate::numbers::row_error;
use schemas::{
    ChangesSpec, ColumnMeta, DELETE, EdgeRows, EdgesPlan, EdgesSpec, Features, GraphPlan, IdType,
    Ids, InputSpec, NodesPlan, NodesSpec, OP, Sampling, TablePath, TypePlan, UPSERT, WhereValue,
};

const OPS: [&str; 2] = [UPSERT, DELETE];

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
    /// Reads the changes that tables hold; `graph` is the plan of the tables that are changed, and
    /// `sampling` the one of the store.
    ///
    /// # Errors
    ///
    /// If a table is missing or has other columns than the table that it changes, or a value is not
    /// allowed: names key, file, column and row.
    pub fn read(
        spec: &ChangesSpec,
        base: &Path,
        graph: &GraphPlan,
        sampling: Sampling,
    ) -> Result<Self, DeltaError> {
        let mut changes = Self::default();
        for (name, path) in &spec.nodes {
            let type_idx = graph
                .type_idx(name)
                .ok_or_else(|| unknown("node type", name))?;
            let of_type = &graph.types[type_idx];
            let read = read_nodes(base, path, type_idx, of_type);
            changes
                .nodes
                .push(read.map_err(|e| e.under_key("nodes", name))?);
        }
        for (name, path) in &spec.edges {
            let relation = graph.relation_idx(name);
            let relation = relation.filter(|&at| !graph.relations[at].reversed);
            let relation = relation.ok_or_else(|| unknown("relation with a table", name))?;
            let read = read_edges(base, path, relation, (graph, sampling));
            changes
                .edges
                .push(read.map_err(|e| e.under_key("edges", name))?);
        }
        Ok(changes)
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
    /// Names the table of changes in place of the table that it changes.
    fn under_key(self, kind: &str, name: &str) -> Self {
        let key = match name {
            "" => format!("input.changes.{kind}"),
            _ => format!("input.changes.{kind}.{name}"),
        };
        match self {
            Self::Schema(error) => Self::Schema(error.under_key(&key)),
            other => other,
        }
    }
}

fn unknown(kind: &str, name: &str) -> DeltaError {
    DeltaError::Unsupported(format!("{name:?} is no {kind} of the graph"))
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

fn read_nodes(
    base: &Path,
    path: &TablePath,
    type_idx: usize,
    of_type: &TypePlan,
) -> Result<NodeChanges, DeltaError> {
    let written = of_type.nodes.spec();
    // Labels and splits reach nothing.
    let whole = NodesSpec {
        path: path.clone(),
        label: None,
        label_kind: None,
        num_classes: None,
        split: None,
        split_values: None,
        ..written.clone()
    };
    let ids_only = NodesSpec {
        path: path.clone(),
        id: written.id.clone(),
        rows_where: written.rows_where.clone(),
        ..NodesSpec::default()
    };
    let with_op = |spec: &NodesSpec, op: &str| {
        let mut spec = spec.clone();
        let wanted = WhereValue::Text(op.to_owned());
        spec.rows_where.insert(OP.to_owned(), wanted);
        spec.into_plan(base)
    };
    let upserted = with_op(&whole, OPS[0])?;
    check_columns(&of_type.nodes, &upserted)?;
    let mut features = Features::empty(upserted.feature_meta());
    let columns = upserted.column_meta(schemas::Categories::default(), &[]);
    let unusable = |what: &str| {
        let table = of_type.nodes.table_key();
        DeltaError::Unsupported(format!("features of `{table}` have {what}"))
    };
    if !columns.iter().all(ColumnMeta::is_plain) {
        return Err(unusable("categories or times"));
    }
    for unit in upserted.units() {
        let rows = upserted.read_rows(unit, None, &columns)?;
        if rows.gaps.contains(&true) {
            return Err(unusable("nulls"));
        }
        features.extend(&rows.features);
    }
    let mut upserts = read_list(&with_op(&ids_only, OPS[0])?)?;
    let deletes = read_list(&with_op(&ids_only, OPS[1])?)?;
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
    let [own_dim, dim] = [table, changes].map(|plan| plan.feature_meta().dim());
    match own_dim == dim {
        true => Ok(()),
        false => Err(differ(format!("{dim} features"), own_dim.to_string())),
    }
}

fn read_edges(
    base: &Path,
    path: &TablePath,
    relation: usize,
    (graph, sampling): (&GraphPlan, Sampling),
) -> Result<EdgeChanges, DeltaError> {
    let of_relation = &graph.relations[relation];
    let written = of_relation.edges.spec();
    let whole = EdgesSpec {
        path: path.clone(),
        reverse: None,
        ..written.clone()
    };
    let ends_only = EdgesSpec {
        weight: None,
        features: Vec::new(),
        ..whole.clone()
    };
    // The tables of nodes give the ends their types of ids.
    let plan = |spec: &EdgesSpec, op: Option<&str>| -> Result<Arc<EdgesPlan>, DeltaError> {
        let mut spec = spec.clone();
        if let Some(op) = op {
            let wanted = WhereValue::Text(op.to_owned());
            spec.rows_where.insert(OP.to_owned(), wanted);
        }
        let types = graph.types.iter();
        let nodes = types.map(|of| (of.name.clone(), of.nodes.spec().clone()));
        let input = InputSpec {
            nodes: nodes.collect(),
            edges: BTreeMap::from([(of_relation.name.clone(), spec)]),
            pairs: None,
            graphs: None,
            changes: Vec::new(),
        };
        Ok(Arc::clone(&input.into_plan(base)?.relations[0].edges))
    };
    let mut upserted = plan(&whole, Some(OPS[0]))?;
    if sampling == Sampling::Weighted {
        upserted = Arc::new(upserted.as_ref().clone().with_non_negative_weights());
    }
    if upserted.feature_dim() != of_relation.edges.feature_dim() {
        let dim = |of: &EdgesPlan| of.feature_dim().unwrap_or(0);
        return Err(DeltaError::Columns {
            table: of_relation.edges.table_key(),
            found: format!("{} features an edge", dim(&upserted)),
            expected: dim(&of_relation.edges).to_string(),
        });
    }
    let read = |of: &EdgesPlan| -> Result<Vec<EdgeRows>, DeltaError> {
        let units = of.units().iter().map(|unit| Ok(of.read(unit)?));
        units.collect()
    };
    let upserts = read(&upserted)?;
    let deletes = read(&*plan(&ends_only, Some(OPS[1]))?)?;
    let all = plan(&ends_only, None)?;
    let rows = |of: &[EdgeRows]| {
        of.iter()
            .flat_map(|rows| rows.rows.iter())
            .collect::<Vec<_>>()
    };
    let every = rows(&read(&all)?);
    if let Some(row) = without_op(every.into_iter(), [&rows(&upserts), &rows(&deletes)]) {
        return Err(not_an_op(all.locate(row)));
    }
    Ok(EdgeChanges {
        relation,
        plan: all,
        upserts,
        deletes,
    })
}
