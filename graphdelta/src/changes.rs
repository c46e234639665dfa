//! Reads tables of changes: rows of nodes and edges with a column `op`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::DeltaError;
use crate::numbers::{relation_of_pairs, row_error, tables_of_pairs};
use schemas::{
    ChangesSpec, ColumnMeta, DELETE, EdgeRows, EdgesPlan, EdgesSpec, Features, GraphMeta,
    GraphPlan, IdType, Ids, InputSpec, LabelKind, LabelMeta, Labels, NodeRows, NodesPlan,
    NodesSpec, NumericLabel, OP, PairsPlan, Sampling, SchemaError, Split, TablePath, UPSERT,
    WhereValue, table_key,
};
use store::Pair;

const OPS: [&str; 2] = [UPSERT, DELETE];

/// Key of the tables of changes in the job file.
const OF_CHANGES: &str = "input.changes";

/// What tables of changes share with the store that is changed.
#[derive(Clone, Copy, Debug)]
pub struct OfStore<'a> {
    /// Sampling of the store.
    pub sampling: Sampling,
    /// Columns of its features, by type; none if all are numbers without gaps.
    pub columns: &'a [&'a [ColumnMeta]],
    /// Labels and splits to read; none if they are not.
    pub labels: Option<LabelsOf<'a>>,
}

/// The labels and splits of the target type.
#[derive(Clone, Copy, Debug)]
pub struct LabelsOf<'a> {
    /// Position of the target type.
    pub target_type: usize,
    /// Its labels; none if it has none.
    pub meta: Option<&'a LabelMeta>,
}

impl OfStore<'_> {
    /// Returns the description of a store whose features are numbers without gaps, and whose labels
    /// are not read.
    pub fn plain(sampling: Sampling) -> Self {
        Self {
            sampling,
            columns: &[],
            labels: None,
        }
    }
}

impl<'a> LabelsOf<'a> {
    /// Returns the labels of a graph's target type.
    pub fn target(graph: &'a GraphMeta) -> Self {
        Self {
            target_type: graph.target_type,
            meta: graph.target().label.as_ref(),
        }
    }
}

/// A table of nodes to read: the key, the columns and the type that it belongs to.
#[derive(Clone, Copy)]
pub(crate) struct NodeTable<'a> {
    pub(crate) base: &'a Path,
    pub(crate) path: &'a TablePath,
    pub(crate) type_idx: usize,
    /// The table that is changed.
    pub(crate) table: &'a NodesPlan,
    pub(crate) of_store: OfStore<'a>,
}

/// The changes of one night, as their tables have them.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Changes of nodes; at most one entry for each type.
    pub(crate) nodes: Vec<NodeChanges>,
    /// Changes of edges; at most one entry for each table.
    pub(crate) edges: Vec<EdgeChanges>,
    /// Changes of supervision pairs, where the task is one of links.
    pub(crate) pairs: Option<PairChanges>,
}

/// Changes of supervision pairs.
#[derive(Clone, Debug)]
pub(crate) enum PairChanges {
    /// Pairs have a table of their own, and so have their changes.
    Table(Box<PairTable>),
    /// Pairs are edges: the upserted rows of the table of changes of their relation, if it has any.
    OfEdges(Option<Box<PairsPlan>>),
    /// All pairs, as they are now. New nodes have the numbers that [`Numbers::apply`] gives them, in the
    /// order of [`Changes::nodes`].
    ///
    /// [`Numbers::apply`]: crate::Numbers::apply
    Whole(Vec<Pair>),
}

/// A table of changes of pairs.
#[derive(Clone, Debug)]
pub(crate) struct PairTable {
    /// Pairs that are added or replaced; none if no row is an upsert.
    pub(crate) upserts: Option<PairsPlan>,
    /// Ends of their rows, in a split or not.
    pub(crate) upserted: Vec<EdgeRows>,
    /// Ends of pairs that are removed.
    pub(crate) deletes: Vec<EdgeRows>,
    /// The ends of all rows.
    pub(crate) all: EdgesPlan,
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
    /// `[upserts]`, or none where labels are not read.
    pub(crate) labels: Labels,
    /// `[upserts]`, or empty where splits are not read.
    pub(crate) split: Vec<Split>,
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
    /// Returns the number of rows of nodes and of edges that change.
    pub fn counts(&self) -> (usize, usize) {
        let nodes = self.nodes.iter();
        let nodes = nodes.map(|of| of.upserts.rows.len() + of.deletes.rows.len());
        let edges = self.edges.iter();
        let edges = edges.flat_map(|of| of.upserts.iter().chain(&of.deletes));
        (nodes.sum(), edges.map(|rows| rows.src.len()).sum())
    }

