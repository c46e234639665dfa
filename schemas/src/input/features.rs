//! The feature columns of the node table.

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Int64Type, UInt64Type};

use super::column_kind::check_specs;
use super::decode::{self, Lists, column};
use super::dense::{DenseColumns, Positions};
use super::table::Kinds;
use super::{Place, Table};
use crate::columns::{FeatureMeta, Features};
use crate::config::{NodesSpec, SparseSpec};
use crate::error::{Result, SchemaError};

/// Assumed number of values in a sparse row.
const SPARSE_VALUES: usize = 64;

/// The feature columns of the node table, checked.
#[derive(Clone, Debug)]
pub(super) enum FeatureColumns {
    None,
    Dense(DenseColumns),
    Sparse(SparseSpec),
}

impl FeatureColumns {
    /// Checks the feature columns; the columns of ids, labels and splits are refused. `kinds` are
    /// those that the job file or a model gives.
    pub(super) fn plan(spec: &NodesSpec, table: &Table, kinds: &Kinds) -> Result<Self> {
        refuse_other_roles(spec, table)?;
        check_specs(spec, table)?;
        let Some(sparse) = &spec.sparse else {
            if spec.features.is_empty() {
                return Ok(Self::None);
            }
            return DenseColumns::plan(spec, table, kinds).map(Self::Dense);
        };
        if !spec.features.is_empty() {
            let problem = "cannot be set beside `features`; leave one of them out".to_owned();
            return Err(SchemaError::Key {
                key: table.key("sparse"),
                problem,
            });
        }
        plan_sparse(sparse, table)?;
        Ok(Self::Sparse(sparse.clone()))
    }

    /// Returns the shape of the features.
    pub(super) fn meta(&self) -> FeatureMeta {
        match self {
            Self::None => FeatureMeta::None,
            Self::Dense(columns) => FeatureMeta::Dense { dim: columns.dim() },
            Self::Sparse(sparse) => FeatureMeta::Sparse {
                dim: sparse.width as usize,
            },
        }
    }

    /// Returns the columns' names.
    pub(super) fn names(&self) -> Vec<&str> {
        match self {
            Self::None => Vec::new(),
            Self::Dense(columns) => columns.names().collect(),
            Self::Sparse(sparse) => vec![&sparse.index, &sparse.value],
        }
    }

    /// Returns the number of values in a row, which decides how many rows a batch has.
    pub(super) fn values_a_row(&self) -> usize {
        match self {
            Self::None => 1,
            Self::Dense(columns) => columns.dim(),
            Self::Sparse(_) => SPARSE_VALUES,
        }
    }

    /// Returns the columns of dense features.
    pub(super) fn dense(&self) -> Option<&DenseColumns> {
        match self {
            Self::None | Self::Sparse(_) => None,
            Self::Dense(columns) => Some(columns),
        }
    }

    /// Returns the number of columns that may have gaps.
    pub(super) fn num_dense(&self) -> usize {
        self.dense().map_or(0, DenseColumns::len)
    }

    /// Appends a batch's rows, and marks the columns with missing values in `gaps`.
    pub(super) fn append(
        &self,
        place: Place<'_>,
        batch: &RecordBatch,
        positions: &Positions<'_>,
        gaps: &mut [bool],
        features: &mut Features,
    ) -> Result<()> {
        match (self, features) {
            (Self::Dense(dense), Features::Dense { values, .. }) => {
                dense.append(place, batch, positions, gaps, values)
            }
            (
                Self::Sparse(sparse),
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

/// Refuses the columns of the ids, labels and splits as features: a model must not learn from them.
fn refuse_other_roles(spec: &NodesSpec, table: &Table) -> Result<()> {
    let roles = [
        ("id", Some(spec.id.as_str())),
        ("label", spec.label.as_deref()),
        ("split", spec.split_column()),
    ];
    let features = spec.features.iter().map(|name| ("features", name));
    let sparse = spec.sparse.iter();
    let sparse = sparse.flat_map(|of| [("sparse.index", &of.index), ("sparse.value", &of.value)]);
    for (key, name) in features.chain(sparse) {
        if let Some((role, _)) = roles.iter().find(|(_, column)| *column == Some(name)) {
            return Err(SchemaError::Key {
                key: table.key(key),
                problem: format!(
                    "column `{name}` is `{role}` of the nodes, so it cannot be a feature"
                ),
            });
        }
    }
    Ok(())
}

fn plan_sparse(sparse: &SparseSpec, table: &Table) -> Result<()> {
    let list_of = |data_type: &DataType, is_item: fn(&DataType) -> bool| match data_type {
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            is_item(item.data_type()).then_some(())
        }
        _ => None,
    };
    table.column(
        "sparse.index",
        &sparse.index,
        "sparse positions",
        "lists of integers",
        |t| list_of(t, DataType::is_integer),
    )?;
    table.column(
        "sparse.value",
        &sparse.value,
        "sparse values",
        "lists of numbers",
        |t| list_of(t, decode::is_number),
    )
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
        let source = value_values.slice(value_range.start, value_range.len());
        let row_values = &numbers[value_range];
        decode::all_finite(place, &sparse.value, (row_values, &source), |_| row)?;
        value.extend_from_slice(row_values);
        offset.push(index.len() as u64);
    }
    Ok(())
}

/// Converts positions of any integer type; a position beyond int64 becomes one beyond every width.
fn positions(place: Place<'_>, values: &dyn Array) -> Result<Vec<i64>> {
    if let Some(wide) = values.as_primitive_opt::<UInt64Type>() {
        let clamp = |&value: &u64| i64::try_from(value).unwrap_or(i64::MAX);
        return Ok(wide.values().iter().map(clamp).collect());
    }
    let values = arrow::compute::cast(values, &DataType::Int64).map_err(place.convert())?;
    Ok(values.as_primitive::<Int64Type>().values().to_vec())
}
