//! Columns of the node table as record batches: makes them for a file, and reads them from its map.

use crate::arrow_file::{bounds, column, list};
use crate::map::will_need;
use arrow::array::{
    Array, ArrayRef, AsArray, FixedSizeListArray, Float32Array, RecordBatch, UInt8Array,
    UInt32Array,
};
use arrow::buffer::{OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Field, Float32Type, UInt8Type, UInt32Type};
use schemas::{Features, Labels, Split};
use std::ops::Range;
use std::sync::Arc;

/// Makes the columns of features: none, one (`feature`) or two (`feature_index`, `_value`).
pub(crate) fn feature_columns(
    features: Features,
    num_nodes: usize,
) -> Vec<(&'static str, ArrayRef)> {
    match features {
        Features::None => Vec::new(),
        Features::Dense { dim, values } => {
            let item = Arc::new(Field::new("item", DataType::Float32, false));
            let width = i32::try_from(dim).expect("feature widths fit 32 bits");
            let values = Arc::new(Float32Array::from(values));
            let list =
                FixedSizeListArray::try_new_with_length(item, width, values, None, num_nodes);
            vec![(
                "feature",
                Arc::new(list.expect("dim values a node")) as ArrayRef,
            )]
        }
        Features::Sparse {
            offset,
            index,
            value,
            ..
        } => vec![
            (
                "feature_index",
                list(&offset, Arc::new(UInt32Array::from(index))),
            ),
            (
                "feature_value",
                list(&offset, Arc::new(Float32Array::from(value))),
            ),
        ],
    }
}

/// Makes the column of labels.
pub(crate) fn label_columns(labels: Labels, num_nodes: usize) -> Vec<(&'static str, ArrayRef)> {
    let column: ArrayRef = match labels {
        Labels::None => return Vec::new(),
        Labels::Class(classes) => Arc::new(UInt32Array::from(classes)),
        Labels::Number(numbers) => Arc::new(Float32Array::from(numbers)),
        Labels::Multi {
            width,
            values,
            present,
        } => {
            let item = Arc::new(Field::new("item", DataType::Float32, false));
            let values = Arc::new(Float32Array::from(values));
            let width = i32::try_from(width).expect("label widths fit 32 bits");
            let nulls = Some(present.into());
            let list =
                FixedSizeListArray::try_new_with_length(item, width, values, nulls, num_nodes);
            Arc::new(list.expect("width values a node"))
        }
    };
    vec![("label", column)]
}

/// Makes the column of splits.
pub(crate) fn split_column(split: &[Split]) -> ArrayRef {
    Arc::new(UInt8Array::from_iter_values(split.iter().map(|&s| s as u8)))
}

/// Columns of the node table for the nodes of one record batch, in the mapped file.
pub(crate) struct NodeColumns {
    feature: Option<(usize, ScalarBuffer<f32>)>,
    sparse: Option<(OffsetBuffer<i64>, ScalarBuffer<u32>, ScalarBuffer<f32>)>,
    label: LabelColumn,
    split: ScalarBuffer<u8>,
}

impl NodeColumns {
    /// Takes the columns of a batch.
    pub(crate) fn of(batch: &RecordBatch) -> Option<Self> {
        let feature = batch.column_by_name("feature").and_then(|array| {
            let array = array.as_fixed_size_list_opt()?;
            let dim = usize::try_from(array.value_length()).ok()?;
            Some((dim, column::<Float32Type>(array.values())?))
        });
        let sparse = batch.column_by_name("feature_index").and_then(|index| {
            let index = index.as_list_opt::<i64>()?;
            let value = batch
                .column_by_name("feature_value")?
                .as_list_opt::<i64>()?;
            let values = column::<Float32Type>(value.values())?;
            Some((
                index.offsets().clone(),
                column::<UInt32Type>(index.values())?,
                values,
            ))
        });
        Some(Self {
            feature,
            sparse,
            label: LabelColumn::of(batch)?,
            split: column::<UInt8Type>(batch.column_by_name("split")?)?,
        })
    }

