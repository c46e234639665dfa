//! The table of nodes.

mod reader;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::decode::column;
use super::dense::{Categories, Positions};
use super::doubts::{self, Doubt};
use super::features::FeatureColumns;
use super::id_column::append_ids;
use super::label::{self, LabelRole};
use super::split::SplitSource;
use super::table::ReadBatch;
use super::{KnownNodes, OpenFiles, RowNumbers, Table, TableName, Unit, keep};
use crate::columns::{
    ColumnMeta, FeatureColumn, FeatureMeta, Features, LabelKind, LabelMeta, Labels, Split,
    SplitMeta,
};
use crate::config::{
    CLASSES_MAX, ColumnKind, EMBEDDING_MAX, NodesSpec, SPARSE_WIDTH_MAX, Transform,
};
use crate::error::{Result, RowPlace, SchemaError};
use crate::ids::{IdType, Ids};

pub(super) use reader::KeyReader;
pub use reader::{DescribedColumns, NodeReader};

/// Greatest number of a row group's feature values for which memory is reserved before they are
/// read.
const RESERVED_VALUES_MAX: usize = 1 << 26;

/// The table of nodes, checked against the files' schemas.
#[derive(Clone, Debug)]
pub struct NodesPlan {
    spec: NodesSpec,
    table: Table,
    id_type: IdType,
    features: FeatureColumns,
    label: Option<(String, LabelRole)>,
    split: SplitSource,
}

/// Ids and classes of a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeKeys {
    /// `[n]`.
    pub ids: Ids,
    /// `[n]`, numbers of the rows over all files.
    pub rows: RowNumbers,
    /// Distinct class names, sorted; empty unless labels are strings.
    pub class_names: Vec<String>,
    /// Greatest class number, if labels are class numbers and the unit has one.
    pub max_class: Option<u32>,
    /// Categories of feature columns.
    pub categories: Categories,
}

/// Rows of a unit.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeRows {
    /// `[n]`.
    pub ids: Ids,
    /// `[n]` rows.
    pub features: Features,
    /// `[n]` rows, or none.
    pub labels: Labels,
    /// `[n]`.
    pub split: Vec<Split>,
    /// For each column of dense features, whether values were missing in it. It stays when rows are
    /// removed.
    pub gaps: Vec<bool>,
}

/// Splits of a unit, and which rows have a label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitRows {
    /// `[n]`.
    pub split: Vec<Split>,
    /// `[n]`.
    pub has_label: Vec<bool>,
}

impl NodesSpec {
    /// Checks the table's files, columns and types; reads footers, and the first row if the type of
    /// a list column does not give its width.
    ///
    /// # Errors
    ///
    /// Names the key, file or column, and the allowed values.
    pub fn into_plan(self, base: &Path) -> Result<NodesPlan> {
        self.plan(base).map_err(|mut found| found.swap_remove(0))
    }

    /// Checks as [`NodesSpec::into_plan`] does. In CSV files, ids are read as strings if `id_type` is
    /// that of strings, also if all of them are integers.
    ///
    /// # Errors
    ///
    /// As [`NodesSpec::into_plan`].
    pub fn into_plan_with_ids(self, base: &Path, id_type: IdType) -> Result<NodesPlan> {
        let planned = self.plan_with_ids(base, Some(id_type));
        planned.map_err(|mut found| found.swap_remove(0))
    }

    /// Checks as [`NodesSpec::into_plan`] does, and names every key and column that is wrong.
    ///
    /// # Errors
    ///
    /// One error for each mistake; at least one.
    pub fn plan(self, base: &Path) -> Result<NodesPlan, Vec<SchemaError>> {
        self.plan_with_ids(base, None)
    }

    fn plan_with_ids(
        self,
        base: &Path,
        id_type: Option<IdType>,
    ) -> Result<NodesPlan, Vec<SchemaError>> {
        let files = &mut OpenFiles::default();
        let mut plan = self.plan_as(TableName::nodes(""), base, files, None)?;
        if id_type == Some(IdType::Utf8) {
            plan.take_text_ids();
        }
        let text = plan.text_columns();
        Table::read_as_text(&mut [(&mut plan.table, text)]);
        Ok(plan)
    }

