//! The table of nodes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Field, FieldRef, Int64Type, UInt64Type};

use super::decode::{self, Lists, NumberColumns, column};
use super::label::{self, LabelRole};
use super::{Place, Table, Unit};
use crate::columns::{FeatureMeta, Features, LabelKind, LabelMeta, Labels, Split, SplitMeta};
use crate::config::{CLASSES_MAX, Dangling, NodesSpec, SPARSE_WIDTH_MAX, SparseSpec, Transform};
use crate::error::{Result, SchemaError};
use crate::ids::{IdType, Ids, NOWHERE};

/// Feature values of a row group that memory is reserved for before they are read.
const RESERVED_VALUES_MAX: usize = 1 << 26;

/// The table of nodes, checked against the files' schemas.
#[derive(Clone, Debug)]
pub struct NodesPlan {
    spec: NodesSpec,
    table: Table,
    id_type: IdType,
    features: FeatureColumns,
    label: Option<(String, LabelRole)>,
}

#[derive(Clone, Debug)]
enum FeatureColumns {
    None,
    Dense(NumberColumns),
    Sparse(SparseSpec),
}

/// Ids of a unit, and what its labels say about the classes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeKeys {
    /// `[n]`.
    pub ids: Ids,
    /// Distinct class names, sorted; empty unless labels are strings.
    pub class_names: Vec<String>,
    /// Greatest class number, if labels are class numbers and the unit has one.
    pub max_class: Option<u32>,
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
}

/// A unit whose rows are read some at a time.
pub struct NodeReader<'a> {
    plan: &'a NodesPlan,
    label: Option<&'a LabelMeta>,
    batches: Box<dyn Iterator<Item = Result<(Place<'a>, RecordBatch)>> + 'a>,
}

/// Splits of a unit, and which rows have a label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitRows {
    /// `[n]`.
    pub split: Vec<Split>,
    /// `[n]`.
    pub has_label: Vec<bool>,
}

pub(super) const IDS: &str = "integers and strings";

impl NodesSpec {
    /// Checks the table's files, columns and types; reads footers, and the first row where a
    /// list column's width stands nowhere else.
    ///
    /// # Errors
    ///
    /// Names the key, file or column, and what is allowed.
    pub fn into_plan(self, base: &Path) -> Result<NodesPlan> {
        let table = Table::open("nodes", base, &self.path)?;
        let id_type = table.column("id", &self.id, "ids", IDS, IdType::of)?;
        let features = self.plan_features(&table)?;
        let label = match &self.label {
            Some(column) => Some((column.clone(), label::plan_label(&table, column)?)),
            None => None,
        };
        match &self.split {
            Some(column) => label::plan_split(&table, column, self.split_values)?,
            None if self.split_values.is_some() => {
                let problem = "needs `split`, the column that holds the numbers".to_owned();
                return Err(SchemaError::Key {
                    key: table.key("split_values"),
                    problem,
                });
            }
            None => {}
        }
        let takes_num_classes = matches!(label, Some((_, LabelRole::Class)));
        if let Some(num_classes) = self.num_classes {
            let problem = if !takes_num_classes {
                Some("is for labels that are class numbers; leave it out".to_owned())
            } else if !(1..=CLASSES_MAX).contains(&num_classes) {
                Some(format!("is {num_classes}; allowed is 1 to {CLASSES_MAX}"))
            } else {
                label::num_classes_problem(&table, self.label.as_deref(), num_classes)?
            };
            if let Some(problem) = problem {
                return Err(SchemaError::Key {
                    key: table.key("num_classes"),
                    problem,
                });
            }
        }
        Ok(NodesPlan {
            spec: self,
            table,
            id_type,
            features,
            label,
        })
    }

    fn plan_features(&self, table: &Table) -> Result<FeatureColumns> {
        let Some(sparse) = &self.sparse else {
            if self.features.is_empty() {
                return Ok(FeatureColumns::None);
            }
            let columns = NumberColumns::plan(table, "features", &self.features, "features")?;
            return Ok(FeatureColumns::Dense(columns));
        };
        if !self.features.is_empty() {
            let problem = "stands in place of `features`; leave one of them out".to_owned();
            return Err(SchemaError::Key {
                key: table.key("sparse"),
                problem,
            });
        }
        if !(1..=SPARSE_WIDTH_MAX).contains(&sparse.width) {
            let problem = format!("is {}; allowed is 1 to {SPARSE_WIDTH_MAX}", sparse.width);
            return Err(SchemaError::Key {
                key: table.key("sparse.width"),
                problem,
            });
        }
        let list_of = |data_type: &DataType, is_item: fn(&DataType) -> bool| match data_type {
            DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
                is_item(item.data_type()).then_some(())
            }
            _ => None,
        };
        let (index, value) = (&sparse.index, &sparse.value);
        table.column(
            "sparse.index",
            index,
            "sparse positions",
            "lists of integers",
            |t| list_of(t, DataType::is_integer),
        )?;
        table.column(
            "sparse.value",
            value,
            "sparse values",
            "lists of numbers",
            |t| list_of(t, decode::is_number),
        )?;
        Ok(FeatureColumns::Sparse(sparse.clone()))
    }
}