    /// Reads the changes that tables hold; `graph` is the plan of the tables that are changed.
    ///
    /// # Errors
    ///
    /// If a table is missing or has other columns than the table that it changes, or a value is not
    /// allowed: names key, file, column and row.
    pub fn read(
        spec: &ChangesSpec,
        base: &Path,
        graph: &GraphPlan,
        of_store: OfStore<'_>,
    ) -> Result<Self, DeltaError> {
        let mut changes = Self::default();
        for (name, path) in &spec.nodes {
            let table = NodeTable::named((base, path), graph, name, of_store)?;
            let read = table.read();
            changes
                .nodes
                .push(read.map_err(|e| e.under_key(OF_CHANGES, "nodes", name))?);
        }
        for (name, path) in &spec.edges {
            let table = EdgeTable::named((base, path), graph, name)?;
            let read = read_edges(&table, of_store.sampling);
            changes
                .edges
                .push(read.map_err(|e| e.under_key(OF_CHANGES, "edges", name))?);
        }
        changes.pairs = PairChanges::read((spec, base), graph, of_store.sampling)?;
        Ok(changes)
    }

    /// Checks the tables of changes, but not their rows.
    ///
    /// # Errors
    ///
    /// If a table is missing or has other columns than the table that it changes.
    pub fn check(
        spec: &ChangesSpec,
        base: &Path,
        graph: &GraphPlan,
        of_store: OfStore<'_>,
    ) -> Result<(), DeltaError> {
        for (name, path) in &spec.nodes {
            let table = NodeTable::named((base, path), graph, name, of_store)?;
            let opened = table.upserts();
            opened.map_err(|e| e.under_key(OF_CHANGES, "nodes", name))?;
        }
        for (name, path) in &spec.edges {
            let table = EdgeTable::named((base, path), graph, name)?;
            let opened = table.upserts(of_store.sampling);
            opened.map_err(|e| e.under_key(OF_CHANGES, "edges", name))?;
        }
        PairChanges::open((spec, base), graph, of_store.sampling).map(drop)
    }

    /// Returns the error of the row that removes a node.
    pub(crate) fn node_error(&self, type_idx: usize, row: u64, problem: String) -> DeltaError {
        let mut tables = self.nodes.iter();
        let table = tables.find(|of| of.type_idx == type_idx);
        let table = table.expect("a table removes the node");
        row_error(table.plan.locate(row), problem)
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
        if let Some(PairChanges::Table(table)) = &self.pairs {
            tables.push(serde_json::json!({ "pairs": table.all.fingerprint()? }));
        }
        Ok(serde_json::Value::Array(tables))
    }
}

impl PairChanges {
    /// Opens the tables of changes that pairs are in: their own one, or that of the relation whose
    /// edges they are. Returns the plan of the upserted rows, if there are any, and the path of their
    /// own table.
    fn open<'a>(
        (spec, base): (&'a ChangesSpec, &Path),
        graph: &GraphPlan,
        sampling: Sampling,
    ) -> Result<Option<OpenPairs<'a>>, DeltaError> {
        let Some(pairs) = tables_of_pairs(graph) else {
            return match &spec.pairs {
                None => Ok(None),
                Some(_) => Err(unknown_pairs(OF_CHANGES, no_table_of_pairs(graph))),
            };
        };
        let Some(relation) = relation_of_pairs(graph, pairs) else {
            let Some(path) = &spec.pairs else {
                return Ok(None);
            };
            let ends = pairs.ends_at(path, base, graph, of_op(Some(OPS[0])));
            let ends = ends.map_err(DeltaError::from);
            let upserts = ends.and_then(|rows| upserted_pairs(pairs, &rows));
            let named = |e: DeltaError| e.under_key(OF_CHANGES, "pairs", "");
            return Ok(Some((upserts.map_err(named)?, Some(path))));
        };
        let name = &graph.relations[relation].name;
        if spec.pairs.is_some() {
            let key = table_key(OF_CHANGES, "edges", name);
            let problem = format!("the pairs are edges: their changes are those of `{key}`");
            return Err(unknown_pairs(OF_CHANGES, &problem));
        }
        let Some(path) = spec.edges.get(name) else {
            return Ok(None);
        };
        let table = EdgeTable::named((base, path), graph, name)?;
        let upserts = table.upserts(sampling).and_then(|ends| match ends {
            Some(ends) => upserted_pairs(pairs, &ends),
            None => Ok(None),
        });
        let upserts = upserts.map_err(|e| e.under_key(OF_CHANGES, "edges", name))?;
        Ok(Some((upserts, None)))
    }

    /// Reads the changes of pairs; none if there are none.
    fn read(
        (spec, base): (&ChangesSpec, &Path),
        graph: &GraphPlan,
        sampling: Sampling,
    ) -> Result<Option<Self>, DeltaError> {
        let Some((upserts, path)) = Self::open((spec, base), graph, sampling)? else {
            return Ok(None);
        };
        let (Some(path), Some(pairs)) = (path, &graph.pairs) else {
            return Ok(Some(Self::OfEdges(upserts.map(Box::new))));
        };
        let ends = |op| pairs.ends_at(path, base, graph, of_op(op));
        let read = || -> Result<PairTable, DeltaError> {
            let all = ends(None)?;
            let [upserted, deletes] = OPS.map(|op| read_units(&ends(Some(op))?));
            let (upserted, deletes) = (upserted?, deletes?);
            check_ops(&all, &read_units(&all)?, [&upserted, &deletes])?;
            Ok(PairTable {
                upserts: upserts.clone(),
                upserted,
                deletes,
                all,
            })
        };
        let table = read().map_err(|e| e.under_key(OF_CHANGES, "pairs", ""))?;
        Ok(Some(Self::Table(Box::new(table))))
    }
}