    /// Checks the table of a node type; the files may be open already. `known` is the table of the
    /// training, if a model is used.
    ///
    /// The caller passes [`NodesPlan::text_columns`] to [`Table::read_as_text`].
    pub(super) fn plan_as(
        self,
        name: TableName,
        base: &Path,
        files: &mut OpenFiles,
        known: Option<&KnownNodes>,
    ) -> Result<NodesPlan, Vec<SchemaError>> {
        let mut found = self.check_numbers(&name);
        let mut kinds = known.map_or_else(BTreeMap::new, |known| known.kinds.clone());
        let declared = self.columns.iter();
        kinds.extend(declared.filter_map(|(column, of)| Some((column.clone(), of.kind?))));
        let table = Table::open(name, base, (&self.path, &kinds), files);
        let Some(mut table) = keep(table, &mut found) else {
            return Err(found);
        };
        found.extend(
            table
                .take_where(&self.rows_where)
                .err()
                .into_iter()
                .flatten(),
        );
        let id_type = keep(table.id_type("id", &self.id), &mut found);
        let id_type = id_type.map(|own| match known.and_then(|known| known.id_type) {
            Some(IdType::Utf8) if table.is_csv() => IdType::Utf8,
            _ => own,
        });
        let features = keep(FeatureColumns::plan(&self, &table, &kinds), &mut found);
        // On a day without any label, a trained model can still be used.
        let has_labels = |column: &&String| known.is_none() || !table.is_without_values(column);
        let label = self.label.clone().filter(|column| has_labels(&column));
        let role = match &label {
            Some(column) => {
                let role = label::plan_label(&table, column, self.label_kind);
                keep(role.map(Some), &mut found)
            }
            None => Some(None),
        };
        let split = keep(SplitSource::plan(&self, &table), &mut found);
        if let Some(role) = role {
            if label.is_some() || self.label.is_none() {
                keep(label::check_settings(&self, &table, role), &mut found);
            }
            if role == Some(LabelRole::ClassName) && known.is_none() {
                let names = label.as_deref().into_iter().collect::<Vec<_>>();
                keep(doubts::warn(&table, &names, Doubt::ClassNames), &mut found);
            }
        }
        match (id_type, features, role, split) {
            (Some(id_type), Some(features), Some(role), Some(split)) if found.is_empty() => {
                Ok(NodesPlan {
                    label: label.zip(role),
                    spec: self,
                    table,
                    id_type,
                    features,
                    split,
                })
            }
            _ => Err(found),
        }
    }

    /// Returns an error for each number that is out of bounds.
    fn check_numbers(&self, table: &TableName) -> Vec<SchemaError> {
        let width = self.sparse.as_ref().map(|sparse| sparse.width);
        let numbers = [
            ("num_classes", self.num_classes, CLASSES_MAX),
            ("sparse.width", width, SPARSE_WIDTH_MAX),
            ("embedding", self.embedding, EMBEDDING_MAX),
        ];
        let is_beyond = |number: u32, most: u32| !(1..=most).contains(&number);
        numbers
            .into_iter()
            .filter_map(|(key, number, most)| {
                let number = number.filter(|number| is_beyond(*number, most))?;
                Some(SchemaError::Key {
                    key: table.key(key),
                    problem: format!("is {number}; allowed is 1 to {most}"),
                })
            })
            .collect()
    }
}

impl NodesPlan {
    /// Returns the columns of CSV files that must be read as text: of the ids and of `where`.
    pub(super) fn text_columns(&self) -> Vec<String> {
        let ids = self.table.id_text(&self.spec.id, self.id_type);
        let ids = ids.into_iter().map(str::to_owned);
        ids.chain(self.table.filter_text()).collect()
    }

    /// Reads the ids as strings, if they are integers in CSV files.
    pub(super) fn take_text_ids(&mut self) {
        if self.table.is_csv() {
            self.id_type = IdType::Utf8;
        }
    }

    pub(super) fn table_mut(&mut self) -> &mut Table {
        &mut self.table
    }

    pub(super) fn table(&self) -> &Table {
        &self.table
    }

    /// Returns the specification as written.
    pub fn spec(&self) -> &NodesSpec {
        &self.spec
    }

