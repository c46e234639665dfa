//! The nodes of a generated type: ids, features, and labels with splits.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float32Array, Int32Array, Int64Array, ListArray, StringArray};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, Schema};

use super::draws::{Draws, Purpose, signed, stream};

/// Largest number of rows of a row group; fewer if features are wide.
const ROW_GROUP: usize = 1 << 16;

/// Feature values of a row group, which the writer holds in memory.
const ROW_GROUP_VALUES_MAX: usize = 1 << 24;

/// Distance between class centres in each feature, relative to the noise.
const CLASS_SIGNAL: f32 = 0.5;

/// What the table of a type tells of the classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    /// Labels, and features around the centre of the class. Classes are drawn.
    Both,
    /// Labels. Classes are drawn, and features are noise.
    Labels,
    /// Features around the centre of the class, which is the id modulo the number of classes.
    Features,
}

/// The nodes of a type.
#[derive(Clone, Debug)]
pub(super) struct Nodes {
    pub(super) seed: u64,
    pub(super) count: u64,
    /// Features of a node.
    pub(super) features: u32,
    pub(super) classes: u32,
    pub(super) shown: Shown,
}

impl Nodes {
    /// Returns the class of a node.
    pub(super) fn class(&self, node: u64) -> u64 {
        let classes = u64::from(self.classes);
        match self.shown {
            Shown::Both | Shown::Labels => self.draws(Purpose::Class, node).next() % classes,
            Shown::Features => node % classes,
        }
    }

    /// Appends noise, around the centre of the node's class if features show it.
    fn push_features(&self, node: u64, values: &mut Vec<f32>) {
        let mut noise = self.draws(Purpose::Feature, node);
        if self.shown == Shown::Labels {
            values.extend((0..self.features).map(|_| signed(noise.next())));
            return;
        }
        let mut centre = self.draws(Purpose::ClassCentre, self.class(node));
        let value = |_| signed(noise.next()) + CLASS_SIGNAL * signed(centre.next());
        values.extend((0..self.features).map(value));
    }

    fn draws(&self, purpose: Purpose, row: u64) -> Draws {
        Draws::new(stream(self.seed, purpose), row)
    }

    /// Returns the rows of a row group of the table.
    pub(super) fn row_group(&self) -> usize {
        let values = self.features.max(1) as usize;
        (ROW_GROUP_VALUES_MAX / values).min(ROW_GROUP)
    }

    /// Returns the schema of the table.
    pub(super) fn schema(&self) -> Schema {
        let mut fields = vec![Field::new("id", DataType::Int64, false)];
        if self.features > 0 {
            let features = DataType::List(Arc::new(feature_field()));
            fields.push(Field::new("features", features, false));
        }
        if self.shown != Shown::Features {
            fields.push(Field::new("label", DataType::Int32, false));
            fields.push(Field::new("split", DataType::Utf8, true));
        }
        Schema::new(fields)
    }

    /// Returns the columns of some rows of the table.
    pub(super) fn columns(&self, first: u64, rows: usize) -> Vec<ArrayRef> {
        let nodes = first..first + rows as u64;
        let mut columns: Vec<ArrayRef> = vec![ids(nodes.clone())];
        if self.features > 0 {
            columns.push(Arc::new(self.feature_lists(nodes.clone(), rows)));
        }
        if self.shown != Shown::Features {
            let classes = nodes.clone().map(|node| self.class(node));
            let labels = classes.map(|class| i32::try_from(class).expect("below CLASSES_MAX"));
            columns.push(Arc::new(Int32Array::from_iter_values(labels)));
            columns.push(Arc::new(nodes.map(split).collect::<StringArray>()));
        }
        columns
    }

    fn feature_lists(&self, nodes: Range<u64>, rows: usize) -> ListArray {
        let dim = self.features as usize;
        let mut values = Vec::with_capacity(rows * dim);
        nodes.for_each(|node| self.push_features(node, &mut values));
        let offsets = OffsetBuffer::from_repeated_length(dim, rows);
        let values = Arc::new(Float32Array::from(values));
        ListArray::new(Arc::new(feature_field()), offsets, values, None)
    }
}

/// Assigns every tenth node to train, every twentieth each to validation and to test.
fn split(node: u64) -> Option<&'static str> {
    match node % 20 {
        0 | 10 => Some("train"),
        5 => Some("val"),
        15 => Some("test"),
        _ => None,
    }
}

fn feature_field() -> Field {
    Field::new("item", DataType::Float32, false)
}

/// Returns a column of ids.
pub(super) fn ids(ids: impl IntoIterator<Item = u64>) -> ArrayRef {
    let ids = ids
        .into_iter()
        .map(|id| i64::try_from(id).expect("below 2^32"));
    Arc::new(Int64Array::from_iter_values(ids))
}