impl NodesPlan {
    pub(super) fn table(&self) -> &Table {
        &self.table
    }

    /// Returns the specification as written.
    pub fn spec(&self) -> &NodesSpec {
        &self.spec
    }

    /// Returns the row groups of all files, in order.
    pub fn units(&self) -> &[Unit] {
        &self.table.units
    }

    /// Returns the rows of all files.
    pub fn num_rows(&self) -> u64 {
        self.table.num_rows
    }

    /// Finds a row counted over all files: its file, and its 0-based row there.
    ///
    /// # Panics
    ///
    /// If there is no such row.
    pub fn locate(&self, row: u64) -> (PathBuf, u64) {
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

    /// Returns the type of the ids.
    pub fn id_type(&self) -> IdType {
        self.id_type
    }

    /// Returns the shape of the features.
    pub fn feature_meta(&self) -> FeatureMeta {
        match &self.features {
            FeatureColumns::None => FeatureMeta::None,
            FeatureColumns::Dense(columns) => FeatureMeta::Dense { dim: columns.dim() },
            FeatureColumns::Sparse(sparse) => FeatureMeta::Sparse {
                dim: sparse.width as usize,
            },
        }
    }

    /// Returns the transform that the trainer fits.
    pub fn transform(&self) -> Option<Transform> {
        self.spec.transform
    }

    /// Tells whether there is a label column.
    pub fn has_label(&self) -> bool {
        self.label.is_some()
    }

    /// Returns what the labels are, given what all units' [`NodeKeys`] say about the classes.
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
        let no_class = || SchemaError::Table {
            table: "nodes",
            problem: format!("no row of column `{column}` holds a class"),
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
                return Err(SchemaError::Table {
                    table: "nodes",
                    problem: format!(
                        "column `{column}` holds {} class names; at most {CLASSES_MAX} are possible",
                        class_names.len()
                    ),
                });
            }
            LabelRole::ClassName => LabelKind::ClassName { names: class_names },
            LabelRole::Multi { width: 0 } => return Err(no_class()),
            LabelRole::Multi { width } => LabelKind::MultiLabel { width },
            LabelRole::Number => LabelKind::Number,
        };
        let data_type = plain(self.table.data_type("label", column)?).to_string();
        Ok(Some(LabelMeta { data_type, kind }))
    }

    /// Returns what the splits are.
    pub fn split_meta(&self) -> Option<SplitMeta> {
        let column = self.spec.split.as_ref()?;
        let data_type = self
            .table
            .data_type("split", column)
            .expect("the plan checked it");
        Some(SplitMeta {
            data_type: data_type.to_string(),
            values: self.spec.split_values,
        })
    }

    /// Reads ids and classes of a unit; no other column is decoded.
    ///
    /// # Errors
    ///
    /// Null ids, and labels outside their range.
    pub fn read_keys(&self, unit: &Unit) -> Result<NodeKeys> {
        let mut ids = Ids::with_capacity(self.id_type, unit.num_rows_reserved());
        let mut names = BTreeSet::new();
        let mut max_class = None;
        let mut columns = vec![self.spec.id.as_str()];
        let classes = self
            .label
            .as_ref()
            .filter(|(_, role)| matches!(role, LabelRole::Class | LabelRole::ClassName));
        columns.extend(classes.map(|(name, _)| name.as_str()));
        for item in self.table.batches(unit, &columns, 1)? {
            let (place, batch) = item?;
            let first = ids.len();
            append_ids(place, &self.spec.id, &batch, &mut ids, None)?;
            let mut keys = ids.keys().unwrap_or_default().iter().skip(first);
            if let Some(row) = keys.position(|&key| key == NOWHERE) {
                let problem = format!("is {}, which is reserved", ids.display(first + row));
                return Err(place.value(&self.spec.id, row, problem));
            }
            match classes {
                Some((name, LabelRole::ClassName)) => {
                    collect_names(place, column(&batch, name), &mut names)?;
                }
                Some((name, _)) => {
                    let limit = self.spec.num_classes;
                    let max = label::max_class(place, name, column(&batch, name), limit)?;
                    max_class = max_class.max(max);
                }
                None => {}
            }
        }
        Ok(NodeKeys {
            ids,
            class_names: names.into_iter().collect(),
            max_class,
        })
    }

    /// Reads splits of a unit and whether its rows have labels; no other column is decoded.
    ///
    /// # Errors
    ///
    /// Splits outside their range, and class numbers outside theirs.
    pub fn read_splits(&self, unit: &Unit) -> Result<SplitRows> {
        let mut rows = SplitRows {
            split: Vec::with_capacity(unit.num_rows_reserved()),
            has_label: Vec::with_capacity(unit.num_rows_reserved()),
        };
        let mut columns: Vec<&str> = self.spec.split.as_deref().into_iter().collect();
        columns.extend(self.label.iter().map(|(name, _)| name.as_str()));
        for item in self.table.batches(unit, &columns, 1)? {
            let (place, batch) = item?;
            if let Some(name) = &self.spec.split {
                let (array, values) = (column(&batch, name), self.spec.split_values);
                label::append_splits(place, name, array, values, &mut rows.split)?;
            }
            if let Some((name, role)) = &self.label {
                let (array, limit) = (column(&batch, name), self.spec.num_classes);
                label::append_presence(place, name, array, *role, limit, &mut rows.has_label)?;
            }
        }
        rows.split.resize(unit.num_rows, Split::None);
        rows.has_label.resize(unit.num_rows, false);
        Ok(rows)
    }

    /// Reads all columns of a unit; `label` is [`NodesPlan::label_meta`].
    ///
    /// # Errors
    ///
    /// Names file, column and row of the first value that is not allowed.
    pub fn read_rows(&self, unit: &Unit, label: Option<&LabelMeta>) -> Result<NodeRows> {
        let reserved = RESERVED_VALUES_MAX / self.feature_meta().dim().max(1);
        let mut rows = self.no_rows(label, unit.num_rows_reserved().min(reserved));
        self.reader(unit, label)?
            .read(unit.num_rows.max(1), &mut rows)?;
        Ok(rows)
    }

    /// Opens a unit to read all its columns, some rows at a time; `label` is
    /// [`NodesPlan::label_meta`].
    ///
    /// # Errors
    ///
    /// A file that cannot be opened.
    pub fn reader<'a>(
        &'a self,
        unit: &Unit,
        label: Option<&'a LabelMeta>,
    ) -> Result<NodeReader<'a>> {
        let mut columns = vec![self.spec.id.as_str()];
        match &self.features {
            FeatureColumns::None => {}
            FeatureColumns::Dense(dense) => columns.extend(dense.names()),
            FeatureColumns::Sparse(sparse) => columns.extend([&*sparse.index, &*sparse.value]),
        }
        columns.extend(self.label.iter().map(|(name, _)| name.as_str()));
        columns.extend(self.spec.split.as_deref());
        let width = match &self.features {
            FeatureColumns::Dense(dense) => dense.dim(),
            FeatureColumns::None => 1,
            FeatureColumns::Sparse(_) => 64,
        };
        Ok(NodeReader {
            plan: self,
            label,
            batches: Box::new(self.table.batches(unit, &columns, width)?),
        })
    }

    /// Columns without rows, with room for some; `label` is [`NodesPlan::label_meta`].
    pub fn no_rows(&self, label: Option<&LabelMeta>, capacity: usize) -> NodeRows {
        NodeRows {
            ids: Ids::with_capacity(self.id_type, capacity),
            features: Features::with_capacity(self.feature_meta(), capacity),
            labels: Labels::empty(label),
            split: Vec::with_capacity(capacity),
        }
    }

    fn append_rows(
        &self,
        place: Place<'_>,
        batch: &RecordBatch,
        label: Option<&LabelMeta>,
        rows: &mut NodeRows,
    ) -> Result<()> {
        append_ids(place, &self.spec.id, batch, &mut rows.ids, None)?;
        self.append_features(place, batch, &mut rows.features)?;
        if let (Some((name, _)), Some(meta)) = (&self.label, label) {
            label::append_labels(place, name, column(batch, name), meta, &mut rows.labels)?;
        }
        match &self.spec.split {
            Some(name) => {
                let (array, values) = (column(batch, name), self.spec.split_values);
                label::append_splits(place, name, array, values, &mut rows.split)?;
            }
            None => rows.split.resize(rows.ids.len(), Split::None),
        }
        Ok(())
    }

    fn append_features(
        &self,
        place: Place<'_>,
        batch: &RecordBatch,
        features: &mut Features,
    ) -> Result<()> {
        match (&self.features, features) {
            (FeatureColumns::Dense(dense), Features::Dense { values, .. }) => {
                dense.append(place, batch, values)
            }
            (
                FeatureColumns::Sparse(sparse),
                Features::Sparse {
                    offset,
                    index,
                    value,
                    ..
                },
            ) => append_sparse(place, batch, sparse, offset, index, value),
            _ => Ok(()),
        }
    }
}