    /// Returns the row groups of all files, in order.
    pub fn units(&self) -> &[Unit] {
        self.table.units()
    }

    /// Returns the number of rows of all files; with `where`, not all of them are nodes.
    pub fn num_rows(&self) -> u64 {
        self.table.num_rows()
    }

    /// Counts the rows that are nodes: those that `where` takes.
    ///
    /// # Errors
    ///
    /// If a file cannot be read.
    pub fn count_nodes(&self) -> Result<u64> {
        if self.table.filter().is_all() {
            return Ok(self.num_rows());
        }
        let counts = self.units().iter().map(|unit| {
            let mut count = 0;
            for item in self.table.batches(unit, &[], 1)? {
                count += item?.rows.num_rows() as u64;
            }
            Ok(count)
        });
        counts.sum()
    }

    /// Returns how often rows were read from a unit of the files, for this table or another one of
    /// the same files.
    pub fn units_read(&self) -> u64 {
        self.table.units_read()
    }

    /// Returns the dotted name of the table in the job file.
    pub fn table_key(&self) -> String {
        self.table.name().table()
    }

    /// Finds a row counted over all files: its file, and its place there.
    ///
    /// # Panics
    ///
    /// If there is no such row.
    pub fn locate(&self, row: u64) -> (PathBuf, RowPlace) {
        self.table.locate(row)
    }

    /// Returns a fingerprint of the files: their names, sizes and contents.
    ///
    /// # Errors
    ///
    /// If a file cannot be read.
    pub fn fingerprint(&self) -> Result<String> {
        self.table.fingerprint()
    }

    /// Tells whether files with equal fingerprints have equal contents, in whatever directory: not if
    /// a store tells versions of an object apart by time alone.
    pub fn is_known_by_content(&self) -> bool {
        self.table.is_known_by_content()
    }

    /// Refuses local files that have changed since they were opened; a store refuses to read others.
    ///
    /// # Errors
    ///
    /// Names the file.
    pub fn check_unchanged(&self) -> Result<()> {
        self.table.check_unchanged()
    }

    /// Returns the table's columns with the types that were inferred; none if no file is CSV.
    pub fn inferred_types(&self) -> Option<Vec<(String, String)>> {
        self.table.inferred()
    }

    /// Returns the type of the ids and the kinds of the feature columns as they are read from CSV
    /// files; none if no file is CSV. They depend on all values, on other tables and on a model.
    pub fn read_as(&self) -> Option<(IdType, BTreeMap<String, ColumnKind>)> {
        self.table.inferred()?;
        let kinds = self.feature_columns().into_iter();
        let kinds = kinds.map(|column| (column.name, column.kind));
        Some((self.id_type, kinds.collect()))
    }

    /// Returns the type of the ids.
    pub fn id_type(&self) -> IdType {
        self.id_type
    }

    /// Returns the shape of the features.
    pub fn feature_meta(&self) -> FeatureMeta {
        self.features.meta()
    }

    /// Lists the columns of dense features.
    pub fn feature_columns(&self) -> Vec<FeatureColumn> {
        match &self.features {
            FeatureColumns::Dense(columns) => columns.columns(),
            FeatureColumns::None | FeatureColumns::Sparse(_) => Vec::new(),
        }
    }

    /// Describes the columns of dense features, given the categories of all units and the columns
    /// with missing values, as far as these are known.
    pub fn column_meta(&self, categories: Categories, gaps: &[bool]) -> Vec<ColumnMeta> {
        match &self.features {
            FeatureColumns::Dense(columns) => columns.describe(categories, gaps),
            FeatureColumns::None | FeatureColumns::Sparse(_) => Vec::new(),
        }
    }

    /// Adds the categories of a unit to the categories of others.
    ///
    /// # Errors
    ///
    /// If a column has more categories than the job file allows.
    pub fn merge_categories(&self, all: &mut Categories, more: Categories) -> Result<()> {
        match &self.features {
            FeatureColumns::Dense(columns) => columns.merge(all, more, &self.spec.path.to_string()),
            FeatureColumns::None | FeatureColumns::Sparse(_) => Ok(()),
        }
    }

    /// Returns the transform that the trainer fits.
    pub fn transform(&self) -> Option<Transform> {
        self.spec.transform
    }