    pub(crate) fn split(&self, i: usize) -> Split {
        Split::of_number(self.split[i].into()).unwrap_or_default()
    }

    /// Returns the dense features of node `i`; nothing where features are not dense.
    pub(crate) fn dense(&self, i: usize) -> &[f32] {
        match &self.feature {
            Some((dim, feature)) => &feature[i * dim..(i + 1) * dim],
            None => &[],
        }
    }

    /// Returns the bytes of the features of node `i`.
    pub(crate) fn feature_bytes(&self, i: usize) -> usize {
        match &self.sparse {
            Some((offsets, _, _)) => 8 * bounds(offsets, i).len(),
            None => 4 * self.dense(i).len(),
        }
    }

    /// Starts to read the features of some nodes.
    pub(crate) fn will_need_features(&self, nodes: Range<usize>) {
        if let Some((dim, feature)) = &self.feature {
            will_need(bytemuck::cast_slice(
                &feature[nodes.start * dim..nodes.end * dim],
            ));
        }
        if let Some((offsets, index, value)) = &self.sparse {
            let entries = bounds(offsets, nodes.start).start..bounds(offsets, nodes.end - 1).end;
            will_need(bytemuck::cast_slice(&index[entries.clone()]));
            will_need(bytemuck::cast_slice(&value[entries]));
        }
    }

    /// Returns the bytes of all sparse features.
    pub(crate) fn sparse_bytes(&self) -> usize {
        self.sparse
            .as_ref()
            .map_or(0, |(_, index, _)| 8 * index.len())
    }

    /// Appends the features of node `i`.
    pub(crate) fn features_into(&self, i: usize, out: &mut Features) {
        match out {
            Features::None => {}
            Features::Dense { dim, values } => {
                let (width, feature) = self.feature.as_ref().expect("checked when opened");
                assert_eq!(dim, width, "one width in a store");
                values.extend_from_slice(&feature[i * *dim..(i + 1) * *dim]);
            }
            Features::Sparse {
                offset,
                index,
                value,
                ..
            } => {
                let (offsets, indices, weights) =
                    self.sparse.as_ref().expect("checked when opened");
                let range = bounds(offsets, i);
                index.extend_from_slice(&indices[range.clone()]);
                value.extend_from_slice(&weights[range]);
                offset.push(index.len() as u64);
            }
        }
    }

    /// Appends the label of node `i`.
    pub(crate) fn label_into(&self, i: usize, out: &mut Labels) {
        match (&self.label, out) {
            (LabelColumn::Class(from), Labels::Class(classes)) => classes.push(from[i]),
            (LabelColumn::Number(from), Labels::Number(numbers)) => numbers.push(from[i]),
            (
                LabelColumn::Multi(list),
                Labels::Multi {
                    values, present, ..
                },
            ) => {
                values.extend_from_slice(list.value(i).as_primitive::<Float32Type>().values());
                present.push(list.is_valid(i));
            }
            (_, Labels::None) => {}
            _ => panic!("labels of a store are of one kind"),
        }
    }
}

/// Labels of the nodes of one record batch, in the mapped file.
enum LabelColumn {
    None,
    Class(ScalarBuffer<u32>),
    Number(ScalarBuffer<f32>),
    Multi(FixedSizeListArray),
}

impl LabelColumn {
    fn of(batch: &RecordBatch) -> Option<Self> {
        let Some(array) = batch.column_by_name("label") else {
            return Some(Self::None);
        };
        Some(match array.data_type() {
            DataType::UInt32 => Self::Class(column::<UInt32Type>(array)?),
            DataType::Float32 => Self::Number(column::<Float32Type>(array)?),
            _ => Self::Multi(array.as_fixed_size_list_opt()?.clone()),
        })
    }
}