impl NodeReader<'_> {
    /// Appends the next rows: `num_rows` or a few more, fewer only at the unit's end.
    ///
    /// # Errors
    ///
    /// Names file, column and row of the first value that is not allowed.
    pub fn read(&mut self, num_rows: usize, rows: &mut NodeRows) -> Result<()> {
        let end = rows.ids.len() + num_rows;
        while rows.ids.len() < end
            && let Some(item) = self.batches.next()
        {
            let (place, batch) = item?;
            self.plan.append_rows(place, &batch, self.label, rows)?;
        }
        Ok(())
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

/// A type without the metadata that writers leave on list items, such as Iceberg's field ids.
fn plain(data_type: DataType) -> DataType {
    let item = |field: FieldRef| {
        let (name, nullable) = (field.name().clone(), field.is_nullable());
        Arc::new(Field::new(name, field.data_type().clone(), nullable))
    };
    match data_type {
        DataType::List(field) => DataType::List(item(field)),
        DataType::LargeList(field) => DataType::LargeList(item(field)),
        DataType::FixedSizeList(field, width) => DataType::FixedSizeList(item(field), width),
        other => other,
    }
}

/// Appends an id column's batch.
///
/// An id that the type of `ids` cannot hold is no node's: an error, or [`NOWHERE`] where the ends
/// of edges may be dropped.
pub(super) fn append_ids(
    place: Place<'_>,
    name: &str,
    batch: &RecordBatch,
    ids: &mut Ids,
    misfits: Option<Dangling>,
) -> Result<()> {
    let array = column(batch, name);
    decode::no_nulls(place, name, array)?;
    let read = Ids::from_array(array)?;
    if read.id_type() == ids.id_type() {
        ids.extend_from(&read, 0..read.len());
        return Ok(());
    }
    let fitting = match read.cast(ids.id_type()) {
        Ok(fitting) => fitting,
        Err(_) if misfits == Some(Dangling::Drop) => read.cast_or_nowhere(ids.id_type()),
        Err(row) => {
            let hint = match misfits {
                Some(_) => " (`dangling = \"drop\"` under [input.edges] leaves such edges out)",
                None => "",
            };
            let problem = format!(
                "is {}, but the nodes' ids are {}{hint}",
                read.display(row),
                ids.id_type()
            );
            return Err(place.value(name, row, problem));
        }
    };
    ids.extend_from(&fitting, 0..fitting.len());
    Ok(())
}

fn collect_names(place: Place<'_>, array: &dyn Array, names: &mut BTreeSet<String>) -> Result<()> {
    let array = label::strings(place, array)?;
    for name in array.as_string::<i64>().iter().flatten() {
        if !names.contains(name) {
            names.insert(name.to_owned());
        }
    }
    Ok(())
}

fn append_sparse(
    place: Place<'_>,
    batch: &RecordBatch,
    sparse: &SparseSpec,
    offset: &mut Vec<u64>,
    index: &mut Vec<u32>,
    value: &mut Vec<f32>,
) -> Result<()> {
    let (indices, values) = (column(batch, &sparse.index), column(batch, &sparse.value));
    decode::no_nulls(place, &sparse.index, indices)?;
    decode::no_nulls(place, &sparse.value, values)?;
    let lists = "the plan checked that it is a list column";
    let (index_lists, index_values) = Lists::of(indices).expect(lists);
    let (value_lists, value_values) = Lists::of(values).expect(lists);
    let positions = positions(place, index_values.as_ref())?;
    let numbers = decode::to_f32(place, value_values.as_ref())?;
    for row in 0..batch.num_rows() {
        let (index_range, value_range) = (index_lists.range(row), value_lists.range(row));
        if index_range.len() != value_range.len() {
            let problem = format!(
                "holds {} numbers for the {} positions in column `{}`",
                value_range.len(),
                index_range.len(),
                sparse.index
            );
            return Err(place.value(&sparse.value, row, problem));
        }
        for &position in &positions[index_range] {
            match u32::try_from(position) {
                Ok(position) if position < sparse.width => index.push(position),
                _ => {
                    let problem =
                        format!("holds {position}; allowed are 0 to {}", sparse.width - 1);
                    return Err(place.value(&sparse.index, row, problem));
                }
            }
        }
        let row_values = &numbers[value_range];
        decode::all_finite(place, &sparse.value, row_values, |_| row)?;
        value.extend_from_slice(row_values);
        offset.push(index.len() as u64);
    }
    Ok(())
}

/// Positions of any integer type; those beyond int64 come out beyond every width.
fn positions(place: Place<'_>, values: &dyn Array) -> Result<Vec<i64>> {
    if let Some(wide) = values.as_primitive_opt::<UInt64Type>() {
        let clamp = |&value: &u64| i64::try_from(value).unwrap_or(i64::MAX);
        return Ok(wide.values().iter().map(clamp).collect());
    }
    let values = arrow::compute::cast(values, &DataType::Int64).map_err(place.convert())?;
    Ok(values.as_primitive::<Int64Type>().values().to_vec())
}