    /// Returns the width of a node's learnable row.
    pub fn embedding(&self) -> Option<usize> {
        self.spec.embedding.map(|width| width as usize)
    }

    /// Returns for feature columns the number of categories above which they become learnable
    /// codes, where the job file sets it.
    pub fn one_hot(&self) -> BTreeMap<String, u32> {
        let columns = self.spec.columns.iter();
        let set = columns.filter_map(|(name, column)| Some((name.clone(), column.one_hot?)));
        set.collect()
    }

    /// Tells whether there is a label column.
    pub fn has_label(&self) -> bool {
        self.label.is_some()
    }

    /// Returns the description of the labels, given the classes in the [`NodeKeys`] of all units.
    ///
    /// `class_names` must be sorted and distinct.
    ///
    /// # Errors
    ///
    /// If there is a label column but no node has a class.
    pub fn label_meta(
        &self,
        class_names: Vec<String>,
        max_class: Option<u32>,
    ) -> Result<Option<LabelMeta>> {
        let Some((column, role)) = &self.label else {
            return Ok(None);
        };
        let no_class = || {
            let problem = format!("no row of {} holds a class", self.table.place_of(column));
            self.table.name().unusable(problem)
        };
        let kind = match *role {
            LabelRole::Class => LabelKind::Class {
                num_classes: match (self.spec.num_classes, max_class) {
                    (Some(num_classes), _) => num_classes,
                    (None, Some(max_class)) => max_class + 1,
                    (None, None) => return Err(no_class()),
                },
            },
            LabelRole::ClassName if class_names.is_empty() => return Err(no_class()),
            LabelRole::ClassName if class_names.len() > CLASSES_MAX as usize => {
                return Err(self.table.name().unusable(format!(
                    "{} holds {} class names; at most {CLASSES_MAX} are possible",
                    self.table.place_of(column),
                    class_names.len()
                )));
            }
            LabelRole::ClassName => LabelKind::ClassName { names: class_names },
            LabelRole::Multi { width: 0 } => return Err(no_class()),
            LabelRole::Multi { width } => LabelKind::MultiLabel { width },
            LabelRole::Number => LabelKind::Number,
        };
        let data_type = label::written_type(*role, self.table.data_type("label", column)?);
        Ok(Some(LabelMeta {
            data_type: data_type.to_string(),
            kind,
        }))
    }

    /// Returns the description of the splits.
    pub fn split_meta(&self) -> Option<SplitMeta> {
        self.split.meta()
    }

    /// Reads ids, classes and categories of a unit; no other column is decoded.
    ///
    /// # Errors
    ///
    /// If an id is null, a label is out of range, or a column has too many categories.
    pub fn read_keys(&self, unit: &Unit) -> Result<NodeKeys> {
        let mut keys = KeyReader::new(self, unit);
        for item in self.table.batches(unit, &self.key_columns(), 1)? {
            keys.take(&item?)?;
        }
        Ok(keys.finish())
    }

    /// The columns of ids, classes and categories.
    pub(super) fn key_columns(&self) -> Vec<&str> {
        let mut columns = vec![self.spec.id.as_str()];
        columns.extend(self.classes().map(|(name, _)| name));
        columns.extend(
            self.features
                .dense()
                .iter()
                .flat_map(|dense| dense.categorical_names()),
        );
        columns
    }

    /// The column of classes, where labels are classes.
    fn classes(&self) -> Option<(&str, LabelRole)> {
        let (name, role) = self.label.as_ref()?;
        matches!(role, LabelRole::Class | LabelRole::ClassName).then_some((name, *role))
    }