/// The plan of upserted pairs, if there are any, and the path of the table of changes of pairs, if
/// they have one.
type OpenPairs<'a> = (Option<PairsPlan>, Option<&'a TablePath>);

/// Returns the plan of upserted pairs, whose ends are `ends`. None if there are none: then the table
/// needs no other columns.
fn upserted_pairs(pairs: &PairsPlan, ends: &EdgesPlan) -> Result<Option<PairsPlan>, DeltaError> {
    match pairs.with_table(ends.clone()) {
        Ok(plan) => Ok(Some(plan)),
        Err(_) if has_no_rows(ends) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Tells whether a table has no rows that a plan takes; false if it cannot be read.
fn has_no_rows(plan: &EdgesPlan) -> bool {
    read_units(plan).is_ok_and(|units| units.iter().all(|rows| rows.src.is_empty()))
}

/// Returns why a job has no table of pairs.
pub(crate) fn no_table_of_pairs(graph: &GraphPlan) -> &'static str {
    match graph.pairs {
        Some(_) => "the pairs are those of `input.pairs.walks`, which have no table; leave it out",
        None => "the job has no [input.pairs]",
    }
}

/// Returns the error of a table of pairs that the job cannot have under the key `list`.
pub(crate) fn unknown_pairs(list: &str, problem: &str) -> DeltaError {
    DeltaError::Unknown {
        key: table_key(list, "pairs", ""),
        problem: problem.to_owned(),
    }
}

impl DeltaError {
    /// Names the table of changes in place of the table that it changes; `list` is the key of its
    /// tables.
    pub(crate) fn under_key(self, list: &str, kind: &str, name: &str) -> Self {
        let key = table_key(list, kind, name);
        match self {
            Self::Schema(SchemaError::Table { problem, .. }) => Self::Schema(SchemaError::Table {
                table: format!("`{key}`").into(),
                problem,
            }),
            Self::Schema(SchemaError::ColumnType {
                path,
                column,
                found,
                ..
            }) if column == OP => Self::Schema(SchemaError::ColumnType {
                path,
                column,
                role: "the kind of a change",
                found,
                allowed: "strings, which are upsert or delete".into(),
            }),
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

fn with_op(spec: &NodesSpec, op: Option<&str>) -> NodesSpec {
    let mut spec = spec.clone();
    spec.rows_where.extend(of_op(op));
    spec
}

/// Returns which rows have an `op`.
fn of_op(op: Option<&str>) -> BTreeMap<String, WhereValue> {
    let wanted = op.map(|op| (OP.to_owned(), WhereValue::Text(op.to_owned())));
    wanted.into_iter().collect()
}

impl<'a> NodeTable<'a> {
    /// Returns the table of changes of the type with this name.
    fn named(
        (base, path): (&'a Path, &'a TablePath),
        graph: &'a GraphPlan,
        name: &str,
        of_store: OfStore<'a>,
    ) -> Result<Self, DeltaError> {
        let type_idx = type_idx(graph, OF_CHANGES, name)?;
        Ok(Self {
            base,
            path,
            type_idx,
            table: &graph.types[type_idx].nodes,
            of_store,
        })
    }

    /// Returns the columns of the store's features; none if all are numbers without gaps.
    pub(crate) fn columns(&self) -> &'a [ColumnMeta] {
        let columns = self.of_store.columns.get(self.type_idx);
        columns.copied().unwrap_or_default()
    }

    /// Returns the labels and splits to read; none if they are not.
    pub(crate) fn labels(&self) -> Option<LabelsOf<'a>> {
        let labels = self.of_store.labels;
        labels.filter(|of| of.target_type == self.type_idx)
    }

    /// Returns the description of the labels to read; none if they are not.
    pub(crate) fn label_meta(&self) -> Option<&'a LabelMeta> {
        self.labels()?.meta
    }

    /// Opens the table with the columns of the node table, for the rows of one `op` or all.
    ///
    /// # Errors
    ///
    /// If it has other columns.
    pub(crate) fn open(&self, op: Option<&str>) -> Result<NodesPlan, DeltaError> {
        let mut whole = self.table.spec().clone();
        whole.path = self.path.clone();
        if self.labels().is_none() {
            // Labels and splits reach nothing.
            whole.label = None;
            whole.split = None;
            whole.split_values = None;
        }
        // A few numbers do not tell whether they are classes.
        whole.label_kind = self.label_meta().and_then(|meta| match meta.kind {
            LabelKind::Class { .. } => Some(NumericLabel::Class),
            LabelKind::Number => Some(NumericLabel::Number),
            LabelKind::ClassName { .. } | LabelKind::MultiLabel { .. } => None,
        });
        if !matches!(whole.label_kind, Some(NumericLabel::Class)) {
            whole.num_classes = None;
        }
        let plan = self.plan(with_op(&whole, op)).or_else(|error| {
            // The column may hold labels of another kind.
            whole.label_kind = None;
            self.plan(with_op(&whole, op)).map_err(|_| error)
        })?;
        check_columns(self.table, &plan)?;
        self.check_labels(&plan)?;
        Ok(plan)
    }

    /// Checks that labels are of the kind of the store's.
    fn check_labels(&self, changes: &NodesPlan) -> Result<(), DeltaError> {
        let Some(own) = self.label_meta() else {
            return Ok(());
        };
        let kind = |of: &LabelKind| match of {
            LabelKind::Class { .. } => "class numbers",
            LabelKind::ClassName { .. } => "class names",
            LabelKind::MultiLabel { .. } => "lists of classes",
            LabelKind::Number => "numbers",
        };
        // An empty table of lists has no width, and no labels either.
        let found = changes.label_meta(vec![String::new()], Some(0));
        match found.ok().flatten() {
            Some(found) if kind(&found.kind) != kind(&own.kind) => Err(DeltaError::Columns {
                table: self.table.table_key(),
                found: format!("labels that are {}", kind(&found.kind)),
                expected: format!("labels that are {}", kind(&own.kind)),
            }),
            _ => Ok(()),
        }
    }

    /// Opens the column of ids for the rows of one `op` or all.
    fn ids_only(&self, op: Option<&str>) -> Result<NodesPlan, DeltaError> {
        let written = self.table.spec();
        let ids_only = NodesSpec {
            path: self.path.clone(),
            id: written.id.clone(),
            rows_where: written.rows_where.clone(),
            ..NodesSpec::default()
        };
        let plan = self.plan(with_op(&ids_only, op))?;
        check_ids(self.table, &plan)?;
        Ok(plan)
    }

    /// Plans a table whose ids are those of the node table.
    fn plan(&self, spec: NodesSpec) -> Result<NodesPlan, DeltaError> {
        Ok(spec.into_plan_with_ids(self.base, self.table.id_type())?)
    }

    /// Opens the upserted rows. None if there are none: then the table needs no other columns than
    /// that of ids.
    fn upserts(&self) -> Result<Option<NodesPlan>, DeltaError> {
        self.open(Some(OPS[0])).map(Some).or_else(|error| {
            let ids = self.ids_only(Some(OPS[0]));
            match ids.and_then(|plan| read_list(&plan)) {
                Ok(upserts) if upserts.rows.is_empty() => Ok(None),
                _ => Err(error),
            }
        })
    }

    /// Reads the changes.
    fn read(&self) -> Result<NodeChanges, DeltaError> {
        let new = match self.upserts()? {
            Some(plan) => self.read_rows(&plan)?,
            None => self.table.no_rows(self.label_meta(), 0),
        };
        let list = |op| read_list(&self.ids_only(Some(op))?);
        let mut upserts = list(OPS[0])?;
        let deletes = list(OPS[1])?;
        let all = self.ids_only(None)?;
        let rows = read_list(&all)?.rows;
        if let Some(row) = without_op(rows.into_iter(), [&upserts.rows, &deletes.rows]) {
            return Err(not_an_op(all.locate(row)));
        }
        let id_type = self.table.id_type();
        upserts.ids = upserts.ids.cast(id_type).map_err(|at| {
            let problem = format!("id {} does not fit {id_type}", upserts.ids.display(at));
            row_error(all.locate(upserts.rows[at]), problem)
        })?;
        Ok(NodeChanges {
            type_idx: self.type_idx,
            plan: Arc::new(all),
            upserts,
            features: new.features,
            labels: new.labels,
            split: new.split,
            deletes,
        })
    }

    /// Reads rows with the categories that the store has. A column has nulls only if its column in
    /// the store has.
    fn read_rows(&self, changes: &NodesPlan) -> Result<NodeRows, DeltaError> {
        let (columns, label) = (
            &*columns_as_stored(changes, self.columns()),
            self.label_meta(),
        );
        let mut all = changes.no_rows(label, 0);
        for unit in changes.units() {
            let rows = changes.read_rows(unit, label, columns)?;
            if let Some((row, column)) = first_gap(&rows, columns) {
                return Err(DeltaError::Gap {
                    table: changes.table_key(),
                    column: column.name.clone(),
                    id: rows.ids.display(row),
                });
            }
            all.features.extend(&rows.features);
            all.labels.extend(&rows.labels);
            all.split.extend(rows.split);
        }
        if self.labels().is_none() {
            all.split.clear();
        }
        Ok(all)
    }
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

/// Checks that ids are of the kind of the store's.
fn check_ids(table: &NodesPlan, changes: &NodesPlan) -> Result<(), DeltaError> {
    let [own, theirs] = [table, changes].map(NodesPlan::id_type);
    let kind = |of: &IdType| (of.is_integer(), of.is_signed());
    match kind(&own) == kind(&theirs) {
        true => Ok(()),
        false => Err(DeltaError::Columns {
            table: table.table_key(),
            found: format!("ids of type {theirs}"),
            expected: own.to_string(),
        }),
    }
}

fn check_columns(table: &NodesPlan, changes: &NodesPlan) -> Result<(), DeltaError> {
    check_ids(table, changes)?;
    let differ = |found: String, expected: String| DeltaError::Columns {
        table: table.table_key(),
        found,
        expected,
    };
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
        spec.rows_where.extend(of_op(op));
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

    /// Opens the upserted rows. None if there are none: then the table needs no other columns than
    /// those of ends.
    fn upserts(&self, sampling: Sampling) -> Result<Option<Arc<EdgesPlan>>, DeltaError> {
        self.whole(sampling, Some(OPS[0]))
            .map(Some)
            .or_else(|error| {
                let ends = self.open(self.ends_only(), Some(OPS[0]));
                match ends.is_ok_and(|plan| has_no_rows(&plan)) {
                    true => Ok(None),
                    false => Err(error),
                }
            })
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
    let upserted = table.upserts(sampling)?;
    let deleted = table.open(table.ends_only(), Some(OPS[1]))?;
    let all = table.open(table.ends_only(), None)?;
    let ends = || rayon::join(|| read_units(&deleted), || read_units(&all));
    let read_upserts = || upserted.map_or(Ok(Vec::new()), |plan| read_units(&plan));
    let (upserts, (deletes, every)) = rayon::join(read_upserts, ends);
    let (upserts, deletes) = (upserts?, deletes?);
    check_ops(&all, &every?, [&upserts, &deletes])?;
    Ok(EdgeChanges {
        relation: table.relation,
        plan: all,
        upserts,
        deletes,
    })
}

fn read_units(plan: &EdgesPlan) -> Result<Vec<EdgeRows>, DeltaError> {
    let units = plan.units().iter().map(|unit| Ok(plan.read(unit)?));
    units.collect()
}

/// Checks that all rows of a table have an `op`: those of `known` have one.
fn check_ops(
    all: &EdgesPlan,
    every: &[EdgeRows],
    known: [&[EdgeRows]; 2],
) -> Result<(), DeltaError> {
    let rows =
        |of: &[EdgeRows]| -> Vec<u64> { of.iter().flat_map(|rows| rows.rows.iter()).collect() };
    let [upserts, deletes] = known.map(rows);
    match without_op(rows(every).into_iter(), [&upserts, &deletes]) {
        Some(row) => Err(not_an_op(all.locate(row))),
        None => Ok(()),
    }
}