    /// Reads splits of a unit and whether its rows have labels; no other column is decoded.
    ///
    /// # Errors
    ///
    /// If a split or a class number is out of range.
    pub fn read_splits(&self, unit: &Unit) -> Result<SplitRows> {
        let mut rows = SplitRows {
            split: Vec::with_capacity(unit.num_rows_reserved()),
            has_label: Vec::with_capacity(unit.num_rows_reserved()),
        };
        let mut columns: Vec<&str> = self.split.name().into_iter().collect();
        columns.extend(self.label.iter().map(|(name, _)| name.as_str()));
        columns.extend(self.split.is_drawn().then_some(self.spec.id.as_str()));
        let (mut ids, mut num_rows) = (Ids::new(self.id_type), 0);
        for item in self.table.batches(unit, &columns, 1)? {
            let read = item?;
            let (place, batch) = (read.place(), &read.rows);
            if let Some((name, role)) = &self.label {
                let (array, limit) = (column(batch, name), self.spec.num_classes);
                label::append_presence(place, name, array, *role, limit, &mut rows.has_label)?;
            }
            if self.split.is_drawn() {
                append_ids(place, &self.spec.id, batch, &mut ids, None)?;
            }
            let may_draw = |row: usize| self.label.is_none() || rows.has_label[row];
            self.split
                .append(place, batch, &ids, may_draw, &mut rows.split)?;
            num_rows += batch.num_rows();
        }
        rows.split.resize(num_rows, Split::None);
        rows.has_label.resize(num_rows, false);
        Ok(rows)
    }

    /// Reads all columns of a unit; `label` is [`NodesPlan::label_meta`], `columns` is
    /// [`NodesPlan::column_meta`].
    ///
    /// # Errors
    ///
    /// Names file, column and row of the first value that is not allowed.
    pub fn read_rows(
        &self,
        unit: &Unit,
        label: Option<&LabelMeta>,
        columns: &[ColumnMeta],
    ) -> Result<NodeRows> {
        let reserved = RESERVED_VALUES_MAX / self.feature_meta().dim().max(1);
        let mut rows = self.no_rows(label, unit.num_rows_reserved().min(reserved));
        self.reader(unit, (label, columns))?
            .read(unit.num_rows.max(1), &mut rows)?;
        Ok(rows)
    }

    /// Opens a unit to read all its columns, some rows at a time.
    ///
    /// # Errors
    ///
    /// If a file cannot be opened.
    pub fn reader<'a>(
        &'a self,
        unit: &Unit,
        described: DescribedColumns<'a>,
    ) -> Result<NodeReader<'a>> {
        let batches = self.table.batches(unit, &self.columns(), self.width())?;
        Ok(NodeReader::new([(self, described)].into_iter(), batches))
    }

    pub(super) fn columns(&self) -> Vec<&str> {
        let mut columns = vec![self.spec.id.as_str()];
        columns.extend(self.features.names());
        columns.extend(self.label.iter().map(|(name, _)| name.as_str()));
        columns.extend(self.split.name());
        columns
    }

    /// The number of values of a row's widest column.
    pub(super) fn width(&self) -> usize {
        self.features.values_a_row()
    }

    /// Returns columns without rows, with room for `capacity` rows; `label` is
    /// [`NodesPlan::label_meta`].
    pub fn no_rows(&self, label: Option<&LabelMeta>, capacity: usize) -> NodeRows {
        NodeRows {
            ids: Ids::with_capacity(self.id_type, capacity),
            features: Features::with_capacity(self.feature_meta(), capacity),
            labels: Labels::empty(label),
            split: Vec::with_capacity(capacity),
            gaps: vec![false; self.features.num_dense()],
        }
    }

    /// Appends the rows of a batch.
    fn append_rows(
        &self,
        read: &ReadBatch<'_>,
        (label, positions): (Option<&LabelMeta>, &Positions<'_>),
        rows: &mut NodeRows,
    ) -> Result<()> {
        let (place, batch) = (read.place(), &read.rows);
        append_ids(place, &self.spec.id, batch, &mut rows.ids, None)?;
        let (features, gaps) = (&mut rows.features, &mut rows.gaps);
        self.features
            .append(place, batch, positions, gaps, features)?;
        if let (Some((name, _)), Some(meta)) = (&self.label, label) {
            label::append_labels(place, name, column(batch, name), meta, &mut rows.labels)?;
        }
        let labels = &rows.labels;
        let may_draw = |row: usize| self.label.is_none() || labels.has(row);
        self.split
            .append(place, batch, &rows.ids, may_draw, &mut rows.split)
    }
}

impl NodeRows {
    /// Removes all rows and keeps the memory.
    pub fn clear(&mut self) {
        self.ids.clear();
        self.features.clear();
        self.labels.clear();
        self.split.clear();
    }
}
